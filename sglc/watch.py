"""What accompanies a run without being a part of it: a recording that is made or replayed, and traces.

A run that nobody watches has none of this. The executor, the row and the plan's run tell a `RowWatch` what
happens; declared functions are called through it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sglc.current import ENCLOSING
from sglc.errors import Loc, UsageError
from sglc.feed import Cell, Feed
from sglc.frontend.tools import AROUND
from sglc.ir.core import Program
from sglc.ir.plan import FunctionStep, Plan
from sglc.ir.target import Backend
from sglc.record import RecordedTape, Recorder
from sglc.replay import ReplayedTape, Replayer
from sglc.result import Result

Tools = Mapping[str, Callable[..., Any]]


@dataclass(slots=True)
class Watch:
    """What watches all rows of one call of `run` or `run_batch`. `outer`: that call stands in another row."""

    tape: Recorder | Replayer | None
    single: bool
    outer: RowWatch | None = None
    path: str = ""  # of the call in the row `outer`

    def backend(self, backend: Backend) -> Backend:
        """The back end to run on."""
        return backend if self.tape is None else self.tape.backend(backend)

    def row(self, number: int, arguments: Mapping[str, Any]) -> RowWatch:
        """What watches one row."""
        if self.tape is None:
            return RowWatch(self, None)
        if self.outer is None:
            return RowWatch(self, self.tape.row(number, "", arguments))
        assert self.outer.tape is not None
        path = self.path if self.single else f"{self.path}[{number}]"
        return RowWatch(self, self.tape.row(self.outer.tape.number, path, arguments))

    def over(self, results: Iterator[Result]) -> Iterator[Result]:
        """The results of a batch, watched to their end."""
        try:
            yield from results
        finally:
            self.close()

    def close(self) -> None:
        """All rows have ended, or will not begin."""
        if self.tape is not None and self.outer is None:
            self.tape.close()


def open_watch(
    name: str, draw: Callable[[], int], seed: int | None, rows: int | None, outer: RowWatch | None,
    asked: Mapping[str, Any],
) -> tuple[Watch, int]:  # fmt: skip
    """What watches a call of `run` or `run_batch`, and the seed of that call.

    Args:
        draw: gives a seed where neither the call nor a recording has one.
        rows: of a batch.
        outer: what watches the row that the call stands in.
        asked: `record` or `replay`, a folder.

    Raises:
        UsageError: SGLC050, SGLC051 as of `Recorder`; SGLC052, SGLC053, SGLC055 as of `Replayer`; SGLC056.
    """
    single = rows is None
    record, replay = asked.get("record"), asked.get("replay")
    if record is not None and replay is not None:
        raise UsageError("SGLC056", "a run is recorded or replayed, not both")
    if replay is not None:
        replayer = Replayer(replay, name, seed)
        return Watch(replayer, single), replayer.seed
    seed = draw() if seed is None else seed
    if record is not None:
        return Watch(Recorder(record, name, seed, rows), single), seed
    if outer is not None:
        return Watch(outer.watch.tape, single, outer, outer.call_path(name)), seed
    return Watch(None, single), seed


@dataclass(slots=True)
class RowWatch:
    """What watches one row, or a program that it calls."""

    watch: Watch
    tape: RecordedTape | ReplayedTape | None
    _called: dict[str, int] = field(default_factory=dict)  # how often each program was

    def call_path(self, name: str) -> str:
        """Where the next call of the program `name` stands."""
        count = self._called.get(name, 0)
        self._called[name] = count + 1
        within = "" if self.tape is None else self.tape.within
        return f"{within}/{name}#{count}" if within else f"{name}#{count}"

    def begin(self, backend: Backend) -> Backend:
        """The row begins on `backend`; gives the one to use.

        Raises:
            SglcError: the back end cannot be used.
        """
        return backend if self.tape is None else self.tape.begin(backend)

    def other(self, backend: Backend, program: Program, loc: Loc) -> Backend:
        """Another back end, which a call of the row names."""
        return backend if self.tape is None else self.tape.other(backend, program, loc)

    def done(self, cell: Cell) -> None:
        """A generation has ended well."""
        if self.tape is not None:
            self.tape.done(cell)

    def end(
        self, feed: Feed, error: BaseException | None, total_s: float
    ) -> tuple[BaseException | None, float]:
        """The row has ended; gives its error, and how long it took."""
        if self.tape is not None:
            error, total_s = self.tape.end(feed, error, total_s)
        if self.watch.single:
            self.watch.close()
        return error, total_s

    # -- declared functions ----------------------------------------------------------------------

    def call(
        self, name: str, function: Callable[..., Any], pure: bool, args: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        """Call a declared function, or do as it did. What happens inside of it is nobody's affair."""
        waits = inspect.iscoroutinefunction(function)
        tape = self.tape
        if isinstance(tape, ReplayedTape):
            if waits:
                return _later(lambda: tape.called(name, args, named, pure=pure))
            return tape.called(name, args, named, pure=pure)
        going = _Going(tape, name, args, named)
        if waits:
            return _waiting(going, function)
        with _unwatched(), going:
            going.value = function(*args, **named)
        return going.value

    def tools(self, tools: Tools, plan: Plan) -> Tools:
        """The functions that a plan calls, watched; a replay has every one."""
        if self.tape is None:
            return tools
        made: dict[str, Callable[..., Any]] = {}
        for step in (*plan.steps, *(step for block in plan.blocks for step in block.steps)):
            if isinstance(step, FunctionStep) and (
                step.function in tools or isinstance(self.tape, ReplayedTape)
            ):
                function = tools.get(step.function, _gone)
                made[step.function] = partial(self._called_by_plan, step.function, function, not step.effects)
        return made

    def _called_by_plan(
        self, name: str, function: Callable[..., Any], pure: bool, /, *args: Any, **named: Any
    ) -> Any:
        return self.call(name, function, pure, args, named)


class _Going:
    """A declared function that is being called: how it ends is recorded."""

    def __init__(
        self, tape: RecordedTape | None, name: str, args: Sequence[Any], named: Mapping[str, Any]
    ) -> None:
        self.value: Any = None
        self.args, self.named = args, named
        self._tape = tape
        self._call = {} if tape is None else tape.called(name, args, named)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
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
