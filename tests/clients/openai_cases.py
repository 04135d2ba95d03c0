"""OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

MODEL = "smollm2"
QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
PROMPT = "The capital of France is"
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
# What script.py answers, by the question.
SAID: dict[str, tuple[str | None, list[tuple[str, Any]]]] = {
    "plain": ("It is warm.", []),
    "one": (None, [("weather", {"city": "Köln", "unit": "C"})]),
    "text": ("I look.", [("weather", {"city": "Köln", "unit": "C"})]),
    "two": (None, [("weather", {"city": "Köln", "unit": "C"}), ("now", {})]),
}


class Town(BaseModel):
    name: Literal["Paris", "Rome"]
    large: bool


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def scripted(scripted_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=scripted_url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(client: openai.OpenAI, messages: Any = QUESTION, **options: Any) -> Any:
    given = {"max_completion_tokens": 16, "temperature": 0, **options}
    return client.chat.completions.create(model=MODEL, messages=messages, **given)


def said(client: openai.OpenAI, messages: Any = QUESTION, **options: Any) -> str:
    content = chat(client, messages, **options).choices[0].message.content
    assert isinstance(content, str)
    return content


def streamed(chunks: Any) -> tuple[list[str], list[str | None]]:
    """Texts and ends of the choices of a stream."""
    texts: dict[int, str] = {}
    ends: dict[int, str | None] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            ends[choice.index] = choice.finish_reason or ends.get(choice.index)
    return [texts[index] for index in sorted(texts)], [ends[index] for index in sorted(ends)]


# -- chats -----------------------------------------------------------------------------------------


def test_an_answer(client: openai.OpenAI) -> None:
    answer = chat(client)
    assert "Paris" in answer.choices[0].message.content
    assert (answer.object, answer.model, answer.choices[0].finish_reason) == ("chat.completion", MODEL, "stop")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_seed_repeats_an_answer(client: openai.OpenAI) -> None:
    first, again, other = (said(client, temperature=1, top_p=0.9, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def test_samples(client: openai.OpenAI) -> None:
    answer = chat(client, n=3, temperature=1, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


def test_a_stop_ends_it(client: openai.OpenAI) -> None:
    assert said(client, stop=["Paris"]) == "The capital of France is "


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_ends_it(client: openai.OpenAI, name: str) -> None:
    limit: Any = {name: 2}
    answer: Any = client.chat.completions.create(model=MODEL, messages=QUESTION, **limit)
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 2)


def test_log_probabilities(client: openai.OpenAI) -> None:
    answer = chat(client, logprobs=True, top_logprobs=3)
    places = answer.choices[0].logprobs.content
    assert "".join(bytes(place.bytes).decode() for place in places).startswith("The capital")
    assert all(place.top_logprobs[0].logprob == place.logprob for place in places)


def test_biases_and_penalties(client: openai.OpenAI) -> None:
    assert "Paris" not in said(client, logit_bias={"7042": -100})
    assert said(client, presence_penalty=2, frequency_penalty=2, max_completion_tokens=32)


def test_roles_and_parts(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "What is the capital "}, {"type": "text", "text": "of France?"}]
    whole = [{"role": "system", "content": "Be brief."}, *QUESTION]
    split = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts, "name": "Ann"}]
    assert said(client, whole) == said(client, split)


def test_fields_without_an_effect_are_taken(client: openai.OpenAI) -> None:
    given: Any = {
        "user": "ann", "store": False, "service_tier": "auto", "metadata": {"a": "b"},
        "prompt_cache_key": "k", "safety_identifier": "s", "modalities": ["text"], "verbosity": "medium",
    }  # fmt: skip
    assert said(client, **given) == said(client)


# -- streams ---------------------------------------------------------------------------------------


def test_a_stream_is_the_answer(client: openai.OpenAI) -> None:
    assert streamed(chat(client, stream=True)) == ([said(client)], ["stop"])


def test_a_stream_of_samples(client: openai.OpenAI) -> None:
    options: Any = {"n": 2, "temperature": 1, "seed": 3}
    whole = [choice.message.content for choice in chat(client, **options).choices]
    assert streamed(chat(client, stream=True, **options))[0] == whole


def test_a_stream_has_counts(client: openai.OpenAI) -> None:
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == chat(client).usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_stream_that_is_left_is_ended(client: openai.OpenAI) -> None:
    with chat(client, stream=True, max_completion_tokens=4000, extra_body={"ignore_eos": True}) as chunks:
        assert next(iter(chunks)).choices
    assert said(client)


# -- helpers ---------------------------------------------------------------------------------------


def test_parse_gives_an_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=QUESTION, response_format=Town, seed=1)
    assert isinstance(answer.choices[0].message.parsed, Town)


def test_stream_has_events(client: openai.OpenAI) -> None:
    options: Any = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_completion_tokens": 16}
    with client.chat.completions.stream(**options) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == said(client)


def test_stream_gives_an_object(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=QUESTION, response_format=Town) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Town)


def test_headers_and_ids(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=QUESTION, max_tokens=2, extra_headers={"X-Request-Id": "mine"}
    )
    assert raw.headers["x-request-id"] == "mine" == raw.parse()._request_id


def test_lines_as_they_come(client: openai.OpenAI) -> None:
    with client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=QUESTION, max_tokens=2, stream=True
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"


def test_async(url: str, client: openai.OpenAI) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as many:
            asked = [
                many.chat.completions.create(
                    model=MODEL, messages=QUESTION, temperature=0, max_completion_tokens=16
                )
                for _ in range(8)
            ]
            return [answer.choices[0].message.content or "" for answer in await asyncio.gather(*asked)]

    assert asyncio.run(ask()) == [said(client)] * 8


# -- tools -----------------------------------------------------------------------------------------


def told(message: Any) -> tuple[str | None, list[tuple[str, Any]]]:
    """Content and calls."""
    calls = message.tool_calls or []
    return message.content, [(call.function.name, json.loads(call.function.arguments)) for call in calls]


def about(key: str, **options: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": f"say {key}"}], "tools": TOOLS, **options}


@pytest.mark.parametrize("key", SAID)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_tools_scripted(scripted: openai.OpenAI, key: str, choice: Any) -> None:
    answer = scripted.chat.completions.create(**about(key, tool_choice=choice))
    assert told(answer.choices[0].message) == SAID[key]
    assert answer.choices[0].finish_reason == ("tool_calls" if SAID[key][1] else "stop")


@pytest.mark.parametrize("key", SAID)
def test_tools_streamed_scripted(scripted: openai.OpenAI, key: str) -> None:
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    with scripted.chat.completions.stream(**{**about(key), "tools": strict}) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_completion()
    assert told(answer.choices[0].message) == SAID[key]
    assert kinds.count("tool_calls.function.arguments.done") == len(SAID[key][1])


def test_no_tools_scripted(scripted: openai.OpenAI) -> None:
    answer = scripted.chat.completions.create(**about("one", tool_choice="none"))
    assert answer.choices[0].message.tool_calls is None
    assert "tool_call" in (answer.choices[0].message.content or "")


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_has_to_be(client: openai.OpenAI, choice: Any, stream: bool) -> None:
    """By the real model."""
    options: Any = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "seed": 1}
    question: Any = [{"role": "user", "content": "How warm is it in Paris?"}]
    if stream:
        with client.chat.completions.stream(model=MODEL, messages=question, **options) as parts:
            answer: Any = parts.get_final_completion()
    else:
        answer = client.chat.completions.create(model=MODEL, messages=question, **options)
    content, [(name, arguments)] = told(answer.choices[0].message)
    assert content is None
    if choice is NAMED:
        assert name == "weather"
    if name == "weather":
        assert arguments.keys() == {"city", "unit"}
        assert arguments["unit"] in ("C", "F")


def test_functions_of_pydantic_scripted(scripted: openai.OpenAI) -> None:
    class Weather(BaseModel):
        city: str
        unit: Literal["C", "F"]

    tools = [openai.pydantic_function_tool(Weather, name="weather")]
    answer = scripted.chat.completions.parse(**{**about("one"), "tools": tools})
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == Weather(city="Köln", unit="C")


# -- histories -------------------------------------------------------------------------------------


def test_results_scripted(scripted: openai.OpenAI) -> None:
    """The answer goes back as it came, with the results of its calls."""
    asked = about("two")
    message = scripted.chat.completions.create(**asked).choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "20 degrees"} for call in message.tool_calls or []
    ]
    asked["messages"] = [*asked["messages"], message, *results]
    answer = scripted.chat.completions.create(**asked)
    assert answer.choices[0].message.content == "It is 20 degrees."


def test_turns(client: openai.OpenAI) -> None:
    answer = chat(client).choices[0].message
    more = [*QUESTION, answer, {"role": "user", "content": "And of Italy?"}]
    assert said(client, more)


def test_a_call_without_content(client: openai.OpenAI) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "1", "name": "now", "content": [{"type": "text", "text": "noon"}]},
    ]
    assert said(client, turns)
    assert said(client, turns, tools=TOOLS)


def test_an_answer_goes_on(client: openai.OpenAI) -> None:
    turns = [*QUESTION, {"role": "assistant", "content": "The capital of France is"}]
    more = {"continue_final_message": True, "add_generation_prompt": False}
    assert said(client, turns, extra_body=more).startswith(" Paris")


# -- forms -----------------------------------------------------------------------------------------


def test_a_schema_holds(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER, "strict": True}}
    given = json.loads(said(client, response_format=form, temperature=1, seed=1, max_completion_tokens=100))
    assert given.keys() == {"city", "unit"}


def test_json(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_object"}
    question = [{"role": "user", "content": 'Write {"a": 1}.'}]
    answer = chat(client, question, response_format=form, max_completion_tokens=200)
    assert answer.choices[0].message.content.startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)


FORMS: dict[str, dict[str, Any]] = {
    "regex": {"regex": "yes|no"},
    "guided_choice": {"guided_choice": ["yes", "no"]},
    "structured_outputs": {"structured_outputs": {"choice": ["yes", "no"]}},
    "grammar": {"ebnf": 'root ::= "yes" | "no"'},
}


@pytest.mark.parametrize("name", FORMS)
def test_other_forms(client: openai.OpenAI, name: str) -> None:
    assert said(client, extra_body=FORMS[name], temperature=1) in ("yes", "no")


# -- completions -----------------------------------------------------------------------------------


def complete(client: openai.OpenAI, prompt: Any = PROMPT, **options: Any) -> Any:
    return client.completions.create(
        model=MODEL, prompt=prompt, **{"max_tokens": 4, "temperature": 0, **options}
    )


def test_a_completion(client: openai.OpenAI) -> None:
    answer = complete(client)
    assert answer.choices[0].text.startswith(" Paris")
    assert (answer.object, answer.choices[0].finish_reason) == ("text_completion", "length")


def test_prompts_of_every_form(client: openai.OpenAI) -> None:
    ids = [504, 3575, 282, 4649, 314]
    texts = [
        [choice.text for choice in complete(client, prompt).choices]
        for prompt in (PROMPT, [PROMPT, PROMPT], ids, [ids, ids])
    ]
    assert texts == [texts[0], texts[0] * 2, texts[0], texts[0] * 2]


def test_a_completion_is_streamed(client: openai.OpenAI) -> None:
    texts = [chunk.choices[0].text for chunk in complete(client, stream=True)]
    assert "".join(texts) == complete(client).choices[0].text


def test_an_echo_with_log_probabilities(client: openai.OpenAI) -> None:
    (choice,) = complete(client, echo=True, logprobs=2, max_tokens=1).choices
    assert choice.text.startswith(PROMPT)
    assert choice.logprobs.token_logprobs[0] is None
    assert len(choice.logprobs.tokens) == 6


def test_samples_of_a_completion(client: openai.OpenAI) -> None:
    answer = complete(client, n=2, best_of=2, temperature=1, seed=1)
    assert len(answer.choices) == 2


def test_a_suffix_is_refused_by_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, suffix="!")
    assert refused.value.param == "suffix"


# -- models and errors -----------------------------------------------------------------------------


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_another_model_is_not_there(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt", messages=QUESTION)


def test_a_mistake_names_its_field(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, temperature=-1)
    assert (refused.value.param, refused.value.code) == ("temperature", "invalid_value")


def test_a_prompt_that_is_too_long(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, [1] * 100_000)
    assert refused.value.code == "context_length_exceeded"


def test_responses_name_the_gateway(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="gateway"):
        client.responses.create(model=MODEL, input="Hi")
