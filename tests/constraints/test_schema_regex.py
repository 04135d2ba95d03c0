"""Where an automaton holds a schema's documents, it allows what the parser allows, at every state."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np
import pytest

from sglc.errors import SglcError
from sglc.ir.grammar import schema_regex as module
from sglc.ir.grammar.schema_regex import schema_regex, schema_rules
from sglc.runtime.constraints.constraint import Constraints
from sglc.runtime.constraints.pushdown_automaton import PushdownAutomaton
from tests.constraints.verdicts import BYTES, CONSTRAINTS
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
        {"type": "integer", "minimum": rng.choice([2, 9, 10, 11, 99, 100, 250])},
        {"type": "number", "multipleOf": rng.choice([0.1, 0.01, 0.001, 0.0001, 1e-05, 1e-06])},
        {"type": "number", "minimum": 0, "multipleOf": rng.choice([0.1, 0.01])},
        {"type": "number", "minimum": 0},
        {"type": "number", "minimum": least, "maximum": rng.choice([3, 10, 19, 100])},
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
    assert schema_rules(text) is not None, text
    try:
        made = CONSTRAINTS._automaton("json_schema", text)
        theirs = CONSTRAINTS._grammars.begun("json_schema", text)
    except SglcError:  # one does not hold it: they need not agree on what is too large or impossible
        return False
    if made is None:  # the next byte does not tell
        return False
    ours = made[0]
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


def recursive(rng: Random) -> dict[str, Any]:
    """A schema that is part of itself, in one or two ways."""
    definitions: dict[str, Any] = {}
    for name in ("a", "b"):
        own = drawn(rng, 1)
        again = {"$ref": f"#/$defs/{rng.choice('ab')}"}
        shape = rng.randrange(4)
        if shape == 0:
            definitions[name] = {
                "type": "object",
                "properties": {"v": own, "n": {"type": "array", "items": again}},
            }
        elif shape == 1:
            definitions[name] = {
                "type": "array",
                "items": {"anyOf": [again, {"type": "integer"}]},
                "minItems": 1,
            }
        elif shape == 2:
            next_one = {"anyOf": [again, {"type": "null"}]}
            definitions[name] = {
                "type": "object", "properties": {"x": next_one, "y": next_one, "z": own}, "required": ["x"],
            }  # fmt: skip
        else:
            definitions[name] = {"type": ["array", "null"], "items": again, "maxItems": rng.randrange(1, 4)}
    return {"$ref": "#/$defs/a", "$defs": {**definitions, "shared": rng.choice(SHARED)}}


@pytest.mark.slow
def test_a_stack_and_a_parser_allow_the_same() -> None:
    rng = Random(5)
    with_stack = 0
    for _ in range(at_depth(20, 40, 2_000)):
        schema = recursive(rng)
        assert not differs(schema, rng, 120), schema
        made = CONSTRAINTS._automata.get(("json_schema", json.dumps(schema)))
        with_stack += made is not None and isinstance(made[0], PushdownAutomaton)
    assert with_stack >= at_depth(12, 24, 1_200)


@pytest.mark.slow
def test_automaton_and_parser_allow_the_same() -> None:
    rng = Random(3)
    for _ in range(at_depth(40, 80, 4_000)):
        schema = drawn(rng, 2) | {"$defs": {"shared": rng.choice(SHARED)}}
        assert not differs(schema, rng), schema


@pytest.mark.slow
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
    monkeypatch.setitem(globals(), "CONSTRAINTS", Constraints(BYTES, len(BYTES)))  # which keep what they made
    schema_rules.cache_clear()
    rng = Random(3)
    try:
        assert any(differs(drawn(rng, 2) | {"$defs": {"shared": SHARED[0]}}, rng) for _ in range(200))
    finally:
        schema_rules.cache_clear()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["boolean", "integer"], "multipleOf": 12},  # of integers as of numbers
        {"type": "string", "pattern": "a"},
        {"type": "string", "format": "date"},
        {"type": "string", "maxLength": 5_000},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "number", "minimum": 0.5},
        {"type": "number", "minimum": 0, "maximum": 5, "multipleOf": 0.1},
        {"type": "number", "multipleOf": 0.02},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": ["array", "null"], "items": {"$ref": "#/$defs/a"}}}},
        {"enum": [1.5]},
    ],
)
def test_other_schemas_are_the_parser_s(schema: dict[str, Any]) -> None:
    assert schema_regex(json.dumps(schema)) is None
