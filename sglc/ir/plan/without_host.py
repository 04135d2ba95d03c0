"""What of a plan runs where its program, and who calls it, are not: next to a model that is served."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sglc.ir.plan.plan import Block, FunctionStep, HostStep, Plan, Step, steps_of
from sglc.ir.plan.segment import GenNode, Segment, SelectNode, Slot
from sglc.ir.plan.uses import block_ends, own_reads

# Functions of `ir.pure` that take no longer, and make nothing larger, than what they are given.
_OPERATORS = "add contains eq ge gt le lt ne not_ sub"
_OF_TEXTS = (
    "capitalize casefold endswith isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace istitle "
    "isupper lower lstrip partition removeprefix removesuffix rpartition rsplit rstrip split splitlines "
    "startswith strip swapcase title upper"
)
_OTHERS = "bool int len str sglc.is_none sglc.known sglc.slice sglc.text"
LINEAR = frozenset(
    [
        *_OTHERS.split(),
        *(f"operator.{name}" for name in _OPERATORS.split()),
        *(f"str.{name}" for name in _OF_TEXTS.split()),
    ]
)
_EXACT = 2**53  # beyond it numbers of JSON are not the same everywhere


def host_part(plan: Plan) -> str:
    """What in a plan needs the process of its program, the first of it; "" if nothing does."""
    for step in steps_of(plan):
        match step:
            case HostStep(reason=reason, loc=loc):
                return f"it goes on as Python at {loc}: {reason}"
            case FunctionStep(function=function, named=named) if function not in LINEAR or named:
                return f"it calls `{function}`"
    return ""


def generating(plan: Plan) -> Plan | None:
    """The part of a plan that decides what its generations are asked; None if that has a host part.

    For arguments that its guards hold of. Its variables, its return value, and functions that nothing else
    reads are left to who reads them.
    """
    bare = replace(
        plan, params=tuple([replace(param, default=None) for param in plan.params]), guards=(), leads=(),
        outputs=(), returns=None, variables=(),
        blocks=tuple([replace(block, variables=()) for block in plan.blocks]),
    )  # fmt: skip
    while (fewer := _without_unread(bare)) != bare:
        bare = fewer
    nodes = [node for step in steps_of(bare) if isinstance(step, Segment) for node in step.nodes]
    asks = any(isinstance(node, GenNode | SelectNode) for node in nodes)
    return bare if asks and not host_part(bare) else None


def _without_unread(plan: Plan) -> Plan:
    """`plan` without functions whose results nothing reads, and that do nothing else."""
    read = {name for step in steps_of(plan) for name in own_reads(step)}
    read |= {name for block in plan.blocks for name in block_ends(block)}

    def wanted(step: Step) -> bool:
        return not isinstance(step, FunctionStep) or step.effects or Slot(step.name) in read

    def kept(block: Block) -> Block:
        return replace(block, steps=tuple(filter(wanted, block.steps)))

    steps = tuple(filter(wanted, plan.steps))
    return replace(plan, steps=steps, blocks=tuple(map(kept, plan.blocks)))


def is_json(value: Any) -> bool:
    """Whether JSON has a value exactly, whoever reads it."""
    kind = type(value)
    if kind is int:
        return bool(-_EXACT <= value <= _EXACT)
    if kind is float:
        return bool(abs(value) < 1e300)
    if kind is list:
        return all(map(is_json, value))
    if kind is dict:
        return all(type(key) is str for key in value) and all(map(is_json, value.values()))
    return kind is str or kind is bool or value is None
