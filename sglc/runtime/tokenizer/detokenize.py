"""Token ids to text as they come: only whole characters, and nothing past a stop string or pattern.

Invariants: what is given out adds up to the final text, and the final text does not depend on
where tokens begin and end. The stop string or pattern that is completed first, reading character by
character, ends the text; of two completed by the same character, the one that begins first. Before
the end only whole characters are searched, so a stop string is never found in half of one.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from sglc.ir.grammar.stops import StopPattern


@dataclass(frozen=True, slots=True)
class StopMatch:
    """Where a stop string, or a pattern, ended the text.

    `cut` is the length of the final text, in characters. decode(ids[:kept_tokens]) + tail is the
    final text, with the most ids for which that holds. The stop was complete with `read_tokens` ids.
    """

    stop: str
    cut: int
    kept_tokens: int
    read_tokens: int
    tail: str


class StopStream:
    """Text of a growing list of ids, which ends at the first of `stops` or `patterns`.

    It holds back what may begin one, and the bytes of a character that is not complete yet; invalid UTF-8 is
    U+FFFD. `match` is set once one is found; further ids are ignored.

    Args:
        token_bytes: bytes of every id, index = id.
        stops: stop strings, none of them empty.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        stops: Sequence[str] = (),
        patterns: Sequence[StopPattern] = (),
    ) -> None:
        assert all(stops), "an empty stop string stops nothing"
        self.match: StopMatch | None = None
        self._bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(stops)
        # What may still become a stop string. Only looked up, never listed.
        self._beginnings = frozenset(stop[:n] for stop in stops for n in range(1, len(stop)))
        self._longest = max((len(stop) for stop in stops), default=1) - 1
        self._patterns = tuple(patterns)
        self._readings: list[dict[int, int]] = [{} for _ in patterns]  # of those that have a search
        self._whole = ""  # with patterns: all characters, since a pattern may look behind
        self._tokens = 0
        # Places where a token and a character end together, as (tokens, characters). The first is
        # the last one in the text given out so far; `_recent` begins there.
        self._seams: list[tuple[int, int]] = [(0, 0)]
        self._recent = ""
        self._given = 0  # characters given out
        self._searched = 0  # characters that hold no match of a pattern

    @property
    def certain_tokens(self) -> int:
        """How many of the first ids surely stay: the text behind them was given out."""
        return self._seams[0][0]

    def push(self, token: int) -> str:
        """The characters that are now certain to belong to the text."""
        if self.match is not None:
            return ""
        piece = self._decoder.decode(self._bytes[token])
        self._tokens += 1
        if not self._stops and not self._patterns:
            return self._pass(piece)
        self._recent += piece
        if self._patterns:
            self._whole += piece
        self.match = self._find()
        if self.match is not None:
            return self._give(self.match.cut)
        base = self._seams[0][1]
        if self._is_whole:
            self._seams.append((self._tokens, base + len(self._recent)))
        out = self._give(base + len(self._recent) - self._open_length())
        self._forget()
        return out

    def finish(self) -> str:
        """No more ids: what was held back; U+FFFD if they end inside a character. Idempotent."""
        if self.match is not None:
            return ""
        self._recent += self._decoder.decode(b"", True)
        return self._give(self._seams[0][1] + len(self._recent))

    @property
    def _is_whole(self) -> bool:
        """Whether the ids so far end at the end of a character."""
        return not self._decoder.getstate()[0]

    def _pass(self, piece: str) -> str:
        """Give out `piece`, where nothing stops the text."""
        self._given += len(piece)
        if self._is_whole:
            self._seams[0], self._recent = (self._tokens, self._given), ""
        else:
            self._recent += piece
        return piece

    def _find(self) -> StopMatch | None:
        """The first stop in what was not given out yet."""
        base = self._seams[0][1]
        found = [
            (at + len(stop), at, stop)
            for stop in self._stops
            if (at := self._recent.find(stop, self._given - base)) >= 0
        ]
        found += self._matches(base + (min(found)[0] if found else len(self._recent)), base)
        if not found:
            return None
        _, at, stop = min(found)
        tokens, characters = next(seam for seam in reversed(self._seams) if seam[1] <= base + at)
        return StopMatch(stop, base + at, tokens, self._tokens, self._recent[characters - base : at])

    def _matches(self, until: int, base: int) -> list[tuple[int, int, str]]:
        """The patterns' first matches among the characters up to `until`, as entries of `_find`."""
        for end in range(self._searched + 1, until + 1 if self._patterns else 0):
            found = []
            for number, pattern in enumerate(self._patterns):
                at = self._match_of(number, pattern, end)
                if at is not None:
                    found.append((end - base, at - base, pattern.regex.pattern))
            if found:
                return found
            self._searched = end
        return []

    def _match_of(self, number: int, pattern: StopPattern, end: int) -> int | None:
        """Where a pattern's match begins that is known with the first `end` characters."""
        if pattern.search is not None:
            before = self._whole[end - 2] if end > 1 else ""
            reading = pattern.search.read(self._readings[number], end - 1, before, self._whole[end - 1])
            self._readings[number] = reading
            return reading.get(0)
        begin = self._given if pattern.reach is None else max(self._given, end - pattern.reach)
        match = pattern.regex.search(self._whole, begin, end)
        return None if match is None else match.start()

    def _open_length(self) -> int:
        """Length of the longest end of the held text that may be the beginning of a stop."""
        held = self._seams[0][1] + len(self._recent) - self._given
        opened = [self._open_match(number, pattern, held) for number, pattern in enumerate(self._patterns)]
        least = max(opened, default=0)
        for length in range(min(self._longest, held), least, -1):
            if self._recent[-length:] in self._beginnings:
                return length
        return max(least, 0)

    def _open_match(self, number: int, pattern: StopPattern, held: int) -> int:
        """Length of the longest end of the held text that may be the beginning of a pattern's match."""
        if pattern.search is not None:
            begins = self._readings[number].values()
            return min(len(self._whole) - min(begins, default=len(self._whole)), held)
        return held if pattern.reach is None else min(pattern.reach - 1, held)

    def _give(self, until: int) -> str:
        """Give out the text up to its character `until`."""
        base = self._seams[0][1]
        piece = self._recent[self._given - base : until - base]
        self._given += len(piece)
        return piece

    def _forget(self) -> None:
        """Drop text and seams that no later stop can need."""
        passed = sum(1 for _ in takewhile(lambda seam: seam[1] <= self._given, self._seams))
        base = self._seams[0][1]
        del self._seams[: passed - 1]
        self._recent = self._recent[self._seams[0][1] - base :]
