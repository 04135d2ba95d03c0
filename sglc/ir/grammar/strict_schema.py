"""JSON schemas for llguidance, which refuses what it cannot enforce: `strict=True`."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from sglc.errors import LegalizeError

# As xgrammar writes documents: on one line, so that a model cannot go on with spaces.
_LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": False}


@lru_cache(maxsize=128)
def strict_grammar(text: str) -> str:
    """The schema `text` as a grammar of llguidance. The newest are kept.

    Raises:
        LegalizeError: SGLC455 no JSON; SGLC456 llguidance cannot enforce it; SGLC458 it is not installed.
    """
    try:
        json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise LegalizeError(
            "SGLC455", "`json_schema` is no JSON", note=f"{error}", hint="mend the schema"
        ) from None
    try:
        from llguidance import LLMatcher
    except ImportError:
        raise LegalizeError(
            "SGLC458", "a `strict` JSON schema needs the package `llguidance`",
            hint="pip install 'sglc[strict]', or leave `strict` out",
        ) from None  # fmt: skip
    grammar = LLMatcher.grammar_from_json_schema(text, overrides=_LAYOUT)
    if problem := LLMatcher.validate_grammar(grammar):
        raise LegalizeError(
            "SGLC456", "`json_schema` has what llguidance cannot enforce", note=problem.splitlines()[0],
            hint="leave it out, and check the value in the program",
        )  # fmt: skip
    return str(grammar)
