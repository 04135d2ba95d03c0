"""Times the engine's own work: host microseconds per step of plain decode, with no model behind it.

The executor gives ready arrays at once, so a step is all Python and numpy: the decision, the step, page
hand-outs, and what comes back. Each setting is measured in a process of its own. The last one has a second
process beside it with 64 threads that never rest, as programs would. Writes benchmarks/results/host-<cpu>.json
and fails if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np
from machine import ROOT, result_path, setting

from sglc.ir.sampling import Sampling
from sglc.runtime.engine import Engine, EngineConfig
from sglc.runtime.step import Step, StepResult

PAGE_SIZE = 16
WARM_UP_STEPS, STEPS = 200, 2_000
GOALS_US = {"1 row": 60.0, "256 rows": 300.0}  # medians, on one core that nobody else uses
BUSY_THREADS = 64
BUSY = f"""
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
        self._tokens = np.full(512, 7, np.int32)
        self._logprobs = np.full(512, -1, np.float32)

    def launch(self, step: Step) -> tuple[int, int]:
        return step.index, step.rows.size

    def drain(self, ticket: tuple[int, int]) -> StepResult:
        index, rows = ticket
        return StepResult(index, self._tokens[:rows], self._logprobs[:rows], np.empty(0, np.float32))


@dataclass(frozen=True, slots=True)
class Case:
    """`rows` that decode; watched ones report every token."""

    name: str
    rows: int
    watched: bool = False
    busy: bool = False


CASES = (
    Case("1 row", 1),
    Case("64 rows", 64),
    Case("256 rows", 256),
    Case("256 rows, watched", 256, watched=True),
    Case(f"256 rows, {BUSY_THREADS} busy threads in another process", 256, busy=True),
)


def measure(case: Case) -> dict[str, float]:
    """Microseconds per step: of the clock, and of the processor, which other processes do not disturb."""
    length = WARM_UP_STEPS + STEPS + 100
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
    wall, used = [], []
    for _ in range(STEPS):
        begin, begin_used = time.perf_counter_ns(), time.thread_time_ns()
        engine.step()
        used.append(time.thread_time_ns() - begin_used)
        wall.append(time.perf_counter_ns() - begin)
    assert int(engine.rows.active.sum()) == case.rows, "rows have ended"
    figures: dict[str, float] = {}
    for name, taken in (("wall", wall), ("cpu", used)):
        median, late = np.percentile(taken, (50, 99)) / 1e3
        figures |= {f"{name}_median_us": round(float(median), 1), f"{name}_p99_us": round(float(late), 1)}
    return figures


def in_own_process(case: Case) -> dict[str, float]:
    other = subprocess.Popen([sys.executable, "-c", BUSY]) if case.busy else None
    try:
        command = [sys.executable, __file__, "--case", case.name]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    finally:
        if other is not None:
            other.kill()
            other.wait()
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=[case.name for case in CASES], help="print one case's figures")
    arguments = parser.parse_args()
    by_name = {case.name: case for case in CASES}
    if arguments.case is not None:
        print(json.dumps(measure(by_name[arguments.case])))
        return 0
    found = {case.name: in_own_process(case) for case in CASES}
    result = {
        "what": "host time of one engine step of plain decode, page hand-outs included, executor at no cost",
        "steps": STEPS,
        "page_size": PAGE_SIZE,
        "cases": found,
        "goals_us": GOALS_US,
        **setting(),
    }
    path = result_path("host")
    path.write_text(json.dumps(result, indent=1) + "\n")
    for name, figures in found.items():
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in figures.items())}")
    print(f"-> {path.relative_to(ROOT)}")
    return 0 if all(found[name]["wall_median_us"] < goal for name, goal in GOALS_US.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
