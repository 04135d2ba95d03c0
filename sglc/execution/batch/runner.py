"""Many rows: at most a window of them at once, results in order, nothing left running.

A row holds a place of the window until its result is there, so a row that waits (for the model, a tool, a
lock) delays no row that has another place. Threads only run bodies: one is enough while bodies do not
wait, and more are added, up to the window, as soon as they do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from sglc.errors import UsageError
from sglc.execution.deadline import Clock
from sglc.execution.event_loop import executor_loop
from sglc.execution.lifecycle import Run
from sglc.execution.result import Result
from sglc.frontend.locate import here
from sglc.ir.plan.backend import Backend

_ROWS_PER_CALL = 4  # rows kept live for each generation that the back end runs at once
_LEAST_ROWS = 64
_STALL_S = 0.001  # a body that takes longer is taken to wait for something: another thread goes on


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while a batch ran. `results` are those of the rows that had ended, in row order."""

    def __init__(self, results: Sequence[Result]) -> None:
        super().__init__(f"{len(results)} rows had ended")
        self.results = list(results)


def window_of(num_threads: Any) -> int | None:
    """How many rows are to be live at once; None if that is left to the back end.

    Raises:
        UsageError: SGLC023, it is no number.
    """
    if num_threads == "auto":
        return None
    if not isinstance(num_threads, int) or num_threads < 1:
        raise UsageError(
            "SGLC023", f'`num_threads` is a number from 1 or `"auto"`, not `{num_threads!r}`', here()
        )
    return num_threads


def run_batch(
    make: Callable[[int], Run],
    count: int,
    backend: Backend,
    window: int | None,
    clock: Clock | None,
    name: str,
    *,
    order: Callable[[], Sequence[int]] | None = None,
    threads: bool = True,
) -> Iterator[Result]:
    """Run rows 0 to `count` - 1, a window of them at once; yields each when it and all before it ended.

    Closing the iterator stops what still runs, and what has not begun never does.

    Args:
        make: gives a row; called when its turn has come.
        window: rows live at once; None: as many as fit the back end.
        order: gives the rows' numbers in the order in which they begin; that of the results without it.
        threads: rows need a thread to run in; else they run in the executor's loop, and `make` is called there.

    Raises:
        Interrupted: Ctrl-C, when everything has been stopped.
    """
    if not count:
        return
    backend.start()
    if clock is not None:
        clock.begin()
    size = window or max(_ROWS_PER_CALL * backend.target.concurrency, _LEAST_ROWS)
    turns = range(count) if order is None else order()
    live = _Window(make, turns, size, name) if threads else _LoopWindow(make, turns, size)
    live.open()
    try:
        for number in range(count):
            yield live.result(number).sync()
    except KeyboardInterrupt:
        raise Interrupted([result for result in live.close() if result.ended]) from None
    finally:
        live.close()


class _LoopWindow:
    """Rows that are live and need no thread. `_fill` and `_ended` are called in the executor's loop."""

    def __init__(self, make: Callable[[int], Run], turns: Sequence[int], size: int) -> None:
        self._make = make
        self._turns = turns
        self._size = size
        self._change = threading.Condition()  # a row has ended whose result somebody waits for
        self._awaited = -1
        self._live = 0
        self._taken = 0  # rows that have a place, or had one
        self._filling = False
        self._begun: dict[int, Result] = {}
        self._closed = False  # no row begins any more

    def open(self) -> None:
        """Begin."""
        executor_loop().call_soon_threadsafe(self._fill)

    def _fill(self) -> None:
        if self._filling:  # a row ended as it began
            return
        self._filling = True
        while self._live < self._size and self._taken < len(self._turns) and not self._closed:
            number = self._turns[self._taken]
            self._taken += 1
            self._live += 1
            row = self._make(number)
            row.ended = partial(self._ended, number)
            self._begun[number] = row.result
            row.start()
        self._filling = False
        if self._closed:  # meanwhile
            self._stop()

    def _ended(self, number: int) -> None:
        self._live -= 1
        with self._change:
            if number == self._awaited:
                self._change.notify_all()
        self._fill()

    def result(self, number: int) -> Result:
        """The result of a row, when it has ended."""
        with self._change:
            self._awaited = number
            while not ((begun := self._begun.get(number)) and begun.ended):
                self._change.wait()
            return begun

    def close(self) -> list[Result]:
        """Let no row begin, stop those that run; gives the results of all that have begun."""
        self._closed = True
        return self._stop()

    def _stop(self) -> list[Result]:
        begun = [result for _, result in sorted(self._begun.copy().items())]
        for result in begun:
            result.stop()
        return begun


class _Window:
    """Rows that are live, and the threads that run their bodies."""

    def __init__(self, make: Callable[[int], Run], turns: Sequence[int], size: int, name: str) -> None:
        self._make = make
        self._turns = turns
        self._size = size
        self._name = name
        lock = threading.Lock()
        self._room = threading.Condition(lock)  # a row has ended, or none begins any more
        self._begun = threading.Condition(lock)  # a row has begun whose result somebody waits for
        self._all_begun = threading.Event()
        self._awaited = -1  # the row whose result somebody waits for
        self._live = 0  # rows that have begun and have no result yet
        self._threads = 0
        self._taken = 0  # rows that have a place, or had one
        self._results: dict[int, Result] = {}  # of the rows that have begun
        self._closed = False  # no row begins any more

    def open(self) -> None:
        """Begin."""
        self._add_thread()
        threading.Thread(target=self._watch, name=f"sglc-{self._name}-watch", daemon=True).start()

    def _add_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name=f"sglc-{self._name}", daemon=True).start()

    def _work(self) -> None:
        while (row := self._next()) is not None:
            row.start()
            if row.lost:  # another thread has taken this one's place
                return
            del row

    def _next(self) -> Run | None:
        with self._room:
            while self._live >= self._size and not self._over:
                self._room.wait()
            if self._over:
                return None
            number = self._turns[self._taken]
            self._taken += 1
            self._live += 1
            if self._over:
                self._all_begun.set()
                self._room.notify_all()  # nobody gets another place
        row = self._make(number)
        row.ended, row.abandoned = self._ended, self._abandoned
        with self._begun:
            self._results[number] = row.result
            if self._awaited == number:
                self._begun.notify_all()
        if self._closed:  # meanwhile
            row.result.stop()
        return row

    @property
    def _over(self) -> bool:
        return self._closed or self._taken == len(self._turns)

    def result(self, number: int) -> Result:
        """The result of a row, as soon as the row has begun."""
        with self._begun:
            self._awaited = number
            while number not in self._results:
                self._begun.wait()
            return self._results[number]

    def close(self) -> list[Result]:
        """Let no row begin, stop those that run; gives the results of all that have begun."""
        with self._room:
            self._closed = True
            self._room.notify_all()
            begun = [self._results[number] for number in sorted(self._results)]
        self._all_begun.set()
        for result in begun:
            result.stop()
        return begun

    def _ended(self) -> None:
        with self._room:
            self._live -= 1
            self._room.notify()

    def _abandoned(self) -> None:
        """A body has not ended in its time: its thread is no longer one of ours."""
        with self._room:
            self._threads -= 1
            if not self._over:
                self._add_thread()

    def _watch(self) -> None:
        """Add a thread whenever there is a place in the window and nobody takes it."""
        begun = -1
        while not self._all_begun.wait(_STALL_S):
            with self._room:
                if self._threads >= self._size:
                    return
                if begun == self._taken and self._live < self._size:
                    self._add_thread()
                begun = self._taken
