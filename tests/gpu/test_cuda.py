"""The torch executor on a CUDA device: the same results as on the CPU and as transformers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from sglc.ir.sampling import Sampling
from sglc.runtime.constraints.constraint import Constraints
from sglc.runtime.constraints.protocol import Constraint
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.executor.torch_executor import TorchExecutor
from sglc.runtime.scheduler.requests import PromptScored, RequestDone, SampleDone, ScoreDone
from sglc.runtime.scheduler.samples import listed
from tests.runtime.reference_models import KINDS, tiny_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

PROMPTS = [tuple((7 * i + 3 * j) % 300 + 5 for j in range(5 + 11 * i)) for i in range(7)]


def engine(weights: dict, config, device: str, dtype: torch.dtype, depth: int) -> Engine:  # type: ignore[type-arg, no-untyped-def]
    held = {name: weight.to(device, dtype) for name, weight in weights.items()}
    executor = TorchExecutor(config, held, device=device, dtype=dtype, page_size=16, pages=256, depth=depth)
    return Engine(executor, EngineConfig(token_budget=64, max_rows=8, max_len=512))


def generate(target: Engine, sampling: Sampling, constraint: Constraint | None = None) -> list[tuple[int, ...]]:
    requests = [
        target.gen(target.extend(None, prompt), sampling, [index], eos_ids=(2,), constraint=constraint)
        for index, prompt in enumerate(PROMPTS)
    ]
    made: dict[int, tuple[int, ...]] = {}
    while not target.idle:
        for event in target.step():
            if isinstance(event, SampleDone):
                made[event.request] = event.ids
            assert isinstance(event, SampleDone | RequestDone) or hasattr(event, "logprob")
    return [made[request] for request in requests]


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("depth", [1, 2])
def test_greedy_equals_transformers(kind: str, depth: int, tmp_path: Path) -> None:
    model, config = tiny_model(tmp_path, kind)
    model.requires_grad_(False)
    target = engine(model.state_dict(), config, "cuda", torch.float32, depth)
    made = generate(target, Sampling(max_tokens=24, temperature=0.0, ignore_eos=True))
    for prompt, ids in zip(PROMPTS, made, strict=True):
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        best = logits.topk(2).values
        for position, token in enumerate(ids):
            if best[position, 0] - best[position, 1] < 1e-3:
                break
            assert token == int(logits[position].argmax())


def test_steered_samples_and_likeliest_ids_equal_those_of_the_cpu(tmp_path: Path) -> None:
    model, config = tiny_model(tmp_path)
    sampling = Sampling(
        max_tokens=24, temperature=0.8, frequency_penalty=0.6, presence_penalty=0.3, repetition_penalty=1.2,
        logit_bias=((9, 2.0),), ignore_eos=True, logprobs_from=0, top_logprobs=3,
    )  # fmt: skip
    seen = []
    for device, depth in (("cpu", 1), ("cuda", 2)):
        target = engine(model.state_dict(), config, device, torch.float32, depth)
        for index, prompt in enumerate(PROMPTS):
            target.gen(target.extend(None, prompt), sampling, [index], eos_ids=(2,))
        made: dict[tuple[int, str], SampleDone | PromptScored] = {}
        while not target.idle:
            for event in target.step():
                if isinstance(event, SampleDone | PromptScored):
                    made[event.request, type(event).__name__] = event
        seen.append(made)
    here, there = seen
    assert here.keys() == there.keys()
    assert len(here) == 2 * len(PROMPTS)
    for key, event in here.items():
        other = there[key]
        if isinstance(event, SampleDone) and isinstance(other, SampleDone):
            assert event.ids == other.ids
        torch.testing.assert_close(
            torch.tensor(event.logprobs), torch.tensor(other.logprobs), atol=1e-4, rtol=0
        )
        for one, two in zip(event.likeliest, other.likeliest, strict=True):
            ids, logprobs = zip(*listed(one), strict=True)
            assert ids == tuple(id_ for id_, _ in listed(two))
            assert logprobs == pytest.approx([p for _, p in listed(two)], abs=1e-4)


def test_samples_equal_those_of_the_cpu(tmp_path: Path) -> None:
    model, config = tiny_model(tmp_path)
    model.requires_grad_(False)
    sampling = Sampling(max_tokens=24, temperature=1.0, top_p=0.95, ignore_eos=True)
    on_cpu = generate(engine(model.state_dict(), config, "cpu", torch.float32, 1), sampling)
    on_cuda = generate(engine(model.state_dict(), config, "cuda", torch.float32, 2), sampling)
    assert on_cpu == on_cuda


def test_constrained_samples_match_and_equal_those_of_the_cpu(tmp_path: Path) -> None:
    model, config = tiny_model(tmp_path)
    model.requires_grad_(False)
    spelled = [bytes([i]) if i < 256 else b"" for i in range(320)]
    constraint = Constraints(spelled, 320).regex("[a-f]{3}(--:[0-9]+)?")
    sampling = Sampling(max_tokens=12, temperature=1.0)
    made = [
        generate(engine(model.state_dict(), config, device, torch.float32, depth), sampling, constraint)
        for device, depth in (("cpu", 1), ("cuda", 1), ("cuda", 2))
    ]
    assert made[0] == made[1] == made[2]
    for ids in made[0]:
        text = b"".join(spelled[i] for i in ids).decode()
        assert re.fullmatch("[a-f]{3}(--:[0-9]*)?", text)  # `max_tokens` may end it inside the digits


def test_scores_equal_transformers(tmp_path: Path) -> None:
    model, config = tiny_model(tmp_path)
    model.requires_grad_(False)
    target = engine(model.state_dict(), config, "cuda", torch.float32, 2)
    choices = [(9, 10, 11), (9, 12), (30,)]
    target.score(target.extend(None, PROMPTS[2]), choices)
    scored = None
    while not target.idle:
        for event in target.step():
            scored = event if isinstance(event, ScoreDone) else scored
    assert scored is not None
    for choice, logprobs in zip(choices, scored.logprobs, strict=True):
        table = model(torch.tensor([[*PROMPTS[2], *choice]])).logits[0].log_softmax(-1)
        expected = [float(table[len(PROMPTS[2]) - 1 + i, token]) for i, token in enumerate(choice)]
        assert list(logprobs) == pytest.approx(expected, abs=1e-4)


def test_bfloat16_stays_close_to_float32(tmp_path: Path) -> None:
    model, config = tiny_model(tmp_path)
    model.requires_grad_(False)
    exact = engine(model.state_dict(), config, "cuda", torch.float32, 1)
    rough = engine(model.state_dict(), config, "cuda", torch.bfloat16, 1)
    choices = [(token,) for token in range(40)]
    tables = []
    for target in (exact, rough):
        target.score(target.extend(None, PROMPTS[6]), choices)
        while not target.idle:
            tables += [event.logprobs for event in target.step() if isinstance(event, ScoreDone)]
    gap = torch.tensor(tables[0])[:, 0] - torch.tensor(tables[1])[:, 0]
    assert float(gap.norm() / torch.tensor(tables[0])[:, 0].norm()) < 0.05
