"""A segment with a row's own data: texts for slots, handles for kept streams, seeds for generations."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sglc.ir.core import Site
from sglc.ir.plan import ExtendNode, GenNode, KeepNode, Node, OpenNode, Segment, SelectNode, Slot, TextPart


def bind(
    segment: Segment,
    texts: Mapping[str, str],
    opened: Mapping[str, int | None],
    kept: Mapping[Any, int] | None,
    seed_of: Callable[[Site], int],
) -> Segment:
    """`segment` with slots, handles and seeds filled in. `kept` None leaves the names of kept streams."""

    def text(part: Any) -> Any:
        return texts[part.name] if isinstance(part, Slot) else part

    def bound(node: Node) -> Node:
        match node:
            case OpenNode(str() as name):
                return OpenNode(opened.get(name))
            case ExtendNode() if any(isinstance(part, Slot) for part in node.parts):
                return ExtendNode(node.stream, tuple(text(part) for part in node.parts))
            case GenNode() if node.sampling.seed is None:
                return replace(node, sampling=replace(node.sampling, seed=seed_of(node.site)))
            case SelectNode():
                choices: tuple[TextPart, ...] = tuple(text(choice) for choice in node.choices)
                return replace(node, choices=choices)
            case KeepNode() if kept is not None:
                return KeepNode(node.stream, kept[node.handle])
            case _:
                return node

    return Segment(tuple(bound(node) for node in segment.nodes))


def without_keeps(segment: Segment) -> Segment:
    """`segment` without the keeps at its end, for the last launch of a run."""
    nodes = list(segment.nodes)
    while nodes and isinstance(nodes[-1], KeepNode):
        nodes.pop()
    assert not any(isinstance(node, KeepNode) for node in nodes), "keeps come last"
    return Segment(tuple(nodes))


def site_seed(run_seed: int, row: int, site: Site) -> int:
    """The 64-bit seed of a generation: hash(run seed, row, site), the same in every process."""
    digest = hashlib.blake2b(f"{run_seed}/{row}/{site}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
