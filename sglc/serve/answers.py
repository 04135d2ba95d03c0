"""What all answers are made of: their head, and their token counts."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sglc.frontend.language.reasoning import Tags
from sglc.serve.access_log import SPENT
from sglc.serve.logprobs import Spelling

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


def usage() -> dict[str, Any]:
    """Tokens of an answer that has ended, that of this task's request, as OpenAI writes them.

    A prompt counts once, however many samples it has.
    """
    spent = SPENT.get()
    completion = spent.completion or 0
    return {
        "prompt_tokens": spent.read,
        "completion_tokens": completion,
        "total_tokens": spent.read + completion,
        "prompt_tokens_details": {"cached_tokens": spent.cached},
    }


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
