"""A generation's `regex` survives the text form and the plan's, whatever is in it."""

from __future__ import annotations

import json

import pytest

from sglc.errors import VerifyError
from sglc.ir.core import Program, Site, Type, Value
from sglc.ir.ops import Append, Gen, Root
from sglc.ir.plan.plan_json import plan_from_json, plan_to_json
from sglc.ir.plan.plan_text import plan_text
from sglc.ir.plan.segment import GenNode, Segment
from sglc.ir.sampling import Sampling
from sglc.ir.target import Target
from sglc.ir.text.printer import from_text, identity, to_text
from sglc.passes.lowering.lower_plan import lower_plan

PATTERNS = (
    "", "[0-9]{1,3}", r"\d+\.\d\\", "'\"\n\t\\n", "(?x) a # b.py:1:2\n", "é|한|😀|\u2028|\ud800|\x00",
    r"[^\]#]", "None",
)  # fmt: skip


def program(regex: str | None) -> Program:
    first, second, third = (Value(i, Type.STREAM) for i in range(3))
    text = Value(3, Type.TEXT)
    gen = Gen(second, Site("f", (), "x"), Sampling(regex=regex), results=(third, text))
    ops = (Root(results=(first,)), Append(first, "a", results=(second,)), gen)
    return Program("f", (), ops, text)


@pytest.mark.parametrize("regex", [None, *PATTERNS])
def test_a_regex_survives(regex: str | None) -> None:
    made = program(regex)
    parsed = from_text(to_text(made), "x.sglir")
    (gen,) = [op for op in parsed.ops if isinstance(op, Gen)]
    assert gen.sampling == Sampling(regex=regex)
    assert to_text(parsed) == to_text(made)
    assert ("regex=" in to_text(made)) == (regex is not None)
    plan = lower_plan(parsed, Target("local"))
    loaded = plan_from_json(json.loads(json.dumps(plan_to_json(plan))))
    assert loaded == plan
    (segment,) = [step for step in loaded.steps if isinstance(step, Segment)]
    (node,) = [node for node in segment.nodes if isinstance(node, GenNode)]
    assert node.sampling.regex == regex
    assert (f" regex={regex!r}" in plan_text(loaded)) == (regex is not None)


def test_a_regex_is_part_of_a_program_s_identity() -> None:
    assert len({identity(program(regex)) for regex in (None, *PATTERNS)}) == 1 + len(PATTERNS)


def test_a_regex_that_is_no_string_is_refused() -> None:
    text = to_text(program("a")).replace("regex='a'", "regex=3")
    with pytest.raises(VerifyError, match="`regex` of `gen` is not a string or None"):
        from_text(text, "x.sglir")
