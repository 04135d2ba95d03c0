"""Threads of matchers give way to a step.

What has to come next is looked for in many short calls, each of which lets go of Python's lock and takes it
again. So does a step, which waits for it behind them each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter, thread_time

_SLICE_S = 0.0003  # of a processor before the first rest: a step does not wait for what takes no longer
_LONGEST_SLICE_S = 0.0024  # beside a step that goes on it is twice as long each time, up to here
_REST_S = 0.008  # at most, beside steps that take longer

_NO_STEP = threading.Event()
_NO_STEP.set()


class NotWanted(Exception):
    """Nobody wants any more what a thread looks for."""


class _Own(threading.local):
    """Of a thread: whether what it looks for is wanted, if it gives way; from when on it has worked, and for
    how long it may."""

    is_wanted: Callable[[], bool] | None = None
    since_s = 0.0
    slice_s = _SLICE_S


_own = _Own()
_shown_s = 0.0  # when a thread was last between two short calls, or will be behind its rest


@contextmanager
def step() -> Iterator[None]:
    """Inside, a step is made."""
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


def begin(is_wanted: Callable[[], bool]) -> None:
    """This thread looks for something from now on, as long as that is wanted, and gives way."""
    _own.is_wanted, _own.since_s, _own.slice_s = is_wanted, thread_time(), _SLICE_S


def pause() -> None:
    """Between two short calls: if a step is being made, rest until it is over, though not for long.

    Raises:
        NotWanted: in a thread that gives way, which is to end what it does.
    """
    global _shown_s
    if _own.is_wanted is None:
        return
    if not _own.is_wanted():
        raise NotWanted
    _shown_s = perf_counter()
    if _NO_STEP.is_set() or thread_time() - _own.since_s < _own.slice_s:
        return
    _shown_s += _REST_S
    over = _NO_STEP.wait(_REST_S)
    _shown_s = perf_counter()
    _own.since_s, _own.slice_s = thread_time(), _SLICE_S if over else min(2 * _own.slice_s, _LONGEST_SLICE_S)


def last_shown_s() -> float:
    """When a thread last was between two short calls, of `perf_counter`; in the future while one rests."""
    return _shown_s
