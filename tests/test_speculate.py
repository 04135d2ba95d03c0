"""One request for several generations: counts, results and fallbacks, through the SDK and over real HTTP."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.models.vendor_rules import openai_model
from sglc.backends.retry import Patience
from sglc.errors import BackendError, LegalizeError
from sglc.execution.result import Result
from sglc.ir.plan.events import Usage
from sglc.ir.target import Takes
from tests.depth import at_depth, few
from tests.openai_server import Fault
from tests.openai_server import serving as serving_answers
from tests.serving import Server, serving

QUICK = Patience(attempts=3, first_wait_s=0.01, longest_wait_s=0.02)
# A server that goes on in the assistant's turn (`continue_final_message`).
PREFILL = Takes(
    stops=4, samples=1, top_k=False, min_p=False, min_tokens=False, stop_tokens=False, stop_regex=False,
    logprobs=-1, prompt_logprobs=False, regex=False, ebnf=False, json_schema="strict", prefill=True,
)  # fmt: skip

# What the model says behind each text, by a word of the document: how far the answer keeps to the program.
RULES = [
    {"prompt": "(?s)wholly.*Name:$", "text": " Ann\nAge: 7\nCity: Rome\nBye"},
    {"prompt": "(?s)partly.*Name:$", "text": " Ann\nAge: 7\nTown: Rome\nBye"},
    {"prompt": "(?s)never.*Name:$", "text": " Ann\nYears: 7"},
    {"prompt": "(?s)wholly.*Age:$", "text": " 7\nCity: Rome\nBye"},
    {"prompt": "(?s)(partly|never).*Age:$", "text": " 7\nTown: Rome"},
    {"prompt": "City:$", "text": " Rome\nBye"},
    # A model that begins its turn by itself.
    {"prompt": "(?s)wholly.*assistant\n$", "text": "Name: Ann\nAge: 7\nCity: Rome\nBye"},
    {"prompt": "(?s)assistant\n$", "text": "Name: Ann\nAge: 7\nTown: Rome\nBye"},
]
CALLS = {"wholly": 1, "partly": 2, "never": 3}
FIELDS = {"name": " Ann", "age": " 7", "city": " Rome"}


def document(kind: str) -> str:
    return f"This is {kind} " + "so and so " * 100


def fields(s: Any) -> None:
    s += "Name:" + sgl.gen("name", stop="\n") + "\nAge:" + sgl.gen("age", stop="\n", max_tokens=16)
    s += "\nCity:" + sgl.gen("city", stop="\n")


def text_program(s: Any, text: str) -> None:
    s += text + "\n"
    fields(s)


def chat_program(s: Any, text: str) -> None:
    s += sgl.user(text)
    with s.assistant():
        fields(s)


PROGRAMS = {"completions": text_program, "chat": chat_program}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    script = tmp_path_factory.mktemp("script") / "answers.json"
    script.write_text(json.dumps(RULES))
    with serving("--model", f"scripted:{script}") as made:
        yield made


MADE: list[sgl.OpenAI] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """No connection outlives its test."""
    yield
    while MADE:
        MADE.pop().close()


def backend(server: Server, protocol: str, **options: Any) -> sgl.OpenAI:
    takes = {"takes": PREFILL} if protocol == "chat" else {}
    given = {"is_chat_model": protocol == "chat", "patience": QUICK, **takes, **options}
    made = sgl.OpenAI(server.model, base_url=f"{server.url}/v1", api_key="k", **given)
    MADE.append(made)
    return made


def answering(url: str, model: str = "gpt-4o", **options: Any) -> sgl.OpenAI:
    MADE.append(sgl.OpenAI(model, base_url=url, api_key="k", patience=QUICK, **options))
    return MADE[-1]


def shown(result: Result) -> Any:
    """All of a result that must not depend on how it was asked for."""
    assert result.error() is None
    ends = [(call.site.name, [(s.text, s.finish) for s in call.samples]) for call in result.calls]
    return result.text(), dict(result.variables), sorted(ends)


# -- the same results, fewer calls -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROGRAMS)
@pytest.mark.parametrize("kind", few(CALLS, 2))
def test_three_fields(scripted: Server, protocol: str, kind: str) -> None:
    def counted(program: Any) -> tuple[Result, int]:
        before = scripted.info()["calls"]
        result = program.run(document(kind), backend=backend(scripted, protocol), seed=1)
        assert result.error() is None
        return result, scripted.info()["calls"] - before

    plain, plain_calls = counted(sgl.function(PROGRAMS[protocol]))
    guessed, calls = counted(sgl.function(num_api_spec_tokens=64)(PROGRAMS[protocol]))
    assert shown(guessed) == shown(plain)
    assert dict(guessed.variables) == FIELDS
    assert (plain_calls, plain.usage.calls, plain.usage.saved_calls) == (3, 3, 0)
    assert (calls, guessed.usage.calls) == (CALLS[kind], CALLS[kind])
    assert guessed.usage.saved_calls == 3 - CALLS[kind]
    # What is said to be saved was not sent, and no more than that.
    saved = plain.usage.prompt - guessed.usage.prompt
    assert 0.95 * saved <= guessed.usage.saved_prompt <= saved
    if kind == "wholly":
        assert plain.usage.prompt >= 2.9 * guessed.usage.prompt
    else:
        assert guessed.usage.prompt <= plain.usage.prompt


@pytest.mark.parametrize("protocol", PROGRAMS)
def test_a_batch_keeps_its_rows_apart(scripted: Server, protocol: str) -> None:  # B13
    kinds = list(CALLS) * at_depth(2, 20, 20)
    before = scripted.info()["calls"]
    program = sgl.function(num_api_spec_tokens=64)(PROGRAMS[protocol])
    results = program.run_batch([(document(kind),) for kind in kinds], backend=backend(scripted, protocol))
    assert [dict(result.variables) for result in results] == [FIELDS] * len(kinds)
    assert [result.usage.calls for result in results] == [CALLS[kind] for kind in kinds]
    assert scripted.info()["calls"] - before == sum(CALLS[kind] for kind in kinds)


@pytest.mark.parametrize("protocol", PROGRAMS)
@pytest.mark.parametrize("kind", few(CALLS, 1))
def test_pieces_come_in_order_and_add_up(scripted: Server, protocol: str, kind: str) -> None:
    program = sgl.function(num_api_spec_tokens=64)(PROGRAMS[protocol])
    pieces = list(program.stream(document(kind), backend=backend(scripted, protocol)))
    names = [site.name for site, _ in pieces]
    assert list(dict.fromkeys(names)) == list(FIELDS)
    assert names == sorted(names, key=list(FIELDS).index)
    for name, value in FIELDS.items():
        assert "".join(text for site, text in pieces if site.name == name) == value
    result = program.run(document(kind), backend=backend(scripted, protocol), stream=True)
    assert "".join(result.text_iter()).endswith("Name: Ann\nAge: 7\nCity: Rome" + "\n" * (protocol == "chat"))
    assert result.usage.calls == CALLS[kind]

    async def read() -> list[str]:
        again = program.run(document(kind), backend=backend(scripted, protocol), stream=True)
        return [text async for text in again.text_async_iter("age")]

    assert "".join(asyncio.run(read())) == FIELDS["age"]


SHOTS = """Text: Carla is 31 and lives in Madrid.
Name: Carla
Age: 31
City: Madrid

Text: In Oslo you can meet Jon, aged 58.
Name: Jon
Age: 58
City: Oslo

Text: """
PEOPLE = (
    "Maria is 44 and lives in Lisbon.",
    "In Rome you can meet Paolo, aged 23.",
    "Tom, 19, comes from Leeds.",
)


@pytest.mark.model
def test_a_real_model_gives_the_same_for_a_third_of_the_tokens(server: Server) -> None:
    def extract(s: Any, text: str) -> None:
        s += SHOTS + text + "\nName:" + sgl.gen("name", stop="\n", max_tokens=16)
        s += "\nAge:" + sgl.gen("age", stop="\n", max_tokens=16)
        s += "\nCity:" + sgl.gen("city", stop="\n", max_tokens=16)

    own = backend(server, "completions", patience=Patience(attempts=1))  # it may be slow, and is no fake
    rows = [(text,) for text in PEOPLE]
    plain = sgl.function(extract).run_batch(rows, backend=own, temperature=0)
    assert [one.error() for one in plain] == [None] * len(rows)
    program = sgl.function(num_api_spec_tokens=32)(extract)
    guessed = program.run_batch(rows, backend=own, temperature=0)
    assert [dict(one.variables) for one in guessed] == [dict(one.variables) for one in plain]
    assert guessed[0].variables == {"name": " Maria", "age": " 44", "city": " Lisbon"}
    for one, before in zip(guessed, plain, strict=True):
        assert (one.usage.calls, before.usage.calls) == (1, 3)
        assert before.usage.prompt >= 2.9 * one.usage.prompt
    streamed = "".join(program.run(*rows[0], backend=own, temperature=0, stream=True).text_iter())
    assert streamed == guessed[0].text()


def test_a_turn_that_the_model_begins_by_itself(scripted: Server) -> None:
    program = sgl.function(num_api_spec_tokens=64)(chat_program)
    takes = openai_model("openai:m", own_server=True).takes
    before = scripted.info()["calls"]
    result = program.run(document("wholly"), backend=backend(scripted, "chat", takes=takes))
    assert dict(result.variables) == FIELDS
    assert result.messages()[-1] == {"role": "assistant", "content": "Name: Ann\nAge: 7\nCity: Rome"}
    assert scripted.info()["calls"] - before == 1
    for retries in (0, 3):
        before = scripted.info()["calls"]
        own = backend(scripted, "chat", takes=takes, api_retries=retries)
        failed = program.run(document("partly"), backend=own)
        error = failed.error()
        assert isinstance(error, BackendError)
        assert (error.code, error.loc is not None) == ("SGLC549", True)
        assert failed.variables == {}
        assert scripted.info()["calls"] - before == 1 + retries


def test_programs_compiled_ahead_ask_the_same(scripted: Server) -> None:
    for protocol, function in PROGRAMS.items():
        program = sgl.function(num_api_spec_tokens=64)(function)
        compiled = program.compile(backend(scripted, protocol))
        (remark,) = [str(remark) for remark in compiled.remarks if remark.source == "speculate"]
        assert "`name`, `age` and `city` are asked for in one request, 2 calls less" in remark
        assert "`name`, `age` and `city`" in program.explain(backend(scripted, protocol)).text()
        result = compiled.run(text=document("wholly"))
        assert (dict(result.variables), result.usage.calls) == (FIELDS, 1)


def test_patterns_end_captures_in_a_stream_too() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def two(s: Any) -> None:
        s += "A:" + sgl.gen("a", stop_regex="[.!]+") + "!! B:" + sgl.gen("b", stop="\n")

    with serving_answers(going_on(" x!! B: y\n")) as api:
        own = answering(api.url, "m", is_chat_model=False)
        assert [(site.name, text) for site, text in two.stream(backend=own)] == [("a", " x"), ("b", " y")]
        assert len(api.bodies) == 1


def test_forks_guess_each_for_itself(scripted: Server) -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s: Any, text: str) -> None:
        s += text
        forks = s.fork(3)
        for fork in forks:
            fork += "\n"
            fields(fork)
        s.join(forks)

    result = program.run(document("wholly"), backend=backend(scripted, "completions"))
    assert {name: list(values) for name, values in result.variables.items()} == {
        name: [value] * 3 for name, value in FIELDS.items()
    }
    assert result.usage.calls == 3


# -- what is asked for, and what is not taken --------------------------------------------------------


def pair(most: int = 40, ahead: int = 64, **more: Any) -> Any:
    @sgl.function(num_api_spec_tokens=ahead)
    def two(s: Any) -> None:
        s += "A:" + sgl.gen("a", stop=["\n", "END"], max_tokens=most, **more)
        s += "\nB:" + sgl.gen("b", stop="\n", max_tokens=most, **more)

    return two


def going_on(whole: str) -> Callable[[dict[str, Any]], Any]:
    """A model that says `whole` behind "A:", and goes on from there if the prompt does; a word is a token."""

    def answer(body: dict[str, Any]) -> Any:
        rest = whole[len(body["prompt"]) - 2 :] if whole.startswith(body["prompt"][2:]) else "own\nmore"
        ends = [at for stop in body.get("stop") or () if (at := rest.find(stop)) >= 0]
        rest = rest[: min(ends)] if ends else rest
        words = re.findall(r"\s*\S+|\s+\Z", rest)
        if len(words) <= body["max_tokens"]:
            return rest
        choice = {"index": 0, "text": "".join(words[: body["max_tokens"]]), "finish_reason": "length"}
        usage = {"prompt_tokens": 1, "completion_tokens": body["max_tokens"], "total_tokens": 0}
        return {"id": "x", "object": "text_completion", "created": 0, "model": "m", "choices": [choice],
                "usage": usage}  # fmt: skip

    return answer


def test_a_joint_request_has_no_stops_and_room_for_all() -> None:
    with serving_answers(going_on(" x\nB: y\nC: z")) as api:
        own = answering(api.url, "m", is_chat_model=False)
        assert pair(temperature=0.5).run(backend=own).variables == {"a": " x", "b": " y"}
        (body,) = api.bodies
        assert {key: body[key] for key in ("prompt", "max_tokens", "temperature")} == {
            "prompt": "A:", "max_tokens": 64, "temperature": 0.5,
        }  # fmt: skip
        assert "stop" not in body
        assert pair(most=10).run(backend=own).variables == {"a": " x", "b": " y"}
        assert pair(most=100).run(backend=own).variables == {"a": " x", "b": " y"}
        assert [body["max_tokens"] for body in api.bodies] == [64, 10 + 10 + 3, 100]


@pytest.mark.parametrize("mode", ["plan", "python"])
@pytest.mark.parametrize("stop", ["\n", None])
def test_without_the_pass_every_generation_has_a_request_of_its_own(mode: Any, stop: str | None) -> None:
    @sgl.function(num_api_spec_tokens=64)
    def guesses(s: Any) -> None:
        s += "A:" + sgl.gen("a", stop=stop, max_tokens=8) + "\nB:" + sgl.gen("b", stop=stop, max_tokens=8)

    with serving_answers(going_on(" x\nB: y\nC: z")) as api:
        own = answering(api.url, "m", is_chat_model=False)
        result = guesses.run(backend=own, mode=mode, passes="-speculate").sync()
        assert (result.error(), result.usage.calls, result.usage.saved_calls) == (None, 2, 0)
        own_stop = None if stop is None else [stop]
        assert [(body["max_tokens"], body.get("stop")) for body in api.bodies] == [(8, own_stop)] * 2


def test_b14_limits_hold_and_are_counted_in_tokens() -> None:
    # 7 words and 36 bytes: more than 5 tokens, for all that is known.
    with serving_answers(going_on(" one two three four five six seven\nB: y")) as api:
        own = answering(api.url, "m", is_chat_model=False)
        result = pair(most=5, ahead=64).run(backend=own)
        # The first is asked for again, alone and with its own limit; it and what follows guess no more.
        assert result.variables == {"a": " one two three four five", "b": "own"}
        assert [(body["max_tokens"], body.get("stop")) for body in api.bodies] == [
            (13, None), (5, ["\n", "END"]), (5, ["\n"]),
        ]  # fmt: skip
        assert (result.usage.calls, result.usage.saved_calls, result.usage.completion) == (3, 0, 9 + 5 + 1)
        assert result.get_meta_info("a")["finish_reason"]["type"] == "length"
        api.bodies.clear()
        # Without retries no request is made that may be in vain.
        alone = answering(api.url, "m", is_chat_model=False, api_retries=0)
        again = pair(most=5).run(backend=alone)
        assert (again.variables, again.usage.calls) == (result.variables, 2)
        assert [body["max_tokens"] for body in api.bodies] == [5, 5]


def test_a_budget_of_tokens_holds_for_joint_requests() -> None:
    with serving_answers(going_on(" x y\nB: y z\nand so on and on")) as api:
        own = answering(api.url, "m", is_chat_model=False)
        pair(most=9).run(backend=own, max_tokens=6).sync()
        assert [body["max_tokens"] for body in api.bodies] == [7]


def test_b13_every_stop_string_counts() -> None:
    with serving_answers(going_on(" x END\nB: y")) as api:
        result = pair().run(backend=answering(api.url, "m", is_chat_model=False))
        assert result.variables == {"a": " x ", "b": "own"}
        assert result.usage.calls == 2


def test_b13_a_failed_try_leaves_nothing_behind() -> None:
    answers = ["Name: Ann\nAge: 7", "Name: Bob\nJob: cook\nAnd more", "never asked"]
    with serving_answers(lambda body: answers.pop(0)) as api:

        @sgl.function(num_api_spec_tokens=64)
        def person(s: Any) -> None:
            s += sgl.user("Who?")
            s += sgl.assistant("Name:" + sgl.gen("name", stop="\n") + "\nJob:" + sgl.gen("job", stop="\n"))

        result = person.run(backend=answering(api.url), seed=4)
        assert result.variables == {"name": " Bob", "job": " cook"}
        prompt = result.usage.prompt
        assert result.usage == Usage(
            prompt, 2, prompt - 2, 0, 4 + 6, 2, saved_calls=1, saved_prompt=prompt // 2
        )
        first, second = api.bodies
        assert [turn["role"] for turn in first["messages"]] == ["user"]
        # The same request with another seed: what failed is no part of it.
        assert first.pop("seed") + 1 == second.pop("seed")
        assert first == second
        assert [call.site.name for call in result.calls] == ["name", "job"]


def test_b13_no_stop_and_several_are_as_good_as_one() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def person(s: Any) -> None:
        s += sgl.user("Who?")
        s += sgl.assistant("Name:" + sgl.gen("name") + "\nJob:" + sgl.gen("job", stop=["\n", "."]))

    with serving_answers(lambda body: "Name: Ann.\nJob: cook. And more") as api:
        assert person.run(backend=answering(api.url)).variables == {"name": " Ann.", "job": " cook"}


def test_b13_what_never_matches_is_an_error_and_no_part_of_a_result() -> None:
    with serving_answers(lambda body: "Name: Ann\nAge: 7") as api:

        @sgl.function(num_api_spec_tokens=64)
        def person(s: Any, who: str) -> None:
            s += sgl.user(who)
            s += sgl.assistant("Name:" + sgl.gen("name", stop="\n") + "\nJob:" + sgl.gen("job", stop="\n"))

        results = person.run_batch([("a",), ("b",)], backend=answering(api.url))
        for result in results:
            error = result.error()
            assert isinstance(error, BackendError)
            assert error.code == "SGLC549"
            assert "'\\nJob:' was to come, and there is '\\nAge:'" in error.note
            assert result.variables == {}
        assert len(api.bodies) == 2 * 3
        pieces = person.stream("c", backend=answering(api.url))
        with pytest.raises(BackendError, match="SGLC549"):
            list(pieces)  # nothing was told that did not come


def test_b4_reading_inside_a_turn_is_no_deadlock() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def person(s: Any) -> None:
        s += sgl.user("Who?")
        with s.assistant():
            s += "Name:" + sgl.gen("name", stop="\n")
            for _ in s["name"]:  # ordinary Python: what follows is known when it runs
                s += "\nJob:" + sgl.gen("job", stop="\n")

    with serving_answers(lambda body: "Name: Ann\nJob: cook") as api:
        result = person.run(backend=answering(api.url))
        error = result.error()
        assert isinstance(error, LegalizeError)
        assert error.code == "SGLC317"
        assert result.variables == {"name": " Ann"}


def test_b14_a_program_for_speculation_runs_on_a_server(scripted: Server) -> None:
    program = sgl.function(num_api_spec_tokens=64)(text_program)
    endpoint = sgl.RuntimeEndpoint(scripted.url, patience=QUICK)
    result = program.run(document("partly"), backend=endpoint)
    assert dict(result.variables) == FIELDS
    assert (result.usage.calls, result.usage.saved_calls) == (3, 0)
    assert any("changes nothing" in remark.message for remark in program.compile(endpoint).remarks)
    endpoint.close()


def test_b9_b16_bound_programs_and_branches_guess_too() -> None:
    with serving_answers(going_on(" x\nB: y\n")) as api:
        own = answering(api.url, "m", is_chat_model=False)

        @sgl.function(num_api_spec_tokens=64)
        def program(s: Any, first: str) -> None:
            fork = s.fork(1)[0]
            fork += first + sgl.gen("a", stop="\n") + "\nB:" + sgl.gen("b", stop="\n")
            s.join([fork])

        result = program.bind(first="A:").run(backend=own)
        assert (result.variables, result.usage.calls) == ({"a": [" x"], "b": [" y"]}, 1)


def test_an_answer_that_breaks_off_names_its_generation() -> None:
    with serving_answers(lambda body: Fault(said=" x and")) as api:
        own = answering(api.url, "m", is_chat_model=False)
        pieces = pair().stream(backend=own)
        with pytest.raises(BackendError, match="`a`"):
            list(pieces)
    faults = [Fault(status=500), Fault(status=429)]
    with serving_answers(lambda body: faults.pop() if faults else " x\nB: y\n") as api:
        result = pair().run(backend=answering(api.url, "m", is_chat_model=False))
        assert (result.variables, result.usage.calls, len(api.bodies)) == ({"a": " x", "b": " y"}, 3, 3)


def test_turns_in_completions_end_at_the_template_s_stops() -> None:
    with serving_answers(lambda body: "Name: Ann<|im_end|>\nAge: 7") as api:

        @sgl.function(num_api_spec_tokens=64)
        def person(s: Any) -> None:
            s += sgl.user("Who?")
            s += sgl.assistant(sgl.gen("name", stop="\n") + "\nAge:" + sgl.gen("age", stop="\n"))

        own = answering(api.url, "m", is_chat_model=False, chat_template="chatml")
        result = person.run(backend=own)
        assert result.variables == {"name": "Name: Ann", "age": "Name: Ann"}
        assert api.bodies[0]["stop"] == ["<|im_end|>"]
        assert len(api.bodies) == 2
