"""The decisions of one step, as plain numbers."""

from __future__ import annotations

import random

import pytest

from sglc.runtime.scheduler import scheduler
from sglc.runtime.scheduler.scheduler import divide, worth_waiting
from sglc.runtime.step import StepCost


def test_decode_comes_first_then_prompts_in_order() -> None:
    assert divide(10, 4, [3, 5, 7]) == ([3, 3, 0], 0)
    assert divide(10, 0, [3]) == ([3], 7)
    assert divide(4, 4, [9]) == ([0], 0)
    assert divide(4, 1, []) == ([], 3)


def test_more_rows_than_tokens_cannot_have_been_admitted() -> None:
    with pytest.raises(AssertionError, match="more rows decode"):
        divide(3, 4, [])


def test_the_budget_is_never_exceeded_and_never_wasted() -> None:
    rng = random.Random(0)
    for _ in range(2_000):
        budget = rng.randint(1, 64)
        decoding = rng.randint(0, budget)
        prompts = [rng.randint(1, 40) for _ in range(rng.randint(0, 6))]
        chunks, left = divide(budget, decoding, prompts)
        assert decoding + sum(chunks) + left == budget
        assert all(0 <= chunk <= tokens for chunk, tokens in zip(chunks, prompts, strict=True))
        assert left == 0 or chunks == prompts


def test_waiting_for_a_prefix_has_to_pay() -> None:
    assert worth_waiting(known=0, limit=1_000) == 16
    assert worth_waiting(known=0, limit=9) == 1  # most of a short prompt may be there soon
    assert worth_waiting(known=0, limit=100) == 5  # more than a common first word
    assert worth_waiting(known=600, limit=640) == 602
    assert worth_waiting(known=639, limit=640) == 640


# Of a model whose products of 256 tokens fill a device: of one more, they take half as long again.
COST = StepCost(
    products_s=((1, 8e-3), (64, 8.5e-3), (128, 9e-3), (256, 12e-3), (320, 19e-3), (512, 23e-3), (1024, 46e-3)),
    key_s=40e-9,
    pair_s=4e-9,
)


@pytest.mark.parametrize("decoding", [1, 32, 200, 400])
@pytest.mark.parametrize("position", [0, 1000, 30_000])
def test_a_step_with_prompts_takes_at_most_twice_one_of_decode_alone(decoding: int, position: int) -> None:
    keys = decoding * 800
    tokens = scheduler.affordable(COST, decoding, keys, position) - decoding
    least = scheduler.short_prompt(COST) // 8
    assert tokens >= least > 0

    def seconds(tokens: int) -> float:
        products = next(s for size, s in COST.products_s if size >= decoding + tokens)
        return products + keys * COST.key_s + tokens * position * COST.pair_s

    pure = seconds(0)
    if tokens > least:
        assert seconds(tokens) <= COST.stretch * pure + 1e-9
    # No more is held back than has to be.
    assert all(seconds(more) > COST.stretch * pure for more in range(tokens + 1, 1024 - decoding))


def test_what_costs_a_leap_is_left_out() -> None:
    assert scheduler.affordable(COST, 32, 0, 0) == 256  # 19 ms would be more than 1.6 times 8.5
