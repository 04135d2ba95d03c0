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
from types import MappingProxyType
from typing import Any, assert_never

from sglc.compile import Compiled
from sglc.errors import UsageError
from sglc.event_loop import executor_loop
from sglc.executor import Run
from sglc.ir.plan import (
    Block,
    CallStep,
    CondStep,
    FunctionStep,
    Held,
    HostStep,
    LoopStep,
    MapStep,
    Named,
    Plan,
    ReleaseStep,
    Segment,
    Slot,
    Step,
    SwitchStep,
    ValueStep,
)
from sglc.ir.uses import Name, Uses, gives_of, names_in
from sglc.ir.values import case_of, evaluate, item_texts, returned
from sglc.plan_scope import Facts, Failed, Scope
from sglc.plan_segments import Segments
from sglc.plan_values import Value, as_python, held_in, plain, read, text
from sglc.tools import call_function

Tools = Mapping[str, Callable[..., Any]]
NO_TOOLS: Tools = MappingProxyType({})


def run_compiled(
    compiled: Compiled, arguments: Mapping[str, Any], run: Run, tools: Tools = NO_TOOLS
) -> tuple[dict[str, Any], Any]:
    """Execute a compiled program: `run_plan` with arguments as texts, as the program would append them."""
    return run_plan(compiled.plan, {name: str(value) for name, value in arguments.items()}, run, tools)


def run_plan(
    plan: Plan, arguments: Mapping[str, str], run: Run, tools: Tools = NO_TOOLS
) -> tuple[dict[str, Any], Any]:
    """Execute a whole plan; gives its variables and its return value, in which a stream is its text.

    Waits for the end; `run.stop()` from another thread, or Ctrl-C, ends it early. A tool that runs then
    is abandoned.

    Args:
        tools: the declared functions by name, pure ones among them. They are called in threads of
            their own with the caller's context; coroutine functions are run there.

    Raises:
        UsageError: SGLC014 missing or unknown arguments, SGLC015 another tokenizer than the plan's,
            SGLC016 a plan that goes on as ordinary Python, SGLC025 a function that is not in `tools`.
        RunError: SGLC407 stopped; SGLC409 a function raised; SGLC460 to SGLC463 (`ir.values`).
        SglcError: the first failure, in program order.
    """
    _check(plan, arguments, run, tools)
    context = contextvars.copy_context()
    job = asyncio.run_coroutine_threadsafe(execute(plan, arguments, run, tools, context), executor_loop())
    try:
        return job.result()
    except KeyboardInterrupt:
        run.stop()
        job.exception()  # ends with the stop
        raise


def _check(plan: Plan, arguments: Mapping[str, str], run: Run, tools: Tools) -> None:
    """Refuse what cannot run to its end, before anything runs."""
    missing = [name for name in plan.params if name not in arguments]
    unknown = [name for name in arguments if name not in plan.params]
    if missing or unknown:
        wrong = f"misses `{missing[0]}`" if missing else f"has no argument `{unknown[0]}`"
        raise UsageError(
            "SGLC014", f"the plan {wrong}", note=f"its arguments: {', '.join(plan.params) or 'none'}"
        )
    tokenizer = run.backend.target.tokenizer
    if plan.tokenizer and (tokenizer is None or tokenizer.hash != plan.tokenizer):
        raise UsageError(
            "SGLC015", "the plan was made for another tokenizer than the back end's",
            hint="compile the program again for this model",
        )  # fmt: skip
    for step in (*plan.steps, *(step for block in plan.blocks for step in block.steps)):
        match step:
            case HostStep():
                raise UsageError(
                    "SGLC016", f"the plan goes on as ordinary Python: {step.reason}", step.loc,
                    hint="run the program's own file, without `--passes`",
                )  # fmt: skip
            case FunctionStep() if step.function not in tools:
                raise UsageError(
                    "SGLC025", f"the plan calls `{step.function}`, which is not there", step.loc,
                    note=f"functions that were given: {', '.join(tools) or 'none'}",
                    hint="run the program's own file",
                )  # fmt: skip


async def execute(
    plan: Plan, arguments: Mapping[str, str], run: Run, tools: Tools, context: contextvars.Context
) -> tuple[dict[str, Any], Any]:
    """`run_plan` as a coroutine of the executor's loop, without its checks."""
    going = _PlanRun(plan, run, tools, context)
    body = asyncio.ensure_future(going.whole(arguments))
    watch = asyncio.ensure_future(going.segments.watch())
    try:
        await asyncio.wait({body, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not body.done():
            watch.result()  # raises why it was stopped
        return body.result()
    finally:
        body.cancel()
        watch.cancel()
        await asyncio.wait({body, watch})
        await going.segments.give_back()


@dataclass(frozen=True, slots=True)
class _At:
    """What makes the sites of a block distinct: the call that runs its program, and iterations around."""

    call: str = ""
    iterations: tuple[int, ...] = ()


# When everything with effects up to some place has ended, with its first error.
_Ended = asyncio.Future[Exception | None]


class _PlanRun:
    """One run of one plan."""

    def __init__(self, plan: Plan, run: Run, tools: Tools, context: contextvars.Context) -> None:
        self.plan = plan
        self.run = run
        self.tools = tools
        self.context = context
        self.segments = Segments(run, traced=any(isinstance(name, Held) for name in names_in(plan.returns)))
        self.uses = Uses(plan.blocks)
        self.facts: dict[int, Facts] = {}  # by block

    async def whole(self, arguments: Mapping[str, str]) -> tuple[dict[str, Any], Any]:
        body = self.plan.body
        given = [arguments[name] for name in self.plan.params]
        (value,), variables = await self.block(body, Facts(body, self.uses), given, _At(), None, None)
        stream = self.segments.text
        return {name: as_python(item, stream) for name, item in variables.items()}, as_python(value, stream)

    async def block(
        self, block: Block, facts: Facts, given: Sequence[Value], at: _At, outer: Scope | None,
        before: _Ended | None, ended: _Ended | None = None,
    ) -> tuple[list[Value], dict[str, Value]]:  # fmt: skip
        """Run a block once; its results, whose streams are held for the caller, and its variables.

        Args:
            before: is done when all effects before the block are; `ended` becomes so when its own are too.
        """
        scope = Scope(block, facts, outer)
        for name, value in zip(block.params, given, strict=True):
            scope.give(name, value)
        errors: list[Exception | None] = [None] * len(block.steps)
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            tasks: list[asyncio.Task[None]] = []
            for number, step in enumerate(block.steps):
                own = loop.create_future() if facts.effects[number] else None
                earlier = tuple(tasks) if isinstance(step, ReleaseStep) else ()
                going = self.guarded(scope, number, step, facts, at, before, own, earlier, errors)
                tasks.append(group.create_task(going))
                before = own or before
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
        variables: dict[str, Value] = {}
        for variable in block.variables:
            if isinstance(variable, Named):
                variables[variable.name] = read(variable.value, known)
            else:
                variables |= scope.variables.get(variable.step, {})
        return results, variables

    async def guarded(
        self, scope: Scope, number: int, step: Step, facts: Facts, at: _At, before: _Ended | None,
        own: _Ended | None, earlier: Sequence[asyncio.Task[None]], errors: list[Exception | None],
    ) -> None:  # fmt: skip
        """Run a step when it can; an error becomes that of what it gives."""
        try:
            if earlier:
                await asyncio.wait(earlier)
            known = await scope.find(facts.reads[number])
            await self.step(scope, number, step, known, at, before)
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
                function = self.tools[step.function]
                made = await call_function(step.function, function, args, named, step.loc, self.context)
                scope.give(Slot(step.name), returned(step.function, made, step.gives, step.loc))
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
                call = str(step.site.inside(at.call, at.iterations))
                args = [read(tree, known) for tree in step.args]
                made, _ = await self.numbered(step.body, args, _At(call), None, before)
                self.give(scope, step.gives, made)
            case ReleaseStep():
                pass
            case HostStep():
                raise AssertionError("refused before anything ran")
            case _:
                assert_never(step)

    async def numbered(
        self, number: int, given: Sequence[Value], at: _At, outer: Scope | None, before: _Ended | None,
        ended: _Ended | None = None,
    ) -> tuple[list[Value], dict[str, Value]]:  # fmt: skip
        """Run a block by its number."""
        block = self.plan.blocks[number]
        if number not in self.facts:
            self.facts[number] = Facts(block, self.uses)
        return await self.block(block, self.facts[number], given, at, outer, before, ended)

    async def chosen(
        self,
        scope: Scope,
        number: int,
        step: CondStep | SwitchStep,
        block: int,
        at: _At,
        before: _Ended | None,
    ) -> None:
        made, scope.variables[number] = await self.numbered(block, (), at, scope, before)
        self.give(scope, step.gives, made)

    async def loop(
        self, scope: Scope, number: int, step: LoopStep, known: Mapping[Name, Value], at: _At,
        before: _Ended | None,
    ) -> None:  # fmt: skip
        """Iterations one after another; all effects of one are over when it ends."""
        carried = [read(tree, known) for tree in step.init]
        for kept in held_in(carried):
            kept.hold()
        variables: dict[str, Value] = {}
        for iteration in range(step.max_iters):
            inside = _At(at.call, (*at.iterations, iteration))
            (again, *made), new = await self.numbered(step.body, carried, inside, scope, before)
            for kept in held_in(carried):
                kept.drop()
            carried = made
            variables |= new
            if not again:
                break
        scope.variables[number] = variables
        self.give(scope, step.gives, carried)

    async def map(
        self, scope: Scope, number: int, step: MapStep, known: Mapping[Name, Value], at: _At,
        before: _Ended | None,
    ) -> None:  # fmt: skip
        """All items at once; only their effects wait for those of the items before."""
        items = item_texts(plain(read(step.items, known)), step.loc)
        loop = asyncio.get_running_loop()
        going = []
        for index, item in enumerate(items):
            ended = loop.create_future() if self.uses.effects[step.body] else None
            inside = _At(at.call, (*at.iterations, index))
            going.append(self.numbered(step.body, (item,), inside, scope, before, ended))
            before = ended or before
        done = await _all(going)
        scope.variables[number] = {name: value for _, new in done for name, value in new.items()}
        rows = [made for made, _ in done]
        self.give(scope, step.gives, [tuple(row[place] for row in rows) for place in range(len(step.gives))])

    def give(self, scope: Scope, names: Sequence[Name], values: Sequence[Value]) -> None:
        """Enter the results of a block, and let go of its streams."""
        for name, value in zip(names, values, strict=True):
            scope.give(name, value)
        for kept in held_in(values):
            kept.drop()


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
