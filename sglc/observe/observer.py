"""What accompanies a run without being a part of it: recordings, a cache of answers, and traces.

A run that nobody observes has none of this.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sglc.errors import Loc, Paused, RecordingError, UsageError, located
from sglc.execution.context import RUN_CONTEXT, nobody
from sglc.execution.observer import Observer
from sglc.execution.outputs import PendingOutput, RunOutputs
from sglc.execution.plan.prepare import function_steps
from sglc.execution.tasks import awaited, in_task
from sglc.execution.tool_calls import Tools
from sglc.frontend.locate import here
from sglc.frontend.tracing.tools import AROUND, is_idempotent, is_ordered, paused_in_function, run_tools
from sglc.ir.core import Program
from sglc.ir.plan.backend import Backend
from sglc.ir.plan.plan import FunctionStep, Plan
from sglc.ir.pure import PAUSE
from sglc.observe.cached_backend import CallCache
from sglc.observe.otel import RowSpan, Spans
from sglc.observe.replay.calls import given_by
from sglc.observe.replay.going_on import going_on
from sglc.observe.replay.player import Player, RowPlayer, open_player
from sglc.observe.replay.recorder import Call, RowRecorder, TapeRecorder
from sglc.observe.response_cache import open_cache
from sglc.observe.timeline import RowTimeline, Timeline, Wait

_NOT_OBSERVED = nullcontext()


@dataclass(slots=True)
class RunObserver:
    """Observes all rows of one call of `run` or `run_batch`. `outer`: that call stands in another row."""

    name: str
    tape: TapeRecorder | Player | None
    timeline: Timeline | None
    spans: Spans | None
    single: bool
    cache: CallCache | None = None
    outer: RowObserver | None = None
    path: str = ""  # of the call in the row `outer`
    _closed: bool = False

    def backend(self, backend: Backend) -> Backend:
        """The back end to run on."""
        if self.cache is not None:
            backend = self.cache.backend(backend)
        return backend if self.tape is None else self.tape.backend(backend)

    def functions(self, tools: Tools, plan: Plan) -> Tools:
        """The functions that a plan finds here: a replay has every one that is declared."""
        if not isinstance(self.tape, Player):
            return tools
        played = {step.function: _gone for step in function_steps(plan) if step.gives != "object"}
        return {**played, **tools}

    def mode(self, number: int) -> Any:
        """In which mode a row is to run, because it did before: "plan" or "python"; None: that is not known."""
        return None if self.tape is None else self.tape.mode(*self._place(number))

    def _place(self, number: int) -> tuple[int, str]:
        """The outermost row that a row is or stands in, and where."""
        if self.outer is None:
            return number, ""
        return self.outer.number, self.path if self.single else f"{self.path}[{number}]"

    def row(self, number: int, arguments: Mapping[str, Any], single_call: bool) -> RowObserver | None:
        """Who observes one row."""
        number, path = self._place(number)
        tape = None if self.tape is None else self.tape.row(number, path, arguments, single_call)
        if tape is None and self.is_journal:
            return None
        timeline = None if self.timeline is None else self.timeline.row(self.name, number, path)
        return RowObserver(self, number, path, tape, timeline)

    @property
    def is_journal(self) -> bool:
        """Whether that is all: what rows need not be wrapped for."""
        journal = isinstance(self.tape, TapeRecorder) and self.tape.is_journal
        return journal and self.timeline is None and self.spans is None and self.cache is None

    def left(self) -> None:
        """Nobody reads the results that are left."""
        if self.outer is not None and isinstance(self.tape, Player):
            self.tape.left(self.outer.number, self.path)

    def close(self, error: BaseException | None = None) -> None:
        """As of `CallObserver`."""
        if self._closed:
            return
        self._closed = True
        if self.spans is not None:
            self.spans.close(error)
        if self.outer is not None:
            return
        if self.tape is not None:
            self.tape.close()
        if self.timeline is not None:
            if error is not None:
                self.timeline.failed(self.name, error)
            self.timeline.write()
        if self.cache is not None:
            self.cache.answers.close()


def open_observer(
    name: str, draw: Callable[[], int], seed: int | None, rows: int | None, outer: Observer | None,
    asked: Mapping[str, Any],
) -> tuple[RunObserver | None, int]:  # fmt: skip
    """Who observes a call of `run` or `run_batch`, if anybody does, and the seed of that call.

    Args:
        draw: gives a seed where neither the call nor a recording has one.
        rows: of a batch.
        outer: who observes the row that the call stands in.
        asked: `record`, `journal` (or a `RemoteJournal`) or `replay`, and `cache`, folders; `trace`, a file;
            `resume`, what `going_on` takes, and `skip`, numbers of rows that do not run.

    Raises:
        UsageError: SGLC023, one of them is no path; SGLC050, SGLC051, SGLC080 as of `TapeRecorder`; SGLC052,
            SGLC053, SGLC055 as of `open_player`, or it is a journal; SGLC056 both of them; SGLC057 as of
            `Timeline`; SGLC065 as of `ResponseCache`; SGLC066 a cache for a replay; SGLC081 as of `going_on`.
    """
    _check_paths(asked)
    single = rows is None
    journal, replay = asked.get("journal"), asked.get("replay")
    record = asked.get("record", journal)
    if record is not None and replay is not None:
        raise UsageError("SGLC056", "a run is recorded or replayed, not both")
    goes_on = going_on(asked)
    if replay is not None and "cache" in asked:
        raise UsageError(
            "SGLC066", "a run that is replayed asks no model, so there is nothing to cache",
            hint="leave the cache out",
        )  # fmt: skip
    if isinstance(outer, RowObserver) and not asked:
        seed = draw() if seed is None else seed
        run, spans = outer.run, Spans.begun(name, rows)
        path = outer.call_path(name)
        return RunObserver(name, run.tape, run.timeline, spans, single, run.cache, outer, path), seed
    timeline = Timeline(asked["trace"]) if "trace" in asked else None
    tape: TapeRecorder | Player | None = None
    if replay is not None:
        tape = open_player(replay, name, seed)
        if "journal" in tape.tape.header:
            raise UsageError(
                "SGLC055", f"`{replay}` is the journal of a batch, which goes on with it",
                note="it holds only what rows need that were cut", hint="record a run: `record`",
            )  # fmt: skip
        seed = tape.seed
    seeded = seed is not None
    if record is not None:
        tape = TapeRecorder(
            record, name, seed, rows, draw, goes_on, skip=asked.get("skip", ()), is_journal=journal is not None
        )
        seed = tape.seed
    seed = draw() if seed is None else seed
    cache = CallCache(open_cache(asked["cache"]), seeded=seeded) if "cache" in asked else None
    spans = Spans.begun(name, rows)
    if tape is None and timeline is None and spans is None and cache is None:
        return None, seed
    return RunObserver(name, tape, timeline, spans, single, cache), seed


def _check_paths(asked: Mapping[str, Any]) -> None:
    for name in ("record", "replay", "trace", "cache"):
        if name not in asked:
            continue
        path = asked[name]
        path = os.fspath(path) if isinstance(path, os.PathLike) else path
        if not isinstance(path, str) or not path or "\0" in path:
            what = "a file" if name == "trace" else "a folder"
            raise UsageError("SGLC023", f"`{name}` is the path of {what}, not `{asked[name]!r}`", here())


@dataclass(slots=True)
class RowObserver:
    """Observes one row, or a program that it calls."""

    run: RunObserver
    number: int
    path: str
    tape: RowRecorder | RowPlayer | None
    timeline: RowTimeline | None
    span: RowSpan | None = None
    _called: dict[str, int] = field(default_factory=dict)  # how often each program was

    def call_path(self, name: str) -> str:
        """Where the next call of the program `name` stands."""
        name = in_task(name)
        count = self._called.get(name, 0)
        self._called[name] = count + 1
        return f"{self.path}/{name}#{count}" if self.path else f"{name}#{count}"

    @property
    def unrecorded(self) -> bool:
        """Whether it is a row of a batch in a program, and did not begin when the program was recorded."""
        return isinstance(self.tape, RowPlayer) and self.tape.unrecorded

    @property
    def wants_pieces(self) -> bool:
        """Whether the time of the first text is of interest."""
        return self.timeline is not None

    def begin(self, backend: Backend, began_s: float, mode: str) -> Backend:
        """The row began at `began_s` (of `time.perf_counter`) on `backend`; gives the one to use.

        Args:
            mode: "plan" or "python".

        Raises:
            SglcError: the back end cannot be used.
        """
        if self.timeline is not None:
            self.timeline.begin(began_s)
        if self.run.spans is not None:
            self.span = self.run.spans.row(self.number, self.path, began_s)
        if self.tape is not None:
            backend = self.tape.begin(backend, mode)
        if self.span is not None:
            self.span.on(backend.target)
        return backend

    def other(self, backend: Backend, program: Program, loc: Loc) -> Backend:
        """Another back end, which a call of the row names."""
        if self.run.cache is not None:
            backend = self.run.cache.backend(backend)
        if self.tape is not None:
            backend = self.tape.other(backend, program, loc)
        if self.span is not None:
            self.span.other(program, backend.target)
        return backend

    def done(self, output: PendingOutput) -> None:
        """A generation has ended well."""
        if self.timeline is not None:
            self.timeline.done(output)
        if self.span is not None:
            replayed = self.tape is not None and self.tape.answers(output.site)
            self.span.done(output, replayed=replayed)
        if self.tape is not None:
            self.tape.done(output)

    def end(
        self, outputs: RunOutputs, error: BaseException | None, total_s: float
    ) -> tuple[BaseException | None, float]:
        """The row has ended; gives its error, and how long it took."""
        try:
            if self.tape is not None:
                error, total_s = self.tape.end(outputs, error, total_s)
            if self.timeline is not None:
                self.timeline.end(outputs, error)
            if self.span is not None:
                self.span.end(outputs, error)
            if self.run.cache is not None:
                self.run.cache.answers.flush()
        finally:
            if self.run.single:
                self.run.close()
        return error, total_s

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """The row's Python waits for the text of `what` (a site) inside."""
        return _NOT_OBSERVED if self.timeline is None else Wait(self.timeline, what)

    # -- declared functions ----------------------------------------------------------------------

    def call(
        self, name: str, function: Callable[..., Any], pure: bool, args: Sequence[Any],
        named: Mapping[str, Any], *, in_turn: bool = False,
    ) -> Any:  # fmt: skip
        """Call a declared function for the program's Python, or do as it did; `in_turn`, where a plan's
        `run_tools` calls it: no step of the plan is counted with it.

        Raises:
            RecordingError: what the function is given or returns, and the recording, do not go together.
        """
        if name == run_tools.name:
            return function(*args, **named)  # each tool that it calls is a call
        loc = here()
        try:
            return self._call(
                name, function, args, named, loc, pure=pure, free=not (in_turn or is_ordered(name))
            )
        except (RecordingError, Paused) as error:
            raise located(error, loc) from None

    def _call(
        self, name: str, function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any], loc: Loc,
        *, pure: bool, free: bool,
    ) -> Any:  # fmt: skip
        """What happens inside of a function that is called is nobody's affair."""
        waits = inspect.iscoroutinefunction(function)
        tape = self.tape
        if name == PAUSE and tape is not None:
            try:
                return function(*args, **named)
            except Paused as pause:
                return tape.paused(pause)
        if isinstance(tape, RowPlayer):
            answer = partial(tape.called, name, args, named, pure=pure, free=free)
            return awaited(answer) if waits else answer()
        call: Call | None = None
        if tape is not None:
            call = tape.called(name, args, named, pure=pure, free=free, idempotent=is_idempotent(name))
            if (known := call.known) is not None:
                answer = partial(given_by, known)
                return awaited(answer) if waits else answer()
        calling = _RunningTool(self, name, args, named, loc, call)
        if waits:
            return _waiting(calling, function)
        with calling, _unobserved():
            calling.value = function(*args, **named)
        return calling.value

    def tools(self, tools: Tools, plan: Plan) -> Tools:
        """The functions that a plan calls, observed; a replay has every one."""
        if self.tape is None and self.timeline is None and self.run.spans is None:
            return tools
        made: dict[str, Callable[..., Any]] = {}
        for step in function_steps(plan):
            function = tools.get(step.function, _gone)
            if step.gives == "object":  # it only reads a text, or makes an object: it is called here always
                made[step.function] = function
            elif step.function in tools or isinstance(self.tape, RowPlayer):
                made[step.function] = partial(self._called_by_plan, step, function)
        return made

    def _called_by_plan(
        self, step: FunctionStep, function: Callable[..., Any], /, *args: Any, **named: Any
    ) -> Any:
        if step.function == run_tools.name:
            around = AROUND.set(partial(self.call, in_turn=True))
            try:
                return function(*args, **named)
            finally:
                AROUND.reset(around)
        free = step.effects and not step.needs_order
        return self._call(step.function, function, args, named, step.loc, pure=not step.effects, free=free)


class _RunningTool:
    """A declared function that is being called: how it ends is recorded."""

    def __init__(
        self, observer: RowObserver, name: str, args: Sequence[Any], named: Mapping[str, Any], loc: Loc,
        call: Call | None,
    ) -> None:  # fmt: skip
        self.value: Any = None
        self.args, self.named = args, named
        self._observer, self._name = observer, name
        self._loc = loc
        self._began_s = time.perf_counter()
        self._tape = observer.tape if isinstance(observer.tape, RowRecorder) else None
        self._call = call
        self._span: Any = None

    def __enter__(self) -> None:
        if self._observer.span is not None:
            self._span = self._observer.span.tool(self._name)
            self._span.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._span is not None:
            self._span.__exit__(kind, error, trace)
        if self._observer.timeline is not None:
            self._observer.timeline.called(self._name, self._loc, self._began_s, error)
        if self._tape is None or self._call is None:
            return
        if error is None:
            self._tape.returned(self._call, self.value)
        elif isinstance(error, Exception):
            self._tape.raised(self._call, error)


async def _waiting(calling: _RunningTool, function: Callable[..., Any]) -> Any:
    with calling, _unobserved():
        calling.value = await function(*calling.args, **calling.named)
    return calling.value


@contextmanager
def _unobserved() -> Iterator[None]:
    around = AROUND.set(None)
    enclosing = RUN_CONTEXT.get()
    outer = None if enclosing is None else RUN_CONTEXT.set(replace(enclosing, observer=None, end_with=nobody))
    try:
        yield
    except Paused as pause:  # of a program that it runs, which nobody observes
        raise paused_in_function(pause) from None
    finally:
        AROUND.reset(around)
        if outer is not None:
            RUN_CONTEXT.reset(outer)


def _gone() -> None:
    raise AssertionError("a replay calls no function")
