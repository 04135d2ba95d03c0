"""Runs steps on the CPU through compiled kernels; what may be sampled from their logits, torch says."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from sglc.runtime.executor.cpu_model import CpuModel, logits_kernels
from sglc.runtime.executor.torch_executor import TorchExecutor
from sglc.runtime.executor.torch_threads import set_torch_threads
from sglc.runtime.model.config import ModelConfig
from sglc.runtime.model.packed_weights import PackedMatrix
from sglc.runtime.step import StepCost


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

    def measure(self) -> StepCost | None:
        set_torch_threads(1)  # for torch's small part of a step: several would wait for each other
        return super().measure()

    def _load(self, weights: Mapping[str, Tensor]) -> CpuModel:
        threads = free_cores()
        self._kernels = logits_kernels(self._library, threads)
        return CpuModel(self._library, self.config, weights, self._packed, threads, self.integers)


def free_cores() -> int:
    """Cores that this process may use: its affinity, and a quota of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no control groups, or `max`
        return cores
