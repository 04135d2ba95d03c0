"""What the vendors' clients ask through a gateway; each case asserts that its answer is the one it should be.

`python -m tests.gateway_cases` prints the table of docs/gateway.md, which `tests/test_gateway.py` holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # without a gateway nothing is asked, and the clients take seconds to import
    import anthropic
    import openai

MODEL = "smollm2"
ASKED = [{"role": "user", "content": "What is the capital of France?"}]
SAID = "The capital of France is Paris."
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "London"]}, "people": {"type": "integer", "maximum": 99}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "London"]}},
    "required": ["city"],
    "additionalProperties": False,
}
NAMES = ("weather", "time")
TOOLS: Any = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in NAMES]
CITIES = ("Paris", "London")

OPENAI, ANTHROPIC = "openai", "anthropic"
WAYS = ("http", "grpc")
_NOT_HTTP = {"http": "a 404: over HTTP the gateway asks the server, which has no such endpoint"}


@dataclass(frozen=True)
class Case:
    """What one client asks. `fails`: the ways to the server on which it is refused, and why."""

    client: str
    name: str
    ask: Callable[[Any], None]
    fails: dict[str, str]


CASES: list[Case] = []


def _case(client: str, name: str, **fails: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    def add(ask: Callable[[Any], None]) -> Callable[[Any], None]:
        CASES.append(Case(client, name, ask, fails))
        return ask

    return add


def table() -> str:
    """What passes, in Markdown; below it why the rest does not."""
    lines = ["| client | asks for | http:// | grpc:// |", "|---|---|---|---|"]
    why: list[str] = []
    for case in CASES:
        places = []
        for way in WAYS:
            reason = case.fails.get(way)
            if reason and reason not in why:
                why.append(reason)
            places.append(f"no ({why.index(reason) + 1})" if reason else "yes")
        lines.append(f"| {case.client} | {case.name} | {places[0]} | {places[1]} |")
    return "\n".join([*lines, "", *(f"({number}) {reason}." for number, reason in enumerate(why, 1))])


@contextmanager
def clients(url: str) -> Iterator[dict[str, Any]]:
    """The vendors' clients, which ask at `url` once."""
    import anthropic
    import openai

    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as one,
        anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as other,
    ):
        yield {OPENAI: one, ANTHROPIC: other}


def _chat(client: openai.OpenAI, **fields: Any) -> Any:
    asked = {"model": MODEL, "messages": ASKED, "temperature": 0, "max_completion_tokens": 24, **fields}
    return client.chat.completions.create(**asked)


@_case(OPENAI, "chat")
def chat(client: openai.OpenAI) -> None:
    answer = _chat(client)
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == (SAID, "stop")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (37, 8)


@_case(OPENAI, "chat, stream")
def chat_stream(client: openai.OpenAI) -> None:
    chunks = list(_chat(client, stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(delta.delta.content or "" for delta in deltas) == SAID
    assert deltas[-1].finish_reason == "stop"
    assert len([delta for delta in deltas if delta.delta.content]) > 3
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (37, 8)


@_case(OPENAI, "chat, several samples")
def chat_samples(client: openai.OpenAI) -> None:
    answer = _chat(client, n=3)
    assert [choice.message.content for choice in answer.choices] == [SAID] * 3


@_case(OPENAI, "chat, stop string inside of a token")
def chat_stop(client: openai.OpenAI) -> None:
    (choice,) = _chat(client, stop=["aris"]).choices
    assert (choice.message.content, choice.finish_reason) == (SAID.partition("aris")[0], "stop")


@_case(OPENAI, "chat, log-probabilities")
def chat_logprobs(client: openai.OpenAI) -> None:
    (choice,) = _chat(client, logprobs=True, top_logprobs=2).choices
    content = choice.logprobs.content
    assert "".join(token.token for token in content).startswith(SAID)
    assert all(len(token.top_logprobs) == 2 for token in content)


@_case(OPENAI, "chat, json_schema")
def chat_schema(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    (choice,) = _chat(client, response_format=form, max_completion_tokens=60).choices
    made = json.loads(choice.message.content)
    assert (set(made), made["city"] in CITIES) == ({"city", "people"}, True)


def _call(choice: Any, name: str | None = None) -> None:
    assert choice.finish_reason == "tool_calls", choice
    for call in choice.message.tool_calls:
        assert call.function.name in (NAMES if name is None else (name,))
        assert json.loads(call.function.arguments)["city"] in CITIES


def _history(*cities: str) -> list[Any]:
    """Three times a question with a call for each city, and the question again: so the model calls, too."""
    question = {"role": "user", "content": f"Weather in {' and '.join(cities)}?"}
    calls = [
        {
            "id": f"call_{city}",
            "type": "function",
            "function": {"name": "weather", "arguments": json.dumps({"city": city})},
        }
        for city in cities
    ]
    results = [{"role": "tool", "tool_call_id": f"call_{city}", "content": "sunny"} for city in cities]
    asked = {"role": "assistant", "content": None, "tool_calls": calls}
    return [*[question, asked, *results, {"role": "assistant", "content": "It is sunny."}] * 3, question]


@_case(OPENAI, "chat, tools: auto")
def tools_auto(client: openai.OpenAI) -> None:
    answer = _chat(client, messages=_history("Paris"), tools=TOOLS, max_completion_tokens=60)
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Paris"})
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (None, "tool_calls")
    assert answer.usage.prompt_tokens == 445  # as over HTTP without a gateway


@_case(OPENAI, "chat, tools: parallel")
def tools_parallel(client: openai.OpenAI) -> None:
    asked = {"messages": _history(*CITIES), "tools": TOOLS, "max_completion_tokens": 90}
    (choice,) = _chat(client, **asked).choices
    made = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
    assert made == [("weather", {"city": city}) for city in CITIES]
    chunks = [choice for chunk in _chat(client, stream=True, **asked) for choice in chunk.choices]
    parts = [part for choice in chunks for part in choice.delta.tool_calls or ()]
    streamed = ["".join(part.function.arguments or "" for part in parts if part.index == at) for at in (0, 1)]
    assert [json.loads(arguments)["city"] for arguments in streamed] == list(CITIES)
    assert chunks[-1].finish_reason == "tool_calls"


@_case(OPENAI, "chat, tools: required")
def tools_required(client: openai.OpenAI) -> None:
    (choice,) = _chat(client, tools=TOOLS, tool_choice="required", max_completion_tokens=200).choices
    _call(choice)


@_case(OPENAI, "chat, tools: named")
def tools_named(client: openai.OpenAI) -> None:
    named = {"type": "function", "function": {"name": "time"}}
    (choice,) = _chat(client, tools=TOOLS, tool_choice=named, max_completion_tokens=200).choices
    assert choice.message.tool_calls
    assert [call.function.name for call in choice.message.tool_calls] == ["time"]
    assert json.loads(choice.message.tool_calls[0].function.arguments)["city"] in CITIES


@_case(OPENAI, "chat, tools: named, stream")
def tools_stream(client: openai.OpenAI) -> None:
    named = {"type": "function", "function": {"name": "time"}}
    chunks = _chat(client, tools=TOOLS, tool_choice=named, max_completion_tokens=200, stream=True)
    parts = [part for chunk in chunks for choice in chunk.choices for part in choice.delta.tool_calls or ()]
    assert [part.function.name for part in parts if part.function.name] == ["time"]
    assert json.loads("".join(part.function.arguments or "" for part in parts))["city"] in CITIES


@_case(OPENAI, "chat, tools: results")
def tools_results(client: openai.OpenAI) -> None:
    turns = _history(*CITIES)[:4]  # up to both results
    for fields, size in (({"tools": TOOLS}, 328), ({}, 133)):
        answer = _chat(client, messages=turns, **fields)
        assert answer.choices[0].message.content.startswith("<tool_response>\nsunny\n")
        assert answer.usage.prompt_tokens == size
    called = _chat(client, tools=TOOLS, tool_choice="required", max_completion_tokens=200).choices[0].message
    told = [{"role": "tool", "tool_call_id": call.id, "content": "12:00"} for call in called.tool_calls]
    (choice,) = _chat(client, messages=[*ASKED, called, *told], tools=TOOLS).choices
    assert choice.message.content or choice.message.tool_calls


@_case(OPENAI, "completions")
def completions(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "prompt": "1, 2, 3,", "max_tokens": 6, "temperature": 0}
    answer = client.completions.create(**asked)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (" 4, 5,", "length")
    chunks = list(client.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == " 4, 5,"


@_case(OPENAI, "Responses", **_NOT_HTTP)
def responses(client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model=MODEL, input=ASKED[0]["content"], temperature=0, max_output_tokens=24
    )
    assert (answer.output_text, answer.status) == (SAID, "completed")


@_case(OPENAI, "Responses, stream", **_NOT_HTTP)
def responses_stream(client: openai.OpenAI) -> None:
    events = list(
        client.responses.create(
            model=MODEL, input=ASKED[0]["content"], temperature=0, max_output_tokens=24, stream=True
        )
    )
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == SAID
    assert events[-1].type == "response.completed"


def _refused(kind: type[Exception], ask: Callable[[], Any]) -> None:
    try:
        ask()
    except kind:
        return
    raise AssertionError(f"it is no {kind.__name__}")


@_case(OPENAI, "errors")
def errors(client: openai.OpenAI) -> None:
    import openai

    _refused(openai.NotFoundError, lambda: _chat(client, model="another"))
    _refused(openai.BadRequestError, lambda: _chat(client, temperature=-1))
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/nowhere"}}}
    _refused(openai.BadRequestError, lambda: _chat(client, response_format=form))
    _refused(
        openai.BadRequestError, lambda: _chat(client, messages=[{"role": "user", "content": "a " * 9_000}])
    )


def _message(client: anthropic.Anthropic, **fields: Any) -> Any:
    asked: Any = {
        "model": MODEL,
        "messages": ASKED,
        "max_tokens": 24,
        "extra_body": {"temperature": 0},
        **fields,
    }
    return client.messages.create(**asked)


@_case(ANTHROPIC, "messages", **_NOT_HTTP)
def messages(client: anthropic.Anthropic) -> None:
    answer = _message(client)
    assert (answer.content[0].text, answer.stop_reason) == (SAID, "end_turn")
    assert (
        answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0),
        answer.usage.output_tokens,
    ) == (
        37,
        8,
    )


@_case(ANTHROPIC, "messages, stream", **_NOT_HTTP)
def messages_stream(client: anthropic.Anthropic) -> None:
    with client.messages.stream(
        model=MODEL, messages=ASKED, max_tokens=24, extra_body={"temperature": 0}
    ) as stream:
        assert "".join(stream.text_stream) == SAID
        assert stream.get_final_message().stop_reason == "end_turn"


@_case(ANTHROPIC, "messages, tools", **_NOT_HTTP)
def messages_tools(client: anthropic.Anthropic) -> None:
    tools = [{"name": name, "input_schema": PARAMETERS} for name in NAMES]
    for choice in ({"type": "any"}, {"type": "tool", "name": "time"}):
        answer = _message(client, tools=tools, tool_choice=choice, max_tokens=200)
        (used,) = [block for block in answer.content if block.type == "tool_use"]
        assert answer.stop_reason == "tool_use"
        assert used.name == "time" or choice["type"] == "any"
        assert used.input["city"] in CITIES
    result = {"type": "tool_result", "tool_use_id": used.id, "content": "12:00"}
    turns = [
        *ASKED,
        {"role": "assistant", "content": [used.model_dump(exclude_none=True)]},
        {"role": "user", "content": [result]},
    ]
    assert _message(client, messages=turns, tools=tools).content


@_case(ANTHROPIC, "count_tokens", **_NOT_HTTP)
def count_tokens(client: anthropic.Anthropic) -> None:
    assert client.messages.count_tokens(model=MODEL, messages=ASKED).input_tokens == 37


if __name__ == "__main__":
    print(table())
