"""What goes on behind a failed generation that the program caught: the prompt, as if nothing was made there.

A back end keeps no stream that a generation of it failed in. One that the program goes on with is made again
from its texts, without those that failed; where nobody caught the failure, what would go on fails of it too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sglc.execution.outputs import PendingOutput
from sglc.ir.plan.segment import (
    ExtendNode,
    ForkNode,
    GenNode,
    ImagePart,
    KeepNode,
    Node,
    NodeResult,
    OpenNode,
    Part,
    ReleaseNode,
    Segment,
    SelectNode,
    TextPart,
    reads,
)
from sglc.ir.plan.stream_text import StreamAt


@dataclass(frozen=True, slots=True)
class Launched:
    """What was launched so far."""

    stream: Callable[[int], StreamAt | None]  # that is kept under a handle; None: by something else
    output: Callable[[GenNode | SelectNode], PendingOutput]
    text: Callable[[GenNode | SelectNode], str]  # waits for it; raises its error


@dataclass(frozen=True, slots=True)
class Mended:
    """A segment that a back end can run: where the nodes are now, and of which failure others do not come."""

    segment: Segment
    places: Mapping[int, int]
    lost: Mapping[int, PendingOutput]


def cause_of(at: StreamAt, launched: Launched) -> PendingOutput | None:
    """The failure that a node has behind it: the first that nobody caught, or else the first."""
    found: list[PendingOutput] = []
    seen: set[tuple[int, int]] = set()
    queue = _sources(at, launched)
    while queue:
        place = queue.pop()
        if (id(place[0]), place[1]) in seen:
            continue
        seen.add((id(place[0]), place[1]))
        node = place[0].nodes[place[1]]
        if isinstance(node, GenNode | SelectNode) and launched.output(node).error is not None:
            found.append(launched.output(node).root)
        else:
            queue += _sources(place, launched)
    return min(found, key=lambda output: (output.caught, output.order)) if found else None


def _sources(at: StreamAt, launched: Launched) -> list[StreamAt]:
    """What a node waits for."""
    segment, index = at
    match segment.nodes[index]:
        case OpenNode(int() as handle):
            kept = launched.stream(handle)
            return [] if kept is None else [kept]
        case node:
            return [(segment, source) for source in reads(node)]


def mended(segment: Segment, launched: Launched) -> Mended | None:
    """`segment` where it opens streams that are lost; None: it opens none."""
    again: dict[int, tuple[Part, ...]] = {}
    lost: dict[int, PendingOutput] = {}
    for index, node in enumerate(segment.nodes):
        if isinstance(node, OpenNode) and node.handle is not None:
            cause = _cause_with((segment, index), launched)
            if cause is not None and cause.caught:
                again[index] = _texts((segment, index), launched)
            elif cause is not None:
                lost[index] = cause
        elif (source := next((source for source in reads(node) if source in lost), None)) is not None:
            lost[index] = lost[source]
    if not again and not lost:
        return None
    nodes: list[Node] = []
    places: dict[int, int] = {}
    for index, node in enumerate(segment.nodes):
        if index in again:
            nodes.append(OpenNode())
            nodes.append(ExtendNode(len(nodes) - 1, again[index]))
        elif index not in lost:
            nodes.append(_moved(node, places))
        places[index] = len(nodes) - 1
    return Mended(Segment(tuple(nodes)), places, lost)


def _cause_with(at: StreamAt, launched: Launched) -> PendingOutput | None:
    """`cause_of`, the node itself among what failed."""
    node = at[0].nodes[at[1]]
    if isinstance(node, GenNode | SelectNode) and launched.output(node).error is not None:
        return launched.output(node).root
    return cause_of(at, launched)


def _texts(at: StreamAt | None, launched: Launched) -> tuple[Part, ...]:
    """What a stream is made of, without what failed; generated text is text, whatever its tokens were."""
    parts: list[Part] = []
    while at is not None:
        segment, index = at
        match segment.nodes[index]:
            case OpenNode(int() as handle):
                at = launched.stream(handle)
                continue
            case ExtendNode(_, own):
                parts += [_known(segment, part, launched) for part in reversed(own)]
            case GenNode() | SelectNode():
                parts.append(_text(segment, index, launched))
            case _:
                pass
        sources = reads(segment.nodes[index])
        at = (segment, sources[0]) if sources else None
    return tuple([part for part in reversed(parts) if part != ""])


def _text(segment: Segment, index: int, launched: Launched) -> str:
    node = segment.nodes[index]
    assert isinstance(node, GenNode | SelectNode)
    return "" if _cause_with((segment, index), launched) is not None else launched.text(node)


def _known(segment: Segment, part: Part, launched: Launched) -> Part:
    match part:
        case NodeResult(index):
            return _text(segment, index, launched)
        case ImagePart(NodeResult(index)):
            return ImagePart(_text(segment, index, launched))
        case _:
            return part


def _moved(node: Node, places: Mapping[int, int]) -> Node:
    """A node whose sources stand elsewhere."""

    def text(part: TextPart) -> TextPart:
        return NodeResult(places[part.node]) if isinstance(part, NodeResult) else part

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
