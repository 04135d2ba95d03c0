"""The rows of a batch on several replicas: who is given which, what comes back, and what is given anew.

A row is a replica's until what it has ended with is handed over, and of one replica at a time. So a row has one
result, whichever replica goes away. What it does is handed over, too, and the next replica is given it with the
row: what is done again is what was going on there, and what was not handed over yet.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue

from sglc.cli.batch.ended import Ended
from sglc.cli.batch.journal import SharedJournal
from sglc.cli.batch.replica import Lost, Made, Opened, Replica
from sglc.cli.batch.sorted_rows import NumberedRow, SortedRows
from sglc.cli.options import say
from sglc.errors import RunError, SglcError, UsageError
from sglc.execution.batch.shards import Schedule, cuts, share_of
from sglc.ir.plan.events import Usage

_AHEAD = 2  # times the rows that a replica has live are handed to it
_AGAIN_S = (0.5, 8.0)  # before a replica that was lost is opened anew: at first, and at last
_ALL_LOST_S = 20.0  # as long as there may be none
_CLOSE_S = 3.0


@dataclass(slots=True, eq=False)
class Member:
    """A replica, and what it has: `rows` have ended, `shard` is what is left of the one that it was given."""

    number: int
    replica: Replica
    opened: Opened | None = None  # while it is there
    known: bool = False  # whether it was there
    rows: int = 0
    used: Usage = field(default_factory=Usage)
    running: dict[int, NumberedRow] = field(default_factory=dict)
    shard: deque[NumberedRow] = field(default_factory=deque)


class Fleet:
    """Replicas, and the rows that they run. It is the batch's control, as `BatchControl`.

    Args:
        admits: as of `BatchControl`.
    """

    def __init__(self, replicas: Sequence[Replica], admits: Callable[[int], bool] | None) -> None:
        self.members = [Member(number, replica) for number, replica in enumerate(replicas)]
        self.begun = 0
        self.draining = False
        self.complete = False  # whether every row has ended
        self._admits = admits
        self._over = False
        self._change = threading.Condition()
        self._told: SimpleQueue[tuple[Member, Sequence[Ended]] | BaseException | None] = SimpleQueue()
        self._first: Opened | None = None
        self._problem: SglcError | None = None  # why there are none, or not all of them
        self._journal: SharedJournal | None = None
        self._waiting = 0  # rows that have ended and were not taken from here
        self._again: deque[NumberedRow] = deque()  # rows of replicas that were lost
        self._parts: deque[tuple[Schedule, SortedRows]] = deque()  # of the batch, which begin in turn
        self._all = False  # whether there are no more to come
        self._since_s = 0.0  # since when there is no replica
        self._threads = [
            threading.Thread(target=self._serve, args=(member,), name="sglc-fleet", daemon=True)
            for member in self.members
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
            self._change.wait_for(
                lambda: self._problem is not None or enough(member.opened for member in self.members)
            )
            if self._problem is not None:
                raise self._problem
            assert self._first is not None
            return self._first.model

    def results(
        self, first: SortedRows, rest: Callable[[], SortedRows | None], journal: SharedJournal
    ) -> Generator[Ended]:
        """Run these rows; gives each as it ends.

        Args:
            rest: gives those that run behind the first ones, which do so while it is called.
            journal: of what rows do.

        Raises:
            RunError: SGLC435, no replica is left.
            SglcError: what ends the batch, of a replica or of `rest`.
        """
        self._journal = journal
        self._plan(first)
        threading.Thread(target=self._follow, args=(rest,), name="sglc-rest", daemon=True).start()
        try:
            while (told := self._told.get()) is not None:
                if isinstance(told, BaseException):
                    raise told
                member, made = told
                for one in made:
                    member.rows += 1
                    member.used += one.usage
                    yield one
                with self._changing():
                    self._waiting -= len(made)
        finally:
            self.stop()
            for thread, member in zip(self._threads, self.members, strict=True):
                thread.join(_CLOSE_S)
                if thread.is_alive():  # it waits for a replica to open, or one that answers no more
                    member.replica.close()

    def reconsider(self) -> None:
        """`admits` may give something else now."""
        with self._changing():
            pass

    def drain(self) -> None:
        """No row begins any more; those that run go on to their ends."""
        with self._changing():
            self.draining = True

    def stop(self) -> None:
        """No row begins any more, and those that run are stopped."""
        with self._changing():
            self.draining = self._over = True
        self._told.put(None)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """With the lock; whoever waits looks again then."""
        with self._change:
            yield
            self._change.notify_all()

    def _plan(self, rows: SortedRows) -> None:
        """These rows are next."""
        share = share_of(rows.count, len(self.members))
        schedule = Schedule(cuts(rows.shared(), share), len(self.members))
        with self._changing():
            self._parts.append((schedule, rows))

    def _follow(self, rest: Callable[[], SortedRows | None]) -> None:
        try:
            if (rows := rest()) is not None:
                self._plan(rows)
            with self._changing():
                self._all = True
        except BaseException as error:
            self._end(error)

    # -- one replica's thread ----------------------------------------------------------------------

    def _serve(self, member: Member) -> None:
        replica, wait_s = member.replica, _AGAIN_S[0]
        while not self._over:
            try:
                self._meet(member, replica.open())
                wait_s = _AGAIN_S[0]
                while (rows := self._take(member)) is not None:
                    assert self._journal is not None
                    self._keep(member, replica.step(rows, self._journal.of(number for number, _ in rows)))
            except Lost as lost:
                self._lose(member, RunError("SGLC435", f"{lost}", note="no other replica is left"))
            except BaseException as error:
                if isinstance(error, SglcError) and member.opened is None and member.known:
                    self._lose(member, error)  # it may come back
                else:
                    self._end(error)
            with self._change:
                self._change.wait_for(lambda: self._over, wait_s)
            wait_s = min(2 * wait_s, _AGAIN_S[1])
        with suppress(Exception):
            replica.close()

    def _meet(self, member: Member, opened: Opened) -> None:
        """A replica is there.

        Raises:
            UsageError: SGLC085, it is not as the others.
        """
        with self._changing():
            first = self._first = self._first or opened
            if (first.model, first.tokenizer) != (opened.model, opened.tokenizer):
                raise UsageError(
                    "SGLC085", f"`{member.replica.name}` has another model than the other replicas",
                    note=f"`{opened.model}`, and not `{first.model}`" if opened.model != first.model
                    else "the tokenizers differ",
                    hint="all of them are to give the same answers",
                )  # fmt: skip
            member.opened, member.known = opened, True
            if self._over:  # meanwhile, and nobody waits for it any more
                return
        say(f"sglc: replica {member.replica.name} is there")

    def _take(self, member: Member) -> list[NumberedRow] | None:
        """The rows that a replica is given now; None: there are none any more."""
        opened, own = member.opened, member.running
        assert opened is not None
        with self._change:
            while not self._over:
                rows = []
                while (
                    len(own) + self._waiting < _AHEAD * opened.rows and (row := self._row(member)) is not None
                ):
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

    def _row(self, member: Member) -> NumberedRow | None:
        """The next row of a replica, if one may begin."""
        if self.draining or not (self._admits is None or self._admits(self.begun)):
            return None
        if self._again:
            return self._again.popleft()
        own = member.shard
        if not own:
            helped = {other.number for other in self.members if _needs(other, member)}
            shards = ((rows, schedule.next(member.number, helped)) for schedule, rows in self._parts)
            own.extend(next((rows.at(shard) for rows, shard in shards if shard is not None), ()))
            while self._parts and not self._parts[0][0]:
                self._parts.popleft()
        return own.popleft() if own else None

    @property
    def _done(self) -> bool:
        """Whether nothing runs, nothing waits to be taken, and nothing is to begin."""
        if self._waiting or any(member.running for member in self.members):
            return False
        left = self._again or self._parts or any(member.shard for member in self.members)
        return self.draining or (self._all and not left)

    def _keep(self, member: Member, made: Made) -> None:
        """What a replica has handed over is here."""
        assert self._journal is not None
        self._journal.take(made.lines, member.running, [one.row for one in made.ended])
        if made.ended:
            with self._changing():
                for one in made.ended:
                    del member.running[one.row]
                self._waiting += len(made.ended)
            self._told.put((member, made.ended))

    def _lose(self, member: Member, error: SglcError) -> None:
        """A replica has gone: what it had is the others'."""
        if member.opened is not None and not self._over:
            say(f"sglc: replica {member.replica.name} was lost: {error.message}; its rows run again")
        with self._changing():
            self._again.extend((*member.running.values(), *member.shard))
            self.begun -= len(member.running)
            member.running.clear()
            member.shard.clear()
            member.opened = None
            now_s = time.monotonic()
            left = any(other.opened for other in self.members)
            self._since_s = 0.0 if left else self._since_s or now_s
            all_lost = not left and now_s - self._since_s > _ALL_LOST_S
        if all_lost:
            self._end(error)

    def _end(self, error: BaseException) -> None:
        """The batch cannot go on."""
        with self._changing():
            self._over = True
            if self._problem is None and isinstance(error, SglcError):
                self._problem = error
        self._told.put(error)


def _needs(other: Member, member: Member) -> bool:
    """Whether a replica may take of another one's part: not as long as that one has places for it, or comes."""
    if not member.running:
        return True
    return member.rows > 0 if other.opened is None else len(other.running) >= other.opened.rows
