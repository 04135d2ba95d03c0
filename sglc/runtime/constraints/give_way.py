"""Threads of matchers give way to a step.

What has to come next is looked for in many short calls, each of which lets go of Python's lock and takes it
again. So does a step, which waits for it behind them each time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from time import thread_time

_SLICE_S = 0.0003  # of a processor between two rests: a step does not wait for what takes no longer
_REST_S = 0.008  # at most, and once in a step: one that takes long computes without the lock

_NO_STEP = threading.Event()
_NO_STEP.set()
_number = 0  # of the last step


class _Own(threading.local):
    """Of a thread: from when on it has worked, and the step beside which it has rested."""

    since_s = inf  # it does not give way
    beside = 0


_own = _Own()


@contextmanager
def step() -> Iterator[None]:
    """Inside, a step is made."""
    global _number
    _number += 1
    _NO_STEP.clear()
    try:
        yield
    finally:
        _NO_STEP.set()


@contextmanager
def waiting() -> Iterator[None]:
    """Inside, who makes a step waits."""
    makes_none = _NO_STEP.is_set()
    _NO_STEP.set()
    try:
        yield
    finally:
        if not makes_none:
            _NO_STEP.clear()


def begin() -> None:
    """This thread gives way from now on."""
    _own.since_s = thread_time()


def pause() -> None:
    """If a step is being made, rest until it is over, though not for long; in a thread that gives way."""
    if _NO_STEP.is_set() or _own.beside == _number or thread_time() - _own.since_s < _SLICE_S:
        return
    _own.beside = _number
    _NO_STEP.wait(_REST_S)
    begin()
