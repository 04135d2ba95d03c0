"""What is found out about a plan before it runs: whether it can, and what all of its runs share."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property, reduce
from itertools import takewhile
from typing import NamedTuple

from sglc.errors import Loc, UsageError
from sglc.execution.bind import asked_in
from sglc.execution.plan.prepared_block import NOBODY, Blocks, Order, PreparedBlock
from sglc.execution.python_effects import EFFECTS, READS
from sglc.execution.tool_calls import Tools
from sglc.frontend.program.instance import Gathered, Variable
from sglc.frontend.values.recorded import Generated
from sglc.ir import core
from sglc.ir.core import Site
from sglc.ir.plan.asked import Asked, asked_in_plan
from sglc.ir.plan.backend import Backend
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
    Variables,
    Within,
    blocks_of,
    steps_of,
)
from sglc.ir.plan.segment import GenNode, Held, KeepNode, Segment, SelectNode, Slot
from sglc.ir.plan.uses import BlockEffects, Uses, names_in
from sglc.ir.pure import PURE

_AS_THEY_ARE = ("str", "bool")  # arguments of these types are values of a plan


class Shown(NamedTuple):
    """Parts of the prompt, and where arguments stand among them, by place and name."""

    parts: Sequence[str | Slot | Site]
    arguments: Sequence[tuple[int, str]]


class Prepared:
    """A plan, and what is found out about it once for all of its runs.

    `parameters` are its names for arguments, `exact` the places of those whose values are objects of Python's.
    `early` are the variables that one generation makes, or a list of them: they are there before the end.
    `at_once`: all that it asks for is asked for together.
    `shown` is how the prompt begins, as far as that is arguments, literals and generations: what stands behind
    a step in which the program may end is in `shown_behind` under its number, and shown when it is over.
    `shows_all`: it is all.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.traced = Held in map(type, names_in(plan.returns))
        effects = BlockEffects(plan.blocks) if any(map(_waits, steps_of(plan))) else None
        self.top = PreparedBlock(plan.body, Blocks(plan.blocks, Uses(plan.blocks), effects))
        self.parameters = [param.name for param in plan.params]
        self.exact = [place for place, param in enumerate(plan.params) if param.kind not in _AS_THEY_ARE]
        nodes = [node for step in plan.steps if isinstance(step, Segment) for node in step.nodes]
        self.loc = next((node.loc for node in nodes if isinstance(node, GenNode | SelectNode)), None)
        self.early = _early(plan, plan.steps, plan.variables)
        self.at_once = (
            len(plan.steps) == 1 and not plan.blocks and not any(isinstance(n, KeepNode) for n in nodes)
        )
        shown, self.shows_all = _shown(list(_ends(plan, plan.body)), plan, self.top.order)
        self.shown = _to_fill(shown.pop(NOBODY, ()))
        self.shown_behind = {number: _to_fill(parts) for number, parts in shown.items()}

    @cached_property
    def early_in(self) -> dict[int, dict[str, Variable]]:
        """Such variables of arms of the program itself, by block: they are there from the choice on."""
        return dict(_early_in_arms(self.plan, self.plan.steps, self.plan.variables, frozenset()))

    @cached_property
    def most_calls(self) -> float:
        """How many generations a run may begin at most, as far as that shows before it."""
        steps = list(steps_of(self.plan))
        if any(isinstance(step, LoopStep | MapStep | CallStep) for step in steps):
            return math.inf
        nodes = [node for step in steps if isinstance(step, Segment) for node in step.nodes]
        return sum(isinstance(node, GenNode | SelectNode) for node in nodes)

    @cached_property
    def asked(self) -> Asked:
        """What its marked generations ask for."""
        return asked_in_plan(self.plan)

    @cached_property
    def calls_functions(self) -> bool:
        """Whether there are calls of declared functions."""
        return any(True for _ in function_steps(self.plan))

    @cached_property
    def single_call(self) -> bool:
        """Whether a run makes one call at most, of a model, and no other."""
        acts = any(isinstance(step, HostStep) or is_call(step) for step in steps_of(self.plan))
        return self.most_calls <= 1 and not acts


def is_call(step: Step) -> bool:
    """Whether a declared function is called, which may do something to the world, or pause."""
    return isinstance(step, FunctionStep) and step.effects and step.function not in EFFECTS


def _waits(step: Step) -> bool:
    """Whether effects before a step are over when it begins, or it is over when something behind it begins, or
    what is written behind it is shown."""
    return step.effects if isinstance(step, FunctionStep) else isinstance(step, HostStep)


def check_plan_runs(plan: Plan, backend: Backend, tools: Tools, *, breaks: bool = False) -> None:
    """Refuse what cannot run to its end, before anything runs.

    Args:
        breaks: where it goes on as ordinary Python somebody does.

    Raises:
        UsageError: SGLC015, SGLC016, SGLC025, SGLC046, as of `run_plan`.
    """
    tokenizer = backend.target.tokenizer
    if plan.tokenizer and (tokenizer is None or tokenizer.hash != plan.tokenizer):
        raise UsageError(
            "SGLC015", "the plan was made for another tokenizer than the back end's",
            hint="compile the program again for this model",
        )  # fmt: skip
    if not plan.tokenizer and plan.target != backend.target.name:
        raise UsageError(
            "SGLC046", f"the plan was made for `{plan.target}`, and runs on no other back end",
            note=f"this one is `{backend.target.name}`", hint="compile the program again for this one",
        )  # fmt: skip
    if not breaks:
        check_no_break(plan)
    missing: dict[str, Loc] = {}
    for step in function_steps(plan):
        if step.function not in tools:
            missing.setdefault(step.function, step.loc)
    if missing:
        names = ", ".join(f"`{name}`" for name in missing)
        raise UsageError(
            "SGLC025", f"the plan calls {names}, which {'is' if len(missing) == 1 else 'are'} not there",
            next(iter(missing.values())), note=f"functions that were given: {', '.join(tools) or 'none'}",
            hint="give a file that declares them: `--tools FILE.py`, or run the program's own file",
        )  # fmt: skip


def check_no_break(plan: Plan) -> None:
    """Raises UsageError: SGLC016, the plan goes on as ordinary Python, and does not run by itself."""
    for step in steps_of(plan):
        if isinstance(step, HostStep) and not step.error:
            raise UsageError(
                "SGLC016", f"the plan goes on as ordinary Python: {step.reason}", step.loc,
                hint="run the program's own file; `--passes` make a plan of it",
            )  # fmt: skip


def function_steps(plan: Plan) -> Iterator[FunctionStep]:
    """The calls of declared functions among them."""
    return (step for step in steps_of(plan) if isinstance(step, FunctionStep) and is_declared(step.function))


def is_declared(name: str) -> bool:
    """Whether it is a function of the user's, and none of Python's own."""
    return name not in PURE and name not in EFFECTS and name not in READS


def _early(plan: Plan, steps: Sequence[Step], variables: Variables) -> dict[str, Variable]:
    """Those of a block, or of the whole plan."""
    made: dict[str, Generated] = {}  # by the name that it has in the plan
    for step in steps:
        if isinstance(step, Segment):
            for name, index in step.gives:
                node = step.nodes[index]
                assert isinstance(node, GenNode | SelectNode)
                many = isinstance(node, GenNode) and node.sampling.n > 1
                made[name] = Generated(node.site, 0, core.Value(index, core.Type.TEXT), many=many)
    found: dict[str, Variable] = {}
    for variable in variables:
        match variable:
            case Named(name, Slot(slot)) if slot in made and made[slot].site.name == name:
                found[name] = made[slot]
            case Named(name, tuple(parts)) if all(
                part is None or (isinstance(part, Slot) and part.name in made) for part in parts
            ):
                entries = tuple([made[part.name] if isinstance(part, Slot) else None for part in parts])
                found[name] = Gathered(entries, None, 0)
            case Named(name):
                found.pop(name, None)
            case PromptEnd():
                continue
            case Within(number):
                for name in _stored_in(plan, blocks_of(steps[number])):
                    found.pop(name, None)
    return found


def _early_in_arms(
    plan: Plan, steps: Sequence[Step], variables: Variables, later: frozenset[str]
) -> Iterator[tuple[int, dict[str, Variable]]]:
    """By block, those of arms that nothing behind them may store, nor what is stored `later`."""
    for variable in reversed(variables):
        if isinstance(variable, Named):
            later |= {variable.name}
        elif isinstance(variable, Within):
            step = steps[variable.step]
            for number in blocks_of(step) if isinstance(step, CondStep | SwitchStep) else ():
                block = plan.blocks[number]
                found = _early(plan, block.steps, block.variables)
                yield number, {name: made for name, made in found.items() if name not in later}
                yield from _early_in_arms(plan, block.steps, block.variables, later)
            later |= {*_stored_in(plan, blocks_of(step))}


def _stored_in(plan: Plan, numbers: Sequence[int]) -> Iterator[str]:
    """The names of the variables that blocks store."""
    for number in numbers:
        block = plan.blocks[number]
        for variable in block.variables:
            if isinstance(variable, Named):
                yield variable.name
            elif isinstance(variable, Within):
                yield from _stored_in(plan, blocks_of(block.steps[variable.step]))


def _ends(plan: Plan, block: Block) -> Iterator[PromptEnd]:
    """What the prompt may say at its end: where the program ends in the arms of a decision, one for each."""
    for item in reversed(block.variables):
        match item:
            case PromptEnd():
                yield item
                return
            case Within(number):
                for arm in blocks_of(block.steps[number]):
                    yield from _ends(plan, plan.blocks[arm])
            case Named():
                continue


def _common(one: tuple[str | Slot, ...], other: tuple[str | Slot, ...]) -> tuple[str | Slot, ...]:
    """The parts that two texts begin with."""
    pairs = zip(one, other, strict=False)
    return tuple([own for own, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)])


def _to_fill(parts: Sequence[str | Slot | Site]) -> Shown:
    return Shown(parts, [(place, part.name) for place, part in enumerate(parts) if isinstance(part, Slot)])


def _shown(
    ends: Sequence[PromptEnd], plan: Plan, order: Order | None
) -> tuple[dict[int, list[str | Slot | Site]], bool]:
    """How the prompt begins, by the step with effects that has to be over before, and whether that is all of
    it."""
    made: dict[str, tuple[str | Slot | Site, int]] = {p.name: (Slot(p.name), NOBODY) for p in plan.params}
    for number, step in enumerate(plan.steps):
        if isinstance(step, Segment):
            behind, nodes = NOBODY if order is None else order.before[number], asked_in(step)
            made.update((name, (nodes[index].site, behind)) for name, index in step.gives)
    parts = reduce(_common, [end.parts for end in ends]) if ends else ()
    there = list(takewhile(lambda part: not isinstance(part, Slot) or part.name in made, parts))
    shown: dict[int, list[str | Slot | Site]] = {}
    literals, last, over = list[str | Slot | Site](), NOBODY, NOBODY if order is None else order.last
    written = set[Site]()
    own = order is not None and any(variable is end for variable in plan.body.variables for end in ends)
    stood = deque(ends[0].stood if own else ())
    for place, part in enumerate((*there, "")):
        while stood and stood[0][1] == place and order is not None:
            number, _ = stood.popleft()
            last = max(last, order.before[number])
            shown.setdefault(last, []).extend(literals)
            literals, last = [], max(last, number)
        if place == len(there):
            break
        known, behind = made[part.name] if isinstance(part, Slot) else (part, NOBODY)
        literals.append(known)
        # What is before a generation was written before it. One of another prompt is a text, or one once more.
        if isinstance(known, Site) and known.in_prompt and known not in written:
            written.add(known)
            last = max(last, behind)
            shown.setdefault(last, []).extend(literals)
            literals = []
    shown.setdefault(max(last, over), []).extend(literals)
    return shown, len(ends) == 1 and len(there) == len(parts)
