"""What compiling a constraint costs: 18 well-known patterns, from the text to the first mask, on the CPU.

Beside xgrammar and llguidance in the same process, in turns, with nothing kept from one time to the next
(`cold`); and with the automaton in the cache directory, as another process left it (`kept`). Medians of
`ROUNDS`, in milliseconds. Writes benchmarks/results/constraint-compile-<cpu>.json.

    python -m benchmarks.constraint_compile
"""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.constraint_forms import ENGINES, PATTERNS, Engine, Own
from benchmarks.machine import dated_setting, result_path, store
from sglc.ir.grammar.regex import compile_regex
from sglc.runtime.constraints.constraint import Constraints
from sglc.runtime.model.registry import prepare
from sglc.runtime.model.weights import load_config
from sglc.runtime.tokenizer.tokenizer import load_tokenizer

ROUNDS = 5
GOAL_P50_MS, GOAL_P99_MS = 40.0, 1000.0


def timed_ms(work: Callable[[], object]) -> float:
    """How long `work` takes, with no garbage of others to collect."""
    gc.collect()
    begin = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - begin)


def first_mask(engine: Engine, pattern: str) -> object:
    """Compile, and look at what may come first."""
    return engine.walk(pattern)().mask()


def kept(constraints: Callable[[], Constraints], pattern: str) -> Callable[[], object]:
    """The first mask of a process that finds the automaton in the cache directory, its vocabulary loaded."""
    compile_regex.cache_clear()
    fresh = constraints()
    fresh._vocabulary()

    def work() -> object:
        automaton = fresh.regex(pattern)
        return automaton.mask(automaton.start)

    return work


def spread(values: list[float]) -> dict[str, float]:
    """Percentiles and the sum."""
    p50, p99 = np.percentile(values, [50, 99]).tolist()
    return {"P50": round(p50, 2), "P99": round(p99, 2), "largest": round(max(values), 2)}


def main() -> int:
    folder = prepare("smollm2")
    tokenizer, size = load_tokenizer(folder), load_config(folder).vocab_size
    token_bytes = tokenizer.token_bytes()
    engines = [make(token_bytes, size) for make in ENGINES]
    own = engines[0]
    assert isinstance(own, Own)
    for engine in engines:  # what is loaded once
        engine.walk("warm")().mask()
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as cache:

        def constraints() -> Constraints:
            made = Constraints(token_bytes, size, tokenizer.encode, folder=Path(cache), identity="benchmark")
            made._vocabulary = lambda: own.vocabulary  # type: ignore[assignment]  # loaded once for all
            return made

        for name, pattern in PATTERNS.items():
            kept(constraints, pattern)()
            times: dict[str, list[float]] = {}
            for turn in range(ROUNDS):
                for engine in engines if turn % 2 else engines[::-1]:
                    times.setdefault(engine.name, []).append(timed_ms(partial(first_mask, engine, pattern)))
                times.setdefault("kept", []).append(timed_ms(kept(constraints, pattern)))
                compile_regex.cache_clear()
                times.setdefault("bytes only", []).append(timed_ms(partial(compile_regex, pattern)))
            found[name] = {one: round(statistics.median(values), 2) for one, values in times.items()}
            found[name]["states"] = len(compile_regex(pattern).moves)
            print(f"{name}: {json.dumps(found[name])}", flush=True)
    columns = [engine.name for engine in engines] + ["kept", "bytes only"]
    whole = {column: spread([row[column] for row in found.values()]) for column in columns}
    result: dict[str, Any] = {
        "what": "milliseconds from a regular expression to its first mask; `kept`: found in the cache "
        "directory; `bytes only`: the automaton over bytes, which is a part of `sglc`",
        **dated_setting(),
        "vocabulary": size,
        "rounds": ROUNDS,
        "patterns": found,
        "together": whole,
        "goals": {"P50": GOAL_P50_MS, "P99": GOAL_P99_MS},
        "reached": {
            "P50": whole["sglc"]["P50"] <= GOAL_P50_MS,
            "P99": whole["sglc"]["P99"] <= GOAL_P99_MS,
        },
    }
    print(json.dumps(whole))
    store(result_path("constraint-compile"), result)
    return 0 if all(result["reached"].values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
