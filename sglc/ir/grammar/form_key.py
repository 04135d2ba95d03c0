"""What a compiled form is kept under, whatever the tokenizer."""

from __future__ import annotations

import hashlib

from sglc.ir.sampling import Sampling


def form_key(sampling: Sampling) -> str:
    """The key of the form that a generation, or pieces of it, are held to; "" if there is none."""
    text = sampling.regex or sampling.json_schema or sampling.ebnf or sampling.structural_tag
    return key_of(text) if text else ""


def key_of(text: str) -> str:
    """The key of a form's text, 16 hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
