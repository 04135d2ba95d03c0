"""One generation or choice as it went, and how SGLang's programs read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sglc.errors import Loc
from sglc.ir.core import Site
from sglc.ir.plan import Sample, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One generation or choice. Times are seconds since the run began."""

    site: Site
    loc: Loc
    kind: str  # "gen" or "select"
    prompt_ids: tuple[int, ...]
    samples: tuple[Sample, ...] = ()
    choice: int = -1
    scores: tuple[float, ...] = ()
    choice_ids: tuple[tuple[int, ...], ...] = ()
    logprobs: tuple[tuple[float, ...], ...] = ()
    usage: Usage
    started_s: float
    first_s: float  # first text, or the end where none came before
    ended_s: float


def total(calls: Sequence[Call]) -> Usage:
    """The sum of the calls' counts."""
    return sum((call.usage for call in calls), Usage())


def meta_info(call: Call) -> dict[str, Any]:
    """SGLang's keys of a call, then the fields of `Call`.

    Log-probabilities are triples (log-probability, id, None); `input_token_logprobs` of a choice has one
    list for each text to choose from. Of several samples `finish_reason` and `output_token_logprobs` are
    the first one's; `samples` has all.
    """
    shared = {
        "prompt_tokens": call.usage.prompt,
        "completion_tokens": call.usage.completion,
        "cached_tokens": call.usage.cached,
    }
    own = asdict(call)
    if call.kind == "select":
        scored = [_triples(logprobs, ids) for logprobs, ids in zip(call.logprobs, call.choice_ids, strict=True)]
        return {
            **shared,
            "normalized_prompt_logprobs": list(call.scores),
            "input_token_logprobs": scored,
            "output_token_logprobs": [[] for _ in scored],
            **own,
        }
    first = call.samples[0]
    finish = {"type": first.finish}
    return {
        **shared,
        "finish_reason": {**finish, "length": len(first.ids)} if first.finish == "length" else finish,
        "input_token_logprobs": [],
        "output_token_logprobs": _triples(first.logprobs, first.ids),
        **own,
    }


def meta_so_far() -> dict[str, Any]:
    """`meta_info` of a generation that is still going on: its lists are empty, so that lists add up."""
    return {"finish_reason": None, "input_token_logprobs": [], "output_token_logprobs": []}


def _triples(logprobs: Sequence[float], ids: Sequence[int]) -> list[tuple[float, int, None]]:
    return [(logprob, id_, None) for logprob, id_ in zip(logprobs, ids, strict=True)]
