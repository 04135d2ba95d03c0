"""Matchers of llguidance, which is imported with the first of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Guidance:
    """llguidance for one tokenizer; `token_bytes` and `size` as in `Grammars`."""

    def __init__(self, token_bytes: Sequence[bytes], size: int) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        self._size = size
        self._tokenizer: Any = LLTokenizer(TokenizerWrapper(_GuidanceVocabulary(token_bytes, size)))

    def matcher(self, grammar: str) -> GuidanceMatcher:
        """A matcher at the start of `grammar`, which is valid."""
        from llguidance import LLMatcher

        return GuidanceMatcher(LLMatcher(self._tokenizer, grammar, log_level=0), self._size)


class GuidanceMatcher:
    """A `Matcher` of llguidance."""

    def __init__(self, matcher: Any, size: int) -> None:
        self._matcher = matcher
        self._size = size

    def take(self, token: int) -> None:
        """Read a token, which is allowed."""
        taken = self._matcher.consume_token(token)
        assert taken, f"a token that the mask allows is refused: {self._matcher.get_error()}"

    def look(self) -> tuple[NDArray[np.uint8], bool]:
        """The ids that may come next, and whether the text may end here."""
        packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8).copy()
        # Behind the model's ids is the one that stands for the end.
        packed[self._size // 8] &= (1 << self._size % 8) - 1
        packed[self._size // 8 + 1 :] = 0
        return packed, bool(self._matcher.is_accepting())

    def ahead(self, limit: int) -> bytes:
        """Bytes that have to come next."""
        return bytes(self._matcher.compute_ff_bytes()[:limit])


class _GuidanceVocabulary:
    """What llguidance asks of a tokenizer. Its end of the text is an id of its own, behind all others."""

    bos_token_id = None

    def __init__(self, token_bytes: Sequence[bytes], size: int) -> None:
        self._single = {data: token for token, data in enumerate(token_bytes[:size]) if len(data) == 1}
        padding = [b""] * (size - len(token_bytes))
        self.tokens = [*token_bytes[:size], *padding, b"<end>"]
        self.eos_token_id = size
        self.special_token_ids = [size]

    def __call__(self, text: bytes) -> list[int]:
        return [self._single[bytes([byte])] for byte in text if bytes([byte]) in self._single]
