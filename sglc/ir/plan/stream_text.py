"""From a stream back to its text, through the nodes that made it; segments are bound, so no slot is left."""

from __future__ import annotations

from collections.abc import Callable

from sglc.ir.core import Site
from sglc.ir.plan.segment import (
    EncodedText,
    GenNode,
    ImagePart,
    Made,
    NodeResult,
    OpenNode,
    Part,
    RoleMark,
    Segment,
    SelectNode,
    Slot,
    origin,
)
from sglc.ir.target import ControlText

StreamAt = tuple[Segment, int]  # the stream behind a node of a segment


def stream_pieces(at: StreamAt | None, opened: Callable[[int], StreamAt | None]) -> list[str | Site]:
    """What a stream is made of: literals, and the sites of the texts that were made in it.

    Args:
        opened: the stream that was kept under a handle; None: what is before it is not wanted.
    """
    pieces: list[str | Site] = []
    while at is not None:
        segment, index = at
        begin, parts = origin(segment.nodes, index)
        pieces += [_piece(segment, part) for part in reversed(parts)]
        match segment.nodes[begin]:
            case OpenNode(handle):
                at = opened(handle) if isinstance(handle, int) else None
            case GenNode(stream, site) | SelectNode(stream, site):
                pieces.append(site)
                at = segment, stream
            case _:
                raise AssertionError("not a stream")
    pieces.reverse()
    return pieces


def _piece(segment: Segment, part: Part) -> str | Site:
    match part:
        case str():
            return part
        case ControlText() | RoleMark() | Made():
            return part.text
        case ImagePart():
            return ""  # a picture is no text
        case NodeResult(index):
            made = segment.nodes[index]
            assert isinstance(made, GenNode | SelectNode)
            return made.site
        case Slot(name):
            raise AssertionError(f"slot {name} is not bound")
        case EncodedText():
            raise AssertionError("no plan has it")
