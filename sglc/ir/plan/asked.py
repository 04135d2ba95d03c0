"""What a plan's marked generations ask for, as far as that shows before it runs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from sglc.ir.plan.plan import CallStep, LoopStep, MapStep, Plan, steps_of
from sglc.ir.plan.segment import (
    ExtendNode,
    GenNode,
    NodeResult,
    OpenNode,
    Part,
    RoleMark,
    Segment,
    SelectNode,
    Slot,
    behind,
    joined,
)
from sglc.ir.plan.uses import node_reads
from sglc.ir.target import ControlText

_WRITTEN = (str, Slot, RoleMark, ControlText)  # parts that are known before a run


@dataclass(frozen=True, slots=True)
class Asked:
    """What the marked generations of a plan ask for, as far as that shows before it runs.

    `arguments`: the names of those that a prompt is made of, for each prompt once. `repeats`: one run may ask
    for the same twice.
    """

    arguments: tuple[tuple[str, ...], ...]
    repeats: bool


NOTHING_ASKED = Asked((), False)


def asked_in_plan(plan: Plan) -> Asked:
    """What a plan asks for. What stands in a block, or behind another step, may depend on every argument."""
    arguments: dict[tuple[str, ...], None] = {}
    signatures: list[Hashable] = []
    top = {id(step) for step in plan.steps}
    blocks = False
    for segment in steps_of(plan):
        if not isinstance(segment, Segment):
            continue
        for index, node in enumerate(segment.nodes):
            if not (isinstance(node, GenNode | SelectNode) and node.unify):
                continue
            read = {name for at in behind(segment, index) for name in node_reads(segment.nodes[at])}
            own = tuple([name for name in plan.names if Slot(name) in read])
            arguments[own if id(segment) in top and len(own) == len(read) else plan.names] = None
            signatures.append(_signature(segment, index))
            blocks = blocks or id(segment) not in top
    if not signatures:
        return NOTHING_ASKED
    repeated = any(isinstance(step, LoopStep | MapStep | CallStep) for step in steps_of(plan))
    return Asked(tuple(arguments), len(set(signatures)) < len(signatures) or (blocks and repeated))


def known_questions(plan: Plan, texts: Mapping[str, str]) -> list[Hashable]:
    """What the marked generations of one run ask for, equal for what is made once.

    Of those alone that every run makes, whose prompts are made of literals and of `texts`, the arguments, and
    whose `max_tokens` are written in the program.
    """
    found: list[Hashable] = []
    for segment in plan.steps:
        if not isinstance(segment, Segment):
            continue
        for node in segment.nodes:
            if not (isinstance(node, GenNode | SelectNode) and node.unify):
                continue
            if isinstance(node, GenNode) and node.limit:
                continue
            opened, *parts = _prompt(segment, node.stream)
            choices = node.choices if isinstance(node, SelectNode) else ()
            if opened is None and all(isinstance(part, _WRITTEN) for part in (*parts, *choices)):
                filled, among = (
                    [texts[part.name] if isinstance(part, Slot) else part for part in own]
                    for own in (parts, choices)
                )
                asked = node.sampling if isinstance(node, GenNode) else node.method
                found.append((asked, tuple(among), tuple(joined(filled))))
    return found


def _signature(segment: Segment, index: int) -> Hashable:
    """Equal for what reads the same names and literals in the same order, and asks the same of it."""
    node = segment.nodes[index]
    assert isinstance(node, GenNode | SelectNode)
    asked = (node.sampling, node.limit) if isinstance(node, GenNode) else (node.choices, node.method)
    return asked, _prompt(segment, node.stream)


def _prompt(segment: Segment, index: int) -> tuple[Hashable, ...]:
    """The parts of the prompt behind a node, neighbouring literals as one."""
    parts: list[Hashable] = []
    while True:
        match segment.nodes[index]:
            case OpenNode(handle):
                return (handle, *joined(reversed(parts)))
            case ExtendNode(index, own):
                parts += [_part(segment, part) for part in reversed(own)]
            case GenNode(stream=stream) | SelectNode(stream=stream):
                parts.append(_signature(segment, index))
                index = stream
            case other:
                index = other.stream  # type: ignore[union-attr]  # nobody goes on behind a release


def _part(segment: Segment, part: Part) -> Hashable:
    return _signature(segment, part.node) if isinstance(part, NodeResult) else part
