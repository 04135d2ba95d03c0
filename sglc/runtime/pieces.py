"""Encodes text piece by piece, so that what many prompts have in common is encoded once.

A text may be cut between a letter and a space that a letter follows, if no token spells both sides of such
a place: merges (Sennrich et al. 2016) and segmentations are then the same on either side as in the whole
text, and every pre-tokenizer in use splits there. Pieces are cut at fixed distances from the beginning, so
texts that begin alike have their first pieces in common. A piece that is new is encoded word by word, and
words come again and again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

_PIECE = 256  # characters, at least: a lookup costs as much as encoding some ten of them
_SHORT = 64  # characters: not worth cutting
_CACHED = 16_384  # pieces
_CACHED_WORDS = 65_536
_WORD = 32  # characters, at most: longer ones do not come again
_CUT = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")
_WORDS = re.compile(r" ?[A-Za-z]+(?= [A-Za-z])|.+?[A-Za-z](?= [A-Za-z])|.+", re.DOTALL)  # from cut to cut
_SPELLS_CUT = re.compile(rb"[A-Za-z] [A-Za-z]")
# Left and right of a cut. A tokenizer that adds or drops space at the beginning of a text differs on one.
_PROBES = (
    ("a", " b"), ("The quick", " brown fox"), ("\n\nit isn't", " so"), ("2x", " y2"), ("(one", " two)"),
    (" in", " the"), ("Hello, W", " World"), ("  to", " be   "),
)  # fmt: skip

Encode = Callable[[str], Sequence[int]]


def piecewise(encode: Encode, token_bytes: Sequence[bytes]) -> Callable[[str], tuple[int, ...]]:
    """`encode` with a memory of pieces; the ids are the same.

    Args:
        token_bytes: bytes of every id. Where a token or a probe says that texts of this tokenizer cannot be
            cut, they are encoded whole.
    """
    whole = lru_cache(maxsize=_CACHED)(lambda text: tuple(encode(text)))
    word = lru_cache(maxsize=_CACHED_WORDS)(lambda text: tuple(encode(text)))

    @cache
    def can_be_cut() -> bool:
        spelled = any(map(_SPELLS_CUT.search, token_bytes))
        return not spelled and all(_is_cut(encode, *probe) for probe in _PROBES)

    @lru_cache(maxsize=_CACHED)
    def by_words(text: str) -> tuple[int, ...]:
        ids: list[int] = []
        for part in _WORDS.findall(text):
            ids += word(part) if len(part) <= _WORD else encode(part)
        return tuple(ids)

    def by_pieces(text: str) -> tuple[int, ...]:
        if len(text) <= _SHORT or _CUT.search(text) is None or not can_be_cut():
            return whole(text)
        ids: list[int] = []
        begin = 0
        while (cut := _CUT.search(text, begin + _PIECE)) is not None:
            ids += by_words(text[begin : cut.start()])
            begin = cut.start()
        ids += by_words(text[begin:])
        return tuple(ids)

    return by_pieces


def _is_cut(encode: Encode, left: str, right: str) -> bool:
    return [*encode(left), *encode(right)] == list(encode(left + right))
