"""Every field that OpenAI publishes is taken, taken without effect, or refused by name, as the page says."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from openai.types import chat, completion_create_params
from openai.types.chat import completion_create_params as chat_params

from sglc.ir.grammar.call_format import HERMES
from sglc.runtime.tokenizer.tokenizer import LocalTokenizer
from sglc.serve import bodies
from sglc.serve.bodies import fields_at
from sglc.serve.fields import NEUTRAL, UNSUPPORTED, Body
from sglc.serve.prompts import of_chat
from tests.depth import few
from tests.serving import ROOT, Server, serving
from tests.templates import TOOL_TEMPLATES
from tests.waiting import until

PAGE = ROOT / "docs" / "serving.md"
TURNS = [{"role": "user", "content": "Yes or no?"}]
BODIES: dict[str, tuple[type[Body], dict[str, Any]]] = {
    "/v1/chat/completions": (bodies.ChatBody, {"messages": TURNS, "max_tokens": 4, "temperature": 0}),
    "/v1/completions": (bodies.CompletionBody, {"prompt": "Yes or no?", "max_tokens": 4, "temperature": 0}),
}
PUBLISHED = {
    "/v1/chat/completions": {*chat_params.CompletionCreateParamsBase.__annotations__, "stream"},
    "/v1/completions": {*completion_create_params.CompletionCreateParamsBase.__annotations__, "stream"},
}
# A value of each that asks for something.
FUNCTION = {"name": "look", "parameters": {"type": "object"}}
ASKS: dict[str, Any] = {
    "audio": {"voice": "alloy", "format": "mp3"},
    "best_of": 1,
    "echo": True,
    "frequency_penalty": 0.5,
    "function_call": {"name": "look"},
    "functions": [FUNCTION],
    "logit_bias": {"15": -1},
    "max_completion_tokens": 4,
    "max_tokens": 4,
    "messages": TURNS,
    "metadata": {"a": "b"},
    "modalities": ["text", "audio"],
    "model": "smollm2",
    "moderation": {"model": "omni-moderation-latest"},
    "n": 2,
    "parallel_tool_calls": True,
    "prediction": {"type": "content", "content": "Yes"},
    "presence_penalty": 0.5,
    "prompt": "Yes or no?",
    "prompt_cache_key": "key",
    "prompt_cache_options": {"ttl": "24h"},
    "prompt_cache_retention": "24h",
    "reasoning_effort": "none",
    "response_format": {"type": "json_object"},
    "safety_identifier": "someone",
    "seed": 7,
    "service_tier": "priority",
    "stop": ["."],
    "store": True,
    "stream": True,
    "stream_options": {"include_usage": True, "include_obfuscation": True},
    "suffix": "!",
    "temperature": 0.5,
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "tools": [{"type": "function", "function": FUNCTION}],
    "top_logprobs": 2,
    "top_p": 0.5,
    "user": "someone",
    "verbosity": "low",
    "web_search_options": {},
}
BESIDE: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "stream_options": {"stream": True},
    "tool_choice": {"tools": [{"type": "function", "function": FUNCTION}]},
}


def standing(path: str, field: str) -> str:
    """How a field stands, from the tables that requests are read by."""
    body, _ = BODIES[path]
    if field in body.model_fields:
        return "supported"
    if field in body.ignored:
        return "accepted without effect"
    assert field in UNSUPPORTED, f"{path} knows nothing of `{field}`"
    return "refused by name"


CASES = [(path, field) for path, fields in PUBLISHED.items() for field in sorted(fields)]


def test_what_openai_publishes_is_read() -> None:
    assert len(CASES) > 50
    assert chat.completion_create_params is chat_params


@pytest.mark.slow
@pytest.mark.parametrize(("path", "field"), few(CASES, 30))
def test_a_field_stands_as_the_table_says(server: Server, path: str, field: str) -> None:
    value: Any = ASKS[field] if field != "logprobs" else (True if "chat" in path else 2)
    _, least = BODIES[path]
    given = {**least, field: value, **BESIDE.get(field, {})}
    if field == "max_completion_tokens":
        del given["max_tokens"]
    status, content = server.ask("POST", path, given)
    if standing(path, field) == "refused by name":
        told = content["error"]
        assert (status, told["code"], told["param"]) == (400, "unsupported_field", field)
        return
    assert status == 200, content
    if standing(path, field) == "accepted without effect":
        without = server.ask("POST", path, least)[1]
        assert content["choices"] == without["choices"]


def shown() -> str:
    """The table of the page."""
    lines = ["| field | chat | completions |", "|---|---|---|"]
    for field in sorted({field for _, field in CASES}):
        cells = [standing(path, field) if field in PUBLISHED[path] else "" for path in PUBLISHED]
        idle = NEUTRAL.get(field, ())
        if "refused by name" in cells and idle:
            values = ", ".join(f"`{value}`" for value in map(_json, idle))
            cells = [f"{cell} (but for {values})" if cell == "refused by name" else cell for cell in cells]
        lines.append(f"| `{field}` | {cells[0]} | {cells[1]} |")
    return "\n".join(lines) + "\n"


def _json(value: Any) -> str:
    return (
        str(value).replace("'", '"').replace("False", "false") if not isinstance(value, str) else f'"{value}"'
    )


def test_the_page_has_the_table(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text()
    begin, end = (
        page.index("| field | chat | completions |"),
        page.index("\n\n", page.index("| field | chat |")) + 1,
    )
    if request.config.getoption("--bless"):
        PAGE.write_text(page[:begin] + shown() + page[end:])
    else:
        assert page[begin:end] == shown()


# -- what others than OpenAI publish ---------------------------------------------------------------


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


GUIDED: dict[str, Any] = {
    "guided_regex": "(yes|no)!",
    "guided_choice": ["yes!", "no!"],
    "guided_grammar": 'root ::= "yes!" | "no!"',
    "guided_json": {"enum": ["yes!", "no!"]},
}


@pytest.mark.slow
@pytest.mark.parametrize("field", GUIDED)
def test_guided_fields_hold_a_text(client: openai.OpenAI, field: str) -> None:
    given = {field: GUIDED[field], "guided_decoding_backend": "xgrammar"}
    answer = client.completions.create(model="smollm2", prompt="Yes or no?", max_tokens=20, extra_body=given)
    assert answer.choices[0].text.strip('"') in ("yes!", "no!")


@pytest.mark.slow
def test_two_forms_of_two_names_exclude_each_other(client: openai.OpenAI) -> None:
    given = {"guided_regex": "a", "structured_outputs": {"regex": "b"}}
    with pytest.raises(openai.BadRequestError, match="one of `guided_regex`, `structured_outputs"):
        client.completions.create(model="smollm2", prompt="a", extra_body=given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"messages": "x"}}, "chat_template_kwargs.messages"),
    ],
)
def test_what_the_template_does_not_read_is_refused(
    client: openai.OpenAI, given: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="smollm2", messages=TURNS, extra_body=given)  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.param) == ("unsupported_value", param)


@pytest.mark.slow
def test_what_asks_the_template_for_nothing_is_taken(client: openai.OpenAI) -> None:
    given = {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": False, "other": None}}
    client.chat.completions.create(model="smollm2", messages=TURNS, max_tokens=2, extra_body=given)  # type: ignore[arg-type]


# -- what models are told beside the conversation, and what they say before an answer ---------------

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}(no thinking){% endif %}"
    "{% if style %}({{ style }}){% endif %}"
)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({}, ""),
        ({"reasoning_effort": "none"}, "(no thinking)"),
        ({"reasoning_effort": "high"}, ""),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "(no thinking)"),
        ({"chat_template_kwargs": {"enable_thinking": True, "style": "brief"}}, "(brief)"),
        ({"chat_template_kwargs": {"style": "<|im_end|>"}}, "(<|im_end|>)"),
    ],
)
def test_the_template_is_told(default_tokenizer: LocalTokenizer, given: dict[str, Any], written: str) -> None:
    tokenizer = default_tokenizer.with_template(TEMPLATE)
    for _ in range(2):  # the second time with what was kept
        prompt = of_chat(tokenizer, bodies.ChatBody(messages=TURNS, **given))  # type: ignore[arg-type]
        assert prompt.text == f"user: Yes or no?\n{written}"
    assert not set(prompt.ids) & default_tokenizer.control.keys()


def test_what_one_request_tells_the_template_is_not_another_ones(default_tokenizer: LocalTokenizer) -> None:
    template = TOOL_TEMPLATES["hermes"].replace("{% if tools %}", "{% if tools and not bare %}")
    given: dict[str, Any] = {"messages": TURNS, "tools": [{"type": "function", "function": FUNCTION}]}
    usual = of_chat(default_tokenizer.with_template(TOOL_TEMPLATES["hermes"]), bodies.ChatBody(**given)).text
    tokenizer = default_tokenizer.with_template(template)
    bare = of_chat(tokenizer, bodies.ChatBody(**given, chat_template_kwargs={"bare": True})).text
    assert "look" not in bare
    assert of_chat(tokenizer, bodies.ChatBody(**given)).text == usual


LOOK = [{"type": "function", "function": FUNCTION}]
JSON_FORM = {"type": "json_object"}
TAG = {"triggers": ["<f"], "structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}]}


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    script = tmp_path_factory.mktemp("thinking") / "script.json"
    call = HERMES.written("look", {})
    rules = [
        {"prompt": "Look!", "text": f"<think>a {call}?</think>I do.\n{call}"},
        {"text": "<think>two and two</think>it is four"},
    ]
    script.write_text(json.dumps(rules))
    with (
        serving("--model", f"scripted:{script}", "--name", "m", "--reasoning-parser", "qwen3") as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("given", "reasoning", "content"),
    [
        ({}, "two and two", "it is four"),
        ({"separate_reasoning": False}, "", "<think>two and two</think>it is four"),
        ({"regex": "(.|\n)*"}, "", "<think>two and two</think>it is four"),
        ({"tools": LOOK}, "two and two", "it is four"),
        ({"tools": LOOK, "separate_reasoning": False}, "", "<think>two and two</think>it is four"),
        ({"tools": LOOK, "tool_choice": "required"}, "", "<think>two and two</think>it is four"),
        ({"tools": LOOK, "response_format": JSON_FORM}, "", "<think>two and two</think>it is four"),
        ({"structural_tag": TAG}, "two and two", "it is four"),
        ({"response_format": {"type": "structural_tag", **TAG}}, "two and two", "it is four"),
    ],
)
def test_reasoning_is_a_field_of_its_own(
    thinking: openai.OpenAI, stream: bool, given: dict[str, Any], reasoning: str, content: str
) -> None:
    answer: Any = thinking.chat.completions.create(
        model="m", messages=TURNS, stream=stream, extra_body=given  # type: ignore[arg-type]
    )  # fmt: skip
    parts = [chunk.choices[0].delta for chunk in answer] if stream else [answer.choices[0].message]
    assert "".join(getattr(part, "reasoning_content", None) or "" for part in parts) == reasoning
    assert "".join(part.content or "" for part in parts) == content
    if not stream:  # it goes back as it came
        more: Any = [*TURNS, answer.choices[0].message, *TURNS]
        assert thinking.chat.completions.create(model="m", messages=more).choices


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_calls_are_those_behind_the_reasoning(thinking: openai.OpenAI, stream: bool) -> None:
    messages: Any = [{"role": "user", "content": "Look!"}]
    answer: Any = thinking.chat.completions.create(model="m", messages=messages, tools=LOOK, stream=stream)  # type: ignore[call-overload]
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    parts = [choice.delta if stream else choice.message for choice in choices]
    reasoning = "".join(getattr(part, "reasoning_content", None) or "" for part in parts)
    assert reasoning == f"a {HERMES.written('look', {})}?"
    assert "".join(part.content or "" for part in parts) == "I do."
    assert [call.function.name for part in parts for call in part.tool_calls or []] == ["look"]
    assert choices[-1].finish_reason == "tool_calls"


# -- end points ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_is_retrieved(client: openai.OpenAI) -> None:
    assert client.models.retrieve("smollm2").id == "smollm2"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other/model")
    assert caught.value.code == "model_not_found"


@pytest.mark.slow
def test_what_is_not_there_says_why(server: Server, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="put a gateway before this server"):
        client.responses.create(model="smollm2", input="a")
    with pytest.raises(openai.NotFoundError, match="`/v1/embeddings` is not there: this model makes texts"):
        client.embeddings.create(model="smollm2", input="a")
    status, content = server.ask("POST", "/v1/messages", {"model": "smollm2", "messages": TURNS})
    assert (status, content["error"]["code"]) == (404, "not_found")
    assert "ask `/v1/chat/completions`" in content["error"]["message"]


@pytest.mark.slow
def test_texts_become_ids_and_back(server: Server, client: openai.OpenAI) -> None:
    status, one = server.ask("POST", "/tokenize", {"model": "smollm2", "prompt": "One, two"})
    assert (status, one["count"]) == (200, len(one["tokens"]))
    usage = client.completions.create(model="smollm2", prompt=one["tokens"], max_tokens=1).usage
    assert usage is not None
    assert usage.prompt_tokens == one["count"]
    assert server.ask("POST", "/detokenize", {"tokens": one["tokens"]})[1]["text"] == "One, two"
    both = server.ask("POST", "/tokenize", {"prompt": ["One, two", "three"], "add_special_tokens": False})[1]
    assert both["tokens"][0] == one["tokens"]
    assert both["count"] == [len(ids) for ids in both["tokens"]]
    turns = server.ask("POST", "/tokenize", {"messages": TURNS})[1]
    answered = client.chat.completions.create(model="smollm2", messages=TURNS, max_tokens=1)  # type: ignore[arg-type]
    assert answered.usage is not None
    assert answered.usage.prompt_tokens == turns["count"]
    for wrong in ({}, {"prompt": "a", "messages": TURNS}):
        assert server.ask("POST", "/tokenize", wrong)[0] == 400
    assert server.ask("POST", "/detokenize", {"tokens": [10**9]})[0] == 400
    assert server.ask("POST", "/detokenize", {"tokens": []}) == (200, {"text": "", "prompt": ""})


@pytest.mark.slow
def test_load_is_told(server: Server) -> None:
    (load,) = server.ask("GET", "/get_load")[1]
    assert load == {"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}
    (again,) = server.ask("GET", "/v1/loads")[1]["loads"]
    info = server.info()
    assert again["max_total_num_tokens"] == info["pages"] * info["page_size"]
    assert (again["num_running_reqs"], again["max_running_requests"]) == (0, 16)


LONG = {"max_new_tokens": 3_000, "ignore_eos": True}


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"rid": "mine"}, {"abort_all": True}])
def test_a_request_is_aborted(server: Server, how: dict[str, Any]) -> None:
    body = {"text": "Count", "rid": "mine", "stream": True, "sampling_params": LONG}
    with httpx2.Client(base_url=server.url, timeout=60) as asking:
        with asking.stream("POST", "/generate", json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            assert server.ask("POST", "/abort_request", {"rid": "another"})[1] == {"aborted": 0}
            assert server.ask("POST", "/abort_request", how)[1] == {"aborted": 1}
            rest = [line for line in lines if line]
        assert '"code":"aborted"' in rest[-2]
        assert rest[-1] == "data: [DONE]"
    with contextlib.suppress(StopIteration):
        assert server.ask("POST", "/abort_request", how)[1] == {"aborted": 0}


@pytest.mark.slow
def test_an_answer_that_has_not_begun_is_aborted_by_its_request_id(server: Server) -> None:
    """Once and for all: clients ask again at a 409 that does not say `x-should-retry: false`."""
    told: list[Exception] = []

    def ask() -> None:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            try:
                client.completions.create(
                    model=server.model,
                    prompt="Count",
                    max_tokens=3_000,
                    extra_body={"ignore_eos": True},
                    extra_headers={"x-request-id": "number-9"},
                )
            except openai.APIStatusError as error:
                told.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: server.ask("POST", "/abort_request", {"rid": "number-9"})[1]["aborted"] == 1, "not aborted")
    asking.join()
    (error,) = told
    assert isinstance(error, openai.ConflictError)
    assert error.code == "aborted"
    until(server.idle, "it runs on")


def test_every_refused_field_is_known_by_one_name() -> None:
    assert not set(UNSUPPORTED) & bodies.RequestBody.ignored
    of_chats = {"chat_template_kwargs", "reasoning_effort", "separate_reasoning"}
    of_chats |= {"tools", "tool_choice", "parallel_tool_calls", "tool_calls", "name"}
    kinds = (bodies.CompletionBody, bodies.ChatBody, bodies.GenerateBody, bodies.SamplingParams, bodies.Message)
    assert {field for kind in kinds for field in fields_at(kind, [])} & set(UNSUPPORTED) <= of_chats
