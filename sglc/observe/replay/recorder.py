"""Recording a run: what its back ends and its declared functions answered goes into a `Writer`, as it comes."""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from sglc.errors import Loc, Paused, RecordingError, RunError, SglcError
from sglc.execution.answers.prompts import Inputs, Streams
from sglc.execution.outputs import PendingOutput, RunOutputs, stopped
from sglc.frontend.values.symbolic import END_RUN
from sglc.ir.core import Program, Site
from sglc.ir.plan.backend import Backend
from sglc.ir.plan.events import GenDone, SelectDone
from sglc.ir.plan.segment import GenNode, SelectNode
from sglc.ir.target import Target
from sglc.observe.replay.answers import given_to
from sglc.observe.replay.calls import Calls, given_by, is_ended, not_kept, waits_for
from sglc.observe.replay.going_on import FROM_ANEW, GoingOn, failed_by
from sglc.observe.replay.player import Player, RowPlayer, check_arguments, not_asked_for, open_player
from sglc.observe.replay.raised import place_json, raised_json
from sglc.observe.replay.recording_backend import RecordingBackend, inner_of
from sglc.observe.replay.remote_journal import RemoteJournal
from sglc.observe.replay.tape import (
    NOTHING_AGAIN,
    Json,
    TapeRow,
    answer_json,
    error_json,
    given_json,
    value_json,
)
from sglc.observe.replay.target import described
from sglc.observe.replay.writer import When, Writer


class TapeRecorder:
    """One recording. Its rows write from the executor's thread and from those of their bodies.

    Args:
        seed: None: that of the recording that goes on, or one that `draw` gives.
        goes_on: what the folder holds is served, and only the rest runs; None: it is to hold nothing.
        skip: numbers of rows that do not run.
        is_journal: it holds only what a row needs that was cut and goes on. Rows that make one call begin anew.

    Raises:
        UsageError: SGLC050, SGLC051, SGLC080, as of `Writer`; SGLC052, SGLC053, SGLC055, as of `open_player`.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | RemoteJournal, name: str, seed: int | None, rows: int | None,
        draw: Callable[[], int], goes_on: GoingOn | None = None, *, skip: Container[int] = (),
        is_journal: bool = False,
    ) -> None:  # fmt: skip
        self.is_journal = is_journal
        # A result is read when its answer is on file. Rows of a batch, which are many, share writes.
        self.answers: When = "now" if rows is None else "soon"
        self.streams = Streams()
        self.goes_on = goes_on or FROM_ANEW
        self.played: Player | None = None  # what was recorded before
        self.writer: Writer | RemoteJournal
        if isinstance(folder, RemoteJournal):
            self.writer, self.played = folder, Player(folder.tape, streams=self.streams)
        else:
            self.writer = writer = Writer(folder, resume=goes_on is not None, is_journal=is_journal)
            if writer.resumes:
                try:
                    self.played = open_player(folder, name, seed, self.streams, skip)
                except BaseException:
                    writer.close()
                    raise
        if self.played is not None:
            seed = self.played.seed
        self.seed = draw() if seed is None else seed
        self.writer.header = header_of(name, self.seed, rows, is_journal=is_journal)
        self._known = set() if self.played is None else set(self.played.tape.targets)
        self._targets: dict[int, tuple[Target, str]] = {}
        self._lock = threading.Lock()
        self._going = 0
        self._closed = False

    def backend(self, backend: Backend) -> Backend:
        """`backend` for what is done once for all rows: streams that it keeps are followed."""
        return RecordingBackend(inner_of(backend), self.streams)

    def mode(self, number: int, within: str) -> str | None:
        """Whether a row that goes on began as a plan or as Python; None: it may do what it likes."""
        return None if self.played is None else self.played.mode(number, within)

    def row(
        self, number: int, within: str, arguments: Mapping[str, Any], single_call: bool
    ) -> RowRecorder | RowPlayer | None:
        """What records a row, or a program that it calls; or plays it back, if it has ended before.

        None: a row of a journal with one call. If that was cut, the row begins anew.
        """
        recorded = None if self.played is None else self.played.tape.rows.get(number)
        if self.is_journal and single_call and not within and recorded is None:
            return None
        if recorded is not None and self.goes_on.is_over(recorded, within):
            assert self.played is not None
            return RowPlayer(self.played, number, within, recorded, arguments)
        return RowRecorder(self, number, within, arguments, recorded or TapeRow())

    def described(self, target: Target) -> str:
        """The short name of a target, which is written down once."""
        with self._lock:
            known = self._targets.get(id(target))
            if known is not None:
                return known[1]
            key, data = described(target)
            if key not in self._known:
                self.writer.write({"target": key, "described": data}, "later")
                self._known.add(key)
            self._targets[id(target)] = target, key  # kept, so that no other target gets its id
            return key

    def going(self, more: int) -> None:
        """So many rows more are going on, or programs that they call."""
        with self._lock:
            self._going += more
            if self._closed and not self._going:
                self.writer.close()

    def close(self) -> None:
        """No row begins any more; what still goes on is written to its end."""
        self._closed = True
        self.going(0)


@dataclass(slots=True)
class RowRecorder:
    """What one row does, written down; what is `recorded` of it is not done again."""

    recorder: TapeRecorder
    number: int
    within: str
    arguments: Mapping[str, Any]
    recorded: TapeRow
    _calls: Calls = field(init=False)
    _served: dict[Site, Sequence[float | None]] = field(default_factory=dict)  # their times
    _asked: dict[Site, dict[str, Any]] = field(default_factory=dict)  # of what was not written yet
    _written: set[Site] = field(default_factory=set)
    _raised: list[tuple[Json, BaseException]] = field(default_factory=list)  # by declared functions
    _again: Json = field(default_factory=lambda: NOTHING_AGAIN)
    _end_run: Callable[[RunError], None] | None = None

    def __post_init__(self) -> None:
        self._calls = Calls(self.recorded, self.number, self.within)

    def backend(self, backend: Backend) -> RecordingBackend:
        """`backend`, with what it answers noted."""
        inner, recorder = inner_of(backend), self.recorder
        name = recorder.described(inner.target)
        return RecordingBackend(inner, recorder.streams, self, name, goes_on=recorder.played is not None)

    def other(self, backend: Backend, program: Program, loc: Loc) -> Backend:
        """Another back end that a call of the row names."""
        return self.backend(backend)

    def begin(self, backend: Backend, mode: str) -> Backend:
        """The row begins on `backend`; gives that with what it answers noted.

        Raises:
            SglcError: the back end cannot say what it can do, or UsageError SGLC054.
            RecordingError: SGLC432, it goes on in another mode than it began in; SGLC433, with other arguments;
                SGLC434, on another model.
        """
        self._end_run = END_RUN.get()
        self.recorder.going(1)
        before = self.recorder.mode(self.number, self.within)
        if before not in (None, mode):
            raise RecordingError(
                "SGLC432", f"row {self.number} began as {_MODES[before]}, and would go on as {_MODES[mode]}",
                hint=f'give the options that it began with, or `mode="{before}"`',
            )  # fmt: skip
        check_arguments(self.recorded.begins.get(self.within), self.arguments, self.number)
        self._again = self.recorder.goes_on.again(self.recorded, self.within)
        again = {} if self._again is NOTHING_AGAIN else {"again": self._again}
        began_on = (self.recorded.begins.get(self.within) or {}).get("target")
        if began_on is not None:
            self._check_model(began_on, inner_of(backend).target)
        self.recorded.forget(self.within, self._again)
        (args,), _ = given_json([dict(self.arguments)], {})
        made: RecordingBackend | None = None
        try:
            made = self.backend(backend)
        finally:
            name = None if made is None else made.target_name
            self._write("begin", args=args, target=name, mode=mode, **again)
        return made

    def _check_model(self, began_on: str, target: Target) -> None:
        assert self.recorder.played is not None
        if isinstance(self.recorder.writer, RemoteJournal):
            return  # replicas have other names, and one model
        before, now = self.recorder.played.target(began_on), target
        if (before.name, _vocabulary(before)) != (now.name, _vocabulary(now)):
            raise RecordingError(
                "SGLC434", f"row {self.number} began on `{before.name}`, and would go on with another model",
                hint="give the back end that it began with",
            )  # fmt: skip

    # -- generations -----------------------------------------------------------------------------

    def known(self, index: int, node: GenNode | SelectNode, inputs: Inputs) -> GenDone | SelectDone | None:
        """What a generation was answered before the run went on, if it was.

        Raises:
            RecordingError: SGLC420, it was asked something else: that is the end of the run.
            SglcError: it failed.
        """
        answered = self.recorded.answers.get((self.within, str(node.site)))
        if answered is None:
            return None
        answered.used = True
        if answered.stopped:
            return None
        try:
            done = given_to(answered, node, index, inputs)
        except SglcError as error:
            self._written.add(node.site)
            if isinstance(error, RecordingError) and self._end_run is not None:
                self._end_run(error)
            raise
        self._served[node.site] = answered.line["times"]
        return done

    def note(self, node: GenNode | SelectNode, inputs: Inputs, target: str) -> None:
        """A generation has its answer; `done` follows, with its times, or `failed`."""
        if node.site in self._served:
            return
        asked: dict[str, Any] = {"target": target, "hash": inputs.hash}
        if isinstance(node, GenNode):
            asked["seed"] = node.seed
        if not self.recorder.is_journal:
            asked |= {"prompt": inputs.prompt, "options": dict(inputs.options)}
        self._asked[node.site] = asked

    def answers(self, site: Site) -> bool:
        """As of `RowPlayer`."""
        return site in self._served

    def done(self, output: PendingOutput) -> None:
        """A generation has ended well, and its times are known."""
        if output.site in self._served:
            output.started_s, output.first_s, output.ended_s = self._served.pop(output.site)  # type: ignore[assignment]
            return
        assert output.event is not None
        times = [output.started_s, output.first_s, output.ended_s]
        self._answer(output.node, answer=answer_json(output.event), times=times)

    def failed(self, node: GenNode | SelectNode, error: SglcError) -> None:
        """A generation has failed by itself."""
        if node.site not in self._written:
            self._answer(node, error=error_json(error))

    def _answer(self, node: GenNode | SelectNode, **answer: Any) -> None:
        self._written.add(node.site)
        asked = self._asked.pop(node.site, {"target": None})
        self._write("answer", site=str(node.site), loc=str(node.loc), **asked, **answer)

    # -- declared functions ----------------------------------------------------------------------

    def called(
        self, name: str, args: Sequence[Any], named: Mapping[str, Any], *, pure: bool, free: bool = False,
        idempotent: bool = False,
    ) -> Call:  # fmt: skip
        """A declared function is to be called now; if what this gives is `known`, it is not.

        Raises:
            RecordingError: SGLC425 it was given something else before the run went on, SGLC426 it was called
                then and it is not known what it did, SGLC424 what it gave is not kept.
            RunError: SGLC407, the run was stopped meanwhile, and its recording is closed.
        """
        line = self._calls.next(name, args, named, pure=pure, free=free)
        answered = self._calls.recorded_of(line)
        if answered is not None:
            if is_ended(answered.line):
                return Call(line, answered.line)
            if not (pure or idempotent or self.recorder.goes_on.redoes(name)):
                lost = answered.line.get("lost")
                if lost is None:
                    raise self._calls.in_doubt(line)
                raise not_kept(name, lost, journal=self.recorder.is_journal)
        # A pure one may be called as often as one likes. Of any other a run that goes on has to know.
        if not pure and not self._write("call", **line):
            raise stopped()
        return Call(line, pure=pure)

    def returned(self, call: Call, value: Any) -> None:
        """It has returned. Of a value that JSON cannot hold a journal, which nobody asked for, has no more
        than that.

        Raises:
            RecordingError: SGLC424, a recording would lack it.
        """
        try:
            data = value_json(value)
        except TypeError as error:
            self._ended(call, lost=str(error))
            if not self.recorder.is_journal:
                raise not_kept(call.line["function"], str(error)) from None
        else:
            self._ended(call, value=data)

    def raised(self, call: Call, error: BaseException) -> None:
        """It has raised."""
        self._raised.append((call.line, error))
        self._ended(call, raised=raised_json(error), at=place_json(error))

    def _ended(self, call: Call, **given: Any) -> None:
        if call.pure:
            self._write("call", **call.line, **given)
            return
        keys = {key: call.line[key] for key in ("function", "occurrence", "task") if key in call.line}
        self._write("called", **keys, **given)

    def paused(self, pause: Paused) -> Any:
        """What a person answered to a pause.

        Raises:
            Paused: nobody has.
            RecordingError: SGLC425, the program asks something else than before.
        """
        line = self._calls.paused(pause)
        answered = self._calls.recorded_of(line)
        if answered is None:
            name = self._calls.name_of(line)
            found = self.recorder.goes_on.answer(self.number, name)
            if found is None:
                raise waits_for(name, pause)
            line = {**line, "value": value_json(found[0])}
            self._write("call", **line)
        else:
            line = answered.line
        return given_by(line)

    # -- the end ---------------------------------------------------------------------------------

    def end(
        self, outputs: RunOutputs, error: BaseException | None, total_s: float
    ) -> tuple[BaseException | None, float]:
        """The row has ended; what failed in it is known."""
        if error is None and not self.within and not self._again["answers"] and not self._again["calls"]:
            error = not_asked_for(self.recorded, self.number)
        try:
            if not isinstance(error, RecordingError):  # else it goes on when program and recording fit again
                self._end(tuple(outputs.generations.values()), error, total_s)
        finally:
            self.recorder.going(-1)
        return error, total_s

    def _end(self, generations: Sequence[PendingOutput], error: BaseException | None, total_s: float) -> None:
        for output in generations:
            if output.error is not None and output.site not in self._written:
                self._answer(output.node, error=error_json(output.error))
        line: Json = {"total_s": total_s, "error": None if error is None else error_json(error)}
        if error is not None:
            # What the program has caught is as it was when it is run once more.
            failed = [
                str(output.site)
                for output in generations
                if output.error is not None and not (output.caught and not failed_by(error, output.root.error))
            ]
            calls = [call for call, raised in self._raised if failed_by(error, raised)]
            line["failed"] = {"answers": failed, "calls": calls}
        self._write("end", **line)

    def _write(self, what: str, **line: Any) -> bool:
        line = {"is": what, "row": self.number, "within": self.within, **line}
        when = self.recorder.answers if what == "answer" else _WHEN.get(what, "now")
        return self.recorder.writer.write(line, when)


# With the begin and the end of a row nothing is lost that was paid for; what a function does may count.
_WHEN: Mapping[str, When] = {"begin": "later", "end": "later"}
_MODES = {"plan": "a plan", "python": "Python"}


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a declared function: the line that says so, and that which says what it gave before."""

    line: Json
    known: Json | None = None
    pure: bool = False


def header_of(name: str, seed: int, rows: int | None, *, is_journal: bool) -> Json:
    """What a recording of the program `name` says of itself."""
    try:
        own = version("sglc")
    except PackageNotFoundError:
        own = "unknown"
    versions = {"sglc": own, "python": platform.python_version(), "platform": sys.platform}
    header: Json = {"program": name, "seed": seed, "rows": rows, **versions}
    return {**header, "journal": True} if is_journal else header


def _vocabulary(target: Target) -> str:
    return "" if target.tokenizer is None else target.tokenizer.hash
