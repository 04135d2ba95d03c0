"""Passes that are asked for: where they stand, that the command line runs them, and what they save."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from benchmarks.passes import Counted, answered, measured, reviewed, siblings
from sglc.backends.scripted import ScriptedBackend
from sglc.cli import main
from sglc.cli.program_file import open_function
from sglc.errors import UsageError
from sglc.ir.core import Op, Program
from sglc.ir.ops import Append
from sglc.ir.plan.plan import Plan
from sglc.ir.target import Takes, Target
from sglc.passes.base import PASSES, Exactness, Pass
from sglc.passes.compile import compile_program
from sglc.passes.pass_options import options_of, split_specs
from sglc.passes.pipelines import CHAT, LOCAL, extended

PLAIN = Target("plain")
API = Target("api", protocol="chat", takes=Takes(samples=1))
LOCAL_AT, CHAT_AT = LOCAL.index("fold_text"), CHAT.index("fold_text")
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
        (("+reorder",), PLAIN, (*LOCAL[:LOCAL_AT], "reorder", *LOCAL[LOCAL_AT:])),
        (("+speculate", "+reorder"), PLAIN, (*LOCAL[:LOCAL_AT], "speculate", "reorder", *LOCAL[LOCAL_AT:])),
        (("+reorder",), API, (*CHAT[:CHAT_AT], "reorder", *CHAT[CHAT_AT:])),
        (("lower_roles", "+reorder", "fold_text"), PLAIN, ("lower_roles", "reorder", "fold_text")),
        (("lower_roles", "+reorder"), PLAIN, ("lower_roles", "reorder")),
        (("-fold_text", "-speculate"), PLAIN, tuple(name for name in LOCAL if name != "fold_text")),
        (
            ("-fold_text", "+reorder", "-unify", "-hoist_prefix"),
            PLAIN,
            (*LOCAL[:LOCAL_AT], "reorder", "share_prefixes", "lower_roles"),
        ),
        (("fold_text", "lower_roles", "-fold_text"), PLAIN, ("lower_roles",)),
        (("+inline_calls{max_ops=9}",), PLAIN, (LOCAL[0], "inline_calls{max_ops=9}", *LOCAL[2:])),
        (
            ("+cache_hints{min_tokens=9}",),
            PLAIN,
            (*LOCAL[:LOCAL_AT], "cache_hints{min_tokens=9}", *LOCAL[LOCAL_AT:]),
        ),
    ],
)
def test_where_a_pass_that_is_asked_for_stands(
    asked: tuple[str, ...], target: Target, expected: tuple[str, ...]
) -> None:
    assert extended(asked, target) == expected


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("-foo", "unknown pass `foo`"),
        ("+cache_hints{a=1}", "pass `cache_hints` has no option `a`"),
        ("cache_hints{min_tokens=few}", "pass `cache_hints` takes `min_tokens=int`"),
        ("cache_hints{min_tokens=9", "pass `cache_hints` has its options in `{` and `}`"),
        ("cache_hints{min_tokens}", "pass `cache_hints` takes `min_tokens=int`"),
        ("fold_text{a=1}", "pass `fold_text` has no option `a`"),
    ],
)
def test_what_no_pass_has_is_refused_with_what_there_is(spec: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        extended([spec], PLAIN)
    assert ("min_tokens: int = 0" if "cache_hints" in spec else "none") in caught.value.note or (
        "cache_hints, chat_turns" in caught.value.note
    )


def test_options_have_the_types_that_the_pass_says() -> None:
    def run(program: Any, target: Any, *, deep: bool = False, most: int = 3, name: str = "") -> Any:
        return program

    assert options_of("x", run) == {}
    assert options_of("x{deep=true, most=-4,name=a b}", run) == {"deep": True, "most": -4, "name": "a b"}
    assert split_specs("+a{x=1,y=2}, -b,,c") == ("+a{x=1,y=2}", "-b", "c")


def test_python_takes_passes_as_the_command_line_does(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def louder(program: Program, _: Target, *, times: int = 1) -> Program:
        def changed(op: Op) -> Op:
            return (
                replace(op, text=op.text + "!" * times)
                if isinstance(op, Append) and isinstance(op.text, str)
                else op
            )

        return replace(program, ops=tuple(map(changed, program.ops)))

    monkeypatch.setitem(PASSES, "louder", Pass("louder", Exactness.AGGRESSIVE, louder, "for this test"))
    heard = []
    backend = ScriptedBackend(lambda asked: heard.append(asked.prompt.count("brief. !!")) or "yes")
    function = open_function("ask.py")
    for passes in ("+louder{times=2}", ["+louder{times=2}"]):
        assert function.run(question="Why?", backend=backend, passes=passes)["answer"] == "yes"
        function.run_batch([{"question": "Why?"}], backend=backend, passes=passes)
        compiled = function.compile(backend, passes=passes)
        assert compiled.run(question="Why?")["answer"] == "yes"
        assert "!!" in str(function.explain(backend, passes=passes).compiled.plan)
    assert function.run(question="Why?", backend=backend)["answer"] == "yes"
    assert heard == [1] * 6 + [0]
    with pytest.raises(UsageError, match="SGLC020"):
        function.run(question="Why?", backend=backend, passes="-foo")
    for wrong in (3, [3], b"-unify"):
        with pytest.raises(UsageError, match=r"SGLC023.*`passes` is a text or a list of texts"):
            function.run(question="Why?", backend=backend, passes=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("+unify{", "has its options in `{` and `}`"),
        ("inline_calls{max_ops=1}}", "has its options in `{` and `}`"),
        ("+inline_calls{max_ops=1,max_ops=2}", "has two values of `max_ops`"),
        ("-inline_calls{most=1}", "has no option `most`"),
        ("-inline_calls{max_ops=5}", "takes a pass away, and gives it options"),
        ("+inline_calls{max_ops=-5}", "takes `max_ops` from 0 on"),
        ("+cache_hints{min_tokens=-1}", "takes `min_tokens` from 0 on"),
    ],
)
def test_options_that_are_none_are_refused(spec: str, said: str) -> None:
    with pytest.raises(UsageError, match="SGLC322") as caught:
        extended((spec,), PLAIN)
    assert said in caught.value.message


@pytest.mark.parametrize("spec", ["--unify", "+-unify", "-+unify"])
def test_two_signs_are_no_name(spec: str) -> None:
    with pytest.raises(UsageError, match="SGLC020"):
        extended((spec,), PLAIN)


def test_movable_sections_of_any_text_have_one_plan_that_reorders() -> None:
    """The name of a section is known to Python; its text is an argument's, of every row."""

    @sgl.function
    def ask(s: Any, question: str) -> None:
        s += sgl.section(f"{question} ", movable=True) + sgl.section("Be brief. ", "rules", movable=True)
        s += sgl.gen("answer")

    heard: list[str] = []
    backend = ScriptedBackend(lambda asked: heard.append(asked.prompt) or "yes")
    asked = [f"What is {number}?" for number in range(4)]
    for question in asked:
        assert ask.run(question, backend=backend, passes="+reorder").sync().mode == "plan"
    rows = ask.run_batch([(question,) for question in asked], backend=backend, passes="+reorder")
    assert [row.mode for row in rows] == ["plan"] * 4
    assert sorted(heard) == sorted(2 * [f"Be brief. {question} " for question in asked])


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


def test_the_command_line_takes_a_pass_away(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["compile", "ask.py", "--target", "scripted:answers.json", "--emit", "ir"]
    shown = []
    for passes in ([], ["--passes", "-fold_text"], ["--passes=-fold_text"]):
        assert main([*given, "--dump-ir-after-all", *passes]) == 0
        shown.append(capsys.readouterr().out)
    assert ["# after fold_text" in out for out in shown] == [True, False, False]
    assert shown[1] == shown[2]


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
    program = replace(reviewed.trace(), outputs=("verdict",))
    off, on = measured(plan(program, "-prune"), rows), measured(plan(program), rows)
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
