"""Ollama's client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import ollama
import pytest

TURNS = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0, "num_predict": 16}
SCHEMA = {"type": "object", "properties": {"name": {"enum": ["Paris", "Rome"]}}, "required": ["name"]}


@pytest.fixture
def client(url: str) -> ollama.Client:
    return ollama.Client(host=url)


def chat(client: ollama.Client, **options: Any) -> Any:
    return client.chat("smollm2", TURNS, options=GREEDY, **options)


def test_a_chat(client: ollama.Client) -> None:
    answer = chat(client)
    assert "Paris" in answer.message.content
    assert (answer.done, answer.done_reason) == (True, "stop")
    assert answer.eval_count > 0 < answer.prompt_eval_count


def test_a_chat_streamed(client: ollama.Client) -> None:
    texts = [part.message.content for part in chat(client, stream=True)]
    assert "".join(texts) == chat(client).message.content


def test_a_text(client: ollama.Client) -> None:
    whole = client.generate("smollm2", "1, 2, 3,", raw=True, options=GREEDY).response
    parts = client.generate("smollm2", "1, 2, 3,", raw=True, options=GREEDY, stream=True)
    assert whole == "".join(part.response for part in parts)


def test_options(client: ollama.Client) -> None:
    options = {
        "seed": 1, "temperature": 1, "top_k": 10, "top_p": 0.5, "min_p": 0.1, "stop": ["zebra"],
        "num_predict": 4, "num_ctx": 2048, "presence_penalty": 0.5, "frequency_penalty": 0.5,
    }  # fmt: skip
    first, again = (client.generate("smollm2", "Hi", system="Be brief.", options=options) for _ in range(2))
    assert first.response == again.response
    assert first.eval_count <= 4


@pytest.mark.parametrize("form", ["json", SCHEMA])
def test_forms(client: ollama.Client, form: Any) -> None:
    answer = client.chat("smollm2", TURNS, format=form, options={**GREEDY, "num_predict": 200}, keep_alive=60)
    assert answer.message.content.startswith("{")
    if form is SCHEMA:
        assert json.loads(answer.message.content)["name"] in ("Paris", "Rome")


def test_async(url: str, client: ollama.Client) -> None:
    answer = asyncio.run(ollama.AsyncClient(host=url).chat("smollm2", TURNS, options=GREEDY))
    assert answer.message.content == chat(client).message.content


def test_what_there_is(client: ollama.Client) -> None:
    assert [model.model for model in client.list().models] == ["smollm2"]
    assert client.show("smollm2").capabilities == ["completion"]


def test_what_is_refused(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="embed"):
        client.embed("smollm2", "Hi")
    with pytest.raises(ollama.ResponseError, match="no model"):
        client.chat("gpt", TURNS)
    with pytest.raises(ollama.ResponseError, match="tools"):
        chat(client, tools=[{"type": "function", "function": {"name": "now"}}])
