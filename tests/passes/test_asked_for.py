"""Passes that are asked for: where they stand, that the command line runs them, and what they save."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from benchmarks.passes import Counted, answered, measured, reviewed, siblings
from sglc.cli import main
from sglc.ir.plan.plan import Plan
from sglc.ir.target import Takes, Target
from sglc.passes.compile import compile_program
from sglc.passes.pipelines import CHAT, LOCAL, extended

PLAIN = Target("plain")
API = Target("api", protocol="chat", takes=Takes(samples=1))
PROGRAM = """\
import sglc as sgl


@sgl.function
def ask(s, question):
    s += sgl.section(f"Question: {question} ", name="question", movable=True)
    s += sgl.section("Be brief. ", name="rules", movable=True)
    s += sgl.gen("answer", max_tokens=4)
    return s["answer"]
"""


@pytest.mark.parametrize(
    ("asked", "target", "expected"),
    [
        (("fold_text",), PLAIN, ("fold_text",)),
        ((), PLAIN, ()),
        (("+reorder",), PLAIN, (*LOCAL[:2], "reorder", *LOCAL[2:])),
        (("+dead_code", "+reorder"), PLAIN, (*LOCAL[:2], "dead_code", "reorder", *LOCAL[2:])),
        (("+reorder",), API, (*CHAT[:5], "reorder", *CHAT[5:])),
        (("lower_roles", "+reorder", "fold_text"), PLAIN, ("lower_roles", "reorder", "fold_text")),
        (("lower_roles", "+reorder"), PLAIN, ("lower_roles", "reorder")),
    ],
)
def test_where_a_pass_that_is_asked_for_stands(
    asked: tuple[str, ...], target: Target, expected: tuple[str, ...]
) -> None:
    assert extended(asked, target) == expected
    assert CHAT[5] == "fold_text"
    assert LOCAL[2] == "fold_text"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "ask.py").write_text(PROGRAM)
    answers = [{"text": "rules first", "prompt": "^Be brief. Question"}, {"text": "question first"}]
    (tmp_path / "answers.json").write_text(json.dumps(answers))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_line_runs_passes(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["ask.py", "--backend", "scripted:answers.json", "--arg", "question=Why?"]
    assert main(["run", *given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["vars"] == {"answer": "question first"}
    assert main(["run", *given, "--json", "--passes", "+reorder"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["vars"] == {"answer": "rules first"}
    assert shown["value"] == "rules first"


def test_explain_says_what_they_do(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "ask.py", "--target", "scripted:answers.json", "--passes", "+reorder"]) == 0
    found = capsys.readouterr().out
    assert "reorder: the order is `rules` of line 7, `question` of line 6" in found
    assert "more stand before the first text that changes from row to row (ask.py:6:10)" in found


def test_a_program_of_the_text_form_runs_too(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "ask.sglir").write_text(
        "def ask(a):\n    s0 = root()\n    s1 = append(s0, a)\n    s2, t0 = gen(s1, 'answer')\n    return t0\n"
    )
    given = ["ask.sglir", "--backend", "scripted:answers.json", "--arg", "a=Why?", "--passes", "fold_text"]
    assert main(["run", *given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["value"] == "question first"


@cache
def target() -> Target:
    return Counted().target


def plan(program: Any, *passes: str) -> Plan:
    return compile_program(program, target(), passes or None).plan


def test_reordered_rows_compute_the_rules_once() -> None:
    rows = [{"question": f"what is {number}?"} for number in range(4)]
    off, on = measured(plan(answered.trace()), rows), measured(plan(answered.trace(), "+reorder"), rows)
    assert off.prompt_tokens == on.prompt_tokens
    rules = off.prompt_tokens / 4
    assert off.computed_tokens > 3.5 * rules
    assert on.computed_tokens < 1.5 * rules


def test_what_nobody_reads_is_not_generated() -> None:
    rows = [{"essay": "Tea is made of leaves."}]
    off, on = measured(plan(reviewed.trace()), rows), measured(plan(reviewed.trace(), "+dead_code"), rows)
    assert (off.generations, on.generations) == (8, 5)  # three reasons
    assert off.generated_tokens - on.generated_tokens == 3 * 16


def test_hoisting_a_prefix_by_hand_saves_nothing() -> None:
    """Why there is no such pass: the runtime computes it once, for requests that come together too."""
    assert measured(plan(siblings(shared=False)), [{}]) == measured(plan(siblings(shared=True)), [{}])


def test_sections_keep_their_order_unless_it_is_asked_for() -> None:
    @sgl.function
    def ask(s: Any, question: str) -> None:
        s += sgl.section(f"{question} ", movable=True) + sgl.section("Be brief. ", movable=True)
        s += sgl.gen("answer")

    program = ask.trace()
    assert plan(program) == plan(program, *LOCAL)
    assert plan(program) != plan(program, "+reorder")
