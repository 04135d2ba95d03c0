"""What accompanies a run without being a part of it: a recording that is made or replayed, and traces.

A run that nobody watches has none of this. The executor, the row and the plan's run tell a `RowWatch` what
happens; declared functions are called through it.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sglc.errors import Loc, RecordingError, UsageError, located
from sglc.execution.context import ENCLOSING
from sglc.execution.outputs import Cell, Feed
from sglc.execution.plan.prepare import function_steps
from sglc.execution.result import Result
from sglc.frontend.locate import here
from sglc.frontend.tracing.tools import AROUND
from sglc.ir.core import NOWHERE, Program
from sglc.ir.plan.backend import Backend
from sglc.ir.plan.plan import Plan
from sglc.observe.otel import RowSpan, Spans
from sglc.observe.replay.player import ReplayedTape, Replayer
from sglc.observe.replay.recorder import RecordedTape, Recorder
from sglc.observe.timeline import RowTrace, Trace, Wait

_NOT_TRACED = nullcontext()
Tools = Mapping[str, Callable[..., Any]]


@dataclass(slots=True)
class Watch:
    """What watches all rows of one call of `run` or `run_batch`. `outer`: that call stands in another row."""

    name: str
    tape: Recorder | Replayer | None
    trace: Trace | None
    spans: Spans | None
    single: bool
    outer: RowWatch | None = None
    path: str = ""  # of the call in the row `outer`

    def backend(self, backend: Backend) -> Backend:
        """The back end to run on."""
        return backend if self.tape is None else self.tape.backend(backend)

    def functions(self, tools: Tools, plan: Plan) -> Tools:
        """The functions that a plan finds here: a replay has every one."""
        if not isinstance(self.tape, Replayer):
            return tools
        return {step.function: tools.get(step.function, _gone) for step in function_steps(plan)}

    def row(self, number: int, arguments: Mapping[str, Any]) -> RowWatch:
        """What watches one row."""
        path = self.path if self.single else f"{self.path}[{number}]"
        if self.outer is None:
            path = ""
        else:
            number = self.outer.number
        tape = None if self.tape is None else self.tape.row(number, path, arguments)
        trace = None if self.trace is None else self.trace.row(self.name, number, path)
        return RowWatch(self, number, path, tape, trace)

    def over(self, results: Iterator[Result]) -> Iterator[Result]:
        """The results of a batch, watched to their end."""
        try:
            yield from results
        finally:
            self.close()

    def close(self) -> None:
        """All rows have ended, or will not begin."""
        if self.spans is not None:
            self.spans.close()
        if self.outer is not None:
            return
        if self.tape is not None:
            self.tape.close()
        if self.trace is not None:
            self.trace.write()


def open_watch(
    name: str, draw: Callable[[], int], seed: int | None, rows: int | None, outer: RowWatch | None,
    asked: Mapping[str, Any],
) -> tuple[Watch | None, int]:  # fmt: skip
    """What watches a call of `run` or `run_batch`, if anything does, and the seed of that call.

    Args:
        draw: gives a seed where neither the call nor a recording has one.
        rows: of a batch.
        outer: what watches the row that the call stands in.
        asked: `record` or `replay`, a folder; `trace`, a file.

    Raises:
        UsageError: SGLC050, SGLC051 as of `Recorder`; SGLC052, SGLC053, SGLC055 as of `Replayer`; SGLC056
            both of them; SGLC057 as of `Trace`.
    """
    single = rows is None
    record, replay = asked.get("record"), asked.get("replay")
    if record is not None and replay is not None:
        raise UsageError("SGLC056", "a run is recorded or replayed, not both")
    inside = outer if record is None and replay is None and "trace" not in asked else None
    if inside is not None:
        seed = draw() if seed is None else seed
        watch, spans = inside.watch, Spans.begun(name, rows)
        return Watch(name, watch.tape, watch.trace, spans, single, inside, inside.call_path(name)), seed
    trace = Trace(asked["trace"]) if "trace" in asked else None
    tape: Recorder | Replayer | None = None
    if replay is not None:
        tape = Replayer(replay, name, seed)
        seed = tape.seed
    seed = draw() if seed is None else seed
    if record is not None:
        tape = Recorder(record, name, seed, rows)
    spans = Spans.begun(name, rows)
    if tape is None and trace is None and spans is None:
        return None, seed
    return Watch(name, tape, trace, spans, single), seed


@dataclass(slots=True)
class RowWatch:
    """What watches one row, or a program that it calls."""

    watch: Watch
    number: int
    path: str
    tape: RecordedTape | ReplayedTape | None
    trace: RowTrace | None
    span: RowSpan | None = None
    _called: dict[str, int] = field(default_factory=dict)  # how often each program was

    def call_path(self, name: str) -> str:
        """Where the next call of the program `name` stands."""
        count = self._called.get(name, 0)
        self._called[name] = count + 1
        return f"{self.path}/{name}#{count}" if self.path else f"{name}#{count}"

    @property
    def wants_pieces(self) -> bool:
        """Whether the time of the first text is of interest."""
        return self.trace is not None

    def begin(self, backend: Backend, began_s: float) -> Backend:
        """The row began at `began_s` (of `time.perf_counter`) on `backend`; gives the one to use.

        Raises:
            SglcError: the back end cannot be used.
        """
        if self.trace is not None:
            self.trace.begin(began_s)
        if self.watch.spans is not None:
            self.span = self.watch.spans.row(self.number, self.path, began_s)
        if self.tape is not None:
            backend = self.tape.begin(backend)
        if self.span is not None:
            self.span.on(backend.target)
        return backend

    def other(self, backend: Backend, program: Program, loc: Loc) -> Backend:
        """Another back end, which a call of the row names."""
        if self.tape is not None:
            backend = self.tape.other(backend, program, loc)
        if self.span is not None:
            self.span.other(program, backend.target)
        return backend

    def done(self, cell: Cell) -> None:
        """A generation has ended well."""
        if self.trace is not None:
            self.trace.done(cell)
        if self.span is not None:
            self.span.done(cell)
        if self.tape is not None:
            self.tape.done(cell)

    def end(
        self, feed: Feed, error: BaseException | None, total_s: float
    ) -> tuple[BaseException | None, float]:
        """The row has ended; gives its error, and how long it took."""
        if self.tape is not None:
            error, total_s = self.tape.end(feed, error, total_s)
        if self.trace is not None:
            self.trace.end(feed, error)
        if self.span is not None:
            self.span.end(feed, error)
        if self.watch.single:
            self.watch.close()
        return error, total_s

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """The row's Python waits for the text of `what` (a site) inside."""
        return _NOT_TRACED if self.trace is None else Wait(self.trace, what)

    # -- declared functions ----------------------------------------------------------------------

    def call(
        self, name: str, function: Callable[..., Any], pure: bool, args: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        """Call a declared function for the program's Python, or do as it did.

        Raises:
            RecordingError: what the function is given or returns, and the recording, do not go together.
        """
        loc = here()
        try:
            return self._call(name, function, pure, args, named, loc)
        except RecordingError as error:
            raise located(error, loc) from None

    def _call(
        self, name: str, function: Callable[..., Any], pure: bool, args: Sequence[Any],
        named: Mapping[str, Any], loc: Loc,
    ) -> Any:  # fmt: skip
        """What happens inside of a function that is called is nobody's affair."""
        waits = inspect.iscoroutinefunction(function)
        tape = self.tape
        if isinstance(tape, ReplayedTape):
            if waits:
                return _later(lambda: tape.called(name, args, named, pure=pure))
            return tape.called(name, args, named, pure=pure)
        going = _Going(self, name, args, named, loc)
        if waits:
            return _waiting(going, function)
        with _unwatched(), going:
            going.value = function(*args, **named)
        return going.value

    def tools(self, tools: Tools, plan: Plan) -> Tools:
        """The functions that a plan calls, watched; a replay has every one."""
        if self.tape is None and self.trace is None and self.watch.spans is None:
            return tools
        made: dict[str, Callable[..., Any]] = {}
        for step in function_steps(plan):
            if step.function in tools or isinstance(self.tape, ReplayedTape):
                function = tools.get(step.function, _gone)
                made[step.function] = partial(self._called_by_plan, step.function, function, not step.effects)
        return made

    def _called_by_plan(
        self, name: str, function: Callable[..., Any], pure: bool, /, *args: Any, **named: Any
    ) -> Any:
        return self._call(name, function, pure, args, named, NOWHERE)


class _Going:
    """A declared function that is being called: how it ends is recorded."""

    def __init__(
        self, watch: RowWatch, name: str, args: Sequence[Any], named: Mapping[str, Any], loc: Loc
    ) -> None:
        self.value: Any = None
        self.args, self.named = args, named
        self._watch, self._name = watch, name
        self._loc = loc
        self._began_s = time.perf_counter()
        self._tape = watch.tape if isinstance(watch.tape, RecordedTape) else None
        self._call = {} if self._tape is None else self._tape.called(name, args, named)
        self._span: Any = None

    def __enter__(self) -> None:
        if self._watch.span is not None:
            self._span = self._watch.span.tool(self._name)
            self._span.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._span is not None:
            self._span.__exit__(kind, error, trace)
        if self._watch.trace is not None:
            self._watch.trace.called(self._name, self._loc, self._began_s, error)
        if self._tape is None:
            return
        if error is None:
            self._tape.returned(self._call, self.value)
        elif isinstance(error, Exception):
            self._tape.raised(self._call, error)


async def _waiting(going: _Going, function: Callable[..., Any]) -> Any:
    with _unwatched(), going:
        going.value = await function(*going.args, **going.named)
    return going.value


async def _later(answer: Callable[[], Any]) -> Any:
    return answer()


@contextmanager
def _unwatched() -> Iterator[None]:
    around = AROUND.set(None)
    enclosing = ENCLOSING.get()
    outer = None if enclosing is None else ENCLOSING.set(replace(enclosing, watch=None))
    try:
        yield
    finally:
        AROUND.reset(around)
        if outer is not None:
            ENCLOSING.reset(outer)


def _gone() -> None:
    raise AssertionError("a replay calls no function")
