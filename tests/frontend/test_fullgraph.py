"""tests/errors/fullgraph.md: each kind of place that `fullgraph` refuses, as a user sees it."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sglc as sgl
from sglc.errors import SglcError, render
from sglc.frontend.tracing import tools
from sglc.frontend.values import graph_breaks
from sglc.frontend.values.graph_breaks import BreakKind
from sglc.ir.core import Program, walk
from sglc.ir.ops import HostCall
from tests.depth import few

SPEC = Path(__file__).parent.parent / "errors" / "fullgraph.md"
_CASE = re.compile(r"^## (.*?)\n\n```python\n(.*?)^```\n```error\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ERRORS = ("SGLC147", "SGLC148", "SGLC149")  # in any program
PREAMBLE = """\
import re
import threading
import time
from collections import deque
from dataclasses import dataclass

import sglc as sgl
from sglc.frontend.tracing import control, tools
from sglc.frontend.language.choices import ChoicesDecision, ChoicesSamplingMethod

SEEN = []
LOCK = threading.Lock()


class Longest(ChoicesSamplingMethod):
    def __call__(self, *, choices, **scores):
        return ChoicesDecision(max(choices, key=len))


LONGEST = Longest()


@dataclass(frozen=True)
class Point:
    left: int


class Account:
    balance = 7

    @property
    def status(self):
        return "poor"

    def __add__(self, amount):
        return self.balance + amount


ACCOUNT = Account()


@tools.tool
def unannotated(text):
    return text


@tools.pure
def count():
    SEEN.append(1)
    return len(SEEN)


"""


@dataclass(frozen=True)
class Case:
    title: str
    source: str
    expected: str


def cases() -> list[Case]:
    return [Case(*parts) for parts in _CASE.findall(SPEC.read_text(encoding="utf-8"))]


def loaded(case: Case, monkeypatch: pytest.MonkeyPatch, folder: Path, *, fullgraph: bool = True) -> Any:
    """The module of a case, as if its file had been imported alone."""
    source = PREAMBLE + (case.source if fullgraph else case.source.replace("fullgraph=True", "fullgraph=False"))
    path = folder / "program.py"
    path.write_text(source, encoding="utf-8")
    module = ModuleType("program")
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, "program", module)
    monkeypatch.setattr(tools, "_DECLARED", {})
    exec(compile(source, str(path), "exec"), vars(module))
    return module


def traced(module: Any) -> Program:
    """The program of a case, for its `args` if it has any."""
    made: Program = module.program.trace(args=getattr(module, "args", None))
    return made


@pytest.mark.parametrize("case", few(cases(), 24), ids=lambda case: case.title)
def test_error(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(SglcError) as caught:
        traced(loaded(case, monkeypatch, tmp_path))
    error = caught.value
    found = render(error) + "\n"
    assert case.title.startswith(f"{error.code}: ")
    assert error.loc is not None
    assert error.hint
    if request.config.getoption("--bless"):
        text = SPEC.read_text(encoding="utf-8")
        start = text.index(f"## {case.title}\n")
        at = text.index("```error\n", start) + len("```error\n")
        SPEC.write_text(text[:at] + found + text[text.index("```", at) :], encoding="utf-8")
        return
    assert found == case.expected


def test_every_kind_of_graph_break_is_shown() -> None:
    kinds = [kind.code for kind in vars(graph_breaks).values() if isinstance(kind, BreakKind)]
    titles = [case.title for case in cases()]
    assert len(titles) == len(set(titles))
    assert {title[:7] for title in titles} == {*kinds, *ERRORS}


def test_without_it_each_is_a_boundary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same places end the recorded part of a program that is not `fullgraph`, with the same words."""
    for case in few(cases(), 24):
        if case.title.startswith(ERRORS):
            continue
        program = traced(loaded(case, monkeypatch, tmp_path, fullgraph=False))
        found = [op for op in walk(program.ops) if isinstance(op, HostCall)]
        assert found, case.title
        assert any(op.reason in case.expected for op in found), case.title


def test_a_program_without_a_boundary_compiles() -> None:
    @sgl.function(fullgraph=True)
    def program(s: Any, q: str) -> Any:
        s += q + sgl.select("x", choices=["a", "b"])
        return 1 if s["x"] == "a" else 2

    assert [op for op in walk(program.trace().ops) if isinstance(op, HostCall)] == []
    assert program.bind(q="x").definition.fullgraph
