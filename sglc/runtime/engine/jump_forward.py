"""Ids that a constrained sample has to go on with: they pass through the model at once, as a prompt does.

Where a mask allows one id, sampling it is certain, so the ids of such a run, their log-probabilities and
the noise behind them are those of a run that samples each of them in a step of its own.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import reduce

from sglc.errors import SglcError
from sglc.runtime.constraints import give_way
from sglc.runtime.engine.logit_masks import allowed_at
from sglc.runtime.engine.scores import account
from sglc.runtime.scheduler.batch_state import BatchState, PrefillChunk
from sglc.runtime.scheduler.kv_allocator import KVAllocator
from sglc.runtime.scheduler.requests import (
    EngineEvent,
    EngineRequest,
    RequestPart,
    Token,
    scored_places,
)
from sglc.runtime.scheduler.samples import NONE_LIKELY, JumpForward, Lookahead

_WORTH_WAITING = 4  # ids of a run: one of them is sampled meanwhile, and one more with the run's step
_MOST = 32  # ids of a run: a grammar may have more, and other requests wait while they are looked for


def forced_run(request: EngineRequest, state: int, made: int) -> JumpForward | None:
    """What a sample has to go on with behind its `made` ids, which lead to `state`; None if it may choose.

    A run ends where the text does, at `max_tokens`, before an id that may end the sample, and with `_MOST` ids.

    Raises:
        SglcError: what the sample is held to cannot go on.
    """
    constraint, sampling = request.constraint, request.sampling
    assert sampling is not None
    if constraint is None:
        return None
    ids: list[int] = []
    finish = ""
    while not finish and len(ids) < _MOST:
        may_stop = bool(request.stop_ids) and made + len(ids) >= sampling.min_tokens
        if may_stop and constraint.accepting(state):
            break
        give_way.pause()
        token = constraint.only(state)
        if token is None or token in request.stop_ids:
            break
        ids.append(token)
        state = constraint.advance(state, token)
        if constraint.done(state):
            finish = "stop"
        elif made + len(ids) == sampling.max_tokens:
            finish = "length"
    return JumpForward(len(request.ids) + made, tuple(ids), state, finish) if ids else None


def look_ahead(request: EngineRequest, state: int, token: int | None, made: int, *, last: bool) -> Lookahead:
    """What a sample goes on with behind its `made` ids; before the last one, `token`, it was at `state`.

    If that is the last one there may be, only whether it ends the text is looked at.

    Raises:
        SglcError: what the sample is held to cannot go on.
    """
    constraint = request.constraint
    assert constraint is not None
    if token is not None:
        state = constraint.advance(state, token)
        ends = constraint.done(state)
        if ends or last:
            return Lookahead(state, ends)
    run = forced_run(request, state, made)
    mask = allowed_at(request, state, made)
    behind = None
    if run is not None and not run.finish:
        behind = allowed_at(request, run.state, made + len(run.ids))
    return Lookahead(state, run=run, mask=mask, behind=behind)


def next_run(rows: BatchState, row: int, part: RequestPart) -> JumpForward | None:
    """What the sample of a row has to go on with behind the ids it has; None if it may choose.

    Raises:
        SglcError: what the sample is held to cannot go on.
    """
    request, sample, made = part.request, part.request.samples[part.index], int(rows.made[row])
    if request.constraint is None:
        return None
    if not request.steered:
        ids = rows.sampled(row)[0]
        sample.state = reduce(request.constraint.advance, ids[sample.followed :], sample.state)
        sample.followed = len(ids)
    if not request.constraint.slow:
        return forced_run(request, sample.state, made)
    assert sample.ahead is not None, "a run that nobody asked for"
    run = sample.ahead.run  # of a row that gives way it is begun again
    return None if run is None else replace(run, logprobs=[], likeliest=[])


def worth_waiting(rows: BatchState, row: int, part: RequestPart) -> bool:
    """Whether what a row has to go on with takes more steps than it waits for."""
    run = next_run(rows, row, part)
    return run is not None and len(run.ids) >= _WORTH_WAITING


def force(allocator: KVAllocator, row: int, part: RequestPart) -> None:
    """If the row's sample has no choice what to go on with, that need not be sampled.

    Raises:
        SglcError: what the sample is held to cannot go on.
    """
    run = next_run(allocator.rows, row, part)
    # Without pages for all of it the ids are sampled one by one: there is one to choose from each time.
    if run is not None and allocator.force(row, run.ids, ends=bool(run.finish)):
        part.request.samples[part.index].run = run


def stretched(allocator: KVAllocator, chunk: PrefillChunk, left: int) -> PrefillChunk:
    """The chunk of a row that is held to a constraint; with its prompt's end goes what has to follow.

    That is `left` tokens more at most.
    """
    rows, row, work = allocator.rows, chunk.row, allocator.work[chunk.row]
    first = int(rows.seq_len[row])
    ends = not rows.forced[row] and first + chunk.tokens == rows.prompt_len[row]
    if not ends or work.publish:  # what is published has to end with the prompt
        return chunk
    run = None
    with suppress(SglcError):  # what is wrong is said when it is come to
        run = next_run(rows, row, work.part)
    if run is None or len(run.ids) > left or not allocator.force(row, run.ids, ends=bool(run.finish)):
        return chunk
    work.part.request.samples[work.part.index].run = run
    tokens = int(rows.prompt_len[row]) - first
    return PrefillChunk(row, tokens, chunk.scored + scored_places(work.part, first, tokens))


def land(rows: BatchState, row: int, part: RequestPart) -> list[EngineEvent]:
    """The run of a row is through: its ids are the sample's, and known. Gives events for who watches."""
    request, state = part.request, part.request.samples[part.index]
    run, state.run = state.run, None
    assert run is not None, f"row {row} has no run"
    assert len(run.logprobs) == len(run.ids), "a run lands without its scores"
    rows.enter(row, run.logprobs)
    state.likeliest += run.likeliest
    for token in run.ids:
        account(part, token)
    if request.constraint is not None and request.constraint.slow:
        state.state = run.state
    if not request.watch:
        return []
    listed = zip(run.ids, run.logprobs, run.likeliest or [NONE_LIKELY] * len(run.ids), strict=True)
    return [Token(request.id, part.index, token, logprob, likely) for token, logprob, likely in listed]
