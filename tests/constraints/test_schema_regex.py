"""Where an automaton holds a schema's documents, it allows what the parser allows, at every state."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np
import pytest

from sglc.errors import SglcError
from sglc.ir.grammar import schema_regex as module
from sglc.ir.grammar.schema_regex import schema_regex
from tests.constraints.verdicts import CONSTRAINTS
from tests.depth import at_depth

VALUES = ["a", 'b"c', "é", "x/y", "\n", 1, -2, True, None, "ab", "日本", 0]
NAMES = ["a", "b", "name", "x y", "é", 'q"t', "long_name"]
SHARED: list[dict[str, Any]] = [
    {"type": ["integer", "null"]},
    {"type": "object", "properties": {"k": {"type": "number"}}},
    {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1},
]
MARKS = b'",:{}[]0123456789-.eE\\'  # what texts go on with that come to an end


def leaf(rng: Random) -> dict[str, Any]:
    least = rng.randrange(3)
    kinds: list[dict[str, Any]] = [
        {"type": "string"}, {"type": "string", "maxLength": rng.randrange(5)},
        {"type": "string", "minLength": least}, {"type": "string", "minLength": least, "maxLength": least + 1},
        {"type": "integer"}, {"type": "integer", "minimum": rng.randrange(2)}, {"type": "number"},
        {"type": "integer", "exclusiveMinimum": rng.randrange(-1, 1)}, {"$ref": "#/$defs/shared"},
        {"type": "boolean"}, {"type": "null"},
        {"type": "integer", "minimum": rng.randrange(-30, 5), "maximum": rng.randrange(5, 200)},
        {"enum": rng.sample(VALUES, rng.randrange(1, 5))}, {"const": rng.choice(VALUES)},
        {"type": ["string", "null"], "maxLength": 3}, {"type": ["integer", "string"]},
        {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "integer"}]},
    ]  # fmt: skip
    return rng.choice(kinds)


def drawn(rng: Random, depth: int) -> dict[str, Any]:
    """A schema whose documents are a regular language."""
    kind = rng.random()
    if depth == 0 or kind < 0.3:
        return leaf(rng)
    if kind < 0.5:
        least = rng.randrange(3)
        bounds = {"minItems": least, "maxItems": least + rng.randrange(3)}
        chosen = {key: bound for key, bound in bounds.items() if rng.random() < 0.5}
        return {"type": "array", "items": drawn(rng, depth - 1), **chosen}
    names = rng.sample(NAMES, rng.randrange(1, 5))
    properties = {name: drawn(rng, depth - 1) for name in names}
    return {"type": "object", "properties": properties, "required": [n for n in names if rng.random() < 0.6]}


def differs(schema: dict[str, Any], rng: Random, steps: int = 60) -> bool:
    """Whether automaton and parser are seen to allow different things along random documents."""
    text = json.dumps(schema)
    pattern = schema_regex(text)
    assert pattern is not None, text
    try:
        ours = CONSTRAINTS.regex(pattern)
        theirs = CONSTRAINTS._grammars.json_schema(text)
    except SglcError:  # one does not hold it: they need not agree on what is too large or impossible
        return False
    for _ in range(3):
        at, other = ours.start, theirs.start
        for _ in range(steps):
            mask = ours.mask(at)
            if (mask != theirs.mask(other)).any() or ours.accepting(at) != theirs.accepting(other):
                return True
            allowed = np.flatnonzero(mask).tolist()
            if not allowed:
                break
            marks = [byte for byte in allowed if byte in MARKS]
            byte = rng.choice(marks if marks and rng.random() < 0.6 else allowed)
            at, other = ours.advance(at, byte), theirs.advance(other, byte)
    return False


def test_automaton_and_parser_allow_the_same() -> None:
    rng = Random(3)
    for _ in range(at_depth(40, 200, 4_000)):
        schema = drawn(rng, 2) | {"$defs": {"shared": rng.choice(SHARED)}}
        assert not differs(schema, rng), schema


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("_INTEGER", "-?[0-9]+"),
        ("_NUMBER", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?"),
        ("_CHAR", r'(?:[^"\\\x00-\x1f]|\\[nrbtf\\"])'),
    ],
)
def test_a_fault_is_found(name: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, name, wrong)
    schema_regex.cache_clear()
    rng = Random(3)
    try:
        assert any(differs(drawn(rng, 2) | {"$defs": {"shared": SHARED[0]}}, rng) for _ in range(200))
    finally:
        schema_regex.cache_clear()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "a"},
        {"type": "string", "format": "date"},
        {"type": "string", "maxLength": 5_000},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "number", "minimum": 0},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": ["array", "null"], "items": {"$ref": "#/$defs/a"}}}},
        {"enum": [1.5]},
    ],
)
def test_other_schemas_are_the_parser_s(schema: dict[str, Any]) -> None:
    assert schema_regex(json.dumps(schema)) is None
