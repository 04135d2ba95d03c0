"""Holds the engine's own work to its goals: the cases of `sglc bench host`, for longer.

Writes benchmarks/results/host-<cpu>.json and fails if a goal is missed.
"""

from __future__ import annotations

import sys
from statistics import median

from benchmarks.machine import result_path, setting, store
from sglc.bench.host import CASES, PAGE_SIZE, Times, in_own_process
from sglc.bench.result import percentile

STEPS = 2_000
GOALS_US = {"1 row": 60.0, "256 rows": 300.0}  # medians, on one core that nobody else uses


def figures(times: Times) -> dict[str, float]:
    """Medians and late steps, in microseconds."""
    found: dict[str, float] = {}
    for name, taken in (("wall", times.wall), ("cpu", times.cpu)):
        found |= {
            f"{name}_median_us": round(median(taken), 1),
            f"{name}_p99_us": round(percentile(taken, 99), 1),
        }
    return found


def main() -> int:
    found = {case.name: figures(in_own_process(case, STEPS)) for case in CASES}
    result = {
        "what": "host time of one engine step of plain decode, page hand-outs included, executor at no cost",
        "steps": STEPS,
        "page_size": PAGE_SIZE,
        "cases": found,
        "goals_us": GOALS_US,
        **setting(),
    }
    for name, measured in found.items():
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in measured.items())}")
    store(result_path("host"), result)
    return 0 if all(found[name]["wall_median_us"] < goal for name, goal in GOALS_US.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
