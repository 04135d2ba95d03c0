"""Where in a regular expression something stands: Python's parser does not say.

Positions count characters from 0, as those of `re.error` do. With the flag `x` none is given,
because comments may look like anything.
"""

from __future__ import annotations

import re
from re import _constants as sre
from typing import Any

# One piece of a pattern: an escape, a class, the head of a group, a bounded repeat, or one character.
_PIECE = re.compile(
    r"\\[\s\S]|\[\^?\]?(?:\\[\s\S]|[^\]\\])*\]|\(\?(?:P=|<?[=!]|[(>]|[a-zA-Z-]+)|\{\d*,?\d*\}|[\s\S]"
)
_REPEATS = re.compile(r"[*+?]|\{\d*,?\d*\}")
_WRITTEN = {
    sre.ASSERT: r"\(\?<?=",
    sre.ASSERT_NOT: r"\(\?<?!",
    sre.AT: r"\\[bBAZ]|[\^$]",
    sre.GROUPREF: r"\\[1-9]|\(\?P=",
    sre.GROUPREF_EXISTS: r"\(\?\(",
    sre.ATOMIC_GROUP: r"\(\?>",
    sre.POSSESSIVE_REPEAT: r"\+",
    sre.SUBPATTERN: r"\(\?[a-zA-Z-]*[uL]",
}


def part_place(pattern: str, kind: Any) -> int | None:
    """Where the first part of `kind` (a constant of `re`'s parser) stands; of anchors the first inside."""
    if _verbose(pattern) or kind not in _WRITTEN:
        return None
    pieces = list(_PIECE.finditer(pattern))
    if kind is sre.AT:
        while pieces and pieces[0][0] in ("^", r"\A"):
            del pieces[0]
        while pieces and pieces[-1][0] in ("$", r"\Z"):
            del pieces[-1]
    for before, piece in zip([None, *pieces], pieces, strict=False):
        after_repeat = before is not None and _REPEATS.fullmatch(before[0]) is not None
        if re.fullmatch(_WRITTEN[kind], piece[0]) and (kind is not sre.POSSESSIVE_REPEAT or after_repeat):
            return piece.start()
    return None


def largest_repeat(pattern: str) -> int | None:
    """Where the repeat with the largest bound stands."""
    if _verbose(pattern):
        return None
    bounds = [
        (max(int(number) for number in re.findall(r"\d+", piece[0])), -piece.start())
        for piece in _PIECE.finditer(pattern)
        if piece[0][0] == "{" and re.search(r"\d", piece[0])
    ]
    return -max(bounds)[1] if bounds else None


def class_places(pattern: str) -> list[tuple[int, str]]:
    """The classes in brackets, and where each stands."""
    pieces = () if _verbose(pattern) else _PIECE.finditer(pattern)
    return [(piece.start(), piece[0]) for piece in pieces if len(piece[0]) > 1 and piece[0][0] == "["]


def refuse_posix(pattern: str) -> None:
    """Python reads `[[:alpha:]]` as `[:[ahlp]` and a bracket, and warns: nobody means that.

    Raises:
        re.error: the pattern has such a class.
    """
    for at, held in class_places(pattern) if "[:" in pattern else ():
        if found := re.search(r"(?<!\\)\[:\^?[a-z]+:", held):
            raise re.error(f"there is no POSIX class `{found[0]}]`", pattern, at + found.start())


def _verbose(pattern: str) -> bool:
    return re.search(r"\(\?[a-zA-Z]*x", pattern) is not None
