"""Long prompts that come while rows decode: how long these wait for their next token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any, Self

from sglc.bench import floor, work
from sglc.bench.options import Options
from sglc.bench.result import BenchResult, Case, percentile, timed_case
from sglc.bench.rig import Needs, Rig, make_rig, place
from sglc.bench.session import WARM_UP_SEED, BenchSession, repeat
from sglc.errors import UsageError
from sglc.runtime.ids import RequestId
from sglc.runtime.scheduler.requests import SampleDone

SIZES: dict[str, dict[str, Any]] = {
    "cuda": {
        "rows": 32, "short": 512, "out": 8192, "calm": 64, "prompts": 8, "long": 8000, "every_s": 0.5,
    },
    "cpu": {"rows": 4, "short": 16, "out": 1000, "calm": 8, "prompts": 3, "long": 512, "every_s": 0.02},
}  # fmt: skip
_WARM_UP_PROMPTS = 2


class Mixture(BenchSession):
    """Rows that decode alone for a while, then beside prompts.

    Seconds: `calm_s` of a step of decode alone (median); `gaps` between two tokens of a row, of all rows, while
    prompts come and are worked on, which is `mixed_s` in all; `waited` for the first token of each prompt.
    """

    def go(self, todo: work.Mixed) -> Self:
        """Run `todo` until the last prompt has its token, or a row that decodes has all of its own."""
        self._over = False
        decoding = [self.gen(None, ids, todo.out, then=self._end) for ids in todo.decoding]
        made = self.engine.rows.made
        places: dict[RequestId, int] = {}
        while len(places) < len(decoding) or not all(made[row] for row in places.values()):
            self.step()
            places = self.rows()
            if self._over:
                raise UsageError(
                    "SGLC037", f"{len(decoding)} rows do not fit into the KV pool", hint="take a smaller model"
                )
        before = len(self.step_ends)
        for _ in range(todo.calm):
            self.step()
        self.calm_s = median(after - begin for begin, after in pairwise(self.step_ends[before - 1 :]))
        rows = list(places.values())
        self._mix(todo, rows)
        for request in decoding:
            self.engine.abort(request)
        return self.run()

    def _end(self, done: SampleDone) -> None:
        self._over = True

    def _mix(self, todo: work.Mixed, rows: list[int]) -> None:
        self.gaps: list[float] = []
        began = perf_counter()
        asked: dict[RequestId, float] = {}
        counts, latest = self.engine.rows.made[rows].tolist(), [self.step_ends[-1]] * len(rows)
        while len(self.first) < len(todo.prompts) and not self._over:
            due = began + len(asked) * todo.every_s
            if len(asked) < len(todo.prompts) and perf_counter() >= due:
                asked[self.gen(None, todo.prompts[len(asked)], 1, tracked=True)] = due
            self.step()
            now = self.step_ends[-1]
            for i, count in enumerate(self.engine.rows.made[rows].tolist()):
                if count > counts[i]:
                    self.gaps.append(now - latest[i])
                    counts[i], latest[i] = count, now
        self.mixed_s = perf_counter() - began
        self.waited = [first - asked[request] for request, first in self.first.items()]


def mixed(options: Options) -> BenchResult:
    """The gaps of rows that decode against a step of decode alone."""
    size = SIZES[place(options)]
    longest = max(size["short"] + size["out"], size["long"] + 1)
    rig = make_rig(options, Needs(longest=longest, side_by_side=size["rows"], model="qwen3-14b"))
    Mixture(rig).go(work.mixed(WARM_UP_SEED, **{**size, "prompts": _WARM_UP_PROMPTS}))
    todo = work.mixed(6 + options.seed, **size)
    rounds, profile = repeat(options.rounds, options.profile, lambda p: Mixture(rig, p).go(todo))
    return BenchResult(
        workload="mixed", what="gaps between the tokens of rows that decode while prompts come",
        model=rig.model, work=size, cases=(_case(rig, todo, rounds),), setting=rig.setting, profile=profile,
    )  # fmt: skip


def _case(rig: Rig, todo: work.Mixed, rounds: Sequence[Mixture]) -> Case:
    gaps = [gap for run in rounds for gap in run.gaps]
    waited = [seconds for run in rounds for seconds in run.waited]
    calm = median(run.calm_s for run in rounds)
    figures = {
        "calm_step_ms": 1e3 * calm,
        "gap_p50_ms": 1e3 * percentile(gaps, 50),
        "gap_p99_ms": 1e3 * percentile(gaps, 99),
        "gap_longest_ms": 1e3 * max(gaps),
        "first_token_p50_s": percentile(waited, 50),
        "first_token_longest_s": max(waited),
    }
    if rig.ceilings is not None:
        rows = len(todo.decoding)
        keys = rows * len(todo.decoding[0]) + rows * todo.calm // 2
        figures["calm_step_floor_ms"] = 1e3 * floor.decode_step_s(rig.cost, rows, keys, rig.ceilings)
    return timed_case(
        f"{len(todo.decoding)} rows",
        "calm steps (P99)",
        round(percentile(gaps, 99) / calm, 3),
        [run.mixed_s for run in rounds],
        counts=rounds[-1].counts(),
        figures={name: round(value, 4) for name, value in figures.items()},
    )
