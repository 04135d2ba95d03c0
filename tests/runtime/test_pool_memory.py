"""Memory of a KV pool is there before the pages are used."""

from __future__ import annotations

import ctypes
import mmap
import sys

import pytest
import torch
from torch import Tensor

from sglc.runtime.executor.pool_memory import PoolMemory
from sglc.runtime.executor.torch_executor import empty_pool

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems are not asked for memory")

# 512 MiB: of less, much may be memory that was used before and that the process still had.
_LAYERS, _PAGES, _FLOATS = 2, 16_384, 4096


def _resident(part: Tensor) -> set[int]:
    """Whether the system's pages of `part` are in memory: all (1), none (0), or some."""
    first = part.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    size = part.data_ptr() + part.nbytes - first
    found = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(first), ctypes.c_size_t(size), found) == 0
    return {each & 1 for each in found}


def _wait(memory: PoolMemory) -> None:
    assert memory._thread is not None
    memory._thread.join()


def test_the_pages_behind_the_used_ones_are_there() -> None:
    pool = empty_pool((_LAYERS, _PAGES, _FLOATS), _PAGES, torch.float32, torch.device("cpu"))
    far = pool[1, 256:768]  # a huge page of the system may reach from other memory over the ends of the pool
    assert _resident(far) == {0}
    memory = PoolMemory(pool)
    _wait(memory)
    assert [_resident(layer[:64]) for layer in pool] == [{1}, {1}]
    assert _resident(far) == {0}, "what is far away costs nothing"
    pool[:, :64] = 1.0
    memory.used(20)
    assert memory._had == 64, "there are enough"
    assert memory.due == 33, "of page 32, the half of those ahead is there"
    memory.used(40)
    _wait(memory)
    assert [_resident(layer[64:104]) for layer in pool] == [{1}, {1}]
    assert (pool[:, :64] == 1.0).all()
    assert (pool[:, 64:1024] == 0.0).all()


def test_it_ends_with_the_pool() -> None:
    pool = empty_pool((_LAYERS, 80, _FLOATS), 80, torch.float32, torch.device("cpu"))
    memory = PoolMemory(pool)
    _wait(memory)
    memory.used(79)
    _wait(memory)
    assert _resident(pool) == {1}
    memory.used(79)
    assert memory._had == memory.due == 80, "there are no more"
