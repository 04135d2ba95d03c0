"""Processes that a command has beside it."""

from __future__ import annotations

import ctypes
import signal
import socket


def end_with_parent() -> None:
    """Have this process be killed when the thread that started it ends, by kill -9, too."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port
