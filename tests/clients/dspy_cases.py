"""dspy, through its own engine and through LiteLLM."""

from __future__ import annotations

import os
from typing import Any, Literal

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would be fetched

import dspy
import litellm

# Tools are sent as such to models that LiteLLM's table says take them.
litellm.register_model(
    {"openai/smollm2": {"litellm_provider": "openai", "mode": "chat", "supports_function_calling": True}}
)


class Capital(dspy.Signature):
    """Name the capital."""

    question: str = dspy.InputField()
    answer: Literal["Paris", "Rome"] = dspy.OutputField()


def model(url: str, kind: str = "chat", **more: Any) -> Any:
    return dspy.LM(
        ("text-completion-openai/" if kind == "text" else "openai/") + "smollm2", model_type=kind,
        api_base=url + "/v1", api_key="none", cache=False, num_retries=0, temperature=0, max_tokens=64,
        **more,
    )  # fmt: skip


def test_an_answer(url: str) -> None:
    (text,) = model(url)("What is the capital of France?")
    assert "Paris" in text


def test_a_text(url: str) -> None:
    (text,) = model(url, "text")("The capital of France is")
    assert text


def test_a_signature_scripted(scripted_url: str) -> None:
    with dspy.context(lm=model(scripted_url), adapter=dspy.ChatAdapter()):
        assert dspy.Predict(Capital)(question="say fields").answer == "Paris"


def test_a_signature_as_json_scripted(scripted_url: str) -> None:
    with dspy.context(lm=model(scripted_url), adapter=dspy.JSONAdapter()):
        assert dspy.Predict(Capital)(question="say json").answer == "Paris"


def test_reasoning_comes_first_scripted(scripted_url: str) -> None:
    with dspy.context(lm=model(scripted_url), adapter=dspy.ChatAdapter()):
        made = dspy.ChainOfThought(Capital)(question="say reasons")
    assert (made.reasoning, made.answer) == ("It is so.", "Paris")


def test_an_answer_through_litellm(url: str) -> None:
    (text,) = model(url, engine="litellm")("What is the capital of France?")
    assert "Paris" in text


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter, dspy.JSONAdapter])
def test_native_calls_scripted(scripted_url: str, adapter: Any) -> None:
    class Asked(dspy.Signature):
        """Answer with tools."""

        question: str = dspy.InputField()
        tools: list[dspy.Tool] = dspy.InputField()
        calls: dspy.ToolCalls = dspy.OutputField()

    def weather(city: str, unit: str) -> str:
        """Of a city."""
        return f"20 degrees {unit} in {city}"

    with dspy.context(
        lm=model(scripted_url, engine="litellm"), adapter=adapter(use_native_function_calling=True)
    ):
        made = dspy.Predict(Asked)(question="say one", tools=[dspy.Tool(weather)])
    (call,) = made.calls.tool_calls
    assert (call.name, call.args) == ("weather", {"city": "Köln", "unit": "C"})
