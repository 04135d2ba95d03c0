"""`openai:` through the official SDK over real HTTP: requests, answers, faults, counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.backends import retry
from sglc.backends.models.vendor_rules import openai_model
from sglc.backends.openai.echoed_choices import echoed as echoed_text
from sglc.backends.openai.echoed_choices import scored
from sglc.backends.openai.openai_backend import OpenAIBackend, OpenAIOptions
from sglc.backends.registry import connect, disconnect
from sglc.backends.remote.prompts import Prompt
from sglc.backends.remote.segment_runner import ApiRequest
from sglc.backends.retry import Patience
from sglc.cli.program_file import open_function
from sglc.errors import BackendError, LegalizeError, Loc, RunError, UsageError
from sglc.ir.core import Site
from sglc.ir.plan.events import Usage
from sglc.ir.plan.segment import SelectNode
from sglc.ir.target import Takes
from sglc.lang.choices import ChoicesDecision, ChoicesSamplingMethod
from tests.depth import at_depth, few
from tests.openai_server import Api, Fault, UntilAsked, serving
from tests.waiting import until

QUICK = Patience(attempts=4, first_wait_s=0.01, longest_wait_s=0.02, attempt_s=60, total_s=300)
EXAMPLES = Path(__file__).parent.parent / "examples"


def said(body: dict[str, Any]) -> str:
    """The first value of an enum, else the last message in capitals."""
    if "response_format" in body:
        schema = body["response_format"]["json_schema"]["schema"]["properties"]["value"]
        return json.dumps({"value": schema["enum"][-1] if "enum" in schema else 7})
    return str(body["messages"][-1]["content"]).upper()


MADE: list[sgl.OpenAI] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """No connection outlives its test."""
    yield
    while MADE:
        MADE.pop().close()


def backend(api: Api, model: str = "gpt-4o", **options: Any) -> sgl.OpenAI:
    given = {"base_url": api.url, "api_key": "k", "patience": QUICK, **options}
    MADE.append(sgl.OpenAI(model, **given))
    return MADE[-1]


@sgl.function
def chat(s: Any, question: str) -> None:
    s += sgl.system("Be brief.")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("first", max_tokens=8, stop=["END", "1", "2", "3", "4", "5"], temperature=0))
    s += sgl.user("again")
    s += sgl.assistant(sgl.gen("second", frequency_penalty=0.5, seed=5))


# -- requests and answers --------------------------------------------------------------------------


def test_turns_are_messages_and_only_what_differs_is_sent() -> None:
    with serving(said) as api:
        result = chat.run("what now", backend=backend(api), seed=1)
        assert (
            result.text()
            == "SYSTEM:Be brief.\nUSER:what now\nASSISTANT:WHAT NOW\nUSER:again\nASSISTANT:AGAIN\n"
        )
        first, second = api.bodies
        seed = first.pop("seed")
        assert 0 <= seed < 2**63
        assert first == {
            "model": "gpt-4o",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "what now"},
            ],
            "max_completion_tokens": 8,
            "temperature": 0.0,
            "stop": ["END", "1", "2", "3"],
        }
        assert second["messages"][2:] == [
            {"role": "assistant", "content": "WHAT NOW"},
            {"role": "user", "content": "again"},
        ]
        assert {key: second[key] for key in second if key not in ("model", "messages")} == {
            "max_completion_tokens": 128,
            "frequency_penalty": 0.5,
            "seed": 5,
        }
        assert api.headers[0]["authorization"] == "Bearer k"
        prompt = result.usage.prompt
        assert result.usage == Usage(prompt, 2, prompt - 2, 0, 3, 2)
        again = chat.run("what now", backend=backend(api), seed=1)
        again.sync()
        assert api.bodies[2]["seed"] == seed


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("gpt-4o", {}),
        ("gpt-3.5-turbo-instruct", {"chat": False}),
        ("gpt-4o", {"azure": True, "client": {"api_version": "2024-10-21"}}),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
def test_a_request_is_that_of_the_sdk_s_own_method(
    model: str, options: dict[str, Any], streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "of somebody else")
    chat = options.get("chat", True)
    turns = [{"role": "user", "content": [{"type": "text", "text": "a\u00e9"}]}]
    fields: dict[str, Any] = {
        "model": model, "max_tokens": 3, "seed": 7, "stop": ["x"], "logit_bias": {"5": -1},
        "extra_body": {"top_k": 4, "seed": 8}, **({"messages": turns} if chat else {"prompt": "a"}),
    }  # fmt: skip
    if streams:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    with serving(lambda body: "fine") as api:
        url = "azure_endpoint" if options.get("azure") else "base_url"
        client = {url: api.url, "api_key": "k", **options.get("client", {})}
        asking = OpenAIBackend(OpenAIOptions(model=model, **{**options, "client": client}))

        async def ask() -> None:
            sdk, end = asking.connect()
            method = sdk.chat.completions if chat else sdk.completions
            for made in (await method.create(**fields), await asking.create(sdk, fields)):
                if streams:
                    assert [chunk async for chunk in made]
            await end()

        asyncio.run(ask())
    assert api.bodies[0] == api.bodies[1]
    assert api.headers[0] == api.headers[1]
    assert api.paths[0] == api.paths[1]
    assert ("deployments" in api.paths[0]) == bool(options.get("azure"))


def test_an_answer_is_read_whatever_its_content_type() -> None:
    whole = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}}
    answer = {"choices": [whole], "usage": {"prompt_tokens": 3.0, "completion_tokens": "2"}}
    fault = Fault(200, {"content-type": "text/plain"}, body=json.dumps(answer))
    with serving(lambda body: fault) as api:
        result = one.run(backend=backend(api))
        assert result["x"] == "a"
        assert (result.usage.prompt, result.usage.completion) == (3, 2)


def test_stop_strings_that_the_api_was_not_given_are_cut_off_here() -> None:
    with serving(lambda body: "one two 5 three") as api:
        result = chat.run("q", backend=backend(api))
        assert result["first"] == "one two "
        result.sync()
        assert result.get_meta_info("first")["finish_reason"] == {"type": "stop", "matched": "5"}
        assert "one two 5 three" not in json.dumps(api.bodies[1])


def test_pieces_add_up_to_the_text_and_stop_strings_never_show() -> None:
    with serving(lambda body: "one two 5 three" if "again" not in str(body) else "x") as api:
        pieces = [text for site, text in chat.stream("q", backend=backend(api)) if site.name == "first"]
        assert len(pieces) > 1
        assert "".join(pieces) == "one two "
        assert api.bodies[0]["stream"] is True
        assert api.bodies[0]["stream_options"] == {"include_usage": True}
        assert "max_tokens" not in api.bodies[0]  # B12: one field for the length, streaming or not


def test_examples_that_chat_can_do() -> None:
    with serving(said) as api:
        for name, arguments, count in (
            ("quickstart", {"question": "What is the capital of France?"}, 1),
            ("judge", {"essay": "Rain is good."}, 4),
            ("few_shot", {"review": "Fine."}, 1),
            ("tree", {"goal": "learn to swim"}, 6),
        ):
            before = len(api.bodies)
            result = open_function(str(EXAMPLES / f"{name}.py")).run(backend=backend(api), **arguments)
            assert result.error() is None
            assert len(api.bodies) - before == count
        assert result["plan"] == [f"WHAT IS A {kind} WAY TO LEARN TO SWIM?" for kind in ("CHEAP", "QUICK")]


def test_a_choice_says_how_it_was_decided() -> None:
    @sgl.function
    def mood(s: Any) -> None:
        s += sgl.user("How are you?")
        s += sgl.assistant(sgl.select("mood", choices=["bad", "good", "bad"]))

    with serving(said) as api:
        result = mood.run(backend=backend(api))
        assert result["mood"] == "good"
        (call,) = result.calls
        assert (call.decided, call.choice, call.scores) == ("constrained", 1, ())
        assert result.get_meta_info("mood")["decided"] == "constrained"
        schema = api.bodies[0]["response_format"]["json_schema"]
        assert schema["strict"] is True
        assert schema["schema"]["properties"]["value"]["enum"] == ["bad", "good"]
    with serving(lambda body: '{"value": "perhaps"}') as api:
        error = mood.run(backend=backend(api)).error()
        assert isinstance(error, BackendError)
        assert (error.code, error.loc is not None) == ("SGLC546", True)


@pytest.mark.parametrize(
    ("answer", "wanted"),
    few([('{"value": 42}', "42"), ('{"value": "42"}', "42"), ('{"value": "many"}', None), ("42!", None)], 2),
)
def test_a_form_is_read_back_and_checked(answer: str, wanted: str | None) -> None:
    @sgl.function
    def count(s: Any) -> None:
        s += "How many?" + sgl.gen("count", dtype=int)

    with serving(lambda body: answer) as api:
        result = count.run(backend=backend(api))
        if wanted is None:
            assert "SGLC546" in str(result.error())
        else:
            assert result["count"] == wanted
        assert api.bodies[0]["response_format"]["json_schema"]["schema"]["properties"] == {
            "value": {"type": "integer"}
        }
        assert "stop" not in api.bodies[0]


def test_samples_are_one_request_or_several() -> None:
    @sgl.function
    def ideas(s: Any) -> None:
        s += sgl.user("An idea") + sgl.assistant(sgl.gen("idea", n=3))

    with serving(lambda body: [f"idea {i}" for i in range(body.get("n", 1))]) as api:
        assert ideas.run(backend=backend(api))["idea"] == ["idea 0", "idea 1", "idea 2"]
        assert [body.get("n") for body in api.bodies] == [3]
        one = Takes(
            samples=1, json_schema="strict", prefill=False, regex=False, ebnf=False, structural_tag=False
        )
        result = ideas.run(backend=backend(api, takes=one), seed=7)
        assert result["idea"] == ["idea 0"] * 3
        seeds = [body["seed"] for body in api.bodies[1:]]
        assert len(set(seeds)) == 3
        assert result.usage.calls == 3
    with serving(lambda body: "only one") as api:
        assert "1 of 3 samples" in str(ideas.run(backend=backend(api)).error())


def test_what_a_server_is_said_to_take_is_sent_by_the_names_of_such_servers() -> None:
    @sgl.function
    def steered(s: Any) -> None:
        s += sgl.user("Hi") + sgl.assistant(
            "I" + sgl.gen("x", top_k=5, min_tokens=2, stop_token_ids=[7], regex="a+")
        )
        schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}}
        s += sgl.user("So?") + sgl.assistant(sgl.gen("y", json_schema=schema, min_p=0.1))
        s += sgl.user("And?") + sgl.assistant(sgl.gen("z", structural_tag=tag))

    tag = {"type": "structural_tag", "format": {"type": "any_text", "excludes": ["no"]}}
    with serving(lambda body: "aa" if "regex" in body else '{"a": "b"}') as api:
        result = steered.run(backend=backend(api, "m", takes=Takes()))
        assert (result["x"], result["y"]) == ("aa", '{"a": "b"}')
        assert result["z"]
        first, second, third = api.bodies
        assert first["messages"][-1] == {"role": "assistant", "content": "I"}
        names = (
            "top_k",
            "min_tokens",
            "stop_token_ids",
            "regex",
            "continue_final_message",
            "add_generation_prompt",
        )
        assert [first[name] for name in names] == [5, 2, [7], "a+", True, False]
        assert second["min_p"] == 0.1
        assert second["response_format"]["json_schema"]["schema"]["properties"]["a"]["maxLength"] == 3
        assert second["messages"][1] == {"role": "assistant", "content": "Iaa"}
        assert third["response_format"] == tag


def test_pictures_are_parts_of_a_message() -> None:
    @sgl.function
    def look(s: Any) -> None:
        s += sgl.user(sgl.image(b"\x89PNG\r\n\x1a\n") + "What is this?")
        s += sgl.assistant(sgl.gen("answer"))

    with serving(lambda body: "nothing") as api:
        assert look.run(backend=backend(api))["answer"] == "nothing"
        picture, text = api.bodies[0]["messages"][0]["content"]
        assert picture["image_url"]["url"].startswith("data:image/png;base64,")
        assert text == {"type": "text", "text": "What is this?"}
        error = look.run(backend=backend(api, "gpt-3.5-turbo-0125", takes=Takes())).error()
        assert error is None or isinstance(error, LegalizeError)


def test_completions_go_on_from_any_text_and_rank_choices_by_echo() -> None:
    @sgl.function
    def complete(s: Any) -> None:
        s += "1, 2," + sgl.gen("more", max_tokens=4) + " so"
        s += sgl.select("which", choices=[" yes", " no"])

    def answer(body: dict[str, Any]) -> Any:
        if not body.get("echo"):
            return " 3, 4"
        choices = [
            {"index": i, "text": prompt, "finish_reason": "length", "logprobs": logprobs(prompt)}
            for i, prompt in enumerate(body["prompt"])
        ]
        return {"id": "x", "object": "text_completion", "created": 0, "model": "m", "choices": choices,
                "usage": {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}}  # fmt: skip

    def logprobs(prompt: str) -> dict[str, Any]:
        words = [" " + word for word in prompt.split(" ")]
        words[0] = words[0][1:]
        offsets = [sum(map(len, words[:i])) for i in range(len(words))]
        scores: list[float | None] = [
            None,
            *(-1.0 for _ in words[1:-1]),
            -0.5 if prompt.endswith("no") else -2.0,
        ]
        return {"tokens": words, "token_logprobs": scores, "text_offset": offsets, "top_logprobs": None}

    with serving(answer) as api:
        result = complete.run(backend=backend(api, "m", is_chat_model=False))
        assert result.text() == "1, 2, 3, 4 so no"
        (call,) = [call for call in result.calls if call.kind == "select"]
        assert (call.decided, call.scores, call.logprobs) == ("continuation", (-2.0, -0.5), ((-2.0,), (-0.5,)))
        assert api.bodies[0]["prompt"] == "1, 2,"
        assert api.bodies[0]["max_tokens"] == 4
        assert api.bodies[1]["prompt"] == ["1, 2, 3, 4 so yes", "1, 2, 3, 4 so no"]
        assert (api.bodies[1]["max_tokens"], api.bodies[1]["echo"]) == (0, True)


def test_completions_write_turns_by_a_template_that_is_given() -> None:
    with serving(lambda body: "Paris<|im_end|> and more") as api:
        model = backend(api, "m", is_chat_model=False, chat_template="chatml")
        result = one.run("Where?", backend=model)
        assert result["x"] == "Paris"
        assert api.bodies[0]["prompt"] == "<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\n"
        assert api.bodies[0]["stop"] == ["<|im_end|>"]
        assert "SGLC548" in str(one.run("a <|im_end|>", backend=model).error())
        assert "SGLC302" in str(one.run(backend=backend(api, "m", is_chat_model=False)).error())


def test_a_model_that_reasons_is_asked_for_as_it_wants() -> None:
    @sgl.function
    def think(s: Any) -> None:
        s += sgl.user("So?") + sgl.assistant(sgl.gen("x", max_tokens=9, stop="end"))
        s += sgl.user("Or?") + sgl.assistant(sgl.select("y", choices=["a", "b"]))

    with serving(lambda body: '{"value": "b"}' if "response_format" in body else "so it end s") as api:
        result = think.run(backend=backend(api, "gpt-5.5"))
        assert (result["x"], result["y"]) == ("so it ", "b")
        first, second = ({key for key in body if key not in ("model", "messages")} for body in api.bodies)
        assert first == {"max_completion_tokens"}
        assert second == {"response_format"}


def test_a_method_of_one_s_own_needs_scores() -> None:
    class Longest(ChoicesSamplingMethod):
        def __call__(self, *, choices: Any, **_: Any) -> Any:
            return ChoicesDecision(max(choices, key=len))

    @sgl.function
    def choose(s: Any) -> None:
        s += sgl.user("Or?") + sgl.assistant(sgl.select("y", choices=["a", "bb"], choices_method=Longest()))

    with serving(said) as api:
        error = choose.run(backend=backend(api)).error()
        assert isinstance(error, LegalizeError)
        assert (error.code, error.loc is not None) == ("SGLC314", True)


# -- what is refused, and when ---------------------------------------------------------------------


@sgl.function
def prefilled(s: Any) -> None:
    s += sgl.user("Hi")
    s += sgl.assistant("The answer is" + sgl.gen("x") + ", or" + sgl.gen("y"))


@sgl.function
def twice(s: Any) -> None:
    s += sgl.user("Hi") + sgl.assistant(sgl.gen("a"))
    s += sgl.user("So?") + sgl.assistant(sgl.gen("x", min_tokens=3))


@sgl.function
def dropped(s: Any) -> None:
    s += sgl.user("Hi") + sgl.assistant(sgl.gen("a"))
    s += sgl.user("So?") + sgl.assistant(sgl.gen("x", top_k=3))


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (prefilled, "SGLC317"),  # B11: the text was left out of the request without a word
        (twice, "SGLC311"),  # B12: so were min_tokens and top_k
        (dropped, "SGLC311"),
    ],
)
def test_what_chat_cannot_do_is_refused_before_the_first_call(program: Any, code: str) -> None:
    with serving(said) as api:
        for result in (program.run(backend=backend(api)), *program.run_batch([{}, {}], backend=backend(api))):
            error = result.error()
            assert isinstance(error, LegalizeError)
            assert error.code == code
            assert error.loc is not None
            assert error.loc.line > program.definition.loc.line
        with pytest.raises(LegalizeError, match=code):
            program.compile(backend(api))
        assert api.bodies == []


def test_json_schemas_are_sent_and_not_dropped() -> None:  # B12
    @sgl.function
    def city(s: Any) -> None:
        schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        s += sgl.user("A city") + sgl.assistant(sgl.gen("city", json_schema=schema))

    with serving(lambda body: '{"name": "Rome"}') as api:
        assert city.run(backend=backend(api))["city"] == '{"name": "Rome"}'
        sent = api.bodies[0]["response_format"]["json_schema"]["schema"]
        assert sent["required"] == ["name"]
        assert sent["additionalProperties"] is False


def test_what_only_a_run_can_know_is_refused_there_and_the_rest_is_kept() -> None:
    @sgl.function
    def later(s: Any) -> None:
        s += "Name a fruit." + sgl.gen("fruit")
        for _ in s["fruit"]:  # ordinary Python: what follows is known when it runs
            s += " Why?" + sgl.gen("why")

    with serving(lambda body: "a pear") as api:
        result = later.run(backend=backend(api))
        error = result.error()
        assert isinstance(error, LegalizeError)
        assert error.code == "SGLC316"
        assert result.variables == {"fruit": "a pear"}
        assert len(api.bodies) == 1


def test_an_empty_prompt_is_refused() -> None:
    @sgl.function
    def nothing(s: Any) -> None:
        s += sgl.gen("x")

    with serving(said) as api:
        error = nothing.run(backend=backend(api)).error()
        assert isinstance(error, RunError)
        assert error.code == "SGLC402"
        assert api.bodies == []


# -- faults ----------------------------------------------------------------------------------------


def after(count: int, fault: Fault) -> Callable[[dict[str, Any]], Any]:
    """`fault` so often, then an answer."""
    left = [fault] * count
    return lambda body: left.pop() if left else "fine"


@sgl.function
def one(s: Any, q: str = "q") -> None:
    s += sgl.user(q) + sgl.assistant(sgl.gen("x"))


@pytest.mark.parametrize(
    "fault",
    few(
        [
            Fault(429, {"retry-after": "0.01"}),
            Fault(429, {"retry-after-ms": "5"}),
            Fault(500),
            Fault(503, body="<html>busy</html>"),
            Fault(400, {"x-should-retry": "true"}),
            Fault(0, said="half an ans"),
        ],
        3,
    ),
)
@pytest.mark.parametrize("live", [False, True])
def test_faults_that_pass_are_tried_again_and_counted(fault: Fault, live: bool) -> None:
    if live:
        fault = replace(fault, said="")  # text that was handed on is not asked for again
    with serving(after(2, fault)) as api:
        result = one.run(backend=backend(api), stream=live)
        assert result["x"] == "fine"
        assert result.usage.calls == 3
        assert len(api.bodies) == 3
        assert len({json.dumps(body) for body in api.bodies}) == 1


def test_retries_are_bounded_and_the_rest_of_a_run_is_kept() -> None:
    @sgl.function
    def two(s: Any) -> None:
        forks = s.fork(2)
        for fork, word in zip(forks, ("good", "bad"), strict=True):
            fork += sgl.user(word) + sgl.assistant(sgl.gen(word))
        s.join(forks)

    with serving(lambda body: Fault(500) if "bad" in str(body["messages"]) else "fine") as api:
        result = two.run(backend=backend(api))
        error = result.error()
        assert isinstance(error, BackendError)
        assert error.code == "SGLC543"
        assert "`bad`" in error.message
        assert error.note == "4 attempts"
        assert error.loc is not None
        assert sum("bad" in str(body["messages"]) for body in api.bodies) == 4
        assert [call.samples[0].text for call in result.calls] == ["fine"]


@pytest.mark.parametrize(
    ("fault", "hint"),
    few(
        [
            (Fault(400), ""),
            (Fault(401), "key"),
            (Fault(404), "name"),
            (Fault(429, code="insufficient_quota"), ""),
        ],
        2,
    ),
)
def test_faults_that_stay_are_not_tried_again(fault: Fault, hint: str) -> None:
    with serving(lambda body: fault) as api:
        error = one.run(backend=backend(api)).error()
        assert isinstance(error, BackendError)
        assert error.code == "SGLC542"
        assert f"HTTP {fault.status}: scripted" in error.message
        assert hint in error.hint
        assert len(api.bodies) == 1


def test_a_stream_that_breaks_keeps_its_pieces_and_is_not_asked_for_again() -> None:
    with serving(lambda body: Fault(0, said="so far so good")) as api:
        result = one.run(backend=backend(api), stream=True)
        pieces: list[str] = []
        with pytest.raises(BackendError, match=r"SGLC543.*broke off"):
            pieces.extend(result.text_iter("x"))
        assert "".join(pieces) == "so far so good"
        assert result.partial_text.endswith("so far so good")
        assert len(api.bodies) == 1


def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    patience = Patience(attempts=2, first_wait_s=0.01, attempt_s=60, total_s=300)
    with serving(said, delay_s=60) as api:
        monkeypatch.setattr(retry, "asyncio", UntilAsked(api))
        model = backend(api, patience=patience)
        error = one.run(backend=model).error()
        assert isinstance(error, BackendError)
        assert (error.code, error.note) == ("SGLC543", "2 attempts")
        assert "no answer in time" in error.message
        assert len(api.bodies) == 2


def test_a_wait_that_is_too_long_is_not_waited_for() -> None:
    with serving(lambda body: Fault(429, {"retry-after": "3600"})) as api:
        error = one.run(backend=backend(api)).error()
        assert isinstance(error, BackendError)
        assert error.note == "1 attempt; in 3600 s it would be too late"
        assert len(api.bodies) == 1


def test_nobody_at_the_other_end() -> None:
    error = one.run(backend=backend(Api(said), base_url="http://127.0.0.1:9/v1")).error()
    assert isinstance(error, BackendError)
    assert (error.code, error.note) == ("SGLC543", "4 attempts")


def test_a_stopped_run_leaves_its_request() -> None:
    with serving(said, delay_s=60) as api:
        result = one.run(backend=backend(api))
        until(lambda: api.in_flight)
        result.stop()
        error = result.error()
        assert isinstance(error, RunError)
        assert error.code == "SGLC407"
        until(lambda: not api.in_flight)
        assert api.gone == 1


@pytest.mark.parametrize(
    ("choice", "code"),
    [
        (None, "SGLC543"),
        ({"finish_reason": "stop", "message": {"content": None, "refusal": "No."}}, "SGLC545"),
        ({"finish_reason": "content_filter", "message": {"content": "a"}}, "SGLC545"),
    ],
)
def test_answers_that_are_none(choice: dict[str, Any] | None, code: str) -> None:
    choices = [] if choice is None else [{"index": 0, **choice}]
    answer = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": choices}
    with serving(lambda body: answer) as api:
        error = one.run(backend=backend(api)).error()
        assert isinstance(error, BackendError)
        assert error.code == code
        assert error.loc is not None


# -- answers without their form --------------------------------------------------------------------


@sgl.function
def counted(s: Any, q: str = "How many?") -> Any:
    s += sgl.user(q) + sgl.assistant(sgl.gen("count", dtype=int, retries=2))
    s += sgl.user("And now?") + sgl.assistant(sgl.gen("more", dtype=int))
    return s["count"]


def missing_first(count: int) -> Callable[[dict[str, Any]], str]:
    """The first requests are answered in a wrong form, each with one token made."""
    left = [count]

    def answer(body: dict[str, Any]) -> str:
        left[0] -= 1
        return "many" if left[0] >= 0 else '{"value": 7}'

    return answer


@pytest.mark.parametrize("way", ["run", "stream", "batch"])
def test_an_answer_that_misses_its_form_is_made_again_and_counted(way: str, tmp_path: Path) -> None:
    with serving(missing_first(2)) as api:
        if way == "batch":
            (result,) = counted.run_batch([{}], backend=backend(api), seed=1)
        else:
            folder = str(tmp_path / "tape")
            result = counted.run(backend=backend(api), seed=1, stream=way == "stream", record=folder)
        assert (result["count"], result["more"], result.ret_value) == ("7", "7", "7")
        assert (result.error(), result.failures) == (None, ())
        assert len({body["seed"] for body in api.bodies}) == len(api.bodies) == result.usage.calls == 4
        assert result.usage.completion == sum(call.usage.completion for call in result.calls) + 2
        assert result.text().count("ASSISTANT:") == 2
    if way != "batch":
        again = counted.run(replay=folder)
        assert (again.ret_value, again.text(), again.usage) == ("7", result.text(), result.usage)
        assert again.failures == ()


def test_an_answer_that_always_misses_its_form_fails_when_it_was_made_often_enough(tmp_path: Path) -> None:
    with serving(lambda body: "many") as api:
        result = counted.run(backend=backend(api), record=str(tmp_path / "tape"))
        error = result.error()
        assert isinstance(error, BackendError)
        assert error.code == "SGLC546"
        assert "the answer for `count`" in error.message
        assert len(api.bodies) == result.usage.calls == result.usage.completion == 3
        assert [failure.site.name for failure in result.failures] == ["count"]
        replayed = counted.run(replay=str(tmp_path / "tape"))
        assert (str(replayed.error()), replayed.usage) == (str(error), result.usage)
        over = counted.run(backend=backend(api), max_calls=2)
        assert "SGLC408" in str(over.error())
        assert len(api.bodies) == over.usage.calls + 3 == 5


@sgl.function
def undaunted(s: Any) -> None:
    for i in range(6):
        (fork,) = s.fork(1)
        fork += sgl.user("x") + sgl.assistant(sgl.gen(f"x{i}", dtype=int))
        with suppress(BackendError):
            _ = fork[f"x{i}"]


def test_what_failed_answers_took_is_in_the_budget() -> None:
    with serving(lambda body: "many") as api:
        result = undaunted.run(backend=backend(api))
        assert (result.error(), result.usage.calls, result.usage.completion) == (None, 6, 6)
        result = undaunted.run(backend=backend(api), max_tokens=2)
        assert "SGLC408" in str(result.error())
        assert (len(api.bodies), result.usage.calls, result.usage.completion) == (8, 2, 2)
    with serving(lambda body: "how many of them") as api:  # one answer passes it
        result = undaunted.run(backend=backend(api), max_tokens=2)
        assert "`x0` passes the run's budget of 2 generated tokens" in str(result.error())
        assert (len(api.bodies), result.usage.calls) == (1, 1)


def test_requests_that_failed_are_counted() -> None:
    @sgl.function
    def ideas(s: Any) -> None:
        s += sgl.user("An idea") + sgl.assistant(sgl.gen("idea", n=2, dtype=int))

    with serving(lambda body: Fault(500)) as api:
        assert one.run(backend=backend(api)).usage == Usage(calls=4)
    with serving(missing_first(1)) as api:
        takes = Takes(samples=1, json_schema="strict", regex=False)
        result = ideas.run(backend=backend(api, takes=takes))
        assert "SGLC546" in str(result.error())
        assert (result.usage.calls, len(api.bodies)) == (2, 2)


@sgl.function
def three(s: Any) -> list[Any]:
    s += sgl.user("Say something.")
    forks = s.fork(3)
    for fork in forks:
        fork += sgl.assistant(sgl.gen("x", dtype=int))
    said: list[Any] = []
    for fork in forks:
        try:
            said.append(fork["x"])
        except BackendError as error:
            said.append(error.code)
    return said


def samples_of(*said: str, finish: str = "content_filter") -> dict[str, Any]:
    """An answer of several samples; the empty ones ended as is said."""
    choices = [
        {"index": i, "finish_reason": "stop" if text else finish, "message": {"content": text}}
        for i, text in enumerate(said)
    ]
    usage = {"prompt_tokens": 5, "completion_tokens": 9}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": choices,
        "usage": usage,
    }


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (["1", "", "3"], ["1", "SGLC545", "3"]),
        (["", "2", "3"], ["SGLC545", "2", "3"]),
        (["1", "many", "3"], ["1", "SGLC546", "3"]),
        (["1"], ["1", "SGLC544", "SGLC544"]),  # it leaves `n` unread
        (["", "", ""], ["SGLC545"] * 3),
    ],
)
def test_a_sample_that_fails_is_the_end_of_its_own_branch_alone(said: list[str], wanted: list[str]) -> None:
    answers = [text and (text if text == "many" else f'{{"value": {text}}}') for text in said]
    with serving(lambda body: samples_of(*answers)) as api:
        result = three.run(backend=backend(api))
        assert result.ret_value == wanted
        assert len(result.failures) == sum(code.startswith("SGLC") for code in wanted)
        assert (len(api.bodies), api.bodies[0]["n"]) == (1, 3)
        assert (result.usage.calls, result.usage.prompt, result.usage.completion) == (1, 5, 9)


# -- many at once ----------------------------------------------------------------------------------


def test_a_batch_keeps_to_the_limit_and_to_its_order() -> None:
    with serving(said, delay_s=0.02) as api:
        count = at_depth(15, 200, 200)
        rows = [{"q": f"row {number}"} for number in range(count)]
        results = one.run_batch(rows, backend=backend(api, concurrency=8))
        assert [result["x"] for result in results] == [f"ROW {number}" for number in range(count)]
        assert len(api.bodies) == count
        assert 2 <= api.most_in_flight <= 8


# -- by name ---------------------------------------------------------------------------------------


def test_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(said) as api:
        monkeypatch.setenv("OPENAI_BASE_URL", api.url)
        monkeypatch.setenv("OPENAI_API_KEY", "from the environment")
        assert one.run("hi", backend="openai:anything")["x"] == "HI"
        assert api.headers[0]["authorization"] == "Bearer from the environment"
        assert connect("openai-completions:anything").target.protocol == "text"
        disconnect()
        monkeypatch.delenv("OPENAI_API_KEY")
        with pytest.raises(BackendError, match="SGLC541"):
            one.run("hi", backend="openai:anything")
        disconnect()


def test_a_template_that_is_unknown() -> None:
    with pytest.raises(UsageError, match="SGLC029"):
        sgl.OpenAI("gpt-4o", chat_template="no-such")


def test_the_table_of_models() -> None:
    assert openai_model("openai:gpt-4o-2024-11-20", own_server=False).takes.stops == 4
    assert openai_model("openai:gpt-5.6", own_server=False).takes.temperature is None
    assert openai_model("openai:gpt-3.5-turbo-instruct", own_server=False).protocol == "text"
    assert openai_model("openai:no-such-model", own_server=False).takes.json_schema == ""
    assert openai_model("openai:no-such-model", own_server=True).takes.json_schema == "strict"
    assert openai_model("openai:no-such-model", own_server=True, chat=False).scores_tokens


# -- plans and conversations -----------------------------------------------------------------------


@sgl.function
def talk(s: Any, topic: str) -> str:
    s += sgl.system("Be brief.")
    verdict = "no"
    for turn in range(3):
        s += sgl.user(f"{topic} {turn}")
        s += sgl.assistant(sgl.select(f"more_{turn}", choices=["yes", "no"]))
        verdict = s[f"more_{turn}"]
        if verdict == "no":
            break
    return verdict


def test_a_conversation_goes_on_over_several_launches() -> None:
    def answer(body: dict[str, Any]) -> str:
        return json.dumps({"value": "no" if body["messages"][-1]["content"].endswith("1") else "yes"})

    with serving(answer) as api:
        result = talk.run("tea", backend=backend(api))
        assert result.ret_value == "no"
        assert [len(body["messages"]) for body in api.bodies] == [2, 4]
        assert api.bodies[1]["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "tea 0"},
            {"role": "assistant", "content": "yes"},
            {"role": "user", "content": "tea 1"},
        ]


def test_a_compiled_plan_runs_and_is_the_same_behind_json() -> None:
    from sglc.ir.plan.plan_json import plan_from_json, plan_to_json

    def answer(body: dict[str, Any]) -> str:
        return json.dumps({"value": "no" if body["messages"][-1]["content"].endswith("1") else "yes"})

    with serving(answer) as api:
        model = backend(api)
        compiled = talk.compile(model)
        plan = compiled.compiled.plan
        assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan
        assert compiled.run("tea", seed=3).ret_value == "no"
        assert [len(body["messages"]) for body in api.bodies] == [2, 4]
        assert model._walker.kept.empty  # everything was given back


def test_another_back_end_for_one_generation() -> None:
    from sglc.backends.scripted import ScriptedBackend

    with serving(said) as api:
        model = backend(api)

        @sgl.function
        def review(s: Any) -> None:
            s += sgl.user("Hi") + sgl.assistant(sgl.gen("a"))
            s += sgl.user("loud?") + sgl.assistant(sgl.gen("b", backend=model))

        result = review.run(backend=ScriptedBackend(lambda asked: "hello"))
        assert (result["a"], result["b"]) == ("hello", "LOUD?")
        assert [turn["content"] for turn in api.bodies[0]["messages"]] == ["Hi", "hello", "loud?"]


# -- effects of a body ---------------------------------------------------------------------------------

RUNS = {"n": 0}
HEARD: list[Any] = []


@sgl.function
def counts(s: Any, question: str) -> int:
    RUNS["n"] += 1
    HEARD.append(question)
    s += sgl.user(f"{RUNS['n']}: {question}") + sgl.assistant(sgl.gen("said"))
    HEARD.append(s["said"])
    return RUNS["n"]


@sgl.function
def counts_too(s: Any, question: str) -> int:
    HEARD.append(question)
    s += sgl.user(f"{count()}: {question}") + sgl.assistant(sgl.gen("said"))
    HEARD.append(s["said"])
    return RUNS["n"]


def count() -> int:
    RUNS["n"] += 1
    return RUNS["n"]


@pytest.mark.slow
@pytest.mark.parametrize("program", [counts, counts_too], ids=lambda program: program.__name__)
def test_a_body_has_its_effects_once_for_every_run(program: Any) -> None:
    RUNS["n"] = 0
    HEARD.clear()
    with serving(said) as api:
        model = backend(api)
        for look in (program.compile, program.explain, program.cache):
            look(model)
            assert (RUNS["n"], HEARD, api.bodies) == (0, [], [])
        for number in (1, 2, 3):
            result = program.run("hi", backend=model)
            assert (result.ret_value, result["said"]) == (number, f"{number}: HI")
            program.compile(model)
        assert [body["messages"][-1]["content"] for body in api.bodies] == ["1: hi", "2: hi", "3: hi"]
    assert RUNS["n"] == 3
    assert HEARD == ["hi", "1: HI", "hi", "2: HI", "hi", "3: HI"]
    assert {type(item) for item in HEARD} == {str}


# -- scores of echoed texts ------------------------------------------------------------------------


def echo_of(logprobs: list[float | None]) -> dict[str, Any]:
    """What an API says of an echoed text, a letter a token."""
    return {"token_logprobs": logprobs, "text_offset": list(range(len(logprobs)))}


def echoed(prompt: str, *logprobs: list[float | None] | None, method: str = "token_length_normalized") -> Any:
    choices = tuple("abc"[: len(told or "a") - len(prompt)] for told in logprobs)
    node = SelectNode(0, Site("f", (), "x"), choices, method, Loc("f.py", 1))
    request = ApiRequest(1, node, Prompt(None, (prompt,)), choices)
    replies = [echoed_text(None if told is None else echo_of(told)) for told in logprobs]
    return scored(request, replies, Usage(calls=1)).event


CHOICE = {"index": 0, "text": "a", "finish_reason": "length"}
_LESS = [{**CHOICE, "index": at, "logprobs": {"token_logprobs": [None, -1.0]}} for at in (0, 1)]
_FEWER = [{**CHOICE, "index": at, "logprobs": echo_of([None])} for at in (0, 1)]


@pytest.mark.parametrize(
    "choices",
    [
        ["a", "b"], [{"text": "a"}] * 2, _LESS, _FEWER[:1],
        [{**each, "logprobs": {"token_logprobs": [-1.0], "text_offset": [0, 1]}} for each in _FEWER],
        [{**each, "logprobs": {"token_logprobs": ["few"], "text_offset": [0]}} for each in _FEWER],
    ],
)  # fmt: skip
def test_echoes_of_another_shape_are_asked_for_again_and_then_told(choices: list[Any]) -> None:
    @sgl.function
    def pick(s: Any) -> None:
        s += "Q:" + sgl.select("x", [" a", " b"])

    with serving(lambda body: {"choices": choices}) as api:
        error = pick.run(backend=backend(api, "m", is_chat_model=False)).error()
    assert isinstance(error, BackendError)
    assert (error.code, error.loc is not None, len(api.bodies)) == ("SGLC543", True, QUICK.attempts)
    assert "malformed" in error.message


def test_scores_are_read_whatever_their_values() -> None:  # B17
    made = echoed("p", [None, 0.0], [None, -1.0, 0.0])
    assert (made.choice, made.scores, made.logprobs) == (0, (0.0, -0.5), ((0.0,), (-1.0, 0.0)))
    for broken in ([None, None], None, []):
        with pytest.raises(BackendError, match="SGLC544"):
            echoed("p", [None, -1.0], broken)


def test_a_choice_that_merges_with_the_prompt_is_scored_from_there() -> None:
    whole, merged = echoed_text(echo_of([None, -1.0, -2.0])), echoed_text(echo_of([None, -3.0]))
    node = SelectNode(0, Site("f", (), "x"), ("c", "d"), "token_length_normalized", Loc("f.py", 1))
    request = ApiRequest(1, node, Prompt(None, ("ab",)), ("c", "d"))
    event: Any = scored(request, [whole, merged], Usage()).event
    assert event.logprobs == ((-1.0, -2.0), (-3.0,))
