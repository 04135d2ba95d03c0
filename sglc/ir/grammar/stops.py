"""Regular expressions that end a text: which can be used, and how far back a match may begin.

The text ends before the first match of `re.search`, read character by character: as soon as what is
there has a match, however much longer that could still grow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, reduce
from re import _constants as sre
from re import _parser
from typing import Any

from sglc.errors import LegalizeError, shown
from sglc.ir.grammar.regex_positions import refuse_posix
from sglc.ir.grammar.stop_search import StopSearch

# What looking for a match may take: characters of a pattern, its places with repeats written out, and the ways
# to read one text that `re` may try one after the other.
_MOST_CHARACTERS = 10_000
_MOST_PLACES = 2_000
_MOST_WAYS = 256
_NO_LANGUAGE = (
    sre.ASSERT, sre.ASSERT_NOT, sre.GROUPREF, sre.GROUPREF_EXISTS, sre.ATOMIC_GROUP, sre.POSSESSIVE_REPEAT,
)  # fmt: skip
_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)
_BEGINNINGS = (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING)  # what is before says so


@dataclass(frozen=True, slots=True)
class StopPattern:
    """A pattern, and the most characters between a match's begin and where it is known; None: no bound.

    With a `search` that is what finds matches: `regex` might take for ever.
    """

    regex: re.Pattern[str]
    reach: int | None
    search: StopSearch | None = None


@lru_cache(maxsize=256)
def stop_pattern(pattern: str) -> StopPattern:
    """`pattern`, ready to use.

    Raises:
        LegalizeError: SGLC471 `re` does not take it, or looking for it may take too long; SGLC472 it matches
            the empty text, so nothing could be generated.
    """
    if len(pattern) > _MOST_CHARACTERS:
        raise _too_much(pattern, f"it is longer than {_MOST_CHARACTERS} characters", "make it shorter")
    try:
        found = _read(pattern)
        empty = found.search.matches_nothing if found.search is not None else found.regex.search("") is not None
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise LegalizeError(
            "SGLC471", f"`{shown(pattern, 60)}` in `stop_regex` is no regular expression",
            note=shown(f"{error}"), hint="mend the pattern", at=getattr(error, "pos", None),
        ) from None  # fmt: skip
    if empty:
        raise LegalizeError(
            "SGLC472", f"`{shown(pattern, 60)}` in `stop_regex` matches the empty text",
            note="the text would end before its first character",
            hint="let the pattern match one character at least",
        )  # fmt: skip
    return found


def _read(pattern: str) -> StopPattern:
    refuse_posix(pattern)
    tree = _parser.parse(pattern)
    if _places(tree) > _MOST_PLACES:
        note = f"with its repeats written out it has more than {_MOST_PLACES} characters"
        raise _too_much(pattern, note, "lower the bounds of its repeats")
    regex = re.compile(pattern)
    parts = [*_parts(tree)]
    ahead = [value[1] for kind, value in parts if kind in (sre.ASSERT, sre.ASSERT_NOT) and value[0] > 0]
    reach = reduce(_sum, map(_width, ahead), _width(tree)) if ahead else _reach(tree)
    if any(kind is sre.AT and value not in _BEGINNINGS for kind, value in parts):
        reach = _sum(reach, 2)  # what is behind says so: `$` looks past a last line feed, too
    refused = min((str(kind) for kind, _ in parts if kind in _NO_LANGUAGE), default=None)
    endless = any(kind in _REPEATS and value[1] == sre.MAXREPEAT for kind, value in parts)
    bound = reach if refused is None else None if endless else _MOST_CHARACTERS
    if bound is not None and _ways(tree, bound) <= _MOST_WAYS:
        return StopPattern(regex, reach)
    if refused is not None:
        note = f"beside {refused} it has repeats that may match one text in many ways"
        raise _too_much(pattern, note, "write it without the one or the other")
    return StopPattern(regex, reach, StopSearch(tree))


def _too_much(pattern: str, note: str, hint: str) -> LegalizeError:
    what = f"`{shown(pattern, 60)}` in `stop_regex` may take for ever to look for"
    return LegalizeError("SGLC471", what, note=note, hint=hint)


def _places(tree: Any) -> int:
    """How many characters and repeats a pattern has, each repeat written out."""
    total = 0
    for kind, value in tree:
        if kind in _REPEATS:
            least, most, inner = value
            total += max(least if most == sre.MAXREPEAT else most, 1) * (_places(inner) + 1)
        else:
            total += 1 + sum(map(_places, _inside(value)))
    return total


def _ways(tree: Any, length: int) -> int:
    """In how many ways `re` may go through a pattern on a text of that length; no more than are told apart."""
    ways = 1
    for kind, value in tree:
        if kind in _REPEATS:
            least, most, inner = value
            once, most = _ways(inner, length), min(int(most), max(length, least) + 1)
            ways *= (
                most - least + 1
                if once == 1
                else min(once, 2 * _MOST_WAYS) ** min(most, 20) * (most - least + 1)
            )
        elif kind is sre.BRANCH:
            ways *= sum(_ways(option, length) for option in value[1])
        else:
            for inner in _inside(value):
                ways *= _ways(inner, length)
        ways = min(ways, 2 * _MOST_WAYS)
    return ways


def _inside(value: Any) -> list[Any]:
    """The patterns in a part of a pattern."""
    found, stack = [], [value]
    while stack:
        match stack.pop():
            case _parser.SubPattern() as inner:
                found.append(inner)
            case (tuple() | list()) as several:
                stack += several
    return found


def _parts(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every part of a parsed pattern, those inside others too."""
    for kind, value in tree:
        yield kind, value
        for inner in _inside(value):
            yield from _parts(inner)


def _width(tree: Any) -> int | None:
    widest = int(tree.getwidth()[1])
    return None if widest >= int(sre.MAXREPEAT) else widest


def _reach(tree: Any) -> int | None:
    """The longest match that is known no sooner: repeats at the end count as rarely as they may occur."""
    if not len(tree):
        return 0
    kind, value = tree[-1]
    match kind, value:
        case sre.MAX_REPEAT | sre.MIN_REPEAT, (0, _, _):
            return _reach(tree[:-1])
        case sre.MAX_REPEAT | sre.MIN_REPEAT, (least, _, inner):
            before = _width(inner) if least > 1 else 0
            tail = _sum(None if before is None else (least - 1) * before, _reach(inner))
        case sre.SUBPATTERN, (_, _, _, inner):
            tail = _reach(inner)
        case sre.BRANCH, (_, options):
            ends = [_reach(option) for option in options]
            tail = None if None in ends else max(end for end in ends if end is not None)
        case _:
            tail = _width(tree[-1:])
    return _sum(_width(tree[:-1]), tail)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
