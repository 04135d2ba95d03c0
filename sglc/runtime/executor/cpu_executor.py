"""Runs steps on the CPU through compiled kernels; what may be sampled from their logits, torch says."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sglc.runtime.executor.cpu_model import CpuModel, logits_kernels
from sglc.runtime.executor.logits_output import I64
from sglc.runtime.executor.torch_executor import TorchExecutor, empty_pool
from sglc.runtime.model.config import ModelConfig
from sglc.runtime.model.packed_weights import PackedMatrix
from sglc.runtime.step import I32, Batch


class CpuExecutor(TorchExecutor):
    """A `TorchExecutor` whose forward pass is one call of compiled code.

    Args:
        library: `kernels.cpu_build.library()`.
        weights, packed, integers: as `CpuModel` takes them.
        page_size, pages, eos_ids: as in `TorchExecutor`; sizes for which `cpu_model.fits` is true.

    Raises:
        BackendError: the pool does not fit into memory (SGLC530).
    """

    _threads = 1  # for torch's small part of a step: several would wait for each other

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
        self._logits, self._kernels = self._cpu_model.logits, logits_kernels(self._library, threads)
        shape = self._cpu_model.pool_shape(self.pages, self.page_size)
        self._pool = empty_pool(shape, self.pages * self.page_size, dtype, self._device)

    def _copy(self, copies: I32) -> None:
        # Whole pages: what lies behind the tokens asked for is written before it is read.
        source, target = torch.from_numpy(copies[:, :2].T.astype(np.int64, order="C"))
        self._pool.index_copy_(1, target, self._pool.index_select(1, source))

    def _forward(self, batch: Batch, wanted: I64) -> Tensor:
        return self._cpu_model.forward(batch, self._ids(batch), self._pool, self.page_size, wanted)


def free_cores() -> int:
    """Cores that this process may use: its affinity, and a quota of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no control groups, or `max`
        return cores
