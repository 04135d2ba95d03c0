"""Ids of text, put together from pieces that were encoded before.

A tokenizer that first cuts text into words, and then encodes each by itself, gives a text the ids of its pieces
end to end, wherever it is cut between two words. A place between a letter or a mark of punctuation and a space
with a letter behind it is such a place for every tokenizer here that cuts into words at all (`cuts_into_words`
asks it). So long texts that begin in the same way, as prompts do, cost a look-up for what they have in common.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from string import ascii_letters

from tokenizers import Tokenizer as RawTokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC

from sglc.ir.remembered import remembered

_BEFORE = ascii_letters + ",.;:"
BETWEEN = re.compile(rf" (?<=[{_BEFORE}] )(?=[A-Za-z])")  # a space first: it is looked for at once
SHORT = 256  # characters of a text that has no long pieces
# Characters of a long piece, at least, and how many are remembered of those that are hardly longer.
_LONG = ((4096, 512), (SHORT, 8192))
_NEAR = 256  # characters of a text's end that are looked through first

Encode = Callable[[str], bytes]  # gives a text's ids as int32, which are put end to end faster than numbers


def in_pieces(encode: Encode) -> Encode:
    """`encode` by long pieces, which are remembered. Safe to use from several threads."""
    for size, count in reversed(_LONG):
        encode = _in_pieces(encode, size, count)
    return encode


def _in_pieces(encode: Encode, size: int, count: int) -> Encode:
    """`encode`, by pieces of at least `size` characters, of which `count` are remembered."""
    known = remembered(count, 2 * size, longer=0)(encode)

    def encoded(text: str) -> bytes:
        if len(text) <= size:
            return encode(text)
        ids: list[bytes] = []
        begin = 0
        for end in long_pieces(text, size):
            ids.append(known(text[begin:end]))
            begin = end
        ids.append(encode(text[begin:]))
        return b"".join(ids)

    return encoded


def long_pieces(text: str, size: int) -> Iterator[int]:
    """Where pieces of at least `size` characters end: at the same places for texts that begin alike."""
    end = 0
    while len(text) - end > size:
        found = BETWEEN.search(text, end + size)
        if found is None:
            return
        end = found.start()
        yield end


def first_cut(text: str) -> int:
    """The first place between two words of `text`; 0 if there is none."""
    found = BETWEEN.search(text)
    return found.start() if found is not None else 0


def last_cut(text: str) -> int:
    """The last place between two words of `text`; 0 if there is none."""
    near = _NEAR
    while True:
        begin = max(len(text) - near, 0)
        found = max((found.start() for found in BETWEEN.finditer(text, begin)), default=0)
        if found or not begin:
            return found
        near *= 4


def cuts_into_words(raw: RawTokenizer) -> bool:
    """Whether a text's ids are those of its pieces."""
    if not isinstance(raw.model, BPE) or raw.model.dropout or raw.pre_tokenizer is None:
        return False
    if not isinstance(raw.normalizer, NFC | None):  # which leaves letters and spaces alone
        return False
    # A token that is looked for in the whole text may lie across a cut, or swallow the space behind it.
    for token in raw.get_added_tokens_decoder().values():
        if not token.special and (BETWEEN.search(token.content) or token.lstrip or token.rstrip):
            return False
    for before in _BEFORE:
        if 3 not in [end for _, (_, end) in raw.pre_tokenizer.pre_tokenize_str(f"ab{before} cd")]:
            return False
    return True
