"""LiteLLM, by the names it has for servers of this kind."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any, Literal

import pytest
from pydantic import BaseModel

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would be fetched

import litellm

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": WEATHER}}
]
NAMES = ("openai/smollm2", "hosted_vllm/smollm2")


class Town(BaseModel):
    name: Literal["Paris", "Rome"]
    large: bool


def ask(url: str, name: str = NAMES[0], **options: Any) -> Any:
    given = {"messages": QUESTION, "temperature": 0, "max_tokens": 16, **options}
    return litellm.completion(model=name, api_base=url + "/v1", api_key="none", num_retries=0, **given)


@pytest.mark.parametrize("name", NAMES)
def test_an_answer(url: str, name: str) -> None:
    answer = ask(url, name)
    assert "Paris" in answer.choices[0].message.content
    assert answer.usage.completion_tokens > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_stream(url: str, name: str) -> None:
    chunks = ask(url, name, stream=True, stream_options={"include_usage": True})
    made = litellm.stream_chunk_builder(list(chunks))
    assert made.choices[0].message.content == ask(url, name).choices[0].message.content


def test_async(url: str) -> None:
    async def both() -> list[Any]:
        each = [
            litellm.acompletion(
                model=NAMES[0], messages=QUESTION, api_base=url + "/v1", api_key="none", seed=1, max_tokens=16
            )
            for _ in range(2)
        ]
        return await asyncio.gather(*each)

    first, second = asyncio.run(both())
    assert first.choices[0].message.content == second.choices[0].message.content


def test_a_completion(url: str) -> None:
    answer = litellm.text_completion(
        model="text-completion-openai/smollm2", prompt="The capital of France is", max_tokens=4, temperature=0,
        api_base=url + "/v1", api_key="none",
    )  # fmt: skip
    assert answer.choices[0].text.startswith(" Paris")


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_pydantic(url: str, name: str) -> None:
    answer = ask(url, name, response_format=Town, max_tokens=64)
    Town.model_validate_json(answer.choices[0].message.content)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_that_has_to_be(url: str, name: str, choice: Any) -> None:
    """By the real model."""
    answer = ask(url, name, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, max_tokens=100)
    (call,) = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["unit"] in ("C", "F")


@pytest.mark.parametrize("stream", [False, True])
def test_calls_and_results_scripted(scripted_url: str, stream: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": "say text"}]
    answer = ask(scripted_url, messages=messages, tools=TOOLS, stream=stream, max_tokens=100)
    if stream:
        answer = litellm.stream_chunk_builder(list(answer))
    message = answer.choices[0].message
    (call,) = message.tool_calls
    assert (message.content, json.loads(call.function.arguments)) == ("I look.", {"city": "Köln", "unit": "C"})
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "20 degrees"}]
    assert ask(scripted_url, messages=messages, tools=TOOLS).choices[0].message.content == "It is 20 degrees."


def test_a_mistake_is_its_own_error(url: str) -> None:
    with pytest.raises(litellm.BadRequestError):
        ask(url, temperature=-1)
    with pytest.raises(litellm.NotFoundError):
        ask(url, "openai/gpt")
