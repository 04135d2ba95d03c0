"""JSON schemas that a generation can be held to: they keep what they say; the rest is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sglc.errors import LegalizeError
from sglc.ir.grammar.json_schema import enforced
from sglc.ir.grammar.schema_grammar import json_grammar


def form(schema: Any) -> Any:
    return enforced(json.dumps(schema)).form


def of(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), **more}


CLOSED: dict[str, Any] = {"additionalProperties": False}
OLD = "http://json-schema.org/draft-07/schema"
OBJECT: dict[str, Any] = {**CLOSED, "type": "object"}
AS_A_WHOLE: dict[str, Any] = {"properties": {"a": True, "b": True}, **OBJECT}
A, B = {"properties": {"a": {"type": "null"}}}, {"properties": {"b": {"type": "null"}}}


@pytest.mark.parametrize(
    ("schema", "same_as"),
    [
        (True, {}),
        ({"title": "t", "description": "d", "default": 1, "$schema": "s", "$id": "i"}, {}),
        ({"minLength": 2}, {"type": "string", "minLength": 2}),
        ({"maximum": 2}, {"type": "number", "maximum": 2}),
        ({"allOf": [{"type": "null"}]}, {"type": "null"}),
        (
            {"type": "array", "items": [{}], "additionalItems": False},
            {"type": "array", "prefixItems": [{}], "items": False},
        ),
        ({"type": "array", "unevaluatedItems": False}, {"type": "array", "items": False}),
        ({"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}),
        (
            {"oneOf": [{"type": "string"}, {"type": "integer"}]},
            {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        ),
        ({"oneOf": [{"const": "a"}, {"enum": ["b", "c"]}]}, {"anyOf": [{"const": "a"}, {"enum": ["b", "c"]}]}),
        (
            {"oneOf": [of({"k": {"const": "a"}, "x": True}), of({"k": {"const": "b"}})]},
            {"anyOf": [of({"k": {"const": "a"}, "x": True}), of({"k": {"const": "b"}})]},
        ),
        (
            {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {
                "anyOf": [
                    {"allOf": [{"required": ["a"]}, {"type": "object", "properties": {"b": False}}]},
                    {"allOf": [{"required": ["b"]}, {"type": "object", "properties": {"a": False}}]},
                ]
            },
        ),
        (of({"a": True}, uniqueItems=False, propertyNames=True, then={}), of({"a": True})),
        (of({"a": True}, unevaluatedProperties=False), of({"a": True})),
        ({"type": "object", "unevaluatedProperties": False}, {"type": "object", "properties": {}, **CLOSED}),
        (
            {"type": "object", "dependentRequired": {"a": ["b"]}},
            {"type": "object", "allOf": [{"anyOf": [{"properties": {"a": False}}, {"required": ["b"]}]}]},
        ),
        (
            {"$schema": f"{OLD}#", "definitions": {"n": {}}, "$ref": "#/definitions/n", "minimum": 3},
            {"$ref": "#/$defs/n", "$defs": {"n": {}}},
        ),
    ],
)  # fmt: skip
def test_equal_demands_take_one_form(schema: Any, same_as: Any) -> None:
    assert form(schema) == form(same_as)


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        ({"type": "object"}, {"type": "object"}),
        (of({"a": True}), of({"a": True}, **CLOSED)),
        (of({"a": True}, additionalProperties=True), of({"a": True}, additionalProperties=True)),
        (of({"a": True}, patternProperties={"^x": True}), of({"a": True}, patternProperties={"^x": True})),
        (
            {**A, "required": ["z"]},
            {"properties": {"a": {"type": "null"}, "z": True}, "required": ["z"], **OBJECT},
        ),
        # Each alternative by itself, what is joined as a whole; where nothing may be narrowed, not at all.
        ({"anyOf": [A, B]}, {"anyOf": [{**A, **OBJECT}, {**B, **OBJECT}]}),
        ({"allOf": [A, B]}, {"allOf": [A, B], **AS_A_WHOLE}),
        ({"oneOf": [A, B]}, {"oneOf": [A, B], **AS_A_WHOLE}),
        ({"oneOf": [{"items": A}, B]}, {"oneOf": [{"items": A}, B], "properties": {"b": True}, **OBJECT}),
    ],
)  # fmt: skip
def test_names_that_nobody_lists_are_free_only_where_the_schema_says_so(schema: Any, made: Any) -> None:
    assert form(schema) == made


def test_references_are_named_by_their_order() -> None:
    schema = {
        "$defs": {
            "a/b": {"anyOf": [{"$ref": "#/$defs/c"}, {"type": "null"}]},
            "c": of({"$ref": {"$ref": "#"}}),
        },
        "type": "array",
        "items": {"$ref": "#/$defs/a~1b"},
    }
    assert form(schema) == {
        "$defs": {
            "d0": {"anyOf": [{"$ref": "#/$defs/d1"}, {"type": "null"}]},
            "d1": of({"$ref": {"$ref": "#/$defs/d2"}}, additionalProperties=False),
            "d2": {"type": "array", "items": {"$ref": "#/$defs/d0"}},
        },
        "type": "array",
        "items": {"$ref": "#/$defs/d0"},
    }


def test_what_has_no_effect_is_said() -> None:
    schema = of({"a": {"type": "string", "format": "color", "minlength": 2, "title": "A"}}, nullable=True)
    assert form(schema) == of({"a": {"type": "string"}}, **CLOSED)
    assert [said.split("`")[1] for said in enforced(json.dumps(schema)).ignored] == [
        "#/nullable", "#/properties/a/minlength", "#/properties/a/format",
    ]  # fmt: skip
    assert form({"type": "object", "properties": {"minlength": True}})["properties"] == {"minlength": True}


@pytest.mark.parametrize(
    ("schema", "place", "words"),
    [
        ({"not": {}}, "#/not", "`not`"),
        ({"if": {"pattern": "a"}, "then": {"maxLength": 2}}, "#/if", "`if` of what cannot be negated"),
        ({"oneOf": [{"not": {"type": "null"}}, {"minimum": 2}]}, "#/oneOf/0/not", "`not`"),
        ({"oneOf": [{"minimum": 1}, {"maximum": 5}]}, "#", "oneOf"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "#", "oneOf"),
        (
            of({"x": {"oneOf": [of({"k": {"const": "a"}}), of({"k": {"type": "string"}, "l": True})]}}),
            "#/properties/x", "oneOf",
        ),
        ({"oneOf": [{"enum": [1]}, {"enum": [1.0]}]}, "#", "oneOf"),
        ({"allOf": [{"type": "null"}, {"maximum": 5, "type": "integer"}]}, "#", "incompatible types"),
        ({"enum": [1, 5], "type": "string"}, "#", "incompatible types"),
        ({"$ref": "http://x.y/z"}, "#/$ref", "not inside the schema"),
        ({"type": "array", "uniqueItems": True}, "#/uniqueItems", "`uniqueItems`"),
        ({"type": "array", "contains": {}, "maxContains": 2}, "#/contains", "`contains`"),
        ({"type": "array", "minItems": 2, "prefixItems": [True], "items": False}, "#", "required item"),
        (of({"a": {"type": "array", "items": {"not": {}}}}), "#/properties/a/items/not", "`not`"),
        (of({"a/b": {"if": {}, "then": {}}}), "#/properties/a~1b/if", "`if`"),
        ({"type": "object", "minProperties": 2}, "#/minProperties", "names are free"),
        ({"type": "object", "propertyNames": {"format": "date"}}, "#/propertyNames", "`propertyNames`"),
        (of({"a": {}}, unevaluatedProperties={"type": "null"}), "#/unevaluatedProperties", "a schema for"),
        ({"type": "integer", "multipleOf": 1000003}, "#/multipleOf", "`multipleOf`"),
        ({"type": "integer", "minimum": 2**60}, "#/minimum", "`minimum`"),
        ({"const": 2**53 + 1}, "#", "the value `9007199254740993`"),
        ({"enum": ["\x1b"]}, "#", r"'\x1b'"),
        ({"enum": ["\ud800"]}, "#", r"'\ud800'"),
        ({"type": "string", "format": "iri"}, "#/format", "the format `iri`"),
        ({"type": "string", "pattern": "^a$", "minLength": 2}, "#", "Regex is empty"),
        ({"type": "string", "format": "date", "pattern": "a"}, "#", "Regex is empty"),
        (False, "#", "no value satisfies"),
        (of({"a": False}), "#", "required property 'a'"),
        (of({"deep": of({"n": {"$ref": "#/properties/deep"}})}), "#", "always needs itself again"),
        ({"allOf": [{"$ref": "#"}]}, "#", "always needs itself again"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused_by_name(schema: Any, place: str, words: str) -> None:
    with pytest.raises(LegalizeError) as failure:
        json_grammar(json.dumps(schema))
    assert failure.value.code == "SGLC456"
    assert words in failure.value.message
    assert failure.value.message.endswith("cannot be enforced")
    assert failure.value.note == f"at `{place}`"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ('{"type": "string"', "line 1, column 18"),
        ('{"enum": [NaN]}', ""),
        ('{"const": ' + "1" * 5000 + "}", "integer string conversion"),
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
        ('{"type": "integer", "multipleOf": 0}', "larger than 0"),
        ('{"type": "object", "properties": []}', "an object of schemas"),
        ('{"type": "object", "properties": {"a": {"items": 3}}}', "a schema"),
        ('{"type": "object", "required": "a"}', "a list of names"),
        ('{"dependentRequired": []}', "an object of schemas"),
        ('{"format": []}', "`format` is a text"),
        ('{"oneOf": [{"type": 5}, {"type": "string"}]}', "`type` is one of"),
        ('{"oneOf": [{"type": [[]]}, {"type": "string"}]}', "`type` is one of"),
        ('{"oneOf": [{"enum": 5}, {"enum": ["a"]}]}', "`enum` is a list"),
        ('{"dependentRequired": {"a": ["b"]}, "allOf": true}', "a list of schemas"),
        ('{"type": "object", "allOf": [{"required": [[5]]}]}', "a list of names"),
        ('{"anyOf": [{"type": "null"}, {"$ref": "#/anyOf/-2"}]}', "is not there"),
        ('{"anyOf": [{"type": "null"}, {"$ref": "#/anyOf/+0"}]}', "is not there"),
    ],
)
def test_what_is_no_schema_is_refused_with_its_place(schema: str, words: str) -> None:
    with pytest.raises(LegalizeError) as failure:
        json_grammar(schema)
    assert failure.value.code == "SGLC455"
    assert words in failure.value.note


@pytest.mark.slow
@pytest.mark.parametrize("name", ["\ud800", "a\nb\x1b[2J", "n" * 100_000, "\u2028\u202e"])
def test_what_a_schema_has_is_shown_on_one_line(name: str) -> None:
    """Whatever its names are, as text that can be encoded and says nothing to a terminal."""
    schemas: tuple[dict[str, Any], ...] = (
        of({name: 5}),
        {"$ref": f"#/{name}"},
        {"$ref": name},
        of({name: {"pattern": "("}}),
        {"required": [name, 5]},
        {"pattern": f"{name}("},
        {"patternProperties": {f"({name}": {}}},
        {"dependentRequired": {name: {"type": 5}}},
    )
    for schema in schemas:
        with pytest.raises(LegalizeError) as failure:
            form(schema)
        for said in (failure.value.message, failure.value.note):
            assert said.isprintable()
            assert len(said) < 1000
    (remark,) = enforced(json.dumps({name: 1})).ignored
    assert remark.isprintable()
    assert len(remark) < 1000


@pytest.mark.slow
def test_many_that_are_told_apart_by_a_name_are_one_of_them() -> None:
    parts = [of({"k": {"const": f"v{i}"}}) for i in range(1000)]
    assert "anyOf" in form({"oneOf": parts})
    assert "anyOf" not in form({"oneOf": [*parts, parts[0]]})


def test_deep_nesting_has_no_end_but_the_reader_s() -> None:
    json_grammar('{"type": "array", "items": ' * 300 + "{}" + "}" * 300)
    with pytest.raises(LegalizeError, match="nested too deep") as failure:
        json_grammar('{"type": "array", "items": ' * 100_000 + "{}" + "}" * 100_000)
    assert failure.value.code == "SGLC456"


@pytest.mark.parametrize(
    ("pattern", "code", "note"),
    [
        ("a(?=b)", "SGLC451", "at position 1 of the pattern"),
        ("(?u)a", "SGLC451", "at position 0 of the pattern"),
        (r"(a)\1", "SGLC451", "at position 3 of the pattern"),
        (r"a\b", "SGLC451", "at position 1 of the pattern"),
        ("a(b", "SGLC450", "at position 3 of the pattern: `(` without `)`"),
        ("a**", "SGLC450", "at position 2 of the pattern: a repeat of nothing"),
        (r"\q", "SGLC450", r"at position 0 of the pattern: the escape `\q`"),
        ("[b-a]", "SGLC450", "at position 0 of the pattern: a range of a class"),
        ("a{1," + "9" * 5000 + "}", "SGLC451", "at position 1 of the pattern"),
    ],
)
def test_a_pattern_is_refused_at_its_place(pattern: str, code: str, note: str) -> None:
    for schema in ({"type": "string", "pattern": pattern}, {"patternProperties": {pattern: True}}):
        with pytest.raises(LegalizeError) as failure:
            form(of({"a": schema}))
        assert failure.value.code == code
        assert failure.value.note.startswith("at `#/properties/a/pattern")
        assert failure.value.note.endswith(f"`; {note}")
