"""Forms that ask for much, and what comes of each: it is made, the code of its refusal, or either (None)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any


def tag(begin: str, **content: Any) -> dict[str, Any]:
    """A tag of a null, if nothing else is said."""
    held = content or {"type": "json_schema", "json_schema": {"type": "null"}}
    return {"type": "tag", "begin": begin, "content": {"type": "json_schema", **held}, "end": "</f>"}


def tags(triggers: Sequence[str], *tags: Any) -> dict[str, Any]:
    """Free text with tags."""
    return {"format": {"type": "triggered_tags", "triggers": triggers, "tags": tags}}


def nested(form: Any, depth: int, **outer: Any) -> str:
    """A format in formats, as its text: Python writes nothing that is so deep."""
    begin = json.dumps(outer).removesuffix("}") + ', "content": '
    return '{"format": ' + begin * depth + json.dumps(form) + "}" * (depth + 1)


HOSTILE: dict[str, tuple[Callable[[], Any], str | None]] = {
    "a long text": (lambda: {"type": "string", "maxLength": 100_000}, "made True"),
    "a text of millions": (lambda: {"type": "string", "minLength": 10**6, "maxLength": 10**9}, "made True"),
    "repeats of repeats": (lambda: {"type": "string", "pattern": "^([a-z]{0,50},){0,50}$"}, "made True"),
    "an ambiguous pattern": (lambda: {"type": "string", "pattern": "^(a|b|ab)*(a|b){60}c$"}, "made True"),
    "a large remainder": (lambda: {"type": "integer", "multipleOf": 1_000_003}, "SGLC456"),
    "the largest remainder": (lambda: {"type": "integer", "multipleOf": 9_973}, "made True"),
    "five megabytes": (
        lambda: {"properties": {f"p{i}": {"description": "x" * 100, "type": "integer"} for i in range(38_000)}},
        "SGLC456",
    ),
    "five megabytes of words": (lambda: {"description": "x" * 5_000_000, "type": "null"}, "made True"),
    "a hundred thousand values": (lambda: {"enum": [f"{i:x}" * 9 for i in range(100_000)]}, "SGLC456"),
    "fifty thousand properties": (
        lambda: {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(50_000)}},
        "SGLC456",
    ),
    "ten thousand properties": (
        lambda: {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(10_000)}},
        "SGLC456",
    ),
    "a thousand properties": (
        lambda: {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(1000)}},
        "made True",
    ),
    "a recursive one": (
        lambda: {"properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]},
        "made True",
    ),
    "one that requires itself": (
        lambda: {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
        "SGLC456",
    ),
    "all of itself": (lambda: {"allOf": [{"$ref": "#"}, {"type": "object"}]}, "SGLC456"),
    "references in a fan": (
        lambda: {
            "$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)}
            | {"d60": {"type": "null"}},
            "$ref": "#/$defs/d0",
        },
        "made True",
    ),
    "alternatives of alternatives": (
        lambda: {
            "allOf": [{"anyOf": [{"minLength": i}, {"maxLength": 9 + i}]} for i in range(12)],
            "type": "string",
        },
        "made True",
    ),
    "all of a fan": (
        lambda: {
            "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
            | {"d40": {"type": "object", "properties": {"a": {"type": "null"}}}},
            "$ref": "#/$defs/d0",
        },
        None,
    ),
    "a pattern of a million letters": (lambda: {"pattern": "^" + "x" * 1_000_000}, "SGLC456"),
    "one of thousands": (lambda: {"oneOf": [{"const": f"v{i}"} for i in range(4000)]}, "made True"),
    "one of thousands like each other": (lambda: {"oneOf": [{"maxLength": i} for i in range(4000)]}, "SGLC456"),
    "lists of many": (lambda: {"type": "array", "items": {"type": "integer"}, "minItems": 10**8}, "made True"),
    "deep ones": (lambda: "[" * 100_000, "SGLC456"),
}

HOSTILE_TAGS: dict[str, tuple[Callable[[], Any], str | None]] = {
    "a thousand tags": (lambda: tags(["<f"], *(tag(f"<f{i}>") for i in range(1000))), "made True"),
    "a hundred thousand tags": (lambda: tags(["<f"], *(tag(f"<f{i}>") for i in range(100_000))), "SGLC465"),
    "a thousand triggers": (
        lambda: tags([f"<f{i}>" for i in range(1000)], *(tag(f"<f{i}>") for i in range(1000))),
        "SGLC465",
    ),
    "a trigger that is slow to tell": (lambda: tags(["a" * 5000 + "b"], tag("a" * 5000 + "b>")), "SGLC465"),
    "a marker of a million letters": (lambda: tags(["<"], tag("<" + "x" * 10**6)), "made True"),
    "a thousand schemas": (
        lambda: tags(
            ["<f"], *(tag(f"<f{i}>", json_schema={"type": "integer", "minimum": i}) for i in range(1000))
        ),
        "made True",
    ),
    "a pattern of repeats": (
        lambda: tags(["<"], tag("<f>", type="regex", pattern="([a-z]{0,50},){0,50}")),
        "made True",
    ),
    "repeats of repeats": (lambda: nested(tag("<f>"), 6, type="repeat", min=0, max=1000), "made True"),
    "formats in formats": (lambda: nested(tag("<f>"), 100_000, type="optional"), "SGLC464"),
    "fifty long triggers": (
        lambda: tags(named := [f"<function={i}>" + "x" * 15 for i in range(50)], *map(tag, named)),
        "made True",
    ),
    "deep ones": (lambda: "[" * 100_000, "SGLC464"),
}


def text_of(form: Any) -> str:
    """What is sent."""
    return form if isinstance(form, str) else json.dumps(form)
