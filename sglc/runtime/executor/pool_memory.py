"""The memory of a KV pool on the CPU, had from the system before it is used.

Linux gives memory where it is first written, up to 2 MB at a time and each of the layers its own: a step that
comes to pages which nobody has used takes tens of milliseconds longer, and every stream waits for it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from contextlib import suppress
from threading import Thread

from torch import Tensor

_AHEAD = 64  # pages of the pool; a step seldom comes to more new ones
_NICE = 10  # steps come first
_POPULATE_WRITE = 23  # madvise(2), Linux 5.14 and later; changes no byte


class PoolMemory:
    """Of a pool [layers, pages, n] that is used from its first page on."""

    def __init__(self, pool: Tensor) -> None:
        self._pool = pool
        self._had = 0  # pages
        self.due = 0  # the first page at whose use more are to be had
        self._thread: Thread | None = None
        self.used(0)

    def used(self, page: int) -> None:
        """`page` is used: beside what else happens, those behind it are had in time."""
        pages = self._pool.shape[1]
        end = min(page + _AHEAD, pages)
        if page < self.due or sys.platform != "linux":
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._have, args=(self._had, end), daemon=True)
            with suppress(RuntimeError):  # there may be no thread more: then as on an older system
                self._thread.start()
                self._had = end
                self.due = pages if end == pages else end - _AHEAD // 2 + 1

    def _have(self, begin: int, end: int) -> None:
        os.nice(_NICE)  # of this thread alone
        madvise = ctypes.CDLL(None).madvise  # without the interpreter's lock
        for layer in self._pool[:, begin:end]:
            first = layer.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
            size = layer.data_ptr() + layer.nbytes - first
            if madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), _POPULATE_WRITE):
                return  # an older system: it gives what is written, when it is
