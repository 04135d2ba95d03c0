"""Runs steps on the CPU through compiled kernels; what may be sampled from their logits, torch says."""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sglc.runtime.executor.cpu_model import CpuModel, draw
from sglc.runtime.executor.executor_state import ExecutorState
from sglc.runtime.executor.logits_output import LogitsOutput, outcome, wanted_tokens
from sglc.runtime.executor.pool_memory import PoolMemory
from sglc.runtime.executor.torch_executor import TorchExecutor, empty_pool
from sglc.runtime.model.config import ModelConfig
from sglc.runtime.model.packed_weights import PackedMatrix
from sglc.runtime.step import I32, Batch, Opened, Step, StepCost

_KEYS = 512  # before the tokens whose attention is measured
_SOME = 16  # tokens of a step that is measured; what others cost is taken from that and one
_SIZES = (1, 4, 8, 12, 16, 24, 32, 64, 128, 256)
_STRETCH = 2.0


class CpuExecutor(TorchExecutor):
    """A `TorchExecutor` whose forward pass is one call of compiled code.

    Args:
        library: `kernels.cpu_build.library()`.
        weights, packed, integers: as `CpuModel` takes them.
        page_size, pages, eos_ids: as in `TorchExecutor`; sizes for which `cpu_model.fits` is true.

    Raises:
        BackendError: the pool does not fit into memory (SGLC530).
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        packed: Mapping[str, PackedMatrix],
        *,
        page_size: int = 16,
        pages: int = 1024,
        eos_ids: Sequence[int] | None = None,
        integers: bool = False,
    ) -> None:
        self._library, self._packed, self.integers = library, packed, integers
        super().__init__(config, weights, page_size=page_size, pages=pages, eos_ids=eos_ids)

    def _load(self, weights: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        threads = free_cores()
        self._cpu_model = CpuModel(self._library, self.config, weights, self._packed, threads, self.integers)
        self._logits, self._draw = self._cpu_model.logits, partial(draw, self._library, threads)
        shape = self._cpu_model.pool_shape(self.pages, self.page_size)
        self._pool = empty_pool(shape, self.pages * self.page_size, dtype, self._device)
        self._memory = PoolMemory(self._pool)

    def launch(self, step: Step) -> LogitsOutput:
        """Run `step`, torch's small part of it in one thread: several would wait for each other."""
        if len(step.pages):
            self._memory.used(int(step.pages[:, 2].max()))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return super().launch(step)
        finally:
            torch.set_num_threads(threads)

    def measure(self) -> StepCost:
        """What steps cost on this machine, by passes of a few tokens, 0.2 s; before the first step only.

        A token of a prompt costs a good part of a step here, so streams wait longer for prompts than on a GPU.
        """
        pages = min(self.pages, (_KEYS + _SOME) // self.page_size)
        keys = pages * self.page_size - _SOME
        with torch.inference_mode():
            self._pool[:, :pages] = 0  # what was never written is read as one page of the system
            one, some, far_one, far_some = (
                self._seconds(tokens, position) for position in (0, keys) for tokens in (1, _SOME)
            )
        token_s = max(some - one, 0.0) / (_SOME - 1)
        products_s = tuple((size, one + token_s * (size - 1)) for size in _SIZES)
        share = 1 / keys if keys else 0.0  # a pool of one page has room for none, and they are few
        key_s, pair_s = max(far_one - one, 0.0) * share, max(far_some - some, 0.0) * share / _SOME
        return StepCost(products_s, key_s, pair_s, _STRETCH)

    def _seconds(self, tokens: int, position: int) -> float:
        """What a step takes with so many tokens of one row, behind `position` others."""
        none, row = np.zeros(1, np.float32), np.zeros(1, np.int32)
        places = np.arange(-(-(position + tokens) // self.page_size), dtype=np.int32)
        step = Step(
            index=0, rows=row, decoding=0, sample=np.ones(1, np.bool_), lengths=np.array([tokens], np.int32),
            ids=np.zeros(tokens, np.int32), pages=np.stack([0 * places, places, places], 1),
            opened=Opened(
                rows=row, seq_len=row + position, temperature=none + 1, top_p=none + 1, top_k=row - 1,
                min_p=none, seeds=np.zeros(1, np.uint64), eos_from=row,
            ),
        )  # fmt: skip
        batch = ExecutorState(self.page_size).expand(step)
        times = []
        for _ in range(2):  # what another process takes is left out, and what the first pass loads
            began_s = time.perf_counter()
            outcome(batch, self._forward(batch), self._logits, self._eos_ids, self._draw)
            times.append(time.perf_counter() - began_s)
        return min(times)

    def _copy(self, copies: I32) -> None:
        # Whole pages: what lies behind the tokens asked for is written before it is read.
        source, target = (torch.from_numpy(copies[:, column].astype("int64")) for column in (0, 1))
        self._pool.index_copy_(1, target, self._pool.index_select(1, source))

    def _forward(self, batch: Batch) -> Tensor:
        wanted = wanted_tokens(batch)
        return self._cpu_model.forward(batch, self._ids(batch), self._pool, self.page_size, wanted)


def free_cores() -> int:
    """Cores that this process may use: its affinity, and a quota of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no control groups, or `max`
        return cores
