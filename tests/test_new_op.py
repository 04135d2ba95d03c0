"""An op that makes one value of others is its class and a row of `OPERATIONS`: all else follows from these."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sglc.backends.scripted import ScriptedBackend
from sglc.errors import VerifyError
from sglc.execution.plan.executor import run_plan
from sglc.execution.session import Session
from sglc.ir import values
from sglc.ir.core import OPS, Op, Type, Value, op
from sglc.ir.plan.plan_file import plan_from_text, plan_to_text
from sglc.ir.text.printer import from_text, to_text
from sglc.ir.values import Operation
from sglc.ir.verify.verify import verify
from sglc.passes.compile import compile_program
from tests.reference.numbering import canonical

TEXT = """\
# sglir 2
def f(a) -> ('x',):
    s0 = root()
    t0 = upper(a)
    t1 = upper(t0)
    t2 = upper(a)
    s1 = append(s0, t1)
    s2, t3 = gen(s1, 'x')
    t4 = upper(t3)
    t5 = upper(t3)
    s3, t6 = gen(s2, 'y')
    return (t4, t5)
"""


@pytest.fixture
def upper(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    @op("upper", Type.TEXT, pure=True)
    class Upper(Op):
        """`text` in upper case."""

        text: Value | str

    monkeypatch.setitem(values.OPERATIONS, "upper", Operation(lambda one: values.text(one).upper()))
    yield
    del OPS["upper"]


def test_it_is_printed_verified_rewritten_lowered_and_run(upper: None) -> None:
    program = from_text(TEXT, "f.sglir")
    assert to_text(program) == TEXT
    verify(program)
    backend = ScriptedBackend(lambda asked: f"{asked.prompt} said")
    compiled = compile_program(program, backend.target)
    shown = to_text(compiled.lowered)
    assert shown.count("upper(") == 3  # equal ones are merged, and none is lost
    assert "'y'" not in shown
    plan = plan_from_text(plan_to_text(compiled.plan), "plan.json")
    assert plan == compiled.plan
    assert run_plan(plan, {"a": "one"}, Session(backend, 0))[1] == ["ONE SAID", "ONE SAID"]
    assert canonical(compiled.lowered) == from_text(shown, "again.sglir")


def test_its_types_are_checked(upper: None) -> None:
    with pytest.raises(VerifyError, match="SGLC205"):
        verify(from_text("def f():\n    s0 = root()\n    t0 = upper(s0)\n    return t0\n", "f.sglir"))
    with pytest.raises(VerifyError, match="SGLC202"):
        from_text("def f():\n    t0 = upper(1)\n    return t0\n", "f.sglir")
