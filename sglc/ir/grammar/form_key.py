"""What a compiled form is kept under, whatever the tokenizer."""

from __future__ import annotations

import hashlib

from sglc.ir.sampling import Sampling


def form_key(sampling: Sampling) -> str:
    """The key of the regex, schema or grammar that a generation is held to; "" if it is held to none."""
    text = sampling.regex or sampling.json_schema or sampling.ebnf
    return key_of(text) if text else ""


def key_of(text: str) -> str:
    """The key of a form's text, 16 hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
