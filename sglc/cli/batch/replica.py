"""One of several places where the rows of a batch run: it is handed rows, and hands over what has ended.

It runs in a process of its own, or as an actor on another machine.
"""

from __future__ import annotations

import argparse
import math
import pickle
import shlex
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from sglc import knobs
from sglc.backends import registry
from sglc.cli.argument_types import made_row, types_of
from sglc.cli.batch.ended import Ended, ended
from sglc.cli.batch.listening import address_of, free_port, listens
from sglc.cli.batch.sorted_rows import NumberedRow
from sglc.cli.program_file import open_program
from sglc.errors import BackendError
from sglc.execution.batch.runner import BatchControl, live_rows
from sglc.execution.options import NumberedRows
from sglc.observe.replay.remote_journal import RemoteJournal
from sglc.observe.replay.tape import Json, Tape
from sglc.runtime.engine.own_process import end_with_parent

if TYPE_CHECKING:
    from sglc.api.function import Function
    from sglc.api.plan import LoadedPlan
    from sglc.ir.plan.backend import Backend

WAIT_S = 1.0  # for something to hand over, before it is asked whether the server is still there
_SILENT_S = 0.02  # between two steps; who is not asked for longer has no driver, and goes no further
_READY_S = 600.0  # for a server that loads its model


class Lost(Exception):
    """A replica has gone, and with it what it had not handed over."""


@dataclass(frozen=True, slots=True)
class Work:
    """What every replica of a batch does.

    `asked` are keywords of `stream_batch`. `command` starts a server at `{port}`, which is the back end then.
    `linger_s` is how long to wait for more, where handing over one costs as much as a hundred.
    """

    options: argparse.Namespace
    given: Mapping[str, Any]
    asked: Mapping[str, Any]
    command: str | None = None
    linger_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Opened:
    """What a replica says of itself: machine, model, tokenizer, and how many rows it has live at once."""

    host: str
    model: str
    tokenizer: str
    rows: int


@dataclass(frozen=True, slots=True)
class Made:
    """What a replica hands over: rows that have ended, and lines of the journal of those that go on."""

    ended: Sequence[Ended]
    lines: Sequence[Json]


class Replica(Protocol):
    """Where rows run. Its `name` is for people."""

    name: str

    def open(self) -> Opened:
        """Be ready for rows, also after it was lost.

        Raises:
            SglcError: it cannot.
            Lost: it went away meanwhile.
        """

    def step(self, rows: Sequence[NumberedRow], known: Tape) -> Made:
        """Take these rows, and give what there is; waits for something, but not long.

        Args:
            known: what they did where they were cut.

        Raises:
            Lost: it has gone.
            SglcError: what ends the batch.
        """

    def close(self) -> None:
        """Stop what still runs. Idempotent."""


@dataclass(slots=True)
class _Rows:
    """The rows of a replica from when it opens until it is lost; `live` is how many run."""

    control: BatchControl = field(default_factory=BatchControl)
    coming: deque[NumberedRow] = field(default_factory=deque)
    live: int = 0
    known: Tape | None = None  # with the first rows
    ended: list[Ended] = field(default_factory=list)
    lines: list[Json] = field(default_factory=list)
    problem: BaseException | None = None
    over: bool = False
    lost: bool = False


class LocalReplica:
    """Rows that this process runs, on a back end of its own, which is as `registry.connect` takes it."""

    def __init__(self, work: Work, backend: str | None) -> None:
        self.name = work.command or backend or "local"
        self._work, self._spec = work, backend
        self._function: Function | LoadedPlan | None = None
        self._change = threading.Condition()
        self._has: _Rows | None = None  # before it has opened: also an actor that was started again
        self._size = 0  # rows that may be live
        self._until_s = 0.0  # rows go on; they do while it is waited for them
        self._server: subprocess.Popen[bytes] | None = None
        self._backend: Backend | None = None

    def open(self) -> Opened:
        """As of `Replica`."""
        options = self._work.options
        if self._function is None:
            self._function = open_program(options.program, options.tools)
        if self._work.command is not None:
            self._spec = self._started(self._work.command)
        self._backend = registry.connect(self._spec, device=options.device, dtype=options.dtype)
        self._backend.start()
        target = self._backend.target
        self._size = options.concurrency or live_rows(self._backend)
        self._has = _Rows()
        threading.Thread(target=self._run, args=(self._has,), name="sglc-replica", daemon=True).start()
        # By names alone: copies of one model on several machines have other dates.
        named = self._spec or f"local:{knobs.model()}"
        model = named if address_of(self._spec) is None else str(getattr(self._backend, "identity", ""))
        tokenizer = "" if target.tokenizer is None else target.tokenizer.hash
        return Opened(socket.gethostname(), model, tokenizer, self._size)

    def step(self, rows: Sequence[NumberedRow], known: Tape) -> Made:
        """As of `Replica`."""
        self.take(rows, known)
        return self.made()

    def take(self, rows: Sequence[NumberedRow], known: Tape) -> None:
        """The half of `step` that any thread may do."""
        if (has := self._has) is None:
            raise Lost("it was started again")
        with self._change:
            if has.known is None:
                has.known = known
            has.known.rows.update(known.rows)
            has.known.targets.update(known.targets)
            has.coming.extend(rows)
            self._change.notify_all()

    def made(self) -> Made:
        """The other half."""
        has = self._has
        assert has is not None
        with self._change:
            self._until_s = math.inf
            self._change.notify_all()
            self._change.wait_for(lambda: has.ended or has.lines or has.problem is not None, WAIT_S)
        if has.live and (has.ended or has.lines):
            time.sleep(self._work.linger_s)
        with self._change:
            made, has.ended = has.ended, []
            lines, has.lines = has.lines, []
        failed = any(one.failed for one in made) or any(line.get("error") for line in lines)
        was_lost = has.lost
        if has.lost or (failed and self._refuses()) or ((failed or not (made or lines)) and self._gone()):
            has.lost = True  # even if a server is there again: what failed is not handed over
            made = [one for one in made if not one.failed]
            lines = [] if was_lost else [*_before_failures(lines)]
            if not (made or lines):
                self.close()
                raise Lost(f"the server at `{self._spec}` has gone")
        if has.problem is not None and not (made or lines):
            raise has.problem
        with self._change:
            self._until_s = time.monotonic() + _SILENT_S
        return Made(made, lines)

    def close(self) -> None:
        """As of `Replica`."""
        if (has := self._has) is not None:
            with self._change:
                has.over = True
                self._change.notify_all()
            has.control.stop()
        if address_of(self._spec) is not None and self._backend is not None:
            self._backend.close()
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None

    def _run(self, has: _Rows) -> None:
        assert self._function is not None
        options = self._work.options

        def noted(line: Json) -> None:
            with self._change:
                has.lines.append(line)
                self._change.notify_all()
                self._change.wait_for(lambda: has.over or time.monotonic() < self._until_s)

        try:
            with self._change:
                self._change.wait_for(lambda: has.known is not None or has.over)
            if has.known is None:
                return
            journal = RemoteJournal(has.known, noted)
            for result in self._function.stream_batch(
                NumberedRows(self._rows(has)), backend=self._backend, num_threads=self._size,
                hoist_prefix=False, ordered=False, control=has.control, journal=journal, **self._work.asked,
            ):  # fmt: skip
                one = ended(self._function, result, options)
                with self._change:
                    has.known.rows.pop(result.row, None)
                    has.live -= 1
                    has.ended.append(one)
                    self._change.notify_all()
        except BaseException as problem:
            with self._change:
                has.problem = problem
                self._change.notify_all()

    def _rows(self, has: _Rows) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """The rows that come, each when there is a place: what is looked at together begins together."""
        assert self._function is not None
        types = types_of(self._function)
        while True:
            with self._change:
                self._change.wait_for(
                    lambda: (
                        has.control.stopped
                        or has.over
                        or (has.coming and has.live < self._size and time.monotonic() < self._until_s)
                    )
                )
                if has.over or has.control.stopped:
                    return
                has.live += 1
                number, row = has.coming.popleft()
            yield number, made_row(number, {**self._work.given, **pickle.loads(row)}, types)

    # -- the server ------------------------------------------------------------------------------

    def _gone(self) -> bool:
        """Whether nobody listens where the server was."""
        address = address_of(self._spec)
        return address is not None and not listens(*address)

    def _refuses(self) -> bool:
        """Whether the server does not say what it has any more, as one that is about to end."""
        from sglc.backends.http import ServerBackend

        backend = self._backend
        if not isinstance(backend, ServerBackend):
            return False
        with closing(type(backend)(backend.options)) as server:  # which knows nothing yet, and asks
            try:
                server.start()
            except BackendError:
                return True
        return False

    def _started(self, command: str) -> str:
        """The URL of a server that `command` has started, and that answers."""
        port = free_port()
        words = [word.replace("{port}", str(port)) for word in shlex.split(command)]
        self._spec = url = f"http://127.0.0.1:{port}"
        with tempfile.TemporaryFile() as told:
            try:
                # It ends with this process, whatever ends that.
                self._server = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=told, stderr=told, preexec_fn=end_with_parent
                )
            except OSError as error:
                raise BackendError(
                    "SGLC550",
                    f"`{words[0]}` does not start: {error.strerror}",
                    note=f"on {socket.gethostname()}",
                ) from None
            end_s = time.monotonic() + _READY_S
            while self._gone():
                if self._server.poll() is not None or time.monotonic() > end_s:
                    told.seek(0)
                    last = told.read().decode(errors="replace").strip().rpartition("\n")[2]
                    raise BackendError(
                        "SGLC550", f"`{command}` serves nothing", note=last,
                        hint="it is to listen at `{port}`, as `sglc serve --port {port}` does",
                    )  # fmt: skip
                time.sleep(0.1)
        return url


def _before_failures(lines: Iterable[Json]) -> Iterator[Json]:
    """What rows did until something failed in them."""
    failed: set[int] = set()
    for line in lines:
        if line.get("error"):
            failed.add(line["row"])
        if line.get("row") not in failed:
            yield line
