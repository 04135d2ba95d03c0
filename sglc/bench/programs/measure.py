"""Runs batches with passes on and off and as Python, in turns, and says what each took."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from sglc.backends.local import LocalBackend
from sglc.backends.with_passes import WithPasses
from sglc.bench.programs.prefixes import fewest_computed
from sglc.bench.programs.workload import WorkloadBatch
from sglc.bench.result import Case, percentile, short, timed_case
from sglc.execution.options import Mode
from sglc.execution.result import Result
from sglc.passes.pipelines import MINIMAL

_SEED = 1  # of samples: the same on all sides


@dataclass(frozen=True, slots=True)
class Side:
    """How a batch runs: with the target's own passes or with what lowering needs, as plans or as Python."""

    name: str
    passes: bool = True
    mode: Mode = "auto"


ON, OFF, PYTHON = Side("passes on"), Side("passes off", passes=False), Side("as Python", mode="python")
SIDES = (ON, OFF, PYTHON)


@dataclass(frozen=True, slots=True)
class Round:
    """One batch, from the call of `run_batch` to its return."""

    seconds: float
    latencies: tuple[float, ...]  # of the programs, from when they were begun
    counts: Mapping[str, int]
    fewest: int  # prompt tokens that had to be computed
    texts: tuple[tuple[tuple[str, tuple[int, ...]], ...], ...]  # by row: (site, what was made there)


def run_round(batch: WorkloadBatch, backend: LocalBackend, side: Side) -> Round:
    """One batch on an empty cache.

    Raises:
        SglcError: a row failed.
    """
    backend.flush_cache()
    target = backend if side.passes else WithPasses(backend, MINIMAL)
    gc.collect()
    before = backend.server_info()
    began = perf_counter()
    results = batch.function.run_batch(
        list(batch.rows), backend=target, seed=_SEED, hoist_prefix=side.passes, mode=side.mode
    )
    seconds = perf_counter() - began
    after = backend.server_info()
    for result in results:
        if (error := result.error()) is not None:
            raise error
    counts = {name: after[name] - before[name] for name in ("submits", "steps", "rested_us")}
    return _round(results, seconds, counts)


def _round(results: Sequence[Result], seconds: float, counts: Mapping[str, int]) -> Round:
    calls = [call for result in results for call in result.calls]
    usages = [call.usage for call in calls]
    by_row = [
        {str(call.site): call.samples[0].ids if call.samples else (call.choice,) for call in result.calls}
        for result in results
    ]
    return Round(
        seconds=seconds,
        latencies=tuple(result.as_json()["timing"]["total_s"] for result in results),
        counts={
            "programs": len(results),
            "calls": len(calls),
            "prompt_tokens": sum(usage.prompt for usage in usages),
            "cached_tokens": sum(usage.cached for usage in usages),
            "computed_tokens": sum(usage.computed for usage in usages),
            "scored_tokens": sum(usage.scored for usage in usages),
            "tokens_out": sum(usage.completion for usage in usages),
            **counts,
        },
        fewest=fewest_computed((call.prompt_ids, [sample.ids for sample in call.samples]) for call in calls),
        texts=tuple(tuple(sorted(row.items())) for row in by_row),
    )  # fmt: skip


def compare(
    name: str, batch: WorkloadBatch, warm_up: WorkloadBatch, backend: LocalBackend, rounds: int
) -> dict[Side, list[Round]]:
    """`rounds` rounds of each side, in turns, behind a batch that nobody measures."""
    for side in SIDES:
        run_round(warm_up, backend, side)
    made: dict[Side, list[Round]] = {side: [] for side in SIDES}
    for number in range(rounds):
        for side in SIDES if number % 2 == 0 else reversed(SIDES):
            made[side].append(run_round(batch, backend, side))
        seconds = ", ".join(f"{side.name} {rounds[-1].seconds:.3f} s" for side, rounds in made.items())
        print(f"sglc: {name}, round {number + 1} of {rounds}: {seconds}", file=sys.stderr, flush=True)
    return made


def case(name: str, rounds: Sequence[Round], **figures: float) -> Case:
    """What the rounds of one side come to; counts are of the last one."""
    last = rounds[-1]
    prompt, computed = last.counts["prompt_tokens"], last.counts["computed_tokens"]
    seconds = [round.seconds for round in rounds]
    latencies = [latency for round in rounds for latency in round.latencies]
    return timed_case(
        name,
        "programs/s",
        short(last.counts["programs"] / median(seconds)),
        seconds,
        counts={**last.counts, "fewest_computed_tokens": last.fewest},
        figures={
            "hit_rate": round(1 - computed / prompt, 4),
            "best_hit_rate": round(1 - last.fewest / prompt, 4),
            "p50_s": round(percentile(latencies, 50), 4),
            "p95_s": round(percentile(latencies, 95), 4),
            **figures,
        },
    )


def equal_share(one: Round, other: Round) -> float:
    """Share of the generations and choices that came out the same."""
    pairs = [
        mine == its
        for row, other_row in zip(one.texts, other.texts, strict=True)
        for mine, its in zip(row, other_row, strict=True)
    ]
    return sum(pairs) / len(pairs)
