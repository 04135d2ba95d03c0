"""What `explain` says of an API's requests and tokens, beside what a server of its protocol reports.

Reported usage lies in the stated interval. Where the model's tokenizer is given, what is expected of prompts in
which nothing generated stands is within a tenth of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import sglc as sgl
from sglc.explain.estimate.forecast import Tally
from sglc.explain.estimate.intervals import sure
from sglc.explain.estimate.price import price_of
from sglc.ir.plan.events import Usage
from sglc.ir.target import Tokenizer
from tests.api_programs import PROGRAMS, speaking
from tests.depth import some_of
from tests.openai_server import serving
from tests.serving import Server
from tests.test_fuse_gens import SEVERAL, ideas, in_chat, several

pytestmark = pytest.mark.slow

Answer = Callable[[dict[str, Any]], dict[str, Any]]


def within(forecast: Tally, used: Usage) -> None:
    assert used.calls in forecast.calls, (forecast.calls, used)
    assert used.prompt in forecast.prompt, (forecast.prompt, used)
    assert used.completion in forecast.new, (forecast.new, used)
    spent = Tally(prompt=sure(used.prompt), new=sure(used.completion))
    stated, paid = price_of("openai:gpt-4o", forecast), price_of("openai:gpt-4o", spent)
    assert stated is not None
    assert paid is not None
    assert stated.low <= paid.likely
    assert stated.high is None or paid.likely <= stated.high


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


def counted(tokenizer: Tokenizer) -> Answer:
    """Answers with the usage of OpenAI's rule: 3 tokens and its role for a message, and 3 in the end."""
    speak = speaking()

    def tokens(content: str | list[dict[str, str]]) -> int:
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content)
        return len(tokenizer.encode(content))

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        said = speak(body)
        texts = said if isinstance(said, list) else [said]
        prompt = 3 + sum(3 + tokens(turn["role"]) + tokens(turn["content"]) for turn in body["messages"])
        choices = [
            {"index": at, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            for at, text in enumerate(texts)
        ]
        new = sum(len(tokenizer.encode(text)) for text in texts)
        usage = {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}
        return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": choices,
                "usage": usage}  # fmt: skip

    return answer


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_given_tokenizer_counts_prompts(name: str, default_tokenizer: Tokenizer) -> None:
    program = PROGRAMS[name].program
    quotes = {"fields", "conversation", "nested", "react"}  # what was generated
    with serving(counted(default_tokenizer)) as api:
        backend = sgl.OpenAI("gpt-4o", base_url=api.url, api_key="k", images=True, encoding=default_tokenizer)
        made = program.explain(backend, **defaults(program)).forecast
        used = program.run(backend=backend, seed=1).usage
        backend.close()
    assert (made.exact, made.counted) == (False, True)
    assert used.prompt in made.counts.prompt
    if name not in quotes:
        assert abs(made.counts.prompt.likely - used.prompt) <= 0.1 * used.prompt


@pytest.mark.parametrize("name", ["picture", "fields", "stops"])
def test_requests_are_counted_before_they_are_made(name: str) -> None:
    program = PROGRAMS[name].program
    with serving(speaking()) as api:
        backend = sgl.OpenAI("m", base_url=api.url, api_key="k", images=True)
        forecast = program.explain(backend, **defaults(program)).forecast.counts
        assert program.run(backend=backend).error() is None
        assert (forecast.calls.exact, forecast.calls.low) == (True, len(api.bodies))
        backend.close()


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
