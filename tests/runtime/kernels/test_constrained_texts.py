"""Random forms and options in one batch: what the CUDA executor makes is what the CPU makes, in float32."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from sglc.bench.constrained import FORMS
from sglc.ir.sampling import Sampling
from sglc.runtime.constraints.constraint import Constraints
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.executor.cuda_executor import CudaExecutor
from sglc.runtime.executor.torch_executor import TorchExecutor
from sglc.runtime.scheduler.requests import PromptScored, RequestFailed, SampleDone, ScoreDone
from sglc.runtime.scheduler.samples import listed
from sglc.runtime.step import Executor
from sglc.runtime.tokenizer.tokenizer import LocalTokenizer
from tests.constraints.random_patterns import random_pattern
from tests.depth import at_depth
from tests.reference.longest_match import longest_match
from tests.runtime.reference_models import tiny_model

pytestmark = [
    pytest.mark.kernel, pytest.mark.model,
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]  # fmt: skip

CUDA = torch.cuda.is_available()
if not CUDA:  # minutes in Triton's interpreter
    pytestmark.append(pytest.mark.nightly)
DEVICE = "cuda" if CUDA else "cpu"
BATCHES = at_depth(1, 2, 3) if CUDA else at_depth(1, 1, 3)
REQUESTS = 24 if CUDA else 12
LONGEST = 40 if CUDA else 14
EOS = (2,)
RUNS = Sampling(regex="(<<[a-z]{2}-----[a-z]{2}==>[0-9])*--")
PIECES = [
    '{"',
    '": ',
    '", "',
    '": "',
    "], ",
    "ing",
    "the ",
    "yes",
    "no",
    "12",
    "en",
    "er",
    " a",
    "name",
    "[]",
    '"}',
]
Made = dict[tuple[int, str, int], SampleDone | ScoreDone | PromptScored]


def small_vocabulary() -> list[bytes]:
    """Every byte, and pieces that forms are made of."""
    return [b"<0>", b"<1>", b"", *(bytes([byte]) for byte in range(256)), *(piece.encode() for piece in PIECES)]


def random_sampling(rng: Random) -> Sampling:
    """A form, or none, and options that go with it."""
    forms = [
        *FORMS.values(),
        Sampling(),
        RUNS,
        RUNS,
        *(Sampling(regex=f"x{random_pattern(rng)}") for _ in range(8)),
    ]
    steered = rng.random() < 0.4  # of others the executor follows the form
    fields: dict[str, object] = {
        "max_tokens": rng.randint(1, LONGEST), "temperature": rng.choice((0.0, 0.7, 1.0)),
        "top_p": rng.choice((1.0, 1.0, 0.7)), "top_k": rng.choice((-1, -1, 3, 40)),
        "min_p": rng.choice((0.0, 0.0, 0.1)), "min_tokens": rng.choice((0, 0, 1)),
        "frequency_penalty": steered * rng.choice((0.0, 0.6)),
        "presence_penalty": steered * rng.choice((0.0, -0.8)),
        "repetition_penalty": rng.choice((1.0, 1.3)) if steered else 1.0, "n": rng.choice((1, 1, 2)),
        "logit_bias": rng.choice(((), ((9, 2.0),), ((99, -100.0), (100, 4.0)))),
        "top_logprobs": rng.choice((0, 0, 3)), "logprobs_from": rng.choice((None, None, 0)),
        "ignore_eos": rng.random() < 0.3, "canonical": rng.random() < 0.5,
        "stop_token_ids": (40, 41, 42) * (steered and rng.random() < 0.5),
    }  # fmt: skip
    form = rng.choice(forms)
    return Sampling(**fields, regex=form.regex, json_schema=form.json_schema, ebnf=form.ebnf)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: with `choices` a score, else a generation."""

    prompt: list[int]
    choices: list[tuple[int, ...]]
    sampling: Sampling
    seeds: list[int]
    watch: bool


def random_requests(batch: int, vocab: int) -> list[Asked]:
    rng, made = Random(batch), list[Asked]()
    for _ in range(REQUESTS):
        prompt, choices = [rng.randrange(3, 250) for _ in range(rng.randint(1, 12))], list[tuple[int, ...]]()
        if rng.random() < 0.2:
            stem = [rng.randrange(3, vocab) for _ in range(3)]
            ends = [[rng.randrange(3, vocab) for _ in range(rng.randint(0, 3))] for _ in range(4)]
            choices = [(*stem[: rng.randint(1, 3)], *end) for end in ends]
        sampling = random_sampling(rng)
        seeds = [rng.getrandbits(60) for _ in range(sampling.n)]
        made.append(Asked(prompt, choices, sampling, seeds, rng.random() < 0.5))
    return made


def run(target: Engine, requests: Sequence[Asked], forms: Constraints) -> Made:
    """What they become: numbered from 0, they come while others run."""
    rng, made, left, first = Random(len(requests)), Made(), deque(requests), None
    while left or not target.idle:
        while left and (target.idle or rng.random() < 0.4):
            asked = left.popleft()
            prompt = target.extend(None, asked.prompt)
            if asked.choices:
                number = target.score(prompt, asked.choices)
            else:
                number = target.gen(
                    prompt, asked.sampling, asked.seeds, eos_ids=EOS, constraint=forms.of(asked.sampling),
                    watch=asked.watch,
                )  # fmt: skip
            first = number if first is None else first
        for event in target.step():
            assert first is not None
            if isinstance(event, SampleDone):
                made[event.request - first, "sample", event.sample] = event
            elif isinstance(event, ScoreDone | PromptScored):
                made[event.request - first, type(event).__name__, 0] = event
            elif isinstance(event, RequestFailed):
                raise event.error
    return made


def assert_valid(done: SampleDone, sampling: Sampling, forms: Constraints, tokens: Sequence[bytes]) -> None:
    """A text goes on to one of its form; one that ended by itself is one."""
    constraint = forms.of(sampling)
    if constraint is None:
        return
    state = constraint.start
    for token in done.ids:
        assert constraint.mask(state)[token], (sampling, tokens[token])
        state = constraint.advance(state, token)
    if done.finish == "stop" and not sampling.stop_token_ids:
        assert constraint.accepting(state), sampling


@pytest.mark.parametrize("real", [False, True] if CUDA else [False])
@pytest.mark.parametrize("batch", range(BATCHES))
def test_forms_with_options_are_those_of_the_cpu(
    batch: int, real: bool, default_tokenizer: LocalTokenizer, tmp_path: Path
) -> None:
    tokens = default_tokenizer.token_bytes() if real else small_vocabulary()
    encode = default_tokenizer.encode if real else longest_match(tokens)
    vocab = -(-len(tokens) // 32) * 32
    model, config = tiny_model(tmp_path, "qwen3", num_hidden_layers=2, vocab_size=vocab)
    weights = {name: weight.detach() for name, weight in model.state_dict().items()}
    executors: list[Executor] = [
        CudaExecutor(
            config, {name: weight.to(DEVICE) for name, weight in weights.items()}, device=DEVICE, page_size=4,
            pages=300, max_rows=8, max_tokens=48, max_len=128, eos_ids=EOS, token_bytes=tokens,
            depth=2,
        ),
        TorchExecutor(config, weights, device="cpu", page_size=4, pages=300, eos_ids=EOS),
    ]  # fmt: skip
    forms = Constraints(tokens, vocab, encode)
    limits = EngineConfig(token_budget=48, max_rows=8, max_len=128)
    requests = random_requests(batch, vocab)
    ours, theirs = (run(Engine(each, limits), requests, forms) for each in executors)
    assert ours.keys() == theirs.keys()
    assert {number for number, *_ in ours} == set(range(REQUESTS))
    for key, event in ours.items():
        other = theirs[key]
        if isinstance(event, SampleDone) and isinstance(other, SampleDone):
            assert (event.ids, event.finish) == (other.ids, other.finish), key
            assert_valid(event, requests[key[0]].sampling, forms, tokens)
        mine, its = (
            [row for each in one.logprobs for row in each] if isinstance(one, ScoreDone) else list(one.logprobs)
            for one in (event, other)
        )
        np.testing.assert_allclose(mine, its, atol=1e-4, rtol=1e-5, err_msg=str(key))
        if not isinstance(event, ScoreDone) and not isinstance(other, ScoreDone):
            for one, two in zip(event.likeliest, other.likeliest, strict=True):
                mine, its = ([p for _, p in listed(each)] for each in (one, two))
                np.testing.assert_allclose(mine, its, atol=1e-4, rtol=1e-5)
