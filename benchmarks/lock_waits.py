"""How many ms torch computes beside a thread that runs Python: by how soon Python's lock changes hands.

Each call of torch lets go of the lock, and may have to wait for it: for Python's switch interval, and on Linux
for the timer slack of the thread more. The first setting is Python's and Linux's own, the last one that of
sglc's processes (`own_process.keep_answering`).

Writes benchmarks/results/lock-waits-<cpu>.json.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from statistics import median

import torch

from benchmarks.machine import result_path, setting, store

CALLS = 70  # of torch, about those of a step of a small model on the CPU
STEPS = 15
SETTINGS = ((0.005, 50_000), (0.0005, 50_000), (0.0001, 50_000), (0.00002, 50_000), (0.00002, 1))
_PR_SET_TIMERSLACK = 29  # linux/prctl.h


def step_ms(x: torch.Tensor, weights: torch.Tensor) -> float:
    """One step."""
    began_s = time.perf_counter()
    for _ in range(CALLS // 2):
        x = torch.tanh(x @ weights)
    return 1e3 * (time.perf_counter() - began_s)


def main() -> None:
    torch.set_num_threads(1)
    x, weights = torch.randn(1, 64), torch.randn(64, 64)
    alone = [step_ms(x, weights) for _ in range(STEPS)]
    beside: dict[str, dict[str, float]] = {}
    ends = threading.Event()

    def run_python() -> None:
        number = 0
        while not ends.is_set():
            for _ in range(1_000):
                number = (7 * number + 1) % 1_000_003

    thread = threading.Thread(target=run_python)
    thread.start()
    for interval_s, slack_ns in SETTINGS:
        sys.setswitchinterval(interval_s)
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, slack_ns)
        taken = [step_ms(x, weights) for _ in range(STEPS if interval_s < 0.001 else 3)]
        told = f"interval {1e6 * interval_s:g} us, slack {slack_ns / 1e3:g} us"
        beside[told] = {"median": round(median(taken), 2), "largest": round(max(taken), 2)}
        print(told, beside[told], flush=True)
    ends.set()
    thread.join()
    figures = {
        "calls of a step": CALLS,
        "alone, ms": round(median(alone), 2),
        "beside a busy thread, ms": beside,
    }
    store(result_path("lock-waits"), {**setting(), **figures})


if __name__ == "__main__":
    main()
