"""Many rows: at most a window of them at once, results in order or as they end, nothing left running.

Rows come from any iterable, some thousands ahead of the result that is awaited, and results that nobody
holds are gone: a batch has no end to its length. A row holds a place of the window until its result is
there. Plans need no thread; Python that waits (for the model, a tool, a lock) has one for its row.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar
from weakref import ref

from sglc.errors import UsageError, ends_run
from sglc.execution.context import RUN_CONTEXT
from sglc.execution.deadline import Clock
from sglc.execution.event_loop import in_loop, soon
from sglc.execution.lifecycle import Run
from sglc.execution.options import NumberedRows
from sglc.execution.result import Result
from sglc.execution.tool_calls import in_thread
from sglc.frontend.locate import here
from sglc.ir.plan.backend import Backend

_Row = TypeVar("_Row")
# Makes the run of a row, which has a number from 0. Told that it is in the executor's loop, where nothing is to
# wait, it may give None: then it is asked again outside.
Make = Callable[[int, _Row, bool], Run | None]
_ROWS_PER_CALL = 4  # rows kept live for each generation that the back end runs at once
_LEAST_ROWS = 64
_HANDED_OVER_S = 50e-6  # after which the loop's thread has taken the first row, and need not wait for all this
_A_TURN, _TURN_S = 8, 0.001  # rows that begin in one turn of the loop, and of a processor
_MOST_LONG = 2  # rows that take longer than a turn each; then others begin in the thread
_ONE_BY_ONE = 256  # rows of the thread that are handed over as they are made
_FAST_S = 0.001  # between the ends of rows
_SIGNAL_S = 1.0  # Python sees a signal no sooner that comes as its main thread begins to wait
_AHEAD = 4096  # rows that are looked at together, and that may have results before the one that is awaited


class BatchControl:
    """Ends a batch from any thread, or holds rows back. It is for one batch, whose results come as they end.

    Args:
        admits: whether one row more may begin behind so many; asked again after `reconsider`.
    """

    def __init__(self, admits: Callable[[int], bool] | None = None) -> None:
        self.admits = admits
        self.draining = self.stopped = False
        self.batch: _Batch[Any] | None = None  # once it has begun

    @property
    def begun(self) -> int:
        """The rows that have begun."""
        return 0 if self.batch is None else self.batch.begun

    def reconsider(self) -> None:
        """`admits` may give something else now."""
        if self.batch is not None:
            self.batch.reconsider()

    def drain(self) -> None:
        """No row begins any more; those that run go on to their ends."""
        self.draining = True
        if self.batch is not None:
            self.batch.drain()

    def stop(self) -> None:
        """No row begins any more, and those that run are stopped: only results that are there are given."""
        self.draining = self.stopped = True
        if self.batch is not None:
            self.batch.close()

    def bind(self, batch: _Batch[Any]) -> None:
        """The batch has begun."""
        self.batch = batch
        if self.stopped:
            batch.close()
        elif self.draining:
            batch.drain()


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


@dataclass(frozen=True, slots=True)
class Delivery:
    """Which results of a batch are given, and when.

    `ordered`: each when it and all before it ended, else each as it ends, and no row waits for another one.
    Rows whose numbers are in `skip` do not run. `control` needs results as they end.
    """

    ordered: bool = True
    skip: Container[int] = ()
    control: BatchControl | None = None


IN_ORDER = Delivery()


def delivery_of(ordered: bool, skip: Container[int], control: BatchControl | None) -> Delivery:
    """What the keywords of `stream_batch` ask for.

    Raises:
        UsageError: SGLC079, a control of a batch whose results are ordered.
    """
    if control is not None and ordered:
        raise UsageError("SGLC079", "`control` needs results as they end", here(), hint="add `ordered=False`")
    return Delivery(ordered, skip, control)


def live_rows(backend: Backend) -> int:
    """How many rows are live at once where nobody says so."""
    return max(_ROWS_PER_CALL * backend.target.concurrency, _LEAST_ROWS)


def run_batch(
    make: Make[_Row],
    rows: Iterable[_Row],
    backend: Backend,
    window: int | None,
    clock: Clock | None,
    name: str,
    *,
    order: Callable[[Sequence[_Row]], Iterable[int]] | None = None,
    delivery: Delivery = IN_ORDER,
) -> Iterator[Result]:
    """Run rows, a window of them at once; yields their results.

    Closing the iterator stops what still runs, and what has not begun never does.

    Args:
        make: called when a row's turn has come.
        window: rows live at once; None: as many as fit the back end.
        order: of some thousand rows that are next, the places in the order in which they begin. The very first
            row begins as soon as its place is known.

    Raises:
        Interrupted: Ctrl-C, when everything has been stopped.
        Exception: what `rows` or `make` raise, behind the results of the rows before.
    """
    outer = RUN_CONTEXT.get()
    counted = outer is not None and outer.calls_left is not None  # in the order of the rows
    size = 1 if counted else window or live_rows(backend)
    backend.start()
    batch = _Batch(make, rows, size, None if counted else order, delivery)
    del rows  # whoever takes them ends them
    if clock is not None:
        clock.begin()
    threading.Thread(target=batch.feed, name=f"sglc-{name}", daemon=True).start()
    try:
        while (result := batch.next()) is not None:
            if outer is not None and ends_run(error := result.outputs.error):
                outer.end_with(error)  # if it has not done so when its row ended
            yield result
    except KeyboardInterrupt:
        ended = [result for result in batch.held() if result.ended]  # before others end by being stopped
        batch.close()
        raise Interrupted(ended) from None
    except GeneratorExit:
        batch.drop()
        raise
    finally:
        batch.close()


class _Batch(Generic[_Row]):
    """Rows that are live, and the results that are not given yet.

    As long as rows need no thread, the next ones begin in the executor's loop, a few in each turn of it.
    """

    def __init__(
        self,
        make: Make[_Row],
        rows: Iterable[_Row],
        size: int,
        order: Callable[[Sequence[_Row]], Iterable[int]] | None,
        delivery: Delivery,
    ) -> None:
        self._make = make
        self._rows = iter(rows) if isinstance(rows, NumberedRows) else enumerate(rows)
        self._whole = isinstance(rows, Sequence)  # all are there
        self._size = size
        self._order = order
        self._ordered = delivery.ordered
        self._skip = delivery.skip
        self._lock = lock = threading.Lock()  # a condition's own way into it takes Python
        self._room = threading.Condition(lock)  # a row has ended, or was given, or none begins any more
        self._come = threading.Condition(lock)  # the awaited row has ended, or it never will
        self.begun = 0  # rows
        self._live = 0  # rows that have begun and have no result yet
        self._turns: deque[tuple[int, _Row]] = deque()  # rows that are next, in their order
        self._first = 0  # the first row of those that were looked at with them
        self._at_once = False  # whether the last row needed no thread
        self._making = False  # whether rows are taken from them in the loop
        self._long = 0  # how many of those took long, one behind the other
        self._next = 0  # the row whose result is given next, if they are ordered
        self._begun: dict[int, Result] = {}
        self._done: deque[Result] = deque()  # as they ended, if they are not
        self._given: list[ref[Result]] = []  # some of which nobody holds any more
        self._most_given = _AHEAD  # until those are forgotten
        self._fast = False  # whether the last wait for one was short
        self._fed = False  # no row begins any more
        self._problem: BaseException | None = None  # why, if not because there are no more
        self._closed = False  # no row is to begin any more
        self._stopping = False  # and those that run are to stop
        self._control = delivery.control
        if self._control is not None:
            self._control.bind(self)

    def feed(self) -> None:
        """Begin the rows, each as soon as there is a place. Runs in a thread of its own."""
        try:
            while not self._closed and self._problem is None and (chunk := self._taken()):
                self._first = chunk[0][0]
                order = range(len(chunk)) if self._order is None else self._order([row for _, row in chunk])
                turns = iter(order)
                if not self.begun:  # nobody runs while the order of the others is found
                    self._begin_all([chunk[next(turns)]])
                    if len(chunk) > 1:
                        time.sleep(_HANDED_OVER_S)
                self._begin_all([chunk[turn] for turn in turns])
        except BaseException as problem:
            self._problem = problem
        finally:
            with self._lock:
                self._turns.clear()
                while self._making:
                    self._room.wait()
                self._fed = True
                self._come.notify_all()
            self._rows = enumerate(())  # an event loop that rows come from is to end in this thread

    def _begin_all(self, turns: Sequence[tuple[int, _Row]]) -> None:
        with self._lock:
            self._turns.extend(turns)
        while (turn := self._turn()) is not None:
            self._begin(turn[0], self._made(*turn))
            with self._lock:
                here = self._goes_on_in_loop()
            if here:
                soon(self._begin_some)
            elif self.begun <= _ONE_BY_ONE:
                time.sleep(0)  # the loop's thread hands them over meanwhile: else it waits 5 ms for each

    def _made(self, number: int, row: _Row) -> Run:
        """The run of a row, which has its place already."""
        try:
            run = self._make(number, row, False)
            assert run is not None
        except BaseException:
            with self._lock:
                self._live -= 1
                self.begun -= 1
            raise
        return run

    def _taken(self) -> list[tuple[int, _Row]]:
        """The next rows: as many as are looked at together, but no more than come before there is a place."""
        chunk: list[tuple[int, _Row]] = []
        if self._whole and type(self._skip) is tuple and not self._skip:  # others say no more than `in`
            return list(islice(self._rows, _AHEAD))
        try:
            while self._problem is None and len(chunk) < _AHEAD:
                numbered = next(self._rows)
                if numbered[0] in self._skip:
                    continue
                chunk.append(numbered)
                if not self._whole and self._live < self._size:
                    break
        except StopIteration:
            pass
        except BaseException as problem:
            self._problem = problem
        return chunk

    def _turn(self) -> tuple[int, _Row] | None:
        """The row that is next, when there is a place; None: none of those that were taken."""
        with self._lock:
            while not self._closed and (self._making or (self._turns and not self._place)):
                self._room.wait()
            return None if self._closed or not self._turns else self._next_turn()

    def _next_turn(self) -> tuple[int, _Row]:
        """The row that is next, which has its place from now on. Inside the lock."""
        self._live += 1
        self.begun += 1
        return self._turns.popleft()

    def _goes_on_in_loop(self) -> bool:
        """Whether the loop is to begin the next rows; if so, nobody else does from now on. Inside the lock."""
        if not self._at_once or self._making or self._closed or not self._turns or not self._place:
            return False
        if self._long >= _MOST_LONG:  # others wait for the loop
            return False
        self._making = True
        return True

    @property
    def _place(self) -> bool:
        """Whether a row may begin."""
        ahead = self._first - self._next if self._ordered else len(self._done)
        if self._live >= self._size or ahead > _AHEAD:
            return False
        return self._control is None or self._control.admits is None or self._control.admits(self.begun)

    def _begin(self, number: int, run: Run) -> None:
        run.ended = partial(self._ended, number)
        self._at_once = not run.needs_thread
        with self._lock:
            self._begun[number] = run.result
        if self._stopping:  # meanwhile
            run.result.stop()
        if self._at_once:
            run.start()
        else:
            in_thread(run.start)

    def _ended(self, number: int) -> None:
        with self._lock:
            self._live -= 1
            if not self._ordered:
                result = self._begun.pop(number)
                if not self._stopping:
                    self._done.append(result)
            if not self._ordered or number == self._next:
                self._come.notify()
            if not (in_loop() and self._goes_on_in_loop()):
                self._room.notify()
                return
        self._begin_some()

    def _begin_some(self) -> None:
        """Begin rows in the loop, and the others behind what else waits for it.

        So it sends some while others are made, and no thread waits for the interpreter for each.
        """
        try:
            more = self._began_some()
        except BaseException as problem:  # which is told as if the thread had begun them
            more, self._problem = False, problem
        with self._lock:
            if self._problem is not None:
                self._turns.clear()
            self._making = False
            if not (more and self._goes_on_in_loop()):
                self._room.notify()
                return
        soon(self._begin_some)

    def _began_some(self) -> bool:
        """Begin some rows here; False: none is left, or the next one is to begin in the thread."""
        began_s = time.thread_time()
        for before in range(_A_TURN):
            with self._lock:
                if self._closed or not self._turns or not self._place:
                    return False
                number, row = self._next_turn()
            try:
                run = self._make(number, row, True)
            except Exception:  # it is made once more, where it can be told why
                run = None
            if run is None:
                with self._lock:
                    self._at_once = False
                    self._live -= 1
                    self.begun -= 1
                    self._turns.appendleft((number, row))
                    self._come.notify()
                return False
            self._begin(number, run)
            if time.thread_time() - began_s > _TURN_S:
                self._long = 0 if before else self._long + 1
                return not self._long
        self._long = 0
        return True

    def next(self) -> Result | None:
        """The next result, when its row has ended; None behind the last one."""
        if not self._ordered:
            return self._next_done()
        with self._lock:
            while self._next in self._skip:
                self._next += 1
                self._room.notify()
            waited = False
            while (result := self._begun.get(self._next)) is None or not result.ended:
                if result is None and self._fed:
                    if self._problem is not None:
                        raise self._problem
                    return None
                waited = self._wait(again=waited)
            self._give(result)  # before it is nowhere else: Ctrl-C may come between
            del self._begun[self._next]
            self._next += 1
            if self._next <= self._first:  # else no row was too far ahead
                self._room.notify()
        return result

    def _wait(self, *, again: bool) -> bool:
        """Wait for the awaited row, inside the lock. Where rows end one upon the other it is looked for later,
        and then perhaps others have ended too: to be woken takes as long as a part of a row."""
        if self._fast and not again:
            self._lock.release()
            try:
                time.sleep(_FAST_S)
            finally:
                self._lock.acquire()
        else:
            begin_s = time.perf_counter()
            is_main = threading.current_thread() is threading.main_thread()
            self._come.wait(_SIGNAL_S if is_main else None)
            self._fast = time.perf_counter() - begin_s < _FAST_S
        return True

    def _next_done(self) -> Result | None:
        with self._lock:
            waited = False
            while not self._done:
                if self._stopping or (not self._live and (self._fed or self._closed)):
                    if self._problem is not None:
                        raise self._problem
                    return None
                waited = self._wait(again=waited)
            result = self._done[0]
            self._give(result)
            self._done.popleft()
            self._room.notify()
        return result

    def reconsider(self) -> None:
        """Whether a row may begin may be another matter now."""
        with self._lock:
            self._room.notify()

    def drain(self) -> None:
        """Let no row begin any more."""
        with self._lock:
            self._closed = True
            self._room.notify_all()
            self._come.notify_all()

    def _give(self, result: Result) -> None:
        self._given.append(ref(result))
        if len(self._given) > self._most_given:
            self._given = [given for given in self._given if given() is not None]
            self._most_given = max(_AHEAD, 2 * len(self._given))

    def held(self) -> list[Result]:
        """The results that somebody holds, or will be given, in row order."""
        with self._lock:
            given = [result for given in self._given if (result := given()) is not None]
            found = {result.row: result for result in (*given, *self._done, *self._begun.values())}
            return [found[row] for row in sorted(found)]

    def close(self) -> None:
        """Let no row begin, and stop those that run."""
        with self._lock:
            self._closed = self._stopping = True
            self._room.notify_all()
            self._come.notify_all()
            running = tuple(self._begun.values())
        for result in running:
            result.stop()

    def drop(self) -> None:
        """Nobody is given the results that are left: of those that failed no more is said than of others."""
        with self._lock:
            left = (*self._done, *self._begun.values())
        for result in left:
            result.unread_error()
