"""Rows behind one long prefix: decode with the prefix's keys read once for all rows, and once for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from sglc.bench import floor, work
from sglc.bench.options import Options
from sglc.bench.profile import Profile
from sglc.bench.result import BenchResult, Case, seconds_case
from sglc.bench.rig import PAGE_SIZE, Needs, Rig, make_rig, place
from sglc.bench.session import WARM_UP_SEED, BenchSession, repeat

SIZES: dict[str, dict[str, Any]] = {
    "cuda": {"prefix": 4096, "rows": 64, "out": 256},
    "cpu": {"prefix": 256, "rows": 8, "out": 16},
}


class Forked(BenchSession):
    """From `steady` on all rows decode; `left` tokens are still to come then."""

    steady = 0.0
    left = 0

    def decode(self, todo: work.ForkWork) -> Self:
        """Run `todo` to its end."""
        base = self.engine.extend(None, todo.prefix)
        for handle in self.engine.fork(base, todo.rows):
            self.gen(handle, (), todo.out, tracked=True)
            self.engine.release(handle)
        while len(self.first) < todo.rows:
            self.step()
        self.steady = self.step_ends[-1]
        self.left = sum(todo.out - int(self.engine.rows.made[row]) for row in self.rows().values())
        return self.run()


def fork(options: Options) -> BenchResult:
    """On CUDA with and without the cascade, on the CPU as it is."""
    device = place(options)
    size = SIZES[device]
    rows, longest = size["rows"], size["prefix"] + size["out"] + 1
    # Two executors follow each other, so neither takes what memory there is. Rows take pages in advance.
    pool = 2 * (size["prefix"] + rows * (size["out"] + 8 * PAGE_SIZE))
    needs = Needs(longest=longest, side_by_side=rows, rows=rows, pool=pool)
    todo, warm = work.fork(5 + options.seed, **size), work.fork(WARM_UP_SEED, **size)

    def measured(asked: Options, name: str) -> tuple[Case, Profile | None, Rig]:
        rig = make_rig(asked, needs)
        Forked(rig).decode(warm)
        rounds, profile = repeat(asked.rounds, asked.profile, lambda p: Forked(rig, p).decode(todo))
        return _case(name, rig, todo, rounds, asked.cascade), profile, replace(rig, executor=None)

    name = "CPU executor" if device == "cpu" else "cascade" if options.cascade else "no cascade"
    case, profile, rig = measured(options, name)
    cases = [case]
    if name == "cascade":
        other, _, _ = measured(replace(options, cascade=False, profile=False), "no cascade")
        ratio = round(case.value / other.value, 3)
        cases = [replace(case, figures={**case.figures, "times_no_cascade": ratio}), other]
    return BenchResult(
        workload="fork", what="decode of rows behind one prefix", model=rig.model, work=size,
        cases=tuple(cases), setting=rig.setting, profile=profile,
    )  # fmt: skip


def _case(name: str, rig: Rig, todo: work.ForkWork, rounds: Sequence[Forked], cascade: bool) -> Case:
    tokens, prefix = rounds[-1].left, len(todo.prefix)
    least = None
    if rig.ceilings is not None:
        steps = tokens // todo.rows  # the last ones: a row sees the prefix and what it has sampled
        shared, own = (prefix, 0) if cascade else (0, prefix)
        least = floor.decode_s(rig.cost, todo.rows, shared, own + todo.out - steps, steps, rig.ceilings)
    written = todo.out - 1  # the last token's KV is never computed
    figures = {
        "pages_of_prefix_and_tails": _pages(prefix) + todo.rows * _pages(written),
        "pages_without_sharing": todo.rows * _pages(prefix + written),
        "step_us": round(1e6 * rounds[-1].step_s, 1),
    }
    seconds = [run.ended - run.steady for run in rounds]
    return seconds_case(name, rounds, seconds, tokens=tokens, floor_s=least, figures=figures)


def _pages(tokens: int) -> int:
    return -(-tokens // PAGE_SIZE)
