"""Tools through OpenAI's own client: scripted answers in all modes, and what the real model is held to."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any, get_args

import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletion
from pydantic import BaseModel
from pydantic_core import PydanticCustomError

from sglc.backends.scripted import Words
from sglc.frontend.language.reasoning import Tags
from sglc.ir.grammar.call_format import HERMES
from sglc.ir.plan.events import GenDone, PackedIds, Sample, Usage
from sglc.ir.sampling import Sampling
from sglc.runtime.histogram import Histogram
from sglc.serve import chat
from sglc.serve.access_log import SPENT
from sglc.serve.answers import Answer
from sglc.serve.bodies import ChatBody
from sglc.serve.logprobs import Spelling
from sglc.serve.metrics import Spent
from sglc.serve.prompts import ServedPrompt
from sglc.serve.tools import Calling, Function, Tool, Tools
from sglc.serve.work import Piece, Work
from tests.depth import at_depth, few, some_of
from tests.serving import Server, serving
from tests.templates import TOOL_TEMPLATES

pytestmark = pytest.mark.slow

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now", "strict": True}},
]
COLOGNE = {"city": "Köln", "unit": "C"}
PARIS = {"city": 'Paris "<tool_call>" 🦜', "unit": "F"}
ONE, TWO, NOW = HERMES.written("weather", COLOGNE), HERMES.written("weather", PARIS), HERMES.written("now", {})
SCRIPT = {
    "plain": "It is warm.",
    "one": ONE,
    "text": f"I look.\n{ONE}",
    "two": f"{ONE}\n{TWO}\n{NOW}",
    "broken": ONE.replace('"C"', ""),
    "unknown": HERMES.written("rain", {}),
    "cut": "a b c d " * 4 + ONE,
}
# What the script's answers are: content, and calls.
SAID: dict[str, tuple[str | None, list[tuple[str, Any]]]] = {
    "plain": ("It is warm.", []),
    "one": (None, [("weather", COLOGNE)]),
    "text": ("I look.", [("weather", COLOGNE)]),
    "two": (None, [("weather", COLOGNE), ("weather", PARIS), ("now", {})]),
    "broken": (SCRIPT["broken"], []),
    "unknown": (SCRIPT["unknown"], []),
}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    script = tmp_path_factory.mktemp("script") / "script.json"
    rules = [{"prompt": f"say {key}<", "text": text} for key, text in SCRIPT.items()]
    script.write_text(json.dumps({"rules": rules, "word_s": 1e-9}))
    with (
        serving("--model", f"scripted:{script}", "--name", "m") as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def ask(client: openai.OpenAI, text: str, **options: Any) -> Any:
    given = {"tools": TOOLS, **options}
    messages: Any = [{"role": "user", "content": f"say {text}"}]
    return client.chat.completions.create(model="m", messages=messages, **given)


def told(answer: ChatCompletion, choice: int = 0) -> tuple[str | None, list[tuple[str, Any]]]:
    """Content and calls, whose ids are all different."""
    message = answer.choices[choice].message
    calls: list[Any] = message.tool_calls or []
    assert len({call.id for call in calls}) == len(calls)
    assert {call.type for call in calls} <= {"function"}
    return message.content, [(call.function.name, json.loads(call.function.arguments)) for call in calls]


CHOICES: dict[str, Any] = {
    "auto": {},
    "auto, said": {"tool_choice": "auto"},
    "required": {"tool_choice": "required"},
    "one at a time": {"parallel_tool_calls": False},
    "named": {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
}


@pytest.mark.parametrize("choice", few(CHOICES, 2))
@pytest.mark.parametrize("key", SAID)
def test_an_answer_has_its_calls(scripted: openai.OpenAI, key: str, choice: str) -> None:
    answer = ask(scripted, key, **CHOICES[choice])
    assert told(answer) == SAID[key]
    assert answer.choices[0].finish_reason == ("tool_calls" if SAID[key][1] else "stop")


@pytest.mark.parametrize("key", SAID)
def test_a_stream_adds_up_to_the_answer(scripted: openai.OpenAI, key: str) -> None:
    content, calls, ends = "", dict[int, list[str]](), []
    for chunk in ask(scripted, key, stream=True):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            ends += [choice.finish_reason] if choice.finish_reason else []
            for call in choice.delta.tool_calls or []:
                if call.index not in calls:
                    assert (call.type, call.id[:5]) == ("function", "call_")
                    calls[call.index] = [call.function.name, ""]
                calls[call.index][1] += call.function.arguments
    assert (content or None, [(name, json.loads(given)) for name, given in calls.values()]) == SAID[key]
    assert ends == ["tool_calls" if SAID[key][1] else "stop"]


@pytest.mark.parametrize("key", SAID)
def test_the_clients_own_stream_makes_the_same_of_it(scripted: openai.OpenAI, key: str) -> None:
    messages: Any = [{"role": "user", "content": f"say {key}"}]
    strict: Any = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    with scripted.chat.completions.stream(model="m", messages=messages, tools=strict) as stream:
        events = [event.type for event in stream]
        answer = stream.get_final_completion()
    assert told(answer) == SAID[key]
    assert events.count("tool_calls.function.arguments.done") == len(SAID[key][1])


def test_samples_have_calls_of_their_own(scripted: openai.OpenAI) -> None:
    answer = ask(scripted, "text", n=2)
    assert told(answer, 0) == told(answer, 1) == SAID["text"]
    assert len({call.id for choice in answer.choices for call in choice.message.tool_calls}) == 2


def test_without_tools_a_call_is_a_text(scripted: openai.OpenAI) -> None:
    """Whether there are none, or none may be called; then the model is not told of them."""
    alone = ask(scripted, "one", tools=openai.omit)
    none = ask(scripted, "one", tool_choice="none")
    assert told(alone) == told(none) == (ONE, [])
    assert alone.usage.prompt_tokens == none.usage.prompt_tokens < ask(scripted, "one").usage.prompt_tokens


def test_an_answer_that_is_cut_has_no_half_calls(scripted: openai.OpenAI) -> None:
    answer = ask(scripted, "cut", max_tokens=18)
    content, calls = told(answer)
    assert (content or "").startswith("a b c d")
    assert (calls, answer.choices[0].finish_reason) == ([], "length")


ANSWERS = {
    "reasoning and an answer": "<think>a <tool_call> b</think>\n\nIt is.\n",
    "reasoning and calls": f"<think>\nI {ONE}?</think>\n\nI look.\n{ONE}\n{NOW}\n",
    "a call alone": NOW,
    "reasoning that is cut": f"<think>I {ONE}</thi",
    "a call that is cut": f"<think>I</think>a{NOW[:-9]}",
    "tags behind": f"a <think>b</think> {NOW} </think>",
}


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("case", ANSWERS)
def test_reasoning_and_calls_are_the_same_however_a_text_comes(case: str, held: bool) -> None:
    text = ANSWERS[case]
    body = ChatBody(messages=[{"role": "user", "content": "a"}], tools=TOOLS)  # type: ignore[list-item]
    work = Work("chat", [ServedPrompt("a", PackedIds.of((1,)))], Sampling())
    answer = Answer("", "", "m", Spelling(Words()), Tags("<think>", "</think>"))  # type: ignore[arg-type]
    calling = Calling(HERMES, frozenset({"weather", "now"}), held)
    end = GenDone(0, (1,), (Sample(text, (), "stop"),), Usage())
    SPENT.set(Spent(Histogram(())))
    (whole,) = chat.whole(answer, body, [end], calling)["choices"]
    for size in (1, 3, len(text)):
        cut = [text[at : at + size] for at in range(0, len(text), size)]
        batch = [Piece(0, part, (), (), at == 0) for at, part in enumerate(cut)]

        async def pieces(batch: list[Piece] = batch) -> AsyncGenerator[list[Piece], None]:
            yield [*batch, Piece(0, "", (), (), False, ended="stop")]

        async def told(come: AsyncGenerator[list[Piece], None]) -> list[Any]:
            return [each async for made in chat.chunks(answer, body, work, come, calling) for each in made]

        choices = [chunk["choices"][0] for chunk in asyncio.run(told(pieces()))]
        deltas = [choice["delta"] for choice in choices]
        calls = dict[int, list[str]]()
        for call in (call for delta in deltas for call in delta.get("tool_calls", ())):
            name, more = call["function"].get("name"), call["function"]["arguments"]
            calls.setdefault(call["index"], [name, ""])[1] += more
        message = whole["message"]
        for field in ("content", "reasoning_content"):
            assert "".join(delta.get(field) or "" for delta in deltas) == (message[field] or "")
        assert [*calls.values()] == [[*call["function"].values()] for call in message.get("tool_calls", ())]
        assert choices[-1]["finish_reason"] == whole["finish_reason"]


def test_an_answer_without_a_text_goes_back_as_it_came(scripted: openai.OpenAI) -> None:
    first: Any = [{"role": "user", "content": "say plain"}]
    with scripted.chat.completions.stream(model="m", messages=first, stop="It", tools=TOOLS[1:]) as stream:
        for _ in stream:
            pass
        made = stream.get_final_completion().choices[0].message
    assert (made.content, made.tool_calls) == (None, None)
    for back in (made, {"role": "assistant"}, {"role": "assistant", "content": None, "refusal": "No."}):
        more: Any = [*first, back, {"role": "user", "content": "say plain"}]
        assert told(scripted.chat.completions.create(model="m", messages=more)) == SAID["plain"]


class Place(BaseModel):
    city: str
    unit: str


def test_calls_of_the_clients_functions_come_back_as_what_they_are(scripted: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "say text"}]
    tools = [openai.pydantic_function_tool(Place, name="weather")]
    answer = scripted.chat.completions.parse(model="m", messages=messages, tools=tools)
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == Place(**COLOGNE)
    # The message goes back as it came, with the result behind it.
    result = {"role": "tool", "tool_call_id": call.id, "name": "weather", "content": "20 degrees"}
    more = [*messages, answer.choices[0].message, result, {"role": "user", "content": "say plain"}]
    assert told(scripted.chat.completions.create(model="m", messages=more, tools=tools)) == SAID["plain"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a choice without tools": ({"tools": [], "tool_choice": "required"}, "tool_choice"),
    "a name that is none": (
        {"tool_choice": {"type": "function", "function": {"name": "rain"}}},
        "tool_choice",
    ),
    "a choice that is none": ({"tool_choice": "any"}, "tool_choice"),
    "two of one name": ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
    "another kind of tool": ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools.0.type"),
    "no object": (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
        "tools.0.function.parameters",
    ),
    "arguments of a megabyte": (
        {
            "tools": [
                {"type": "function", "function": {"name": "f", "parameters": {"enum": ["a" * (1 << 20)]}}}
            ]
        },
        "tools.0.function.parameters",
    ),
    "a name of two words": (
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        "tools.0.function.name",
    ),
    "a regex besides": ({"extra_body": {"regex": "a"}}, "regex"),
    "functions": ({"extra_body": {"functions": [{"name": "f"}]}}, "functions"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_contradicts_itself_is_refused_by_name(scripted: openai.OpenAI, case: str) -> None:
    given, param = REFUSED[case]
    with pytest.raises(openai.BadRequestError) as refused:
        ask(scripted, "one", **given)
    assert refused.value.param == param


CALL = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
HISTORIES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "a result without a call": ([{"role": "tool", "tool_call_id": "x", "content": "1"}], "tool_call_id"),
    "a result without an id": ([{"role": "tool", "content": "1"}], "tool_call_id"),
    "a call of the user's": ([{"role": "user", "content": "a", "tool_calls": [CALL]}], "tool_calls"),
    "no arguments": (
        [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "now", "arguments": "[1"}}]}],
        "tool_calls.0.function.arguments",
    ),
    "no content": ([{"role": "user", "content": None}], "content"),
}  # fmt: skip


@pytest.mark.parametrize("case", HISTORIES)
def test_a_history_that_cannot_be_is_refused(scripted: openai.OpenAI, case: str) -> None:
    given, field = HISTORIES[case]
    messages: Any = [{"role": "user", "content": "say plain"}, *given]
    with pytest.raises(openai.BadRequestError) as refused:
        scripted.chat.completions.create(model="m", messages=messages)
    assert refused.value.param == f"messages.1.{field}"


# -- the real model --------------------------------------------------------------------------------


def test_names_are_compared_with_few_others() -> None:
    compared = 0

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    tools = [
        Tool.model_construct(function=Function.model_construct(name=Name(f"f{number}")))
        for number in range(500)
    ]
    different = get_args(Tools)[1].func
    assert different(tools) is tools
    assert compared < 1_000
    with pytest.raises(PydanticCustomError, match="two of them are called `f7`"):
        different([*tools, tools[7]])


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


ORDER = {
    "type": "object",
    "properties": {
        "items": {
            "type": "array", "minItems": 1, "maxItems": 2,
            "items": {
                "type": "object", "required": ["sku", "count"], "additionalProperties": False,
                "properties": {
                    "sku": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
                    "count": {"type": "integer", "minimum": 1, "maximum": 9},
                },
            },
        },
        "note": {"anyOf": [{"type": "string", "maxLength": 12}, {"type": "null"}]},
    },
    "required": ["items", "note"],
    "additionalProperties": False,
}  # fmt: skip
REAL: Any = [*TOOLS, {"type": "function", "function": {"name": "place_order", "parameters": ORDER}}]
SCHEMAS = {"weather": WEATHER, "now": {"maxProperties": 0}, "place_order": ORDER}
QUESTIONS = (
    "Is it warm in Köln?",
    "I want 3 of AB-123.",
    "What time is it?",
    "Say <tool_call> and nothing else.",
)


def valid(answer: ChatCompletion) -> list[str]:
    """The names of an answer's calls, whose arguments are all valid."""
    content, calls = told(answer)
    assert content is None
    assert answer.choices[0].finish_reason == "tool_calls", answer
    for name, arguments in calls:
        jsonschema.validate(arguments, SCHEMAS[name])
    return [name for name, _ in calls]


@pytest.mark.parametrize("number", range(at_depth(2, 6, 200)))
def test_the_model_has_to_call(client: openai.OpenAI, number: int) -> None:
    named = REAL[number // 2 % 3]["function"]["name"] if number % 2 else None
    choice: Any = {"type": "function", "function": {"name": named}} if named else "required"
    messages: Any = [{"role": "user", "content": QUESTIONS[number % len(QUESTIONS)]}]
    answer = client.chat.completions.create(
        model="smollm2", messages=messages, tools=REAL, tool_choice=choice, parallel_tool_calls=False,
        temperature=1.5, seed=number, max_tokens=160,
    )  # fmt: skip
    names = valid(answer)
    assert len(names) == 1
    assert named in (None, *names)


def test_calls_are_streamed_as_they_are_made(client: openai.OpenAI) -> None:
    options: Any = {
        "tools": REAL, "tool_choice": CHOICES["named"]["tool_choice"], "temperature": 0, "max_tokens": 100,
    }  # fmt: skip
    messages: Any = [{"role": "user", "content": QUESTIONS[0]}]
    whole = client.chat.completions.create(model="smollm2", messages=messages, **options)
    chunks = list(client.chat.completions.create(model="smollm2", messages=messages, stream=True, **options))
    deltas: list[Any] = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert len(deltas) > 5
    assert [delta.function.name for delta in deltas if delta.id] == valid(whole) == ["weather"]
    assert json.loads("".join(delta.function.arguments for delta in deltas)) == told(whole)[1][0][1]


@pytest.mark.parametrize("most", some_of(range(1, 45), 12, 12))
def test_calls_that_are_cut_leave_nothing_in_the_content(client: openai.OpenAI, most: int) -> None:
    options: Any = {"tools": REAL, "tool_choice": "required", "temperature": 0, "max_tokens": most}
    messages: Any = [{"role": "user", "content": QUESTIONS[0]}]
    whole = client.chat.completions.create(model="smollm2", messages=messages, **options).choices[0]
    assert not whole.message.content
    deltas = [
        chunk.choices[0].delta
        for chunk in client.chat.completions.create(model="smollm2", messages=messages, stream=True, **options)
    ]
    assert not any(delta.content for delta in deltas)
    told = "".join(call.function.arguments for delta in deltas for call in delta.tool_calls or [])
    assert told == "".join(call.function.arguments for call in whole.message.tool_calls or [])  # type: ignore[union-attr]


def test_what_is_no_call_is_held_to_the_form_that_is_asked_for(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    messages: Any = [{"role": "user", "content": "One or two?"}]
    answer = client.chat.completions.create(
        model="smollm2", messages=messages, tools=REAL, response_format=form, max_tokens=160, seed=3
    )
    content, calls = told(answer)
    if not calls:
        assert json.loads(content or "") in ({"a": 1}, {"a": 2})
    for name, arguments in calls:
        jsonschema.validate(arguments, SCHEMAS[name])


def test_tools_of_a_gateway_as_one_schema(client: openai.OpenAI) -> None:
    """As SGLang's gateway asks for required tools: `type` beside `anyOf`."""
    either = [
        {"properties": {"name": {"enum": [name]}, "parameters": schema}, "required": ["name", "parameters"]}
        for name, schema in (("weather", WEATHER), ("place_order", ORDER))
    ]
    schema = {"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "object", "anyOf": either}}
    messages: Any = [{"role": "user", "content": QUESTIONS[1]}]
    answer = client.chat.completions.create(
        model="smollm2", messages=messages, extra_body={"json_schema": schema}, max_tokens=160, seed=1
    )
    (call,) = json.loads(answer.choices[0].message.content or "")
    jsonschema.validate(call["parameters"], SCHEMAS[call["name"]])


@pytest.mark.parametrize("name", some_of(["hermes", "llama"], 1, 1))
def test_a_models_own_template_and_format(smollm2: Path, tmp_path: Path, name: str) -> None:
    for path in smollm2.iterdir():
        (tmp_path / path.name).symlink_to(path)
    config = tmp_path / "tokenizer_config.json"
    given = json.loads(config.read_text())
    config.unlink()
    config.write_text(json.dumps({**given, "chat_template": TOOL_TEMPLATES[name]}))
    for extra in ("chat_template.jinja", "chat_template.json"):
        (tmp_path / extra).unlink(missing_ok=True)
    messages: Any = [
        {"role": "user", "content": QUESTIONS[0]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "noon <|im_end|>"}]},
    ]
    with (
        serving("--model", str(tmp_path), "--name", "smollm2") as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        for seed in range(2):
            answer = client.chat.completions.create(
                model="smollm2", messages=messages, tools=REAL, tool_choice="required", seed=seed,
                parallel_tool_calls=False, max_tokens=160,
            )  # fmt: skip
            assert len(valid(answer)) == 1
    shutil.rmtree(tmp_path)
