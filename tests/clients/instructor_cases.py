"""instructor, in its modes for OpenAI's protocol."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import instructor
import openai
import pytest
from pydantic import BaseModel

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]


class Town(BaseModel):
    """A town."""

    name: Literal["Paris", "Rome"]
    large: bool


def client(url: str, mode: instructor.Mode) -> Any:
    return instructor.from_openai(openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0), mode=mode)


def asked(**options: Any) -> dict[str, Any]:
    return {"model": "smollm2", "messages": QUESTION, "max_tokens": 100, "max_retries": 0, "seed": 1, **options}


MODES = ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA")


@pytest.mark.parametrize("mode", MODES)
def test_an_object(url: str, mode: str) -> None:
    """By the real model."""
    town = client(url, instructor.Mode[mode]).chat.completions.create(response_model=Town, **asked())
    assert isinstance(town, Town)


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_an_object_as_it_comes(url: str, mode: str) -> None:
    """By the real model."""
    parts = list(client(url, instructor.Mode[mode]).create_partial(response_model=Town, **asked()))
    assert parts[-1].name in ("Paris", "Rome")
    assert parts[-1].large in (True, False)


@pytest.mark.parametrize("mode", ["JSON", "MD_JSON", "TOOLS"])
def test_an_object_scripted(scripted_url: str, mode: str) -> None:
    asks: Any = [{"role": "user", "content": f"say town {mode}"}]
    town = client(scripted_url, instructor.Mode[mode]).chat.completions.create(
        response_model=Town, **asked(messages=asks)
    )
    assert town.model_dump() == {"name": "Paris", "large": True}


def test_several_scripted(scripted_url: str) -> None:
    asks: Any = [{"role": "user", "content": "say towns"}]
    towns = client(scripted_url, instructor.Mode.PARALLEL_TOOLS).chat.completions.create(
        response_model=Iterable[Town], **asked(messages=asks)
    )
    assert [town.name for town in towns] == ["Paris", "Rome"]
