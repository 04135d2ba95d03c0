"""What each pass of the compiler saves, counted on the local runtime.

Writes benchmarks/results/passes.json. Each program runs as a plan with the pass and without it, on a back
end of its own whose prefix tree is empty, with everything else alike: the tokenizer and template of the default
model, the runtime's scheduler, pages and prefix tree. In the model's place is the runtime's oracle, because no
count depends on what a model answers. Counted are hand-overs to the back end, steps of the model, prompt
tokens that were computed, generations and generated tokens. Two passes of the design are measured that
sglc does not have: `hoist_prefix` inside a program, as the same program with its common prefix written once
by hand, and removal of ops that feed nothing.

    python -m benchmarks.passes
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import sglc
from benchmarks.machine import RESULTS, setting, store
from sglc.api.plan import LoadedPlan
from sglc.backends.local import LocalBackend, LocalOptions
from sglc.execution.plan.executor import run_plan
from sglc.execution.session import Session
from sglc.ir.core import Program
from sglc.ir.plan.events import Event, Usage
from sglc.ir.plan.plan import Plan
from sglc.ir.plan.segment import Segment
from sglc.ir.target import Target, Tokenizer
from sglc.ir.text.printer import from_text
from sglc.passes.compile import compile_program
from sglc.passes.lowering.lower_plan import lower_plan
from sglc.passes.pipelines import LOCAL
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.engine.machine import Machine
from sglc.runtime.step import Step
from tests.openai_server import serving
from tests.reference.oracle import Oracle

ROWS = 16
EQUAL = 4  # rows that are the same, of those that `unify` is measured on
SIBLINGS = 8
ESSAYS = 16
POOL = 160  # pages of 16 tokens: less than half of what the essays take
ESSAY = "Tea is made from leaves, and it takes as long as it takes. " * 8
RULES = "Answer in one word. Name no source. Where two answers fit, give the older one. " * 20
Rows = Sequence[Mapping[str, str]]


@sglc.function
def judge(s: Any, text: str, aspect: str) -> Any:
    s += f"You are a judge.\nText: {text}\nAspect: {aspect}\n"
    forks = s.fork(2)
    forks[0] += "Score:" + sglc.gen("score", max_tokens=2, temperature=0, ignore_eos=True)
    forks[1] += "Reason:" + sglc.gen("reason", max_tokens=16, temperature=0, ignore_eos=True)
    return forks[0]["score"]


@sglc.function
def reviewed(s: Any, essay: str) -> None:
    """A chain of calls: a summary, three marks of it, a verdict. Only scores are read, and no reason."""
    s += f"Essay: {essay}\nSummary:"
    s += sglc.gen("summary", max_tokens=12, temperature=0, ignore_eos=True)
    for aspect in ("style", "facts", "length"):
        s += f"\n{aspect}: " + judge(s["summary"], aspect).ret_value
    s += "\nVerdict:"
    s += sglc.gen("verdict", max_tokens=4, temperature=0, ignore_eos=True)


@sglc.function
def answered(s: Any, question: str) -> None:
    """The question stands before rules that are the same for all; both may move."""
    s += sglc.section(f"Question: {question}\n", name="question", movable=True)
    s += sglc.section(f"Rules: {RULES}\n", name="rules", movable=True)
    s += "Answer:"
    s += sglc.gen("answer", max_tokens=2, temperature=0, ignore_eos=True)


@sglc.tool(ordered=False)
def look_up(word: str) -> str:
    """A look-up that takes 0.2 s, and notes when."""
    began_s = time.perf_counter()
    time.sleep(0.2)
    LOOKED_UP.append((began_s, time.perf_counter()))
    return f"{word}: a word. "


LOOKED_UP: list[tuple[float, float]] = []


@sglc.function
def informed(s: Any, essay: str) -> None:
    """Three look-ups, and a generation that knows of them."""
    s += look_up(essay[:4]) + look_up(essay[5:8]) + look_up(essay[9:13])
    s += sglc.gen("answer", max_tokens=2, temperature=0, ignore_eos=True)


def extracted(s: Any, essay: str) -> None:
    """Three fields of one text, each a generation, as the API of another's model is asked for them."""
    s += f"{essay}\nName:" + sglc.gen("name", stop="\n") + "\nAge:" + sglc.gen("age", stop="\n")
    s += "\nCity:" + sglc.gen("city", stop="\n")


@sglc.function
def marked(s: Any, essay: str, question: str) -> None:
    """Many questions on each of some essays."""
    s += f"{essay}\n{question}"
    s += sglc.gen("mark", max_tokens=2, ignore_eos=True)


@sglc.function
def graded(s: Any, question: str) -> None:
    """The same question stands in many rows, and its mark is given twice, by two names."""
    s += f"Question: {question}\nRules: {RULES}\n"
    forks = s.fork(2)
    forks[0] += sglc.gen("mark", max_tokens=4, temperature=0, ignore_eos=True)
    forks[1] += sglc.gen("second mark", max_tokens=4, temperature=0, ignore_eos=True)


def siblings(shared: bool) -> Program:
    """Prompts that begin alike: each with its own literal, or with the common part written once."""
    lines = ["def f():", "    s0 = root()"]
    branches = [f"s{number + 2}" for number in range(SIBLINGS)]
    if shared:
        lines += [f"    s1 = append(s0, {RULES!r})", f"    {', '.join(branches)} = fork(s1)"]
    else:
        lines += [f"    {branch} = root()" for branch in branches]
    for number, branch in enumerate(branches):
        text = f"{'' if shared else RULES}Question {number}: how much is it?"
        at, made = f"s{number + 100}", f"s{number + 200}, t{number}"
        lines += [
            f"    {at} = append({branch}, {text!r})",
            f"    {made} = gen({at}, 'x{number}', max_tokens=2, ignore_eos=True)",
        ]
    return from_text("\n".join([*lines, "    return", ""]), "siblings.sglir")


class CountedOracle(Oracle):
    """An oracle that counts its steps."""

    steps = 0

    def launch(self, step: Step) -> int:
        self.steps += 1
        return super().launch(step)


class Counted(LocalBackend):
    """The local back end with the oracle for a model."""

    def __init__(self, pages: int = 4_000) -> None:
        super().__init__(LocalOptions("smollm2", device="cpu"))
        vocabulary = len(self.tokenizer.token_bytes())
        self.submits = 0
        self.oracle = CountedOracle(pages=pages, page_size=16, vocab_size=vocabulary, eos_ids=())

    @property
    def tokenizer(self) -> Tokenizer:
        assert self.target.tokenizer is not None
        return self.target.tokenizer

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        self.submits += 1
        return super().submit(segment, streams=streams)

    def _load(self) -> Machine:
        return Machine(Engine(self.oracle, EngineConfig(max_rows=16, max_len=8_000)), self.tokenizer)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of all rows together."""

    submits: int
    steps: int
    computed_tokens: int
    prompt_tokens: int
    generations: int
    generated_tokens: int


def measured(plan: Plan, rows: Rows) -> Figures:
    """Run the rows one after another from an empty prefix tree."""
    backend = Counted()
    runs = []
    for number, row in enumerate(rows):
        run = Session(backend, 0, row=number)
        run_plan(plan, row, run)
        runs.append(run)
    used = sum((run.outputs.usage for run in runs), Usage())
    submits = sum(run.submits for run in runs)
    backend.close()
    return Figures(submits, backend.oracle.steps, used.computed, used.prompt, used.calls, used.completion)


def asked_of_an_api(guessed_tokens: int | None, passes: str | None = None) -> dict[str, int]:
    """Requests and tokens of `extracted`, of a server whose model says the fields as the program has them."""
    said = "Name: Ann\nAge: 7\nCity: Rome\nThe end."

    def answer(body: dict[str, Any]) -> str:
        """What is left of `said` behind the prompt, up to the first stop string; or an object of its fields."""
        if "response_format" in body:
            return json.dumps({"name": " Ann", "age": " 7", "city": " Rome"})
        rest = next(said[at:] for at in range(len(said), 0, -1) if body["prompt"].endswith(said[:at]))
        stops = body.get("stop") or []
        return min(
            (rest.split(stop)[0] for stop in ([stops] if isinstance(stops, str) else stops)),
            key=len,
            default=rest,
        )

    with serving(answer) as api:
        backend = sglc.OpenAI("a-server-s", base_url=api.url, api_key="none", is_chat_model=False)
        program = sglc.function(num_api_spec_tokens=guessed_tokens)(extracted)
        result = program.run(essay=ESSAY, backend=backend, passes=passes)
        assert result["city"] == " Rome", result.text()
        used = result.usage
        return {"requests": len(api.bodies), "prompt_tokens": used.prompt}


def measured_batch(plan: Plan, rows: Rows, pages: int = 4_000) -> Figures:
    """Run the rows as one batch, from an empty prefix tree."""
    backend = Counted(pages)
    results = LoadedPlan(plan).run_batch(rows, backend=backend, seed=0)
    used = sum((result.usage for result in results), Usage())
    backend.close()
    steps, made = backend.oracle.steps, backend.submits
    return Figures(made, steps, used.computed, used.prompt, used.calls, used.completion)


def called(passes: str | None) -> dict[str, int]:
    """How many look-ups of `informed` come one after another, and how long the second run takes."""
    backend = Counted()
    seconds = 0.0
    for _ in range(2):
        LOOKED_UP.clear()
        began_s = time.perf_counter()
        error = informed.run(essay=ESSAY, backend=backend, passes=passes, mode="plan").error()
        seconds = time.perf_counter() - began_s
        assert error is None, error
    backend.close()
    chain, end_s = 0, 0.0
    for begin_s, over_s in sorted(LOOKED_UP, key=lambda call: call[1]):
        if begin_s >= end_s:
            chain, end_s = chain + 1, over_s
    return {"tool_calls_one_after_another": chain, "milliseconds": round(seconds * 1e3)}


def without(name: str) -> tuple[str, ...]:
    return tuple(other for other in LOCAL if other != name)


def report() -> dict[str, Any]:
    """All figures as plain data."""
    target = Counted().target

    def both(
        program: Program, rows: Rows, off: Sequence[str], on: Sequence[str],
        run: Callable[[Plan, Rows], Figures] = measured,
    ) -> dict[str, Any]:  # fmt: skip
        ways = (("off", off), ("on", on))
        plans = {name: compile_program(program, target, list(passes)).plan for name, passes in ways}
        return {name: asdict(run(plan, rows)) for name, plan in plans.items()}

    essays = [{"essay": f"{number}. {ESSAY}"} for number in range(4)]
    questions = [{"question": f"what is {number} times {number}?"} for number in range(ROWS)]
    mixed = [{"essay": f"{row % ESSAYS}. {3 * ESSAY}", "question": f"Mark {row}."} for row in range(ESSAYS * 8)]
    hoisted = {
        name: compile_program(siblings(way), target).plan for name, way in (("off", False), ("on", True))
    }
    return {
        "inline_calls": both(reviewed.trace(), essays, without("inline_calls"), LOCAL),
        "prune": both(replace(reviewed.trace(), outputs=("verdict",)), essays, without("prune"), LOCAL),
        "overlap_tools": {"off": called("-overlap_tools"), "on": called(None)},
        "speculate": {"off": asked_of_an_api(None), "on": asked_of_an_api(64)},
        "fuse_gens": {"off": asked_of_an_api(None), "on": asked_of_an_api(None, "+fuse_gens")},
        "unify": both(graded.trace(), questions * EQUAL, without("unify"), LOCAL, measured_batch),
        "hoist_prefix": both(
            marked.trace(), mixed, without("hoist_prefix"), LOCAL, partial(measured_batch, pages=POOL)
        ),
        "reorder": both(answered.trace(), questions, LOCAL, ["+reorder"]),
        "hoist_prefix inside a program (left out)": {
            name: asdict(measured(plan, [{}])) for name, plan in hoisted.items()
        },
        "ops that feed nothing (left out)": dead_ops(target),
    }


def dead_ops(target: Target) -> dict[str, Any]:
    """What is left in the plan of ops that feed nothing, with no pass that removes them."""
    program = reviewed.trace()
    dead = from_text(
        "def f(a):\n    s0 = root()\n    s1 = append(s0, a)\n    s2 = append(s1, 'x')\n    b0 = eq(a, 'x')\n"
        "    t0 = lower(a)\n    l0 = concat((t0, a))\n    s3 = cond(b0):\n        s4 = append(s2, 'y')\n"
        "        yield s4\n    else:\n        yield s2\n    s5, t1 = gen(s1, 'x')\n    return\n", "dead.sglir",
    )  # fmt: skip
    live = from_text(
        "def f(a):\n    s0 = root()\n    s1 = append(s0, a)\n    s2, t0 = gen(s1, 'x')\n    return\n",
        "live.sglir",
    )
    counts = {}
    for name, made in (("off", dead), ("on", live)):
        plan = lower_plan(replace(made, name=program.name), target)
        nodes = sum(len(step.nodes) for step in plan.steps if isinstance(step, Segment))
        counts[name] = {"steps": len(plan.steps), "nodes": nodes, "blocks": len(plan.blocks)}
    return counts


def main() -> int:
    found = report()
    result = {
        "what": "programs with a pass and without it: counts of all rows on the local runtime",
        "rows": {
            "inline_calls": 4,
            "prune": 4,
            "overlap_tools": 1,
            "speculate": 1,
            "fuse_gens": 1,
            "unify": ROWS * EQUAL,
            "reorder": ROWS,
            "hoist_prefix": ESSAYS * 8,
            "hoist_prefix inside a program (left out)": 1,
        },
        "figures": found,
        **setting(),
    }
    store(RESULTS / "passes.json", result)
    for name, figures in found.items():
        print(name, *(f"\n  {way}: {counts}" for way, counts in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
