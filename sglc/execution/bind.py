"""A segment with a row's own data: texts for slots, handles for kept streams, seeds for generations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from sglc.ir.core import Site
from sglc.ir.plan.segment import (
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
    reads,
    waits_of,
)
from sglc.ir.values import limited


@dataclass(slots=True)  # not frozen: one is made for every segment
class Own:
    """A row's own data: texts by slot, numbers of the streams it opens and keeps, where its seeds begin, and
    the cache keys of its generations: most back ends have none, and a site takes time to hash.

    `call` and `iterations` are as in `Site.inside`, for a template that is `placed`. `drawn`: nobody asked for
    the seed.
    """

    texts: Mapping[str, str]
    opened: Mapping[str, int | None]
    kept: Mapping[Any, int]
    seeds: blake2b
    cache_keys: Mapping[Site, str] | None = None
    call: str = ""
    iterations: tuple[int, ...] = ()
    drawn: bool = False


class Template:
    """A segment that many rows share: what differs from row to row is found once.

    Args:
        placed: it runs in a called program or in a loop, where sites are distinct by it.
    """

    __slots__ = ("_fill", "_waits", "segment")

    def __init__(self, segment: Segment, *, placed: bool = False) -> None:
        self.segment = segment
        self._waits = waits_of([reads(node) for node in segment.nodes])
        fillers = [(index, _filler(node, placed)) for index, node in enumerate(segment.nodes)]
        self._fill = tuple([(index, fill) for index, fill in fillers if fill is not None])

    def bind(self, own: Own) -> Segment:
        """The segment with slots, handles and seeds filled in."""
        nodes = list(self.segment.nodes)
        for index, fill in self._fill:
            nodes[index] = fill(own)
        return Segment(tuple(nodes), waits=self._waits)


def asked_in(segment: Segment) -> dict[int, GenNode | SelectNode]:
    """The generations and choices of a segment, by their place in it."""
    return {i: node for i, node in enumerate(segment.nodes) if isinstance(node, GenNode | SelectNode)}


def _filler(node: Node, placed: bool) -> Callable[[Own], Node] | None:
    """What makes a row's own node of a shared one; None if all rows have the same.

    Args:
        placed: as of `Template`.
    """
    match node:
        case GenNode() if node.limit:
            return _limited(node, placed)
        case ExtendNode(stream, parts) if any(isinstance(part, ImagePart) for part in parts):
            return lambda own: ExtendNode(stream, tuple([_part(part, own.texts) for part in parts]))
        case ExtendNode(stream, parts) if slots := [
            (place, part.name) for place, part in enumerate(parts) if isinstance(part, Slot)
        ]:

            def extended(own: Own) -> Node:
                said = list(parts)
                for place, name in slots:
                    said[place] = own.texts[name]
                return ExtendNode(stream, tuple(said))

            return extended
        case GenNode(stream, site, sampling, loc, ahead=ahead, cache_key=key, unify=unify, fused=fused) as node:
            next_use, most, behind = _told(node)
            name = str(site).encode()

            def filled(own: Own) -> Node:
                at = site.inside(own.call, own.iterations) if placed else site
                seed = _seed(own.seeds, str(at).encode() if placed else name)
                cache_key = own.cache_keys.get(site, key) if own.cache_keys else key
                return GenNode(
                    stream, at, sampling, loc, seed, ahead, cache_key, unify,
                    fused=fused, drawn=own.drawn, next_use=next_use, most=most, behind=behind,
                )  # fmt: skip

            return filled
        case SelectNode(stream, site, choices, method, loc, key, unify, fused=fused) as node:
            next_use, most, behind = _told(node)
            return lambda own: SelectNode(
                stream, site.inside(own.call, own.iterations) if placed else site,
                tuple([_choice(choice, own.texts) for choice in choices]),
                method, loc, own.cache_keys.get(site, key) if own.cache_keys else key, unify, fused=fused,
                next_use=next_use, most=most, behind=behind,
            )  # fmt: skip
        case OpenNode(str() as opened):
            return lambda own: OpenNode(own.opened.get(opened))
        case KeepNode(stream, handle):
            return lambda own: KeepNode(stream, own.kept[handle])
        case _:
            return None


def _limited(node: GenNode, placed: bool) -> Callable[[Own], Node]:
    """What makes a row's own node of one whose `max_tokens` is the row's."""
    fill = _filler(replace(node, limit=""), placed)
    assert fill is not None

    def filled(own: Own) -> Node:
        sampling = limited(node.sampling, own.texts[node.limit], node.loc)
        made = fill(own)
        assert isinstance(made, GenNode)
        return replace(made, sampling=sampling, most=sampling.max_tokens if node.next_use else 0)

    return filled


def _told(node: GenNode | SelectNode) -> tuple[str, int, int]:
    """What engines are told ahead of it, which is of every row the same."""
    return (node.next_use, node.most, node.behind) if node.next_use else ("", 0, 0)


def _choice(choice: TextPart, texts: Mapping[str, str]) -> TextPart:
    return texts[choice.name] if isinstance(choice, Slot) else choice


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


def seeds_of(run_seed: int, row: int) -> blake2b:
    """Where the seeds of one row begin: `site_seed` goes on with the site."""
    return blake2b(f"{run_seed}/{row}/".encode(), digest_size=8)


def site_seed(run_seed: int, row: int, site: Site) -> int:
    """The 64-bit seed of a generation: hash(run seed, row, site), the same in every process."""
    return _seed(seeds_of(run_seed, row), str(site).encode())


def _seed(seeds: blake2b, name: bytes) -> int:
    own = seeds.copy()
    own.update(name)
    return int.from_bytes(own.digest(), "little")
