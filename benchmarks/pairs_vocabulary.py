"""A vocabulary of any size, for want of a tokenizer that has it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice


def pairs(token_bytes: Sequence[bytes], size: int) -> list[bytes]:
    """A vocabulary of `size` ids: the given one, and then pairs of its tokens that it lacks.

    A stand-in for a vocabulary of that size, with pairs of tokens of two to six bytes, from all over the given.
    """
    known = set(token_bytes)
    words = [data for data in token_bytes if 2 <= len(data) <= 6]
    step = max(1, len(words) ** 2 // (2 * size))
    made = (words[n // len(words)] + words[n % len(words)] for n in range(0, len(words) ** 2, step))
    more = dict.fromkeys(pair for pair in made if pair not in known)
    return [*token_bytes, *islice(more, size - len(token_bytes))]
