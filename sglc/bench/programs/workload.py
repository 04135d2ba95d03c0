"""What a program of the benchmark is: a function and its rows, and the same work for the KV API."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglc.api.function import Function
from sglc.bench.programs.vocabulary import DrawnWords

if TYPE_CHECKING:
    from sglc.bench.work import Shared, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadBatch:
    """A function and the rows of one batch.

    `same`: the ids of the same work, for a run through the KV API. `sampled`: not every generation has
    temperature 0.
    """

    function: Function
    rows: tuple[Mapping[str, Any], ...]
    same: Tree | Shared | None = None
    sampled: bool = False


Make = Callable[..., WorkloadBatch]  # (words, generator, **sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A program by name. `sizes`: what `make` takes, by device. `in_flight`: rows of the runtime on CUDA."""

    name: str
    make: Make
    sizes: Mapping[str, Mapping[str, Any]]
    in_flight: int | None = None

    def batch(self, words: DrawnWords, seed: int, device: str) -> WorkloadBatch:
        """The batch of a seed, in the sizes of a device."""
        return self.make(words, random.Random(f"{self.name} {seed}"), **self.sizes[device])
