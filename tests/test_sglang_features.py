"""Every cell of the table of SGLang's features in docs/backends.md, run: what it says is what happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.local import LocalBackend
from sglc.errors import LegalizeError
from tests.api_programs import speaking
from tests.api_targets import HERE, at
from tests.openai_server import Fault, serving
from tests.serving import Server
from tests.sglang_features import API, FEATURES, Feature, said_of

pytestmark = pytest.mark.slow


def run(feature: Feature, backend: Any) -> Any:
    program = feature.program
    made = program if isinstance(program, sgl.Function) else sgl.function(program)
    return made.run(backend=backend, stream=feature.streams)


def check(feature: Feature, column: str, backend: Any, asked: Callable[[], int]) -> None:
    """Run a cell: it does what the table says, and what is refused asks for nothing."""
    before = asked()
    result = run(feature, backend)
    error = result.error()
    if said_of(feature, column).startswith("no ("):
        assert isinstance(error, LegalizeError)
        assert said_of(feature, column) == f"no ({error.code})"
        assert asked() == before
        return
    assert error is None
    assert feature.holds(result)
    assert asked() > before


def answers(feature: Feature) -> Callable[[dict[str, Any]], Any]:
    """What a model would say to it; for retries, behind a fault."""
    if feature.name == "speculative execution":
        return speaking("A: a\nB: b")
    if feature.name == "log-probabilities":
        return told
    faults = [Fault(503)] * (feature.name == "retries")
    speak = speaking('a "word"')
    return lambda body: faults.pop() if faults else speak(body)


def told(body: dict[str, Any]) -> dict[str, Any]:
    assert body["logprobs"] is True
    logprobs = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]}
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}}
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    return {
        "id": "x", "object": "chat.completion", "created": 0, "model": "m", "usage": usage,
        "choices": [{**choice, "logprobs": logprobs}],
    }  # fmt: skip


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
@pytest.mark.parametrize("column", [name for name in API if name.partition(":")[0] in HERE])
def test_a_cell_of_an_api(feature: Feature, column: str) -> None:
    with serving(answers(feature)) as api, at(api, column) as backend:
        check(feature, column, backend, lambda: len(api.bodies))
        if feature.name == "retries":
            assert len(api.bodies) == 2


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_a_cell_of_the_local_back_end(feature: Feature, local: LocalBackend) -> None:
    check(feature, "local", local, lambda: int(local.server_info()["submits"]))


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_a_cell_of_a_server(feature: Feature, server: Server) -> None:
    backend = sgl.RuntimeEndpoint(server.url)
    try:
        check(feature, "http", backend, lambda: int(server.info()["submits"]))
    finally:
        backend.close()
