"""A few threads for calls of matchers, which may take long: who decides about steps goes on meanwhile.

xgrammar lets other threads of Python go on in all of its calls, llguidance while it computes a mask. Calls of
one key come one after the other. What a call gives is handed over in the thread that began it. A call that
takes too much of a processor is given up: its thread cannot be ended, so another one takes its place, as long
as few are lost in this way.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from typing import Any

from sglc.errors import RunError, SglcError
from sglc.runtime.constraints import give_way

# One that takes long leaves others to those who do not. Half of many cores: steps and requests need some too.
_THREADS = min(max(3, (os.cpu_count() or 1) // 2), 8)
_LONG_S = 0.001  # that none ends while one waits, until there is a thread more
_MANY_S = 0.01  # or in which one has made many short calls of a library
_MOST_LOST = 8
_REST_S = 2.0  # a thread that has had nothing to do for so long ends
_LEAST_PRIORITY = 19
_AT_THE_END_S = 3.0


@dataclass(slots=True, eq=False)
class _Call:
    """`work` is done in a thread, `then` is called with what it gives, or with the error that it raises."""

    key: Hashable
    work: Callable[[], Any]
    then: Callable[[Any], None]
    may_take_s: float
    awaited: bool
    rank: tuple[bool, int]  # the lowest goes first
    begun_s: float
    given: Any = None
    bug: BaseException | None = None
    ended: bool = False
    over: bool = False  # nobody wants what it gives


class MatcherThreads:
    """The threads of one engine, and the calls that wait for them. All but the threads is single-threaded."""

    def __init__(self, threads: int = _THREADS, most_lost: int = _MOST_LOST) -> None:
        self._threads = threads
        self._most_lost = most_lost
        self._lock = threading.Lock()
        self._begun = threading.Condition(self._lock)
        self._ended = threading.Condition(self._lock)
        self._ready: list[tuple[tuple[bool, int], _Call]] = []  # a heap
        self._begun_calls = 0
        self._behind: dict[Hashable, deque[_Call]] = {}  # of the keys with a call that is ready or runs
        self._given: deque[_Call] = deque()
        self.working: dict[_Thread, None] = {}  # those that rest, too, but not the lost ones
        self._resting = 0
        self.lost = 0  # threads whose calls were given up, and have not ended yet
        self._waits_for: set[_Call] = set()  # who waits is woken when all of them have ended
        self._waits_for_any = False  # or when a call has
        self._ended_s = 0.0  # when the last one did
        self.pending: dict[_Call, None] = {}  # begun, and not handed over

    def begin(
        self,
        key: Hashable,
        work: Callable[[], Any],
        then: Callable[[Any], None],
        *,
        may_take_s: float,
        awaited: bool,
        urgent: bool = False,
    ) -> None:
        """Have `work` done, which may take `may_take_s` of a processor, `urgent` before other work.

        Then `deliver` calls `then` with what it gives, or with the `SglcError` that it raises, unless its key
        is dropped before. `wait` has patience with it if it is `awaited`.
        """
        self._begun_calls += 1
        rank = (not urgent, self._begun_calls)
        call = _Call(key, work, then, may_take_s, awaited, rank, time.perf_counter())
        self.pending[call] = None
        with self._lock:
            if key in self._behind:
                self._behind[key].append(call)
                return
            self._behind[key] = deque()
            heappush(self._ready, (rank, call))
            self._look_after()

    def drop(self, key: Hashable) -> None:
        """Nobody wants any more what the calls of a key give; one that runs ends between two short calls."""
        with self._lock:
            for call in [call for call in self.pending if call.key == key]:
                call.over = True
                del self.pending[call]
            if key in self._behind:
                self._behind[key].clear()

    def wait(self, seconds: float, *, for_all: bool) -> None:
        """Until a call has ended, or, `for_all`, each that is awaited; `seconds` at most.

        Those that have not ended by then are not awaited any more.
        """
        with give_way.waiting(), self._lock:
            running = [call for call in self.pending if not call.ended]
            if for_all:
                self._waits_for = {call for call in running if call.awaited}
                self._wait_for(lambda: not self._waits_for, seconds)
                for call in self._waits_for:
                    call.awaited = False
                self._waits_for = set()
            elif running and not self._given:
                self._waits_for_any = True
                self._wait_for(lambda: not self._waits_for_any, seconds)
                self._waits_for_any = False

    def deliver(self) -> None:
        """Hand over what calls have given."""
        if not self.pending:
            return
        with self._lock:
            self._look_after()
            given, self._given = self._given, deque()
        for call in given:
            if call.over:  # or dropped by one before it
                continue
            del self.pending[call]
            if call.bug is not None:
                raise call.bug
            call.then(call.given)

    # -- with the lock held

    def _wait_for(self, so: Callable[[], bool], seconds: float) -> None:
        ends_s = time.monotonic() + seconds
        while not so() and (left_s := ends_s - time.monotonic()) > 0:
            self._ended.wait_for(so, min(left_s, _LONG_S))
            self._look_after()

    def _look_after(self) -> None:
        """Give up what takes too long, and have a thread more for what has waited long."""
        self._give_up()
        if self._ready:
            # Short calls, one after another, are done sooner by one thread: Python's lock is one too. But what
            # takes many of them is nothing to wait for until it is over.
            begun_s = self._ready[0][1].begun_s
            shown_s = min(give_way.last_shown_s(), begun_s + _MANY_S)
            stalled_s = max(begun_s, self._ended_s, shown_s)
            waited = time.perf_counter() - stalled_s > _LONG_S
            if waited or len(self.working) == self._resting:
                self._staff()

    def _staff(self) -> None:
        """Have a thread more for what is ready, if there may be one."""
        most = min(self._threads, self._threads + self._most_lost - self.lost)
        if self._resting:
            self._begun.notify()
        elif len(self.working) < most:
            thread = _Thread(self)
            self.working[thread] = None
            thread.start()
        elif not most:
            for _, call in self._ready:
                self._fail(call)
            self._ready.clear()

    def _give_up(self) -> None:
        """Calls that have taken too long have failed; their threads are lost until they come back."""
        for thread in [thread for thread in self.working if thread.overdue]:
            assert thread.call is not None
            del self.working[thread]
            self.lost += 1
            thread.lost = True
            _LEFT[:] = [*filter(threading.Thread.is_alive, _LEFT), thread]
            _end_beside_them()
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread.native_id or 0, _LEAST_PRIORITY)
            self._fail(thread.call)

    def _fail(self, call: _Call) -> None:
        """A call is given up, and all behind it: what they need is where it got stuck."""
        for each in (call, *self._behind.pop(call.key)):
            each.given = _too_long(call.may_take_s)
            self._give(each)

    def _next_of(self, key: Hashable) -> None:
        """A call of a key is over: the next one may go on."""
        if behind := self._behind[key]:
            following = behind.popleft()
            heappush(self._ready, (following.rank, following))
        else:
            del self._behind[key]

    def _give(self, call: _Call) -> None:
        call.ended, self._ended_s = True, time.perf_counter()
        if not call.over:
            self._given.append(call)
        self._waits_for.discard(call)
        if self._waits_for_any or not self._waits_for:
            self._waits_for_any = False
            self._ended.notify()


class _Thread(threading.Thread):
    """One of the threads; it does not keep its process alive."""

    def __init__(self, threads: MatcherThreads) -> None:
        super().__init__(name="sglc-matcher", daemon=True)
        self.call: _Call | None = None
        self.lost = False
        self._threads = threads
        # Where no other thread can see how much of a processor this one took.
        self._clock = time.CLOCK_MONOTONIC
        self._began_s = 0.0

    def run(self) -> None:
        if hasattr(time, "pthread_getcpuclockid"):
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
        threads = self._threads
        while True:
            with threads._lock:
                self.call = call = self._next()
                if call is None:
                    threads.working.pop(self, None)
                    return
            give_way.begin(self._is_wanted)
            try:
                call.given = call.work()
            except SglcError as error:
                call.given = error
            except give_way.NotWanted:
                pass
            except BaseException as error:  # a bug of ours, for who handed it over
                call.bug = error
            with threads._lock:
                if self.lost:
                    threads.lost -= 1
                    return
                threads._next_of(call.key)
                self.call = None
                threads._give(call)

    def _next(self) -> _Call | None:
        threads = self._threads
        while True:
            while not threads._ready:
                threads._resting += 1
                woken = threads._begun.wait(_REST_S)
                threads._resting -= 1
                if not woken and not threads._ready:
                    return None
            _, call = heappop(threads._ready)
            if not call.over:
                threads._look_after()
                self._began_s = time.clock_gettime(self._clock)
                return call
            threads._next_of(call.key)

    def _is_wanted(self) -> bool:
        return not (self.lost or (self.call is not None and self.call.over))

    @property
    def overdue(self) -> bool:
        """Whether its call takes longer than it may."""
        if self.call is None:
            return False
        return time.clock_gettime(self._clock) - self._began_s > self.call.may_take_s


_LEFT: list[threading.Thread] = []  # with calls that were given up


@cache
def _end_beside_them() -> None:
    """Have this process end in order though a thread of it still runs.

    It is waited for, but not for long. One that does not come back uses what libraries destroy behind Python's
    end, so nothing is destroyed.
    """
    libc = ctypes.CDLL(None)
    with suppress(AttributeError):  # only Linux has it; the last one registered is called first
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
    atexit.register(_wait_at_the_end)


def _wait_at_the_end() -> None:
    ends_s = time.monotonic() + _AT_THE_END_S
    for thread in _LEFT:
        thread.join(max(0.0, ends_s - time.monotonic()))
    if any(map(threading.Thread.is_alive, _LEFT)):
        # Python ends a thread that comes back from here on, which C++ and Rust abort the process for.
        libc = ctypes.CDLL(None)
        libc.signal(signal.SIGABRT, ctypes.cast(libc.pause, ctypes.c_void_p))


def _too_long(seconds: float) -> RunError:
    return RunError(
        "SGLC459",
        f"what this generation is held to takes too long: more than {seconds:g} s at one place",
        note="there may be many ways to read one text",
        hint="write the grammar so that a text can be read in one way",
    )
