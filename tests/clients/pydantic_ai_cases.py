"""pydantic-ai, with its output as a tool, as the protocol's JSON and as text."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

QUESTION = "What is the capital of France?"


class Town(BaseModel):
    """A town."""

    name: Literal["Paris", "Rome"]
    large: bool


def agent(url: str, **options: Any) -> Agent[None, Any]:
    model = OpenAIChatModel("smollm2", provider=OpenAIProvider(base_url=url + "/v1", api_key="none"))
    return Agent(model, retries=0, model_settings={"temperature": 0, "max_tokens": 200, "seed": 1}, **options)


def test_an_answer(url: str) -> None:
    answer = agent(url).run_sync(QUESTION)
    assert "Paris" in answer.output


@pytest.mark.parametrize("kind", [ToolOutput, NativeOutput])
def test_an_object(url: str, kind: Any) -> None:
    """By the real model."""
    assert isinstance(agent(url, output_type=kind(Town)).run_sync(QUESTION).output, Town)


@pytest.mark.parametrize("kind", [ToolOutput, PromptedOutput])
def test_an_object_scripted(scripted_url: str, kind: Any) -> None:
    answer = agent(scripted_url, output_type=kind(Town)).run_sync(f"say town {kind.__name__}")
    assert answer.output == Town(name="Paris", large=True)


def with_weather(url: str) -> Agent[None, Any]:
    made = agent(url)

    @made.tool_plain
    def weather(city: str, unit: Literal["C", "F"]) -> str:
        """Of a city."""
        return f"20 degrees {unit} in {city}"

    return made


def test_calls_are_run_scripted(scripted_url: str) -> None:
    answer = with_weather(scripted_url).run_sync("say text")
    assert answer.output == "It is 20 degrees."
    assert answer.usage.tool_calls == 1


def test_a_stream_scripted(scripted_url: str) -> None:
    answer = with_weather(scripted_url).run_stream_sync("say one")
    assert list(answer.stream_text())[-1] == "It is 20 degrees."
