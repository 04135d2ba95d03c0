"""The executor keeps the contract of steps: order of effects, last ids, scores, noise."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from sglc.errors import BackendError
from sglc.runtime.executor.logits_output import I64
from sglc.runtime.executor.torch_executor import TorchExecutor
from sglc.runtime.executor.torch_threads import _mkl, _openmp, set_torch_threads
from sglc.runtime.model.config import ModelConfig
from sglc.runtime.step import SAMPLED, Batch, Step, StepResult, pack_masks
from tests.runtime.handmade import Row, make_step
from tests.runtime.reference_models import tiny_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    Model = tuple[PreTrainedModel, ModelConfig]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


def executor(model: Model, page_size: int = 4, pages: int = 256) -> TorchExecutor:
    return TorchExecutor(model[1], model[0].state_dict(), page_size=page_size, pages=pages)


def run(executor: TorchExecutor, step: Step) -> StepResult:
    return executor.drain(executor.launch(step))


def log_probs(model: Model, tokens: Sequence[int]) -> torch.Tensor:
    """[T, V] of transformers."""
    with torch.inference_mode():
        return model[0](torch.tensor([tokens])).logits[0].log_softmax(-1)


def some_tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, 320, count).tolist()


def test_greedy_decode_through_the_last_sampled_ids(model: Model) -> None:
    machine = executor(model)
    prompt, pages = some_tokens(11), [7, 3, 9, 200, 201, 202]
    result = run(machine, make_step([Row(tokens=prompt, pages=pages, row=500)], 4))
    tokens, logprobs = [int(result.tokens[0])], [float(result.logprobs[0])]
    for index in range(8):
        row = Row(tokens=[SAMPLED], pages=pages, first=11 + index, row=500, begins=False)
        result = run(machine, make_step([row], 4))
        tokens.append(int(result.tokens[0]))
        logprobs.append(float(result.logprobs[0]))
    reference = log_probs(model, prompt + tokens)[10:-1]
    assert tokens == reference.argmax(-1).tolist()
    np.testing.assert_allclose(logprobs, reference.max(-1).values, atol=1e-4)


def test_a_mixed_batch_gives_what_each_row_gives_alone(model: Model) -> None:
    """Decode rows, short and long extends, forks, in one step, whose rows come in no order."""
    prefix = some_tokens(24)
    machine = executor(model)
    run(machine, make_step([Row(tokens=prefix, pages=range(6), sample=False)], 4))
    tails = [some_tokens(n, n) for n in (1, 1, 7, 60, 3, 90)]
    rows, following = [], 10
    for number, tail in enumerate(tails):
        shared = 24 if number % 2 == 0 else 0
        text = tail if shared else prefix + tail
        need = -(-(24 + len(tail)) // 4) - shared // 4
        pages = [*range(shared // 4), *range(following, following + need)]
        following += need
        rows.append(Row(tokens=text, pages=pages, first=shared, row=number))
    result = run(machine, make_step(rows, 4))
    for number, tail in enumerate(tails):
        reference = log_probs(model, prefix + tail)[-1]
        assert result.tokens[number] == reference.argmax()
        assert result.logprobs[number] == pytest.approx(float(reference.max()), abs=1e-4)


def test_scores_at_any_place_and_several_of_one_place(model: Model) -> None:
    machine = executor(model)
    first, second = some_tokens(9), some_tokens(5, 1)
    rows = [
        Row(tokens=first, pages=[0, 1, 2], sample=False),
        Row(tokens=second, pages=[3, 4], row=1),
    ]
    wanted = [(8, 5), (2, 17), (8, 319), (9 + 3, 0), (9 + 4, 44), (8, 5)]
    result = run(machine, make_step(rows, 4, score=wanted))
    by_row = torch.cat((log_probs(model, first), log_probs(model, second)))
    expected = [float(by_row[offset, token]) for offset, token in wanted]
    np.testing.assert_allclose(result.scores, expected, atol=1e-4)
    assert result.tokens.tolist() == [-1, int(by_row[-1].argmax())]
    assert result.logprobs[0] == 0


def test_many_scores_come_in_blocks(model: Model) -> None:
    machine = executor(model)
    tokens = some_tokens(600)
    wanted = [(offset, tokens[offset + 1]) for offset in range(599)]
    result = run(machine, make_step([Row(tokens=tokens, pages=range(150), sample=False)], 4, score=wanted))
    reference = log_probs(model, tokens)
    expected = reference[torch.arange(599), torch.tensor(tokens[1:])]
    np.testing.assert_allclose(result.scores, expected, atol=1e-4)


def test_copies_come_before_the_kv_of_the_step(model: Model) -> None:
    """Page 1 is copied, then overwritten by its own row in the same step."""
    machine = executor(model)
    prompt, left, right = some_tokens(6), some_tokens(1, 1), some_tokens(1, 2)
    run(machine, make_step([Row(tokens=prompt, pages=[0, 1], sample=False)], 4))
    step = make_step(
        [
            Row(tokens=left, pages=[0, 1], first=6, row=0),
            Row(tokens=right, pages=[0, 2], first=6, row=1),
        ],
        4,
        copies=[(1, 2, 2)],
    )
    result = run(machine, step)
    expected = [int(log_probs(model, prompt + tail)[-1].argmax()) for tail in (left, right)]
    assert result.tokens.tolist() == expected
    assert expected[0] != expected[1]
    # A copy of part of a page leaves the rest of the destination alone.
    again = make_step([Row(tokens=some_tokens(1, 3), pages=[0, 1], first=7)], 4, copies=[(2, 1, 2)])
    got = run(machine, again).tokens[0]
    assert got == log_probs(model, prompt + left + some_tokens(1, 3))[-1].argmax()


def test_samples_do_not_depend_on_the_batch(model: Model) -> None:
    prompts = [some_tokens(5 + r, r) for r in range(6)]
    rows = [
        Row(tokens=prompt, pages=range(10 * r, 10 * r + 3), row=r, temperature=0.5 + 0.3 * r, seed=2**63 + r)
        for r, prompt in enumerate(prompts)
    ]
    rows[2] = replace(rows[2], top_p=0.8, top_k=30)
    together = run(executor(model), make_step(rows, 4))
    alone = [run(executor(model), make_step([replace(row, row=0)], 4)) for row in rows]
    assert together.tokens.tolist() == [int(result.tokens[0]) for result in alone]
    np.testing.assert_allclose(together.logprobs, [result.logprobs[0] for result in alone], atol=1e-5)
    other = run(executor(model), make_step([replace(row, seed=row.seed + 9) for row in rows], 4))
    assert other.tokens.tolist() != together.tokens.tolist()


def test_end_ids_may_be_banned(model: Model) -> None:
    machine = TorchExecutor(model[1], model[0].state_dict(), page_size=4, pages=8, eos_ids=range(0, 320, 2))
    row = Row(tokens=some_tokens(4), pages=[0], temperature=1.0, no_eos=True)
    tokens = [run(machine, make_step([replace(row, seed=s)], 4)).tokens[0] for s in range(40)]
    assert all(token % 2 for token in tokens)
    free = [run(machine, make_step([replace(row, seed=s, no_eos=False)], 4)).tokens[0] for s in range(40)]
    assert not all(token % 2 for token in free)


def test_a_pool_that_does_not_fit(model: Model) -> None:
    with pytest.raises(BackendError) as caught:
        executor(model, page_size=16, pages=2**44)
    assert caught.value.code == "SGLC530"
    assert "GiB" in caught.value.note


def test_masked_rows_sample_what_they_may(model: Model) -> None:
    """More rows than the head takes at a time, some of them not sampled, every third one masked."""
    count, vocab = 300, model[1].vocab_size
    prompts = [some_tokens(3, seed) for seed in range(count)]
    rows = [
        Row(
            tokens=prompts[i], pages=[i], row=i, sample=i % 5 != 4,
            temperature=float(i % 2), seed=i, no_eos=i % 4 == 0,
        )
        for i in range(count)
    ]  # fmt: skip
    step = make_step(rows, 4)
    free = run(executor(model, pages=count), step)
    masked = np.array([i for i in range(count) if i % 3 == 0 and rows[i].sample], np.int32)
    masks = np.random.default_rng(1).random((masked.size, vocab)) < 0.03
    masks[:, 50] = True
    result = run(executor(model, pages=count), replace(step, masked=masked, masks=pack_masks(masks)))
    assert masks[np.arange(masked.size), result.tokens[masked]].all()
    others = np.delete(np.arange(count), masked)
    assert (result.tokens[others] == free.tokens[others]).all()
    for i in masked.tolist()[::20]:
        reference = log_probs(model, prompts[i])[-1]
        assert result.logprobs[i] == pytest.approx(float(reference[result.tokens[i]]), abs=1e-4)


def test_bias_and_the_likeliest_ids_in_a_mixed_batch(model: Model) -> None:
    """Rows and scores that ask, beside others that do not; more places than one block of logits has."""
    machine = executor(model, pages=1024)
    prompts = [some_tokens(5 + i % 3, i) for i in range(300)]
    rows = [Row(tokens=prompt, pages=[2 * i, 2 * i + 1], row=i) for i, prompt in enumerate(prompts)]
    starts = np.cumsum([0, *map(len, prompts)])
    scored = [7, 130, 290]
    step = make_step(rows, 4, score=[(int(starts[i]) + 1, prompts[i][2]) for i in scored])
    biased = np.array([3, 3, 128, 299], np.int32)
    step = replace(
        step,
        bias_at=biased,
        bias_ids=np.array([17, 18, 17, 250], np.int32),
        bias=np.array([50, 49, 50, 50], np.float32),
        tops=3,
        top_rows=np.array([0, 3, 299], np.int32),
        top_scores=np.array([0, 2], np.int32),
    )
    result = run(machine, step)
    reference = [log_probs(model, prompt) for prompt in prompts]
    for i in range(300):
        expected = {3: 17, 128: 17, 299: 250}.get(i, int(reference[i][-1].argmax()))
        assert result.tokens[i] == expected
        assert result.logprobs[i] == pytest.approx(float(reference[i][-1][expected]), abs=1e-4)
    places = [reference[0][-1], reference[3][-1], reference[299][-1], reference[7][1], reference[290][1]]
    for line, ids, logprobs in zip(places, result.top_ids, result.top_logprobs, strict=True):
        best = line.topk(3)
        assert ids.tolist() == best.indices.tolist()
        np.testing.assert_allclose(logprobs, best.values, atol=1e-4)


@pytest.mark.parametrize(("alone_s", "chosen"), [(0.001, 1), (0.003, 3)])
def test_steps_run_with_the_threads_that_were_quickest(
    model: Model, alone_s: float, chosen: int, monkeypatch: pytest.MonkeyPatch, threads: None
) -> None:
    machine, used, others = executor(model), list[int](), list[int]()
    forward, seconds = machine._forward, machine._seconds

    def noted(batch: Batch, wanted: I64) -> torch.Tensor:
        used.append(torch.get_num_threads())
        others.append(in_new_thread(torch.get_num_threads))
        return forward(batch, wanted)

    def measured(tokens: int, position: int) -> float:
        seconds(tokens, position)
        return alone_s if used[-1] == 1 else 0.002

    def measured_and_run() -> None:
        machine.measure()
        assert set(used) == {1, 3}
        assert {*others, torch.get_num_threads()} == {3, chosen}
        used.clear()
        in_new_thread(lambda: torch.set_num_threads(2))  # the user's
        run(machine, make_step([Row(tokens=some_tokens(5), pages=[3, 4], row=1)], 4))

    monkeypatch.setattr(machine, "_forward", noted)
    monkeypatch.setattr(machine, "_seconds", measured)
    in_new_thread(measured_and_run)
    assert used == [chosen]
    assert others[-1] == 2
    assert torch.get_num_threads() == 3


def test_products_have_the_threads_that_are_asked_for(threads: None) -> None:
    """Although somebody has told torch another number, which MKL keeps."""
    assert _openmp() is not None
    assert (_mkl() is not None) == torch.backends.mkl.is_available()

    def told(count: int) -> set[str]:
        set_torch_threads(count)
        assert torch.get_num_threads() == count
        return {*re.findall(r"(?:omp|mkl)_get_max_threads\(\) : (\d+)", torch.__config__.parallel_info())}

    for count in (1, 2):
        assert in_new_thread(partial(told, count)) == {str(count)}
    assert torch.get_num_threads() == in_new_thread(torch.get_num_threads) == 3


@pytest.fixture
def threads() -> Iterator[None]:
    """Torch has three threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def in_new_thread(call: Callable[[], Any]) -> Any:
    """What it gives in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()
