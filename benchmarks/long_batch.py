"""A batch of 100,000 rows from a generator whose results are dropped: memory, threads, the first result.

Answers are scripted and instant. Writes benchmarks/results/long-batch-<cpu>.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sglc as sgl
from benchmarks.machine import result_path, setting, store
from sglc.backends.scripted import ScriptedBackend

GOAL_MB, GOAL_FIRST_S = 100.0, 1.0


@sgl.function
def asked(s: Any, question: str) -> None:
    s += "Question: " + question + "\n"
    s += "Answer:" + sgl.gen("answer", max_tokens=16, stop="\n")
    s += "\nGrade:" + sgl.gen("grade", max_tokens=16, stop="\n")


def rows(count: int) -> Iterator[dict[str, str]]:
    """Questions, made as they are asked for."""
    for number in range(count):
        yield {"question": f"What is {number}?"}


def resident_mb() -> float:
    """Memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure(count: int) -> dict[str, float]:
    """One batch; memory and threads are looked at after every 500th result."""
    backend = ScriptedBackend(lambda asked: "a fine answer")
    for _ in asked.stream_batch(rows(200), backend=backend):
        pass
    gc.collect()
    before, peak, threads = resident_mb(), 0.0, set()
    cpu_s, first_s = time.process_time(), 0.0
    for number, result in enumerate(asked.stream_batch(rows(count), backend=backend)):
        assert result["grade"] == "a fine answer"
        if not number:
            first_s = time.process_time() - cpu_s
        if not number % 500:
            peak = max(peak, resident_mb() - before)
            threads.add(threading.active_count())
    cpu_s = time.process_time() - cpu_s
    return {
        "rows": count,
        "first_result_cpu_s": first_s,
        "peak_mb_above_start": peak,
        "fewest_threads": min(threads),
        "most_threads": max(threads),
        "cpu_us_per_gen": 1e6 * cpu_s / count / 2,
    }


def main() -> int:
    """1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dry", action="store_true", help="write no file")
    given = parser.parse_args()
    made = measure(given.rows)
    print(json.dumps(made, indent=1))
    if not given.dry:
        store(result_path("long-batch"), {**setting(), **made})
    return int(made["peak_mb_above_start"] > GOAL_MB or made["first_result_cpu_s"] > GOAL_FIRST_S)


if __name__ == "__main__":
    sys.exit(main())
