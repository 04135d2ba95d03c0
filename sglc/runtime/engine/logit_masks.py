"""What a step needs beyond its tokens: masks of constrained rows, biases, and whose likeliest ids to report.

Rows that ask for none of it cost nothing here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sglc.runtime.scheduler.batch_state import BatchState
from sglc.runtime.scheduler.kv_allocator import RowWork
from sglc.runtime.scheduler.requests import EngineRequest
from sglc.runtime.scheduler.samples import bias_of
from sglc.runtime.step import I32, Step


def steered(step: Step, rows: BatchState, work: Mapping[int, RowWork]) -> Step:
    """`step` with what its rows ask for."""
    sampling = step.sample
    masked = np.flatnonzero(sampling & rows.constrained[step.rows]).astype(np.int32)
    if masked.size:
        made = rows.made[step.rows[masked]].tolist()
        parts = [work[row].part for row in step.rows[masked].tolist()]
        masks = np.stack([allowed_next(p.request, p.index, n) for p, n in zip(parts, made, strict=True)])
        step = replace(step, masked=masked, masks=masks)
    brought = sampling & rows.biased[step.rows]
    biased = np.flatnonzero(brought)
    if biased.size:
        step = _biased(step, biased.tolist(), work)
    # What an executor keeps begins when a row is opened.
    brought |= (rows.adjusted[step.rows] > 0) & np.isin(step.rows, step.opened.rows)
    repeated = np.flatnonzero(brought & (rows.repetition[step.rows] != 1))
    if repeated.size:
        step = _repeated(step, repeated.tolist(), rows)
    behind = step.rows[step.decoding :]  # those that decode behind a run have taken it before
    moved = step.decoding + np.flatnonzero(rows.forced[behind] & (rows.automaton[behind] >= 0))
    moved = moved[sampling[moved]]
    if moved.size:
        step = replace(step, states=np.array([_moved(int(row), work) for row in step.rows[moved]], np.int32))
    if rows.tops[step.rows].any():
        step = _with_tops(step, rows)
    return step


def allowed_next(request: EngineRequest, sample: int, made: int) -> I32:
    """What a constrained sample may go on with after `made` tokens and its run, as `pack_masks`."""
    constraint, state = request.constraint, request.samples[sample]
    assert constraint is not None
    if constraint.slow:
        assert state.ahead is not None, "a mask that nobody asked for"
        known = state.ahead.mask if state.run is None else state.ahead.behind
        assert known is not None
        return known
    if state.run is None:
        return allowed_at(request, state.state, made)
    return allowed_at(request, state.run.state, made + len(state.run.ids))


def allowed_at(request: EngineRequest, at: int, made: int) -> I32:
    """What a sample may go on with after `made` tokens that lead its constraint to `at`, as `pack_masks`.

    Ids that end the sample are allowed where the text may end. One that is text too is also allowed
    where that text may follow, and ends the sample there: without it there might be no way on.
    """
    constraint = request.constraint
    assert constraint is not None
    assert request.sampling is not None
    words = constraint.bits(at)
    if constraint.accepting(at) and made >= request.sampling.min_tokens:
        bits = words.view(np.uint8)
        for token in request.stop_ids:
            if token < 8 * bits.size:
                bits[token // 8] |= 1 << token % 8
    assert words.any(), "a constrained sample has nothing to go on with"
    return words


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


def _repeated(step: Step, offsets: list[int], rows: BatchState) -> Step:
    """With the ids of prompt and text of rows that have a penalty on them."""
    ids = []
    for offset in offsets:
        row = step.rows[offset]
        behind = rows.seq_len[row] + 1 if offset < step.decoding else rows.prompt_len[row]
        ids.append(np.unique(rows.tokens[row, :behind]))
    counts = [each.size for each in ids]
    return replace(
        step,
        repeated_at=np.repeat(np.array(offsets, np.int32), counts),
        repeated_ids=np.concatenate(ids).astype(np.int32),
        repetition=np.repeat(rows.repetition[step.rows[offsets]], counts),
    )


def _moved(row: int, work: Mapping[int, RowWork]) -> tuple[int, int]:
    """A row that an automaton is followed for, and where that is behind the run that ends with this step."""
    part = work[row].part
    run = part.request.samples[part.index].run
    assert run is not None, "a row that was forced has no run"
    return row, run.state


def _with_tops(step: Step, rows: BatchState) -> Step:
    wanted = rows.tops[step.rows]
    owner = np.searchsorted(step.starts, step.score_at, side="right") - 1
    return replace(
        step,
        tops=int(wanted.max()),
        top_rows=np.flatnonzero(step.sample & (wanted > 0)).astype(np.int32),
        top_scores=np.flatnonzero(wanted[owner] > 0).astype(np.int32),
    )
