"""How many tokens a generation can make, from its limits and the form that it is held to."""

from __future__ import annotations

import json
import math
from typing import Any

from sglc.explain.estimate.intervals import Interval, between
from sglc.explain.estimate.token_counts import TokenCounter
from sglc.ir.grammar.text_lengths import text_lengths
from sglc.ir.sampling import Sampling

# Tokens of an answer, on average of a million conversations with 25 chat models (LMSYS-Chat-1M, table 1).
_ANSWER = 214.5
_OF_NUMBERS = 16  # at most as many bytes a form has whose texts are numbers


def kept(sampling: Sampling, counter: TokenCounter) -> Interval:
    """Tokens of the text of one sample."""
    most = sampling.max_tokens
    may_end_early = bool(sampling.stop or sampling.stop_regex or sampling.stop_token_ids)
    least = 0 if may_end_early else min(sampling.min_tokens, most)
    if sampling.ignore_eos and not may_end_early and sampling.regex is None:
        return between(most, most)
    if sampling.regex is not None and (held := text_lengths(sampling.regex)) is not None:
        shortest, longest, alphabet = held
        bytes_ = counter.of_bytes(shortest, longest, alphabet)
        if not may_end_early:
            least = max(least, min(bytes_.low, most))
        if bytes_.high is not None:
            most = min(most, bytes_.high)
    return Interval(min(least, most), most, _expected(sampling, least, most, counter)).possible


def _expected(sampling: Sampling, least: int, most: int, counter: TokenCounter) -> float:
    """Tokens of a text between the two: as its form's values usually are, else as answers are."""
    if sampling.json_schema is not None:
        return counter.of_text(json.dumps(usual_value(json.loads(sampling.json_schema)))).likely
    if sampling.regex is not None and (held := text_lengths(sampling.regex)) is not None:
        _, longest, alphabet = held
        if longest is not None:
            return (least + most) / 2
        if len(alphabet) <= _OF_NUMBERS:
            return least + 1
    # Its end is as likely behind one token as behind another, unless `max_tokens` comes before it.
    return _ANSWER * -math.expm1(-most / _ANSWER)


def usual_value(schema: Any) -> Any:
    """A value of a schema as it might be: short texts and numbers, the first of several kinds."""
    match schema:
        case {"const": value} | {"enum": [value, *_]}:
            return value
        case {"anyOf": [first, *_]} | {"oneOf": [first, *_]}:
            return usual_value(first)
        case {"type": [first, *_]}:
            return usual_value({**schema, "type": first})
        case {"type": "object"}:
            return {name: usual_value(part) for name, part in schema.get("properties", {}).items()}
        case {"type": "array"}:
            count = min(max(schema.get("minItems", 0), 3), schema.get("maxItems", 3))
            return [usual_value(schema.get("items", {}))] * count
        case {"type": "integer" | "number"}:
            return 42
        case {"type": "boolean"}:
            return True
        case {"type": "null"}:
            return None
        case _:
            return "some words"[: schema.get("maxLength") if isinstance(schema, dict) else None]


def completion(sampling: Sampling, counter: TokenCounter) -> Interval:
    """Tokens that all samples generate, with those that end them."""
    text = kept(sampling, counter)
    # Of a text that is not full, one more token says that it has ended.
    most = max(sampling.max_tokens, 1) if text.high is None else min(text.high + 1, max(sampling.max_tokens, 1))
    return Interval(text.low * sampling.n, most * sampling.n, min(text.likely, most) * sampling.n)
