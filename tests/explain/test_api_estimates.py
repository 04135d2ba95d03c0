"""What `explain` says of an API's requests and tokens, beside what a server of its protocol reports.

Reported usage lies in the stated interval. Where the model's tokenizer is given, what is expected of prompts in
which nothing generated stands is within a tenth of it.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import sglc as sgl
from sglc.explain.estimate.forecast import Tally
from sglc.explain.estimate.intervals import sure
from sglc.explain.estimate.price import Price, price_of
from sglc.ir.plan.events import Usage
from sglc.ir.target import Tokenizer
from tests.api_programs import PROGRAMS, brief, schema_of, search, speaking
from tests.api_targets import MAKE
from tests.depth import some_of
from tests.openai_server import serving
from tests.serving import Server
from tests.test_fuse_gens import SEVERAL, ideas, in_chat, several

pytestmark = pytest.mark.slow

Answer = Callable[[dict[str, Any]], dict[str, Any]]


def within(forecast: Tally, used: Usage) -> tuple[Price, Price]:
    """The price that was stated, and the one of what was used, which lies in it, as do its counts."""
    assert used.calls in forecast.calls, (forecast.calls, used)
    assert used.prompt in forecast.prompt, (forecast.prompt, used)
    assert used.completion in forecast.new, (forecast.new, used)
    spent = Tally(prompt=sure(used.prompt), new=sure(used.completion))
    stated, paid = price_of("openai:gpt-4o", forecast), price_of("openai:gpt-4o", spent)
    assert stated is not None
    assert paid is not None
    assert stated.low <= paid.likely
    assert stated.high is None or paid.likely <= stated.high
    return stated, paid


def defaults(program: Any) -> dict[str, Any]:
    return {parameter.name: parameter.default for parameter in program.definition.parameters}


@pytest.mark.model
@pytest.mark.parametrize(
    "name", some_of([name for name in PROGRAMS if name not in ("picture", "fields")], 2, 4)
)
def test_reported_usage_lies_in_the_stated_interval(name: str, server: Server) -> None:
    """Of the ten programs; the server's model sees no pictures, and `fields` is longer than it can write."""
    program = PROGRAMS[name].program
    backend = sgl.OpenAI(server.model, base_url=f"{server.url}/v1", api_key="k")
    try:
        forecast = program.explain(backend, **defaults(program), max_new_tokens=16).forecast.counts
        result = program.run(backend=backend, seed=2, max_new_tokens=16)
        assert result.error() is None
        within(forecast, result.usage)
    finally:
        backend.close()


Speak = Callable[[dict[str, Any]], Any]


def counted(tokenizer: Tokenizer, speak: Speak) -> Answer:
    """Answers with usage by OpenAI's rules: 3 and its role for a message, 3 in the end, a picture's squares.

    How a schema counts is not published: here as its JSON.
    """

    def tokens(*texts: str) -> int:
        return sum(len(tokenizer.encode(text)) for text in texts)

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        said = speak(body)
        texts = said if isinstance(said, list) else [said]
        prompt = 3 if schema_of(body) is None else 3 + tokens(json.dumps(schema_of(body)))
        for turn in body["messages"]:
            pictures = [part for part in turn["content"] if isinstance(part, dict) and "image_url" in part]
            prompt += 3 + tokens(turn["role"], text_of(turn["content"])) + PICTURE_TOKENS * len(pictures)
        choices = [
            {"index": at, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            for at, text in enumerate(texts)
        ]
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens(*texts), "total_tokens": 0}
        return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": choices,
                "usage": usage}  # fmt: skip

    return answer


def text_of(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


PICTURE_TOKENS = 85 + 6 * 170  # of 1024 x 1536 pixels: 768 x 1152, which are 2 x 3 squares


def by_the_model(server: Server) -> Speak:
    """What the real model says; it sees no pictures."""

    def speak(body: dict[str, Any]) -> list[str]:
        told = {key: value for key, value in body.items() if key != "prompt_cache_key"}
        told["messages"] = [{**turn, "content": text_of(turn["content"])} for turn in body["messages"]]
        asked = urllib.request.Request(
            f"{server.url}/v1/chat/completions", json.dumps({**told, "model": server.model}).encode(),
            {"content-type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(asked) as response:
            return [choice["message"]["content"] for choice in json.load(response)["choices"]]

    return speak


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_given_tokenizer_counts_prompts(name: str, default_tokenizer: Tokenizer) -> None:
    program = PROGRAMS[name].program
    quotes = {"fields", "conversation", "nested", "react"}  # what was generated
    with serving(counted(default_tokenizer, speaking())) as api:
        backend = sgl.OpenAI("gpt-4o", base_url=api.url, api_key="k", images=True, encoding=default_tokenizer)
        made = program.explain(backend, **defaults(program)).forecast
        used = program.run(backend=backend, seed=1).usage
        backend.close()
    assert (made.exact, made.counted) == (False, True)
    assert used.prompt in made.counts.prompt
    if name not in quotes:
        assert abs(made.counts.prompt.likely - used.prompt) <= 0.1 * used.prompt


@pytest.mark.model
@pytest.mark.parametrize("name", some_of(list(PROGRAMS), 2, 10))
def test_what_is_expected_is_within_a_tenth_of_what_is_reported(
    name: str, server: Server, default_tokenizer: Tokenizer
) -> None:
    """Of prompts and prices, where the run does not decide how much is said.

    How often `react` searches, and how long answers with stop strings are, lies in the interval alone.
    """
    program, options = PROGRAMS[name].program, brief(name)
    speak = speaking() if name == "fields" else by_the_model(server)  # whose integers do not end
    with serving(counted(default_tokenizer, speak)) as api:
        backend = MAKE["openai"](api, "gpt-4o", encoding=default_tokenizer)
        forecast = program.explain(backend, **defaults(program), **options).forecast.counts
        result = program.run(backend=backend, seed=2, **options)
        assert result.error() is None
        backend.close()
    stated, paid = within(forecast, result.usage)
    if name not in ("react", "conversation"):
        assert forecast.prompt.likely == pytest.approx(result.usage.prompt, rel=0.1)
    if name not in ("react", "conversation", "stops"):
        assert stated.likely == pytest.approx(paid.likely, rel=0.1)


@pytest.mark.parametrize("name", ["picture", "fields", "stops"])
def test_requests_are_counted_before_they_are_made(name: str) -> None:
    program = PROGRAMS[name].program
    with serving(speaking()) as api:
        backend = sgl.OpenAI("m", base_url=api.url, api_key="k", images=True)
        forecast = program.explain(backend, **defaults(program)).forecast.counts
        assert program.run(backend=backend).error() is None
        assert (forecast.calls.exact, forecast.calls.low) == (True, len(api.bodies))
        backend.close()


@sgl.function
def searching(s: Any, tools: bool) -> None:
    s += sgl.user("Who made Linux?")
    s += sgl.assistant(sgl.gen("answer", tools=[search]) if tools else sgl.gen("answer"))


def test_a_vendor_s_model_is_told_of_tools(default_tokenizer: Tokenizer) -> None:
    backend = sgl.OpenAI("gpt-4o", api_key="k", encoding=default_tokenizer)
    told, plain = (searching.explain(backend, tools=tools).forecast.counts.prompt for tools in (True, False))
    least = len(default_tokenizer.encode('{"name": "search", "parameters": {"type": "object"}}'))
    assert (told.low, told.likely > plain.likely + least) == (plain.low, True)
    assert told.high is not None


def test_fused_fields_and_equal_branches_are_likely_one_request() -> None:
    with serving(several) as api:
        backend = sgl.OpenAI("m", base_url=api.url, api_key="k", takes=SEVERAL)
        for program, calls in ((in_chat, 3), (ideas, 8)):
            forecast = program.explain(backend, **defaults(program)).forecast.counts
            assert forecast.calls.likely == 1
            assert forecast.calls.high is not None
            assert forecast.calls.high >= calls
        one = ideas.explain(backend, size=1).forecast.counts.prompt.likely
        assert ideas.explain(backend, size=8).forecast.counts.prompt.likely == one
        seeded = replace(SEVERAL, samples=1)
        alone = sgl.OpenAI("m", base_url=api.url, api_key="k", takes=seeded)
        assert ideas.explain(alone, size=8).forecast.counts.calls == sure(8)
        for made in (backend, alone):
            made.close()
