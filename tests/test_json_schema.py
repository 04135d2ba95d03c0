"""JSON schemas that a generation can be held to: they keep what they say; the rest is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sglc.errors import LegalizeError
from sglc.ir.grammar.json_schema import enforceable


def enforced(schema: Any) -> Any:
    return json.loads(enforceable(json.dumps(schema)))


def of(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), **more}


@pytest.mark.parametrize(
    ("schema", "same_as"),
    [
        (True, {}),
        ({"title": "t", "description": "d", "default": 1, "$schema": "s", "$id": "i"}, {}),
        ({"minLength": 2}, {"type": "string", "minLength": 2}),
        ({"maximum": 2}, {"type": "number", "maximum": 2}),
        ({"type": ["integer", "number"]}, {"type": "number"}),
        ({"type": "string", "enum": ["a", 1, None]}, {"enum": ["a"]}),
        ({"type": "integer", "enum": [1.0, 1.5, True]}, {"enum": [1.0]}),
        ({"const": [1]}, {"enum": [[1]]}),
        ({"allOf": [{"type": "null"}]}, {"type": "null"}),
        (
            {"oneOf": [{"type": "string"}, {"type": "integer"}]},
            {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        ),
        ({"oneOf": [{"const": "a"}, {"enum": ["b", "c"]}]}, {"anyOf": [{"const": "a"}, {"enum": ["b", "c"]}]}),
        (
            {"oneOf": [of({"k": {"const": "a"}, "x": True}), of({"k": {"const": "b"}})]},
            {"anyOf": [of({"k": {"const": "a"}, "x": True}), of({"k": {"const": "b"}})]},
        ),
        ({"type": "array", "unevaluatedItems": False}, {"type": "array"}),
        ({"type": "object", "properties": {"a": False}}, {"type": "object", "properties": {}}),
        (of({"a": True}, additionalProperties=True), of({"a": True})),
    ],
)
def test_equal_demands_take_one_form(schema: Any, same_as: Any) -> None:
    assert enforced(schema) == enforced(same_as)


def test_objects_say_whether_names_are_free() -> None:
    assert enforced({"type": "object"})["additionalProperties"] is True
    assert enforced(of({"a": True}))["additionalProperties"] is False
    assert enforced({"type": "object", "additionalProperties": {"minimum": 1}})["additionalProperties"] == {
        "type": "number", "minimum": 1,
    }  # fmt: skip


def test_references_are_named_by_their_order() -> None:
    schema = {
        "$defs": {
            "a/b": {"anyOf": [{"$ref": "#/$defs/c"}, {"type": "null"}]},
            "c": of({"$ref": {"$ref": "#"}}),
        },
        "type": "array",
        "items": {"$ref": "#/$defs/a~1b"},
    }
    assert enforced(schema) == {
        "$defs": {
            "d0": {"anyOf": [{"$ref": "#/$defs/d1"}, {"type": "null"}]},
            "d1": of({"$ref": {"$ref": "#/$defs/d2"}}, additionalProperties=False),
            "d2": {"type": "array", "items": {"$ref": "#/$defs/d0"}},
        },
        "anyOf": [{"type": "array", "items": {"$ref": "#/$defs/d0"}}],
    }


@pytest.mark.parametrize(
    ("schema", "place", "words"),
    [
        ({"not": {}}, "#/not", "`not`"),
        ({"type": "string", "minlength": 2}, "#/minlength", "`minlength`"),
        ({"oneOf": [{"minimum": 1}, {"maximum": 5}]}, "#/oneOf", "`oneOf`"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "#/oneOf", "`oneOf`"),
        ({"oneOf": [of({"k": {"const": "a"}}), of({"l": {"const": "b"}})]}, "#/oneOf", "`oneOf`"),
        ({"oneOf": [{"enum": [1]}, {"enum": [1.0]}]}, "#/oneOf", "`oneOf`"),
        ({"allOf": [{"minimum": 3}, {"maximum": 5}]}, "#/allOf", "several schemas"),
        ({"anyOf": [{"type": "null"}], "minLength": 2}, "#/minLength", "beside `anyOf`"),
        ({"enum": [1, 5], "minimum": 3}, "#/minimum", "beside `enum`"),
        ({"$defs": {"n": {}}, "$ref": "#/$defs/n", "minimum": 3}, "#/minimum", "beside `$ref`"),
        ({"$ref": "http://x.y/z"}, "#/$ref", "not inside the schema"),
        ({"type": "string", "const": 5}, "#/const", "no value of its `type`"),
        ({"type": "array", "uniqueItems": True}, "#/uniqueItems", "`uniqueItems`"),
        ({"type": "array", "contains": {}}, "#/contains", "`contains`"),
        ({"type": "array", "minItems": 2, "items": False}, "#/minItems", "`minItems` larger"),
        ({"type": "array", "prefixItems": [{}, {}], "maxItems": 1}, "#/maxItems", "`maxItems` smaller"),
        (of({"a": {"type": "array", "items": {"not": {}}}}), "#/properties/a/items/not", "`not`"),
        (of({"a/b": {"if": {}}}), "#/properties/a~1b/if", "`if`"),
        ({"type": "object", "minProperties": 1}, "#/minProperties", "names are free"),
        ({"type": "object", "required": ["a"]}, "#/required", "`required` of `a`"),
        ({"type": "object", "patternProperties": {}}, "#/patternProperties", "`patternProperties`"),
        ({"type": "object", "propertyNames": {}}, "#/propertyNames", "`propertyNames`"),
        ({"type": "object", "dependentRequired": {}}, "#/dependentRequired", "`dependentRequired`"),
        (of({"a": {}}, unevaluatedProperties={}), "#/unevaluatedProperties", "`unevaluatedProperties`"),
        (of({"a": {}}, additionalProperties={"type": "null"}), "#/additionalProperties", "beside `properties`"),
        ({"type": "number", "multipleOf": 0.5}, "#/multipleOf", "`multipleOf`"),
        ({"type": "integer", "multipleOf": 5, "minimum": 3}, "#/multipleOf", "with bounds"),
        ({"type": "integer", "minimum": 0.5}, "#/minimum", "`0.5`"),
        ({"type": "integer", "minLength": 1}, "#/minLength", "without a `type`"),
        ({"minLength": 1, "minimum": 2}, "#/minLength", "without a `type`"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "#", "`pattern` and `maxLength` together"),
        ({"type": "string", "format": "color"}, "#/format", "the format `color`"),
        ({"type": "string", "pattern": 'a"b'}, "#/pattern", "escaped in a JSON string"),
        ({"type": "string", "pattern": r"[\\a]"}, "#/pattern", "escaped in a JSON string"),
        ({"type": "string", "pattern": "(?i)a"}, "#/pattern", "flags"),
        ({"type": "string", "pattern": "(?i:a)"}, "#/pattern", "flags"),
        (False, "#", "no value satisfies"),
        ({"type": "string", "nullable": True}, "#/nullable", "`nullable`"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(schema: Any, place: str, words: str) -> None:
    with pytest.raises(LegalizeError) as failure:
        enforced(schema)
    assert failure.value.code == "SGLC456"
    assert words in failure.value.message
    assert failure.value.message.endswith("cannot be enforced")
    assert failure.value.note == f"at `{place}`"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ('{"type": "string"', "line 1, column 18"),
        ('{"enum": [NaN]}', ""),
        ("[]", "a schema is an object"),
        ('{"type": "text"}', "`type` is one of"),
        ('{"type": []}', "`type` is one of"),
        ('{"enum": []}', "not empty"),
        ('{"anyOf": {}}', "a list of schemas"),
        ('{"$ref": "#/$defs/x"}', "is not there"),
        ('{"$ref": "#"}', "leads to itself"),
        (
            '{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}',
            "to itself",
        ),
        ('{"type": "string", "minLength": 3, "maxLength": 2}', "larger than"),
        ('{"type": "string", "minLength": "3"}', "a count"),
        ('{"type": "integer", "minimum": true}', "a number"),
        ('{"type": "integer", "minimum": 5, "maximum": 4}', "within the bounds"),
        ('{"type": "object", "properties": []}', "an object of schemas"),
        ('{"type": "object", "properties": {"a": {"items": 3}}}', "a schema"),
    ],
)
def test_what_is_no_schema_is_refused_with_its_place(schema: str, words: str) -> None:
    with pytest.raises(LegalizeError) as failure:
        enforceable(schema)
    assert failure.value.code == "SGLC455"
    assert words in failure.value.note


@pytest.mark.parametrize("depth", [150, 100_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    with pytest.raises(LegalizeError, match="nested deeper") as failure:
        enforceable('{"type": "array", "items": ' * depth + "{}" + "}" * depth)
    assert failure.value.code == "SGLC456"


def test_a_pattern_is_refused_as_a_regular_expression_is() -> None:
    with pytest.raises(LegalizeError) as failure:
        enforced(of({"a": {"type": "string", "pattern": "a(?=b)"}}))
    assert failure.value.code == "SGLC451"
    assert failure.value.note.startswith("at `#/properties/a/pattern`; at position 1 of the pattern; ")
