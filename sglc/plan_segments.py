"""The segments of a running plan: bound to the run, submitted, waited for, and their streams given back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from sglc.binding import site_seed
from sglc.executor import HANDLES, Run
from sglc.feed import Cell
from sglc.ir.core import Site
from sglc.ir.plan import (
    ControlText,
    ExtendNode,
    ForkNode,
    GenNode,
    Held,
    ImagePart,
    KeepNode,
    Node,
    OpenNode,
    Part,
    ReleaseNode,
    Result,
    RoleMark,
    Segment,
    SelectNode,
    Slot,
    TextPart,
    reads,
)
from sglc.ir.uses import Name
from sglc.plan_values import Kept, Samples, Value, text

Give = Callable[[Name, Value], None]


class Segments:
    """What a plan's run has to do with its back end. Used in one event loop only.

    Args:
        traced: the text of kept streams is wanted (`text`), so what they are made of is remembered.
    """

    def __init__(self, run: Run, *, traced: bool) -> None:
        self._run = run
        self._pending: dict[Site, asyncio.Future[Cell]] = {}
        self._kept: dict[int, None] = {}  # handles that the back end may hold for this run
        self._free: list[int] = []  # those that nobody needs any more
        self._traced: dict[int, tuple[Segment, int]] | None = {} if traced else None

    async def run(
        self, segment: Segment, known: Mapping[Name, Value], call: str, iterations: tuple[int, ...], give: Give
    ) -> None:
        """Submit a segment whose names are `known`, and wait for it.

        What it gives is given as soon as it is there: a text when its generation has ended, a stream
        when all generations in it have.

        Args:
            call: as in `Site.inside`, and so are `iterations`.

        Raises:
            SglcError: the first failure in it, in its order; SGLC407, the run was stopped.
        """
        if not segment.nodes:
            return
        keeps = {index: node for index, node in enumerate(segment.nodes) if isinstance(node, KeepNode)}
        numbers = {index: next(HANDLES) for index in keeps}
        nodes = [_bound(node, known, self._run, call, iterations) for node in segment.nodes]
        for index, number in numbers.items():
            nodes[index] = KeepNode(keeps[index].stream, number)
        bound = Segment(tuple(nodes))
        self._run.submit(Segment((*nodes, *map(ReleaseNode, self._free))) if self._free else bound)
        self._free.clear()
        cells = {
            index: self._cell(n.site) for index, n in enumerate(nodes) if isinstance(n, GenNode | SelectNode)
        }
        for index, number in numbers.items():
            self._kept[number] = None
            if self._traced is not None:
                self._traced[number] = (bound, keeps[index].stream)
            giving = _Giving(Held(str(keeps[index].handle)), Kept(number, self._release), give)
            giving.behind([cells[source] for source in _generations(segment, index)])
        for name, index in segment.gives:
            cells[index].add_done_callback(_giving(Slot(name), give))
        for cell in cells.values():
            error = (await asyncio.shield(cell)).error
            if error is not None:
                raise error

    async def watch(self) -> None:
        """Notice what has come of pending generations, until the run is stopped.

        Raises:
            RunError: why it was stopped.
        """
        while True:
            for site in await self._run.feed.wait_async(self._come):
                cell = self._pending.pop(site)
                if not cell.done():
                    cell.set_result(self._run.feed.cells[site])
            if self._run.stopped:
                self._run.submit(Segment(()))  # raises why

    async def give_back(self) -> None:
        """Release every stream that is still kept, when everything submitted has ended."""
        await asyncio.to_thread(self._run.wait)
        nodes = tuple(map(ReleaseNode, (*self._free, *self._kept)))
        self._free.clear()
        self._kept.clear()
        if not nodes:
            return
        with suppress(Exception):  # a back end that has broken down keeps nothing; the run has its error
            async for _ in self._run.backend.submit(Segment(nodes)):
                pass

    def text(self, kept: Kept) -> str:
        """The text of a stream, markup included, when all generations in it have ended."""
        assert self._traced is not None
        texts: list[str] = []
        at = None if kept.number is None else self._traced[kept.number]
        while at is not None:
            segment, index = at
            node = segment.nodes[index]
            match node:
                case OpenNode(handle=int() as number):
                    at = self._traced[number]
                case OpenNode():
                    at = None
                case ExtendNode():
                    texts += [self._part(part, segment) for part in reversed(node.parts)]
                    at = (segment, node.stream)
                case GenNode() | SelectNode():
                    texts.append(self._made(node))
                    at = (segment, node.stream)
                case ForkNode():
                    at = (segment, node.stream)
                case KeepNode() | ReleaseNode():
                    raise AssertionError("not a stream")
        return "".join(reversed(texts))

    # -- inside ----------------------------------------------------------------------------------

    def _cell(self, site: Site) -> asyncio.Future[Cell]:
        self._pending[site] = asyncio.get_running_loop().create_future()
        return self._pending[site]

    def _come(self) -> list[Site] | None:
        """Pending generations that have ended; None if nobody needs to be told anything."""
        cells = self._run.feed.cells
        ready = [site for site in self._pending if cells[site].ready]
        return ready if ready or self._run.stopped else None

    def _release(self, number: int) -> None:
        """Nobody needs a stream any more: the next segment says so to the back end."""
        if number in self._kept:
            del self._kept[number]
            self._free.append(number)

    def _part(self, part: Part, segment: Segment) -> str:
        match part:
            case str():
                return part
            case ControlText() | RoleMark():
                return part.text
            case Result():
                made = segment.nodes[part.node]
                assert isinstance(made, GenNode | SelectNode)
                return self._made(made)
            case ImagePart():
                return ""
            case Slot():
                raise AssertionError("it was bound")

    def _made(self, node: GenNode | SelectNode) -> str:
        return text(_value(self._run.feed.cells[node.site]))


class _Giving:
    """Gives a stream when several generations have ended well; a failure is given with the whole step's."""

    def __init__(self, name: Name, value: Value, give: Give) -> None:
        self._name = name
        self._value = value
        self._give = give
        self._missing = 0

    def behind(self, cells: Sequence[asyncio.Future[Cell]]) -> None:
        self._missing = len(cells)
        for cell in cells:
            cell.add_done_callback(self._done)
        if not cells:
            self._give(self._name, self._value)

    def _done(self, come: asyncio.Future[Cell]) -> None:
        if not come.cancelled() and come.result().error is None:
            self._missing -= 1
            if not self._missing:
                self._give(self._name, self._value)


def _generations(segment: Segment, index: int) -> list[int]:
    """The generations that node `index` waits for, directly or not."""
    seen = {index: None}
    for at in range(index, -1, -1):
        if at in seen:
            seen.update(dict.fromkeys(reads(segment.nodes[at])))
    return [at for at in seen if isinstance(segment.nodes[at], GenNode | SelectNode)]


def _giving(name: Slot, give: Give) -> Callable[[asyncio.Future[Cell]], None]:
    """Gives the text of a generation when it has come; its failure is given with the whole step's."""

    def done(come: asyncio.Future[Cell]) -> None:
        if not come.cancelled() and come.result().error is None:
            give(name, _value(come.result()))

    return done


def _value(cell: Cell) -> Value:
    assert cell.text is not None
    return Samples(tuple(cell.text)) if isinstance(cell.text, list) else cell.text


def _bound(node: Node, known: Mapping[Name, Value], run: Run, call: str, iterations: tuple[int, ...]) -> Node:
    """A node with the texts and handles of this run, the site where it runs, and its seed."""
    match node:
        case OpenNode(handle=str() as name):
            kept = known[Held(name)]
            assert isinstance(kept, Kept)
            return OpenNode(kept.number)
        case ExtendNode():
            return ExtendNode(node.stream, tuple(_part(part, known) for part in node.parts))
        case GenNode():
            site = node.site.inside(call, iterations)
            return replace(node, site=site, seed=site_seed(run.seed, run.row, site))
        case SelectNode():
            choices = tuple(_text(choice, known) for choice in node.choices)
            return replace(node, site=node.site.inside(call, iterations), choices=choices)
        case _:
            return node


def _part(part: Part, known: Mapping[Name, Value]) -> Part:
    match part:
        case Slot():
            return _text(part, known)
        case ImagePart():
            return ImagePart(_text(part.data, known))
        case _:
            return part


def _text(part: TextPart, known: Mapping[Name, Value]) -> TextPart:
    return text(known[part]) if isinstance(part, Slot) else part
