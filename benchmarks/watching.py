"""What recording, replaying, a cache and tracing cost: programs on instant scripted answers, watched and not.

Instant answers, so all the time is sglc's own; a model's comes on top, the same in every column. Also: how
large a recording and a trace are.

Writes benchmarks/results/watching-<cpu>.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import child, medians, result_path, setting, store

ROUNDS = 5
ROWS = 1_000
GENERATIONS = 3
PREFIX = "You answer questions about the world, shortly and well. " * 20  # 1,140 characters
MODES = ("nothing", "record", "replay", "cache", "cached", "trace", "spans")  # `cached`: all answers are there


def program() -> Any:
    import sglc as sgl

    @sgl.function
    def ask(s, question):
        s += sgl.system(PREFIX) + sgl.user(question)
        s += sgl.assistant(sgl.gen("answer", max_tokens=16))
        s += sgl.user("Why?") + sgl.assistant(sgl.gen("reason", max_tokens=16))
        if s["reason"] != "":
            s += sgl.user("Sure?") + sgl.assistant(sgl.gen("sure", max_tokens=16))

    return ask


def spans() -> None:
    """A provider that exports nothing: what it costs to make spans."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    trace.set_tracer_provider(TracerProvider())


def measure(mode: str) -> dict[str, float]:
    """One round in this process: CPU and wall time of a generation, and bytes written for it."""
    from sglc.backends.scripted import ScriptedBackend

    if mode == "spans":
        spans()
    ask, backend = program(), ScriptedBackend(lambda asked: "a fine answer")
    rows = [{"question": f"What is {number}?"} for number in range(ROWS)]
    ask.run_batch(rows[:50], backend=backend)
    with tempfile.TemporaryDirectory() as folder:
        record, trace = Path(folder) / "r", Path(folder) / "t.json"
        watched: dict[str, Any] = {}
        if mode == "replay":
            ask.run_batch(rows, backend=backend, record=str(record))
            watched = {"replay": str(record)}
        elif mode == "record":
            watched = {"record": str(record)}
        elif mode in ("cache", "cached"):
            watched = {"cache": str(record), "seed": 1}
            if mode == "cached":
                ask.run_batch(rows, backend=backend, **watched)
        elif mode == "trace":
            watched = {"trace": str(trace)}
        cpu_s, begin_s = time.process_time(), time.perf_counter()
        results = ask.run_batch(rows, backend=backend, **watched)
        wall_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - cpu_s
        assert all(result["sure"] == "a fine answer" for result in results)
        written = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    count = ROWS * GENERATIONS
    return {
        "cpu_us_per_gen": 1e6 * cpu_s / count,
        "wall_us_per_gen": 1e6 * wall_s / count,
        "bytes_per_gen": 0.0 if mode in ("replay", "cached") else written / count,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=MODES, help="one round in this process")
    mode = parser.parse_args().mode
    if mode:
        print(json.dumps(measure(mode)))
        return
    rounds: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for _ in range(ROUNDS):
        for mode in MODES:  # in turns, so that a busy moment hits all
            rounds[mode].append(child("watching", "--mode", mode))
    found = {mode: medians(made, 1) for mode, made in rounds.items()}
    work = {"rows": ROWS, "generations_a_row": GENERATIONS, "prompt_characters": len(PREFIX), "rounds": ROUNDS}
    print(json.dumps(found, indent=1))
    store(result_path("watching"), {"setting": setting(), "work": work, "median": found})


if __name__ == "__main__":
    main()
