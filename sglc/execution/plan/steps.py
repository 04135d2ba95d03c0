"""What each kind of step does when all that it reads is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, assert_never

from sglc.errors import RunError
from sglc.execution.plan.frame import Frame, Placed, Then, Turn
from sglc.execution.plan.functions import Functions
from sglc.execution.plan.meter import Meter
from sglc.execution.plan.prepared_block import PreparedBlock, PreparedStep
from sglc.execution.plan.raised import builtin_error
from sglc.execution.plan.segments import Going, Segments
from sglc.execution.plan.values import Exact, Kept, Value, as_python, held_in, plain, text
from sglc.frontend.tracing.makers import NoValue
from sglc.ir.plan.plan import (
    CallStep,
    CondStep,
    FunctionStep,
    HostStep,
    LoopStep,
    MapStep,
    SwitchStep,
    ValueStep,
    blocks_of,
)
from sglc.ir.plan.segment import Segment, Slot
from sglc.ir.pure import STORED
from sglc.ir.remark import place
from sglc.ir.values import case_of, evaluate, item_texts


class Running(Going, Protocol):
    """The executor, as steps see it."""

    segments: Segments
    program: str
    handed_over: bool
    meter: Meter | None
    chosen: Callable[[int], object] | None  # is told the number of the block of an arm, when that begins

    @property
    def functions(self) -> Functions: ...

    def enter(
        self, block: PreparedBlock, given: Sequence[Value], at: Placed, outer: Frame | None,
        variables: dict[str, Value], then: Then, before: Turn | None = None, ended: Turn | None = None,
    ) -> object:  # fmt: skip
        """Run a block once; `then` gets its results, whose streams are held for it, or the first error."""

    def fail(self, frame: Frame, number: int, error: Exception) -> None:
        """A step that began has failed."""


def do(run: Running, frame: Frame, number: int) -> None:
    """Do what a step says that is no segment; it ends now, or later."""
    prepared = frame.block.steps[number]
    match prepared.step:
        case Segment():
            raise AssertionError("a segment is submitted")
        case ValueStep() as step:
            operands = [plain(value) for value in _given(run, frame, prepared)]
            _made(run, frame, number, evaluate(step.operation, operands, step.loc))
        case CondStep():
            _choose(run, frame, number, prepared, 0 if prepared.reads[0](frame) else 1)
        case SwitchStep() as step:
            default = len(step.arms) > len(step.cases)
            found = case_of(text(prepared.reads[0](frame)), step.cases, default, step.loc)
            _choose(run, frame, number, prepared, found)
        case FunctionStep() as step:
            _function(run, frame, number, prepared, step)
        case LoopStep() as step:
            _Loop(run, frame, number, prepared, step)
        case MapStep() as step:
            _map(run, frame, number, prepared, step)
        case CallStep(site):
            at = Placed(str(site.inside(frame.at.call, frame.at.iterations)))
            args = [read(frame) for read in prepared.reads]
            then = partial(_returned, run, frame, number)
            run.enter(frame.block.inner(prepared, 0), args, at, None, {}, then, frame.before_step(number))
        case HostStep(reason, loc, _, ""):
            run.handed_over = True
            raise RunError("SGLC401", f"it goes on as Python: {reason}", place(loc))
        case HostStep(reason, loc, _, error):
            said = text(prepared.reads[0](frame)) if prepared.reads else reason
            made = builtin_error(error, said, whole=not prepared.reads)
            said = said if made is None else str(made)
            message = f"`{error}` in `{run.program}`: {said or 'no message'}"
            raise RunError("SGLC401", message, place(loc)) from made
        case step:
            assert_never(step)


def _given(run: Running, frame: Frame, prepared: PreparedStep) -> list[Value]:
    """The operands of a step that goes through all that they hold."""
    given = [read(frame) for read in prepared.reads]
    if run.meter is not None:
        run.meter.take(given)
    return given


def _made(run: Running, frame: Frame, number: int, value: Value) -> None:
    """A step has made its only value."""
    run.give(frame, frame.block.steps[number].gives[0], value)
    run.end(frame, number, None)


def _function(run: Running, frame: Frame, number: int, prepared: PreparedStep, step: FunctionStep) -> None:
    given = _given(run, frame, prepared)
    # What reads a variable's typed value reads those of all samples.
    args = [as_python(item if step.function.endswith(STORED) else plain(item)) for item in given]
    named = {key: as_python(plain(read(frame))) for key, read in prepared.named.items()}
    if step.in_order and (before := frame.before_step(number)) is not None and before.error is not None:
        raise before.error
    if run.functions.at_once(step):
        made = run.functions.made(step, args, named)
        if isinstance(made, Exact) and isinstance(made.item, NoValue):
            site = frame.block.sites.get(Slot(step.name))
            placed_site = site and site.inside(frame.at.call, frame.at.iterations)
            made = Exact(NoValue(made.item.problem, placed_site))
        _made(run, frame, number, made)
        return

    def told(value: Value, error: Exception | None) -> None:
        if error is None:
            _made(run, frame, number, value)
        else:
            run.fail(frame, number, error)
        run.go_on()

    run.functions.call(step, args, named, told)


def _choose(run: Running, frame: Frame, number: int, prepared: PreparedStep, place: int) -> None:
    """Run one of the blocks that a step holds."""
    block = frame.block.inner(prepared, place)
    if block.nothing:
        _give(run, frame, prepared, [read(frame) for read in block.results], held=False)
        run.end(frame, number, None)
        return
    if run.chosen is not None:
        run.chosen(blocks_of(prepared.step)[place])
    variables: dict[str, Value] = {}
    frame.within[number] = [variables]
    then = partial(_returned, run, frame, number)
    run.enter(block, (), frame.at, frame, variables, then, frame.before_step(number))


def _returned(
    run: Running, frame: Frame, number: int, results: Sequence[Value], error: Exception | None
) -> None:
    """The block of a step has ended, whose results are those of the step."""
    if error is not None:
        run.fail(frame, number, error)
        return
    _give(run, frame, frame.block.steps[number], results)
    run.end(frame, number, None)


def _give(
    run: Running, frame: Frame, prepared: PreparedStep, values: Sequence[Value], *, held: bool = True
) -> None:
    """Enter the results of a block, and let go of its streams if they are held."""
    for name, value in zip(prepared.gives, values, strict=True):
        run.give(frame, name, value)
    if held and prepared.streams:
        for kept in held_in(values):
            kept.drop()


class _Loop:
    """Iterations one after another; all effects of one are over when it ends."""

    def __init__(self, run: Running, frame: Frame, number: int, prepared: PreparedStep, step: LoopStep) -> None:
        self._run = run
        self._frame = frame
        self._number = number
        self._prepared = prepared
        self._most = step.max_iters
        self._iteration = 0
        self._variables: dict[str, Value] = {}
        self._carried: Sequence[Value] = [read(frame) for read in prepared.reads]
        for kept in self._streams():
            kept.hold()
        frame.within[number] = [self._variables]
        self._go_on()

    def _go_on(self) -> None:
        frame = self._frame
        if self._iteration == self._most:
            _returned(self._run, frame, self._number, self._carried, None)
            return
        inside = Placed(frame.at.call, (*frame.at.iterations, self._iteration))
        body, before = frame.block.inner(self._prepared, 0), frame.before_step(self._number)
        self._run.enter(body, self._carried, inside, frame, self._variables, self._ended, before)

    def _ended(self, results: Sequence[Value], error: Exception | None) -> None:
        if error is not None:
            self._run.fail(self._frame, self._number, error)
            return
        again, *made = results
        for kept in self._streams():
            kept.drop()
        self._carried = made
        self._iteration = self._iteration + 1 if again else self._most
        self._go_on()

    def _streams(self) -> Sequence[Kept]:
        return tuple(held_in(self._carried)) if self._prepared.streams else ()


def _map(run: Running, frame: Frame, number: int, prepared: PreparedStep, step: MapStep) -> None:
    """All items at once; only their effects wait for those of the items before."""
    (whole,) = _given(run, frame, prepared)
    items: Sequence[Value]
    if isinstance(whole, Exact):
        items = [Exact(item) for item in whole.item]
    else:
        items = item_texts(plain(whole), step.loc)
    rows: list[Sequence[Value]] = [()] * len(items)
    errors: dict[int, Exception] = {}
    unfinished = len(items)

    def over() -> None:
        if errors:
            run.fail(frame, number, errors[min(errors)])
            return
        columns = [tuple([row[place] for row in rows]) for place in range(len(prepared.gives))]
        _give(run, frame, prepared, columns)
        run.end(frame, number, None)

    def ended(index: int, results: Sequence[Value], error: Exception | None) -> None:
        nonlocal unfinished
        if error is None:
            rows[index] = results
        else:
            errors[index] = error
        unfinished -= 1
        if not unfinished:
            over()

    body, before = frame.block.inner(prepared, 0), frame.before_step(number)
    variables = frame.within[number] = [dict[str, Value]() for _ in items]
    for index, item in enumerate(items):
        turn = Turn() if body.order is not None and any(body.order.has) else None
        inside = Placed(frame.at.call, (*frame.at.iterations, index))
        run.enter(body, (item,), inside, frame, variables[index], partial(ended, index), before, turn)
        before = turn or before
    if not items:
        over()
