"""The constraints of a model, kept in the cache directory: what one process has compiled, another one finds."""

from __future__ import annotations

from sglc import knobs
from sglc.ir.target import Tokenizer
from sglc.runtime.constraints.constraint import Constraints


def kept_constraints(tokenizer: Tokenizer, size: int) -> Constraints:
    """The constraints over the vocabulary of a model of `size` ids."""
    return Constraints(
        tokenizer.token_bytes(), size, tokenizer.encode_within,
        folder=knobs.cache_dir() / "automata", identity=tokenizer.hash,
    )  # fmt: skip
