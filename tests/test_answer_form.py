"""Forms as schemas of structured outputs: what is asked for, and what is read back."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from sglc.errors import LegalizeError
from sglc.ir.grammar.answer_form import KEY, AnswerForm, form_of, form_of_choices
from sglc.ir.grammar.finite import accepted, includes, texts_of
from sglc.ir.grammar.regex import compile_regex
from sglc.ir.sampling import Sampling


def asked(form: AnswerForm | None) -> Any:
    """The schema of the value."""
    assert form is not None
    schema = json.loads(form.schema)
    if not form.inside:
        return schema
    assert (schema["required"], schema["additionalProperties"]) == ([KEY], False)
    return schema["properties"][KEY]


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("yes|no", ["no", "yes"]),
        ("[ab]?c{1,2}", ["ac", "acc", "bc", "bcc", "c", "cc"]),
        ("é|ü", ["é", "ü"]),
        ("(|a)", ["", "a"]),
        ("1[0-9]{2}", [str(number) for number in range(100, 200)]),
    ],
)
def test_few_texts_are_an_enum(pattern: str, texts: list[str]) -> None:
    assert asked(form_of(Sampling(regex=pattern))) == {"type": "string", "enum": texts}
    assert all(accepted(pattern, text) for text in texts)


def test_the_texts_of_random_patterns_are_all_that_match() -> None:
    rng = random.Random(5)
    for _ in range(200):
        alternatives = [
            "".join(rng.choice(["a", "b", "[ab]", "(a|bb)", "b?"]) for _ in range(3)) for _ in range(3)
        ]
        pattern = "|".join(alternatives)
        found = texts_of(compile_regex(pattern), 1000)
        assert found is not None
        words = [""]
        for _ in range(6):
            words += [word + letter for word in words for letter in "ab" if len(word) == len(words[-1])]
        assert sorted(found) == sorted(word for word in set(words) if re.fullmatch(pattern, word))


@pytest.mark.parametrize("pattern", ["a*", "[0-9]{4}", "(a|b){10}"])
def test_many_texts_are_none(pattern: str) -> None:
    assert texts_of(compile_regex(pattern), 1000) is None


@pytest.mark.parametrize(
    ("wider", "narrower", "does"),
    [
        ("[ab]*", "ab|ba", True),
        ("ab|ba", "[ab]*", False),
        ("a+", "a*", False),
        ("a*", "a+", True),
        ("x", "xy", False),
    ],
)
def test_inclusion(wider: str, narrower: str, does: bool) -> None:
    assert includes(compile_regex(wider), compile_regex(narrower)) is does


@pytest.mark.parametrize(
    ("pattern", "schema"),
    [
        (r"[-+]?[0-9]+[ \n]*", {"type": "integer"}),
        (r"[-+]?[0-9]*\.?[0-9]+[ \n]*", {"type": "number"}),
        ("[0-9]+", {"type": "integer", "minimum": 0}),
        (r"-?\d+(\.\d*)?(e[-+]?\d+)?", {"type": "number"}),
    ],
)
def test_numbers(pattern: str, schema: dict[str, Any]) -> None:
    assert asked(form_of(Sampling(regex=pattern))) == schema


@pytest.mark.parametrize("pattern", [r"[^\n]+", ".*", r"\w+", r"\s*[A-Z0-9]+", "[0-9]+%?", "[0-9.,]+"])
def test_texts_that_may_be_numbers_are_texts(pattern: str) -> None:
    assert asked(form_of(Sampling(regex=pattern))) == {"type": "string", "pattern": f"^(?:{pattern})$"}
    with pytest.raises(LegalizeError, match="SGLC312"):
        form_of(Sampling(regex=pattern), "anthropic")
    assert asked(form_of(Sampling(regex=r"[\s\S]*"), "anthropic")) == {"type": "string"}


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ('{"value": "a\\nb"}', "a\nb"), ('{"value": -12}', "-12"), ('{"value": 1.50}', "1.50"),
        ('{"value": 25e2}', "2500"), ('{"value": [1, "é"]}', '[1, "é"]'), ('{"value": true}', "true"),
        ('{"value": {"a": 0.5}}', '{"a": 0.5}'),
    ],
)  # fmt: skip
def test_values_are_read_as_text(answer: str, text: str) -> None:
    assert AnswerForm("{}", True).read(answer) == text


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        ({"enum": ["x", "y"]}, '"x"', '"x"'),
        ({"type": "string"}, r'"he \"said\"\n\u00e9"', r'"he \"said\"\né"'),
        ({"type": ["string", "null"]}, '"null"', '"null"'),
        ({"type": ["string", "null"]}, "null", "null"),
        ({"type": "array", "items": {"type": "number"}}, "[1e400,0.12345678901234567890, 3]",
         "[1E+400, 0.12345678901234567890, 3]"),
        ({"type": "array", "items": {"enum": ["a\"", True]}}, '["a\\"",\n true]', '["a\\"", true]'),
    ],
)  # fmt: skip
def test_the_text_of_a_schema_is_json(schema: dict[str, Any], value: str, text: str) -> None:
    form = form_of(Sampling(json_schema=json.dumps(schema)))
    assert form is not None
    assert form.read(f'{{"{KEY}": {value}}}') == text


@pytest.mark.parametrize("number", ["NaN", "-Infinity"])
def test_what_is_no_json_is_no_answer(number: str) -> None:
    form = form_of(Sampling(json_schema='{"type": "array", "items": {"type": "number"}}'))
    assert form is not None
    with pytest.raises(ValueError, match=number):
        form.read(f'{{"{KEY}": [{number}]}}')


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("", "Expecting value"),
        ("7", "was asked for"),
        ("[]", "was asked for"),
        ("{}", "was asked for"),
        ('{"value": 1e9999}', "too long"),
        ('{"value": 1', "delimiter"),
    ],
)
def test_what_is_no_answer(answer: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        AnswerForm("{}", True).read(answer)


def test_schemas_are_strict() -> None:
    schema = {
        "type": "object",
        "title": "Tree",
        "properties": {
            "name": {"type": "string", "pattern": "[a-z]+"},
            "size": {"type": "integer", "minimum": 1},
            "kind": {"enum": ["oak", None, 3]},
            "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
            "list": {"type": "array", "items": {"type": "number"}, "maxItems": 2},
        },
        "required": ["name"],
        "$defs": {"tree": {"type": "object", "properties": {"a": {"type": "boolean"}}}},
    }
    form = form_of(Sampling(json_schema=json.dumps(schema)))
    made = asked(form)
    assert form is not None
    assert not form.inside
    assert made["required"] == list(schema["properties"])  # type: ignore[call-overload]
    assert made["properties"]["name"] == {"type": "string", "pattern": "[a-z]+"}
    assert made["properties"]["size"] == {"type": "integer", "minimum": 1}
    assert made["properties"]["kind"] == {"type": ["string", "null", "integer"], "enum": ["oak", None, 3]}
    (name,) = made["$defs"]
    assert made["properties"]["next"]["anyOf"][0] == {"$ref": f"#/$defs/{name}"}
    assert made["$defs"][name]["required"] == ["a"]
    assert "`size`" in form.remarks[0]


def test_choices_are_an_enum_and_may_be_too_many() -> None:
    assert asked(form_of_choices(["b", "a", "b"]))["enum"] == ["b", "a"]
    for many in ([str(number) for number in range(1001)], ["x" * 100 + str(number) for number in range(251)]):
        with pytest.raises(LegalizeError, match="SGLC314"):
            form_of_choices(many)
