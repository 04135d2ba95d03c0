"""What a batch costs beside the model: the same programs as plans and as Python, on scripted answers.

With `mode="python"` a program's code runs once per row; its plan walks in the executor's loop. Each measurement
is a process of its own, in turns. Results and call counts of both are compared before anything is timed.

Also what the first call of a program costs up to its first submit, where a plan has to be made: the first call
of a process, that of a program behind another one, and a later call, which finds its plan.

Writes benchmarks/results/plans-<cpu>.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import sglc as sgl
from benchmarks.machine import child, medians, result_path, rounds_told, setting, store
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.ir.plan.events import Event
from sglc.ir.plan.segment import Segment

ROUNDS = 5
GOAL_RATIO = 0.9
GOAL_FIRST_RATIO = 3.0
GOAL_HIT_RATIO = 0.1  # a call that finds its plan, of the first call in Python mode
ASPECTS = ("clarity", "evidence", "style")


@sgl.pure
def shorter(text: str) -> str:
    return text[:40]


@sgl.function
def chain(s: Any, question: str) -> None:
    s += "Question: " + question + "\n"
    s += "Answer:" + sgl.gen("answer", max_tokens=16, stop="\n")
    s += "\nReason:" + sgl.gen("reason", max_tokens=16, stop="\n")
    s += "\nGrade:" + sgl.gen("grade", max_tokens=16, stop="\n")


@sgl.function
def judge(s: Any, question: str) -> Any:
    s += "Judge: " + question + "\n"
    forks = s.fork(len(ASPECTS))
    for fork, aspect in zip(forks, ASPECTS, strict=True):
        fork += aspect + ":" + sgl.gen("score", max_tokens=4)
    results = s.join(forks)
    for aspect, score in zip(ASPECTS, results["score"], strict=True):
        s += f"{aspect}: {score}\n"
    s += "Verdict: " + sgl.select("verdict", choices=["weak", "strong"])
    return s["verdict"]


@sgl.function
def branch(s: Any, question: str) -> None:
    s += "Question: " + question + "\nDoes it need a search?"
    s += sgl.select("search", choices=[" yes", " no"])
    if s["search"] == " yes":
        s += "\nQuery:" + sgl.gen("query", max_tokens=16, stop="\n")
        s += "\nResult:" + shorter(s["query"])
    else:
        s += "\nWhy not:" + sgl.gen("query", max_tokens=16, stop="\n")
    s += "\nAnswer:" + sgl.gen("answer", max_tokens=16, stop="\n")


@sgl.function
def agent(s: Any, question: str) -> None:
    s += "Question: " + question

    def step() -> Any:
        nonlocal s
        s += "\nThought:" + sgl.gen("thought", max_tokens=16, stop="\n")
        s += "\nNext:" + sgl.select("next", choices=[" search", " finish"])
        return sgl.not_(sgl.eq(s["next"], " finish"))

    sgl.loop(step, max_iters=3)
    s += "\nAnswer:" + sgl.gen("answer", max_tokens=16, stop="\n")


# Rows of a round, and generations of a row.
PROGRAMS = {
    "chain": (chain, 2_000, 3),
    "judge": (judge, 1_500, 4),
    "branch": (branch, 1_000, 3),
    "agent": (agent, 500, 7),
}


@sgl.function
def fork(s: Any, question: str) -> None:
    s += "Question: " + question + "\n"
    forks = s.fork(8)
    for i in range(8):
        forks[i] += f"Tip {i}:" + sgl.gen("tip", max_tokens=16, stop="\n")
    forks.join()
    s += "\nThat is all."


@sgl.function
def observe(s: Any, question: str) -> None:
    s += "Question: " + question + "\n"
    for name in ("answer", "reason", "grade"):
        s += name + ":" + sgl.gen(name, max_tokens=16, stop="\n")
        if s[name] == "never":
            s += " again"


FIRST_CALLS = {name: program for name, (program, *_) in PROGRAMS.items()} | {"fork": fork, "observe": observe}


def answer(asked: Asked) -> str:
    return asked.choices[0] if asked.choices else "a fine answer"


class FirstSubmit(ScriptedBackend):
    """Notes the CPU time at which the first segment of a run comes."""

    at_s: float | None = None

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        self.at_s = self.at_s or time.process_time()
        return super().submit(segment, streams=streams)


def first_call(case: str, way: str, behind: str) -> dict[str, float]:
    """CPU in ms up to the first submit: of the program's first call, and the median of later ones.

    Args:
        behind: another program, which has been called before; "" for none.
    """
    backend = FirstSubmit(answer)

    def call_ms(name: str) -> float:
        backend.at_s = None
        began_s = time.process_time()
        result = FIRST_CALLS[name].run(question="What is it?", backend=backend, mode=way)
        assert result.error() is None
        assert backend.at_s is not None
        return 1e3 * (backend.at_s - began_s)

    if behind:
        call_ms(behind)
        gc.freeze()  # else this call meets, by chance, a collection of what its imports made
    first_ms = call_ms(case)
    return {"first_ms": first_ms, "later_ms": statistics.median(call_ms(case) for _ in range(50))}


def measure(case: str, way: str) -> dict[str, float]:
    """CPU per generation, and rows per second, of one batch."""
    program, count, gens = PROGRAMS[case]
    backend = ScriptedBackend(answer)
    rows = [{"question": f"What is {i}?"} for i in range(count)]
    one = program.run_batch(rows[:50], backend=backend, seed=1, mode="python")
    two = program.run_batch(rows[:50], backend=backend, seed=1, mode="plan")
    assert [dict(a.variables) for a in one] == [dict(b.variables) for b in two]
    assert [a.ret_value for a in one] == [b.ret_value for b in two]
    assert [a.usage.calls for a in one] == [b.usage.calls for b in two] == [gens] * 50
    cpu_s, begin_s = time.process_time(), time.perf_counter()
    results = program.run_batch(rows, backend=backend, mode=way)
    wall_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - cpu_s
    assert all(result.error() is None for result in results)
    return {"cpu_us_per_gen": 1e6 * cpu_s / count / gens, "rows_per_s": count / wall_s}


def first_calls(rounds: int) -> dict[str, Any]:
    """The first and later calls of each program, both ways in turns: medians, and their ratios."""
    found: dict[str, Any] = {}
    for case in FIRST_CALLS:
        for behind in ("", "chain" if case != "chain" else "fork"):
            ways: dict[str, list[dict[str, float]]] = {"python": [], "plan": []}
            for _ in range(rounds):
                for way, measured in ways.items():
                    measured.append(child("plans", "--first", case, "--way", way, "--behind", behind))
            middle = {way: medians(all_, 3) for way, all_ in ways.items()}
            python_ms = middle["python"]["first_ms"]
            found[f"{case}, {'behind another' if behind else 'first of a process'}"] = {
                **middle,
                "first_ratio": round(middle["plan"]["first_ms"] / python_ms, 2),
                "hit_ratio": round(middle["plan"]["later_ms"] / python_ms, 3),
            }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=tuple(PROGRAMS))
    parser.add_argument("--way", choices=("python", "plan"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--first", choices=tuple(FIRST_CALLS))
    parser.add_argument("--behind", default="")
    options = parser.parse_args()
    if options.first:
        print(json.dumps(first_call(options.first, options.way, options.behind)))
        return 0
    if options.case:
        print(json.dumps(measure(options.case, options.way)))
        return 0
    cases: dict[str, Any] = {}
    for case in PROGRAMS:
        rounds: dict[str, list[dict[str, float]]] = {"python": [], "plan": []}
        for _ in range(options.rounds):
            for way, found in rounds.items():  # in turns, so that a slow moment of the machine meets both
                found.append(child("plans", "--case", case, "--way", way))
        cases[case] = {way: rounds_told(found) for way, found in rounds.items()}
        cases[case]["cpu_ratio"] = round(
            cases[case]["plan"]["cpu_us_per_gen"]["median"] / cases[case]["python"]["cpu_us_per_gen"]["median"],
            2,
        )
        shown = {way: {key: item["median"] for key, item in cases[case][way].items()} for way in rounds}
        print(case, json.dumps(shown), cases[case]["cpu_ratio"], file=sys.stderr)
    first = first_calls(options.rounds)
    for name, measured in first.items():
        print(name, json.dumps(measured), file=sys.stderr)
    result = {
        "what": "a batch as Python and as a plan on instant scripted answers: CPU, rows per second",
        "cases": cases,
        "goal": f"a plan costs at most {GOAL_RATIO} of the CPU per generation that Python does",
        "reached": {case: found["cpu_ratio"] <= GOAL_RATIO for case, found in cases.items()},
        "first calls": first,
        "first calls, goal": f"CPU up to the first submit at most {GOAL_FIRST_RATIO} times that of Python, "
        f"of a call that finds its plan {GOAL_HIT_RATIO}",
        "first calls, reached": {
            name: found["first_ratio"] <= GOAL_FIRST_RATIO and found["hit_ratio"] <= GOAL_HIT_RATIO
            for name, found in first.items()
        },
        **setting(),
    }
    ratios = {case: found["cpu_ratio"] for case, found in cases.items()}
    print(f"CPU of the plan by that of Python: {ratios}")
    store(result_path("plans"), result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
