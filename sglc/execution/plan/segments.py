"""The segments of a running plan: bound to the run, submitted, waited for, and their streams given back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from sglc.execution.bind import Own, Template, asked_in
from sglc.execution.outputs import PendingOutput
from sglc.execution.plan.scope import behind
from sglc.execution.plan.values import Kept, Samples, Value, text
from sglc.execution.session import HANDLES, Session
from sglc.ir.core import Site
from sglc.ir.plan.segment import (
    GenNode,
    Held,
    KeepNode,
    ReleaseNode,
    Segment,
    SelectNode,
    Slot,
)
from sglc.ir.plan.stream_text import stream_pieces
from sglc.ir.plan.uses import Name, own_reads

Give = Callable[[Name, Value], None]


class Bindings:
    """The segments of one plan with what all runs of it share. Used in one event loop only."""

    def __init__(self) -> None:
        self._shared: dict[tuple[int, bool], _Shared] = {}  # by the segment's id and whether it is placed

    def of(self, segment: Segment, *, placed: bool) -> _Shared:
        """What is known of a segment of the plan."""
        key = id(segment), placed  # the plan keeps the segment alive
        found = self._shared.get(key)
        if found is None:
            found = self._shared[key] = _Shared(segment, placed)
        return found


class _Shared:
    """A segment of a plan: its template, what it reads, what it asks for and what it keeps."""

    def __init__(self, segment: Segment, placed: bool) -> None:
        self.template = Template(segment, placed=placed)
        reads = dict.fromkeys(own_reads(segment))
        self.slots = [name for name in reads if isinstance(name, Slot)]
        self.opened = [(name, name.name) for name in reads if isinstance(name, Held) and name.name is not None]
        self.keeps = [(index, node) for index, node in enumerate(segment.nodes) if isinstance(node, KeepNode)]
        self.behind = {index: _generations(segment, index) for index, _ in self.keeps}


class Segments:
    """What a plan's run has to do with its back end. Used in one event loop only.

    Args:
        traced: the text of kept streams is wanted (`text`), so what they are made of is remembered.

    Attributes:
        stopped: is done as soon as the run is stopped.
    """

    def __init__(self, session: Session, bindings: Bindings, *, traced: bool) -> None:
        self._session = session
        self._bindings = bindings
        self._pending: dict[Site, _Waiting] = {}
        self._kept: dict[int, None] = {}  # handles that the back end may hold for this run
        self._free: list[int] = []  # those that nobody needs any more
        self._traced: dict[int, tuple[Segment, int]] | None = {} if traced else None
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._told = False  # whether the loop is going to look, inside the outputs' lock
        self.stopped: asyncio.Future[None] = self._loop.create_future()
        with session.outputs.change as change:
            change.listeners.append(self._changed)

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
        shared = self._bindings.of(segment, placed=bool(call or iterations))
        numbers = {node.handle: next(HANDLES) for _, node in shared.keeps}
        own = Own(
            {name.name: text(known[name]) for name in shared.slots},
            {handle: _number(known[name]) for name, handle in shared.opened},
            numbers, self._session.seeds, call=call, iterations=iterations,
        )  # fmt: skip
        bound = shared.template.bind(own)
        whole = Segment((*bound.nodes, *map(ReleaseNode, self._free))) if self._free else bound
        self._session.submit(whole)
        self._free.clear()
        self._kept.update(dict.fromkeys(numbers.values()))
        sites = {index: node.site for index, node in asked_in(bound).items()}
        waiting = _Waiting(self._loop.create_future(), len(sites))
        for index, node in shared.keeps:
            number = numbers[node.handle]
            if self._traced is not None:
                self._traced[number] = (bound, node.stream)
            giving = partial(give, Held(str(node.handle)), Kept(number, self._release))
            waiting.behind([sites[source] for source in shared.behind[index]], giving)
        for name, index in segment.gives:
            waiting.gives.setdefault(sites[index], []).append(partial(_give_text, give, Slot(name)))
        if not sites:
            return
        self._pending.update(dict.fromkeys(sites.values(), waiting))
        await waiting.ended
        for site in sites.values():
            error = self._session.outputs.generations[site].error
            if error is not None:
                raise error

    async def give_back(self) -> None:
        """Release every stream that is still kept, when everything submitted has ended."""
        with self._session.outputs.change as change:
            if self._changed in change.listeners:
                change.listeners.remove(self._changed)
        idle = asyncio.Event()
        self._session.when_idle(idle.set)
        await idle.wait()
        nodes = tuple(map(ReleaseNode, (*self._free, *self._kept)))
        self._free.clear()
        self._kept.clear()
        if not nodes:
            return
        with suppress(Exception):  # a back end that has broken down keeps nothing; the run has its error
            async for _ in self._session.backend.submit(Segment(nodes)):
                pass

    def text(self, kept: Kept) -> str:
        """The text of a stream, markup included, when all generations in it have ended."""
        assert self._traced is not None
        at = None if kept.number is None else self._traced[kept.number]
        pieces = stream_pieces(at, self._traced.__getitem__)
        made = self._session.outputs.generations
        return "".join([piece if isinstance(piece, str) else text(value_of(made[piece])) for piece in pieces])

    # -- inside ----------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Something is new; called inside the outputs' lock, in any thread."""
        if self._told:
            return
        self._told = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._look)
        else:
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        """Tell those who wait for generations that have ended."""
        self._told = False  # before the look: who comes behind it tells again
        generations = self._session.outputs.generations
        for site in [site for site in self._pending if generations[site].ready]:
            self._pending.pop(site).come(generations[site])
        if self._session.stopped and not self.stopped.done():
            self.stopped.set_result(None)

    def _release(self, number: int) -> None:
        """Nobody needs a stream any more: the next segment says so to the back end."""
        if number in self._kept:
            del self._kept[number]
            self._free.append(number)


class _Waiting:
    """A segment that was submitted. What it gives is given as its generations end well; then it has `ended`.

    Args:
        missing: generations of it that have not ended.
    """

    __slots__ = ("_missing", "ended", "gives")

    def __init__(self, ended: asyncio.Future[None], missing: int) -> None:
        self.ended = ended
        # By the generation that they wait for.
        self.gives: dict[Site, list[Callable[[PendingOutput], None]]] = {}
        self._missing = missing

    def behind(self, sites: Sequence[Site], give: Callable[[], None]) -> None:
        """Call `give` when all these generations have ended well: perhaps now."""
        left = len(sites)

        def come(_: PendingOutput) -> None:
            nonlocal left
            left -= 1
            if not left:
                give()

        for site in sites:
            self.gives.setdefault(site, []).append(come)
        if not left:
            give()

    def come(self, output: PendingOutput) -> None:
        """A generation has ended."""
        if output.error is None:
            for give in self.gives.get(output.site, ()):
                give(output)
        self._missing -= 1
        if not self._missing and not self.ended.done():
            self.ended.set_result(None)


def _generations(segment: Segment, index: int) -> list[int]:
    """The generations that node `index` waits for, directly or not."""
    return [at for at in sorted(behind(segment, index)) if isinstance(segment.nodes[at], GenNode | SelectNode)]


def _give_text(give: Give, name: Slot, output: PendingOutput) -> None:
    give(name, value_of(output))


def value_of(output: PendingOutput) -> Value:
    """What a generation gave."""
    assert output.text is not None
    return Samples(tuple(output.text)) if isinstance(output.text, list) else output.text


def _number(value: Value) -> int | None:
    assert isinstance(value, Kept)
    return value.number
