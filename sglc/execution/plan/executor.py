"""Runs a whole plan on a back end: every step as soon as what it reads is there.

It is data that drives it: whoever gives a value counts down those that wait for it, and who waits for nothing
more is begun. What is independent overlaps; tools are called in the order of the program. Nothing waits in a
thread or a task but the tools. A step that fails fails those that read what it gives; everything else goes
on, and the first failure in the order of the plan is that of the run. A kept stream is given back when its last
reader has ended, whatever happened.
"""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property, partial
from typing import Any

from sglc.errors import ends_run
from sglc.execution.event_loop import executor_loop
from sglc.execution.outputs import stopped
from sglc.execution.plan.arguments import bound
from sglc.execution.plan.frame import Frame, Placed, Then, Turn
from sglc.execution.plan.functions import Functions
from sglc.execution.plan.meter import Meter
from sglc.execution.plan.prepare import Prepared, check_plan_runs
from sglc.execution.plan.prepared_block import NOBODY, PreparedBlock
from sglc.execution.plan.segments import Segments
from sglc.execution.plan.steps import do
from sglc.execution.plan.values import (
    MISSING,
    PROMPT,
    SO_FAR,
    Exact,
    Failed,
    Kept,
    Made,
    Value,
    as_python,
    held_in,
)
from sglc.execution.session import Session
from sglc.execution.tool_calls import NO_TOOLS, Tools
from sglc.ir.core import Site
from sglc.ir.plan.plan import FunctionStep, HostStep, Plan, SwitchStep, ValueStep

_END = -1  # stands for the end of a block, among the numbers of its steps
_HERE = Placed()
Ended = Callable[[Any, BaseException | None], None]
_NONE: Mapping[int, Callable[[], object]] = {}


def run_plan(
    plan: Plan, arguments: Mapping[str, Any], session: Session, tools: Tools = NO_TOOLS
) -> tuple[dict[str, Any], Any]:
    """Execute a whole plan; gives its variables and its return value, in which a stream is its text.

    Waits for the end; `session.stop()` from another thread, or Ctrl-C, ends it early. A tool that runs then
    is abandoned.

    Args:
        tools: the declared functions by name, pure ones among them. They are called in threads of
            their own with the caller's context; coroutine functions are run there.

    Raises:
        UsageError: SGLC014 missing or unknown arguments, SGLC015 another tokenizer than the plan's,
            SGLC016 a plan that goes on as ordinary Python, SGLC025 a function that is not in `tools`, SGLC046
            a plan for another back end.
        RunError: SGLC407 stopped; SGLC409 a function raised; SGLC460 to SGLC463, SGLC466 (`ir.values`).
        SglcError: the first failure, in program order.
    """
    arguments = bound(plan, arguments)
    check_plan_runs(plan, session.backend, tools)
    context = contextvars.copy_context()
    executor = PlanExecutor(Prepared(plan), session, tools, lambda: context)
    over: Future[Any] = Future()

    def ended(value: Any, error: BaseException | None) -> None:
        if error is None:
            over.set_result(value)
        else:
            over.set_exception(error)

    executor_loop().call_soon_threadsafe(executor.begin, arguments, ended)
    try:
        value = over.result()
        return executor.variables, value
    except KeyboardInterrupt:
        session.stop()
        over.exception()  # ends with the stop
        raise


class PlanExecutor:
    """One run of one plan, in the loop's thread.

    Args:
        context: what declared functions see.
        meter: what its texts and blocks may take; None: whatever they do.
        chosen: is told the number of the block of an arm, when that begins; None: nobody is.
    """

    needs_python = ""  # why something came that only Python can do, or tell of
    handed_over = False  # whether the program itself is to go on as Python
    _going = False
    _over = False
    _failed = False  # whether anything has
    _then: Ended

    def __init__(
        self, prepared: Prepared, session: Session, tools: Tools, context: Callable[[], contextvars.Context],
        meter: Meter | None = None, chosen: Callable[[int], object] | None = None,
    ) -> None:  # fmt: skip
        self.chosen = chosen
        self.program = prepared.plan.program
        self._prepared = prepared
        self._tools = tools
        self._context = context
        self._session = session
        self.meter = meter
        self.segments = Segments(session, traced=prepared.traced, meter=meter)
        self._known: dict[str, Value] = {}  # the variables
        self._frames: dict[Frame, None] = {}  # those that go on, inner ones behind those around
        self.ready: deque[tuple[Frame, int]] = deque()  # steps that wait for nothing, and blocks that are done

    @cached_property
    def functions(self) -> Functions:
        """Those that it calls; most plans call none."""
        return Functions(self.program, self._tools, self._context())

    @property
    def variables(self) -> dict[str, Any]:
        """The variables that there are; None where one of several branches has none."""
        self._store()
        shown = self._shown()
        return {name: shown(item) for name, item in self._known.items() if name not in (PROMPT, SO_FAR)}

    @property
    def sites(self) -> dict[str, tuple[Site, bool]]:
        """The variables that are what one generation made: where, and whether more than the text was read."""
        made = {name: item for name, item in self._known.items() if isinstance(item, Made)}
        return {name: (item.site, isinstance(item.value, Exact)) for name, item in made.items()}

    @property
    def prompt(self) -> tuple[str, Any]:
        """The prompt as far as it came, and what its turns consist of."""
        match self._known.get(PROMPT):
            case (str() as said, turns):
                return said, turns
            case _:
                return "", ()

    def begin(
        self, arguments: Mapping[str, Any], then: Ended, behind: Mapping[int, Callable[[], object]] = _NONE
    ) -> None:
        """Run it; `then` gets its value or its error when everything has ended, and streams are given back.

        Args:
            behind: what to do when the program has come past these steps, which have effects.
        """
        self._then = then
        self._session.when_stopped = self._stopped
        if self._session.stopped:
            self._finish(None, self._session.why_over or stopped())
            return
        prepared = self._prepared
        given: list[Value] = list(map(arguments.__getitem__, prepared.parameters))
        for place in prepared.exact:
            given[place] = Exact(given[place])
        at = Placed(self._session.outputs.call) if self._session.outputs.call else _HERE
        frame = self.enter(prepared.top, given, at, None, self._known, self._done)
        for number, call in behind.items() if behind else ():
            turn = None if frame is None else frame.turns[number]
            if turn is not None:
                turn.then(partial(_if_well, turn, call))
        self.go_on()

    # -- going on ------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Begin what waits for nothing, until everything waits."""
        if self._going:
            return
        self._going = True
        while self.ready and not self._over:
            frame, number = self.ready.popleft()
            if number == _END:
                self._leave(frame)
            else:
                self._begin(frame, number)
        self._going = False

    def enter(
        self, block: PreparedBlock, given: Sequence[Value], at: Placed, outer: Frame | None,
        variables: dict[str, Value], then: Then, before: Turn | None = None, ended: Turn | None = None,
    ) -> Frame | None:  # fmt: skip
        """Run a block once; `then` gets its results, whose streams are held for it, or the first error.

        Returns the run of it; None: it may not begin.
        """
        if self.meter is not None and (error := self.meter.begin()) is not None:
            then((), error)
            return None
        frame = Frame(block, at, outer, variables, then, before, ended, self.meter)
        self._frames[frame] = None
        frame.values[: len(given)] = given  # no step waits for them
        for number in block.opened:
            if type(value := given[number]) is Kept:
                value.hold()
        for number in block.first if block.order is None else self._in_turn(frame):
            self.ready.append((frame, number))
        if not frame.unfinished:
            self.ready.append((frame, _END))
        return frame

    def _in_turn(self, frame: Frame) -> list[int]:
        """The steps of a block that wait for nothing, also not for effects before them."""
        for number in range(frame.unfinished):
            for turn in frame.awaited(number):
                if not turn.done:
                    frame.missing[number] += 1
                    turn.then(partial(self._one_less, frame, number))
        return [number for number, count in enumerate(frame.missing) if not count]

    def give(self, frame: Frame, number: int, value: Any) -> None:
        """Enter what a name is, once."""
        frame.values[number] = value
        if frame.left[number] and type(value) is Kept:
            value.hold()
        for waiting in frame.block.waiting[number]:
            self._one_less(frame, waiting)

    def _one_less(self, frame: Frame, number: int) -> None:
        frame.missing[number] -= 1
        if not frame.missing[number]:
            self.ready.append((frame, number))

    def end(self, frame: Frame, number: int, error: Exception | None) -> None:
        """A step has ended; an error becomes that of what it gives."""
        step = frame.block.steps[number]
        if error is not None:
            self._failed = True
            frame.errors[number] = error
            for name in step.gives:
                if frame.values[name] is MISSING:
                    self.give(frame, name, Failed(error))
        if step.held:
            frame.let_go(step.held)
        if frame.turns and (turn := frame.turns[number]) is not None:
            turn.come(frame.before_step(number), error)
        frame.unfinished -= 1
        if not frame.unfinished:
            self.ready.append((frame, _END))

    def _leave(self, frame: Frame) -> None:
        """A block has ended."""
        del self._frames[frame]
        block, results, error = frame.block, list[Value](), None
        try:
            frame.store()
            if frame.ended is not None:
                order = block.order
                last = order.last if order is not None else NOBODY
                before = frame.before if last == NOBODY else frame.turns[last]
                frame.ended.come(before, None)
            if frame.errors:
                error = frame.errors[min(frame.errors)]
            else:
                results = [read(frame) for read in block.results]
                if block.streams:
                    for kept in held_in(results):
                        kept.hold()
                frame.let_go(block.ends)
        except Exception as problem:  # a bug of ours: nobody may be left waiting for it
            error = problem
        frame.then(results, error)

    def _begin(self, frame: Frame, number: int) -> None:
        """Do what a step says."""
        if self._failed and (problem := self._failed_before(frame, number)) is not None:
            frame.missing[number] += 1  # it never begins
            self.end(frame, number, problem)
            return
        try:
            segment = frame.block.steps[number].segment
            if segment is not None:
                self.segments.submit(self, frame, number, segment)
            else:
                do(self, frame, number)
        except Exception as error:
            self.fail(frame, number, error)

    def _failed_before(self, frame: Frame, number: int) -> Exception | None:
        """Why a step cannot begin; None: it can."""
        order = frame.block.order
        if order is not None and order.gates[number] != NOBODY:
            turn = frame.turns[order.gates[number]]
            if turn is not None and turn.error is not None:
                return turn.error
        for read in frame.block.steps[number].whole:
            value = read(frame)
            if isinstance(value, Failed):
                return value.error
        return None

    def fail(self, frame: Frame, number: int, error: Exception) -> None:
        """A step that began has failed."""
        if ends_run(error):
            self._session.end_with(error)
        step = frame.block.steps[number].step
        if isinstance(step, FunctionStep | ValueStep | SwitchStep | HostStep):
            loc = getattr(error, "loc", None)
            said = str(getattr(error, "message", error)) + (f" ({loc})" if loc is not None else "")
            self.needs_python = self.needs_python or said
        self.end(frame, number, error)

    # -- the end -------------------------------------------------------------------------------------

    def _done(self, results: Sequence[Value], error: Exception | None) -> None:
        """The plan's own block has ended."""
        value = None
        if error is None:
            try:
                value = self._shown()(results[0])
            except Exception as problem:
                error = problem
        self._finish(value, error)

    def _finish(self, value: Any, error: BaseException | None) -> None:
        self._over = True
        self.ready.clear()
        self._session.when_stopped = None
        back = partial(self._then, value, error)
        del self._then  # it holds this one
        self._session.when_idle(partial(self.segments.give_back, back))

    def _shown(self) -> Callable[[Value], Any]:
        """What makes a value for the user of one of a plan."""
        return partial(as_python, stream=self.segments.text) if self.meter is None else self._counted

    def _counted(self, value: Value) -> Any:
        """A value for the user, of a run that is metered.

        Raises:
            RunError: SGLC414, it is too large.
        """
        meter, text = self.meter, self.segments.text
        assert meter is not None
        meter.take(value.value if isinstance(value, Made) else value)

        def counted(kept: Kept) -> str:
            said = text(kept)
            meter.take(said)
            return said

        return as_python(value, counted)

    def _stopped(self) -> None:
        """The run was stopped; called in any thread."""
        executor_loop().call_soon_threadsafe(self._abort)

    def _abort(self) -> None:
        if self._over:
            return
        self._store()
        self._frames.clear()
        if "functions" in vars(self):
            self.functions.abandon()
        self._finish(None, self._session.why_over or stopped())

    def _store(self) -> None:
        """Have the variables of blocks that go on, as far as they are there."""
        for frame in reversed(tuple(self._frames)):
            frame.store()


def _if_well(turn: Turn, call: Callable[[], object]) -> None:
    """Make a call when a turn has come, unless the program ends in it."""
    if turn.error is None:
        call()
