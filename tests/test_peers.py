"""Another engine as a back end: programs give on a vLLM server what they give on `local`, for the same weights.

`make peers` makes the environment whose Python `VLLM` names; without it nothing here runs. Greedy, in float32,
with forms whose tokens are free (`canonical=False`).
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.http import ServerBackend, ServerOptions
from sglc.errors import BackendError
from sglc.serve.server import bound_socket
from tests import api_programs

VLLM = os.environ.get("VLLM", "")
START_S = 600
_COMPACT = {"backend": "xgrammar", "disable_any_whitespace": True}  # a request cannot say it
pytestmark = pytest.mark.skipif(not VLLM, reason="`make peers` runs these")


@sgl.function
def forms(s: Any) -> None:
    s += "Rome has " + sgl.gen("people", regex="[1-9][0-9]{0,5}", max_tokens=8, canonical=False)
    s += " people. Is it old? " + sgl.gen("old", regex="yes|no", canonical=False)
    s += " Its name has " + sgl.gen("size", dtype=int, max_tokens=4, canonical=False) + " letters."


@sgl.function
def schema(s: Any) -> None:
    held = {
        "type": "object", "required": ["city", "large"], "additionalProperties": False,
        "properties": {"city": {"enum": ["Rome", "Paris"]}, "large": {"type": "boolean"}},
    }  # fmt: skip
    s += sgl.user("Is Rome large?")
    s += sgl.assistant(sgl.gen("answer", json_schema=json.dumps(held), max_tokens=48, canonical=False))


@sgl.function
def chosen(s: Any) -> None:
    s += "The capital of France is" + sgl.select("city", choices=[" Rome", " Paris", " the city of London"])
    s += ", where people are" + sgl.select("mood", choices=[" happy", " sad", " hungry"])


@sgl.function
def going_on(s: Any) -> None:
    s += "One, two, three," + sgl.gen("more", stop=[" six"], max_tokens=16)
    branches = s.fork(2)
    for word, branch in zip((" and", " but"), branches, strict=True):
        branch += word + sgl.gen("end", max_tokens=8)
    s += " or".join(s.join(branches)["end"])


PROGRAMS = {
    **{name: api_programs.PROGRAMS[name].program
       for name in ("question", "judge", "conversation", "nested", "few_shot", "react")},
    "forms": forms, "schema": schema, "chosen": chosen, "going_on": going_on,
}  # fmt: skip


@pytest.fixture(scope="module")
def peer(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerBackend]:
    """A vLLM server with the default model's own weights, in float32."""
    folder = tmp_path_factory.mktemp("vllm")
    for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).symlink_to(smollm2 / name)
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    with bound_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    log = folder / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [
                *(
                    VLLM,
                    "-m",
                    "vllm.entrypoints.openai.api_server",
                    "--model",
                    str(folder),
                    "--dtype",
                    "float32",
                ),
                *("--served-model-name", "smollm2", "--enforce-eager", "--max-model-len", "2048"),
                *("--max-num-seqs", "8", "--scheduling-policy", "priority", "--host", "127.0.0.1"),
                *("--port", str(port), "--structured-outputs-config", json.dumps(_COMPACT)),
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | settings,
        )
    ready = "Application startup complete"
    try:
        ends_s = time.monotonic() + START_S
        while ready not in log.read_text():
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < ends_s, log.read_text()
            time.sleep(0.5)
        with closing(ServerBackend(ServerOptions(url=f"http://127.0.0.1:{port}"))) as backend:
            yield backend
    finally:
        server.terminate()
        server.wait(60)


def values(program: Any, backend: Any) -> tuple[str, dict[str, Any]]:
    result = program.run(backend=backend, temperature=0.0, seed=1, max_new_tokens=24)
    result.sync()
    assert result.error() is None, result.error()
    return result.text(), dict(result.as_json()["vars"])


_SPELLED = pytest.mark.xfail(reason="an engine's own grammar spells objects, with other white space than ours")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=_SPELLED if name == "schema" else ()) for name in PROGRAMS]
)
def test_ten_programs_give_what_they_give_here(name: str, peer: ServerBackend, local: Any) -> None:
    assert values(PROGRAMS[name], peer) == values(PROGRAMS[name], local)


def test_choices_have_the_scores_that_they_have_here(peer: ServerBackend, local: Any) -> None:
    there, here = (chosen.run(backend=backend) for backend in (peer, local))
    for name in ("city", "mood"):
        scores = [result.get_meta_info(name)["normalized_prompt_logprobs"] for result in (there, here)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-3)


def test_it_is_told_what_comes_next_and_answers_the_same(peer: ServerBackend) -> None:
    program = api_programs.PROGRAMS["nested"].program
    with closing(ServerBackend(ServerOptions(url=peer.options.url, hints="vllm"))) as told:
        assert values(program, told) == values(program, peer)


def test_what_it_has_no_field_for_is_refused_by_name(peer: ServerBackend) -> None:
    @sgl.function
    def stops(s: Any) -> None:
        s += "One" + sgl.gen("more", stop_regex="[0-9]")

    with pytest.raises(BackendError, match="no field for `stop_regex`"):
        _ = stops.run(backend=peer)["more"]
