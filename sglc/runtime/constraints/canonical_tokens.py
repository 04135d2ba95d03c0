"""Text that has to follow is spelled as the tokenizer spells it: one token where a mask allows several.

A run of forced bytes can be cut into tokens in many ways, and the text is the same in all of them. Held to
the tokenizer's way, a model has nothing to choose there, and reads what it was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from sglc.runtime.constraints.token_automaton import Vocabulary
from sglc.runtime.step import I32, Bool, ByteAutomaton, pack_masks

if TYPE_CHECKING:
    from sglc.runtime.constraints.protocol import Constraint

_SPELLINGS = 2048  # states of each constraint, whose token is kept


class CanonicalTokens:
    """A `Constraint`: `inner`, its forced bytes in the spelling of `encode`.

    A token at the end of forced bytes is left open where the vocabulary joins it with most of the bytes
    that may come next: `": "` before words, which begin with a space of their own.
    """

    def __init__(
        self, inner: Constraint, vocabulary: Vocabulary, encode: Callable[[str], Sequence[int]]
    ) -> None:
        self._inner = inner
        self._vocabulary = vocabulary
        self._encode = encode
        self._spelled = lru_cache(maxsize=_SPELLINGS)(self._spelling)

    @property
    def slow(self) -> bool:
        """Whether a call may take long."""
        return self._inner.slow

    @cached_property
    def automaton(self) -> ByteAutomaton | None:
        """The inner one, with the one token where that is spelled."""
        inner = self._inner.automaton
        if inner is None:
            return None
        only = inner.masks[2, inner.mask_of]
        for state in range(only.size):
            token = self._spelled(state)
            only[state] = -1 if token is None else token
        kinds = (np.where(only >= 0, -1, inner.mask_of).astype(np.int64) << 32) + only
        _, first, mask_of = np.unique(kinds, return_index=True, return_inverse=True)
        masks = inner.masks[:, inner.mask_of[first]]
        masks[2] = only[first]
        return replace(inner, mask_of=mask_of.astype(np.int32), masks=masks)

    @property
    def start(self) -> int:
        """The state before the first token."""
        return self._inner.start

    def mask(self, state: int) -> Bool:
        """Ids that may come next, bool [V], the caller's own."""
        token = self._spelled(self._inner.local(state))
        if token is None:
            return self._inner.mask(state)
        mask: Bool = np.zeros(self._vocabulary.lengths.size, np.bool_)
        mask[token] = True
        return mask

    def bits(self, state: int) -> I32:
        """The same as `pack_masks` gives it, the caller's own."""
        token = self._spelled(self._inner.local(state))
        return self._inner.bits(state) if token is None else pack_masks(self.mask(state))

    def accepting(self, state: int) -> bool:
        """Whether the text may end here."""
        return self._inner.accepting(state)

    def ahead(self, state: int) -> bytes:
        """Bytes that have to come next."""
        return self._inner.ahead(state)

    def only(self, state: int) -> int | None:
        """The id that has to come next; None if there are several, or none."""
        token = self._spelled(self._inner.local(state))
        return self._inner.only(state) if token is None else token

    def advance(self, state: int, token: int) -> int:
        """The state behind `token`, which `state` allows."""
        return self._inner.advance(state, token)

    def local(self, state: int) -> int:
        """As the inner one's."""
        return self._inner.local(state)

    def done(self, state: int) -> bool:
        """Whether the text has to end here."""
        return self._inner.done(state)

    def _spelling(self, state: int) -> int | None:
        """The first token of the bytes that have to follow; None if that is the model's to choose."""
        forced = self._inner.ahead(state)
        ids = self._encode(_whole_characters(forced)) if forced else ()
        mask = self._inner.mask(state) if ids else np.zeros(0, np.bool_)
        spelled = [self._vocabulary.token_bytes[token] for token in ids]
        # A tokenizer may add a space; a vocabulary may lack what the state behind a token needs.
        if not ids or not mask[ids[0]] or not forced.startswith(b"".join(spelled)):
            return None
        allowed = np.flatnonzero(mask)  # few, as they are beginnings of what is forced, or go on behind it
        longer = allowed[self._vocabulary.lengths[allowed] > len(forced)]
        if longer.size:
            joined = {self._vocabulary.token_bytes[token][len(forced)] for token in longer.tolist()}
            if 2 * len(joined) >= self._next_bytes(state, ids):
                return None
        return ids[0]

    def _next_bytes(self, state: int, ids: Sequence[int]) -> int:
        """How many bytes may come behind the tokens `ids`."""
        for token in ids:
            if not self._inner.mask(state)[token]:
                return 0
            state = self._inner.advance(state, token)
        return np.unique(self._vocabulary.begins[self._inner.mask(state)]).size


def _whole_characters(data: bytes) -> str:
    """The text of `data` up to a byte that is of no whole character."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()
