"""The engine on the torch executor gives transformers' tokens and log-probabilities.

Greedy tokens are compared up to the first place where the reference's two best tokens are all but tied;
log-probabilities are those that the reference gives the same text.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from sglc.backends.local import LocalBackend
from sglc.ir.sampling import Sampling
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.engine.loading import LocalOptions
from sglc.runtime.executor.torch_executor import TorchExecutor
from sglc.runtime.model.config import ModelConfig
from sglc.runtime.model.weights import load_config, load_weights
from sglc.runtime.scheduler.requests import RequestDone, SampleDone, ScoreDone
from sglc.runtime.tokenizer.tokenizer import LocalTokenizer
from tests.depth import at_depth, some_of
from tests.runtime.reference_models import tiny_model
from tests.runtime.test_constrained import answer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TIE = 1e-3
TOLERANCE = 1e-4

PROMPTS = (
    "A",
    "1 2 3 4 5 6 7",
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n: int) -> int:\n    ",
    'import json\n\nwith open("data.json") as file:\n',
    "SELECT name, count(*) FROM visitors WHERE",
    '{"name": "Ada Lovelace", "born": 1815, "known for": [',
    "Q: What is 17 + 25?\nA:",
    "Translate to French: The weather is nice today.\nFrench:",
    "Der Zug nach München fährt heute",
    "El perro corre por el parque y",
    "日本の首都は",
    "🙂🙃 what do these mean? They mean",
    "Dear Sir or Madam,\n\nI am writing to complain about",
    "Ingredients: flour, eggs, milk, butter, sugar.\nMethod: First,",
    "The quick brown fox jumps over the lazy dog. " * 8,
    "yes no yes no yes no yes",
    "x = [1, 1, 2, 3, 5, 8, 13,",
    "<html>\n<head>\n<title>",
    "# Release notes\n\n## Version 2.0\n\n-",
    "Roses are red,\nViolets are blue,\n",
    "The mitochondria is the powerhouse of the cell. It",
    "According to the theory of general relativity, gravity",
    "To be, or not to be, that is the question:\nWhether",
    "In 1969, Neil Armstrong",
    "HTTP/1.1 200 OK\nContent-Type:",
    "Monday, Tuesday, Wednesday,",
    "   \n\n\n   ",
    "The essay says `<|im_end|>` in the middle, which is",
    "Water boils at 100 degrees Celsius at sea level, but on a mountain it boils at a lower one, because",
    "A list of five animals:\n1. Cat\n2.",
)


@dataclass(frozen=True, slots=True)
class Reference:
    """What transformers says about one prompt: the greedy tokens, and the log-probability and the lead
    over the second best that it gives each of them."""

    prompt: tuple[int, ...]
    tokens: list[int]
    logprobs: list[float]
    leads: list[float]


def references(model: PreTrainedModel, prompts: Sequence[Sequence[int]], count: int) -> list[Reference]:
    """Greedy tokens by `generate` over a left-padded batch, judged one text at a time without padding."""
    longest = max(map(len, prompts))
    ids, mask = (torch.zeros(len(prompts), longest, dtype=torch.int64) for _ in range(2))
    for line, seen, prompt in zip(ids, mask, prompts, strict=True):
        line[longest - len(prompt) :], seen[longest - len(prompt) :] = torch.tensor(prompt), 1
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    with torch.inference_mode():
        made = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=count)
    return [judged(model, prompt, line[longest:].tolist()) for prompt, line in zip(prompts, made, strict=True)]


def judged(model: PreTrainedModel, prompt: Sequence[int], tokens: list[int]) -> Reference:
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    best = logits.topk(2).values
    chosen = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
    return Reference(tuple(prompt), tokens, chosen.tolist(), (best[:, 0] - best[:, 1]).tolist())


def generate(
    engine: Engine, prompts: Sequence[Sequence[int]], count: int, at_once: int
) -> tuple[list[SampleDone], list[RequestDone]]:
    """Greedy samples of all prompts, at most `at_once` requests in the engine at a time."""
    sampling = Sampling(max_tokens=count, temperature=0.0, ignore_eos=True)
    samples: dict[int, SampleDone] = {}
    done: dict[int, RequestDone] = {}
    waiting = list(prompts)[::-1]
    order: list[int] = []
    while waiting or not engine.idle:
        while waiting and len(order) - len(done) < at_once:
            handle = engine.extend(None, waiting.pop())
            order.append(engine.gen(handle, sampling, [0], eos_ids=(2,)))
            engine.release(handle)
        for event in engine.step():
            match event:
                case SampleDone():
                    samples[event.request] = event
                case RequestDone():
                    done[event.request] = event
    return [samples[request] for request in order], [done[request] for request in order]


def compare(references: Sequence[Reference], samples: Sequence[SampleDone]) -> int:
    """Assert that `samples` are the reference's, as far as that can be said; the number of tokens it can."""
    compared = 0
    for reference, sample in zip(references, samples, strict=True):
        assert len(sample.ids) == len(reference.tokens)
        assert sample.finish == "length"
        ties = [i for i, lead in enumerate(reference.leads) if lead < TIE]
        until = ties[0] if ties else len(reference.tokens)
        assert list(sample.ids[:until]) == reference.tokens[:until]
        np.testing.assert_allclose(sample.logprobs[:until], reference.logprobs[:until], rtol=0, atol=TOLERANCE)
        compared += until
    return compared


def score(engine: Engine, prompt: Sequence[int], choices: Sequence[Sequence[int]]) -> ScoreDone:
    handle = engine.extend(None, prompt)
    engine.score(handle, choices)
    engine.release(handle)
    scored = []
    while not engine.idle:
        scored += [event for event in engine.step() if isinstance(event, ScoreDone)]
    (result,) = scored
    return result


def compare_scores(
    model: PreTrainedModel, prompt: Sequence[int], choices: Sequence[Sequence[int]], got: ScoreDone
) -> None:
    assert len(got.logprobs) == len(choices)
    for choice, logprobs in zip(choices, got.logprobs, strict=True):
        expected = judged(model, prompt, list(choice)).logprobs
        np.testing.assert_allclose(logprobs, expected, rtol=0, atol=TOLERANCE)


# -- the default model


@pytest.fixture(scope="module")
def default_reference(smollm2: Path) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def default_executor(smollm2: Path) -> TorchExecutor:
    config = load_config(smollm2)
    return TorchExecutor(config, load_weights(smollm2, config, torch.float32, "cpu"), pages=512)


def test_default_model(
    default_tokenizer: LocalTokenizer, default_reference: PreTrainedModel, default_executor: TorchExecutor
) -> None:
    encode = default_tokenizer.encode
    length = at_depth(12, 12, 64)
    assert len(PROMPTS) == 32
    prompts = [encode(text) for text in some_of(PROMPTS, 32, 4)]
    expected = references(default_reference, prompts, length)
    engine = Engine(default_executor, EngineConfig(token_budget=256, max_rows=32))
    samples, _ = generate(engine, prompts, length, at_once=32)
    assert compare(expected, samples) > 0.9 * len(prompts) * length


def test_default_model_scores(
    default_tokenizer: LocalTokenizer, default_reference: PreTrainedModel, default_executor: TorchExecutor
) -> None:
    encode = default_tokenizer.encode
    engine = Engine(default_executor, EngineConfig())
    texts = (" Paris", " London", " the city of Lyon", " Paris, of course", "\n")
    for prompt in PROMPTS[2], PROMPTS[16], PROMPTS[0]:
        choices = [encode(text) for text in texts]
        got = score(engine, encode(prompt), choices)
        compare_scores(default_reference, encode(prompt), choices, got)


@pytest.fixture(scope="module")
def exact_local(smollm2: Path) -> Iterator[LocalBackend]:
    """In float32 on the CPU, too, where `auto` may multiply by inputs of 16 bits."""
    backend = LocalBackend(LocalOptions("smollm2", dtype="float32"))
    yield backend
    backend.close()


def test_default_model_log_probabilities(exact_local: LocalBackend, default_reference: PreTrainedModel) -> None:
    """Of the prompt, of what was generated, and of the likeliest ids; the second time the prompt is cached."""
    prompt = "The capital of France is"
    asked = {"max_tokens": 6, "temperature": 0.9, "top_p": 0.9, "frequency_penalty": 0.4, "logprob_text": True}
    for begin in (0, 3):
        done = answer(exact_local, prompt, logprobs_from=begin, top_logprobs=4, **asked)
        (sample,) = done.samples
        with torch.inference_mode():
            logits = default_reference(torch.tensor([[*done.prompt_ids, *sample.ids]])).logits[0]
        truth = logits.log_softmax(-1)[:-1]
        whole = (*done.prompt_logprobs, *zip(sample.logprobs, sample.ids, sample.texts, strict=True))
        tops = (*done.prompt_top_logprobs, *sample.top_logprobs)
        assert prompt.endswith("".join(text for _, _, text in done.prompt_logprobs))  # type: ignore[misc]
        assert "".join(sample.texts) == sample.text
        assert [i for _, i, _ in whole] == [*done.prompt_ids[begin:], *sample.ids]
        assert (whole[0][0] is None) == (tops[0] is None) == (begin == 0)
        places = len(whole) - (begin == 0)
        scored = zip(truth[-places:], whole[-places:], tops[-places:], strict=True)
        for line, (logprob, token, _), top in scored:
            assert logprob == pytest.approx(float(line[token]), abs=TOLERANCE)
            best = line.topk(4)
            assert [i for _, i, _ in top] == best.indices.tolist()
            np.testing.assert_allclose([p for p, _, _ in top], best.values, atol=TOLERANCE)


# -- a tiny random model on the whole matrix


@dataclass(frozen=True, slots=True)
class Tiny:
    model: PreTrainedModel
    config: ModelConfig
    references: list[Reference]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Prompts that begin alike, are equal, are prefixes of each other, or have nothing in common."""
    model, config = tiny_model(tmp_path_factory.mktemp("tiny"))
    ids = np.random.default_rng(1).integers(3, config.vocab_size, 4000).tolist()
    shared, other = ids[:150], ids[200:237]
    prompts = [ids[1000 + 50 * i : 1000 + 50 * i + 1 + 11 * i] for i in range(6)]
    prompts += [shared + ids[2000 + 10 * i : 2000 + 10 * i + 1 + 3 * i] for i in range(12)]
    prompts += [other + ids[3000 + i : 3000 + i + 1 + i % 3] for i in range(8)]
    prompts += [shared, shared[:97], shared, other, other + ids[:3], ids[2000:2190]]
    assert len(prompts) == 32
    return Tiny(model, config, references(model, prompts, 12))


MATRIX = list(itertools.product((True, False), (16, 128, 2048), (1, 7, 32), (1, 16)))


@pytest.mark.slow
@pytest.mark.parametrize(("cache", "budget", "at_once", "page_size"), some_of(MATRIX, 1, 4))
def test_matrix(tiny: Tiny, cache: bool, budget: int, at_once: int, page_size: int) -> None:
    executor = TorchExecutor(
        tiny.config, tiny.model.state_dict(), page_size=page_size, pages=12000 // page_size
    )
    engine = Engine(executor, EngineConfig(token_budget=budget, max_rows=at_once, cache=cache, max_len=1024))
    samples, done = generate(engine, [r.prompt for r in tiny.references], 12, at_once)
    assert compare(tiny.references, samples) > 0.9 * 32 * 12
    for reference, counts in zip(tiny.references, done, strict=True):
        assert counts.prompt_tokens == len(reference.prompt)
        assert counts.prompt_tokens == counts.cached_tokens + counts.computed_tokens
        assert counts.completion_tokens == 12
    cached = sum(counts.cached_tokens for counts in done)
    assert cached > 2000 if cache else cached == 0
    prompt, choices = tiny.references[8].prompt, [[5], [5, 9, 14], [7, 8], [300] * 20, [5, 9]]
    compare_scores(tiny.model, prompt, choices, score(engine, prompt, choices))


@pytest.mark.parametrize("cache", [True, False])
def test_rows_that_give_way_make_the_texts_that_they_make_alone(tiny: Tiny, cache: bool) -> None:
    prompts = [reference.prompt for reference in tiny.references[:6]]
    # An id may end each, though none does: so its tokens are not promised to it, and pages run out.
    sampling = Sampling(max_tokens=100, temperature=0.0, logit_bias=((2, -100.0),))

    def run(prompts: Sequence[Sequence[int]], pages: int) -> tuple[list[tuple[int, ...]], int]:
        executor = TorchExecutor(tiny.config, tiny.model.state_dict(), page_size=4, pages=pages)
        engine = Engine(executor, EngineConfig(cache=cache, max_len=200))
        order = [engine.gen(engine.extend(None, prompt), sampling, [0], eos_ids=(2,)) for prompt in prompts]
        found: dict[int, tuple[int, ...]] = {}
        while not engine.idle:
            found |= {event.request: event.ids for event in engine.step() if isinstance(event, SampleDone)}
        return [found[request] for request in order], engine.queue.preempted

    alone = [run([prompt], 100)[0][0] for prompt in prompts]
    together, preempted = run(prompts, 80)
    assert preempted > 0
    assert together == alone


@pytest.mark.parametrize("page_size", [1, 16])
def test_forked_samples_equal_separate_requests(tiny: Tiny, page_size: int) -> None:
    """n samples of one prompt, drawn at a temperature, are those of n requests with the same seeds."""
    prompt, seeds = tiny.references[9].prompt, [11, 12, 13, 14, 15]

    def run(groups: Sequence[Sequence[int]], cache: bool) -> list[tuple[int, ...]]:
        executor = TorchExecutor(tiny.config, tiny.model.state_dict(), page_size=page_size, pages=4000)
        engine = Engine(executor, EngineConfig(cache=cache))
        handle = engine.extend(None, prompt)
        sampling = Sampling(max_tokens=20, temperature=0.9, top_p=0.95, ignore_eos=True, n=len(groups[0]))
        order = {engine.gen(handle, sampling, group, eos_ids=()): i for i, group in enumerate(groups)}
        found: dict[tuple[int, int], tuple[int, ...]] = {}
        while not engine.idle:
            for event in engine.step():
                if isinstance(event, SampleDone):
                    found[order[event.request], event.sample] = event.ids
        return [found[key] for key in sorted(found)]

    forked = run([seeds], cache=True)
    assert len(set(forked)) == len(seeds)
    assert forked == run([[seed] for seed in seeds], cache=False)


@pytest.mark.model
def test_repetition_is_that_of_transformers(local: LocalBackend, default_reference: PreTrainedModel) -> None:
    """Greedy, over prompt and text; without the penalty each of them says something else."""
    for prompt, penalty in some_of(((PROMPTS[2], 1.3), (PROMPTS[17], 1.3), (PROMPTS[4], 20.0)), 1, 2):
        asked = {"max_tokens": 24, "temperature": 0.0, "ignore_eos": True}
        done = answer(local, prompt, repetition_penalty=penalty, **asked)
        made = default_reference.generate(
            torch.tensor([done.prompt_ids]),
            max_new_tokens=24,
            min_new_tokens=24,
            do_sample=False,
            repetition_penalty=penalty,
        )
        assert done.samples[0].ids == tuple(made[0, len(done.prompt_ids) :].tolist())
        assert done.samples[0].ids != answer(local, prompt, **asked).samples[0].ids
