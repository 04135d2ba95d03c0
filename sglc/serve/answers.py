"""What all answers are made of: their head, and their token counts."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sglc.frontend.language.reasoning import Tags
from sglc.ir.plan.events import GenDone
from sglc.serve.logprobs import Spelling
from sglc.serve.work import Piece, Work, cached_of

_RANDOM = random.Random()  # nothing is secret of an id, and the system's own numbers take a call each


@dataclass(frozen=True)
class Answer:
    """One answer, whole or in chunks.

    Args:
        kind: OpenAI's name of the object.
        prefix: that ids of such objects begin with.
    """

    kind: str
    prefix: str
    model: str
    spelling: Spelling
    tags: Tags | None = None  # between which reasoning stands, where it is told apart
    id: str = field(default_factory=lambda: f"{_RANDOM.getrandbits(128):032x}")
    created: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970

    @cached_property
    def head(self) -> dict[str, Any]:
        """The fields that every object of the answer begins with."""
        return {
            "id": f"{self.prefix}-{self.id}",
            "object": self.kind,
            "created": self.created,
            "model": self.model,
        }


@dataclass(slots=True)
class Counts:
    """Tokens of an answer. A prompt counts once, however many samples it has."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0

    def shown(self) -> dict[str, Any]:
        """As OpenAI writes them."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    def add(self, work: Work, piece: Piece) -> None:
        """Count what a piece ends."""
        if piece.ended is not None:
            self.completion += piece.usage.completion
            if work.first(piece.choice):
                size = len(work.prompt_of(piece.choice).ids)
                self.prompt += size
                self.cached += cached_of(piece.usage, size)


def counted(work: Work, ends: Sequence[GenDone]) -> Counts:
    """The counts of a whole answer."""
    sizes = [len(prompt.ids) for prompt in work.prompts]
    return Counts(
        sum(sizes),
        sum(end.usage.completion for end in ends),
        sum(cached_of(end.usage, size) for end, size in zip(ends, sizes, strict=True)),
    )


def with_usage(chunk: dict[str, Any], wanted: bool) -> dict[str, Any]:
    """A chunk of a stream that ends with its token counts says so by a null."""
    return {**chunk, "usage": None} if wanted else chunk


def joined(logprobs: Iterable[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    """Log-probabilities of a prompt and of what follows, as one object."""
    made: dict[str, list[Any]] = {}
    for each in logprobs:
        for key, values in each.items():
            made.setdefault(key, []).extend(values)
    return made
