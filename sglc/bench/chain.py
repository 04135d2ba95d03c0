"""Programs of short generations with literal tokens in front of each: how long the next one takes to begin.

The gap is from the last token of a generation to the first of the next. One step is the least that it can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, Self

from sglc.bench import work
from sglc.bench.options import Options
from sglc.bench.result import BenchResult, Case, percentile, timed_case
from sglc.bench.rig import Needs, make_rig, place
from sglc.bench.session import WARM_UP_SEED, BenchSession, repeat
from sglc.runtime.ids import Handle, RequestId
from sglc.runtime.scheduler.requests import SampleDone

SIZES: dict[str, dict[str, Any]] = {
    "cuda": {"links": 20, "literal": 50, "out": 20},
    "cpu": {"links": 4, "literal": 10, "out": 6},
}
PROGRAMS = {"cuda": (1, 64, 256), "cpu": (1, 8)}


class Chained(BenchSession):
    """Runs chains: a next generation is submitted when the one before it is done."""

    def go(self, programs: Sequence[work.Chain]) -> Self:
        """Run `programs` to their ends."""
        self._before: dict[RequestId, float] = {}  # when the generation before a request ended
        for program in programs:
            self._link(program, 0, None)
        return self.run()

    @property
    def gaps(self) -> list[float]:
        """Seconds between the generations of a program, of all programs."""
        return [self.first[request] - ended for request, ended in self._before.items()]

    def _link(self, program: work.Chain, link: int, base: Handle | None) -> None:
        handle = self.engine.extend(base, program.literals[link])
        if base is not None:
            self.engine.release(base)

        def go_on(done: SampleDone) -> None:
            if link + 1 < len(program.literals):
                self._link(program, link + 1, self.engine.extend(handle, done.ids))
            self.engine.release(handle)

        request = self.gen(handle, (), program.out, tracked=link > 0, then=go_on)
        if link > 0:
            self._before[request] = self.ended


def chain(options: Options) -> BenchResult:
    """One program alone, and many side by side."""
    device = place(options)
    size, counts = SIZES[device], PROGRAMS[device]
    rig = make_rig(options, Needs(longest=size["links"] * (size["literal"] + size["out"])))
    cases, profile = [], None
    for count in counts:
        Chained(rig).go(work.chains(count, WARM_UP_SEED, **size))
        todo = work.chains(count, 4 + options.seed, **size)
        profiled = options.profile and count == counts[-1]
        rounds, profile = repeat(options.rounds, profiled, lambda p: Chained(rig, p).go(todo))  # noqa: B023
        cases.append(_case(f"{count} programs" if count > 1 else "1 program", rounds))
    return BenchResult(
        workload="chain", what="gap between a generation and the next one of its program", model=rig.model,
        work={**size, "programs": counts}, cases=tuple(cases), setting=rig.setting, profile=profile,
    )  # fmt: skip


def _case(name: str, rounds: Sequence[Chained]) -> Case:
    gaps = [gap for run in rounds for gap in run.gaps]
    steps = [gap / run.step_s for run in rounds for gap in run.gaps]
    seconds = [run.seconds for run in rounds]
    counts = rounds[-1].counts()
    return timed_case(
        name,
        "steps (P50)",
        round(percentile(steps, 50), 3),
        seconds,
        counts=counts,
        figures={
            "gap_p99_steps": round(percentile(steps, 99), 3),
            "gap_p50_us": round(1e6 * percentile(gaps, 50), 1),
            "gap_p99_us": round(1e6 * percentile(gaps, 99), 1),
            "step_us": round(1e6 * median(run.step_s for run in rounds), 1),
            "out_tok_per_s": round(counts["tokens_out"] / median(seconds), 1),
        },
    )
