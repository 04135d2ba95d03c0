"""What a drained step says beyond ids: scores go to their requests, likeliest ids to their places.

A new id is accounted for here too, where its sample has a constraint or penalties.
"""

from __future__ import annotations

from sglc.runtime.scheduler.requests import FORCED, PROMPT, Flight, PromptScored, RequestPart
from sglc.runtime.scheduler.samples import Likely
from sglc.runtime.step import StepResult


def likeliest_at(result: StepResult, index: int, count: int) -> Likely:
    """The `count` likeliest ids at one place of a step, `index` counting the places that asked."""
    return result.top_ids, result.top_logprobs, index, count


def take_scores(flight: Flight, result: StepResult) -> list[PromptScored]:
    """Enter a step's scores into the requests they belong to; gives events for prompts that are through."""
    events = []
    at, top = 0, len(flight.tops)
    for score in flight.scored:
        request = score.request
        values = result.scores[at : at + score.count].tolist()
        at += score.count
        if score.trie == FORCED:
            assert score.run is not None
            assert len(score.run.logprobs) == score.first, "a run's scores come out of order"
            score.run.logprobs += values
            assert request.sampling is not None
            if count := request.sampling.top_logprobs:
                score.run.likeliest += [
                    likeliest_at(result, index, count) for index in range(top, top + score.count)
                ]
                top += score.count
            continue
        if score.trie != PROMPT:
            request.logprobs[score.trie][score.first : score.first + score.count] = values
            continue
        request.prompt_logprobs[score.first : score.first + score.count] = values
        assert request.sampling is not None
        if count := request.sampling.top_logprobs:
            places = range(top, top + score.count)
            request.prompt_likeliest += [likeliest_at(result, index, count) for index in places]
            top += score.count
        if request.live and score.first + score.count == len(request.prompt_logprobs):
            events.append(
                PromptScored(request.id, tuple(request.prompt_logprobs), tuple(request.prompt_likeliest))
            )
    return events


def account(part: RequestPart, token: int) -> bool:
    """Enter a sample's new kept id into its state; whether nothing can follow it, as far as is known.

    Raises:
        SglcError: what the sample is held to cannot go on.
    """
    request, state = part.request, part.request.samples[part.index]
    sampling = request.sampling
    assert sampling is not None
    if sampling.penalised:
        state.counts[token] = state.counts.get(token, 0) + 1
    if request.constraint is None or request.constraint.slow or not request.steered:
        return False
    state.state = request.constraint.advance(state.state, token)
    return request.constraint.done(state.state)
