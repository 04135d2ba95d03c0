"""Processes that a command has beside it."""

from __future__ import annotations

import ctypes
import signal


def end_with_parent() -> None:
    """Have this process be killed when the thread that started it ends, by kill -9, too."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
