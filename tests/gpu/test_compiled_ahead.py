"""Kernels are there before somebody needs them: to compile one takes seconds, in which no row gets a token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import triton

from sglc.ir.sampling import Sampling
from sglc.runtime.constraints.constraint import Constraints
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.executor.cuda_executor import CudaExecutor
from sglc.runtime.kernels import automata, likeliest
from tests.runtime.reference_models import tiny_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ROWS = 8
SPELLED = [bytes([i]) if i < 256 else b"" for i in range(320)]
PROMPTS = [tuple((7 * i + 3 * j) % 300 + 5 for j in range(3 + 9 * i)) for i in range(4)]


def finish(engine: Engine) -> None:
    while not engine.idle:
        engine.step()


def compiled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that a warm executor compiles for what few samples need, behind plain ones."""
    model, config = tiny_model(folder, "qwen3")
    held = {name: weight.detach().cuda() for name, weight in model.state_dict().items()}
    executor = CudaExecutor(
        config, held, page_size=4, pages=2000, max_rows=ROWS, max_tokens=256, max_len=512, eos_ids=(2,),
        token_bytes=SPELLED,
    )  # fmt: skip
    executor.warm_up(ROWS)
    engine = Engine(executor, EngineConfig(token_budget=256, max_rows=ROWS, max_len=512))
    for number, prompt in enumerate(PROMPTS):
        engine.gen(engine.extend(None, prompt), Sampling(max_tokens=9, ignore_eos=True), [number], eos_ids=())
    finish(engine)
    names: list[str] = []
    monkeypatch.setattr(
        triton.knobs.runtime, "jit_post_compile_hook", lambda *_, fn, **__: names.append(fn.name)
    )
    forms = Constraints(SPELLED, 320)
    for number, pattern in enumerate(("[a-f]{1,9}", "yes|no", "[0-9]*", "(ab|[x-z]+){2,5}")):
        form: Any = forms.regex(pattern)
        sampling = Sampling(max_tokens=6, temperature=0.7, top_logprobs=(0, 1, 3, 20)[number])
        engine.gen(engine.extend(None, PROMPTS[number]), sampling, [1], eos_ids=(2,), constraint=form)
    biased = Sampling(max_tokens=4, presence_penalty=0.5, logit_bias=((9, 2.0),), top_p=0.9)
    engine.gen(engine.extend(None, PROMPTS[1]), biased, [1, 2][: biased.n], eos_ids=(2,))
    engine.score(engine.extend(None, PROMPTS[2]), [(5, 6), (5, 7, 8), (9,)])
    engine.gen(engine.extend(None, PROMPTS[3]), Sampling(max_tokens=4, n=3), [1, 2, 3], eos_ids=(2,))
    finish(engine)
    return names


def test_nothing_is_compiled_behind_a_plain_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled(tmp_path, monkeypatch) == []


def test_what_is_compiled_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: nothing rare is compiled ahead."""
    for kernel in (automata._make_masks, likeliest._best_of_row):  # of an earlier test
        kernel.device_caches.clear()
    monkeypatch.setattr(CudaExecutor, "_compile_rare", lambda self, rows: None)
    assert {"_make_masks", "_best_of_row"} <= set(compiled(tmp_path, monkeypatch))
