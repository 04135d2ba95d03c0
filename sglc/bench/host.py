"""The engine's own work: host time of a step of plain decode, with no model behind it.

The executor gives ready arrays at once, so a step is all Python and numpy: the decision, the step, page
hand-outs, and what comes back. Every case is measured in a process of its own. Of the last one, a second
process beside it has 64 threads that never rest, as programs would.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sglc.bench.options import Options
from sglc.bench.result import BenchResult, Case, percentile, timed_case
from sglc.bench.setting import ROOT, setting
from sglc.ir.sampling import Sampling
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.step import ByteAutomaton, Step, StepResult

PAGE_SIZE = 16
WARM_UP_STEPS, STEPS = 200, 400  # steps of a round
BUSY_THREADS = 64
_BUSY = f"""
import threading
def spin():
    while True:
        pass
for _ in range({BUSY_THREADS}):
    threading.Thread(target=spin).start()
"""


class NullExecutor:
    """Implements `Executor`. Every row samples id 7 with log-probability -1, in no time."""

    def __init__(self, pages: int, depth: int) -> None:
        self.page_size = PAGE_SIZE
        self.pages = pages
        self.depth = depth
        self.vocab_size = 151_936
        self.trees = self.keeps = False
        self._tokens = np.full(512, 7, np.int32)
        self._logprobs = np.full(512, -1, np.float32)

    def launch(self, step: Step) -> tuple[int, int]:
        """The step is over."""
        return step.index, step.rows.size

    def hold(self, automaton: ByteAutomaton) -> None:
        """Nothing is followed."""

    def release(self, automaton: ByteAutomaton) -> None:
        """Nothing was held."""

    def ready(self, ticket: tuple[int, int]) -> bool:
        """Every step is over."""
        return True

    def drain(self, ticket: tuple[int, int]) -> StepResult:
        """The outcome of a step."""
        index, rows = ticket
        return StepResult(index, self._tokens[:rows], self._logprobs[:rows], np.empty(0, np.float32))


@dataclass(frozen=True, slots=True)
class HostCase:
    """`rows` that decode; watched ones report every token."""

    name: str
    rows: int
    watched: bool = False
    busy: bool = False


CASES = (
    HostCase("1 row", 1),
    HostCase("64 rows", 64),
    HostCase("256 rows", 256),
    HostCase("256 rows, watched", 256, watched=True),
    HostCase(f"256 rows, {BUSY_THREADS} busy threads in another process", 256, busy=True),
)


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds of every step: of the clock, and of the processor, which other processes do not disturb."""

    wall: list[float]
    cpu: list[float]


def measure(case: HostCase, steps: int) -> Times:
    """`steps` steps behind the warm-up."""
    length = WARM_UP_STEPS + steps + 100
    pages = case.rows * (-(-(length + 512) // PAGE_SIZE) + 1)
    engine = Engine(
        NullExecutor(pages, depth=4),
        EngineConfig(token_budget=2**17, max_rows=case.rows, max_len=length + 512),
    )
    sampling = Sampling(max_tokens=length)
    rng = np.random.default_rng(0)
    for row in range(case.rows):  # prompts of 100 to 399 tokens: rows need pages at different steps
        ids = rng.integers(100, 10_000, 100 + int(rng.integers(300))).tolist()
        engine.gen(engine.extend(None, ids), sampling, [row], eos_ids=(2, 3), watch=case.watched)
    for _ in range(WARM_UP_STEPS):
        engine.step()
    times = Times([], [])
    for _ in range(steps):
        begin, begin_used = time.perf_counter_ns(), time.thread_time_ns()
        engine.step()
        times.cpu.append((time.thread_time_ns() - begin_used) / 1e3)
        times.wall.append((time.perf_counter_ns() - begin) / 1e3)
    assert int(engine.rows.active.sum()) == case.rows, "rows have ended"
    return times


def in_own_process(case: HostCase, steps: int) -> Times:
    """`measure` in a fresh interpreter, beside busy threads if the case says so."""
    other = subprocess.Popen([sys.executable, "-c", _BUSY]) if case.busy else None
    try:
        command = [sys.executable, "-m", "sglc.bench.host", case.name, str(steps)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    finally:
        if other is not None:
            other.kill()
            other.wait()
    return Times(**json.loads(done.stdout))


def host(options: Options) -> BenchResult:
    """Microseconds of a step in every case; its rounds are parts of one run."""
    steps = options.rounds * STEPS
    cases = tuple(_case(case, in_own_process(case, steps), options.rounds) for case in CASES)
    return BenchResult(
        workload="host", what="host time of a step of plain decode, executor at no cost", model="none",
        work={"steps": steps, "page_size": PAGE_SIZE}, cases=cases, setting=setting(),
    )  # fmt: skip


def _case(case: HostCase, times: Times, rounds: int) -> Case:
    seconds = [sum(times.wall[i * STEPS : (i + 1) * STEPS]) / 1e6 for i in range(rounds)]
    return timed_case(
        case.name,
        "us a step (P50)",
        round(percentile(times.wall, 50), 1),
        seconds,
        counts={"rows": case.rows, "steps": len(times.wall)},
        figures={
            "wall_p99_us": round(percentile(times.wall, 99), 1),
            "cpu_p50_us": round(percentile(times.cpu, 50), 1),
            "cpu_p99_us": round(percentile(times.cpu, 99), 1),
        },
    )


def main(arguments: Sequence[str]) -> None:
    """Print a case's times as JSON."""
    (case,) = [case for case in CASES if case.name == arguments[0]]
    times = measure(case, int(arguments[1]))
    print(json.dumps({"wall": times.wall, "cpu": times.cpu}))


if __name__ == "__main__":
    main(sys.argv[1:])
