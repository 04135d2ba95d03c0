"""With how many threads torch computes where it is called, and nowhere else."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Have torch compute with so many threads in this thread; None, or where that cannot be set: as it does.

    `torch.set_num_threads` would set it for all threads of the process that begin later, too: the user's.
    """
    put = None if count is None else _openmp()
    if count is None or put is None:
        yield
        return
    before = torch.get_num_threads()
    put(count)
    try:
        yield
    finally:
        put(before)


@cache
def _openmp() -> Callable[[int], object] | None:
    """`omp_set_num_threads` of the OpenMP that torch has loaded, which is of the calling thread alone."""
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # no Linux
        return None
    before = torch.get_num_threads()
    for path in sorted({line.split()[-1] for line in mapped if "omp" in line.rpartition("/")[2]}):
        try:
            put = ctypes.CDLL(path).omp_set_num_threads
        except (OSError, AttributeError):
            continue
        put(before + 1)
        found = torch.get_num_threads() == before + 1
        put(before)
        if found:
            return put
    return None
