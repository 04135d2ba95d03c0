"""Other engines as back ends: programs give on their servers what they give on `local`, for the same weights.

`make peers` makes what is named by `VLLM` (the Python that has it), and by `LLAMA_SERVER` and `LLAMA_MODEL` (a
llama-server, and the default model in float32 as GGUF); what is not named does not run. Greedy, in float32,
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
from sglc.backends.local import LocalBackend, LocalOptions
from sglc.errors import BackendError, LegalizeError
from sglc.serve.server import bound_socket
from tests import api_programs

VLLM, LLAMA, GGUF = (os.environ.get(name, "") for name in ("VLLM", "LLAMA_SERVER", "LLAMA_MODEL"))
ENGINES = [name for name, given in (("vllm", VLLM), ("llama.cpp", LLAMA)) if given]
START_S = 600
_COMPACT = {"backend": "xgrammar", "disable_any_whitespace": True}  # a request cannot say it
pytestmark = pytest.mark.skipif(not ENGINES, reason="`make peers` runs these")


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


def vllm_command(smollm2: Path, folder: Path) -> list[str]:
    """A vLLM server with the default model's own weights, in float32."""
    for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).symlink_to(smollm2 / name)
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return [
        *(VLLM, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--dtype", "float32"),
        *("--served-model-name", "smollm2", "--enforce-eager", "--max-model-len", "2048"),
        *("--max-num-seqs", "8", "--scheduling-policy", "priority"),
        *("--structured-outputs-config", json.dumps(_COMPACT)),
    ]


LLAMA_COMMAND = [
    *(LLAMA, "--model", GGUF, "--alias", "smollm2", "--parallel", "4", "--ctx-size", "4096", "--no-webui"),
    *("--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off", "--threads", "1"),
]


@pytest.fixture(scope="module", params=ENGINES)
def peer(
    request: pytest.FixtureRequest, smollm2: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerBackend]:
    """A server of another engine, on a port of its own."""
    folder = tmp_path_factory.mktemp("peer")
    command, ready = LLAMA_COMMAND, "listening on http"
    if request.param == "vllm":
        command, ready = vllm_command(smollm2, folder), "Application startup complete"
    with bound_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    log = folder / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | settings,
        )
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


@pytest.fixture(scope="module")
def local(smollm2: Path) -> Iterator[LocalBackend]:
    """The default model here: with inputs of products as 16 bits it would be told apart."""
    with closing(LocalBackend(LocalOptions(str(smollm2), dtype="float32"))) as backend:
        yield backend


@pytest.fixture
def llama(peer: ServerBackend) -> ServerBackend:
    """The llama.cpp server."""
    if peer.model.engine != "llama.cpp":
        pytest.skip("of llama.cpp alone")
    return peer


def values(program: Any, backend: Any) -> tuple[str, dict[str, Any]]:
    result = program.run(backend=backend, temperature=0.0, seed=1, max_new_tokens=24)
    result.sync()
    assert result.error() is None, result.error()
    return result.text(), dict(result.as_json()["vars"])


@pytest.mark.parametrize("name", PROGRAMS)
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


@sgl.function
def repeated(s: Any) -> None:
    s += "a b a b" + sgl.gen("more", max_tokens=24, repetition_penalty=1.3)
    s += sgl.gen(
        "odd", regex=r"(?i)(x{2,3}|é[^a-z\n]|\d*|[\u3041-\u3096]+){1,4}\.", max_tokens=8, canonical=False
    )


@sgl.function
def chosen_otherwise(s: Any) -> None:
    s += "The capital of France is"
    s += sgl.select("city", [" Rome", " Paris"], choices_method=sgl.unconditional_likelihood_normalized)


@pytest.mark.parametrize("program", [repeated, chosen_otherwise])
def test_llama_is_asked_for_what_means_the_same(program: Any, llama: ServerBackend, local: Any) -> None:
    assert values(program, llama) == values(program, local)


def test_llama_gives_more_samples_than_it_has_slots(llama: ServerBackend) -> None:
    @sgl.function
    def several(s: Any) -> None:
        s += "A word:" + sgl.gen("word", n=6, max_tokens=4)

    words = [several.run(backend=llama, seed=3)["word"] for _ in range(2)]
    assert (llama.model.concurrency, len(words[0])) == (4, 6)
    assert len(set(words[0])) > 1
    assert words[0] == words[1]


@pytest.mark.parametrize(
    "asked",
    [{"frequency_penalty": 0.5}, {"min_tokens": 2}, {"stop_token_ids": [5]}, {"return_logprob": True}],
    ids=lambda asked: next(iter(asked)),
)
def test_what_llama_cannot_do_is_refused_before_a_request(asked: dict[str, Any], llama: ServerBackend) -> None:
    @sgl.function
    def asks(s: Any) -> None:
        s += "One" + sgl.gen("more", max_tokens=4, **asked)

    with pytest.raises(LegalizeError, match="SGLC311"):
        asks.compile(backend=llama)


def test_llama_is_not_held_to_a_part_of_a_schema(llama: ServerBackend) -> None:
    @sgl.function
    def nested(s: Any) -> None:
        tree = {"type": "object", "properties": {"in": {"$ref": "#"}}, "additionalProperties": False}
        s += "A tree:" + sgl.gen("tree", json_schema=json.dumps(tree))

    with pytest.raises(BackendError, match="all that this `json_schema` says"):
        _ = nested.run(backend=llama)["tree"]


def test_llama_says_where_its_context_ends(llama: ServerBackend) -> None:
    @sgl.function
    def long(s: Any) -> None:
        s += " one" * 1000 + sgl.gen("more", max_tokens=64, temperature=0)

    with pytest.raises(BackendError, match="was full before the text ended"):
        _ = long.run(backend=llama)["more"]
