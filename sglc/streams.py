"""Reading a run while it goes on: every reader has its own place in the feed.

A reader gives every piece once and in order, however slow or late it is, then ends; an error comes
after everything that came before it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from sglc.calls import meta_info, meta_so_far
from sglc.feed import Feed
from sglc.frontend.instance import Variable
from sglc.frontend.recorder import Generated
from sglc.ir.core import Site


@dataclass(frozen=True, slots=True)
class Portion:
    """What a reader finds at once; after an `ended` one comes nothing."""

    pieces: list[Any]
    ended: bool = False
    error: BaseException | None = None


class Reader(Protocol):
    """A place in a feed."""

    def take(self) -> Portion | None:
        """What came since the last call; None if nothing did. Called under the feed's lock."""


class TextReader:
    """The whole text of the run's own stream: literals, chat markup, generated pieces."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._part = 0
        self._piece = 0

    def take(self) -> Portion | None:
        pieces: list[Any] = []
        while self._part < len(self._feed.text):
            part = self._feed.text[self._part]
            if isinstance(part, str):
                pieces.append(part)
            else:
                cell = self._feed.cells[part]
                pieces += cell.pieces[self._piece :]
                self._piece = len(cell.pieces)
                if cell.error is not None:
                    return Portion(pieces, True, cell.error)
                if cell.text is None:
                    return Portion(pieces) if pieces else None
            self._part += 1
            self._piece = 0
        if self._feed.ended:
            return Portion(pieces, True, self._feed.error)
        return Portion(pieces) if pieces else None


class VariableReader:
    """One variable: the pieces of a generation of one text, anything else as a whole."""

    def __init__(self, feed: Feed, name: str) -> None:
        self._feed = feed
        self._name = name
        self._piece = 0
        self.variable: tuple[Variable, ...] | None = None

    def take(self) -> Portion | None:
        self.variable = self.variable or self._feed.find(self._name)
        match self.variable:
            case None:
                return None
            case ():
                return Portion([], True, self._feed.missing(self._name))
            case (Generated(site=site),) if site in self._feed.cells and not self._feed.cells[site].several:
                return self._pieces(site)
            case (variable,):
                ready = self._feed.value(variable)
                if ready is None:
                    return None
                return Portion([] if ready.error else [ready.value], True, ready.error)
            case _:
                raise AssertionError(self.variable)

    def _pieces(self, site: Site) -> Portion | None:
        cell = self._feed.cells[site]
        pieces: list[Any] = cell.pieces[self._piece :]
        self._piece = len(cell.pieces)
        if cell.ready:
            return Portion(pieces, True, cell.error)
        return Portion(pieces) if pieces else None


class PieceReader:
    """(site, text) of all generations of a run, branches too, in the order in which they come."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._piece = 0

    def take(self) -> Portion | None:
        pieces: list[Any] = self._feed.pieces[self._piece :]
        self._piece = len(self._feed.pieces)
        if self._feed.ended:
            return Portion(pieces, True, self._feed.error)
        return Portion(pieces) if pieces else None


def read(wait: Callable[[Callable[[], Portion | None]], Portion], reader: Reader) -> Iterator[Any]:
    """The pieces of `reader`; `wait` is `Feed.wait`, or something round it.

    Raises:
        the reader's error, after its last piece.
    """
    while True:
        portion = wait(reader.take)
        yield from portion.pieces
        if portion.error is not None:
            raise portion.error
        if portion.ended:
            return


async def read_async(feed: Feed, reader: Reader) -> AsyncIterator[Any]:
    """`read` without blocking the event loop."""
    while True:
        portion = await feed.wait_async(reader.take)
        for piece in portion.pieces:
            yield piece
        if portion.error is not None:
            raise portion.error
        if portion.ended:
            return


async def read_with_meta(feed: Feed, name: str) -> AsyncIterator[tuple[Any, dict[str, Any]]]:
    """(piece, meta data) of a variable; the last pair has the whole meta data, perhaps with an empty piece."""
    reader = VariableReader(feed, name)
    while True:
        portion = await feed.wait_async(reader.take)
        last = portion.pieces.pop() if portion.ended and portion.pieces else ""
        for piece in portion.pieces:
            yield piece, meta_so_far()
        if portion.error is not None:
            if last:
                yield last, meta_so_far()
            raise portion.error
        if portion.ended:
            yield last, _meta_of(feed, reader)
            return


def _meta_of(feed: Feed, reader: VariableReader) -> dict[str, Any]:
    match reader.variable:
        case (Generated(site=site),):
            call = feed.cells[site].call
            return {} if call is None else meta_info(call)
        case _:
            return {}  # no generation made it
