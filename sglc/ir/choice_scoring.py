"""How `select` decides: scores of choices from the log-probabilities of their ids.

The methods and their names are SGLang's (Zheng et al. 2024); a mean here counts every id.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def fmean(values: Sequence[float]) -> float:
    """The mean of at least one number."""
    return sum(values) / len(values)


# Methods that also want each choice's log-probabilities without the prompt.
NEEDS_UNCONDITIONAL = frozenset({"unconditional_likelihood_normalized"})


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen index, a score for every choice, and of the greedy method the matrix it compared."""

    choice: int
    scores: tuple[float, ...]
    matrix: tuple[tuple[float, ...], ...] = ()


def decide(
    method: str,
    logprobs: Sequence[Sequence[float]],
    unconditional: Sequence[Sequence[float | None]] = (),
) -> Decision:
    """What a method decides.

    Args:
        logprobs: of each choice's ids after the prompt, natural log.
        unconditional: of each choice's ids without the prompt; None for the first, which counts as 0.

    Raises:
        AssertionError: an unknown method; the frontend refuses it with a place.
    """
    means = tuple(fmean(values) for values in logprobs)
    match method:
        case "token_length_normalized":
            return Decision(best(means), means)
        case "greedy_token_selection":
            matrix = _matrix(logprobs, means)
            return Decision(_greedy(matrix), means, matrix)
        case "unconditional_likelihood_normalized":
            scores = tuple(
                mean - fmean([value or 0.0 for value in alone])
                for mean, alone in zip(means, unconditional, strict=True)
            )
            return Decision(best(scores), scores)
        case _:
            raise AssertionError(method)


def probabilities(logprobs: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """How probable each choice is, given that it is one of them, from the log-probabilities of its ids."""
    sums = [sum(values) for values in logprobs]
    weights = [math.exp(value - max(sums)) for value in sums]
    return tuple(weight / sum(weights) for weight in weights)


def best(scores: Sequence[float]) -> int:
    """The index of the highest score, the first of several."""
    return max(range(len(scores)), key=lambda i: scores[i])


def _matrix(logprobs: Sequence[Sequence[float]], means: Sequence[float]) -> tuple[tuple[float, ...], ...]:
    """A row for each choice. One that has ended goes on with its own mean, so that a prefix can win."""
    longest = max(len(values) for values in logprobs)
    rows = zip(logprobs, means, strict=True)
    return tuple((*values, *(mean for _ in range(longest - len(values)))) for values, mean in rows)


def _greedy(matrix: Sequence[Sequence[float]]) -> int:
    """The choice that greedy decoding would follow longest: id by id, only the best stay."""
    left = list(range(len(matrix)))
    for place in range(len(matrix[0])):
        highest = max(matrix[i][place] for i in left)
        left = [i for i in left if matrix[i][place] == highest]
        if len(left) == 1:
            break
    return left[0]
