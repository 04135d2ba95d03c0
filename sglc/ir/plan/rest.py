"""What is left of a segment of which some generations have their answers, and some streams are not kept.

Nodes keep their order. What is known stands in the prompts as the model left it there, so whatever goes on
behind it has the ids that it would have had.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from sglc.ir.plan.segment import (
    ExtendNode,
    ForkNode,
    GenNode,
    ImagePart,
    KeepNode,
    Made,
    Node,
    NodeResult,
    OpenNode,
    Part,
    ReleaseNode,
    Segment,
    SelectNode,
    TextPart,
)


@dataclass(frozen=True, slots=True)
class Rest:
    """What is left of a segment, and where those of its nodes are now that are left."""

    segment: Segment
    places: Mapping[int, int]


def rest_of(
    segment: Segment, begun: Mapping[int, tuple[Part, ...]], known: Mapping[int, tuple[Part, ...]],
    gone: Container[int],
) -> Rest:  # fmt: skip
    """`segment` without the nodes that are `gone`, and nothing that is left reads one of these.

        s0 = open(h); s1, t = gen(s0); s2 = extend(s1, t)
            -> e = open(None); s0 = extend(e, begun[s0]); s1 = extend(s0, known[s1]); s2 = extend(s1, 'text')

    Args:
        begun: of opened streams what they are made of: they begin anew.
        known: of generations and choices what they leave in their prompts.
    """
    texts = {index: "".join(map(written, parts)) for index, parts in known.items()}
    nodes: list[Node] = []
    places: dict[int, int] = {}
    for index, node in enumerate(segment.nodes):
        if index in gone:
            continue
        if index in begun:
            nodes.append(OpenNode())
            nodes.append(ExtendNode(len(nodes) - 1, begun[index]))
        elif index in known:
            assert isinstance(node, GenNode | SelectNode)
            nodes.append(ExtendNode(places[node.stream], known[index]))
        else:
            nodes.append(_moved(node, places, texts))
        places[index] = len(nodes) - 1
    return Rest(Segment(tuple(nodes)), places)


def written(part: Part) -> str:
    """The text of what a generation left in its prompt."""
    assert isinstance(part, str | Made)
    return part if isinstance(part, str) else part.text


def _moved(node: Node, places: Mapping[int, int], texts: Mapping[int, str]) -> Node:
    """A node whose sources stand elsewhere, or are `texts` that are there."""

    def text(part: TextPart) -> TextPart:
        if not isinstance(part, NodeResult):
            return part
        return texts[part.node] if part.node in texts else NodeResult(places[part.node])

    match node:
        case OpenNode() | ReleaseNode():
            return node
        case ExtendNode(stream, parts):
            moved: list[Part] = []
            for part in parts:
                match part:
                    case NodeResult():
                        moved.append(text(part))
                    case ImagePart(data):
                        moved.append(ImagePart(text(data)))
                    case _:
                        moved.append(part)
            return ExtendNode(places[stream], tuple(moved))
        case SelectNode():
            choices = tuple([text(choice) for choice in node.choices])
            return replace(node, stream=places[node.stream], choices=choices)
        case GenNode() | ForkNode() | KeepNode():
            return replace(node, stream=places[node.stream])
