"""outlines, by the three kinds of server that it knows."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import outlines
import pytest
from outlines.types import CFG, Regex
from pydantic import BaseModel

QUESTION = "What is the capital of France?"
KINDS = {"openai": outlines.from_openai, "vllm": outlines.from_vllm, "sglang": outlines.from_sglang}


class Town(BaseModel):
    name: Literal["Paris", "Rome"]
    large: bool


@pytest.fixture
def model(url: str, request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param](openai.OpenAI(base_url=url + "/v1", api_key="none"), "smollm2")


every = pytest.mark.parametrize("model", KINDS, indirect=True)
with_patterns = pytest.mark.parametrize("model", ["vllm", "sglang"], indirect=True)


@every
def test_an_answer(model: Any) -> None:
    assert "Paris" in model(QUESTION, max_tokens=16, temperature=0)


@every
def test_a_stream(model: Any) -> None:
    options: Any = {"max_tokens": 16, "temperature": 0}
    assert "".join(model.stream(QUESTION, **options)) == model(QUESTION, **options)


@every
def test_an_object(model: Any) -> None:
    Town.model_validate_json(model(QUESTION, Town, max_tokens=64))


@every
def test_a_schema_streamed(model: Any) -> None:
    assert json.loads("".join(model.stream(QUESTION, Town, max_tokens=64))).keys() == {"name", "large"}


@with_patterns
def test_a_choice(model: Any) -> None:
    assert model(QUESTION, Literal["yes", "no"], max_tokens=8) in ("yes", "no")


@with_patterns
def test_a_regex(model: Any) -> None:
    assert len(model(QUESTION, Regex("[0-9]{3}"), max_tokens=8)) == 3


GRAMMARS = {"vllm": 'root ::= "yes" | "no"', "sglang": 'root ::= "yes" | "no"'}


@pytest.mark.parametrize(("model", "grammar"), GRAMMARS.items(), indirect=["model"])
def test_a_grammar(model: Any, grammar: str) -> None:
    assert model(QUESTION, CFG(grammar), max_tokens=8) in ("yes", "no")
