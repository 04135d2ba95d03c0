"""Recording a run: what its back ends and its declared functions answered goes into a `Writer`, as it comes."""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from sglc.errors import Loc, RecordingError
from sglc.execution.outputs import PendingOutput, RunOutputs
from sglc.ir.core import Program, Site
from sglc.ir.plan.backend import Backend
from sglc.ir.plan.dataflow import failed_before
from sglc.ir.plan.events import Event, GenDone, NodeFailed, SelectDone
from sglc.ir.plan.segment import GenNode, Segment, SelectNode
from sglc.ir.target import Target
from sglc.observe.replay.prompts import Followed, Inputs, Streams
from sglc.observe.replay.tape import Writer, answer_json, error_json, given_json, value_json
from sglc.observe.replay.target import described


class TapeRecorder:
    """One recording. Its rows write from the executor's thread and from those of their bodies.

    Raises:
        UsageError: SGLC050, SGLC051, as of `Writer`.
    """

    def __init__(self, folder: str | os.PathLike[str], name: str, seed: int, rows: int | None) -> None:
        header = {"program": name, "seed": seed, "rows": rows, **_versions()}
        self.writer = Writer(folder, header)
        self.streams = Streams()
        self._targets: dict[int, tuple[Target, str]] = {}
        self._lock = threading.Lock()
        self._going = 0
        self._closed = False

    def backend(self, backend: Backend) -> Backend:
        """`backend` for what is done once for all rows: streams that it keeps are followed."""
        return RecordingBackend(_inner(backend), self, None, "")

    def row(self, number: int, within: str, arguments: Mapping[str, Any]) -> RowRecorder:
        """What records a row, or a program that it calls."""
        return RowRecorder(self, number, within, arguments)

    def described(self, target: Target) -> str:
        """The short name of a target, which is written down once."""
        with self._lock:
            known = self._targets.get(id(target))
            if known is not None:
                return known[1]
            key, data = described(target)
            if key not in [name for _, name in self._targets.values()]:
                self.writer.write({"target": key, "described": data}, later=True)
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
    """What one row does, written down."""

    recorder: TapeRecorder
    number: int
    within: str
    arguments: Mapping[str, Any]
    _asked: dict[Site, dict[str, Any]] = field(default_factory=dict)  # of what was not written yet
    _written: set[Site] = field(default_factory=set)
    _called: dict[str, int] = field(default_factory=dict)  # how often each declared function was

    def backend(self, backend: Backend) -> RecordingBackend:
        """`backend`, with what it answers noted."""
        inner = _inner(backend)
        return RecordingBackend(inner, self.recorder, self, self.recorder.described(inner.target))

    def other(self, backend: Backend, program: Program, loc: Loc) -> Backend:
        """Another back end that a call of the row names."""
        return self.backend(backend)

    def begin(self, backend: Backend) -> Backend:
        """The row begins on `backend`; gives that with what it answers noted.

        Raises:
            SglcError: the back end cannot say what it can do, or UsageError SGLC054.
        """
        self.recorder.going(1)
        (args,), _ = given_json([dict(self.arguments)], {})
        made: RecordingBackend | None = None
        try:
            made = self.backend(backend)
        finally:
            self._write("begin", args=args, target=None if made is None else made.target_name)
        return made

    def note(self, node: GenNode | SelectNode, inputs: Inputs, target: str) -> None:
        """A generation has its answer; `done` follows, with its times."""
        asked: dict[str, Any] = {"target": target, "prompt": inputs.prompt, "hash": inputs.hash}
        if isinstance(node, GenNode):
            asked["seed"] = node.seed
        self._asked[node.site] = {**asked, "options": dict(inputs.options)}

    def done(self, output: PendingOutput) -> None:
        """A generation has ended well, and its times are known."""
        assert output.event is not None
        times = [output.started_s, output.first_s, output.ended_s]
        self._answer(output, answer=answer_json(output.event), times=times)

    def called(self, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """A declared function is called now; `returned` or `raised` follows with what this gives."""
        given, by_name = given_json(args, named)
        place = self._called.get(name, 0)
        self._called[name] = place + 1
        return {"function": name, "occurrence": place, "args": given, "named": by_name}

    def returned(self, call: Mapping[str, Any], value: Any) -> None:
        """It has returned.

        Raises:
            RecordingError: SGLC424, what JSON cannot hold.
        """
        try:
            data = value_json(value)
        except TypeError as error:
            raise RecordingError(
                "SGLC424", f"`{call['function']}` returned a `{error}`, which cannot be recorded",
                note="it holds texts, numbers, truth values, None, and lists, tuples and dicts of them",
                hint="have it return plain data",
            ) from None  # fmt: skip
        self._write("call", **call, value=data)

    def raised(self, call: Mapping[str, Any], error: BaseException) -> None:
        """It has raised."""
        raised = {"class": type(error).__name__, "module": type(error).__module__, "args": _data(error.args)}
        self._write("call", **call, raised=raised)

    def end(
        self, outputs: RunOutputs, error: BaseException | None, total_s: float
    ) -> tuple[BaseException | None, float]:
        """The row has ended; what failed in it is known."""
        for output in tuple(outputs.generations.values()):
            if output.error is not None and output.site not in self._written:
                self._answer(output, error=error_json(output.error))
        self._asked.clear()
        self._write("end", total_s=total_s, error=None if error is None else error_json(error))
        self.recorder.going(-1)
        return error, total_s

    def _answer(self, output: PendingOutput, **answer: Any) -> None:
        self._written.add(output.site)
        asked = self._asked.pop(output.site, {"target": None})
        self._write("answer", site=str(output.site), loc=str(output.node.loc), **asked, **answer)

    def _write(self, what: str, **line: Any) -> None:
        later = what in ("begin", "end")  # nothing is lost with them that was paid for
        self.recorder.writer.write({"is": what, "row": self.number, "within": self.within, **line}, later=later)


class RecordingBackend:
    """A back end whose answers are noted for one row; `row` None: only its streams are followed."""

    def __init__(
        self, inner: Backend, recorder: TapeRecorder, row: RowRecorder | None, target_name: str
    ) -> None:
        self.inner = inner
        self.target_name = target_name
        self._recorder = recorder
        self._row = row

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)  # whatever else this back end can do

    @property
    def target(self) -> Target:
        return self.inner.target

    def start(self) -> None:
        self.inner.start()

    def close(self) -> None:
        self.inner.close()

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        """As that of the back end."""
        followed = self._recorder.streams.follow(segment)
        if self.inner.target.whole_answers:
            return self._noting(followed, self.inner.submit(segment, streams=streams))
        return self._noting(followed, self.inner.submit(segment))

    async def _noting(self, followed: Followed, events: AsyncIterator[Event]) -> AsyncIterator[Event]:
        try:
            async for event in events:
                self._note(followed, event)
                yield event
        finally:
            if (close := getattr(events, "aclose", None)) is not None:
                await close()

    def _note(self, followed: Followed, event: Event) -> None:
        match event:
            case GenDone(node=index):
                followed.texts[index] = event.samples[0].text
            case SelectDone(node=index):
                followed.texts[index] = event.text
            case NodeFailed(index, error):
                followed.failed[index] = error
                if failed_before(followed.segment.nodes[index], followed.failed) is not None:
                    return  # it was never asked for
            case _:
                return
        node = followed.segment.nodes[index]
        if self._row is None or not isinstance(node, GenNode | SelectNode):
            return
        try:
            self._row.note(node, followed.inputs(index), self.target_name)
        except KeyError:  # what it reads failed in an earlier segment
            if not isinstance(event, NodeFailed):
                raise


def _inner(backend: Backend) -> Backend:
    return backend.inner if isinstance(backend, RecordingBackend) else backend


def _data(args: tuple[Any, ...]) -> Any:
    try:
        return value_json(list(args))
    except TypeError:
        return [str(one) for one in args]


def _versions() -> dict[str, str]:
    try:
        own = version("sglc")
    except PackageNotFoundError:
        own = "unknown"
    return {"sglc": own, "python": platform.python_version(), "platform": sys.platform}
