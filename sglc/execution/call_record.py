"""One generation or choice as it went, and how SGLang's programs read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sglc.errors import Loc
from sglc.ir.choice_scoring import probabilities
from sglc.ir.core import Site
from sglc.ir.plan.events import Delta, GenDone, Sample, SelectDone, TokenLogprob, Usage
from sglc.ir.plan.segment import GenNode, SelectNode


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One generation or choice. Times are seconds since the run began."""

    site: Site
    loc: Loc
    kind: str  # "gen" or "select"
    prompt_ids: Sequence[int]
    samples: tuple[Sample, ...] = ()
    choice: int = -1
    decided: str = ""  # how a choice was made: `SelectDone.decided`
    scores: tuple[float, ...] = ()
    choice_ids: tuple[tuple[int, ...], ...] = ()
    logprobs: tuple[tuple[float, ...], ...] = ()
    unconditional: tuple[tuple[float | None, ...], ...] = ()
    greedy_matrix: tuple[tuple[float, ...], ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    prompt_top_logprobs: tuple[tuple[TokenLogprob, ...] | None, ...] = ()
    usage: Usage
    started_s: float
    first_s: float  # first text, or the end where none came before
    ended_s: float


def call_of(
    node: GenNode | SelectNode, event: GenDone | SelectDone, started_s: float, first_s: float, ended_s: float
) -> CallRecord:
    """The call that `node` asked for and `event` ended."""
    match event:
        case GenDone():
            return CallRecord(
                site=node.site, loc=node.loc, kind="gen", prompt_ids=event.prompt_ids, samples=event.samples,
                prompt_logprobs=event.prompt_logprobs, prompt_top_logprobs=event.prompt_top_logprobs,
                usage=event.usage, started_s=started_s, first_s=first_s, ended_s=ended_s,
            )  # fmt: skip
        case SelectDone():
            return CallRecord(
                site=node.site, loc=node.loc, kind="select", prompt_ids=event.prompt_ids, choice=event.choice,
                scores=event.scores, choice_ids=event.choice_ids, logprobs=event.logprobs,
                unconditional=event.unconditional, greedy_matrix=event.greedy_matrix, decided=event.decided,
                usage=event.usage, started_s=started_s, first_s=first_s, ended_s=ended_s,
            )  # fmt: skip


def meta_info(call: CallRecord) -> dict[str, Any]:
    """SGLang's keys of a call, then the fields of `CallRecord`.

    Log-probabilities are triples (log-probability, id, text), the text None unless it was asked for;
    lists of the likeliest ids hold a list of triples for each place, None for a prompt's first id, and
    nothing unless they were asked for. `input_token_logprobs` of a choice has one list for each text
    to choose from; `probabilities` says how probable each text is, given that it is one of them. Of
    several samples `finish_reason` and the output's lists are the first one's; `samples` has all.
    """
    fields = {**asdict(replace(call, prompt_ids=())), "prompt_ids": tuple(call.prompt_ids)}
    shared = {
        "prompt_tokens": call.usage.prompt,
        "completion_tokens": call.usage.completion,
        "cached_tokens": call.usage.cached,
    }
    if call.kind == "select":
        return {**shared, **_select_info(call), **fields}
    first = call.samples[0]
    texts = first.texts or (None,) * len(first.ids)
    return {
        **shared,
        "finish_reason": first.finish_reason,
        "input_token_logprobs": list(call.prompt_logprobs),
        "output_token_logprobs": list(zip(first.logprobs, first.ids, texts, strict=True)),
        "input_top_logprobs": _lists(call.prompt_top_logprobs),
        "output_top_logprobs": _lists(first.top_logprobs),
        **fields,
    }


def meta_so_far(delta: Delta | None) -> dict[str, Any]:
    """`meta_info` of a generation that is still going on: the log-probabilities that came with `delta`.

    The lists of all pieces and of `meta_rest` add up to those of `meta_info`.
    """
    told = delta or Delta(0, "")
    return {
        "finish_reason": None,
        "input_token_logprobs": list(told.prompt_logprobs),
        "output_token_logprobs": list(told.tokens),
        "input_top_logprobs": _lists(told.prompt_top_logprobs),
        "output_top_logprobs": _lists(told.top_logprobs),
    }


def meta_rest(call: CallRecord, told: Sequence[Delta]) -> dict[str, Any]:
    """`meta_info` of a generation that is over, its lists without what the deltas `told` had."""
    meta = meta_info(call)
    if told:
        tokens = sum(len(delta.tokens) for delta in told)
        for key, count in (
            ("input_token_logprobs", len(call.prompt_logprobs)),
            ("output_token_logprobs", tokens),
            ("input_top_logprobs", len(call.prompt_top_logprobs)),
            ("output_top_logprobs", tokens),
        ):
            meta[key] = meta[key][count:]
    return meta


def _select_info(call: CallRecord) -> dict[str, Any]:
    scored = [_triples(logprobs, ids) for logprobs, ids in zip(call.logprobs, call.choice_ids, strict=True)]
    info: dict[str, Any] = {
        "normalized_prompt_logprobs": list(call.scores),
        "input_token_logprobs": scored,
        "output_token_logprobs": [[] for _ in scored],
    }
    if call.logprobs:
        info["probabilities"] = list(probabilities(call.logprobs))
    if call.greedy_matrix:
        info["greedy_logprob_matrix"] = [list(row) for row in call.greedy_matrix]
    if call.unconditional:
        alone = zip(call.unconditional, call.choice_ids, strict=True)
        info["unconditional_token_logprobs"] = [_triples(logprobs, ids) for logprobs, ids in alone]
        info["normalized_unconditional_prompt_logprobs"] = list(call.scores)
        info["normalized_prompt_logprobs"] = [sum(values) / len(values) for values in call.logprobs]
    return info


def _lists(places: Sequence[tuple[TokenLogprob, ...] | None]) -> list[list[TokenLogprob] | None]:
    return [None if place is None else list(place) for place in places]


def _triples(logprobs: Sequence[float | None], ids: Sequence[int]) -> list[TokenLogprob]:
    return [(logprob, id_, None) for logprob, id_ in zip(logprobs, ids, strict=True)]
