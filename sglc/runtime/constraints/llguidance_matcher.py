"""Matchers of llguidance, which is imported with the first of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglc.errors import RunError
from sglc.ir.remembered import remembered

_KEPT, _LONG = 32, 1 << 16  # grammars, each with a matcher at its start; of longer ones a few
_ITEMS = 10_000  # that it may have in mind at one byte: four for each name that may come next

# What telling markers in free text apart may take at one token, in its own measure: 0.1 s at most, and a
# hundredth of it usually. Documents need a tenth of that.
_MARKERS_FUEL = 2_000_000


class Guidance:
    """llguidance for one tokenizer; `token_bytes` and `size` as in `Grammars`."""

    def __init__(self, token_bytes: Sequence[bytes], size: int) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        self._size = size
        self._first = remembered(_KEPT, _LONG)(self._new)  # a copy takes a hundredth of what a new one does
        vocabulary = _GuidanceVocabulary(token_bytes, size)
        self._single = vocabulary.single
        self._tokenizer: Any = LLTokenizer(TokenizerWrapper(vocabulary))

    def matcher(self, grammar: str, *, markers: bool = False) -> GuidanceMatcher:
        """A matcher at the start of `grammar`, which is valid; `markers`: it has free text with markers."""
        return GuidanceMatcher(self._first(grammar, markers).deep_copy(), self._size, self._single)

    def _new(self, grammar: str, markers: bool) -> Any:
        from llguidance import LLMatcher, LLParserLimits

        fuel = _MARKERS_FUEL if markers else None
        limits = LLParserLimits(
            max_items_in_row=_ITEMS, verbose_errors=False, step_lexer_fuel=fuel, initial_lexer_fuel=fuel
        )
        return LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)


class GuidanceMatcher:
    """A `Matcher` of llguidance."""

    def __init__(self, matcher: Any, size: int, single: Mapping[bytes, int]) -> None:
        """`single` are the ids that spell one byte."""
        self._matcher = matcher
        self._size = size
        self._single = single

    def take(self, token: int) -> None:
        """Read a token, which is allowed. Raises RunError: SGLC459, it takes too much."""
        if not self._matcher.consume_token(token):
            raise self._given_up()

    def look(self) -> tuple[NDArray[np.uint8], bool]:
        """The ids that may come next, and whether the text may end here. Raises as `take`."""
        words = np.empty(self._size // 32 + 1, np.int32)
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)  # a seventh of `compute_bitmask`
        packed = words.view(np.uint8)
        if self._matcher.is_error():
            raise self._given_up()
        # Behind the model's ids is the one that stands for the end.
        packed[self._size // 8] &= (1 << self._size % 8) - 1
        packed[self._size // 8 + 1 :] = 0
        return packed, bool(self._matcher.is_accepting())

    def push(self, byte: int) -> bool:
        """Read a byte, which is allowed; False if no token is that byte. Raises as `take`."""
        token = self._single.get(bytes([byte]))
        if token is not None:
            self.take(token)
        return token is not None

    def back(self, count: int) -> None:
        """Take back the last bytes that were pushed."""
        assert not count or self._matcher.rollback(count), "what was read is taken back"

    def _given_up(self) -> RunError:
        """It bounds what it looks at, and then takes nothing any more."""
        return RunError(
            "SGLC459", "what this generation is held to takes too much to go on",
            note=self._matcher.get_error().partition("\n")[0], hint="make the schema smaller",
        )  # fmt: skip


class _GuidanceVocabulary:
    """What llguidance asks of a tokenizer. Its end of the text is an id of its own, behind all others."""

    bos_token_id = None

    def __init__(self, token_bytes: Sequence[bytes], size: int) -> None:
        self.single = {data: token for token, data in enumerate(token_bytes[:size]) if len(data) == 1}
        padding = [b""] * (size - len(token_bytes))
        self.tokens = [*token_bytes[:size], *padding, b"<end>"]
        self.eos_token_id = size
        self.special_token_ids = [size]

    def __call__(self, text: bytes) -> list[int]:
        return [self.single[bytes([byte])] for byte in text if bytes([byte]) in self.single]
