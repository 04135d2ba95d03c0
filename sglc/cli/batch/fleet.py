"""The rows of a batch on several replicas: who is given which, what comes back, and what is given anew.

A row is a replica's until what it has ended with is handed over, and of one replica at a time. So a row has one
result, whichever replica goes away, and what is done again is at most what was going on there.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from queue import SimpleQueue

from sglc.cli.batch.ended import Ended
from sglc.cli.batch.replica import Lost, Opened, Replica
from sglc.cli.batch.sorted_rows import NumberedRow, SortedRows
from sglc.cli.options import say
from sglc.errors import RunError, SglcError, UsageError
from sglc.execution.batch.shards import Schedule, cuts, share_of
from sglc.ir.plan.events import Usage

_AHEAD = 2  # times the rows that a replica has live are handed to it
_AGAIN_S = (0.5, 8.0)  # before a replica that was lost is opened anew: at first, and at last
_ALL_LOST_S = 20.0  # as long as there may be none
_CLOSE_S = 3.0


class Fleet:
    """Replicas, and the rows that they run. It is the batch's control, as `BatchControl`.

    Args:
        admits: as of `BatchControl`.
    """

    def __init__(self, replicas: Sequence[Replica], admits: Callable[[int], bool] | None) -> None:
        self.replicas = replicas
        self.rows = [0] * len(replicas)  # that have ended, by replica
        self.used = [Usage() for _ in replicas]
        self.begun = 0
        self.draining = False
        self.complete = False  # whether every row has ended
        self._admits = admits
        self._over = False
        self._change = threading.Condition()
        self._told: SimpleQueue[tuple[int, list[Ended]] | BaseException | None] = SimpleQueue()
        self._opened: list[Opened | None] = [None] * len(replicas)  # those that are there
        self._known: set[int] = set()  # those that were
        self._first: Opened | None = None
        self._problem: SglcError | None = None  # why there are none, or not all of them
        self._running: list[dict[int, NumberedRow]] = [{} for _ in replicas]
        self._waiting = 0  # rows that have ended and were not taken from here
        self._next: list[deque[NumberedRow]] = [deque() for _ in replicas]  # of the shard that each has
        self._again: deque[NumberedRow] = deque()  # rows of replicas that were lost
        self._parts: deque[tuple[Schedule, SortedRows]] = deque()  # of the batch, which begin in turn
        self._all = False  # whether there are no more to come
        self._since_s = 0.0  # since when there is no replica
        self._threads = [
            threading.Thread(target=self._serve, args=(place,), name="sglc-fleet", daemon=True)
            for place in range(len(replicas))
        ]

    def open(self) -> None:
        """Have all replicas open, in the background."""
        for thread in self._threads:
            thread.start()

    def model(self, *, all_of_them: bool) -> str:
        """The model of the replicas, when the first is there, or all of them are.

        Raises:
            SglcError: one of them cannot open, or has another model.
        """
        with self._change:
            enough = all if all_of_them else any
            self._change.wait_for(lambda: self._problem is not None or enough(self._opened))
            if self._problem is not None:
                raise self._problem
            assert self._first is not None
            return self._first.model

    def results(self, first: SortedRows, rest: Callable[[], SortedRows | None]) -> Generator[Ended]:
        """Run these rows; gives each as it ends.

        Args:
            rest: gives those that run behind the first ones, which do so while it is called.

        Raises:
            RunError: SGLC435, no replica is left.
            SglcError: what ends the batch, of a replica or of `rest`.
        """
        self._plan(first)
        threading.Thread(target=self._follow, args=(rest,), name="sglc-rest", daemon=True).start()
        try:
            while (told := self._told.get()) is not None:
                if isinstance(told, BaseException):
                    raise told
                place, made = told
                for one in made:
                    self.rows[place] += 1
                    self.used[place] += one.usage
                    yield one
                with self._change:
                    self._waiting -= len(made)
                    self._change.notify_all()
        finally:
            self.stop()
            for thread, replica in zip(self._threads, self.replicas, strict=True):
                thread.join(_CLOSE_S)
                if thread.is_alive():  # it waits for a replica to open, or one that answers no more
                    replica.close()

    def reconsider(self) -> None:
        """`admits` may give something else now."""
        with self._change:
            self._change.notify_all()

    def drain(self) -> None:
        """No row begins any more; those that run go on to their ends."""
        with self._change:
            self.draining = True
            self._change.notify_all()

    def stop(self) -> None:
        """No row begins any more, and those that run are stopped."""
        with self._change:
            self.draining = self._over = True
            self._change.notify_all()
        self._told.put(None)

    def _plan(self, rows: SortedRows) -> None:
        """These rows are next."""
        share = share_of(rows.count, len(self.replicas))
        schedule = Schedule(cuts(rows.shared(), share), len(self.replicas))
        with self._change:
            self._parts.append((schedule, rows))
            self._change.notify_all()

    def _follow(self, rest: Callable[[], SortedRows | None]) -> None:
        try:
            if (rows := rest()) is not None:
                self._plan(rows)
            with self._change:
                self._all = True
                self._change.notify_all()
        except BaseException as error:
            self._end(error)

    # -- one replica's thread ----------------------------------------------------------------------

    def _serve(self, place: int) -> None:
        replica, wait_s = self.replicas[place], _AGAIN_S[0]
        while not self._over:
            try:
                self._meet(place, replica.open())
                wait_s = _AGAIN_S[0]
                while (rows := self._take(place)) is not None:
                    self._keep(place, replica.step(rows))
            except Lost as lost:
                self._lose(place, RunError("SGLC435", f"{lost}", note="no other replica is left"))
            except SglcError as error:
                if self._opened[place] is None and place in self._known:
                    self._lose(place, error)  # it may come back
                else:
                    self._end(error)
            except BaseException as error:
                self._end(error)
            with self._change:
                self._change.wait_for(lambda: self._over, wait_s)
            wait_s = min(2 * wait_s, _AGAIN_S[1])
        with suppress(Exception):
            replica.close()

    def _meet(self, place: int, opened: Opened) -> None:
        """A replica is there.

        Raises:
            UsageError: SGLC085, it is not as the others.
        """
        with self._change:
            first = self._first = self._first or opened
            if (first.model, first.tokenizer) != (opened.model, opened.tokenizer):
                raise UsageError(
                    "SGLC085", f"`{self.replicas[place].name}` has another model than the other replicas",
                    note=f"`{opened.model}`, and not `{first.model}`" if opened.model != first.model
                    else "the tokenizers differ",
                    hint="all of them are to give the same answers",
                )  # fmt: skip
            self._opened[place] = opened
            self._known.add(place)
            self._change.notify_all()
            if self._over:  # meanwhile, and nobody waits for it any more
                return
        say(f"sglc: replica {self.replicas[place].name} is there")

    def _take(self, place: int) -> list[NumberedRow] | None:
        """The rows that a replica is given now; None: there are none any more."""
        opened = self._opened[place]
        assert opened is not None
        own = self._running[place]
        with self._change:
            while not self._over:
                rows = []
                while len(own) + self._waiting < _AHEAD * opened.rows and (row := self._row(place)) is not None:
                    own[row[0]] = row
                    self.begun += 1
                    rows.append(row)
                if own:
                    return rows
                if self._done:
                    self.complete = not self.draining
                    self._over = True
                    self._told.put(None)
                    self._change.notify_all()
                else:
                    self._change.wait()
        return None

    def _row(self, place: int) -> NumberedRow | None:
        """The next row of a replica, if one may begin."""
        if self.draining or not (self._admits is None or self._admits(self.begun)):
            return None
        if self._again:
            return self._again.popleft()
        own = self._next[place]
        while self._parts and not own:
            schedule, rows = self._parts[0]
            if (shard := schedule.next(place)) is None:
                self._parts.popleft()
            else:
                own.extend(rows.at(shard))
        return own.popleft() if own else None

    @property
    def _done(self) -> bool:
        """Whether nothing runs, nothing waits to be taken, and nothing is to begin."""
        if any(self._running) or self._waiting:
            return False
        return self.draining or (self._all and not (self._again or any(self._next) or self._parts))

    def _keep(self, place: int, made: list[Ended]) -> None:
        """What a replica has handed over is here."""
        if made:
            with self._change:
                for one in made:
                    del self._running[place][one.row]
                self._waiting += len(made)
                self._change.notify_all()
            self._told.put((place, made))

    def _lose(self, place: int, error: SglcError) -> None:
        """A replica has gone: what it had is the others'."""
        if self._opened[place] is not None and not self._over:
            say(f"sglc: replica {self.replicas[place].name} was lost: {error.message}; its rows run again")
        with self._change:
            self._again.extend(self._running[place].values())
            self._again.extend(self._next[place])
            self.begun -= len(self._running[place])
            self._running[place].clear()
            self._next[place].clear()
            self._opened[place] = None
            now_s = time.monotonic()
            if any(self._opened):
                self._since_s = 0.0
            elif not self._since_s:
                self._since_s = now_s
            all_lost = self._since_s and now_s - self._since_s > _ALL_LOST_S
            self._change.notify_all()
        if all_lost:
            self._end(error)

    def _end(self, error: BaseException) -> None:
        """The batch cannot go on."""
        with self._change:
            self._over = True
            if self._problem is None and isinstance(error, SglcError):
                self._problem = error
            self._change.notify_all()
        self._told.put(error)
