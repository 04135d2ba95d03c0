"""How `select` decides: scores of choices from the log-probabilities of their ids.

The methods and their names are SGLang's (Zheng et al. 2024); a mean here counts every id.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Methods that also want each choice's log-probabilities without the prompt.
NEEDS_UNCONDITIONAL = frozenset({"unconditional_likelihood_normalized"})


def decide(
    method: str, logprobs: Sequence[Sequence[float]], unconditional: Sequence[Sequence[float]] = ()
) -> tuple[int, tuple[float, ...]]:
    """The chosen index, and a score for every choice.

    Args:
        logprobs: of each choice's ids after the prompt, natural log.
        unconditional: of each choice's ids without the prompt; the first id of a choice has 0.

    Raises:
        AssertionError: an unknown method; the frontend refuses it with a place.
    """
    means = tuple(float(np.mean(values)) for values in logprobs)
    match method:
        case "token_length_normalized":
            return int(np.argmax(means)), means
        case "greedy_token_selection":
            return _greedy(logprobs, means), means
        case "unconditional_likelihood_normalized":
            scores = tuple(
                mean - float(np.mean(alone)) for mean, alone in zip(means, unconditional, strict=True)
            )
            return int(np.argmax(scores)), scores
        case _:
            raise AssertionError(method)


def _greedy(logprobs: Sequence[Sequence[float]], means: Sequence[float]) -> int:
    """The choice that greedy decoding would follow longest: id by id, only the best stay.

    A choice that has ended goes on with its own mean, so that a prefix of another can win.
    """
    left = list(range(len(logprobs)))
    for place in range(max(len(values) for values in logprobs)):
        column = [logprobs[i][place] if place < len(logprobs[i]) else means[i] for i in left]
        best = max(column)
        left = [i for i, value in zip(left, column, strict=True) if value == best]
        if len(left) == 1:
            break
    return left[0]
