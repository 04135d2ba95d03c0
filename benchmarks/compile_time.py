"""What compiling costs: each example program, and generated programs of 20,000 ops.

Writes benchmarks/results/compile-<cpu>.json: milliseconds to record, optimise and lower every program of
examples/, and seconds for every stage of a straight program, one of 5,000 blocks in sequence, and blocks
that stand 200 deep.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from benchmarks.machine import ROOT, result_path, setting, store
from sglc.api.function import Function
from sglc.backends.scripted import ScriptedBackend
from sglc.cli.program_file import open_functions
from sglc.ir.core import Program
from sglc.ir.depth import MAX_DEPTH
from sglc.ir.plan.plan import Plan
from sglc.ir.plan.plan_json import plan_to_json
from sglc.ir.plan.plan_text import plan_text
from sglc.ir.target import Target
from sglc.ir.text.printer import from_text, identity, to_text
from sglc.ir.verify.verify import verify
from sglc.passes.base import run_pipeline
from sglc.passes.lowering.lower_plan import lower_plan
from sglc.passes.pipelines import LOCAL

ROUNDS = 7
GOAL_MS = 10.0  # to record and optimise any example
GOAL_S = 10.0  # for 20,000 ops
PLAIN = Target("plain", scores_tokens=True, continues_text=True)
EXAMPLES = ROOT / "examples"


def straight_text(ops: int = 20_000) -> str:
    """A program without blocks: texts, generations, and forks of one prompt."""
    lines = ["# sglir 2", "def straight(a):", "    s0 = root()"]
    for number in range(ops // 4):
        at = 4 * number
        lines += [
            f"    s{at + 1} = append(s{at}, 'question {number}: ')",
            f"    s{at + 2}, t{number} = gen(s{at + 1}, 'x', occurrence={number}, max_tokens=8)",
            f"    s{at + 3} = append(s{at + 2}, '\\n')",
            f"    s{at + 4} = append(s{at + 3}, a)",
        ]
    return "\n".join([*lines, f"    return t{ops // 4 - 1}", ""])


def blocks_text(blocks: int = 5_000) -> str:
    """Blocks one behind the other, each going on from the last: 20,000 ops."""
    lines = ["# sglir 2", "def blocks(a):", "    s0 = root()", "    s1, t0 = gen(s0, 'first')"]
    stream, text = 1, 0
    for number in range(blocks):
        lines += [
            f"    b{number} = eq(t{text}, 'yes')",
            f"    s{stream + 3}, t{text + 2} = cond(b{number}):",
            f"        s{stream + 1}, t{text + 1} = gen(s{stream}, 'x', occurrence={number})",
            f"        yield s{stream + 1}, t{text + 1}",
            "    else:",
            f"        s{stream + 2} = append(s{stream}, 'no')",
            f"        yield s{stream + 2}, a",
        ]
        stream, text = stream + 3, text + 2
    return "\n".join([*lines, f"    return t{text}", ""])


def deep_text(depth: int = MAX_DEPTH) -> str:
    """Blocks inside blocks: conditions, loops and maps in turn, with a generation in the innermost."""
    lines = ["# sglir 2", "def deep(a):", "    l0 = concat((a, 'b'))", "    b0 = eq(a, 'x')"]
    ends: list[str] = []
    for level in range(depth):
        indent = "    " * (level + 1)
        match level % 3:
            case 0:
                lines.append(f"{indent}cond(b0):")
                ends += [f"{indent}    yield", f"{indent}else:", f"{indent}    yield"][::-1]
            case 1:
                lines.append(f"{indent}loop((), 2):")
                ends.append(f"{indent}    yield b0")
            case _:
                lines.append(f"{indent}map(l0) as t{level}:")
                ends.append(f"{indent}    yield")
    inside = "    " * (depth + 1)
    lines += [f"{inside}s0 = root()", f"{inside}s1 = append(s0, a)", f"{inside}s2, t1000 = gen(s1, 'x')"]
    return "\n".join([*lines, *reversed(ends), "    return", ""])


def stages(text: str, target: Target = PLAIN) -> tuple[dict[str, float], Program, Plan]:
    """Seconds of every stage from a text to a plan, and what came out."""
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        made = work()
        seconds[name] = round(time.perf_counter() - begin, 3)
        return made

    program: Program = timed("parse", lambda: from_text(text, "generated.sglir"))
    printed = timed("print", lambda: to_text(program))
    assert to_text(from_text(printed, "again.sglir")) == printed
    timed("identity", lambda: identity(program))
    timed("verify", lambda: verify(program))
    lowered: Program = timed("optimise", lambda: run_pipeline(program, target, LOCAL))[0]
    plan: Plan = timed("lower", lambda: lower_plan(lowered, target))
    timed("plan as JSON", lambda: json.dumps(plan_to_json(plan)))
    timed("plan as text", lambda: plan_text(plan))
    seconds["together"] = round(sum(seconds.values()), 3)
    return seconds, program, plan


def examples(target: Target) -> Iterator[tuple[str, dict[str, float]]]:
    """Milliseconds to record, optimise and lower each program of examples/: medians of `ROUNDS`."""
    # `ray_serve.py` serves a program of another one, by a package that is not needed here.
    for path in sorted(EXAMPLES.glob("*.py")):
        if path.stem == "ray_serve":
            continue
        for function in open_functions(str(path)):
            times: list[tuple[float, ...]] = []
            for _ in range(ROUNDS + 1):
                fresh = Function(function.definition)  # one that remembers nothing
                marks = [time.perf_counter()]
                program = fresh.trace()
                marks.append(time.perf_counter())
                lowered, _remarks = run_pipeline(program, target, LOCAL)
                marks.append(time.perf_counter())
                lower_plan(lowered, target)
                marks.append(time.perf_counter())
                times.append(tuple(1e3 * (end - begin) for begin, end in pairwise(marks)))
            record, optimise, lower = (statistics.median(values) for values in zip(*times[1:], strict=True))
            found = {"record_ms": record, "optimise_ms": optimise, "lower_ms": lower}
            shown = {name: round(value, 2) for name, value in found.items()}
            yield f"{path.stem}.{function.__name__}", {**shown, "goal_ms": round(record + optimise, 2)}


def report() -> dict[str, Any]:
    """All figures as plain data. Examples are compiled for a chat model without loading one."""
    chat = ScriptedBackend(lambda asked: None).target
    from_text(straight_text(40), "warm.sglir")  # builds the parser
    return {
        "examples": dict(examples(chat)),
        "seconds": {
            "straight, 20,000 ops": stages(straight_text())[0],
            "5,000 blocks in sequence": stages(blocks_text())[0],
            f"blocks {MAX_DEPTH} deep": stages(deep_text())[0],
        },
    }


def main() -> int:
    found = report()
    slowest = max(times["goal_ms"] for times in found["examples"].values())
    longest = max(stages["together"] for stages in found["seconds"].values())
    result = {
        "what": "recording and compiling: examples in ms (medians), generated programs in s by stage",
        **found,
        "goals": {"example_ms": GOAL_MS, "generated_s": GOAL_S},
        "reached": {"example_ms": slowest < GOAL_MS, "generated_s": longest < GOAL_S},
        **setting(),
    }
    print(f"slowest example {slowest:.1f} ms, longest generated program {longest:.1f} s")
    store(result_path("compile"), result)
    return 0 if all(result["reached"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
