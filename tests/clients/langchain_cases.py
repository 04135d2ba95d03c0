"""langchain-openai."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

QUESTION = "What is the capital of France?"


class Town(BaseModel):
    """A town."""

    name: Literal["Paris", "Rome"]
    large: bool


@tool
def weather(city: str = Field(max_length=12), unit: Literal["C", "F"] = "C") -> str:
    """Of a city."""
    return f"20 degrees {unit} in {city}"


def chat(url: str, **options: Any) -> ChatOpenAI:
    given = {"temperature": 0, "max_retries": 0, **options}
    return ChatOpenAI(model="smollm2", base_url=url + "/v1", api_key="none", **given)


def test_an_answer(url: str) -> None:
    answer = chat(url).invoke(QUESTION)
    assert "Paris" in answer.content
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0


def test_a_stream(url: str) -> None:
    texts = [str(chunk.content) for chunk in chat(url, stream_usage=True).stream(QUESTION)]
    assert len(texts) > 3
    assert "".join(texts) == chat(url).invoke(QUESTION).content


def test_many(url: str) -> None:
    answers = chat(url).batch([QUESTION] * 4)
    assert len({str(answer.content) for answer in answers}) == 1
    assert asyncio.run(chat(url).ainvoke(QUESTION)).content == answers[0].content


def test_options(url: str) -> None:
    asked = chat(
        url,
        temperature=1,
        seed=1,
        top_p=0.9,
        presence_penalty=0.5,
        logprobs=True,
        max_completion_tokens=3,
        stop=["x"],
    )
    assert asked.invoke(QUESTION).response_metadata["finish_reason"] == "length"


def test_a_completion(url: str) -> None:
    model = OpenAI(model="smollm2", base_url=url + "/v1", api_key="none", temperature=0, max_tokens=4)
    assert model.invoke("The capital of France is").startswith(" Paris")


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(url: str, method: Any) -> None:
    """By the real model."""
    assert isinstance(chat(url).with_structured_output(Town, method=method).invoke(QUESTION), Town)


@pytest.mark.parametrize("choice", ["any", "weather"])
def test_a_call_that_has_to_be(url: str, choice: str) -> None:
    """By the real model."""
    bound = chat(url).bind_tools([weather], tool_choice=choice, parallel_tool_calls=False)
    (call,) = bound.invoke("How warm is it in Paris?").tool_calls
    assert call["name"] == "weather"
    assert weather.invoke(call["args"]).startswith("20 degrees")


@pytest.mark.parametrize("stream", [False, True])
def test_calls_and_results_scripted(scripted_url: str, stream: bool) -> None:
    bound = chat(scripted_url).bind_tools([weather])
    messages: list[Any] = [HumanMessage("say text")]
    if stream:
        first, *others = bound.stream(messages)
        answer: Any = first
        for other in others:
            answer = answer + other
    else:
        answer = bound.invoke(messages)
    (call,) = answer.tool_calls
    assert call["args"] == {"city": "Köln", "unit": "C"}
    messages += [answer, ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])]
    assert bound.invoke(messages).content == "It is 20 degrees."
