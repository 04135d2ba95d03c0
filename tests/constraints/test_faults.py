"""Schemas that once let through what is not valid, were refused for nothing, or raised no error of ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sglc.errors import LegalizeError
from sglc.ir.grammar.json_schema import enforced
from sglc.ir.grammar.schema_grammar import json_grammar
from tests.constraints.random_schemas import Reference, parsed
from tests.constraints.verdicts import accepts, ours

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
WORD = {"type": "string"}
EVALUATED = {"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        ({"type": "string", "pattern": "^P([0-9]+Y)?$"}, ['"P"', '"P2Y"'], ['"P2"', '"xP"']),
        (
            {"type": "string", "pattern": "^https://"},
            ['"https://a.b"', '"https://"'],
            ['"http://a"', '" https://"'],
        ),
        ({"type": "string", "pattern": "b"}, ['"b"', '"abc"'], ['"ac"']),
        ({"type": "string", "pattern": "^a|b$"}, ['"ax"', '"xb"'], ['"xbx"', '"ba"']),
        ({"type": "string", "pattern": r"^\S$"}, ['"a"'], ['"\ufeff"', '" "', '"\u2003"']),
        ({"type": "string", "pattern": "^.$"}, ['"a"', '"😀"'], ['"\\r"', '"\u2028"']),
        ({"type": "string", "pattern": '^["\\\\]$'}, ['"\\""', '"\\\\"'], ['"""', '"a"']),
        ({"type": "string", "pattern": "^a+$", "minLength": 2, "maxLength": 3}, ['"aa"'], ['"a"', '"aaaa"']),
        (
            {"type": "string", "format": "date", "pattern": "-02-"},
            ['"2024-02-29"'],
            ['"2023-02-29"', '"2024-03-01"'],
        ),
        (EVALUATED, ['{"a": 1}', "{}"], ['{"b": 1}']),
        ({"unevaluatedProperties": False, "type": "object"}, ["{}"], ['{"a": 1}']),
        (
            {"type": "array", "items": {"enum": ["a", 1, True]}, "uniqueItems": True, "minItems": 1},
            ['["a"]', '[1, "a"]', "[true, 1]", '[1, true, "a"]'],
            ["[]", "[1, 1]", '["a", "b"]', '["a", 1, true, 1]'],
        ),
        (
            {"type": ["array", "null"], "items": {"type": "boolean"}, "uniqueItems": True, "maxItems": 2},
            ["null", "[]", "[true, false]", "[false, true]"], ["[true, true]", "1"],
        ),
        (  # more than can be listed in every order: in the schema's
            {"type": "array", "items": {"enum": [*"abcdefgh"]}, "uniqueItems": True},
            ['["a", "h"]', json.dumps([*"abcdefgh"])], ['["a", "a"]', '["a", "i"]'],
        ),
        (
            {"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}, "maxItems": 3},
            ["[5]", "[1, 9]", "[1, 2, 7]", "[6, 6, 6]"], ["[]", "[1]", "[1, 2, 3]", "[1, 2, 3, 7]"],
        ),
        ({"contains": WORD, "type": ["array", "boolean"]}, ['[1, "a", null]', "true"], ["[]", "[1]"]),
        ({"contains": WORD, "minContains": 0, "type": "array", "items": {}}, ["[]", "[1]"], ["1"]),
        (
            {"type": "object", "propertyNames": {"pattern": "^a"}, "additionalProperties": {"type": "integer"}},
            ["{}", '{"a": 1, "ab": 2}'], ['{"b": 1}', '{"a": "b"}'],
        ),
        (
            {"propertyNames": {"enum": ["a", 'q"']}, "properties": {"a": {"type": "null"}, "b": WORD}},
            ["{}", '{"a": null}', r'{"a": null, "q\"": 1}'], ['{"b": null}', '{"a": 1}', '{"x": 1}'],
        ),
        (
            {"$ref": "#/$defs/o",
             "$defs": {"o": {"propertyNames": {"$ref": "#/$defs/n"}}, "n": {"maxLength": 2}}},
            ["{}", '{"ab": 1}', '{"éé": 1}'], ['{"abc": 1}', "1"],
        ),
        ({"type": "object", "propertyNames": False}, ["{}"], ['{"a": 1}']),
        # Older drafts do not know these keywords, inside of `not` and beside `$ref` neither.
        ({"$schema": DRAFT_4, "type": "boolean", "const": True}, ["true", "false"], ["1"]),
        (
            {"$schema": DRAFT_4, "not": {"type": "object", "const": 1}, "type": ["null", "object"]},
            ["null"], ["{}"],
        ),
        ({"unevaluatedItems": False, "type": "array"}, ["[]"], ["[1]"]),
        (
            {"type": "object", "properties": {"a": True}, "additionalProperties": True},
            ['{"a": 1, "b": 2}'],
            ["1"],
        ),
        (
            {"properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
            ['{"a": null, "b": 1}', '{"b": 1}'],
            ['{"a": 1}', r'{"\u0061": 1}', '{"b": null}'],
        ),
        ({"const": {"a": [1, {"b": "c"}]}}, ['{"a": [1, {"b": "c"}]}'], ['{"a":[1,{"b":"c"}]}']),
        ({"enum": [[1, 2], {"a": 1}]}, ["[1, 2]", '{"a": 1}'], ["[1,2]", '{"a":1}']),
        ({"type": "string"}, ['"\ud7ff"', '"😀"'], [r'"\ud800"', '"\ud800"', r'"\udc00\ud800"']),
        (
            {"type": "string", "format": "date"},
            ['"2024-02-29"', '"2000-02-29"'],
            ['"2024-02-30"', '"1900-02-29"'],
        ),
        ({"type": "string", "format": "date-time"}, ['"2024-02-29T10:00:00Z"'], ['"2024-02-30T10:00:00Z"']),
        (
            {"type": "string", "format": "time"},
            ['"23:59:59.5+01:00"'],
            ['"22:59:60Z"', '"24:00:00Z"', '"10:00:00"'],
        ),
        ({"type": "string", "format": "ipv4"}, ['"87.10.0.1"'], ['"087.10.0.1"']),
        (
            {"type": "string", "format": "uri-reference"},
            ['"a/b?c"', '"http://a.b/c"', '""'],
            ['"a b"', '"1:2"'],
        ),
        ({"type": "string", "format": "uri-template"}, ['"http://a/{b}/{c:1}"'], ['"{"', '"a b"', '"{}"']),
        ({"type": "string", "format": "json-pointer"}, ['""', '"/a~1b"'], ['"a"', '"/~"']),
        ({"type": "number", "multipleOf": 0.01, "minimum": 0}, ["0.29", "1"], ["0.295", "-1"]),
        ({"type": "array", "items": {}, "minItems": 1}, ["[1]", "[[], {}]"], ["[]"]),
        (
            {"type": "object", "dependentRequired": {"a": ["b"]}},
            ["{}", '{"a": 1, "b": 1}', '{"b": 1}'],
            ['{"a": 1}'],
        ),
        ({"type": "string", "format": "int32", "x-note": 1, "title": "t"}, ['"a"'], ["1"]),
        ({"type": "number", "exclusiveMinimum": 3, "maximum": 3.5}, ["3.1", "3.5"], ["3", "3.0", "3.51"]),
        ({"type": "number", "exclusiveMaximum": 0, "minimum": -0.5}, ["-0.1", "-0.5"], ["-0", "0", "-0.0"]),
        ({"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}], "type": "number"}, ["0.5"], ["0", "-0"]),
        ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6}, ["4", "5"], ["3", "6"]),
        (
            {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": True, "b": True}},
            ['{"a": 1}', '{"b": 1}'],
            ["{}", '{"a": 1, "b": 1}'],
        ),
        ({"not": {"enum": ["ab", "", 1]}}, ['"a"', '"abc"', "null"], ['"ab"', '""', "1", "1.0"]),
        ({"not": {"required": ["a"]}, "properties": {"a": True, "b": True}}, ["{}", '{"b": 1}'], ['{"a": 1}']),
        (
            {
                "properties": {"kind": {"enum": ["x", "y"]}, "n": {"type": "integer"}},
                "if": {"properties": {"kind": {"const": "x"}}, "required": ["kind"]},
                "then": {"required": ["n"]},
                "else": {"properties": {"n": False}},
            },
            ['{"kind": "x", "n": 1}', '{"kind": "y"}', "{}"],
            ['{"kind": "x"}', '{"kind": "y", "n": 1}', '{"n": 1}'],
        ),
        (
            {"patternProperties": {r"^\d$": {"type": "integer"}, "^[0-9]$": {"minimum": 3}}},
            ['{"1": 3}', "{}"],
            ['{"1": 2}', '{"1": "a"}'],
        ),
        (True, ["1", '{"a": [null]}'], ["", "tru"]),
    ],
)  # fmt: skip
def test_what_is_let_through(schema: Any, taken: list[str], refused: list[str]) -> None:
    start = ours(schema)
    assert start is not None
    for text in taken:
        assert accepts(start, text), text
        assert Reference(schema).problem(parsed(text)) == ""
    for text in refused:
        assert not accepts(start, text), text


def test_what_stands_beside_a_reference_tells_nothing_apart_in_older_drafts() -> None:
    one = {"$ref": "#/definitions/a", "type": "number"}
    schema = {"$schema": DRAFT_4, "definitions": {"a": {"type": "string"}}, "oneOf": [one, {"type": "string"}]}
    start = ours(schema)
    assert Reference(schema).problem("x") != ""  # both hold
    assert start is None or not accepts(start, '"x"')
    newest = {key: part for key, part in schema.items() if key != "$schema"}
    start = ours(newest)
    assert start is not None
    assert accepts(start, '"x"')


@pytest.mark.parametrize(
    ("draft", "known"),
    [
        ("draft-04", []),
        ("draft-06", ["const", "propertyNames"]),
        ("draft-07", ["const", "if", "propertyNames", "then"]),
        ("2019-09", ["const", "dependentRequired", "if", "propertyNames", "then"]),
        ("2020-12", ["const", "dependentRequired", "if", "prefixItems", "propertyNames", "then"]),
    ],
)
def test_what_a_draft_does_not_know_is_remarked(draft: str, known: list[str]) -> None:
    keywords = {
        "const": [1], "if": True, "then": True, "prefixItems": [True], "dependentRequired": {},
        "propertyNames": True,
    }  # fmt: skip
    schema = {
        "$schema": f"http://json-schema.org/{draft}/schema#",
        "properties": {"a/b": {"allOf": [keywords]}},
    }
    said = enforced(json.dumps(schema)).ignored
    at = "#/properties/a~1b/allOf/0"
    assert {*said} == {
        f"at `{at}/{key}` of `json_schema`: `{key}`, which this draft does not know, has no effect"
        for key in keywords.keys() - {*known}
    }


def test_the_oldest_drafts_are_refused() -> None:
    with pytest.raises(LegalizeError) as refused:
        enforced('{"$schema": "http://json-schema.org/draft-03/schema#", "divisibleBy": 2}')
    assert (refused.value.code, refused.value.note) == ("SGLC456", "at `#/$schema`")


OBJECTS = '{"type": "object", "required": ["a"], "properties": {"a": '


@pytest.mark.slow
@pytest.mark.parametrize("depth", [90, 250])
def test_nested_objects(depth: int) -> None:
    start = ours(json.loads(OBJECTS * depth + '{"type": "null"}' + "}}" * depth))
    assert start is not None
    assert accepts(start, '{"a": ' * depth + "null" + "}" * depth)
    assert not accepts(start, '{"a": ' * (depth - 1) + "null" + "}" * (depth - 1))


@pytest.mark.parametrize("schema", ["false", '{"type": "string", "pattern": "(?u)a"}', '{"enum": ["\\ud800"]}'])
def test_what_was_no_error_of_ours_is_one(schema: str) -> None:
    with pytest.raises(LegalizeError) as failure:
        json_grammar(schema)
    assert failure.value.note.startswith("at `#")
