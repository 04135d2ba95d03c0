"""Ids of text, put together from pieces that were encoded before.

A tokenizer that first cuts text into words, and then encodes each by itself, gives a text the ids of its pieces
end to end, wherever it is cut between two words. A place between a letter or a mark of punctuation and a space
with a letter behind it is such a place for every tokenizer here that cuts into words at all (`cuts_into_words`
asks it). So long texts that begin in the same way, as prompts do, cost a look-up for what they have in common.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from string import ascii_letters

from tokenizers import Tokenizer as RawTokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC

_BEFORE = ascii_letters + ",.;:"
_BETWEEN = re.compile(rf"(?<=[{_BEFORE}])(?= [A-Za-z])")
_LONG = 256  # characters of a long piece, at least
_LONG_PIECES = 8192
_WORDS = 65_536


class Pieces:
    """Encodes text piece by piece; `encode` gives the ids of one. Safe to use from several threads."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        self._word = lru_cache(_WORDS)(lambda piece: tuple(encode(piece)))
        self._long = lru_cache(_LONG_PIECES)(lambda piece: tuple(self._words(piece)))

    def encode(self, text: str) -> list[int]:
        """What `encode` gives for the whole text, and raises for it."""
        ids: list[int] = []
        begin = 0
        for end in _long_pieces(text):
            ids += self._long(text[begin:end])
            begin = end
        ids += self._words(text[begin:])
        return ids

    def _words(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in _BETWEEN.split(text):
            ids += self._word(piece)
        return ids


def _long_pieces(text: str) -> Iterator[int]:
    """Where long pieces of a text end: at the same places for texts that begin in the same way."""
    end, last = 0, len(text) - 2 * _LONG
    while end < last:
        found = _BETWEEN.search(text, end + _LONG)
        if found is None:
            return
        end = found.start()
        yield end


def cuts_into_words(raw: RawTokenizer) -> bool:
    """Whether a text's ids are those of its pieces."""
    if not isinstance(raw.model, BPE) or raw.model.dropout or raw.pre_tokenizer is None:
        return False
    if not isinstance(raw.normalizer, NFC | None):  # which leaves letters and spaces alone
        return False
    # A token that is looked for in the whole text may lie across a cut, or swallow the space behind it.
    for token in raw.get_added_tokens_decoder().values():
        if not token.special and (_BETWEEN.search(token.content) or token.lstrip or token.rstrip):
            return False
    for before in _BEFORE:
        if 3 not in [end for _, (_, end) in raw.pre_tokenizer.pre_tokenize_str(f"ab{before} cd")]:
            return False
    return True
