"""What `explain` says of an API's requests and tokens, beside what a server of its protocol reports.

No vendor's tokenizer is at hand here, so what is stated is an interval; reported usage lies in it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import sglc as sgl
from sglc.explain.estimate.forecast import Tally
from sglc.explain.estimate.intervals import sure
from sglc.explain.estimate.price import price_of
from sglc.ir.plan.events import Usage
from tests.api_programs import PROGRAMS, speaking
from tests.depth import few
from tests.openai_server import serving
from tests.serving import Server
from tests.test_fuse_gens import SEVERAL, ideas, in_chat, several


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
@pytest.mark.parametrize("name", few([name for name in PROGRAMS if name not in ("picture", "fields")], 2))
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
