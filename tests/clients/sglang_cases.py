"""SGLang's frontend, on its RuntimeEndpoint.

Its package needs a GPU's libraries to be imported whole, so it lies unpacked on the path, and `sglang` stands
here for the module that would import them: what a program and the endpoint use is SGLang's own.
"""

from __future__ import annotations

import json
import sys
import types
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest


def _package() -> Any:
    (folder,) = {str(Path(path) / "sglang") for path in sys.path if (Path(path) / "sglang" / "lang").is_dir()}
    package = types.ModuleType("sglang")
    package.__path__ = [folder]
    sys.modules["sglang"] = package
    assert find_spec("sglang.lang")
    from sglang.lang import api
    from sglang.lang.backend.runtime_endpoint import RuntimeEndpoint

    return api, RuntimeEndpoint


sgl, RuntimeEndpoint = _package()


@pytest.fixture(scope="module")
def endpoint(url: str) -> Any:
    return RuntimeEndpoint(url, chat_template_name="chatml")


def test_what_is_served(endpoint: Any) -> None:
    assert endpoint.get_model_name() == "smollm2"
    assert endpoint.get_server_info()["max_len"] > 1000
    endpoint.flush_cache()


@sgl.function
def capital(s: Any, of: str) -> Any:
    s += sgl.user(f"What is the capital of {of}?")
    s += sgl.assistant(sgl.gen("answer", max_tokens=16, temperature=0))


def test_a_chat(endpoint: Any) -> None:
    assert "Paris" in capital.run(of="France", backend=endpoint)["answer"]


def test_a_batch(endpoint: Any) -> None:
    rows = [{"of": of} for of in ("France", "Italy", "Spain")]
    states = capital.run_batch(rows, backend=endpoint, num_threads=3)
    assert "Paris" in states[0]["answer"]
    assert len(states) == 3


def test_a_stream(endpoint: Any) -> None:
    state = capital.run(of="France", backend=endpoint, stream=True)
    parts = list(state.text_iter("answer"))
    assert len(parts) > 2
    assert "".join(parts) == state["answer"]


def test_a_choice(endpoint: Any) -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += "The capital of France is" + sgl.select("x", choices=[" Paris", " Rome", " Berlin"])

    assert program.run(backend=endpoint)["x"] == " Paris"


METHODS = ("token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized")


@pytest.mark.parametrize("method", METHODS)
def test_every_way_to_choose(endpoint: Any, method: str) -> None:
    from sglang.lang import choices

    @sgl.function
    def program(s: Any) -> Any:
        how = getattr(choices, method)
        s += "1, 2, 3, 4," + sgl.select("x", choices=[" 5", " apple"], choices_method=how)

    assert program.run(backend=endpoint)["x"] == " 5"


def test_forms(endpoint: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}

    @sgl.function
    def program(s: Any) -> Any:
        s += "One: " + sgl.gen("regex", regex="yes|no", max_tokens=8)
        s += "\nTwo: " + sgl.gen("json", json_schema=json.dumps(schema), max_tokens=32)
        s += "\nThree: " + sgl.gen("number", dtype=int, max_tokens=8)

    state = program.run(backend=endpoint)
    assert state["regex"] in ("yes", "no")
    assert json.loads(state["json"])["a"] in (1, 2)
    assert int(state["number"]) is not None


def test_forks(endpoint: Any) -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += "Count: 1, 2,"
        forks = s.fork(2)
        for fork in forks:
            fork += sgl.gen("next", max_tokens=4, temperature=0)
        forks.join()
        s += forks[0]["next"]

    assert "3" in program.run(backend=endpoint).text()


def test_options_and_log_probabilities(endpoint: Any) -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += "1, 2, 3," + sgl.gen(
            "x", max_tokens=8, temperature=0.5, top_p=0.9, top_k=20, min_p=0.1, frequency_penalty=0.5,
            presence_penalty=0.5, ignore_eos=True, stop=["zebra"], stop_regex="ze+bra", n=1,
            return_logprob=True, top_logprobs_num=2, return_text_in_logprobs=True, logprob_start_len=0,
        )  # fmt: skip

    meta = program.run(backend=endpoint).get_meta_info("x")
    assert meta["completion_tokens"] == 8 == len(meta["output_token_logprobs"])
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"]
