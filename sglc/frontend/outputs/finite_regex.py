"""Which texts a regular expression admits, where these are few: they are the arms of a branch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from re import _parser
from typing import Any

from sglc.ir.sampling import Sampling

MOST = 64  # texts


def texts_of(sampling: Sampling) -> tuple[str, ...] | None:
    """Every text that a generation can give; None if these are many, or it may end before its pattern does."""
    s = sampling
    if s.regex is None or s.n > 1 or s.stop_token_ids or s.stop_regex:
        return None
    texts = members(s.regex)
    if texts is None or any(stop in text for stop in s.stop for text in texts):
        return None
    # A token is at least one byte, so this many always reach the end.
    return texts if max(len(text.encode()) for text in texts) <= s.max_tokens else None


@lru_cache(maxsize=1024)
def members(pattern: str) -> tuple[str, ...] | None:
    """The texts that `pattern` matches as a whole, in its own order; None if it is not so simple.

    Understood are literals, groups, alternation, classes of single characters and `?`.
    """
    try:
        tree = _parser.parse(pattern)
        texts = _texts(tree)
    except (_NotSimple, re.error):
        return None
    return None if tree.state.flags & ~re.UNICODE else tuple(dict.fromkeys(texts))


class _NotSimple(Exception):
    """The pattern has something else in it, or too many texts."""


def _texts(items: Iterable[Any]) -> list[str]:
    texts = [""]
    for item in items:
        match item:
            case _parser.LITERAL, code:
                found = [chr(code)]
            case _parser.IN, held if all(kind is _parser.LITERAL for kind, _ in held):
                found = [chr(code) for _, code in held]
            case _parser.BRANCH, (_, branches):
                found = [text for branch in branches for text in _texts(branch)]
            case _parser.SUBPATTERN, (_, 0, 0, inner):
                found = _texts(inner)
            case _parser.MAX_REPEAT, (0, 1, inner):
                found = [*_texts(inner), ""]
            case _:
                raise _NotSimple
        if len(texts) * len(found) > MOST:
            raise _NotSimple
        texts = [head + tail for head in texts for tail in found]
    return texts
