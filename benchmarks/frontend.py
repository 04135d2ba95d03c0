"""What a program costs beside the model: sglc and SGLang's own frontend on answers that come at once.

Both run the same programs from the same source text on back ends that do nothing but answer, each in a
process of its own, in turns; `scripted` is sglc on `scripted:` answers. SGLang's `lang` folder is taken out
of its wheel and imported with a stand-in for `sglang.utils`, whose helpers these programs never call. Also:
the memory of a batch of 10,000 rows.

Writes benchmarks/results/frontend-<cpu>.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import threading
import time
import types
import zipfile
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT, child, result_path, rounds_told, setting, store

PEER = "sglang==0.5.23"
ROUNDS = 5
GOAL_GEN_US = 50.0
GOAL_FORK_RATIO = 10.0
GOAL_CPU_RATIOS = {"chain": 0.2, "fork": 0.05, "observe": 0.35}  # of SGLang's CPU per generation
GOAL_MEMORY_MB = 200.0
PROGRAMS = {"chain": (2_000, 3), "fork": (2_000, 8), "observe": (1_000, 3)}  # programs a round, gens in each
ANSWER = "a fine answer"


def programs(sgl: Any) -> dict[str, Any]:
    """The measured programs, written once for either package."""

    @sgl.function
    def chain(s, question):
        s += "Question: " + question + "\n"
        s += "Answer:" + sgl.gen("answer", max_tokens=16, stop="\n")
        s += "\nReason:" + sgl.gen("reason", max_tokens=16, stop="\n")
        s += "\nGrade:" + sgl.gen("grade", max_tokens=16, stop="\n")

    @sgl.function
    def fork(s, question):
        s += "Question: " + question + "\n"
        forks = s.fork(8)
        for i in range(8):
            forks[i] += f"Tip {i}:"
            forks[i] += sgl.gen("tip", max_tokens=16, stop="\n")
        forks.join()
        s += "\nThat is all."

    @sgl.function
    def observe(s, question):
        s += "Question: " + question + "\n"
        for name in ("answer", "reason", "grade"):
            s += name + ":" + sgl.gen(name, max_tokens=16, stop="\n")
            if s[name] == "never":
                s += " again"

    return {"chain": chain, "fork": fork, "observe": observe}


# -- one side, in its own process --------------------------------------------------------------------


def ours(scripted: bool) -> tuple[dict[str, Any], Any]:
    """With a back end that is as bare as that of `theirs`, or with scripted answers: these put prompts
    together, and count their words."""
    import sglc
    from sglc.backends.scripted import ScriptedBackend
    from sglc.ir.plan.events import EventBatches, GenDone, Sample, Usage
    from sglc.ir.plan.segment import GenNode, Segment

    answered, usage = (Sample(ANSWER, (), "stop"),), Usage(calls=1)
    done = [GenDone(index, (), answered, usage) for index in range(64)]

    class Instant(ScriptedBackend):
        def submit(self, segment: Segment, *, streams: bool = True) -> EventBatches:
            return EventBatches(self._done(segment))

        async def _done(self, segment: Segment) -> AsyncGenerator[list[GenDone], None]:
            yield [done[index] for index, node in enumerate(segment.nodes) if type(node) is GenNode]

    return programs(sglc), (ScriptedBackend if scripted else Instant)(lambda asked: ANSWER)


def sglang_lang(folder: Path) -> Any:
    """SGLang's `lang.api`, unpacked in `folder`."""

    def missing(*_: object) -> None:
        raise AssertionError("these programs call no helper")

    package, helpers = types.ModuleType("sglang"), types.ModuleType("sglang.utils")
    package.__path__ = [str(folder / "sglang")]
    for name in ("encode_image_base64", "encode_video_base64", "get_exception_traceback", "http_request"):
        setattr(helpers, name, missing)
    sys.modules.update({"sglang": package, "sglang.utils": helpers})
    from sglang.lang import api

    return api


def theirs(folder: Path) -> tuple[dict[str, Any], Any]:
    api = sglang_lang(folder)
    from sglang.lang.backend.base_backend import BaseBackend

    class Instant(BaseBackend):  # type: ignore[misc]
        def generate(self, s: Any, sampling_params: Any) -> tuple[str, dict[str, Any]]:
            return ANSWER, {}

    return programs(api), Instant()


def measure(side: str, case: str, folder: Path) -> dict[str, float]:
    """CPU per generation, programs per second and the most threads of one batch."""
    made, backend = theirs(folder) if side == "sglang" else ours(side == "scripted")
    program = made[case]
    count, gens = PROGRAMS[case]
    rows = [{"question": f"What is {i}?"} for i in range(count)]
    program.run_batch(rows[:50], backend=backend)
    with peak_threads() as threads:
        cpu_s, begin_s = time.process_time(), time.perf_counter()
        results = program.run_batch(rows, backend=backend)
        wall_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - cpu_s
    check(results, case)
    return {
        "cpu_us_per_gen": 1e6 * cpu_s / count / gens,
        "programs_per_s": count / wall_s,
        "threads": threads[0],
    }


def check(results: list[Any], case: str) -> None:
    """Every program really ran: its variables hold every answer."""
    for result in results:
        names = ["tip"] if case == "fork" else ["answer", "reason", "grade"]
        wanted = [ANSWER] * 8 if case == "fork" else ANSWER
        assert all(result[name] == wanted for name in names), (case, [result[name] for name in names])


@contextmanager
def peak_threads(every_s: float = 0.005) -> Iterator[list[int]]:
    """The most threads alive at once inside the block, as often as that is looked at."""
    seen, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(every_s):
            seen[0] = max(seen[0], threading.active_count() - 1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()


def memory() -> dict[str, float]:
    """MB above inputs and results while a batch of 10,000 rows runs and its results are held."""
    made, backend = ours(scripted=True)
    rows = [{"question": f"What is {i}?"} for i in range(10_000)]
    made["chain"].run_batch(rows[:50], backend=backend)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    results = made["chain"].run_batch(rows, backend=backend)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check(results, "chain")
    return {"rows": len(rows), "peak_mb": (peak - before) / 1024, "texts_mb": 3 * len(ANSWER) * 10_000 / 2**20}


# -- both sides --------------------------------------------------------------------------------------


def fetch(folder: Path) -> None:
    """SGLang's frontend, unpacked from its wheel."""
    if (folder / "sglang" / "lang").is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PEER]
    subprocess.run(pip, check=True)
    with zipfile.ZipFile(next(folder.glob("sglang-*.whl"))) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if name.startswith("sglang/lang/")])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=("sglc", "scripted", "sglang", "memory"))
    parser.add_argument("--case", choices=tuple(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    folder = ROOT / ".cache" / "sglang"
    if options.side == "memory":
        print(json.dumps(memory()))
        return 0
    if options.side:
        print(json.dumps(measure(options.side, options.case, folder)))
        return 0
    fetch(folder)
    found: dict[str, Any] = {}
    for case in PROGRAMS:
        rounds: dict[str, list[dict[str, float]]] = {"sglc": [], "scripted": [], "sglang": []}
        for _ in range(options.rounds):
            for side, values in rounds.items():  # in turns, so that a slow moment of the machine meets both
                values.append(child("frontend", "--side", side, "--case", case))
        found[case] = {side: rounds_told(values) for side, values in rounds.items()}
        shown = {side: {key: item["median"] for key, item in found[case][side].items()} for side in rounds}
        print(case, json.dumps(shown), file=sys.stderr)
    held = child("frontend", "--side", "memory")
    ratio = median(found["fork"], "programs_per_s", "sglc") / median(found["fork"], "programs_per_s", "sglang")
    cpu_us = {case: [median(sides, "cpu_us_per_gen", side) for side in ("sglc", "sglang")]
              for case, sides in found.items()}  # fmt: skip
    cpu_ratios = {case: round(ours / theirs, 3) for case, (ours, theirs) in cpu_us.items()}
    goals: dict[str, Callable[[], bool]] = {
        "cpu_us_per_gen": lambda: cpu_us["chain"][0] <= GOAL_GEN_US,
        "fork_programs_ratio": lambda: ratio >= GOAL_FORK_RATIO,
        "cpu_ratios": lambda: all(cpu_ratios[case] <= goal for case, goal in GOAL_CPU_RATIOS.items()),
        "memory_mb": lambda: held["peak_mb"] <= GOAL_MEMORY_MB,
    }
    result = {
        "what": "programs on answers that come at once: CPU of the process, programs per second, threads",
        "peer": PEER,
        "cases": found,
        "fork_programs_ratio": round(ratio, 2),
        "cpu_ratios": cpu_ratios,
        "memory": held,
        "goals": {
            "cpu_us_per_gen": GOAL_GEN_US,
            "fork_ratio": GOAL_FORK_RATIO,
            "cpu_ratios": GOAL_CPU_RATIOS,
            "memory_mb": GOAL_MEMORY_MB,
        },
        "reached": {name: reached() for name, reached in goals.items()},
        **setting(),
    }
    print(f"CPU by that of {PEER}: {cpu_ratios}; fork programs/s: {ratio:.1f} x")
    print(f"goals: {result['reached']}")
    store(result_path("frontend"), result)
    return 0


def median(sides: dict[str, Any], figure: str, side: str) -> float:
    return float(sides[side][figure]["median"])


if __name__ == "__main__":
    sys.exit(main())
