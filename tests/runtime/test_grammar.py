"""JSON schemas and grammars: matched token by token, states that stay, beside other rows, on the real model."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sglc.backends.local import LocalBackend
from sglc.errors import LegalizeError, RunError
from sglc.ir.plan.events import GenDone, NodeFailed
from sglc.ir.plan.segment import ExtendNode, OpenNode
from sglc.ir.sampling import Sampling
from sglc.runtime.constraints import grammar_constraint, grammar_matcher
from sglc.runtime.constraints.constraint import Constraints
from sglc.runtime.constraints.grammar_constraint import GrammarConstraint
from sglc.runtime.constraints.grammar_matcher import Grammars
from sglc.runtime.constraints.protocol import Constraint
from tests.depth import some_of
from tests.runtime import test_engine, test_segments
from tests.runtime.test_constrained import answer
from tests.runtime.test_engine import EOS, LONG
from tests.runtime.test_segments import gen

# Control tokens, all bytes, and some longer pieces, one of them half a character.
BYTES = [
    b"",
    b"",
    b"",
    *(bytes([byte]) for byte in range(256)),
    b'{"',
    b'": ',
    b'", "',
    b"12",
    b"tr",
    b"ue",
    b"\xed\x95",
]
SIZE = len(BYTES) + 5  # padding
CONSTRAINTS = Constraints(BYTES, SIZE)


def parsed(schema: Any) -> GrammarConstraint:
    """By a parser, also where an automaton would do."""
    return CONSTRAINTS._grammars.begun("json_schema", json.dumps(schema))


def of(schema: Any) -> Constraint:
    constraint = CONSTRAINTS.of(Sampling(json_schema=json.dumps(schema)))
    assert constraint is not None
    return constraint


def read(constraint: Constraint, text: bytes) -> tuple[int, bool]:
    """The state behind `text`, byte by byte, and whether every byte was allowed."""
    state = constraint.start
    for byte in text:
        if not constraint.mask(state)[3 + byte]:
            return state, False
        state = constraint.advance(state, 3 + byte)
    return state, True


def accepts(constraint: Constraint, text: str) -> bool:
    state, alive = read(constraint, text.encode())
    return alive and constraint.accepting(state)


def record(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), **more}


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        (
            {"type": "integer", "minimum": -3, "exclusiveMaximum": 12},
            ["-3", "0", "11"],
            ["-4", "12", "1.0", "01"],
        ),
        ({"type": "integer", "multipleOf": 5}, ["0", "15"], ["7"]),
        ({"type": "number", "minimum": 0.5, "maximum": 2.25}, ["0.5", "2.25", "1"], ["0.4", "2.3", "1e1"]),
        (
            {"type": ["string", "null"], "minLength": 2, "maxLength": 3},
            ['"é한"', "null"],
            ['"a"', '"abcd"', "1"],
        ),
        ({"type": "string"}, ['"a\\né한"'], ['"a\n"', '"\\x"', '"\\u00e9"', "a"]),
        ({"type": "string", "pattern": "^[a-c]+-\\d{2}$"}, ['"abc-12"'], ['"abd-12"', '"abc-1"', '"xabc-12"']),
        ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2024-13-01"', '"today"']),
        (
            {"enum": ["한국", 1, None, {"k": [1]}]},
            ['"한국"', "1", "null", '{"k": [1]}'],
            ['"한"', "2", "{}", '{"k":[1]}'],
        ),
        (
            {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
            ["[true]"],
            ["[]", "[1]"],
        ),
        ({"type": "array", "prefixItems": [{"const": 1}], "items": False}, ["[1]", "[]"], ["[1, 1]", "[2]"]),
        (
            {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "required": ["b"]},
            ['{"b": null}', '{"a": null, "b": null}'],
            ['{"a": null}', '{"b": null, "c": 1}', '{"b":null}', '{"b": null, "a": null}'],
        ),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            ["{}", '{"é": 1, "b": 2}'],
            ['{"a": "b"}'],
        ),
        (
            {
                "type": "object",
                "properties": {"a": {"const": 1}, "b": {"const": 1}},
                "minProperties": 1,
                "maxProperties": 1,
            },
            ['{"a": 1}', '{"b": 1}'],
            ["{}", '{"a": 1, "b": 1}'],
        ),
        (
            record({"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}),
            ['{"v": 1, "next": {"v": 2, "next": null}}'],
            ['{"v": 1, "next": {"v": 2}}', '{"v": 1}'],
        ),
        (
            {"oneOf": [record({"k": {"const": "a"}}), record({"k": {"const": "b"}, "n": {"type": "integer"}})]},
            ['{"k": "a"}', '{"k": "b", "n": 1}'],
            ['{"k": "b"}', '{"k": "a", "n": 1}'],
        ),
    ],
)
def test_a_schema_is_enforced(schema: Any, taken: list[str], refused: list[str]) -> None:
    constraint = of(schema)
    for text in taken:
        assert accepts(constraint, text), text
        json.loads(text)
    for text in refused:
        assert not accepts(constraint, text), text


def test_a_grammar_is_matched_from_its_root() -> None:
    constraint = CONSTRAINTS.of(Sampling(ebnf='root ::= "(" root ")" | [a-c]{1,2}'))
    assert constraint is not None
    for text, taken in (
        ("((ab))", True),
        ("c", True),
        ("((ab)", False),
        ("d", False),
        ("", False),
        ("()", False),
    ):
        assert accepts(constraint, text) == taken
    # What is whole may still go on, or not.
    half, whole = read(constraint, b"a")[0], read(constraint, b"(ab)")[0]
    assert (constraint.accepting(half), constraint.done(half)) == (True, False)
    assert (constraint.accepting(whole), constraint.done(whole)) == (True, True)


def test_masks_say_which_tokens_lead_on_and_no_control_or_padding_ids_do() -> None:
    constraint = of(record({"n": {"type": "integer"}}))
    state = constraint.start
    allowed = [BYTES[i] for i in np.flatnonzero(constraint.mask(state))]
    assert sorted(allowed) == [b"{", b'{"']
    state = constraint.advance(state, BYTES.index(b'{"'))
    state = constraint.advance(state, 3 + ord("n"))
    allowed = [BYTES[i] for i in np.flatnonzero(constraint.mask(state))]
    assert sorted(allowed) == [b'"', b'": ']
    mask = constraint.mask(state)
    mask[:] = True  # the caller's own
    assert constraint.mask(state).sum() == 2


def test_what_is_compiled_is_kept_while_it_is_small_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    compile_one = Grammars._compile

    def counted(grammars: Grammars, kind: str, text: str) -> Any:
        made.append(text)
        return compile_one(grammars, kind, text)

    monkeypatch.setattr(Grammars, "_compile", counted)
    first, second = 'root ::= "a" | "b"', 'root ::= "c" | "d"'
    kept = Grammars(BYTES, SIZE)
    for text in (first, second, first, second):
        kept.begun("ebnf", text)
    assert made == [first, second]
    monkeypatch.setattr(grammar_matcher, "_BYTES", 1)
    made.clear()
    kept = Grammars(BYTES, SIZE)
    for text in (first, first, second, first):
        kept.begun("ebnf", text)
    assert made == [first, second, first]


def test_half_of_a_surrogate_pair_is_no_text() -> None:
    tokens = [*BYTES, b"\xed\xa0\x80", b"x\xed", b"\xa0\x80", b"\x9f\xbf"]
    half, begun, rest, last = range(len(BYTES), len(tokens))
    constraint = Constraints(tokens, len(tokens)).of(Sampling(ebnf="root ::= [^a]+"))
    assert constraint is not None
    at_first = constraint.mask(constraint.start)
    assert at_first[[3 + 0xED, begun]].all()
    assert not at_first[half]
    for lead in (3 + 0xED, begun):
        mask = constraint.mask(constraint.advance(constraint.start, lead))
        assert [byte for byte in range(256) if mask[3 + byte]] == [*range(0x80, 0xA0)]
        assert mask[[rest, last]].tolist() == [False, True]


def test_half_a_character_is_allowed_where_the_rest_can_follow() -> None:
    constraint = of({"enum": ["한"]})
    state = constraint.advance(constraint.start, 3 + ord('"'))
    assert [BYTES[i] for i in np.flatnonzero(constraint.mask(state))] == [b"\xed", b"\xed\x95"]
    state = constraint.advance(state, BYTES.index(b"\xed\x95"))
    assert not constraint.accepting(state)
    assert [BYTES[i] for i in np.flatnonzero(constraint.mask(state))] == [b"\x9c"]


def test_a_state_can_be_asked_about_again_in_any_order() -> None:
    """As several samples do, and `cut`: against matchers that only go forward."""
    schema = {"type": "array", "items": record({"a": {"type": ["integer", "null"]}})}
    constraint, rng = parsed(schema), random.Random(1)
    states: list[tuple[int, list[int]]] = [(constraint.start, [])]
    for _ in range(400):
        state, path = rng.choice(states)
        choices = np.flatnonzero(constraint.mask(state))
        if choices.size:
            token = int(rng.choice(choices))
            after = constraint.advance(state, token)
            assert after == constraint.advance(state, token)
            states.append((after, [*path, token]))
    for state, path in rng.sample(states, 60):
        other = parsed(schema)
        at = other.start
        for token in path:
            at = other.advance(at, token)
        assert (constraint.mask(state) == other.mask(at)).all()
        assert constraint.accepting(state) == other.accepting(at)
        assert len(constraint._matchers) <= 32


@pytest.mark.parametrize(
    ("sampling", "code", "words"),
    [
        (Sampling(json_schema="{"), "SGLC455", "no JSON"),
        (Sampling(json_schema='{"not": {}}'), "SGLC456", "`not`"),
        (Sampling(ebnf='root ::= "a'), "SGLC457", "no grammar"),
        (Sampling(ebnf='root ::= "a"{,3}'), "SGLC457", "cannot be compiled"),
        (Sampling(ebnf='root ::= "\ud800"'), "SGLC457", "cannot be compiled"),
        (Sampling(ebnf='root ::= dé\ndé ::= "a"'), "SGLC457", "cannot be compiled"),
        (Sampling(ebnf='root ::= ""'), "SGLC459", "nothing but the empty text"),
        (
            Sampling(json_schema='{"type": "integer", "exclusiveMinimum": 4, "exclusiveMaximum": 5}'),
            "SGLC456",
            "no integer values",
        ),
        (Sampling(json_schema='{"oneOf": [{"const": 1}, {"const": 1}]}'), "SGLC456", "several parts"),
        (
            Sampling(json_schema='{"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-9}'),
            "SGLC456",
            "a millionth further in",
        ),
    ],
)
def test_what_cannot_be_is_an_error(sampling: Sampling, code: str, words: str) -> None:
    with pytest.raises((LegalizeError, RunError), match=words) as failure:
        CONSTRAINTS.of(sampling)
    assert failure.value.code == code


def test_states_are_each_request_s_own() -> None:
    assert parsed({"enum": ["once"]}) is not parsed({"enum": ["once"]})


@pytest.mark.parametrize(
    ("package", "form"),
    [
        ("xgrammar", {"ebnf": 'root ::= "a"'}),
        ("llguidance", {"json_schema": '{"pattern": "^not compiled before$"}'}),
    ],
)
def test_without_a_package_it_says_what_to_install(
    package: str, form: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises((LegalizeError, RunError), match=package) as failure:
        Constraints(BYTES, SIZE).of(Sampling(**form))
    assert (failure.value.code, failure.value.hint) == ("SGLC458", "pip install 'sglc[local]'")


def test_keywords_hold_together() -> None:
    either = {"allOf": [record({"a": {"type": "boolean"}}), record({"b": {"type": "null"}})]}
    for schema, taken, refused in (
        (either, ['{"a": true, "b": null}'], ['{"a": true}', '{"b": null}', '{"a": true, "b": 1}']),
        (
            {"type": "object", "patternProperties": {"^x": {"const": 1}}, "additionalProperties": False},
            ["{}", '{"x": 1, "xy": 1}'],
            ['{"x": 2}', '{"y": 1}', '{"x":1}'],
        ),
        ({"type": "string", "pattern": "^a+$", "minLength": 2, "maxLength": 3}, ['"aa"'], ['"a"', '"aaaa"']),
        ({"type": "string", "pattern": '^["é]{2}$'}, ['"\\"é"'], ['""é"', '"é"']),
        ({"type": "string", "pattern": '^[^"\n]$'}, ['"a"', r'"\\"', r'"\t"'], [r'"\""', r'"\n"', r'"\u0022"']),
        ({"type": "string", "pattern": r'^[^"\\]$'}, ['"a"', r'"\n"', '"é"'], [r'"\""', r'"\\"']),
        ({"type": "string", "pattern": r"^[\0-\x1f]$"}, [r'"\n"', r'"\t"'], [r'"\""', r'"\\"']),
        ({"type": "string", "pattern": r'^[^\p{L}"]$'}, ['"1"', r'"\n"'], [r'"\""', '"a"']),
    ):
        for strict in (False, True):
            constraint = CONSTRAINTS.of(Sampling(json_schema=json.dumps(schema), strict=strict))
            assert constraint is not None
            for document in taken:
                assert accepts(constraint, document), document
            for document in refused:
                assert not accepts(constraint, document), document


def test_what_a_schema_has_to_go_on_with() -> None:
    constraint = of(record({"é": {"type": "null"}}))
    assert constraint.ahead(constraint.start) == '{"é": null}'.encode()
    state, alive = read(constraint, '{"é": null}'.encode())
    assert (alive, constraint.done(state), constraint.only(state)) == (True, True, None)


class Told:
    """A matcher of llguidance, and of each of its calls how many bytes it has given."""

    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher
        self.given: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> Any:
            found = getattr(self.matcher, name)(*given)
            self.given.append((name, len(found) if isinstance(found, bytes) else 0))
            return found

        return call


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string", "pattern": r"^(\.){100000}$"}, '"' + "." * 100_000),
        ({"const": "a" * 200_000}, '"' + "a" * 200_000),
        ({"type": "array", "items": {"const": "b" * 99}, "minItems": 999}, '["' + ("b" * 99 + '", "') * 999),
    ],
)
def test_no_call_gives_more_than_is_looked_for(schema: Any, text: str) -> None:
    """llguidance keeps Python's lock while it finds all that has to come: 0.1 s for 100,000 bytes."""
    constraint = parsed(schema)
    matcher: Any = constraint._matcher(constraint.start)
    matcher._matcher = told = Told(matcher._matcher)
    mask = constraint.mask(constraint.start)
    assert constraint.ahead(constraint.start) == text[:256].encode()
    calls = [name for name, _ in told.given]
    assert max(count for _, count in told.given) <= 256
    assert (calls.count("unsafe_compute_mask_ptr"), calls.count("consume_token")) == (256, 256)
    assert (np.unpackbits(matcher.look()[0], count=SIZE, bitorder="little") == mask).all()
    state, alive = read(constraint, text[:200].encode())
    assert alive
    assert constraint.ahead(state) == text[200:][: len(constraint.ahead(state))].encode()


def test_what_takes_too_much_ends_while_it_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    constraint = parsed({"const": "a" * 100})
    matcher: Any = constraint._matcher(constraint.start)
    matcher._matcher = told = Told(matcher._matcher)
    monkeypatch.setattr(grammar_constraint, "_CALL_MAY_TAKE_S", 0.0)
    with pytest.raises(RunError, match="takes too long"):
        constraint.ahead(constraint.start)
    assert [name for name, _ in told.given].count("consume_token") == 1
    assert told.given[-1][0] == "rollback"


# -- on the engine


PIECES = ["", "a", "b", "", *"cdefgh0123456789", "ab", "abc", "12", "007", "é", "ha", " ", ".", "!"]
SPELLED = [piece.encode() for piece in PIECES]
LETTERS = Constraints(SPELLED, len(SPELLED))


def text(ids: Sequence[int]) -> str:
    return b"".join(SPELLED[token] for token in ids).decode()


@pytest.mark.parametrize("depth", [1, 3])
def test_grammars_beside_regexes_and_free_rows(depth: int) -> None:
    bench = test_engine.Bench(depth=depth, max_rows=6)
    grammar = 'root ::= "a" root "b" | " " [0-9]+'
    made = []
    for i, sampling in enumerate(
        (
            Sampling(max_tokens=20, n=3, ebnf=grammar),
            Sampling(max_tokens=20, n=3, ebnf=grammar, logit_bias=((1, 3.0),), presence_penalty=0.5),
            Sampling(max_tokens=20, n=2, regex="(ab|12)+!"),
            Sampling(max_tokens=20, n=2),
        )
    ):
        constraint = LETTERS.of(sampling)
        seeds = list(range(i, i + sampling.n))
        handle = bench.engine.extend(None, LONG[:9])
        request = bench.engine.gen(handle, sampling, seeds, eos_ids=EOS, constraint=constraint)
        made.append((request, sampling, seeds))
    bench.run()
    ended = 0
    for request, sampling, seeds in made:
        truth = [bench.oracle.continuation(LONG[:9], sampling, seed, LETTERS.of(sampling)) for seed in seeds]
        assert bench.samples(request) == truth
        for ids, _, finish in truth if sampling.ebnf else []:
            if finish == "stop":
                found = re.fullmatch("(a*) [0-9]+(b*)", text(ids))
                assert found is not None
                assert len(found[1]) == len(found[2])
                ended += 1
    assert ended >= 2
    assert bench.nothing_left()


def test_a_request_without_a_way_on_fails_alone() -> None:
    """The vocabulary has no `x`, which is seen only where the grammar wants one."""
    bench = test_engine.Bench(depth=2)
    stuck = Sampling(max_tokens=20, n=2, ebnf='root ::= [a-h]{3} "x" | [a-h]{3} "xy"')
    handle = bench.engine.extend(None, LONG[:9])
    request = bench.engine.gen(handle, stuck, [1, 2], eos_ids=EOS, constraint=LETTERS.of(stuck))
    free = bench.gen(LONG[:7])
    bench.run()
    (failed,) = [event for event in bench.of(request) if isinstance(event, test_engine.RequestFailed)]
    assert failed is bench.of(request)[-1]
    assert isinstance(failed.error, RunError)
    assert failed.error.code == "SGLC459"
    assert bench.samples(free) == [bench.oracle.continuation(LONG[:7], test_engine.PLAIN, 1)]
    assert bench.nothing_left()


def test_a_segment_s_generation_obeys_its_grammar() -> None:
    bench = test_segments.Bench(depth=2)
    done = bench.run(
        OpenNode(), ExtendNode(0, ("cd",)), gen(1, ebnf='root ::= "g" [a-h]{2} " "', n=3, max_tokens=9),
        gen(1, "y", ebnf='root ::= "x"'), gen(1, "z", json_schema='{"uniqueItems": true}'),
    )  # fmt: skip
    assert isinstance(done[2], GenDone)
    for sample in done[2].samples:
        assert re.fullmatch("g[a-h]{2} ", sample.text)
        assert sample.finish == "stop"
    for index, code in ((3, "SGLC459"), (4, "SGLC456")):
        assert isinstance(done[index], NodeFailed)
        assert done[index].error.code == code
        assert done[index].error.loc == test_segments.LOC


# -- the real model


NAME = {"type": "string", "minLength": 1, "maxLength": 12}
SCHEMAS: tuple[tuple[str, Any], ...] = (
    ("A person: ", record({"name": NAME, "age": {"type": "integer", "minimum": 0, "maximum": 120}})),
    ("Tags: ", {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 4}),
    (
        "A house: ",
        record(
            {
                "address": record(
                    {"street": NAME, "number": {"type": "integer", "minimum": 1, "maximum": 999}}
                ),
                "rooms": {
                    "type": "array",
                    "items": record({"kind": {"enum": ["kitchen", "bath"]}}),
                    "maxItems": 2,
                },
            }
        ),
    ),
    ("수도: ", record({"나라": {"enum": ["한국", "日本", "Österreich"]}, "emoji": {"enum": ["😀", "🎉"]}})),
    ("True or false: ", {"type": ["boolean", "null"]}),
    ("A day: ", record({"day": {"type": "string", "format": "date"}})),
    ("A code: ", {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
    (
        "An animal: ",
        {
            "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
            "$defs": {
                "cat": record(
                    {"kind": {"const": "cat"}, "lives": {"type": "integer", "minimum": 1, "maximum": 9}}
                ),
                "dog": record({"kind": {"const": "dog"}, "name": NAME}),
            },
        },
    ),
    (
        "A point: ",
        {
            "type": "array",
            "prefixItems": [{"type": "number", "minimum": -1, "maximum": 1, "multipleOf": 0.001}] * 2,
            "items": False,
            "minItems": 2,
        },
    ),
    (
        "Options: ",
        {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": None}}, "minProperties": 1},
    ),
)


def valid(value: Any, schema: Any, root: Any) -> bool:
    """JSON Schema, as far as `SCHEMAS` use it, written without a look at the checker."""
    kinds = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "null": type(None),
        "array": list,
        "object": dict,
    }
    if "$ref" in schema:
        return valid(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root)
    if "oneOf" in schema:
        return sum(valid(value, part, root) for part in schema["oneOf"]) == 1
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if not any(isinstance(value, kinds[t]) and (t == "boolean" or not isinstance(value, bool)) for t in types):
        return False
    match value:
        case str():
            if schema.get("format") == "date" and not re.fullmatch(
                r"\d{4}-(0\d|1[0-2])-([0-2]\d|3[01])", value
            ):
                return False
            fits = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 10**9)
            return fits and re.search(schema.get("pattern", ""), value) is not None
        case list():
            first = schema.get("prefixItems", [])
            if len(value) > len(first) and schema.get("items") is False:
                return False
            fits = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 10**9)
            parts = [*first, *[schema.get("items", {})] * len(value)][: len(value)]
            return fits and all(valid(v, part, root) for v, part in zip(value, parts, strict=True))
        case dict():
            fits = schema.get("minProperties", 0) <= len(value) and set(schema.get("required", [])) <= set(
                value
            )
            return fits and all(valid(v, schema["properties"][k], root) for k, v in value.items())
        case bool() | None:
            return True
        case _:
            return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))


@pytest.mark.slow
def test_a_real_model_writes_documents_of_ten_schemas(local: LocalBackend) -> None:
    for prompt, schema in some_of(SCHEMAS, 4, 6):
        for temperature, n in ((0.0, 1), (1.5, 3)):
            done = answer(
                local, prompt, json_schema=json.dumps(schema), max_tokens=120, temperature=temperature, n=n,
                logprobs_from=0, top_logprobs=2,
            )  # fmt: skip
            for sample in done.samples:
                assert sample.finish == "stop", sample.text
                assert valid(json.loads(sample.text), schema, schema), (schema, sample.text)
                assert np.isfinite(sample.logprobs).all()
                assert len(sample.top_logprobs) == len(sample.ids)


def test_a_real_model_follows_a_grammar(local: LocalBackend) -> None:
    grammar = 'root ::= "(" root (" + " | " * ") root ")" | [0-9]{1,3}'
    done = answer(local, "A sum: ", ebnf=grammar, max_tokens=200, n=3, temperature=1.0)
    ended = [sample.text for sample in done.samples if sample.finish == "stop"]
    assert ended
    for sum_ in ended:
        assert re.fullmatch("[0-9()+* ]+", sum_)
        assert sum_.count("(") == sum_.count(")") == sum_.count("+") + sum_.count("*")
