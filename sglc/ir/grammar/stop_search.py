"""Looks for a pattern's first match character by character, in time that grows with the text alone.

`re` tries one reading after the other, and a pattern may have as many as there are subsets of the text. Here
all readings go on side by side (Thompson 1968), each place with the leftmost begin that leads there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from re import _constants as sre
from re import _parser
from re._compiler import compile as compile_parsed
from typing import Any

_WORD = re.compile(r"\w")
_CHARACTERS = (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN)


@dataclass(slots=True)
class _Place:
    """Where a reading may be: before a character, before what is true between two, or before several places."""

    one: re.Pattern[str] | None = None
    between: tuple[Any, int] | None = None  # and the flags
    to: tuple[int, ...] = ()


class StopSearch:
    """A pattern without lookaround and references, as places. Place 0 is its end."""

    def __init__(self, tree: Any) -> None:
        """`tree`: the pattern as `re` has parsed it."""
        self._places = [_Place()]
        self._ones: dict[str, re.Pattern[str]] = {}
        self.start = self._sequence(tree, 0, tree.state.flags)

    @property
    def matches_nothing(self) -> bool:
        """Whether the empty text is a match."""
        return 0 in self._closure({self.start: 0}, "", "")

    def read(self, reading: dict[int, int], at: int, before: str, character: str) -> dict[int, int]:
        """The places behind the `at`th character, with where each began; a match, if one is known now, at 0."""
        behind, begins = self._step(reading, at, before, character, last=False)
        if character == "\n":  # as the last of a text it may stand behind `$`
            begins += self._step(reading, at, before, character, last=True)[1]
        return {**behind, 0: min(begins)} if begins else behind

    def _step(
        self, reading: dict[int, int], at: int, before: str, character: str, *, last: bool
    ) -> tuple[dict[int, int], list[int]]:
        """The places behind a character, and where matches begin that are known now."""
        stand = self._closure(self._begun(reading, at), before, character, last=last)
        begins = [stand.pop(0)] if 0 in stand else []
        behind: dict[int, int] = {}
        for place, begin in stand.items():
            one = self._places[place].one
            if one is not None and one.match(character):
                (to,) = self._places[place].to
                behind[to] = min(begin, behind.get(to, begin))
        ends = self._closure(self._begun(behind, at + 1), character, "")
        return behind, begins + ([ends[0]] if 0 in ends else [])

    def _begun(self, reading: dict[int, int], at: int) -> dict[int, int]:
        """The reading, and one that begins here."""
        return {**reading, self.start: reading.get(self.start, at)}

    def _closure(
        self, reading: dict[int, int], before: str, behind: str, *, last: bool = False
    ) -> dict[int, int]:
        """The places that are reached between two characters; an empty one is an end of the text."""
        reached: dict[int, int] = {}
        # By where they began: a place that was reached is not reached from further left.
        stack = sorted(reading.items(), key=lambda item: -item[1])
        while stack:
            place, begin = stack.pop()
            if place in reached:
                continue
            reached[place] = begin
            this = self._places[place]
            if this.one is None and (this.between is None or _holds(*this.between, before, behind, last)):
                stack += [(to, begin) for to in this.to]
        return {
            place: begin
            for place, begin in reached.items()
            if place == 0 or self._places[place].one is not None
        }

    # -- from the parsed pattern ---------------------------------------------------------------------

    def _add(self, **what: Any) -> int:
        self._places.append(_Place(**what))
        return len(self._places) - 1

    def _sequence(self, items: Iterable[Any], after: int, flags: int) -> int:
        for item in reversed(list(items)):
            after = self._item(item, after, flags)
        return after

    def _item(self, item: Any, after: int, flags: int) -> int:
        match item:
            case (kind, _) if kind in _CHARACTERS:
                return self._add(one=self._one(item, flags), to=(after,))
            case (sre.AT, where):
                return self._add(between=(where, flags), to=(after,))
            case (sre.SUBPATTERN, (_, added, removed, inner)):
                return self._sequence(inner, after, (flags | added) & ~removed)
            case (sre.BRANCH, (_, options)):
                return self._add(to=tuple(self._sequence(option, after, flags) for option in options))
            case (sre.MAX_REPEAT | sre.MIN_REPEAT, (least, most, inner)):
                if most == sre.MAXREPEAT:
                    place = self._add()
                    self._places[place].to = (self._sequence(inner, place, flags), after)
                else:
                    place = after
                    for _ in range(most - least):
                        place = self._add(to=(self._sequence(inner, place, flags), after))
                for _ in range(least):
                    place = self._sequence(inner, place, flags)
                return place
        raise AssertionError(item)

    def _one(self, item: Any, flags: int) -> re.Pattern[str]:
        key = f"{item} {flags}"
        if key not in self._ones:
            state = _parser.State()
            state.flags = flags
            self._ones[key] = compile_parsed(_parser.SubPattern(state, [item]), flags)
        return self._ones[key]


def _holds(where: Any, flags: int, before: str, behind: str, last: bool) -> bool:
    """Whether an anchor or `\\b` is true between two characters, `behind` being the text's last one or not."""
    lines = bool(flags & re.MULTILINE)
    match where:
        case sre.AT_BEGINNING | sre.AT_BEGINNING_STRING:
            return not before or (lines and where == sre.AT_BEGINNING and before == "\n")
        case sre.AT_END_STRING:
            return not behind
        case sre.AT_END:
            return not behind or (behind == "\n" and (lines or last))
        case sre.AT_BOUNDARY | sre.AT_NON_BOUNDARY:
            word = re.compile(r"\w", re.ASCII) if flags & re.ASCII else _WORD
            differ = bool(word.match(before)) != bool(word.match(behind))
            # Of the empty text `re` says that it has neither.
            return differ == (where == sre.AT_BOUNDARY) and bool(before or behind)
    raise AssertionError(where)
