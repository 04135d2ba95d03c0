"""Runs a whole plan on a back end: every step as soon as what it reads is there.

The steps of a block begin together and wait for the names that they read, so what is independent
overlaps. Tools are called in the order of the program. A step that fails fails those that read what
it gives; everything else goes on, and the first failure in the order of the plan is raised at the end.
A kept stream is given back when its last reader has ended, whatever happened.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from sglc.errors import RunError
from sglc.execution.event_loop import executor_loop
from sglc.execution.outputs import stopped
from sglc.execution.plan.arguments import as_values, bound
from sglc.execution.plan.prepare import Prepared, check_plan_runs
from sglc.execution.plan.raised import builtin_error
from sglc.execution.plan.scope import Facts, Failed, Scope
from sglc.execution.plan.segments import Segments
from sglc.execution.plan.values import (
    PROMPT,
    Exact,
    Made,
    Value,
    as_python,
    held_in,
    plain,
    read,
    text,
    text_so_far,
)
from sglc.execution.served import Served, ToolCall, key_of
from sglc.execution.session import Session
from sglc.execution.tool_calls import EFFECTS, NO_TOOLS, Tools, call_function
from sglc.frontend.tracing.makers import STORED
from sglc.ir.core import Site
from sglc.ir.plan.plan import (
    Block,
    CallStep,
    CondStep,
    FunctionStep,
    HostStep,
    LoopStep,
    MapStep,
    Named,
    Plan,
    PromptEnd,
    Step,
    SwitchStep,
    ValueStep,
)
from sglc.ir.plan.segment import Segment, Slot
from sglc.ir.plan.uses import Name, gives_of, names_in
from sglc.ir.pure import PURE, function_of
from sglc.ir.values import case_of, evaluate, item_texts, placed, returned


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
        RunError: SGLC407 stopped; SGLC409 a function raised; SGLC460 to SGLC463 (`ir.values`).
        SglcError: the first failure, in program order.
    """
    arguments = bound(plan, arguments)
    check_plan_runs(plan, session.backend, tools)
    context = contextvars.copy_context()
    executor = PlanExecutor(Prepared(plan), session, tools, context)
    job = asyncio.run_coroutine_threadsafe(executor.execute(arguments), executor_loop())
    try:
        return job.result()
    except KeyboardInterrupt:
        session.stop()
        job.exception()  # ends with the stop
        raise


@dataclass(frozen=True, slots=True)
class _At:
    """What makes the sites of a block distinct: the call that runs its program, and iterations around."""

    call: str = ""
    iterations: tuple[int, ...] = ()


# When everything with effects up to some place has ended, with its first error.
_Ended = asyncio.Future[Exception | None]


class PlanExecutor:
    """One run of one plan. `variables` is filled as the run goes on, also of one that fails."""

    def __init__(
        self, prepared: Prepared, session: Session, tools: Tools, context: contextvars.Context,
        served: Served | None = None,
    ) -> None:  # fmt: skip
        self.prepared = prepared
        self.plan = prepared.plan
        self.session = session
        self.tools = tools
        self.context = context
        self.calling: dict[object, FunctionStep] = {}  # what runs now, in the order of its beginning
        self.known: dict[str, Value] = {}
        self.served = served  # is told what declared functions gave
        self.needs_python = ""  # why something came that only Python can do, or tell of
        self.handed_over = False  # whether the program itself is to go on as Python
        self.printed = False  # whether it did what Python would do once more
        self.segments: Segments

    @property
    def variables(self) -> dict[str, Any]:
        """The variables that there are; None where one of several branches has none."""
        known = {name: item for name, item in self.known.items() if name != PROMPT}
        return {name: as_python(item, self.segments.text) for name, item in known.items()}

    @property
    def sites(self) -> dict[str, tuple[Site, bool]]:
        """The variables that are what one generation made: where, and whether more than the text was read."""
        made = {name: item for name, item in self.known.items() if isinstance(item, Made)}
        return {name: (item.site, isinstance(item.value, Exact)) for name, item in made.items()}

    @property
    def prompt(self) -> tuple[str, Any]:
        """The prompt as far as it came, and what its turns consist of."""
        match self.known.get(PROMPT):
            case (str() as said, turns):
                return said, turns
            case _:
                return "", ()

    async def execute(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """`run_plan` in the executor's loop, without its checks."""
        self.segments = Segments(self.session, self.prepared.bindings, traced=self.prepared.traced)
        body = asyncio.ensure_future(self.whole(arguments))
        try:
            if self.session.stopped:
                raise self.session.why_over or stopped()
            ends: set[asyncio.Future[Any]] = {body, self.segments.stopped}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not body.done():
                raise self.session.why_over or stopped()
            return body.result()
        finally:
            body.cancel()
            await asyncio.wait({body})
            await self.segments.give_back()

    async def whole(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        given = list(as_values(self.plan, arguments).values())
        (value,) = await self.block(
            self.prepared.body, self.prepared.facts(-1), given, _At(self.session.outputs.call), None, None,
            self.known,
        )  # fmt: skip
        return self.variables, as_python(value, self.segments.text)

    async def block(
        self, block: Block, facts: Facts, given: Sequence[Value], at: _At, outer: Scope | None,
        before: _Ended | None, variables: dict[str, Value], ended: _Ended | None = None,
    ) -> list[Value]:  # fmt: skip
        """Run a block once; gives its results, whose streams are held for the caller.

        Args:
            before: is done when all effects before the block are; `ended` becomes so when its own are too.
            variables: is given those of the block, whatever comes of it.
        """
        scope = Scope(block, facts, outer)
        for name, value in zip(block.params, given, strict=True):
            scope.give(name, value)
        errors: list[Exception | None] = [None] * len(block.steps)
        try:
            before = await self.steps(scope, block, facts, at, before, errors)
        finally:
            for variable in block.variables:
                if isinstance(variable, Named):
                    there = scope.there(names_in(variable.value))
                    if there is not None:
                        made = facts.sites.get(variable.value) if isinstance(variable.value, Slot) else None
                        variables[variable.name] = made_at(variable.name, read(variable.value, there), made, at)
                elif isinstance(variable, PromptEnd):
                    variables[PROMPT] = prompt_of(variable, scope)
                else:
                    variables |= scope.variables.get(variable.step, {})
        if ended is not None:
            _follow(before, ended, None)
        for error in errors:
            if error is not None:
                raise error
        known = await scope.find(facts.ends)
        results = [read(tree, known) for tree in block.results]
        for kept in held_in(results):
            kept.hold()
        scope.read(facts.ends)
        return results

    async def steps(
        self, scope: Scope, block: Block, facts: Facts, at: _At, before: _Ended | None,
        errors: list[Exception | None],
    ) -> _Ended | None:  # fmt: skip
        """Run the steps of a block, those at once that need not wait for each other.

        Gives what is done when the effects of all of them are.
        """
        loop = asyncio.get_running_loop()
        befores: list[_Ended | None] = []
        owns: list[_Ended | None] = []
        gates: list[_Ended | None] = []  # nothing begins behind what may go on as Python
        gate: _Ended | None = None
        for effects, hands_over in zip(facts.effects, facts.hands_over, strict=True):
            own = loop.create_future() if effects else None
            befores.append(before)
            owns.append(own)
            gates.append(gate)
            before = own or before
            gate = own if hands_over else gate

        async def run(chain: Sequence[int]) -> None:
            for number in chain:
                step = block.steps[number]
                gate = gates[number]
                ended = owns[number]
                await self.guarded(scope, number, step, facts, at, befores[number], ended, errors, gate)

        if facts.flat:  # in this task: what holds blocks would make the stack deep
            await run(facts.chains[0])
            return before
        async with asyncio.TaskGroup() as group:
            for chain in facts.chains:
                group.create_task(run(chain))
        return before

    async def guarded(
        self, scope: Scope, number: int, step: Step, facts: Facts, at: _At, before: _Ended | None,
        own: _Ended | None, errors: list[Exception | None], gate: _Ended | None,
    ) -> None:  # fmt: skip
        """Run a step when it can; an error becomes that of what it gives."""
        try:
            if gate is not None and (error := await asyncio.shield(gate)) is not None:
                raise error
            known = await scope.find(facts.reads[number])
            try:
                await self.step(scope, number, step, known, at, before)
            except Exception as error:
                if isinstance(step, FunctionStep | ValueStep | SwitchStep | HostStep):
                    self.needs_python = self.needs_python or str(getattr(error, "message", error))
                raise
        except Exception as error:
            errors[number] = error
            for name in gives_of(step):
                scope.give(name, Failed(error))
        finally:
            scope.read(facts.reads[number])
            if own is not None:
                _follow(before, own, errors[number])

    async def step(
        self, scope: Scope, number: int, step: Step, known: Mapping[Name, Value], at: _At,
        before: _Ended | None,
    ) -> None:  # fmt: skip
        """Do what a step says; `known` has what it reads."""
        match step:
            case Segment():
                await self.segments.run(step, known, at.call, at.iterations, scope.give)
            case ValueStep():
                operands = [plain(read(tree, known)) for tree in step.operands]
                scope.give(Slot(step.name), evaluate(step.operation, operands, step.loc))
            case FunctionStep():
                args = [as_python(plain(read(tree, known))) for tree in step.args]
                named = {key: as_python(plain(read(tree, known))) for key, tree in step.named.items()}
                if step.effects and before is not None and (error := await asyncio.shield(before)) is not None:
                    raise error
                if step.function in PURE:
                    scope.give(Slot(step.name), computed(self.plan.program, step, args, named))
                    return
                if step.function.endswith(STORED):  # it only reads a text
                    scope.give(Slot(step.name), Exact(self.tools[step.function](*args)))
                    return
                function = self.tools.get(step.function) or EFFECTS[step.function]
                made = await self.called(step, function, args, named)
                exact = step.gives == "object"
                value = Exact(made) if exact else returned(step.function, made, step.gives, step.loc)
                scope.give(Slot(step.name), value)
            case CondStep():
                chosen = step.then if read(step.pred, known) else step.orelse
                await self.chosen(scope, number, step, chosen, at, before)
            case SwitchStep():
                default = len(step.arms) > len(step.cases)
                found = case_of(text(read(step.value, known)), step.cases, default, step.loc)
                await self.chosen(scope, number, step, step.arms[found], at, before)
            case LoopStep():
                await self.loop(scope, number, step, known, at, before)
            case MapStep():
                await self.map(scope, number, step, known, at, before)
            case CallStep():
                inside = _At(str(step.site.inside(at.call, at.iterations)))
                args = [read(tree, known) for tree in step.args]
                self.give(scope, step.gives, await self.numbered(step.body, args, inside, None, before, {}))
            case HostStep(error=""):
                self.handed_over = True
                raise RunError("SGLC401", f"it goes on as Python: {step.reason}", placed(step.loc))
            case HostStep():
                said = text(read(step.reads[0], known)) if step.reads else step.reason
                made = builtin_error(step.error, said, whole=not step.reads)
                said = said if made is None else str(made)
                message = f"`{step.error}` in `{self.plan.program}`: {said or 'no message'}"
                raise RunError("SGLC401", message, placed(step.loc)) from made
            case _:
                assert_never(step)

    async def called(
        self, step: FunctionStep, function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        """What a declared function gives."""
        call = object()
        self.calling[call] = step
        self.printed = self.printed or step.function in EFFECTS
        made, problem = None, None
        try:
            made = await call_function(step.function, function, args, named, step.loc, self.context)
        except Exception as error:
            problem = error
        del self.calling[call]
        if self.served is not None:
            entry = ToolCall(step.function, made, None if problem is None else problem.__cause__ or problem)
            key = key_of(args, named)
            if step.effects:
                self.served.tools.append(entry)
            elif key is not None:
                self.served.pure[step.function, key] = entry
        if problem is not None:
            raise problem
        return made

    async def numbered(
        self, number: int, given: Sequence[Value], at: _At, outer: Scope | None, before: _Ended | None,
        variables: dict[str, Value], ended: _Ended | None = None,
    ) -> list[Value]:  # fmt: skip
        """Run a block by its number."""
        block, facts = self.plan.blocks[number], self.prepared.facts(number)
        return await self.block(block, facts, given, at, outer, before, variables, ended)

    async def chosen(
        self,
        scope: Scope,
        number: int,
        step: CondStep | SwitchStep,
        block: int,
        at: _At,
        before: _Ended | None,
    ) -> None:
        variables = scope.variables[number] = {}
        self.give(scope, step.gives, await self.numbered(block, (), at, scope, before, variables))

    async def loop(
        self, scope: Scope, number: int, step: LoopStep, known: Mapping[Name, Value], at: _At,
        before: _Ended | None,
    ) -> None:  # fmt: skip
        """Iterations one after another; all effects of one are over when it ends."""
        carried = [read(tree, known) for tree in step.init]
        for kept in held_in(carried):
            kept.hold()
        variables = scope.variables[number] = {}
        for iteration in range(step.max_iters):
            inside = _At(at.call, (*at.iterations, iteration))
            again, *made = await self.numbered(step.body, carried, inside, scope, before, variables)
            for kept in held_in(carried):
                kept.drop()
            carried = made
            if not again:
                break
        self.give(scope, step.gives, carried)

    async def map(
        self, scope: Scope, number: int, step: MapStep, known: Mapping[Name, Value], at: _At,
        before: _Ended | None,
    ) -> None:  # fmt: skip
        """All items at once; only their effects wait for those of the items before."""
        whole = read(step.items, known)
        items: Sequence[Value]
        if isinstance(whole, Exact):
            items = [Exact(item) for item in whole.item]
        else:
            items = item_texts(plain(whole), step.loc)
        loop = asyncio.get_running_loop()
        going = []
        variables: list[dict[str, Value]] = [{} for _ in items]
        for index, item in enumerate(items):
            ended = loop.create_future() if self.prepared.uses.effects[step.body] else None
            inside = _At(at.call, (*at.iterations, index))
            going.append(self.numbered(step.body, (item,), inside, scope, before, variables[index], ended))
            before = ended or before
        try:
            rows = await _all(going)
        finally:
            scope.variables[number] = {name: value for new in variables for name, value in new.items()}
        self.give(scope, step.gives, [tuple(row[place] for row in rows) for place in range(len(step.gives))])

    def give(self, scope: Scope, names: Sequence[Name], values: Sequence[Value]) -> None:
        """Enter the results of a block, and let go of its streams."""
        for name, value in zip(names, values, strict=True):
            scope.give(name, value)
        for kept in held_in(values):
            kept.drop()


def prompt_of(end: PromptEnd, scope: Scope) -> Value:
    """What the prompt says as far as it came, and what its turns consist of."""
    names = tuple(names_in((end.text, end.turns)))
    known = scope.there(names) or dict.fromkeys(names)
    return text_so_far(end.text, known), plain(read(end.turns, known))


def made_at(name: str, value: Value, site: Site | None, at: _At) -> Value:
    """A variable, with the generation that made it if it is what one made."""
    return (
        value
        if site is None or value is None or site.name != name
        else Made(site.inside(at.call, at.iterations), value)
    )


def computed(program: str, step: FunctionStep, args: Sequence[Any], named: Mapping[str, Any]) -> Value:
    """What one of Python's own functions gives.

    Raises:
        RunError: SGLC401, what it raises, as the program itself would have.
    """
    try:
        made = function_of(step.function)(*args, **named)
    except Exception as error:
        text = str(error) or "no message"
        message = f"`{type(error).__name__}` in `{program}`: {text}"
        problem = RunError("SGLC401", message, placed(step.loc))
        raise problem from error
    match step.gives:
        case "text" | "bool":
            return made  # type: ignore[no-any-return]
        case "list":
            return tuple(made)
        case _:
            return Exact(made)


def _follow(before: _Ended | None, own: _Ended, error: Exception | None) -> None:
    """`own` is done when `before` is, with the first error of both."""

    def settle(earlier: _Ended | None) -> None:
        if not own.done():
            own.set_result((earlier.result() if earlier is not None else None) or error)

    if before is None or before.done():
        settle(before)
    else:
        before.add_done_callback(settle)


async def _all(going: Sequence[Any]) -> list[Any]:
    """What coroutines return that run at once. One that fails stops no other; the first error is raised."""
    outcomes = await asyncio.gather(*going, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes
