"""What a sample of a generation has to go on with, or may, and how likely that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sglc.ir.sampling import Sampling
from sglc.runtime.step import F32, I32

# What an infinite bias counts as: it outweighs all logits, and where nothing else is allowed, one of
# several banned ids can still be chosen.
_FORBIDDING = 1e9

# The likeliest ids at a place of a step, best first, and their log-probabilities: those of all places, [P, T],
# the place, and how many. They are read when somebody asks: objects for each would take a tenth of a step.
Likely = tuple[I32, F32, int, int]
NONE_LIKELY: Likely = (np.empty((1, 0), np.int32), np.empty((1, 0), np.float32), 0, 0)


def listed(likely: Likely) -> list[tuple[int, float]]:
    """Ids and their log-probabilities, best first."""
    ids, logprobs, place, count = likely
    return [*zip(ids[place, :count].tolist(), logprobs[place, :count].tolist(), strict=True)]


@dataclass(slots=True, eq=False)
class JumpForward:
    """Ids that a constrained sample has to go on with, and what is known of them so far.

    The first one has position `first`; the constraint's state behind the last one is `state`. With the run
    the sample ends for the reason `finish`, or goes on if that is empty.
    """

    first: int
    ids: tuple[int, ...]
    state: int
    finish: str
    logprobs: list[float] = field(default_factory=list)
    likeliest: list[Likely] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Lookahead:
    """What a sample goes on with behind `state`, found out beside the steps, because it may take long.

    It ends there, goes on with a `run`, or chooses. Fields `mask` and `behind`: what it may choose at `state`
    and behind the run, where there is something to choose, as `pack_masks`: many may wait for a row.
    """

    state: int
    ends: bool = False
    run: JumpForward | None = None
    mask: I32 | None = None
    behind: I32 | None = None


def bias_of(sampling: Sampling, counts: Mapping[int, int]) -> dict[int, float]:
    """What is added to the logits of which ids, `counts` being how often each was generated.

    OpenAI's definition: bias - count * frequency_penalty - (1 if count else 0) * presence_penalty.
    """
    added = dict(sampling.logit_bias)
    if sampling.frequency_penalty or sampling.presence_penalty:
        for token, count in counts.items():
            penalty = count * sampling.frequency_penalty + sampling.presence_penalty
            added[token] = added.get(token, 0.0) - penalty
    return {token: max(-_FORBIDDING, min(value, _FORBIDDING)) for token, value in added.items()}
