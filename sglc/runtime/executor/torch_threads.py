"""With how many threads torch computes where it is called, and nowhere else."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import torch

_Set = Callable[[int], int]


def set_torch_threads(count: int) -> None:
    """Have torch compute with so many threads in this thread from now on; where that cannot be set, as it does.

    `torch.set_num_threads` would set it for all threads of the process that begin later, too: the user's.
    """
    torch.get_num_threads()  # in a thread that is new to it, it sets its own number first
    if (openmp := _openmp()) is not None:
        openmp(count)
        if (mkl := _mkl()) is not None:
            mkl(count)


@cache
def _openmp() -> _Set | None:
    """`omp_set_num_threads` of the OpenMP that torch has loaded, which is of the calling thread alone."""
    before = torch.get_num_threads()
    for put in _loaded("omp", "omp_set_num_threads"):
        put(before + 1)
        found = torch.get_num_threads() == before + 1
        put(before)
        if found:
            return put
    return None


@cache
def _mkl() -> _Set | None:
    """The same of MKL, which follows OpenMP until somebody has told torch a number."""
    return next(_loaded("libtorch_cpu", "MKL_Set_Num_Threads_Local"), None)


def _loaded(file: str, function: str) -> Iterator[_Set]:
    """That function of each library in this process whose file is called somehow like this."""
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # no Linux
        return
    paths = {line.split(maxsplit=5)[-1] for line in mapped if file in line.rpartition("/")[2]}
    for path in sorted(paths):
        try:
            yield getattr(ctypes.CDLL(path), function)
        except (OSError, AttributeError):
            continue
