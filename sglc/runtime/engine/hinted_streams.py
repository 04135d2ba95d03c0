"""Streams that requests ask to be kept for those that go on from them: hints, which change no answer.

Each has a handle, as a stream that a program keeps here has: its pages stay before those that nobody has asked
for, its program keeps its place in the queue, and if it mostly comes back soon, its pages are held meanwhile.
A share has so many tokens of them at most, and loses its own oldest ones first.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglc.ir.plan.hints import Hints
from sglc.runtime.engine.engine import Engine
from sglc.runtime.ids import Handle
from sglc.runtime.scheduler.gap_stats import ToolLatencyStats

_LEAST = 64  # tokens that a stream counts as: a short one has its handle, too


@dataclass(frozen=True, slots=True)
class _HintedStream:
    handle: Handle
    tokens: int
    place: int
    leaves: tuple[str, str]
    step: int


class HintedStreams:
    """The streams of one engine, by their share and by the names that clients have given them."""

    def __init__(self, engine: Engine, latency: ToolLatencyStats) -> None:
        self._engine = engine
        self._latency = latency
        self._shares: dict[str, dict[str, _HintedStream]] = {}  # the oldest first
        self._tokens: dict[str, int] = {}

    def begun(self, share: str, hints: Hints) -> int | None:
        """A request goes on from a stream: the place of its program in the queue, if that is known.

        Of those who share the runtime by keys none has a turn before another's for it.
        """
        for name in hints.over:
            self._drop(share, name)
        before = self._shares.get(share, {}).get(hints.after)
        if before is None:
            return None
        self._latency.ended(before.leaves, self._engine.steps - before.step)
        self._engine.reservations.drop(before.handle)
        self._engine.await_turn(before.handle, before.place)
        return None if share else before.place

    def made(self, share: str, hints: Hints, handle: Handle, place: int, room: int) -> None:
        """A request has ended: keep `handle`, its stream, with at most `room` tokens of the share."""
        engine, tokens = self._engine, max(_LEAST, len(self._engine.ids(handle)))
        if (before := self._shares.get(share, {}).get(hints.after)) is not None:
            engine.turn_over(before.handle, before.place)  # branches may still come back to it
        if not hints.stream or tokens > room:
            engine.release(handle)
            return
        self._drop(share, hints.stream)
        while self._tokens.get(share, 0) + tokens > room:
            self._drop(share, next(iter(self._shares[share])))
        kept = _HintedStream(handle, tokens, place, hints.leaves, engine.steps)
        self._shares.setdefault(share, {})[hints.stream] = kept
        self._tokens[share] = self._tokens.get(share, 0) + tokens
        engine.hold(handle, self._latency.expected(hints.leaves), place)

    def _drop(self, share: str, name: str) -> None:
        streams = self._shares.get(share, {})
        gone = streams.pop(name, None)
        if gone is None:
            return
        self._engine.release(gone.handle)
        self._tokens[share] -= gone.tokens
        if not streams:
            del self._shares[share], self._tokens[share]
