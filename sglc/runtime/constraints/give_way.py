"""Threads of matchers give way to a step.

What has to come next is looked for in many short calls, each of which lets go of Python's lock and takes it
again. So does a step, which waits for it behind them each time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time

_SLICE_S = 0.0003  # of a processor between two rests: a step does not wait for what takes no longer
_REST_S = 0.003  # at most: a step may take long, and who waits for a matcher would miss more than one

_NO_STEP = threading.Event()
_NO_STEP.set()
_own = threading.local()


@contextmanager
def step() -> Iterator[None]:
    """Inside, a step is made."""
    _NO_STEP.clear()
    try:
        yield
    finally:
        _NO_STEP.set()


def begin() -> None:
    """This thread gives way from now on."""
    _own.since_s = thread_time()


def pause() -> None:
    """If a step is being made, rest until it is over, though not for long; in a thread that gives way."""
    since_s = getattr(_own, "since_s", None)
    if since_s is None or _NO_STEP.is_set() or thread_time() - since_s < _SLICE_S:
        return
    _NO_STEP.wait(_REST_S)
    begin()
