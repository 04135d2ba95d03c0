"""Segments that go on behind what the back end does not have: failed generations, and answers of a plan.

A back end keeps no stream that a generation of it failed in. One that the program goes on with is made again
from its texts, without those that failed; where nobody caught the failure, what would go on fails of it too.
An answer that a plan has had before its program went on as Python is not asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

from sglc.execution.outputs import PendingOutput
from sglc.ir.core import Site
from sglc.ir.plan.rest import rest_of, written
from sglc.ir.plan.segment import (
    ExtendNode,
    GenNode,
    ImagePart,
    NodeResult,
    OpenNode,
    Part,
    Segment,
    SelectNode,
    reads,
)
from sglc.ir.plan.stream_text import StreamAt


@dataclass(frozen=True, slots=True)
class Launched:
    """What was launched so far."""

    stream: Callable[[int], StreamAt | None]  # that is kept under a handle; None: by something else
    output: Callable[[GenNode | SelectNode], PendingOutput]
    parts: Callable[[GenNode | SelectNode], tuple[Part, ...]]  # what it leaves in its prompt; waits, raises
    gone: Container[int] = frozenset()  # handles of streams that were never sent
    served: Container[Site] = frozenset()  # generations that are there already


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
    """`segment` where it opens streams that are lost, or has what is there already; None: it has neither."""
    again: dict[int, tuple[Part, ...]] = {}
    lost: dict[int, PendingOutput] = {}
    known: dict[int, tuple[Part, ...]] = {}
    for index, node in enumerate(segment.nodes):
        if isinstance(node, OpenNode) and node.handle is not None:
            cause = _cause_with((segment, index), launched)
            if cause is not None and not cause.caught:
                lost[index] = cause
            elif cause is not None or node.handle in launched.gone:
                again[index] = _parts((segment, index), launched)
        elif (source := next((source for source in reads(node) if source in lost), None)) is not None:
            lost[index] = lost[source]
        elif isinstance(node, GenNode | SelectNode) and launched.output(node).error is not None:
            lost[index] = launched.output(node).root
        elif isinstance(node, GenNode | SelectNode) and node.site in launched.served:
            known[index] = launched.parts(node)
    if not again and not lost and not known:
        return None
    rest = rest_of(segment, again, known, lost)
    return Mended(rest.segment, rest.places, lost)


def _cause_with(at: StreamAt, launched: Launched) -> PendingOutput | None:
    """`cause_of`, the node itself among what failed."""
    node = at[0].nodes[at[1]]
    if isinstance(node, GenNode | SelectNode) and launched.output(node).error is not None:
        return launched.output(node).root
    return cause_of(at, launched)


def _parts(at: StreamAt | None, launched: Launched) -> tuple[Part, ...]:
    """What a stream is made of, without what failed."""
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
                parts += reversed(_said(segment, index, launched))
            case _:
                pass
        sources = reads(segment.nodes[index])
        at = (segment, sources[0]) if sources else None
    return tuple([part for part in reversed(parts) if part != ""])


def _said(segment: Segment, index: int, launched: Launched) -> tuple[Part, ...]:
    node = segment.nodes[index]
    assert isinstance(node, GenNode | SelectNode)
    return () if _cause_with((segment, index), launched) is not None else launched.parts(node)


def _text(segment: Segment, index: int, launched: Launched) -> str:
    return "".join(map(written, _said(segment, index, launched)))


def _known(segment: Segment, part: Part, launched: Launched) -> Part:
    match part:
        case NodeResult(index):
            return _text(segment, index, launched)
        case ImagePart(NodeResult(index)):
            return ImagePart(_text(segment, index, launched))
        case _:
            return part
