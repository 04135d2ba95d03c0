"""Reading a run while it goes on: every reader has its own place among its outputs.

A reader gives every piece once and in order, however slow or late it is, then ends; an error comes
after everything that came before it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol

from sglc.execution.call_record import meta_rest, meta_so_far
from sglc.execution.outputs import RunOutputs
from sglc.frontend.language.reasoning import Share, ShareReader
from sglc.frontend.program.instance import Variable
from sglc.frontend.values.recorded import Generated
from sglc.ir.core import Site
from sglc.ir.plan.events import Delta


@dataclass(frozen=True, slots=True)
class Portion:
    """What a reader finds at once; after an `ended` one comes nothing.

    `deltas` are what the pieces are of, as many as there are pieces, or none.
    """

    pieces: list[Any]
    ended: bool = False
    error: BaseException | None = None
    deltas: Sequence[Delta] = ()


class Reader(Protocol):
    """A place among a run's outputs."""

    def take(self) -> Portion | None:
        """What came since the last call; None if nothing did. Called under the outputs' lock."""


class TextReader:
    """The whole text of the run's own stream: literals, chat markup, generated pieces."""

    def __init__(self, outputs: RunOutputs) -> None:
        self._outputs = outputs
        self._part = 0
        self._piece = 0

    def come(self) -> list[str]:
        """The pieces that there are."""
        portion = self.take()
        return [] if portion is None else portion.pieces

    def take(self) -> Portion | None:
        pieces: list[Any] = []
        while self._part < len(self._outputs.text):
            part = self._outputs.text[self._part]
            if isinstance(part, str):
                pieces.append(part)
            else:
                output = self._outputs.generations.get(part) or self._outputs.before.get(part)
                if output is None:  # it has not begun
                    break
                said = output.said
                pieces += said[self._piece :]
                self._piece = len(said)
                over = self._outputs.error is not None or (self._outputs.ended and not output.caught)
                if output.error is not None and over:
                    return Portion(pieces, True, output.error)
                if output.text is None and not output.caught:  # the program may catch a failure yet
                    return Portion(pieces) if pieces else None
            self._part += 1
            self._piece = 0
        if self._outputs.ended:
            return Portion(pieces, True, self._outputs.error)
        return Portion(pieces) if pieces else None


class VariableReader:
    """One variable: the pieces of a generation of one text, anything else as a whole."""

    def __init__(self, outputs: RunOutputs, name: str) -> None:
        self._outputs = outputs
        self._name = name
        self._piece = 0
        self._share: ShareReader | None = None  # of a text that is divided among variables
        self.variable: tuple[Variable, ...] | None = None

    def take(self) -> Portion | None:
        self.variable = self.variable or self._outputs.find(self._name)
        match self.variable:
            case None:
                return None
            case ():
                return Portion([], True, self._outputs.missing(self._name))
            case (Generated(site=site, parser=parser),) if (
                self._outputs.at(site) in self._outputs.generations
                and not self._outputs.generations[self._outputs.at(site)].several
            ):
                if self._share is None and parser is not None and isinstance(parser.value, Share):
                    self._share = ShareReader(parser.value)
                return self._pieces(site)
            case (variable,):
                ready = self._outputs.value(variable)
                if ready is None:
                    return None
                return Portion([] if ready.error else [ready.value], True, ready.error)
            case _:
                raise AssertionError(self.variable)

    def _pieces(self, site: Site) -> Portion | None:
        output = self._outputs.generations[self._outputs.at(site)]
        said = output.said
        pieces: list[Any] = said[self._piece :]
        deltas = output.deltas[self._piece :] if output.deltas else []
        self._piece = len(said)
        if self._share is not None:
            pieces, deltas = self._share.pieces(pieces, ended=output.ready), []
        if output.ready:
            return Portion(pieces, True, output.error, deltas)
        return Portion(pieces, deltas=deltas) if pieces else None


class PieceReader:
    """(site, text) of all generations of a run, branches too, in the order in which they come."""

    def __init__(self, outputs: RunOutputs) -> None:
        self._outputs = outputs
        self._piece = 0

    def take(self) -> Portion | None:
        outputs = self._outputs
        if outputs.live:
            pieces: list[Any] = outputs.pieces[self._piece :]
            self._piece = len(outputs.pieces)
        else:
            pieces = [(output.site, text) for output in outputs.done[self._piece :] for text in output.said]
            self._piece = len(outputs.done)
        if self._outputs.ended:
            return Portion(pieces, True, self._outputs.error)
        return Portion(pieces) if pieces else None


def read(wait: Callable[[Callable[[], Portion | None]], Portion], reader: Reader) -> Iterator[Any]:
    """The pieces of `reader`; `wait` is `RunOutputs.wait`, or something round it.

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


async def read_async(outputs: RunOutputs, reader: Reader) -> AsyncIterator[Any]:
    """`read` without blocking the event loop."""
    while True:
        portion = await outputs.wait_async(reader.take)
        for piece in portion.pieces:
            yield piece
        if portion.error is not None:
            raise portion.error
        if portion.ended:
            return


async def read_with_meta(outputs: RunOutputs, name: str) -> AsyncIterator[tuple[Any, dict[str, Any]]]:
    """(piece, meta data) of a variable.

    Log-probabilities come with the pieces, so their lists add up; the last pair, whose piece may be empty, has
    those that are left and all other meta data.
    """
    reader = VariableReader(outputs, name)
    told: list[Delta] = []
    while True:
        portion = await outputs.wait_async(reader.take)
        deltas = list(portion.deltas)
        last = portion.pieces.pop() if portion.ended and portion.error is None and portion.pieces else ""
        if last and len(deltas) > len(portion.pieces):
            deltas.pop()
        for piece, delta in zip_longest(portion.pieces, deltas):
            told += [] if delta is None else [delta]
            yield piece, meta_so_far(delta)
        if portion.error is not None:
            raise portion.error
        if portion.ended:
            yield last, _meta_of(outputs, reader, told)
            return


def _meta_of(outputs: RunOutputs, reader: VariableReader, told: Sequence[Delta]) -> dict[str, Any]:
    match reader.variable:
        case (Generated(site=site),):
            call = outputs.generations[outputs.at(site)].call
            return {} if call is None else meta_rest(call, told)
        case _:
            return {}  # no generation made it
