"""Which texts a regular expression admits, where these are few: they are the arms of a branch."""

from __future__ import annotations

from sglc.ir.sampling import Sampling

MOST = 64  # texts
_PLAIN = frozenset("\\.^$*+?{}[]|()")


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


def members(pattern: str) -> tuple[str, ...] | None:
    """The texts that `pattern` matches as a whole, in its own order; None if it is not so simple.

    Understood are literals, escaped punctuation, groups, alternation, classes of single characters and `?`.
    """
    try:
        texts, end = _alternatives(pattern, 0)
    except _NotSimple:
        return None
    return tuple(dict.fromkeys(texts)) if end == len(pattern) else None


class _NotSimple(Exception):
    """The pattern has something else in it, or too many texts."""


def _alternatives(pattern: str, at: int) -> tuple[list[str], int]:
    texts, at = _sequence(pattern, at)
    while at < len(pattern) and pattern[at] == "|":
        more, at = _sequence(pattern, at + 1)
        texts = texts + more
    if len(texts) > MOST:
        raise _NotSimple
    return texts, at


def _sequence(pattern: str, at: int) -> tuple[list[str], int]:
    texts = [""]
    while at < len(pattern) and pattern[at] not in "|)":
        item, at = _item(pattern, at)
        if at < len(pattern) and pattern[at] == "?":
            if pattern[at + 1 : at + 2] in ("?", "+"):
                raise _NotSimple
            item, at = [*item, ""], at + 1
        if len(texts) * len(item) > MOST:
            raise _NotSimple
        texts = [head + tail for head in texts for tail in item]
    return texts, at


def _item(pattern: str, at: int) -> tuple[list[str], int]:
    match pattern[at]:
        case "(":
            inside = at + 3 if pattern.startswith("(?:", at) else at + 1
            if pattern[inside : inside + 1] == "?":
                raise _NotSimple
            texts, end = _alternatives(pattern, inside)
            if pattern[end : end + 1] != ")":
                raise _NotSimple
            return texts, end + 1
        case "[":
            end = pattern.find("]", at + 2)
            body = pattern[at + 1 : end]
            if end < 0 or any(character in "^-\\[" for character in body):
                raise _NotSimple
            return list(body), end + 1
        case "\\":
            escaped = pattern[at + 1 : at + 2]
            if not escaped or escaped.isalnum():
                raise _NotSimple
            return [escaped], at + 2
        case character if character in _PLAIN:
            raise _NotSimple
        case character:
            return [character], at + 1
