"""Waiting for what other threads bring about: a test waits until something is so, never for a time."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from sglc.execution import deadline
from sglc.execution.event_loop import executor_loop
from sglc.execution.result import Result

if TYPE_CHECKING:  # benchmarks wait, too, where there is no pytest
    import pytest

HANG_S = 120.0  # bounds a hang; what works takes a small part of it on the slowest machine


def until(so: Callable[[], object], what: str = "it never comes to be so") -> None:
    """Wait until it is so."""
    ends_s = time.monotonic() + HANG_S
    while not so():
        assert time.monotonic() < ends_s, what
        time.sleep(0.002)


def press_ctrl_c(when: Callable[[], object]) -> None:
    """Interrupt the main thread as soon as it waits for a result and `when` is so."""
    main = threading.main_thread().ident
    assert main is not None
    waits = (threading.Condition.wait.__code__, Result._wait.__code__)

    def place() -> object:
        """Where the main thread is, if it waits."""
        frame = sys._current_frames()[main]
        return (frame, frame.f_lasti) if frame.f_code in waits else None

    begun = threading.Event()

    def press() -> None:
        begun.wait()  # the main thread waits for this one to start, too
        until(when)
        before = None
        while (now := place()) is None or now != before:
            before = now
            time.sleep(0.002)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    begun.set()


class Gate:
    """What hangs, hangs here until it is opened. `waiting` is how many do."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._lock = threading.Lock()
        self.waiting = 0

    def shut(self) -> None:
        """Close it, for another test."""
        self._open.clear()

    def open(self) -> None:
        """Let go whoever waits."""
        self._open.set()

    def wait(self) -> None:
        """Hang."""
        with self:
            self._open.wait()

    async def awaited(self) -> None:
        """Hang as a coroutine."""
        with self:
            while not self._open.is_set():
                await asyncio.sleep(0.002)

    def __enter__(self) -> None:
        with self._lock:
            self.waiting += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.waiting -= 1


class HandClock:
    """The clock of deadlines, which stands still until `advance`; deadlines have it for `time` and their loop.

    Runs with a deadline: `begun` in all, `running` have not ended, of `rung` the time was over.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._now_s = 1_000.0
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._set: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self.rung = 0
        patch.setattr(deadline, "time", self)
        patch.setattr(deadline, "executor_loop", lambda: self)

    def monotonic(self) -> float:
        return self._now_s

    def call_soon_threadsafe(self, call: Callable[..., None], *arguments: object) -> None:
        call(*arguments)

    def call_at(self, at_s: float, ring: Callable[[], None]) -> None:
        with self._lock:
            self._set.append(ring)
            self._due.append((at_s, ring))

    @property
    def begun(self) -> int:
        return len(self._set)

    @property
    def running(self) -> int:
        return sum(map(_is_set, tuple(self._set)))

    def advance(self, seconds: float, when: Callable[[], object], times: int = 1) -> None:
        """Let so much time pass as soon as `when` is so, in a thread beside; whose time is over hears of it."""

        def go_on() -> None:
            for _ in range(times):
                until(when)
                with self._lock:
                    self._now_s += seconds
                    late = [ring for at_s, ring in self._due if at_s <= self._now_s and _is_set(ring)]
                    self._due = [(at_s, ring) for at_s, ring in self._due if at_s > self._now_s]
                    self.rung += len(late)
                for ring in late:
                    executor_loop().call_soon_threadsafe(ring)

        threading.Thread(target=go_on, daemon=True).start()


def _is_set(ring: Callable[[], None]) -> bool:
    """Whether an alarm has not been turned off, as it is when its run ends."""
    return ring.__self__._ring is not None  # type: ignore[attr-defined]


def somebody_at(file: str, line: int | None = None) -> bool:
    """Whether a thread, which is not the main one, is in this file, or at this line of it."""
    main = threading.main_thread().ident
    for thread, frame in sys._current_frames().items():
        inside: FrameType | None = frame if thread != main else None
        while inside is not None:
            if inside.f_code.co_filename == file and line in (None, inside.f_lineno):
                return True
            inside = inside.f_back
    return False


def let_the_loop_run() -> None:
    """Let the executor's loop do what it has been told."""
    for _ in range(20):
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.001), executor_loop()).result()
