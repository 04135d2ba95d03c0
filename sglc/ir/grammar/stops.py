"""Regular expressions that end a text: which can be used, and how far back a match may begin.

The text ends before the first match of `re.search`, read character by character: as soon as what is
there has a match, however much longer that could still grow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from re import _constants as sre
from re import _parser
from typing import Any

from sglc.errors import LegalizeError


@dataclass(frozen=True, slots=True)
class StopPattern:
    """A pattern, and the most characters between a match's begin and where it is known; None: no bound."""

    regex: re.Pattern[str]
    reach: int | None


@lru_cache(maxsize=256)
def stop_pattern(pattern: str) -> StopPattern:
    """`pattern`, ready to use.

    Raises:
        LegalizeError: SGLC471 `re` does not take it; SGLC472 it matches the empty text, so nothing could
            be generated.
    """
    try:
        regex = re.compile(pattern)
        tree = _parser.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise LegalizeError(
            "SGLC471", f"`{pattern}` in `stop_regex` is no regular expression", note=f"{error}",
            hint="mend the pattern",
        ) from None  # fmt: skip
    if regex.search(""):
        raise LegalizeError(
            "SGLC472", f"`{pattern}` in `stop_regex` matches the empty text",
            note="the text would end before its first character",
            hint="let the pattern match one character at least",
        )  # fmt: skip
    ahead = any(kind in (sre.ASSERT, sre.ASSERT_NOT) and value[0] > 0 for kind, value in _parts(tree))
    return StopPattern(regex, None if ahead else _reach(tree))


def _parts(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every part of a parsed pattern, those inside others too."""
    for kind, value in tree:
        yield kind, value
        stack = [value]
        while stack:
            match stack.pop():
                case _parser.SubPattern() as inner:
                    yield from _parts(inner)
                case (tuple() | list()) as several:
                    stack += several


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
