"""The reference meaning of plans, to compare with that of the programs they were lowered from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from sglc.ir.core import Site
from sglc.ir.interpret import Meaning, Model, Plain
from sglc.ir.plan import (
    ControlText,
    ExtendNode,
    ForkNode,
    GenNode,
    Joined,
    KeepNode,
    OpenNode,
    Output,
    OutputTree,
    Part,
    Plan,
    ReleaseNode,
    Result,
    Segment,
    SelectNode,
    Slot,
)


def plan_meaning(
    plan: Plan, model: Model, args: Mapping[str, str], streams: Mapping[str, str] | None = None
) -> Meaning:
    """Interpret a plan's segments; a kept stream's handle stands for its text."""
    calls: dict[Site, tuple[str, str]] = {}
    made: list[list[tuple[str, str]]] = []  # by step and node: the stream's text, the node's own text

    for step in plan.steps:
        nodes: list[tuple[str, str]] = []
        made.append(nodes)
        if not isinstance(step, Segment):
            continue

        def text(part: Part, nodes: list[tuple[str, str]] = nodes) -> str:
            match part:
                case str():
                    return part
                case ControlText():
                    return part.text
                case Slot():
                    return args[part.name]
                case Result():
                    return nodes[part.node][1]
                case _:
                    assert_never(part)

        for node in step.nodes:
            match node:
                case OpenNode(handle=None):
                    nodes.append(("", ""))
                case OpenNode():
                    nodes.append(((streams or {})[str(node.handle)], ""))
                case ExtendNode():
                    nodes.append((nodes[node.stream][0] + "".join(text(part) for part in node.parts), ""))
                case ForkNode() | KeepNode():
                    nodes.append((nodes[node.stream][0], nodes[node.stream][0]))
                case GenNode() | SelectNode():
                    prefix = nodes[node.stream][0]
                    if isinstance(node, GenNode):
                        answer = model.generate(node.site, prefix)
                    else:
                        choices = tuple(text(choice) for choice in node.choices)
                        answer = choices[model.choose(node.site, prefix, choices)]
                    calls[node.site] = (prefix, answer)
                    nodes.append((prefix + answer, answer))
                case ReleaseNode():
                    nodes.append(("", ""))
                case _:
                    assert_never(node)

    def result(tree: OutputTree) -> Plain:
        match tree:
            case Output():
                return made[tree.step][tree.node][1]
            case Slot():
                return args[tree.name]
            case Joined():
                return "".join(str(result(part)) for part in tree.parts)
            case tuple():
                return tuple(result(part) for part in tree)
            case Mapping():
                return {key: result(part) for key, part in tree.items()}
            case _:
                return tree

    return Meaning(calls, result(plan.returns))
