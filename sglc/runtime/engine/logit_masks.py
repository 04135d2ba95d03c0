"""What a step needs beyond its tokens: masks of constrained rows, biases, and whose likeliest ids to report.

Rows that ask for none of it cost nothing here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sglc.ir.sampling import Sampling
from sglc.runtime.scheduler.batch_state import BatchState
from sglc.runtime.scheduler.kv_allocator import RowWork
from sglc.runtime.scheduler.requests import EngineRequest
from sglc.runtime.step import Bool, Step

# What an infinite bias counts as: it outweighs all logits, and where nothing else is allowed, one of
# several banned ids can still be chosen.
_FORBIDDING = 1e9


def steered(step: Step, rows: BatchState, work: Mapping[int, RowWork]) -> Step:
    """`step` with what its rows ask for."""
    if not rows.steers(step):
        return step
    sampling = step.sample
    masked = np.flatnonzero(sampling & rows.constrained[step.rows]).astype(np.int32)
    if masked.size:
        made = rows.made[step.rows[masked]].tolist()
        parts = [work[row].part for row in step.rows[masked].tolist()]
        masks = np.stack([allowed_next(p.request, p.index, n) for p, n in zip(parts, made, strict=True)])
        step = replace(step, masked=masked, masks=masks)
    biased = np.flatnonzero(sampling & rows.biased[step.rows])
    if biased.size:
        step = _biased(step, biased.tolist(), work)
    if rows.tops[step.rows].any():
        step = _with_tops(step, rows)
    return step


def allowed_next(request: EngineRequest, sample: int, made: int) -> Bool:
    """What a sample of a constrained request may go on with after `made` tokens and its run: bool [V]."""
    constraint, state = request.constraint, request.samples[sample]
    assert constraint is not None
    if constraint.slow:
        assert state.ahead is not None, "a mask that nobody asked for"
        known = state.ahead.mask if state.run is None else state.ahead.behind
        assert known is not None
        return np.unpackbits(known, count=state.ahead.size).view(np.bool_)
    if state.run is None:
        return allowed_at(request, state.state, made)
    return allowed_at(request, state.run.state, made + len(state.run.ids))


def allowed_at(request: EngineRequest, at: int, made: int) -> Bool:
    """What a sample may go on with after `made` tokens that lead its constraint to the state `at`: bool [V].

    Ids that end the sample are allowed where the text may end. One that is text too is also allowed
    where that text may follow, and ends the sample there: without it there might be no way on.
    """
    constraint = request.constraint
    assert constraint is not None
    assert request.sampling is not None
    mask = constraint.mask(at)
    if constraint.accepting(at) and made >= request.sampling.min_tokens:
        mask[[token for token in request.stop_ids if token < mask.size]] = True
    assert mask.any(), "a constrained sample has nothing to go on with"
    return mask


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


def _biased(step: Step, offsets: list[int], work: Mapping[int, RowWork]) -> Step:
    at: list[int] = []
    ids: list[int] = []
    values: list[float] = []
    for offset in offsets:
        part = work[int(step.rows[offset])].part
        assert part.request.sampling is not None
        state = part.request.samples[part.index]
        counts = Counter(state.counts)
        counts.update(state.run.ids if state.run is not None else ())
        added = bias_of(part.request.sampling, counts)
        at += [offset] * len(added)
        ids += added
        values += added.values()
    return replace(
        step,
        bias_at=np.array(at, np.int32),
        bias_ids=np.array(ids, np.int32),
        bias=np.array(values, np.float32),
    )


def _with_tops(step: Step, rows: BatchState) -> Step:
    wanted = rows.tops[step.rows]
    owner = np.searchsorted(step.starts, step.score_at, side="right") - 1
    return replace(
        step,
        tops=int(wanted.max()),
        top_rows=np.flatnonzero(step.sample & (wanted > 0)).astype(np.int32),
        top_scores=np.flatnonzero(wanted[owner] > 0).astype(np.int32),
    )
