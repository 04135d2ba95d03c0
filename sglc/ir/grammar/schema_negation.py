"""What a JSON schema does not hold of, as a schema: some of it at least, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sglc.ir.grammar.schema_leaves import ANNOTATIONS, KINDS, Json, kind_of, kinds_of

_OPPOSITE = {
    "minimum": "exclusiveMaximum", "exclusiveMinimum": "maximum",
    "maximum": "exclusiveMinimum", "exclusiveMaximum": "minimum",
}  # fmt: skip
_LENGTHS = {"minLength": ("string", "maxLength"), "minItems": ("array", "maxItems")}


def negated(schema: Json) -> Json | None:
    """A schema of values that `schema` does not hold of; None if none is known.

    Not all of them need be found: a value that is left out is one that cannot be made.
    """
    if isinstance(schema, bool):
        return not schema
    if not isinstance(schema, dict) or "$ref" in schema:  # beside which older drafts ignore all others
        return None
    found: list[Json] = []
    for key, value in schema.items():
        if key not in ANNOTATIONS:
            found += _against(key, value, schema)
    return {"anyOf": found} if found else None


def _against(key: str, value: Json, schema: dict[str, Any]) -> Iterable[Json]:
    """Schemas of values that one keyword does not hold of."""
    match key:
        case "type" if isinstance(value, str | list):
            kinds = kinds_of(value)
            if others := [kind for kind in KINDS if kind not in kinds]:
                yield {"type": others}
        case "const":
            yield from _none_of([value])
        case "enum" if isinstance(value, list):
            yield from _none_of(value)
        case "required" if isinstance(value, list):
            names = (name for name in value if isinstance(name, str))
            yield from ({"type": "object", "properties": {name: False}} for name in names)
        case "properties" if isinstance(value, dict):
            for name, part in value.items():
                if (other := negated(part)) not in (None, False):
                    yield {"type": "object", "properties": {name: other}, "required": [name]}
        case "not":
            yield value
        case "anyOf" if isinstance(value, list):
            against = [negated(part) for part in value]
            if None not in against:
                yield {"allOf": against}
        case "allOf" if isinstance(value, list):
            yield from (other for other in map(negated, value) if other not in (None, False))
        case "minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum" if not isinstance(value, bool):
            yield {"type": "number", _OPPOSITE[key]: value}
        case "minLength" | "minItems" if isinstance(value, int) and value > 0:
            kind, bound = _LENGTHS[key]
            yield {"type": kind, bound: value - 1}


def _none_of(values: list[Json]) -> Iterable[Json]:
    """Schemas of other values: of kinds that none of `values` is of, other texts, the other truth value."""
    kinds = {kind_of(value) for value in values}
    if others := [kind for kind in KINDS if kind not in kinds]:
        yield {"type": others}
    if texts := [value for value in values if isinstance(value, str)]:
        yield {"type": "string", "pattern": f"^(?:{_other_than(texts)})$"}
    if len(truths := {value for value in values if isinstance(value, bool)}) == 1:
        yield {"const": not truths.pop()}


def _other_than(texts: list[str]) -> str:
    """A pattern of every text that is none of `texts`."""
    rest: dict[str, list[str]] = {}
    for text in texts:
        if text:
            rest.setdefault(text[0], []).append(text[1:])
    ends = [] if "" in texts else [""]
    others = f"[^{''.join(map(_escaped, rest))}]" if rest else r"[\s\S]"
    begun = (f"{_escaped(char)}(?:{_other_than(more)})" for char, more in rest.items())
    return "|".join([*ends, rf"{others}[\s\S]*", *begun])


def _escaped(char: str) -> str:
    return f"\\u{{{ord(char):x}}}"
