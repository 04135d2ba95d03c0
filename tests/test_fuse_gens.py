"""Several fields as one JSON object: counts, values and fallbacks, through official SDKs and over real HTTP."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from itertools import product
from random import Random
from typing import Any

import pytest
from openai import DefaultAsyncHttpxClient

import sglc as sgl
from sglc.backends.retry import Patience
from sglc.errors import BackendError, LegalizeError
from sglc.execution.result import Result
from sglc.ir.grammar import unambiguous
from sglc.ir.grammar.captures import Captured, capture_form, why_ambiguous
from sglc.ir.grammar.dfa import DEAD, ByteDfa, accepts, tree_of
from sglc.ir.grammar.regex import compile_regex
from sglc.ir.grammar.unambiguous import cut_in_one_way
from sglc.ir.sampling import Sampling
from tests.api_programs import schema_of
from tests.api_targets import at
from tests.depth import at_depth, few, some_of
from tests.fused_programs import RECORDS
from tests.openai_server import Api, Fault
from tests.openai_server import serving as serving_answers
from tests.serving import Server
from tests.test_speculate import PREFILL

QUICK = Patience(attempts=3, first_wait_s=0.01, longest_wait_s=0.02)


@contextmanager
def openai(url: str, model: str = "gpt-4o", **options: Any) -> Iterator[sgl.OpenAI]:
    backend = sgl.OpenAI(model, base_url=url, api_key="k", patience=QUICK, **options)
    try:
        yield backend
    finally:
        backend.close()


# -- which texts can be told apart --------------------------------------------------------------------

_PIECES = ("a", "b", "[ab]", "a?", "b*", "(ab)*", "(a|ba)", "a+", "(b|)", "a{1,2}")


def drawn_parts(seed: int) -> list[ByteDfa]:
    drawn = Random(seed)
    parts = []
    for _ in range(drawn.choice((2, 2, 3))):
        parts.append(compile_regex("".join(drawn.choices(_PIECES, k=drawn.randint(1, 2)))))
        if drawn.random() < 0.4:
            parts.append(tree_of(["".join(drawn.choices("ab", k=drawn.randint(1, 2)))]))
    return parts


def ways(first: ByteDfa, rest: list[ByteDfa], text: bytes) -> int:
    """In how many ways `text` is one of `first` and the rest behind it."""

    def fits(parts: list[ByteDfa], left: bytes) -> bool:
        if len(parts) == 1:
            return accepts(parts[0], left)
        return any(accepts(parts[0], left[:at]) and fits(parts[1:], left[at:]) for at in range(len(left) + 1))

    return sum(accepts(first, text[:at]) and fits(rest, text[at:]) for at in range(len(text) + 1))


def _ambiguous(first: ByteDfa, rest: list[ByteDfa], length: int) -> bool:
    """Whether some text of that length can be cut in two ways."""
    return any(ways(first, rest, bytes(text)) > 1 for text in product(b"ab", repeat=length))


def disagreements(cases: int, proof: Callable[[ByteDfa, list[ByteDfa]], bool | None] = cut_in_one_way) -> int:
    """How often a proof differs from trying all short texts."""
    wrong = 0
    for seed in range(cases):
        first, *rest = drawn_parts(seed)
        proved = proof(first, rest) is True
        found = any(_ambiguous(first, rest, length) for length in range(8))
        if not (proved or found):  # the shortest such text may be longer
            found = any(_ambiguous(first, rest, length) for length in (8, 9, 10))
        wrong += proved == found
    return wrong


@pytest.mark.slow
def test_the_proof_is_what_trying_all_short_texts_shows() -> None:
    found = [cut_in_one_way(first, rest) for first, *rest in map(drawn_parts, range(200))]
    assert {*found} == {True, False}
    assert disagreements(at_depth(15, 30, 600)) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong", [lambda first, rest: True, lambda first, rest: cut_in_one_way(first, rest[:1])],
    ids=["nothing is proved", "only the next text is looked at"],
)  # fmt: skip
def test_wrong_proofs_are_found(wrong: Callable[..., bool | None]) -> None:
    assert disagreements(40, wrong) > 0


@pytest.mark.parametrize(
    ("first", "between", "second", "why"),
    [
        (Sampling(regex="[a-z]+"), "", Sampling(regex="[0-9]+"), ""),
        (Sampling(regex="[a-z]+"), "", Sampling(regex="[a-z]+"), "does not say"),
        (Sampling(), ", ", Sampling(regex="[0-9]+"), ""),  # a comma in the text is followed by no number
        (Sampling(), ", ", Sampling(), "does not say"),
        (Sampling(stop=(",",)), ", ", Sampling(), ""),
        (Sampling(stop=("\n",)), ", ", Sampling(), "does not say"),
        (Sampling(stop=(", ",)), ", ", Sampling(), "does not say"),  # longer stops are not looked at
        (Sampling(regex="[a-z ]+", stop=(" ",)), " ", Sampling(), ""),
        (Sampling(regex="[a-z]+", stop=("ab",)), " ", Sampling(), "its stop string"),
        (Sampling(regex="[a-z]+"), "1" * 1_001, Sampling(regex="[0-9]+"), "too long"),
        (Sampling(json_schema='{"type": "string"}'), "", Sampling(), ""),
        (Sampling(json_schema='{"type": "integer"}'), "", Sampling(regex="[0-9]+"), "does not say"),
        (Sampling(json_schema='{"type": ["object", "array"], "items": true}'), " ", Sampling(), "no regular"),
    ],
)  # fmt: skip
def test_ambiguous_texts_are_not_fused(first: Sampling, between: str, second: Sampling, why: str) -> None:
    said = why_ambiguous((Captured("", "first", first), Captured(between, "second", second)))
    assert (why in said) if why else said == ""


def test_what_takes_too_long_to_prove_is_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = (Captured("", "one", Sampling(regex="[a-z]+")), Captured(": ", "other", Sampling(regex="[a-z]+")))
    prove = why_ambiguous.__wrapped__  # what is remembered was proved before
    assert prove(fields) == ""
    monkeypatch.setattr(unambiguous, "_MOST_LOOKED_AT", 0)
    assert "too large" in prove(fields)


# -- the object ---------------------------------------------------------------------------------------


def test_literals_are_properties_where_they_say_more_than_names() -> None:
    fields = (
        Captured('{"name": "', "name", Sampling(regex="[a-z]+")),
        Captured(" lives in ", "name", choices=("Rome", "Oslo")),
        Captured(" 이름: ", "이름", Sampling()),
    )
    form = capture_form(fields, "strict")
    assert json.loads(form.schema)["properties"] == {
        "name": {"type": "string", "pattern": "^(?:[a-z]+)$"},
        "text": {"type": "string", "enum": [" lives in "]},
        "name_2": {"type": "string", "enum": ["Rome", "Oslo"]},
        "text_2": {"type": "string", "enum": [" 이름: "]},
        "value": {"type": "string", "pattern": r"^[\s\S]{0,512}$"},
    }
    answer = {"name": "ann", "text": " lives in ", "name_2": "Oslo", "text_2": " 이름: ", "value": 'x"y'}
    parts = form.split(json.dumps(answer, indent=2))
    assert [own.read(part) for own, part in zip(form.forms, parts, strict=True)] == ["ann", "Oslo", 'x"y']


@pytest.mark.parametrize(
    "answer",
    ["", "{", "[]", "{}", '{"a": 1', '{"a": 1, "b": 2}', '{"a": 1} {', '{"a": 1, "a": 1}', '{"a" 1}', '{1: 1}',
     '{"text": "other", "a": 1}', '{"b": 1}', '{"text": "so many: ", "a": null}'],
)  # fmt: skip
def test_answers_without_the_form_are_read_as_nothing(answer: str) -> None:
    form = capture_form((Captured("so many: ", "a", Sampling(regex="[0-9]")),), "strict")
    with pytest.raises(ValueError):  # noqa: PT011  # what is wrong with it, the JSON parser says
        form.split(answer)


# -- programs of one request each -----------------------------------------------------------------------


def check(result: Result, name: str, most_calls: int = 1) -> None:
    error = result.error()
    assert error is None, f"{error}"
    assert 1 <= result.usage.calls <= most_calls
    assert result.usage.saved_calls == len(RECORDS[name].fields) - 1
    for field, valid in RECORDS[name].fields.items():
        assert valid(result[field]), (name, field, result[field])


def spelled(value: Any) -> str:
    """The text of a value of an object; of objects and arrays, where spaces may differ, without any."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value[:1] in ("{", "[") else value
        except ValueError:
            return value
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list):
        return json.dumps(value, separators=(",", ":"), default=float)
    return format(value if isinstance(value, Decimal) else Decimal(json.dumps(value)), "f")


def check_values(
    results: Sequence[Result], name: str, answered: Sequence[tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    """The fields of all results are those of all answers, each an object of the schema that was asked for."""
    told: Counter[tuple[str, ...]] = Counter()
    for schema, answer in answered:
        literals = [key for key, part in schema["properties"].items() if len(part.get("enum", "ab")) == 1]
        assert [answer[key] for key in literals] == [schema["properties"][key]["enum"][0] for key in literals]
        told[tuple(spelled(own) for key, own in answer.items() if key not in literals)] += 1

    fields = RECORDS[name].fields
    assert Counter(tuple(spelled(result[field]) for field in fields) for result in results) == told


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("name", some_of(list(RECORDS), 2, 4))
def test_a_record_is_one_request_of_a_real_server(server: Server, name: str) -> None:
    """The official client, and the default model behind `sglc serve`."""
    answered: list[tuple[dict[str, Any], dict[str, Any]]] = []

    async def overhear(response: Any) -> None:
        choice = json.loads(await response.aread())["choices"][0]
        if choice["finish_reason"] == "stop":  # one that writes digits until it is cut is asked again
            said = choice["message"]["content"]
            object_ = json.loads(said, parse_float=Decimal)  # 3.50 is not 3.5
            answered.append((schema_of(json.loads(response.request.content)), object_))

    rows: list[dict[str, Any]] = [{}] * at_depth(1, 2, 500)
    client = DefaultAsyncHttpxClient(event_hooks={"response": [overhear]}, timeout=600)
    with openai(f"{server.url}/v1", server.model, http_client=client) as backend:
        # Few at once: waiting counts, too, and a request has ten minutes.
        program = RECORDS[name].program
        made = program.run_batch(rows, backend=backend, max_new_tokens=24, seed=1, num_threads=16)
        whole = [result for result in made if "ended at `max_tokens`" not in str(result.error())]
        assert sum(result.usage.calls == 1 for result in whole) >= len(rows) // 2  # digits have no end
        for result in whole:
            check(result, name, most_calls=3)  # two more for answers that were cut
        check_values(whole, name, answered)


HOSTILE = (
    "", " ", '"', "\\", '\\"', '", "age": 7}', "}\n{", "\u2028", "\x00", "é\u0301", "😀", "<|im_end|>", "null",
    "'; DROP TABLE", "\r\n", "${x}", "{{x}}", "a" * 500, "\u202e", "]]>", "\\u0022",
)  # fmt: skip


def hostile(schema: Any, drawn: Random) -> Any:
    """A value of a schema: texts that break careless readers, as far as the schema lets them through."""
    match schema:
        case {"pattern": pattern}:
            return matching(compile_regex(pattern), drawn)
        case {"enum": values}:
            return drawn.choice(values)
        case {"anyOf": parts}:
            return hostile(drawn.choice(parts), drawn)
        case {"type": "object", "properties": properties}:
            return {name: hostile(part, drawn) for name, part in properties.items()}
        case {"type": "array", "items": items, "minItems": least}:
            return [hostile(items, drawn) for _ in range(least)]
        case {"type": "integer"}:
            least, most = schema.get("minimum", -(10**30)), schema.get("maximum", 10**30)
            return drawn.choice((least, most, drawn.randint(least, most)))
        case {"type": "number"}:
            return drawn.choice((0, -1, 0.5, 1e-7, 1e21, 12345678901234567890, 3.0))
        case {"type": "boolean"}:
            return drawn.random() < 0.5
        case {"type": "string"}:
            return "".join(drawn.choices(HOSTILE, k=drawn.randint(0, 3)))
    raise AssertionError(schema)


def matching(dfa: ByteDfa, drawn: Random) -> str:
    """A text of an automaton, byte by byte; hostile bytes are likelier."""
    text, state = bytearray(), 0
    while not (dfa.accepting[state] and (drawn.random() < 0.1 or set(dfa.moves[state]) == {DEAD})):
        may = [byte for byte in range(256) if dfa.moves[state][dfa.classes[byte]] != DEAD]
        text.append(
            drawn.choice(
                [byte for byte in may if byte in b'"\\{}\x00\r'] or may if drawn.random() < 0.3 else may
            )
        )
        state = dfa.moves[state][dfa.classes[text[-1]]]
    return text.decode()


def writing(drawn: Random, made_of: list[Any] | None = None) -> Callable[[dict[str, Any]], Any]:
    """Answers every request with a hostile value of its schema, spelled in one of JSON's ways.

    Args:
        made_of: gets each schema and its value.
    """

    def answer(body: dict[str, Any]) -> str:
        if schema_of(body) is None:
            return drawn.choice(HOSTILE)
        made = hostile(schema_of(body), drawn)
        if made_of is not None:
            made_of.append((schema_of(body), made))
        return json.dumps(made, ensure_ascii=drawn.random() < 0.5, indent=drawn.choice((None, 1)))

    return answer


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDS)
def test_hostile_values_stay_in_their_fields(name: str) -> None:
    rows: list[dict[str, Any]] = [{}] * at_depth(5, 25, 500)
    answered: list[tuple[dict[str, Any], dict[str, Any]]] = []
    with serving_answers(writing(random.Random(name), answered)) as api, openai(api.url, "m") as backend:
        made = RECORDS[name].program.run_batch(rows, backend=backend)
        for result in made:
            check(result, name)
        assert len(api.bodies) == len(rows)
        check_values(made, name, answered)


@pytest.mark.parametrize("name", RECORDS)
def test_an_ambiguous_twin_is_not_fused(name: str) -> None:
    """Where a model begins every answer anew it is refused unasked; else the two have requests of their own."""
    record = RECORDS[name]
    follower = [*record.fields][[*record.fields].index(record.endless) + 1]
    why = f"where `{record.endless}` ends, the text behind it does not say"
    with serving_answers(writing(Random(3))) as api:
        with openai(api.url) as backend:
            error = record.twin.run(backend=backend).error()
            assert isinstance(error, LegalizeError)
            assert (error.code, len(api.bodies)) == ("SGLC317", 0)
            assert why in error.note
        with openai(api.url, "m", takes=PREFILL) as backend:
            remarks = record.twin.compile(backend, passes=["+fuse_gens"]).remarks
            said = f"`{follower}` is not fused with `{record.endless}`: {why}"
            assert said in [remark.message for remark in remarks]
            result = record.twin.run(backend=backend, passes=["+fuse_gens"])
            assert result.error() is None
            assert result.usage.calls == len(api.bodies) > 1
            asked = [(schema_of(body) or {}).get("properties", {}).keys() for body in api.bodies]
            assert not any({record.endless, follower} <= keys for keys in asked)


@sgl.function
def repair(s: Any) -> None:
    s += sgl.user("It broke.")
    s += sgl.assistant(
        "Urgency: " + sgl.select("urgency", choices=["low", "high"]) + ", to be mended in "
        + sgl.gen("days", dtype=int) + " days; again: " + sgl.gen("again", dtype=bool)
    )  # fmt: skip


@pytest.mark.parametrize(
    "model", few(["anthropic:claude-opus-4-8", "gemini:gemini-2.5-flash", "openai:gpt-5"], 1)
)
def test_other_protocols_ask_for_the_same_object(model: str) -> None:
    with serving_answers(writing(Random(7))) as api, at(api, model) as backend:
        result = repair.run(backend=backend)
        assert (result.error(), result.usage.calls) == (None, 1)
        assert (result["urgency"] in ("low", "high"), result["again"] in ("True", "False")) == (True, True)
        (body,) = api.bodies
        assert list(schema_of(body)["properties"]) == ["urgency", "text", "days", "text_2", "again"]


# -- three fields behind a few-shot prompt ------------------------------------------------------------

SHOTS = "".join(f"Text: {name} is {age} and lives in Rome.\nName: {name}\nAge: {age}\nCity: Rome\n\n"
                for name, age in (("Ann", 31), ("Bob", 42), ("Eve", 53)))  # fmt: skip
FIELDS = {"name": "Ida", "age": "7", "city": "Oslo"}


def three(s: Any) -> None:
    s += "Name: " + sgl.gen("name", regex="[A-Z][a-z]{1,8}", temperature=0)
    s += "\nAge: " + sgl.gen("age", regex="[0-9]{1,3}", temperature=0)
    s += "\nCity: " + sgl.gen("city", regex="[A-Z][a-z]{1,8}", temperature=0)


@sgl.function
def in_text(s: Any, row: int = 0) -> None:
    s += f"{SHOTS}Text: Ida ({row}) is 7 and lives in Oslo.\n"
    three(s)


@sgl.function
def in_chat(s: Any, row: int = 0) -> None:
    s += sgl.user(f"{SHOTS}Text: Ida ({row}) is 7 and lives in Oslo.")
    with s.assistant():
        three(s)


WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "completions": (in_text, {"is_chat_model": False}),
    "chat": (in_chat, {"takes": PREFILL}),
}


def field_by_field(mismatches: int) -> Callable[[dict[str, Any]], Any]:
    """A model that goes on in the text, one field at a time; in so many rows of 100 it writes no object."""

    def answer(body: dict[str, Any]) -> str:
        schema = schema_of(body)
        said = str(body.get("prompt") or "".join(str(turn["content"]) for turn in body["messages"]))
        if set(schema["properties"] if schema else ()) == {*FIELDS}:
            row = int(re.findall(r"Ida \((\d+)\)", said)[-1])
            broken = ("no object", '{"name": "Ida"}', '{"name": "IDA", "age": "7", "city": "Oslo"}', "{")
            return broken[row % 4] if row * 37 % 100 < mismatches else json.dumps({**FIELDS, "age": "7"})
        label = re.findall(r"(\w+): ?$", said.rstrip() + " ")[-1].casefold()
        return json.dumps({"value": FIELDS[label]}) if schema else FIELDS[label]

    return answer


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_three_fields_are_one_call_and_a_third_of_the_tokens(way: str, server: Server) -> None:
    program, options = WAYS[way]
    with openai(f"{server.url}/v1", server.model, **options) as backend:
        plain = program.run(backend=backend, seed=1)
        fused = program.run(backend=backend, seed=1, passes=["+fuse_gens"])
        assert (plain.error(), fused.error()) == (None, None)
    assert (plain.usage.calls, fused.usage.calls) == (3, 1)
    assert plain.usage.prompt >= 2.9 * fused.usage.prompt


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mismatches", few([0, 25, 50, 100], 2))
def test_what_is_no_object_is_asked_for_field_by_field(way: str, mismatches: int) -> None:
    program, options = WAYS[way]
    rows = [{"row": row} for row in range(at_depth(8, 20, 100))]
    with serving_answers(field_by_field(mismatches)) as api, openai(api.url, "m", **options) as backend:
        plain = program.run_batch(rows, backend=backend)
        alone = len(api.bodies)
        fused = program.run_batch(rows, backend=backend, passes=["+fuse_gens"])
        asked = len(api.bodies) - alone
    assert [dict(result.variables) for result in fused] == [dict(result.variables) for result in plain]
    assert [result.text() for result in fused] == [result.text() for result in plain]
    broken = sum(row["row"] * 37 % 100 < mismatches for row in rows)
    assert (alone, asked) == (3 * len(rows), len(rows) + 3 * broken)
    assert sum(result.usage.calls for result in fused) == asked


def test_a_whole_turn_is_asked_for_again_and_then_fails() -> None:
    with serving_answers(lambda body: "no object") as api, openai(api.url) as backend:
        error = RECORDS["ticket"].program.run(backend=backend, seed=4).error()
        assert isinstance(error, BackendError)
        assert error.code == "SGLC546"
        assert len({body["seed"] for body in api.bodies}) == len(api.bodies) == 3


def test_what_cannot_be_fused_is_refused_before_the_first_request() -> None:
    @sgl.function
    def names(s: Any) -> None:
        s += sgl.user("Who?")
        s += sgl.assistant(sgl.gen("first", regex="[a-z]+") + sgl.gen("last", regex="[a-z]+"))

    with serving_answers(lambda body: "x") as api, openai(api.url) as backend:
        error = names.run(backend=backend).error()
        assert isinstance(error, LegalizeError)
        assert (error.code, api.bodies) == ("SGLC317", [])
        assert "where `first` ends" in error.note


@sgl.function
def joined(s: Any, between: str) -> None:
    s += sgl.user("Who?")
    s += sgl.assistant(sgl.gen("first", regex="[a-z]+") + between + sgl.gen("last", regex="[a-z]+"))


@pytest.mark.parametrize("mode", ["plan", "python"])
def test_texts_that_only_a_run_knows_are_looked_at_there(mode: Any) -> None:
    answer = json.dumps({"first": "ann", "last": "lee"})
    with serving_answers(lambda body: answer) as api, openai(api.url) as backend:
        assert joined.run(between=" ", backend=backend, mode=mode)["last"] == "lee"
        assert len(api.bodies) == 1
        error = joined.run(between="x", backend=backend, mode=mode).error()
        assert isinstance(error, LegalizeError)
        assert (error.code, len(api.bodies)) == ("SGLC317", 1)


# -- equal branches -----------------------------------------------------------------------------------


@sgl.function
def ideas(s: Any, size: int = 8) -> Any:
    s += sgl.user("What for?")
    forks = s.fork(size)
    for fork in forks:
        fork += sgl.assistant(sgl.gen("idea", max_tokens=8))
    return [fork["idea"] for fork in forks]


SEVERAL = replace(PREFILL, samples=8, prefill=False)


def several(body: dict[str, Any]) -> Any:
    return [f"idea {number}" for number in range(body.get("n", 1))] if body.get("n", 1) > 1 else "one idea"


def counted(api: Api) -> list[int]:
    return [body.get("n", 1) for body in api.bodies]


@pytest.mark.slow
def test_equal_branches_are_the_samples_of_one_request() -> None:
    with serving_answers(several) as api, openai(api.url, takes=SEVERAL) as backend:
        result = ideas.run(backend=backend)
        assert result.ret_value == [f"idea {number}" for number in range(8)]
        assert counted(api) == [8]
        one = ideas.run(size=1, backend=backend).usage.prompt
        assert result.usage.prompt == one  # counted once
        assert (result.usage.calls, result.usage.saved_calls) == (1, 7)
        api.bodies.clear()
        assert len(ideas.run(size=11, backend=backend).ret_value) == 11
        assert counted(api) == [8, 3]


@pytest.mark.slow
@pytest.mark.parametrize("asked", [{"seed": 3}, {"temperature": 0}], ids=str)
def test_branches_with_a_seed_or_none_to_draw_are_asked_for_one_by_one(asked: dict[str, Any]) -> None:
    with serving_answers(several) as api, openai(api.url, takes=SEVERAL) as backend:
        ideas.run(backend=backend, **asked).sync()
        assert {*counted(api)} == {1}


def test_branches_of_a_failed_request_all_fail() -> None:
    def failing(body: dict[str, Any]) -> Any:
        return Fault(400)

    with serving_answers(failing) as api, openai(api.url, takes=SEVERAL) as backend:
        assert isinstance(ideas.run(backend=backend).error(), BackendError)
        assert counted(api) == [8]
