"""Inlined programs run as called ones do, with fewer hand-overs: seeds, answers, variables, limits."""

from __future__ import annotations

from typing import Any

import pytest

import sglc as sgl
from sglc.backends.local import LocalBackend
from sglc.backends.scripted import ScriptedBackend
from sglc.execution.plan.executor import run_plan
from sglc.execution.session import Session
from sglc.ir.core import Site, walk
from sglc.ir.ops import Call
from sglc.ir.plan.backend import Backend
from sglc.ir.plan.plan import CallStep
from sglc.ir.target import Target
from sglc.ir.text.printer import from_text
from sglc.passes.base import run_pipeline
from sglc.passes.compile import compile_program
from sglc.passes.pipelines import LOCAL

WITHOUT = tuple(name for name in LOCAL if name != "inline_calls")
PLAIN = Target("plain")


@sgl.function
def judge(s: Any, text: str, aspect: str) -> Any:
    s += f"Text: {text}\nAspect: {aspect}\nScore:"
    s += sgl.gen("score", max_tokens=3)
    return s["score"]


@sgl.function
def reviewed(s: Any, essay: str) -> Any:
    s += f"Essay: {essay}\nSummary:"
    s += sgl.gen("summary", max_tokens=6)
    style = judge(s["summary"], "style")
    facts = judge(s["summary"], "facts")
    s += f" Style: {style['score']} Facts: {facts.ret_value} Verdict:"
    s += sgl.gen("verdict", max_tokens=3)
    return s["verdict"]


def ran(backend: Backend, passes: tuple[str, ...]) -> tuple[Any, dict[Site, Any], int]:
    """What a run gives, its texts by site, and how often it handed something over."""
    plan = compile_program(reviewed.trace(), backend.target, passes).plan
    run = Session(backend, seed=7, row=3)
    given = run_plan(plan, {"essay": "Tea is made of leaves."}, run)
    return given, {site: output.text for site, output in run.outputs.generations.items()}, run.submits


def test_samples_of_a_real_model_are_the_same(local: LocalBackend) -> None:
    """At temperature 1: a site that changed would draw another sample."""
    called, inlined = ran(local, WITHOUT), ran(local, LOCAL)
    assert inlined[:2] == called[:2]
    assert (called[2], inlined[2]) == (4, 1)
    assert [str(site) for site in inlined[1]] == [
        "reviewed.summary#0", "reviewed.judge#0/judge.score#0", "reviewed.judge#1/judge.score#0",
        "reviewed.verdict#0",
    ]  # fmt: skip


@pytest.mark.parametrize("passes", [WITHOUT, LOCAL])
def test_what_a_called_program_names_is_no_variable(passes: tuple[str, ...]) -> None:
    backend = ScriptedBackend(lambda asked: asked.site.name[:1])
    (variables, value), _, _ = ran(backend, passes)
    assert variables == {"summary": "s", "verdict": "v"}
    assert value == "v"


def test_a_program_does_not_grow_without_end() -> None:
    called = "".join(
        f"    call('g', (), occurrence={number}):\n        def g():\n            s0 = root()\n"
        "            s1 = append(s0, 'a')\n            s2, t0 = gen(s1, 'x')\n            return\n"
        for number in range(5)
    )
    program = from_text(f"def f():\n{called}    return\n", "f.sglir")
    after, remarks = run_pipeline(program, PLAIN, ["inline_calls{max_ops=10}"])
    left = [op for op in walk(after.ops) if isinstance(op, Call)]
    assert len(list(walk(after.ops))) <= 10
    assert len(left) == 4
    assert "with its 3 ops the program would have more than 10" in remarks[1].message


LOOP = """\
def f():
    loop((), 2):
        t0 = call('g', ()):
            def g():
                s0 = root()
                s1 = append(s0, 'a')
                s2, t0 = gen(s1, 'x')
                return t0
        b0 = eq(t0, 'again')
        yield b0
    return
"""


def test_a_call_in_a_loop_stays_a_step() -> None:
    program = from_text(LOOP, "f.sglir")
    backend = ScriptedBackend(lambda asked: "again")
    compiled = compile_program(program, backend.target)
    assert any(isinstance(step, CallStep) for block in compiled.plan.blocks for step in block.steps)
    assert "name the iteration of the `loop`" in compiled.remarks[0].message
    run = Session(backend, 0)
    run_plan(compiled.plan, {}, run)
    assert [str(call.site) for call in run.calls] == ["f@0.g#0/g.x#0", "f@1.g#0/g.x#0"]
