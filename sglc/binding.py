"""A segment with a row's own data: texts for slots, handles for kept streams, seeds for generations."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from sglc.ir.core import Site
from sglc.ir.plan import (
    ExtendNode,
    GenNode,
    ImagePart,
    KeepNode,
    Node,
    OpenNode,
    Part,
    Segment,
    SelectNode,
    Slot,
    TextPart,
)


class Template:
    """A segment that many rows share: what differs from row to row is found once."""

    __slots__ = ("_own", "segment")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._own = tuple([index for index, node in enumerate(segment.nodes) if _differs(node)])

    def bind(
        self,
        texts: Mapping[str, str],
        opened: Mapping[str, int | None],
        kept: Mapping[Any, int] | None,
        seed_of: Callable[[Site], int],
    ) -> Segment:
        """The segment with slots, handles and seeds filled in. `kept` None leaves the names of kept streams."""
        nodes = list(self.segment.nodes)
        for index in self._own:
            nodes[index] = _bound(nodes[index], texts, opened, kept, seed_of)
        return Segment(tuple(nodes))


def bind(
    segment: Segment,
    texts: Mapping[str, str],
    opened: Mapping[str, int | None],
    kept: Mapping[Any, int] | None,
    seed_of: Callable[[Site], int],
) -> Segment:
    """As `Template.bind`, for a segment that is bound once."""
    return Template(segment).bind(texts, opened, kept, seed_of)


def asked_in(segment: Segment) -> dict[int, GenNode | SelectNode]:
    """The generations and choices of a segment, by their place in it."""
    return {i: node for i, node in enumerate(segment.nodes) if isinstance(node, GenNode | SelectNode)}


def _differs(node: Node) -> bool:
    match node:
        case OpenNode(handle):
            return isinstance(handle, str)
        case ExtendNode(parts=parts):
            return any(isinstance(part, Slot | ImagePart) for part in parts)
        case SelectNode(choices=choices):
            return any(isinstance(choice, Slot) for choice in choices)
        case _:
            return isinstance(node, GenNode | KeepNode)


def _bound(
    node: Node,
    texts: Mapping[str, str],
    opened: Mapping[str, int | None],
    kept: Mapping[Any, int] | None,
    seed_of: Callable[[Site], int],
) -> Node:
    match node:
        case ExtendNode(stream, parts):
            return ExtendNode(stream, tuple([_part(part, texts) for part in parts]))
        case GenNode(stream, site, sampling, loc):
            return GenNode(stream, site, sampling, loc, seed_of(site))
        case SelectNode(stream, site, choices, method, loc):
            filled: tuple[TextPart, ...] = tuple(
                [texts[choice.name] if isinstance(choice, Slot) else choice for choice in choices]
            )
            return SelectNode(stream, site, filled, method, loc)
        case OpenNode(str() as name):
            return OpenNode(opened.get(name))
        case KeepNode() if kept is not None:
            return KeepNode(node.stream, kept[node.handle])
        case _:
            return node


def _part(part: Part, texts: Mapping[str, str]) -> Part:
    match part:
        case Slot(name):
            return texts[name]
        case ImagePart(Slot(name)):
            return ImagePart(texts[name])
        case _:
            return part


def without_keeps(segment: Segment) -> Segment:
    """`segment` without the keeps at its end, for the last launch of a run."""
    end = len(segment.nodes)
    while end and isinstance(segment.nodes[end - 1], KeepNode):
        end -= 1
    return Segment(segment.nodes[:end])


def site_seed(run_seed: int, row: int, site: Site) -> int:
    """The 64-bit seed of a generation: hash(run seed, row, site), the same in every process."""
    digest = hashlib.blake2b(f"{run_seed}/{row}/{site}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
