"""What the programs of `sglc bench programs` ask of the engine, as plans and as Python: counts, and no times.

At the sizes for a GPU, on the engine with an oracle in place of the model, so what is counted is calls, prompt
tokens that were computed, steps and hand-overs. Steps depend on how fast rows come: two rounds are kept.

    python -m benchmarks.program_counts [NAME ...]   # writes benchmarks/results/program-counts.json
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.machine import RESULTS, setting, store
from sglc.bench.programs.measure import ON, PYTHON, compare
from sglc.bench.programs.vocabulary import DrawnWords
from sglc.bench.programs.workloads import BY_NAME
from tests.bench_oracle import OnOracle

ROUNDS, PAGES, MAX_LEN = 2, 200_000, 8_000
COUNTED = ("calls", "computed_tokens", "steps", "submits")


def counted(name: str) -> dict[str, Any]:
    """The counts of each round of a program, on the back end that such programs get on a GPU."""
    workload = BY_NAME[name]
    backend = OnOracle(PAGES, MAX_LEN, workload.in_flight or 256)
    assert backend.target.tokenizer is not None
    words = DrawnWords(backend.target.tokenizer)
    batch, warm_up = (workload.batch(words, seed, "cuda") for seed in (0, 1))
    sides = compare(name, batch, warm_up, backend, ROUNDS)
    backend.close()
    return {
        what: [{key: one.counts[key] for key in COUNTED} for one in sides[side]]
        for what, side in (("plan", ON), ("python", PYTHON))
    }


def main(names: list[str]) -> None:
    """The command line."""
    found = {name: counted(name) for name in names or BY_NAME}
    for name, sides in found.items():
        for what, rounds in sides.items():
            print(f"{name:12}{what:8}", *(tuple(one.values()) for one in rounds))
    store(RESULTS / "program-counts.json", {"counts": COUNTED, "programs": found, **setting()})


if __name__ == "__main__":
    main(sys.argv[1:])
