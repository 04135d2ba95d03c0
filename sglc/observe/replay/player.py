"""Replaying a recording: the same program is answered from it, and nothing else is asked.

Every answer is looked up by its row and its site, and only given if the generation is asked what it was
asked then. The first one of a row that is asked something else fails with both prompts.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglc.errors import Loc, Paused, RecordingError, SglcError, UsageError, located
from sglc.execution.answers.known_answers import told
from sglc.execution.answers.prompts import Followed, Inputs, Streams
from sglc.execution.outputs import PendingOutput, RunOutputs
from sglc.ir.core import Program, Site, walk
from sglc.ir.plan.backend import Backend
from sglc.ir.plan.dataflow import failed_before
from sglc.ir.plan.events import Event, GenDone, NodeFailed, SelectDone
from sglc.ir.plan.segment import GenNode, OpenNode, Segment, SelectNode
from sglc.ir.target import Target
from sglc.observe.replay.answers import given_to
from sglc.observe.replay.calls import AGAIN, Calls, given_by, is_ended, not_kept, shown
from sglc.observe.replay.tape import (
    STOPS,
    Json,
    Tape,
    TapeRow,
    alike,
    error_of,
    given_json,
    read_tape,
)
from sglc.observe.replay.target import target_of

_SHOWN = 300  # characters of arguments
_FORM_TURNS = re.compile(r"~[\d.]+(:\d+)?(@\d+)?")  # in the name of a site


class Player:
    """One recording that is replayed. `folder` is where it lies, for people."""

    def __init__(self, tape: Tape, folder: str = "", streams: Streams | None = None) -> None:
        self.tape = tape
        self.folder = folder
        self.seed = int(tape.header["seed"])
        self.streams = Streams() if streams is None else streams
        self._targets: dict[str, Target] = {}

    def backend(self, backend: Backend | None) -> Backend:
        """What stands in for the back end of the run."""
        begins = [begin for row in self.tape.rows.values() for begin in row.begins.values()]
        name = next((begin["target"] for begin in begins if begin["target"]), None)
        return ReplayBackend(self, None, self.target(name) if name else None)

    def mode(self, number: int, within: str) -> str | None:
        """Whether a row began as a plan or as Python, or a program that it calls; None: it did not begin."""
        begin = self.tape.rows.get(number, NO_ROW).begins.get(within)
        return None if begin is None else begin["mode"]

    def row(self, number: int, within: str, arguments: Mapping[str, Any], single_call: bool) -> RowPlayer:
        """What answers for a row, or for a program that it calls."""
        return RowPlayer(self, number, within, self.tape.rows.get(number, TapeRow()))

    def target(self, name: str) -> Target:
        """A target of the recording; the same object each time."""
        if name not in self._targets:
            self._targets[name] = target_of(self.tape.targets[name])
        return self._targets[name]

    def left(self, number: int, path: str) -> None:
        """A batch that the row calls at `path` is left half read: which of its rows began is timing."""
        if number in self.tape.rows:
            self.tape.rows[number].left.add(f"{path}[")

    def close(self) -> None:
        """Nothing is held."""


def open_player(
    folder: str | os.PathLike[str], name: str | None, seed: int | None, streams: Streams | None = None,
    skip: Container[int] = (),
) -> Player:  # fmt: skip
    """The recording in `folder`. Rows whose numbers are in `skip` are not replayed.

    Raises:
        UsageError: SGLC052, SGLC053 as of `read_tape`; SGLC055 it is of another program or seed.
    """
    made = Player(read_tape(folder, skip), os.fspath(folder), streams)
    recorded = made.tape.header["program"]
    if name is not None and recorded != name:
        raise UsageError("SGLC055", f"the recording in `{made.folder}` is one of `{recorded}`, not of `{name}`")
    if seed not in (None, made.seed):
        raise UsageError(
            "SGLC055", f"the recording in `{made.folder}` was made with the seed {made.seed}",
            hint="leave the seed out",
        )  # fmt: skip
    return made


NO_ROW = TapeRow()


@dataclass(slots=True)
class RowPlayer:
    """What one row did, played back."""

    player: Player
    number: int
    within: str
    recorded: TapeRow
    arguments: Mapping[str, Any] | None = None  # that are to be the recorded ones
    _times: dict[Site, Sequence[float | None]] = field(default_factory=dict)
    _calls: Calls = field(init=False)

    def __post_init__(self) -> None:
        self._calls = Calls(self.recorded, self.number, self.within)

    def backend(self, backend: Backend) -> Backend:
        """What stands in for the back end of the row."""
        begin = self.recorded.begins.get(self.within)
        if begin is not None and begin["target"]:
            return ReplayBackend(self.player, self, self.player.target(begin["target"]))
        return ReplayBackend(self.player, self, _of(backend))

    def other(self, backend: Backend, program: Program, loc: Loc) -> Backend:
        """What stands in for another back end that a call of the row names.

        Raises:
            RecordingError: SGLC421, there was no such call.
        """
        sites = [op.site for op in walk(program.ops) if hasattr(op, "site")]
        for site in sites:
            answered = self.recorded.answer(self.within, str(site))
            if answered is not None and answered.line["target"]:
                return ReplayBackend(self.player, self, self.player.target(answered.line["target"]))
        raise self._missing(sites[0], loc)

    def begin(self, backend: Backend, mode: str) -> Backend:
        """The row begins; gives what stands in for its back end.

        Raises:
            SglcError: it had none: the error that ended the row.
            RecordingError: SGLC433, it is given other arguments; SGLC421 as of `unrecorded`.
        """
        begin = self.recorded.begins.get(self.within)
        if self.arguments is not None:
            check_arguments(begin, self.arguments, self.number)
        if self.unrecorded:
            raise self._unknown(self.within)
        ended = self.end_error()
        if begin is not None and begin["target"] is None and ended is not None:
            raise ended
        return self.backend(backend)

    def answer(
        self, node: GenNode | SelectNode, index: int, inputs: Inputs
    ) -> tuple[int, GenDone | SelectDone]:
        """The recorded answer of a generation, and its place among all.

        Raises:
            RecordingError: SGLC420 it is asked something else, SGLC421 it is not in the recording.
            SglcError: it failed.
        """
        answered = self.recorded.answer(self.within, str(node.site))
        if answered is None:
            raise self._missing(node.site, node.loc)
        done = given_to(answered, node, index, inputs)
        self._times[node.site] = answered.line["times"]
        return answered.number, done

    def fail(self, node: GenNode | SelectNode) -> None:
        """A generation will not be asked, because what it reads failed."""
        answered = self.recorded.answer(self.within, str(node.site))
        if answered is not None:
            answered.used = True

    def answers(self, site: Site) -> bool:
        """Whether the answer of a generation that is `done` is a recorded one."""
        return True

    def done(self, output: PendingOutput) -> None:
        """A generation was answered: its times are those of the recording."""
        output.started_s, output.first_s, output.ended_s = self._times.pop(output.site)  # type: ignore[assignment]

    def called(
        self, name: str, args: Sequence[Any], named: Mapping[str, Any], *, pure: bool, free: bool = False
    ) -> Any:
        """What a declared function returned, or raised; it is not called.

        Raises:
            RecordingError: SGLC425 it is given something else, SGLC421 there was no such call, SGLC426 it is
                not known what it gave.
        """
        call = self._calls.next(name, args, named, pure=pure, free=free)
        answered = self._calls.recorded_of(call)
        if answered is None:
            number = call["occurrence"]
            what = f"number {number + 1}" if isinstance(number, int) else "with these arguments"
            raise self._stop() or RecordingError(
                "SGLC421", f"the recording has no call of `{name}` {what} (row {self.number})",
                note=f"it is given {shown(call)}", hint=self._hint(self._called_within(name)),
            )  # fmt: skip
        if is_ended(answered.line):
            return given_by(answered.line)
        if "lost" in answered.line:
            raise not_kept(name, answered.line["lost"])
        raise self._calls.in_doubt(call)

    def paused(self, pause: Paused) -> Any:
        """What a person answered to a pause.

        Raises:
            Paused: nobody had.
            RecordingError: SGLC425 it asked something else, SGLC421 it was not there.
        """
        line = self._calls.paused(pause)
        answered = self._calls.recorded_of(line)
        if answered is None:
            raise self._stop() or RecordingError(
                "SGLC421", f"`{self._calls.name_of(line)}` is not in the recording of row {self.number}",
                note=self._why_missing(), hint=AGAIN,
            )  # fmt: skip
        return given_by(answered.line)

    def end(
        self, outputs: RunOutputs, error: BaseException | None, total_s: float
    ) -> tuple[BaseException | None, float]:
        """The row has ended: with the recorded time, and an error if it did not do all that was recorded."""
        end = self.recorded.ends.get(self.within)
        if end is not None and not isinstance(error, RecordingError):
            total_s = end["total_s"]
        if error is None and not self.within:
            error = not_asked_for(self.recorded, self.number)
        return error, total_s

    @property
    def unrecorded(self) -> bool:
        """Whether it is a row of a batch in a program, and did not begin when the program was recorded.

        That is an error if the program reads it: rows begin ahead, in no time that is known.
        """
        recorded = self.recorded
        return self.within.endswith("]") and self.within not in recorded.begins and "" in recorded.ends

    def _missing(self, site: Site, loc: Loc) -> SglcError:
        return self._stop() or self._unknown(str(site), loc)

    def _unknown(self, what: str, loc: Loc | None = None) -> RecordingError:
        note, sites = self._why_missing(), [site for _, site in self.recorded.answers]
        other_mode = _counts_turns(what) != any(map(_counts_turns, sites))
        if other_mode:
            note += "; a plan counts the turns of a comprehension, and Python the generations in them"
        return RecordingError(
            "SGLC421", f"`{what}` is not in the recording of row {self.number}", loc,
            note=note, hint=self._hint(other_mode),
        )  # fmt: skip

    def end_error(self) -> SglcError | None:
        """The error that this row ended with when it was recorded."""
        end = self.recorded.ends.get(self.within)
        return None if end is None or end["error"] is None else error_of(end["error"])

    def _stop(self) -> SglcError | None:
        """What ended this row from outside when it was recorded, so that it came to no further step."""
        ended = self.end_error()
        return ended if ended is not None and ended.code in STOPS else None

    def _called_within(self, function: str) -> bool:
        """Whether another program has called it: a plan counts calls of programs that it calls with its own."""
        return any(name == function and at != self.within for at, name in self.recorded.calls)

    def _hint(self, other_mode: bool) -> str:
        """What to do about what is missing; it may be there as the `other_mode` has it."""
        begin = self.recorded.begins.get("")
        if begin is None or not other_mode:
            return AGAIN
        return f'replay it in the mode that it was recorded in, `mode="{begin["mode"]}"`, or {AGAIN}'

    def _why_missing(self) -> str:
        within = self.within
        if within not in self.recorded.begins and not self.unrecorded:
            within = ""  # a program that a plan had called
        if within not in self.recorded.ends:
            begun = within in self.recorded.begins
            return "recording it was cut short" if begun else "this row was not recorded"
        known = [site for path, site in self.recorded.answers if path == within]
        return f"it has: {', '.join(f'`{site}`' for site in known[:8]) or 'nothing'}"


def _counts_turns(site: str) -> bool:
    """Whether it stands in a comprehension of a plan; turns of structured forms are counted in both modes."""
    return "@" in _FORM_TURNS.sub("", site)


class ReplayBackend:
    """Answers segments from a recording, each at once. Nothing is loaded, and nothing is connected."""

    def __init__(self, player: Player, row: RowPlayer | None, target: Target | None) -> None:
        self._player = player
        self._row = row
        self.known = target

    @property
    def target(self) -> Target:
        """That of the recording.

        Raises:
            SglcError: there was none: the error that ended the row.
        """
        if self.known is None:
            ended = None if self._row is None else self._row.end_error()
            raise ended or UsageError("SGLC052", f"the recording in `{self._player.folder}` has no back end")
        return self.known

    def start(self) -> None:
        """Nothing has to be loaded."""

    def close(self) -> None:
        """Nothing has to be given back."""

    async def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        """The recorded events of a segment in their order, each text as one piece."""
        followed = self._player.streams.follow(segment)
        events: list[tuple[int, Event]] = []
        last = 0
        for index, node in enumerate(segment.nodes):
            error = self._failed(followed, index)
            if isinstance(node, GenNode | SelectNode) and self._row is not None:
                if error is not None:
                    self._row.fail(node)
                else:
                    try:
                        last, done = self._row.answer(node, index, followed.inputs(index))
                        events += [(last, event) for event in told(done, streams)]
                        followed.texts[index] = _text(done)
                    except SglcError as problem:
                        error = located(problem, node.loc)
            if error is not None:
                followed.failed[index] = error
                events.append((last, NodeFailed(index, error)))
        for _, event in sorted(events, key=lambda one: one[0]):
            yield event

    def _failed(self, followed: Followed, index: int) -> SglcError | None:
        """Why a node cannot be reached, if it cannot."""
        node = followed.segment.nodes[index]
        if isinstance(node, OpenNode):
            before = followed.opened.get(index)
            return None if before is None else before[0].failed.get(before[1])
        return failed_before(node, followed.failed)


def _text(done: GenDone | SelectDone) -> str:
    return done.samples[0].text if isinstance(done, GenDone) else done.text


def _of(backend: Backend) -> Target | None:
    return backend.known if isinstance(backend, ReplayBackend) else None


def check_arguments(begin: Json | None, arguments: Mapping[str, Any], number: int) -> None:
    """See that a row which goes on is the one that began.

    Raises:
        RecordingError: SGLC433, it is given other arguments.
    """
    if begin is None:
        return
    (given,), _ = given_json([dict(arguments)], {})
    recorded = begin["args"]
    differs = [name for name in {**recorded, **given} if not alike(recorded.get(name), given.get(name))]
    if differs:
        note = "; ".join(f"`{name}` was {recorded.get(name)!r} and is {given.get(name)!r}" for name in differs)
        raise RecordingError(
            "SGLC433", f"row {number} is given other arguments than in the recording",
            note=note if len(note) < _SHOWN else note[:_SHOWN] + "...", hint="give it the same rows",
        )  # fmt: skip


def not_asked_for(row: TapeRow, number: int) -> RecordingError | None:
    """Why a row that ended well is not the recorded one; None: it did all that was recorded."""
    rest = row.unused()
    if rest is None:
        return None
    what = rest.line.get("site") or rest.line["function"]
    return RecordingError(
        "SGLC422", f"the program no longer asks for `{what}`, which row {number} recorded",
        note=f"it stood at {rest.line['loc']}" if "loc" in rest.line else "", hint=AGAIN,
    )  # fmt: skip
