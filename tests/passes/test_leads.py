"""How prompts begin, as far as it is known before a run: from recorded programs, and in plans."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.errors import VerifyError
from sglc.ir.plan.plan import Derived, PromptPrefix
from sglc.ir.plan.plan_json import plan_from_json, plan_to_json
from sglc.ir.plan.segment import Slot
from sglc.ir.text.parser import parse
from sglc.passes.lowering.prompt_prefixes import prompt_prefixes
from tests.oracle_backend import OracleBackend

SHORT: dict[str, Any] = {"max_tokens": 4}


def of(function: sgl.Function, **kwargs: Any) -> tuple[PromptPrefix, ...]:
    return prompt_prefixes(function.trace(), **kwargs)


def test_a_prompt_counts_up_to_its_last_argument() -> None:
    @sgl.function
    def program(s: Any, essay: str, question: str) -> None:
        s += "Essay: " + essay
        s += f"\nQ: {question}\nA:" + sgl.gen("x", **SHORT)

    assert of(program) == (("Essay: ", Slot("essay"), "\nQ: ", Slot("question")),)


def test_literals_are_one_however_they_were_appended() -> None:
    @sgl.function
    def program(s: Any, essay: str) -> None:
        s += "Es"
        s += "say"
        s += ": " + essay + sgl.gen("x", **SHORT)

    assert of(program) == (("Essay: ", Slot("essay")),)


def test_what_is_generated_ends_it() -> None:
    @sgl.function
    def program(s: Any, first: str, second: str) -> None:
        s += first + sgl.gen("x", **SHORT) + second + sgl.gen("y", **SHORT)

    assert of(program) == ((Slot("first"),),)


def test_a_later_prompt_counts_up_to_what_is_generated() -> None:
    @sgl.function
    def judge(s: Any, rubric: str, answer: str) -> None:
        s += rubric + answer + sgl.gen("grade", **SHORT)

    @sgl.function
    def program(s: Any, question: str, rubric: str) -> None:
        s += question + sgl.gen("x", **SHORT)
        s += judge.run(rubric=rubric, answer=s["x"])["grade"]

    assert of(program) == ((Slot("question"),), (Slot("rubric"),))


def test_roles_and_text_operations() -> None:
    @sgl.function
    def program(s: Any, rules: str, question: str) -> None:
        s += sgl.system(rules.strip())
        s += sgl.user(question.strip().lower())
        s += sgl.assistant(sgl.gen("x", **SHORT))

    strip = Derived("strip", (Slot("question"),))
    rules = Derived("strip", (Slot("rules"),))
    assert of(program) == (("SYSTEM:", rules, "\nUSER:", Derived("lower", (strip,))),)


def test_branches_tell_rows_apart_no_better_than_their_trunk() -> None:
    @sgl.function
    def program(s: Any, essay: str) -> None:
        s += essay
        for part in s.fork(3):
            part += "One dimension:" + sgl.gen("x", **SHORT)

    assert of(program) == ((Slot("essay"),),)
    assert of(program, constants=True) == ((Slot("essay"), "One dimension:"),)


def test_a_prompt_without_an_argument_is_the_same_in_all_runs() -> None:
    @sgl.function
    def program(s: Any, text: str) -> None:
        s += "Hello." + sgl.gen("x", **SHORT) + text + sgl.gen("y", **SHORT)

    assert of(program) == ()
    assert of(program, constants=True) == (("Hello.",),)


def fetch(text: str) -> str:
    return Path(text).read_text()


def test_ordinary_python_ends_it_and_what_stands_before_counts() -> None:
    @sgl.function
    def program(s: Any, rules: str, question: str) -> None:
        s += rules
        s += fetch(question) + sgl.gen("x", **SHORT)

    assert of(program) == ((Slot("rules"),),)


def test_regions() -> None:
    """A loop's first iteration counts, a branch's arms do not."""
    program = parse(
        """
def program(a, b):
    s0 = root()
    s1 = append(s0, a)
    s5 = loop((s1,), 3) as s2:
        s3 = append(s2, b)
        s4, t0 = gen(s3, 'x')
        b0 = eq(t0, 'yes')
        yield b0, s4
    b1 = eq(a, 'no')
    cond(b1):
        s6 = root()
        s7 = append(s6, b)
        s8, t1 = gen(s7, 'y')
        yield
    else:
        yield
    return None
""",
        "leads.sglir",
    )
    assert prompt_prefixes(program) == ((Slot("a"), Slot("b")),)


@sgl.function
def asked(s: Any, rules: str, question: str) -> None:
    s += sgl.user(rules + question.strip())
    s += sgl.assistant(sgl.gen("x", **SHORT))


def test_a_plan_has_them_and_its_file_too() -> None:
    plan = asked.compile(OracleBackend()).plan
    (prefix,) = plan.leads
    assert prefix[-2:] == (Slot("rules"), Derived("strip", (Slot("question"),)))
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


@pytest.mark.parametrize(
    ("prefix", "problem"),
    [
        ((Slot("nobody"),), "reads `nobody`, which is no argument"),
        ((Derived("shout", (Slot("rules"),)),), "has an unknown operation `shout`"),
        ((Derived("strip", (Slot("nobody"),)),), "reads `nobody`, which is no argument"),
    ],
)
def test_a_damaged_lead_is_refused(prefix: PromptPrefix, problem: str) -> None:
    plan = replace(asked.compile(OracleBackend()).plan, leads=(prefix,))
    with pytest.raises(VerifyError, match=problem) as caught:
        plan_from_json(plan_to_json(plan))
    assert caught.value.code == "SGLC221"
