"""What is served, and how: what all endpoints know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglc.frontend.language.reasoning import Tags
from sglc.ir.sampling import Sampling
from sglc.serve.drain import Drain
from sglc.serve.limits import Limits, Queue, check_counts, check_sizes
from sglc.serve.metrics import Metrics
from sglc.serve.problems import Refusal
from sglc.serve.prompts import ServedPrompt, ServedTokenizer, at_once_or_apart, of_given
from sglc.serve.sampling import held_at_once
from sglc.serve.work import ServedBackend


@dataclass(frozen=True, slots=True)
class Service:
    """What is served, and how.

    Args:
        name: of the model, as requests name it.
        max_len: tokens of a prompt and its answer together.
        stall_s: as in `EventStream`.
        reasoning: the tags that the model writes reasoning between, which answers have apart then.
        folder: with the model's files, if it has any.
    """

    backend: ServedBackend
    tokenizer: ServedTokenizer
    name: str
    max_len: int
    stall_s: float = 60.0
    reasoning: Tags | None = None
    limits: Limits = field(default_factory=Limits)
    drain: Drain = field(default_factory=Drain)
    queue: Queue = field(default_factory=Queue)
    metrics: Metrics = field(default_factory=Metrics)
    folder: Path | None = None


def check_model(service: Service, model: str | None) -> None:
    """Raises Refusal: 404, the server has another model."""
    if model not in (None, service.name):
        message = f"there is no model `{model}` here; this server has `{service.name}`"
        raise Refusal(404, message, param="model", code="model_not_found")


def tags_of(service: Service, sampling: Sampling) -> Tags | None:
    """What a chat's answer has its reasoning between; one held to a form from its first token on has none."""
    return None if held_at_once(sampling) else service.reasoning


async def prompts_of(
    service: Service, given: Sequence[Any], field: str, samples: int = 1
) -> list[ServedPrompt]:
    """The prompts of a `field`, texts or lists of token ids, of each of which so many samples are wanted.

    Raises:
        Refusal: more of them than are taken, or what `of_given` says of one.
    """
    check_counts(service.limits, given, field, samples)
    check_sizes(given, field, service.max_len, service.limits.characters)
    return await at_once_or_apart(given, of_given, service.tokenizer, given, field, service.max_len)
