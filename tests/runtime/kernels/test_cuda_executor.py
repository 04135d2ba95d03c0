"""The CUDA executor gives what the torch executor gives; in Triton's interpreter where there is no device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sglc.ir.sampling import Sampling
from sglc.runtime.constraints.constraint import Constraints
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.executor.cuda_executor import CudaExecutor
from sglc.runtime.executor.torch_executor import TorchExecutor
from sglc.runtime.scheduler.requests import PromptScored, RequestFailed, SampleDone, ScoreDone
from sglc.runtime.step import Executor
from tests.depth import at_depth, some_of
from tests.runtime.reference_models import KINDS, tiny_model

# In the interpreter the hashes of the noise are numpy scalars, which warn where they wrap around.
pytestmark = [
    pytest.mark.kernel, pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]  # fmt: skip

# Half a minute each in the interpreter; what stays are prompts, decoding and forks.
NIGHTLY = pytest.mark.nightly

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROMPTS = [tuple((7 * i + 3 * j) % 300 + 5 for j in range(3 + 9 * i)) for i in range(4)]
GREEDY = Sampling(max_tokens=6, temperature=0.0, ignore_eos=True)


SPELLED = [bytes([i]) if i < 256 else b"" for i in range(320)]


def engines(folder: Path, kind: str, depth: int, **options: int) -> list[Engine]:
    """One on the CUDA executor, one on the torch executor, float32."""
    model, config = tiny_model(folder, kind, num_hidden_layers=at_depth(1, 1, 2))
    made: list[Engine] = []
    held = {name: weight.detach().to(DEVICE) for name, weight in model.state_dict().items()}
    limits = EngineConfig(token_budget=48, max_rows=8, max_len=256)
    common = {"page_size": 4, "pages": 200, "depth": depth, "eos_ids": (2,)} | options
    executors: list[Executor] = [
        CudaExecutor(  # type: ignore[misc]
            config,
            held,
            device=DEVICE,
            max_rows=8,
            max_tokens=48,
            max_len=256,
            token_bytes=SPELLED,
            **common,  # type: ignore[arg-type]
        ),
        TorchExecutor(config, held, device=DEVICE, **common),  # type: ignore[arg-type]
    ]
    made += [Engine(executor, limits) for executor in executors]
    return made


def run(target: Engine) -> dict[tuple[int, str, int], SampleDone | ScoreDone | PromptScored]:
    made: dict[tuple[int, str, int], SampleDone | ScoreDone | PromptScored] = {}
    while not target.idle:
        for event in target.step():
            if isinstance(event, SampleDone):
                made[event.request, "sample", event.sample] = event
            elif isinstance(event, ScoreDone | PromptScored):
                made[event.request, type(event).__name__, 0] = event
            elif isinstance(event, RequestFailed):
                raise event.error
    return made


def assert_equal(engines: list[Engine]) -> None:
    ours, theirs = (run(target) for target in engines)
    assert ours.keys() == theirs.keys()
    assert ours
    for key, event in ours.items():
        other = theirs[key]
        if isinstance(event, SampleDone) and isinstance(other, SampleDone):
            assert (event.ids, event.finish) == (other.ids, other.finish)
        if isinstance(event, ScoreDone) and isinstance(other, ScoreDone):
            for one, two in zip(event.logprobs, other.logprobs, strict=True):
                torch.testing.assert_close(torch.tensor(one), torch.tensor(two), atol=1e-4, rtol=0)
        else:
            torch.testing.assert_close(
                torch.tensor(event.logprobs), torch.tensor(other.logprobs), atol=1e-4, rtol=0
            )


@pytest.mark.parametrize("kind", some_of(sorted(KINDS), 1, 1))
def test_prompts_and_decoding(kind: str, tmp_path: Path) -> None:
    both = engines(tmp_path, kind, 2)
    for target in both:
        for index, prompt in enumerate(PROMPTS):
            target.gen(target.extend(None, prompt), GREEDY, [index], eos_ids=())
    assert_equal(both)


@NIGHTLY
def test_sampling_with_filters_and_the_end_of_a_turn(tmp_path: Path) -> None:
    both = engines(tmp_path, "qwen3", 2)
    for target in both:
        for index, fields in enumerate(({}, {"min_p": 0.1}, {"top_k": 3}, {"top_p": 0.6}, {"min_tokens": 4})):
            sampling = Sampling(max_tokens=5, temperature=0.9, **fields)  # type: ignore[arg-type]
            target.gen(target.extend(None, PROMPTS[1]), sampling, [index], eos_ids=(2, 9))
    assert_equal(both)


def test_forks_share_pages_and_copy_the_last_one(tmp_path: Path) -> None:
    both = engines(tmp_path, "llama", 2)
    sampling = Sampling(max_tokens=6, temperature=1.0, n=4, ignore_eos=True)
    for target in both:
        target.gen(target.extend(None, PROMPTS[2]), sampling, [1, 2, 3, 4], eos_ids=())
    assert_equal(both)


@NIGHTLY
def test_scores_biases_and_samples_in_one_batch(tmp_path: Path) -> None:
    both = engines(tmp_path, "llama", 2)
    steered = Sampling(
        max_tokens=4, temperature=0.8, frequency_penalty=0.5, logit_bias=((9, 2.0),), logprobs_from=0,
        top_logprobs=2, ignore_eos=True,
    )  # fmt: skip
    for target in both:
        target.gen(target.extend(None, PROMPTS[1]), GREEDY, [1], eos_ids=())
        target.gen(target.extend(None, PROMPTS[2]), steered, [2], eos_ids=())
        target.score(target.extend(None, PROMPTS[2]), [(9, 10, 11), (9, 12, 5), (9, 12), (30,)])
    assert_equal(both)


def test_choices_that_branch_over_several_steps(tmp_path: Path) -> None:
    """A step has 48 tokens, the choices behind each prompt have 60 and more."""
    both = engines(tmp_path, "llama", 2)
    choices = [(9 + at % 2, 20 + at // 2, *range(30 + at, 38 + at)) for at in range(8)]
    for target in both:
        for prompt in PROMPTS[2:]:
            target.score(target.extend(None, prompt), choices)
        target.gen(target.extend(None, PROMPTS[1]), GREEDY, [1], eos_ids=())
    assert_equal(both)


@NIGHTLY
def test_forced_runs_between_samples(tmp_path: Path) -> None:
    """Rows that decode pass a run through and decode on; one run ends its text."""
    both = engines(tmp_path, "llama", 2)
    constraint = Constraints(SPELLED, 320).regex("<<[a-z]{2}-----[a-z]{2}==>[0-9]--")
    sampling = Sampling(max_tokens=30, temperature=1.0, n=2)
    for target in both:
        target.gen(target.extend(None, PROMPTS[1]), GREEDY, [1], eos_ids=())
        target.gen(target.extend(None, PROMPTS[2]), sampling, [2, 3], eos_ids=(2,), constraint=constraint)
    assert_equal(both)
    # Where the executor follows the automaton, a run begins behind the steps in flight, and short ones do not.
    assert [target.forced for target in both] == [2 * (2 + 4), 2 * (2 + 5 + 3 + 2)]


def test_automata_that_the_executor_follows(tmp_path: Path) -> None:
    """Rows of several forms, and one whose masks steps bring, beside a free one."""
    both = engines(tmp_path, "llama", 2)
    forms = Constraints(SPELLED, 320)
    for target in both:
        target.gen(target.extend(None, PROMPTS[0]), GREEDY, [1], eos_ids=())
        for at, (pattern, options) in enumerate(
            (
                ("[a-f]{1,9}", {}),
                ("yes|no", {}),
                ("[0-9]*", {"min_tokens": 2}),
                ("[x-z]+", {"ignore_eos": True}),
            )
        ):
            sampling = Sampling(max_tokens=6, temperature=1.0 - at % 2, **options)  # type: ignore[arg-type]
            prompt = target.extend(None, PROMPTS[at % 3])
            target.gen(prompt, sampling, [at], eos_ids=(2,), constraint=forms.regex(pattern), watch=False)
        penalised = Sampling(
            max_tokens=6,
            temperature=1.0,
            presence_penalty=1.5,
            repetition_penalty=1.5,
            logit_bias=((300, 9.0),),
        )
        target.gen(
            target.extend(None, PROMPTS[1]), penalised, [7], eos_ids=(2,), constraint=forms.regex("[a-c]+")
        )
        target.gen(target.extend(None, PROMPTS[2]), penalised, [8], eos_ids=(2,), watch=False)
    assert_equal(both)


@NIGHTLY
def test_a_shared_prefix_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that begin with the same pages decode by way of tiles."""
    monkeypatch.setattr("sglc.runtime.attention.tile_plan.LEAST_SAVED", 16)
    monkeypatch.setattr("sglc.runtime.attention.tile_plan.LEAST_SAVED_BY_PREFIX", 8)
    both = engines(tmp_path, "qwen3", 2)
    kinds = set()
    executor = both[0].executor
    assert isinstance(executor, CudaExecutor)
    execute = executor._execute

    def spy(bucket: tuple[int, int], kind: object) -> None:
        kinds.add(kind)
        execute(bucket, kind)  # type: ignore[arg-type]

    monkeypatch.setattr(executor, "_execute", spy)
    for target in both:
        prefix = PROMPTS[3]
        for i in range(4):
            target.gen(target.extend(None, (*prefix, 40 + i // 2, 50, 51, 52, 60 + i)), GREEDY, [i], eos_ids=())
    assert_equal(both)
    assert any(kind.cascade for kind in kinds)  # type: ignore[attr-defined]


def test_what_is_compiled_ahead_leaves_nothing_behind(tmp_path: Path) -> None:
    both = engines(tmp_path, "llama", 2)
    executor = both[0].executor
    assert isinstance(executor, CudaExecutor)
    with torch.inference_mode():
        executor._compile_rare(1)
    form = Constraints(SPELLED, 320).regex("[a-f]{1,9}")
    for target in both:
        target.gen(target.extend(None, PROMPTS[0]), GREEDY, [1], eos_ids=())
        sampling = Sampling(max_tokens=4, temperature=1.0, top_logprobs=3)
        target.gen(target.extend(None, PROMPTS[1]), sampling, [2], eos_ids=(2,), constraint=form)
    assert_equal(both)
