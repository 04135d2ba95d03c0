"""One row of a plan: its run in the executor's loop, and the result that it fills.

It ends in the loop's thread, once: with the plan's end, or at its deadline whatever the back end and tools
do then. Nothing of it waits in a thread but the tools that it calls.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglc.errors import Loc, RunError, SglcError
from sglc.execution.bind import Own, Template, asked_in
from sglc.execution.budget import Budget
from sglc.execution.context import ENCLOSING, Enclosing
from sglc.execution.deadline import Alarm, Clock, Deadline
from sglc.execution.event_loop import start
from sglc.execution.outputs import values
from sglc.execution.plan.executor import PlanRun
from sglc.execution.plan.prepare import Prepared, Tools
from sglc.execution.plan.segments import value_of
from sglc.execution.plan.values import Value, as_python, read
from sglc.execution.result import Outcome, Result
from sglc.execution.session import Run
from sglc.frontend.program.instance import Gathered, Variable
from sglc.frontend.values.recorded import Generated
from sglc.frontend.values.symbolic import MAY_CALL
from sglc.ir import core
from sglc.ir.core import Site
from sglc.ir.plan.backend import Backend
from sglc.ir.plan.plan import Named, OutputTree, Plan
from sglc.ir.plan.segment import GenNode, KeepNode, Segment, SelectNode, Slot
from sglc.ir.plan.uses import Name

if TYPE_CHECKING:
    from sglc.observe.observer import RowWatch


@dataclass(frozen=True, slots=True)
class Single:
    """A plan that is one segment: what it gives, and the variables that are put together of it at the end."""

    template: Template
    gives: tuple[tuple[Slot, Site], ...]
    late: tuple[Named, ...]


class PreparedRows(Prepared):
    """A plan, and what its rows share.

    `early` are the variables that one generation makes, or a list of them: they are there before the end.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        nodes = [node for step in plan.steps if isinstance(step, Segment) for node in step.nodes]
        self.loc = next((node.loc for node in nodes if isinstance(node, GenNode | SelectNode)), None)
        self.early = _early(plan)
        self.single = _single(plan, self.early)


def _single(plan: Plan, early: Mapping[str, Variable]) -> Single | None:
    match plan.steps:
        case (Segment(nodes, gives) as segment,) if not any(isinstance(node, KeepNode) for node in nodes):
            asked = asked_in(segment)
            named = [item for item in plan.variables if isinstance(item, Named)]
            return Single(
                Template(segment),
                tuple([(Slot(name), asked[index].site) for name, index in gives]),
                tuple([item for item in named if item.name not in early]),
            )
        case _:
            return None


def _early(plan: Plan) -> dict[str, Variable]:
    made: dict[str, Generated] = {}  # by the name that it has in the plan
    for step in plan.steps:
        if isinstance(step, Segment):
            for name, index in step.gives:
                node = step.nodes[index]
                assert isinstance(node, GenNode | SelectNode)
                many = isinstance(node, GenNode) and node.sampling.n > 1
                made[name] = Generated(node.site, 0, core.Value(index, core.Type.TEXT), many=many)
    found: dict[str, Variable] = {}
    for variable in plan.variables:
        match variable:
            case Named(name, Slot(slot)) if slot in made:
                found[name] = made[slot]
            case Named(name, tuple(parts)) if all(_is_made(part, made) for part in parts):
                entries = tuple([made[part.name] if isinstance(part, Slot) else None for part in parts])
                found[name] = Gathered(entries, None, 0)
            case Named(name):
                found.pop(name, None)
            case _:  # what blocks store may have any name
                return {}
    return found


def _is_made(part: OutputTree, made: Mapping[str, Generated]) -> bool:
    return part is None or (isinstance(part, Slot) and part.name in made)


class PlanRow:
    """A row to run. Its tools see the variables of `context`."""

    def __init__(
        self,
        prepared: PreparedRows,
        arguments: Mapping[str, str],
        backend: Backend,
        result: Result,
        tools: Tools,
        context: contextvars.Context,
        on_text: Callable[[Site, str | None], None] | None = None,
        budget: Budget | None = None,
        clock: Clock | None = None,
        watch: RowWatch | None = None,
    ) -> None:
        self.result = result
        self.ended: Callable[[], None] | None = None  # called when the result is there
        self.abandoned: Callable[[], None] | None = None  # never called: no thread of a batch waits for a plan
        self.lost = False
        self._prepared = prepared
        self._arguments = arguments
        self._run = Run(backend, result.seed, result.row, on_text, result.feed, budget=budget, watch=watch)
        self._watch = watch
        self._context = context
        if watch is not None:
            tools = watch.tools(tools, prepared.plan)
        self._clock = clock
        self._alarm: Alarm | None = None
        self._over = False
        self._outer = context.get(ENCLOSING)
        self._enclosing: Enclosing | None = None
        if tools:
            run = self._run  # and not the row, which would hold itself
            self._enclosing = Enclosing(backend, result.seed, result.row, lambda: run.why_over)
            context.run(self._enter, self._enclosing)
        self._going = None if prepared.single else PlanRun(prepared, self._run, tools, context)
        dict.update(result.feed.variables, prepared.early)
        result.begin(self.stop)
        if self._outer is not None:
            self._outer.begin(self)

    def _enter(self, enclosing: Enclosing) -> None:
        ENCLOSING.set(enclosing)
        MAY_CALL.set(enclosing.may_call)

    def run(self) -> None:
        """Begin it; returns at once. Called in the loop's thread."""
        self._run.begin()
        deadline = None if self._clock is None else self._clock.deadline()
        if deadline is not None:
            if deadline.passed:
                self.stop(error := deadline.not_begun(self._prepared.loc))
                self._finish({}, None, error)
                return
            self._alarm = Alarm(deadline.at_s, lambda: self._late(deadline))
        if self._watch is not None:
            try:
                self._run.backend = self._context.run(self._watch.begin, self._run.backend, self._run.began_s)
            except SglcError as error:
                self._finish({}, None, error)
                return
        if self._going is not None:
            start(self._walk)
        elif self._prepared.single is not None:
            self._submit(self._prepared.single)

    def stop(self, reason: RunError | None = None) -> None:
        """Stop what runs, and the runs of programs that tools called; let nothing begin any more."""
        self._run.stop(reason)
        if self._enclosing is not None:
            self._enclosing.stop_inner(reason)

    # -- a plan that is one segment --------------------------------------------------------------

    def _submit(self, single: Single) -> None:
        error: Exception | None = None
        try:
            self._run.submit(single.template.bind(Own(self._arguments, {}, {}, self._run.seeds)))
        except Exception as problem:
            error = problem
        self._run.when_idle(lambda: self._end(single, error))

    def _end(self, single: Single, error: BaseException | None) -> None:
        """All generations have ended."""
        error = error or self._run.failure
        variables: dict[str, Any] = {}
        value = None
        try:
            if error is None:
                cells = self.result.feed.cells
                known: dict[Name, Value] = {Slot(name): text for name, text in self._arguments.items()}
                known.update({slot: value_of(cells[site]) for slot, site in single.gives})
                variables = {late.name: as_python(read(late.value, known)) for late in single.late}
                value = as_python(read(self._prepared.plan.returns, known))
        except Exception as problem:  # a bug of ours: nobody may be left waiting for it
            error = problem
        self._finish(variables, value, error)
        self._run.forget()

    # -- any other plan --------------------------------------------------------------------------

    async def _walk(self) -> None:
        assert self._going is not None
        value, error = None, None
        variables: dict[str, Any] = {}
        try:
            try:
                _, value = await self._going.execute(self._arguments)
            finally:
                variables = self._going.variables
        except Exception as problem:
            error = problem
        self._finish(variables, value, error)
        self._run.forget()

    # -- the end ---------------------------------------------------------------------------------

    def _late(self, deadline: Deadline) -> None:
        """The deadline has come."""
        if self._over:
            return
        error = deadline.late(*self._where())
        self.stop(error)
        self._finish({} if self._going is None else self._going.variables, None, error)

    def _where(self) -> tuple[Loc | None, str]:
        """What an unfinished run waits for: a function, or else a generation."""
        calling = {} if self._going is None else self._going.calling
        for step in calling.values():
            return step.loc, f"for `{step.function}`"
        waiting = next((cell for cell in self.result.feed.cells.values() if not cell.ready), None)
        if waiting is None:
            return self._prepared.loc, "for the back end"
        return waiting.node.loc, f"for `{waiting.site.name}`"

    def _finish(self, variables: Mapping[str, Any], value: Any, error: BaseException | None) -> None:
        if self._over:
            return
        self._over = True
        if self._alarm is not None:
            self._alarm.off()
        if self._outer is not None:
            self._outer.end(self)
        feed, total_s = self.result.feed, self._run.elapsed_s
        if self._watch is not None:
            try:
                error, total_s = self._watch.end(feed, error, total_s)
            except Exception as problem:  # what it writes to may be gone
                error = error or problem
        feed.error = error
        early, errors = values(feed, feed.variables)
        for name, late in variables.items():
            if name not in self._prepared.early:
                dict.__setitem__(feed.variables, name, late)
        outcome = Outcome(value, error, {**early, **variables}, errors, "", [], total_s)
        self.result.finish(outcome)
        if self.ended is not None:
            self.ended()
