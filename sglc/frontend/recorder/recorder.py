"""Records what a body does as ops: all of it while it is traced, and launch by launch where it runs as Python.

The program of a launch starts from the streams that earlier launches kept (`resume`). When real
arguments are there, every literal becomes a slot, so that rows which do the same record equal
programs and share one compiled plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec

from sglc.errors import Loc
from sglc.frontend.language.expr import GenExpr, SelectExpr
from sglc.frontend.recorder.form import BODY
from sglc.frontend.values.recorded import Generated, Mark, Recorded, RecordedStream, Turns
from sglc.frontend.values.symbolic import SymbolicText
from sglc.ir.core import Op, Program, Site, Type, Value
from sglc.ir.ops import (
    Append,
    Arg,
    Fork,
    Format,
    Gen,
    Image,
    Join,
    Resume,
    RoleClose,
    RoleOpen,
    Root,
    ScopeBegin,
    ScopeEnd,
    Select,
    argument_type,
)
from sglc.ir.sampling import Sampling
from sglc.ir.values import refuse_unreachable

_P = ParamSpec("_P")


@dataclass(slots=True)
class OpRecorder:
    """The recording of one instance: its streams, the ops since the last launch, its sites."""

    function: str
    defaults: Sampling
    symbolic: bool
    ahead: int = 0  # of every generation: see `ir.ops.Gen`
    launch: int = 0
    params: list[Op] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    streams: list[RecordedStream] = field(default_factory=list)
    chat: bool = False  # a turn was begun, on some path
    _next_value: int = 0
    _next_handle: int = 0
    _slots: dict[str, Value] = field(default_factory=dict)
    _resumed: dict[str, Value] = field(default_factory=dict)
    _handles: set[str] = field(default_factory=set)
    _occurrences: dict[tuple[str, tuple[int, ...], str], int] = field(default_factory=dict)

    # -- streams ---------------------------------------------------------------------------------

    def new_stream(self, loc: Loc) -> RecordedStream:
        value = self.emit(Type.STREAM, Root, loc=loc)
        return self._own(RecordedStream(self.launch, value))

    def fork(
        self, stream: RecordedStream, size: int, labels: tuple[str, ...], loc: Loc
    ) -> list[RecordedStream]:
        trunk = self._use(stream)
        values = tuple(self.new_value(Type.STREAM) for _ in range(size))
        self.ops.append(Fork(trunk, labels, results=values, loc=loc))
        return [self._own(RecordedStream(self.launch, value, stream.turns)) for value in values]

    def bookmark(self, stream: RecordedStream) -> RecordedStream:
        """The stream as it is now, under a name of its own that does not move on."""
        if stream.launch != self.launch:
            return self._own(RecordedStream(stream.launch, stream.value, stream.turns, stream.handle))
        return self._own(RecordedStream(self.launch, stream.value, stream.turns))

    def append(self, stream: RecordedStream, text: str | SymbolicText, loc: Loc) -> None:
        if text != "" if isinstance(text, str) else text.parts:
            stream.value = self.emit(Type.STREAM, Append, self._use(stream), self.text(text, loc), loc=loc)

    def role_open(self, stream: RecordedStream, role: str, loc: Loc) -> None:
        self.chat = True
        stream.value = self.emit(Type.STREAM, RoleOpen, self._use(stream), role, loc=loc)
        stream.turns = Turns(stream.turns.closed, role)

    def image(self, stream: RecordedStream, data: str | SymbolicText, loc: Loc) -> None:
        stream.value = self.emit(Type.STREAM, Image, self._use(stream), self.text(data, loc), loc=loc)

    def section_open(self, stream: RecordedStream, name: str, movable: bool, loc: Loc) -> None:
        stream.value = self.emit(Type.STREAM, ScopeBegin, self._use(stream), name, movable, loc=loc)

    def section_close(self, stream: RecordedStream, name: str, loc: Loc) -> None:
        stream.value = self.emit(Type.STREAM, ScopeEnd, self._use(stream), name, loc=loc)

    def role_close(self, stream: RecordedStream, loc: Loc) -> None:
        role = stream.turns.open
        stream.value = self.emit(Type.STREAM, RoleClose, self._use(stream), role, loc=loc)
        stream.turns = Turns((*stream.turns.closed, role))

    # -- generations -----------------------------------------------------------------------------

    def reserve(self, path: tuple[int, ...], name: str) -> Site:
        """The site of the next generation of that name; it may be made elsewhere."""
        body = BODY.get()
        function = self.function if body is None or body.recorder is not self else body.function
        count = self._occurrences.get((function, path, name), 0)
        self._occurrences[function, path, name] = count + 1
        return Site(function, path, name, count)

    def count_anew(self, function: str) -> None:
        """A body of a structured form is recorded, perhaps again: its sites, and those in it, begin at 0."""
        own = f"{function}~"
        for key in [key for key in self._occurrences if f"{key[0]}~".startswith(own)]:
            del self._occurrences[key]

    def generate(self, stream: RecordedStream, path: tuple[int, ...], expr: GenExpr | SelectExpr) -> Generated:
        site = self.reserve(path, expr.name or expr.unnamed)
        op: Gen | Select
        if isinstance(expr, SelectExpr):
            choices = tuple(self.text(choice, expr.loc) for choice in expr.choices)
            began = self._use(stream)
            op = Select(began, site, choices, expr.method, results=self._ends(), loc=expr.loc)
        else:
            sampling = self.defaults.changed(expr.overrides)
            if expr.more_stops:
                sampling = sampling.changed({"stop": (*sampling.stop, *expr.more_stops)})
            if expr.limit is not None:  # till it is known
                sampling = sampling.changed({"max_tokens": max(sampling.max_tokens, sampling.min_tokens)})
            refuse_unreachable(sampling, expr.loc)
            limit = None if expr.limit is None else self.text(expr.limit, expr.loc)
            assert not isinstance(limit, str)
            began = self._use(stream)
            op = Gen(began, site, sampling, self.ahead, limit=limit, results=self._ends(), loc=expr.loc)
        self.ops.append(op)
        stream.value, text = op.results
        many = isinstance(op, Gen) and op.sampling.n > 1
        return Generated(site, self.launch, text, many=many)

    def _ends(self) -> tuple[Value, Value]:
        """What a generation makes: the stream behind it, and its text."""
        return self.new_value(Type.STREAM), self.new_value(Type.TEXT)

    def join(
        self, path: tuple[int, ...], name: str, values: tuple[Value | None, ...] | None, loc: Loc
    ) -> Value | None:
        """The gathered list as a value; None if some part of it is no value of this launch (`values` is None).
        It counts as an occurrence of `name` all the same: sites do not depend on launches."""
        site = self.reserve(path, name)
        return None if values is None else self.emit(Type.LIST, Join, site, values, loc=loc)

    # -- values ----------------------------------------------------------------------------------

    def emit(self, result: Type, kind: Callable[_P, Op], *args: _P.args, **named: _P.kwargs) -> Value:
        """Record an op with one result."""
        value = self.new_value(result)
        self.ops.append(kind(*args, results=(value,), **named))  # type: ignore[arg-type]
        return value

    def new_value(self, kind: Type) -> Value:
        """A value that nothing uses."""
        self._next_value += 1
        return Value(self._next_value - 1, kind)

    # -- launches --------------------------------------------------------------------------------

    def argument(self, name: str, kind: str, default: str | None, loc: Loc, holds: str | None = None) -> Value:
        """A parameter of the program: see `ir.ops.Arg`."""
        value = self.new_value(argument_type(kind))
        self.params.append(Arg(name, kind, default, holds, results=(value,), loc=loc))
        return value

    @property
    def pending(self) -> bool:
        """Whether anything was recorded since the last launch."""
        return bool(self.ops)

    def take(self, *, final: bool) -> Recorded:
        """What was recorded since the last launch; the recording goes on behind it."""
        self.streams = [stream for stream in self.streams if stream.live]
        kept: dict[str, Value] = {}
        names: dict[Value, str] = {}
        for stream in self.streams:
            if stream.launch != self.launch:
                continue
            if stream.value not in names:
                resumed = next((h for h, v in self._resumed.items() if v == stream.value), None)
                names[stream.value] = resumed or f"k{self._next_handle}"
                if resumed is None:
                    self._next_handle += 1
                    kept[names[stream.value]] = stream.value
            stream.handle = names[stream.value]
        needed: set[str] = set() if final else {stream.handle for stream in self.streams}
        release = tuple(sorted(self._handles - needed))
        self._handles = (self._handles | set(kept)) & needed
        texts = {f"x{value.id}": text for text, value in self._slots.items()}
        program = Program(self.function, tuple(self.params), tuple(self.ops), kept)
        self.launch += 1
        self.params, self.ops, self._slots, self._resumed, self._next_value = [], [], {}, {}, 0
        return Recorded(program, texts, release, final)

    # -- blocks, ahead of time -------------------------------------------------------------------

    def mark(self) -> Mark:
        """Where the recording stands, without its ops."""
        return Mark(self._next_value, dict(self._occurrences), len(self.streams))

    def go_back(self, mark: Mark) -> None:
        """Record once more from `mark` on; the ops are the caller's business."""
        self._next_value, self._occurrences = mark.next_value, dict(mark.occurrences)
        del self.streams[mark.streams :]

    def skip_to(self, mark: Mark) -> None:
        """Use no value and no site that a recording up to `mark` has used."""
        self._next_value = max(self._next_value, mark.next_value)
        for key, count in mark.occurrences.items():
            if count > self._occurrences.get(key, 0):
                self._occurrences[key] = count

    # -- inside ----------------------------------------------------------------------------------

    def _own(self, stream: RecordedStream) -> RecordedStream:
        self.streams.append(stream)
        return stream

    def _use(self, stream: RecordedStream) -> Value:
        """The stream's value in the current launch: resumed, if an earlier launch made it."""
        if stream.launch != self.launch:
            if stream.handle not in self._resumed:
                value = self.new_value(Type.STREAM)
                self.params.append(
                    Resume(stream.handle, stream.turns.closed, stream.turns.open, results=(value,))
                )
                self._resumed[stream.handle] = value
            stream.value, stream.launch = self._resumed[stream.handle], self.launch
        return stream.value

    def text(self, text: str | SymbolicText, loc: Loc) -> Value | str:
        """A text as an operand: a literal, a slot, or the value that makes it."""
        if isinstance(text, SymbolicText):
            if len(text.parts) == 1:
                return text.parts[0]
            return self.emit(Type.TEXT, Format, text.parts, loc=loc) if text.parts else ""
        if self.symbolic:
            return text
        if text not in self._slots:
            value = self.new_value(Type.TEXT)
            self.params.append(Arg(f"x{value.id}", results=(value,)))
            self._slots[text] = value
        return self._slots[text]
