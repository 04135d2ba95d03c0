"""How `select` decides: the three methods, on SGLang's own example, where each has another answer."""

from __future__ import annotations

from typing import Any

import pytest

import sglc as sgl
from sglc.ir.choice_scoring import Decision, decide

CHOICES = ("organ", "organism", "antidisestablishmentarianism")
# "organ" begins both of the first two; the last one's first id is unlikely, its others follow from it.
LOGPROBS = ((-0.2,), (-0.2, -0.4), (-0.8, -0.01, -0.01, -0.01, -0.01, -0.01))
ALONE = ((None,), (None, -6.0), (None, -0.2, -0.1, -0.1, -0.1, -0.1))
MEANS = (-0.2, -0.3, -0.85 / 6)


def chosen(decision: Decision) -> str:
    return CHOICES[decision.choice]


def test_token_length_normalized_takes_the_best_mean() -> None:
    decision = decide("token_length_normalized", LOGPROBS)
    assert chosen(decision) == "antidisestablishmentarianism"
    assert decision.scores == pytest.approx(MEANS)
    assert decision.matrix == ()


def test_greedy_token_selection_follows_the_best_id_and_a_prefix_can_win() -> None:
    decision = decide("greedy_token_selection", LOGPROBS)
    assert chosen(decision) == "organ"
    assert decision.scores == pytest.approx(MEANS)
    assert decision.matrix == (
        (-0.2,) * 6,
        (-0.2, -0.4, *[pytest.approx(-0.3)] * 4),
        LOGPROBS[2],
    )


def test_a_continuation_likelier_than_the_shorter_text_wins_greedily() -> None:
    decision = decide("greedy_token_selection", ((-0.2,), (-0.2, -0.1), (-0.8, -0.01)))
    assert chosen(decision) == "organism"


def test_of_equal_choices_the_first_wins() -> None:
    for method in ("token_length_normalized", "greedy_token_selection"):
        assert decide(method, ((-0.5, -0.1), (-0.1, -0.5), (-0.5, -0.1))).choice == (
            0 if method.startswith("token") else 1
        )
        assert decide(method, ((-0.5,), (-0.5,))).choice == 0


def test_unconditional_likelihood_takes_what_the_prompt_makes_likelier() -> None:
    decision = decide("unconditional_likelihood_normalized", LOGPROBS, ALONE)
    assert chosen(decision) == "organism"
    assert decision.scores == pytest.approx((-0.2, -0.3 + 3.0, -0.85 / 6 + 0.1))


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (sgl.token_length_normalized, "antidisestablishmentarianism"),
        (sgl.greedy_token_selection, "organ"),
        (sgl.unconditional_likelihood_normalized, "organism"),
    ],
)
def test_a_method_can_be_called_with_log_probabilities_at_hand(method: Any, expected: str) -> None:
    def tokens(logprobs: Any) -> Any:
        return [[(logprob, id_, None) for id_, logprob in enumerate(one)] for one in logprobs]

    decision = method(
        choices=CHOICES,
        normalized_prompt_logprobs=MEANS,
        input_token_logprobs=tokens(LOGPROBS),
        output_token_logprobs=[[], [], []],
        unconditional_token_logprobs=tokens(ALONE),
    )
    assert decision.decision == expected
    assert decision.meta_info["normalized_prompt_logprobs"] == MEANS
