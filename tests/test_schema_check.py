"""Answers held against the schemas that APIs are asked for: as `jsonschema` does it, for what they say."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import jsonschema
import pytest

import sglc as sgl
from sglc.errors import BackendError
from sglc.ir.grammar.answer_form import form_of
from sglc.ir.grammar.schema_check import check_value
from sglc.ir.sampling import Sampling
from tests.api_programs import speaking
from tests.api_targets import at
from tests.depth import at_depth
from tests.openai_server import serving

pytestmark = pytest.mark.slow

LEAVES: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "integer", "minimum": 1},
    {"type": "number", "exclusiveMaximum": 2.5},
    {"type": "number", "multipleOf": 0.1},
    {"type": "boolean"},
    {"type": "null"},
    {"enum": ["a", 1, None]},
    {"enum": [True, "b"]},
]
VALUES: list[Any] = [
    "a",
    "b",
    "",
    0,
    1,
    3,
    1.0,
    2.5,
    0.3,
    -1,
    True,
    False,
    None,
    [],
    {},
    [1],
    ["a", None],
    {"a": 1},
]


def schema(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    match rng.randrange(5) if depth else 0:
        case 3:
            bounds = {"maxItems": rng.randrange(3)} if rng.random() < 0.5 else {"minItems": 1}
            return {"type": "array", "items": schema(rng, depth - 1), **bounds}
        case 2:
            return {"anyOf": [schema(rng, depth - 1) for _ in range(2)]}
        case 0:
            return rng.choice(LEAVES)
    names = rng.sample("abc", rng.randint(1, 3))
    return {
        "type": "object", "properties": {name: schema(rng, depth - 1) for name in names}, "required": names,
        "additionalProperties": False,
    }  # fmt: skip


def value(rng: random.Random, made: dict[str, Any]) -> Any:
    """Something that often keeps to a schema, and often does not."""
    if rng.random() < 0.15:
        return rng.choice(VALUES)
    match made:
        case {"anyOf": parts}:
            return value(rng, rng.choice(parts))
        case {"type": "object", "properties": properties}:
            found = {name: value(rng, own) for name, own in properties.items() if rng.random() < 0.95}
            return {**found, "z": 1} if rng.random() < 0.05 else found
        case {"type": "array", "items": items}:
            return [value(rng, items) for _ in range(rng.randrange(3))]
    return rng.choice(VALUES)


def test_what_keeps_to_random_schemas_is_what_jsonschema_says() -> None:
    rng = random.Random(7)
    kept, count = 0, at_depth(300, 800, 20_000)
    for _ in range(count):
        made = schema(rng)
        asked = form_of(Sampling(json_schema=json.dumps(made)))
        assert asked is not None
        form = json.loads(asked.schema)
        answer = value(rng, made)
        answer = {"value": answer} if asked.inside else answer
        data = json.loads(json.dumps(answer), parse_float=Decimal)
        fits = jsonschema.Draft202012Validator(form).is_valid(answer)
        if "0.1" not in asked.schema:  # jsonschema divides floating numbers
            try:
                check_value(form, data)
            except ValueError:
                assert not fits, (form, answer)
            else:
                assert fits, (form, answer)
        kept += fits
    assert count // 20 < kept < count // 2


@pytest.mark.parametrize(
    ("number", "fits"), [("0.3", True), ("0.35", False), ("1e999999999", False), ("-7", True), ("1E+2", True)]
)
def test_multiples_are_exact(number: str, fits: bool) -> None:
    data = json.loads(number, parse_float=Decimal)
    if fits:
        check_value({"type": "number", "multipleOf": 0.1}, data)
    else:
        with pytest.raises(ValueError, match="multipleOf"):
            check_value({"type": "number", "multipleOf": 0.1}, data)


def test_definitions_that_refer_to_themselves() -> None:
    tree = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]}},
            "required": ["next"], "additionalProperties": False}  # fmt: skip
    form = {"$ref": "#/$defs/t", "$defs": {"t": tree}}
    check_value(form, {"next": {"next": None}})
    with pytest.raises(ValueError, match="/next/next"):
        check_value(form, {"next": {"next": 1}})


ODD = {
    '{"people": "many"}': "what is at `/people` is no integer",
    '{"persons": 3}': "it has no `people`",
    '{"people": 3, "more": 1}': "it has a `more`",
    "[]": "it is no object",
}


@pytest.mark.parametrize("said", ODD)
@pytest.mark.parametrize("name", ["openai:gpt-4o", "anthropic:claude-opus-5-5", "gemini:gemini-2.5-flash"])
def test_a_server_that_leaves_schemas_unread_is_found_out(name: str, said: str) -> None:
    @sgl.function
    def city(s: Any) -> None:
        one = {"type": "object", "properties": {"people": {"type": "integer"}}, "required": ["people"]}
        s += sgl.user("Rome") + sgl.assistant(sgl.gen("x", json_schema=json.dumps(one)))

    with serving(lambda body: said) as api, at(api, name) as backend:
        error = city.run(backend=backend).error()
        assert isinstance(error, BackendError)
        assert (error.code, error.loc is not None) == ("SGLC546", True)
        assert ODD[said] in error.message
    with serving(speaking()) as api, at(api, name) as backend:
        assert city.run(backend=backend)["x"] == '{"people": 7}'
