"""A run of a plan: in the executor's loop, and the result that it fills.

It ends in the loop's thread, once: with the plan's end, or at its deadline whatever the back end and tools
do then. Nothing of it waits in a thread but the tools that it calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglc.errors import Loc, RunError, SglcError
from sglc.execution.bind import Own, Template, asked_in
from sglc.execution.deadline import Deadline
from sglc.execution.event_loop import executor_loop, start
from sglc.execution.lifecycle import Part, Run
from sglc.execution.outputs import values
from sglc.execution.plan.arguments import as_values
from sglc.execution.plan.executor import PlanExecutor
from sglc.execution.plan.prepare import Prepared
from sglc.execution.plan.raised import as_raised
from sglc.execution.plan.segments import value_of
from sglc.execution.plan.values import Value, as_python, plain, read, turn_parts
from sglc.execution.readers import TextReader
from sglc.execution.result import RunOutcome
from sglc.execution.served import Served
from sglc.execution.tool_calls import Tools
from sglc.frontend.outputs.output_form import OutputParser
from sglc.frontend.program.history import conversation
from sglc.frontend.program.instance import Gathered, Variable
from sglc.frontend.tracing.makers import Unread
from sglc.frontend.values.recorded import Generated
from sglc.ir import core
from sglc.ir.core import Site
from sglc.ir.plan.plan import Joined, Named, OutputTree, Plan, PromptEnd, Within, blocks_of
from sglc.ir.plan.segment import GenNode, KeepNode, Segment, SelectNode, Slot
from sglc.ir.plan.uses import Name


@dataclass(frozen=True, slots=True)
class Single:
    """A plan that is one segment: what it gives, and the variables that are put together of it at the end."""

    template: Template
    gives: tuple[tuple[Slot, Site], ...]
    late: tuple[Named, ...]


class PreparedRows(Prepared):
    """A plan, and what its rows share.

    `early` are the variables that one generation makes, or a list of them: they are there before the end.
    `shown` is how the prompt begins, as far as that is arguments, literals and generations.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        nodes = [node for step in plan.steps if isinstance(step, Segment) for node in step.nodes]
        self.loc = next((node.loc for node in nodes if isinstance(node, GenNode | SelectNode)), None)
        self.early = _early(plan)
        self.single = _single(plan, self.early)
        self.order = tuple([item.name for item in plan.variables if isinstance(item, Named)])
        self.end = next((item for item in reversed(plan.variables) if isinstance(item, PromptEnd)), None)
        self.shown = _shown(self.end, plan, self.facts(-1).hands_over)


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
            case Named(name, Slot(slot)) if slot in made and made[slot].site.name == name:
                found[name] = made[slot]
            case Named(name, tuple(parts)) if all(_is_made(part, made) for part in parts):
                entries = tuple([made[part.name] if isinstance(part, Slot) else None for part in parts])
                found[name] = Gathered(entries, None, 0)
            case Named(name):
                found.pop(name, None)
            case PromptEnd():
                continue
            case Within(number):
                for name in _stored_in(plan, blocks_of(plan.steps[number])):
                    found.pop(name, None)
    return found


def _stored_in(plan: Plan, numbers: Sequence[int]) -> Iterator[str]:
    """The names of the variables that blocks store."""
    for number in numbers:
        block = plan.blocks[number]
        for variable in block.variables:
            if isinstance(variable, Named):
                yield variable.name
            elif isinstance(variable, Within):
                yield from _stored_in(plan, blocks_of(block.steps[variable.step]))


def _shown(end: PromptEnd | None, plan: Plan, hands_over: Sequence[bool]) -> tuple[str | Slot | Site, ...]:
    """How the prompt begins: what no step may follow which goes on as Python, and says something else."""
    if end is None:
        return ()
    made: dict[str, str | Slot | Site] = {param.name: Slot(param.name) for param in plan.params}
    sure = hands_over.index(True) if True in hands_over else len(plan.steps)
    for step in plan.steps[:sure]:
        if isinstance(step, Segment):
            nodes = asked_in(step)
            made.update((name, nodes[index].site) for name, index in step.gives)
    shown: list[str | Slot | Site] = []
    for part in end.text.parts if isinstance(end.text, Joined) else (end.text,):
        if isinstance(part, Slot) and part.name not in made:
            break
        assert isinstance(part, str | Slot)
        shown.append(made[part.name] if isinstance(part, Slot) else part)
    while sure < len(plan.steps) and shown and not isinstance(shown[-1], Site):
        shown.pop()  # it may stand behind that step
    return tuple(shown)


def _is_made(part: OutputTree, made: Mapping[str, Generated]) -> bool:
    return part is None or (isinstance(part, Slot) and part.name in made)


def _known_value(late: Any) -> OutputParser:
    """A typed value that was read already, as what reads it from its text."""

    def value(text: str) -> Any:
        if isinstance(late, Unread):
            raise late.problem
        return late

    return OutputParser("", value, core.NOWHERE)


@dataclass(frozen=True, slots=True)
class GoOn:
    """How a program goes on as Python from its top, with what its plan has had.

    `unlike_before` says whether it would find something else there.
    """

    part: Callable[[Run, Served], Part]
    unlike_before: Callable[[], bool]


class PlanPart(Part):
    """A plan with its arguments. Its tools see the variables of the run's context.

    No thread of a batch waits for it, so none is lost.

    Args:
        go_on: what goes on as Python where the plan cannot say all; None: the run fails there.
    """

    needs_thread = False

    def __init__(self, run: Run, prepared: PreparedRows, tools: Tools, go_on: GoOn | None = None) -> None:
        self.loc = prepared.loc
        self._run = run
        self._session = run.session
        self._prepared = prepared
        self._go_on = go_on
        self._over = False
        self._served = Served()
        if run.observer is not None:
            tools = run.observer.tools(tools, prepared.plan)
        single = prepared.single if not run.result.outputs.call else None
        self._executor = (
            None
            if single is not None
            else PlanExecutor(prepared, run.session, tools, run.context, self._served)
        )
        dict.update(run.result.outputs.variables, prepared.early)

    def start(self) -> None:
        """Returns at once."""
        executor_loop().call_soon_threadsafe(self.begin)

    def begin(self) -> None:
        """Called in the loop's thread."""
        if not self._run.begin():
            return
        observer = self._run.observer
        if observer is not None:
            try:
                begin = observer.begin
                self._session.backend = self._run.context.run(
                    begin, self._session.backend, self._session.began_s
                )
            except SglcError as error:
                self._finish({}, None, error)
                return
        if self._executor is not None:
            start(self._walk)
        elif self._prepared.single is not None:
            self._submit(self._prepared.single)

    # -- a plan that is one segment --------------------------------------------------------------

    def _submit(self, single: Single) -> None:
        error: Exception | None = None
        try:
            self._session.submit(single.template.bind(Own(self._run.arguments, {}, {}, self._session.seeds)))
            self._show()
        except Exception as problem:
            error = problem
        self._session.when_idle(lambda: self._all_ended(single, error))

    def _all_ended(self, single: Single, error: BaseException | None) -> None:
        """All generations have ended."""
        error = error or self._session.failure
        variables: dict[str, Any] = {}
        value, turns = None, list[dict[str, Any]]()
        try:
            if error is None:
                generations = self._run.result.outputs.generations
                given = as_values(self._prepared.plan, self._run.arguments)
                known: dict[Name, Value] = {Slot(name): value for name, value in given.items()}
                known.update({slot: value_of(generations[site]) for slot, site in single.gives})
                variables = {late.name: as_python(read(late.value, known)) for late in single.late}
                value = as_python(read(self._prepared.plan.returns, known))
                if self._prepared.end is not None:
                    turns = conversation(turn_parts(plain(read(self._prepared.end.turns, known))))
        except Exception as problem:  # a bug of ours: nobody may be left waiting for it
            error = problem
        self._finish(variables, value, error, turns)
        self._session.forget()

    # -- any other plan --------------------------------------------------------------------------

    async def _walk(self) -> None:
        assert self._executor is not None
        value: Any = None
        error: BaseException | None = None
        variables: dict[str, Any] = {}
        turns: list[dict[str, Any]] = []
        self._show()
        try:
            try:
                _, value = await self._executor.execute(self._run.arguments)
                self._show_rest(self._executor.prompt[0])
                turns = conversation(turn_parts(self._executor.prompt[1]))
            finally:
                variables = self._executor.variables
        except Exception as problem:
            if self._goes_on():
                return
            error = problem if self._go_on is None else as_raised(problem)
        self._finish(variables, value, error, turns)
        self._session.forget()

    def _goes_on(self) -> bool:
        """Whether the program goes on as Python, from its top, with what the plan has had; it does then."""
        assert self._executor is not None
        if self._go_on is None or not self._executor.needs_python or self._over or self._session.stopped:
            return False
        again = self._executor.handed_over or not self._served.tools or not self._go_on.unlike_before()
        if not again or self._executor.printed:
            return False
        self._over = True
        self._run.result.why_python = self._executor.needs_python
        self._session.begin_again(self._served)
        self._run.inside.served = self._served
        part = self._run.part = self._go_on.part(self._run, self._served)
        threading.Thread(target=part.start, name="sglc-goes-on", daemon=True).start()
        return True

    # -- its prompt ------------------------------------------------------------------------------

    def _show(self) -> None:
        """Readers of the whole text see what is known of it, and where generations will stand."""
        outputs = self._run.result.outputs
        with outputs.change:
            for part in self._prepared.shown:
                if isinstance(part, Site):
                    outputs.text.append(outputs.at(part))
                else:
                    outputs.text.append(self._run.arguments[part.name] if isinstance(part, Slot) else part)

    def _show_rest(self, whole: str) -> None:
        """All generations have ended: readers see what else there is."""
        outputs = self._run.result.outputs
        with outputs.change:
            outputs.text.append(whole.removeprefix("".join(TextReader(outputs).come())))

    # -- the end ---------------------------------------------------------------------------------

    def late(self, deadline: Deadline) -> None:
        if self._over:
            return
        self.give_up(deadline.late(*self._where()))

    def give_up(self, error: RunError) -> None:
        self._run.stop(error)
        self._finish({} if self._executor is None else self._executor.variables, None, error)

    def _where(self) -> tuple[Loc | None, str]:
        """What an unfinished run waits for: a function, or else a generation."""
        calling = {} if self._executor is None else self._executor.calling
        for step in calling.values():
            return step.loc, f"for `{step.function}`"
        return self._run.waits()

    def _finish(
        self, variables: Mapping[str, Any], value: Any, error: BaseException | None,
        turns: list[dict[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        if self._over:
            return
        self._over = True
        outputs = self._run.result.outputs
        error, total_s = self._run.leave(error, self._session.elapsed_s)
        outputs.error = error
        early, errors = values(outputs, outputs.variables)
        sites = {} if self._executor is None else self._executor.sites
        for name, late in variables.items():
            if name not in self._prepared.early:
                site, typed = sites.get(name, (None, False))
                if site in outputs.generations:  # its pieces can be read
                    parser = _known_value(late) if typed else None
                    late = Generated(site, 0, core.Value(0, core.Type.TEXT), parser)
                dict.__setitem__(outputs.variables, name, late)
        unread = {name: late.problem for name, late in variables.items() if isinstance(late, Unread)}
        errors |= unread
        variables = {name: late for name, late in variables.items() if name not in unread}
        # In the order of the program, in which the early ones are not the first.
        order = self._prepared.order if self._executor is None else (*variables,)
        made = {**early, **variables}
        made = {name: made[name] for name in (*order, *made) if name in made}
        text = "".join(TextReader(outputs).come())
        if self._executor is not None and error is not None:
            text = max(text, self._executor.prompt[0], key=len)
        self._run.fill(RunOutcome(value, error, made, errors, text, turns or [], total_s))
