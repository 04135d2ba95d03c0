"""What is found out about a plan before it runs: whether it can, and what all of its runs share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

from sglc.errors import Loc, UsageError
from sglc.execution.plan.prepared_block import Blocks, PreparedBlock
from sglc.execution.python_effects import EFFECTS, READS
from sglc.execution.tool_calls import Tools
from sglc.ir.plan.asked import Asked, asked_in_plan
from sglc.ir.plan.backend import Backend
from sglc.ir.plan.plan import CallStep, FunctionStep, HostStep, LoopStep, MapStep, Plan, Step, steps_of
from sglc.ir.plan.segment import GenNode, Held, Segment, SelectNode
from sglc.ir.plan.uses import Uses, names_in
from sglc.ir.pure import PURE


class Prepared:
    """A plan, and what is found out about it once for all of its runs."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.traced = any(isinstance(name, Held) for name in names_in(plan.returns))
        uses = Uses(plan.blocks)
        ordered = any(_waits(step) for step in steps_of(plan))
        self.top = PreparedBlock(plan.body, Blocks(plan.blocks, uses, ordered))

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
