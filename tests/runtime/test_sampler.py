"""Filters equal transformers', samples follow the distribution, noise depends on (seed, position) alone."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from sglc.ir.sampling import Sampling
from sglc.runtime.executor.logits_output import SamplerInput, _mix, allowed_logits, noise_keys
from sglc.runtime.executor.sampler import drawn, exponentials, filtered, likeliest, log_probabilities
from sglc.runtime.scheduler.samples import bias_of
from tests.depth import few

NO_EOS = torch.empty(0, dtype=torch.int64)


def choice(
    *rows: dict[str, float], no_eos: bool = False, keys: np.ndarray | None = None, count: int | None = None
) -> SamplerInput:
    """One row per mapping (or `count` times the only one)."""
    rows = rows * count if count else rows

    def column(key: str, default: float, dtype: type) -> np.ndarray:
        return np.array([row.get(key, default) for row in rows], dtype)

    return SamplerInput(
        temperature=column("temperature", 1.0, np.float32),
        top_k=column("top_k", -1, np.int32),
        top_p=column("top_p", 1.0, np.float32),
        min_p=column("min_p", 0.0, np.float32),
        no_eos=np.full(len(rows), no_eos),
        keys=np.arange(len(rows), dtype=np.uint64) if keys is None else keys,
    )


def choose(logits: torch.Tensor, how: SamplerInput, eos_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Next tokens and their log-probabilities."""
    logits = logits.float()
    return drawn(logits, allowed_logits(logits, how, eos_ids), how)


def by_transformers(logits: torch.Tensor, row: dict[str, float]) -> torch.Tensor:
    """Probabilities of one row after transformers' processors, in its order."""
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    scores = TemperatureLogitsWarper(row.get("temperature", 1.0))(None, logits[None].double())
    if row.get("top_k", -1) > 0:
        scores = TopKLogitsWarper(int(row["top_k"]))(None, scores)
    if row.get("top_p", 1.0) < 1:
        scores = TopPLogitsWarper(row["top_p"])(None, scores)
    if row.get("min_p", 0.0) > 0:
        scores = MinPLogitsWarper(row["min_p"])(None, scores)
    return scores.softmax(-1)[0]


@pytest.mark.parametrize("seed", few(range(30), 10))
def test_filters_equal_transformers(seed: int) -> None:
    rng = random.Random(seed)
    vocab = rng.choice((5, 300, 3000))
    # A flat distribution holds its mass in more tokens than the first look takes.
    spread = rng.choice((0.05, 1.0, 5.0))
    rows = []
    for _ in range(rng.randint(1, 6)):
        row: dict[str, float] = {"temperature": rng.choice((0.3, 1.0, 1.7))}
        if rng.random() < 0.5:
            row["top_k"] = rng.choice((1, 2, 40, 700))
        if rng.random() < 0.6:
            row["top_p"] = rng.choice((0.01, 0.5, 0.9, 0.999))
        if rng.random() < 0.4:
            row["min_p"] = rng.choice((0.02, 0.3, 1.0))
        rows.append(row)
    logits = torch.randn(len(rows), vocab, generator=torch.Generator().manual_seed(seed)) * spread
    weights = filtered(logits, choice(*rows), np.arange(len(rows)))
    for got, row, line in zip(weights, rows, logits, strict=True):
        expected = by_transformers(line, row)
        assert torch.equal(got > 0, expected > 0), row
        torch.testing.assert_close(got.double() / got.double().sum(), expected, rtol=1e-5, atol=1e-12)


def test_filters_of_a_mixed_batch_are_those_of_each_row_alone() -> None:
    logits = torch.randn(4, 2000, generator=torch.Generator().manual_seed(1))
    rows = [{"top_k": 3}, {"top_p": 0.9}, {}, {"min_p": 0.5, "temperature": 0.5}]
    together = filtered(logits, choice(*rows), np.arange(4))
    for index, row in enumerate(rows):
        alone = filtered(logits[index : index + 1], choice(row), np.arange(1))
        assert torch.equal(together[index], alone[0])
    assert (together[2] > 0).all()


def test_mixing_is_splitmix64() -> None:
    state, outputs = np.array([1234567], np.uint64), []
    for _ in range(3):
        state = state + np.uint64(0x9E3779B97F4A7C15)
        outputs.append(int(_mix(state)[0]))
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


CPU = torch.device("cpu")


def test_noise_depends_on_seed_and_position_alone() -> None:
    seeds = np.array([3, 2**64 - 1, 3, 0], np.uint64)
    positions = np.array([9, 4, 10, 0], np.int32)
    together = exponentials(noise_keys(seeds, positions), 1000, CPU)
    assert (together > 0).all()
    assert together.isfinite().all()
    for index in range(4):
        alone = exponentials(noise_keys(seeds[index : index + 1], positions[index : index + 1]), 1000, CPU)
        assert torch.equal(alone[0], together[index])
        for other in range(index):
            assert (together[index] == together[other]).sum() < 3


@pytest.mark.parametrize("along", ["seeds", "positions", "tokens"])
def test_noise_is_exponential_and_independent(along: str) -> None:
    count, cells = 20_000, 100
    counter, fixed = np.arange(count), np.full(count, 7)
    if along == "tokens":
        noise = exponentials(noise_keys(np.array([5], np.uint64), np.array([9], np.int32)), count, CPU)[0]
    else:
        seeds, positions = (counter, fixed) if along == "seeds" else (fixed, counter)
        noise = exponentials(noise_keys(seeds.astype(np.uint64), positions.astype(np.int32)), 3, CPU)[:, 2]
    points = 1 - np.exp(-noise.numpy().astype(np.float64))
    seen = np.histogram(points, bins=cells, range=(0, 1))[0]
    statistic = ((seen - count / cells) ** 2 / (count / cells)).sum()
    assert 50 < statistic < 149  # chi-square with 99 degrees of freedom: 0.00001 to 0.999
    assert abs(np.corrcoef(points[1:], points[:-1])[0, 1]) < 0.03


@pytest.mark.slow
def test_a_sample_survives_rounding() -> None:
    """Another batch rounds otherwise; over a vocabulary of real size the sample stays the same."""
    count, vocab = 200, 49_152
    logits = torch.randn(count, vocab, generator=torch.Generator().manual_seed(3)) * 2
    rounded = logits + torch.randn(count, vocab, generator=torch.Generator().manual_seed(4)) * 1e-5
    how = choice({"temperature": 1.0}, count=count)
    assert torch.equal(choose(logits, how, NO_EOS)[0], choose(rounded, how, NO_EOS)[0])


def test_samples_follow_the_distribution() -> None:
    count = 20_000
    row = {"temperature": 0.8, "top_k": 9, "top_p": 0.97, "min_p": 0.01}
    logits = torch.randn(12, generator=torch.Generator().manual_seed(5)) * 1.2
    expected = by_transformers(logits, row)
    keys = noise_keys(np.arange(count, dtype=np.uint64), np.full(count, 30, np.int32))
    tokens, _ = choose(logits.expand(count, -1), choice(row, keys=keys, count=count), NO_EOS)
    seen = torch.bincount(tokens, minlength=12).double()
    assert (seen[expected == 0] == 0).all()
    kept = expected > 0
    statistic = ((seen - count * expected) ** 2 / (count * expected))[kept].sum()
    assert 3 < int(kept.sum()) <= 9
    assert statistic < 26.12  # chi-square with 8 degrees of freedom, 0.999


def test_log_probabilities_are_those_of_the_model() -> None:
    """Not of the tempered, filtered or banned distribution."""
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(2)) * 3
    rows = [{"temperature": 0.0}, {"temperature": 0.2, "top_k": 2}, {"temperature": 3.0}]
    tokens, logprobs = choose(logits, choice(*rows, no_eos=True), torch.tensor([int(logits[0].argmax())]))
    torch.testing.assert_close(logprobs, logits.log_softmax(-1)[torch.arange(3), tokens])
    torch.testing.assert_close(log_probabilities(logits, tokens), logprobs)


def test_greedy_takes_the_best_and_the_banned_are_passed_over() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.0, 1.0]]).expand(2, -1)
    greedy = choice({"temperature": 0.0}, count=2)
    assert choose(logits, greedy, torch.tensor([1]))[0].tolist() == [1, 1]
    banned = choice({"temperature": 0.0}, {"temperature": 1e-6}, no_eos=True)
    assert choose(logits, banned, torch.tensor([1, 2]))[0].tolist() == [3, 3]
    keys = noise_keys(np.arange(500, dtype=np.uint64), np.zeros(500, np.int32))
    drawn, _ = choose(
        logits[:1].expand(500, -1), choice({}, no_eos=True, keys=keys, count=500), torch.tensor([1, 2])
    )
    assert sorted(set(drawn.tolist())) == [0, 3]


def test_masked_rows_choose_what_they_may() -> None:
    """Greedy, drawn and filtered; other rows choose as ever, and log-probabilities stay the model's."""
    count, vocab = 400, 50
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(6)).expand(count, -1) * 2
    rows = [({}, {"temperature": 0.0}, {"top_k": 3, "top_p": 0.9}, {"min_p": 0.3})[i % 4] for i in range(count)]
    masked = np.arange(0, count, 3)
    masks = np.random.default_rng(7).random((masked.size, vocab)) < 0.2
    masks[:, 11] = True
    free = choice(*rows)
    tokens, logprobs = choose(logits, replace(free, masked=masked, masks=masks), NO_EOS)
    assert masks[np.arange(masked.size), tokens[masked].numpy()].all()
    torch.testing.assert_close(logprobs, logits.log_softmax(-1)[torch.arange(count), tokens])
    others = np.delete(np.arange(count), masked)
    assert torch.equal(tokens[others], choose(logits, free, NO_EOS)[0][others])
    for row, mask in zip(masked.tolist(), masks, strict=True):
        # Filters see only what the mask leaves.
        left = logits[row].masked_fill(~torch.from_numpy(mask), -torch.inf)
        kept = left[None].softmax(-1) if row % 4 == 1 else filtered(left[None], free, np.array([row]))
        assert kept[0, tokens[row]] > 0
        if row % 4 == 1:
            assert tokens[row] == left.argmax()
    assert len(set(tokens[masked].tolist())) > 5


def test_a_mask_and_banned_ends() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.0, 1.0]])
    how = replace(
        choice({"temperature": 0.0}, no_eos=True),
        masked=np.array([0]),
        masks=np.array([[True, True, False, True]]),
    )
    assert choose(logits, how, torch.tensor([1]))[0].tolist() == [3]


def test_greedy_and_sampled_rows_share_a_batch() -> None:
    logits = torch.randn(4, 40, generator=torch.Generator().manual_seed(4))
    rows = [{"temperature": 0.0}, {"temperature": 1.5}, {"temperature": 0.0}, {"temperature": 0.7}]
    keys = np.array([1, 2, 3, 4], np.uint64)
    tokens, _ = choose(logits, choice(*rows, keys=keys), NO_EOS)
    for index, row in enumerate(rows):
        alone, _ = choose(logits[index : index + 1], choice(row, keys=keys[index : index + 1]), NO_EOS)
        assert alone[0] == tokens[index]


def test_penalties_and_bias_are_openai_s() -> None:
    sampling = Sampling(frequency_penalty=0.5, presence_penalty=-0.25, logit_bias=((7, 3.0), (9, -100.0)))
    assert bias_of(sampling, {}) == {7: 3.0, 9: -100.0}
    assert bias_of(sampling, {7: 2, 4: 1}) == {7: 3.0 - 2 * 0.5 + 0.25, 9: -100.0, 4: -0.5 + 0.25}
    assert bias_of(Sampling(), {7: 2}) == {}
    assert bias_of(Sampling(presence_penalty=1.0), {7: 5}) == {7: -1.0}
    # Infinite ones stay comparable.
    assert bias_of(Sampling(logit_bias=((1, -np.inf), (2, np.inf))), {}) == {1: -1e9, 2: 1e9}


def test_a_bias_moves_its_own_row_alone() -> None:
    """Greedy and drawn; other rows choose as ever, and log-probabilities stay the model's."""
    count, vocab = 300, 40
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(8)).expand(count, -1) * 2
    rows = [{"temperature": 0.0} if i % 2 else {"top_p": 0.95} for i in range(count)]
    free = choice(*rows)
    at = np.repeat(np.arange(0, count, 3), 2)
    ids = np.tile([5, 11], len(at) // 2)
    values = np.tile(np.array([4.0, -3.0], np.float32), len(at) // 2)
    tokens, logprobs = choose(logits, replace(free, bias_at=at, bias_ids=ids, bias=values), NO_EOS)
    torch.testing.assert_close(logprobs, logits.log_softmax(-1)[torch.arange(count), tokens])
    moved = logits.clone()
    moved[:, 5] += 4.0
    moved[:, 11] -= 3.0
    shifted, plain = choose(moved, free, NO_EOS)[0], choose(logits, free, NO_EOS)[0]
    changed = np.isin(np.arange(count), at)
    assert torch.equal(tokens[changed], shifted[changed])
    assert torch.equal(tokens[~changed], plain[~changed])
    assert (shifted != plain).sum() > 50


@pytest.mark.parametrize("penalty", [0.5, 1.3])
def test_repetition_is_that_of_transformers(penalty: float) -> None:
    """Greedy and drawn, beside a bias that comes behind it; other rows choose as ever."""
    from transformers import RepetitionPenaltyLogitsProcessor

    count, vocab, there = 300, 40, [3, 5, 13, 39]
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(9)).expand(count, -1) * 2
    free = choice(*({"temperature": float(i % 2)} for i in range(count)))
    at = np.arange(0, count, 3)
    how = replace(
        free, repeated_at=np.repeat(at, 4), repeated_ids=np.tile(there, len(at)),
        repetition=np.full(4 * len(at), penalty, np.float32), bias_at=at, bias_ids=np.full(len(at), 5),
        bias=np.ones(len(at), np.float32),
    )  # fmt: skip
    tokens, logprobs = choose(logits, how, NO_EOS)
    torch.testing.assert_close(logprobs, logits.log_softmax(-1)[torch.arange(count), tokens])
    moved = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([there] * count), logits.clone())
    moved[:, 5] += 1
    shifted, plain = choose(moved, free, NO_EOS)[0], choose(logits, free, NO_EOS)[0]
    changed = np.isin(np.arange(count), at)
    assert torch.equal(tokens[changed], shifted[changed])
    assert torch.equal(tokens[~changed], plain[~changed])
    assert (shifted != plain).sum() > 20


def test_a_forbidding_bias_leaves_what_a_mask_allows() -> None:
    logits = torch.tensor([[5.0, 3.0, 2.0, 1.0]])
    for temperature in (0.0, 1.0):
        how = replace(
            choice({"temperature": temperature}, no_eos=True),
            masked=np.array([0]),
            masks=np.array([[True, True, False, False]]),
            bias_at=np.array([0, 0]),
            bias_ids=np.array([0, 1]),
            bias=np.array([1e9, -1e9], np.float32),
        )
        assert choose(logits, how, torch.tensor([0]))[0].tolist() == [1]


def test_the_likeliest_are_the_best_of_the_model() -> None:
    logits = torch.randn(6, 90, generator=torch.Generator().manual_seed(9)) * 3
    ids, logprobs = likeliest(logits, 5)
    expected = logits.log_softmax(-1).sort(dim=-1, descending=True)
    assert torch.equal(ids, expected.indices[:, :5])
    torch.testing.assert_close(logprobs, expected.values[:, :5])
