"""A body that traces is never run: not at the first call, and not at one that finds its plan."""

from __future__ import annotations

import asyncio
import copy
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import sglc as sgl
from sglc.api.function import Function
from sglc.cli import main
from sglc.cli.program_file import open_function
from sglc.execution import tool_calls
from sglc.execution.event_loop import executor_loop
from tests.corpus.case import Case, Script
from tests.corpus.ledger import WHOLE, cases, read

EXAMPLES = Path(__file__).parent.parent / "examples"
ARGUMENTS = {
    "quickstart": "question", "judge": "essay", "few_shot": "review", "tree": "goal", "tools": "question",
    "react": "question",
}  # fmt: skip
ANSWERS = [
    {"name": "verdict", "text": "fair"}, {"name": "label", "text": " positive"},
    {"name": "action_1", "text": "Search"}, {"name": "action_2", "text": "Finish"}, {"text": "7 * 6"},
]  # fmt: skip
PROGRAMS = [case for case in cases() if read().get(case.name) == WHOLE and not case.name.startswith("idioms")]


@contextmanager
def entered(code: CodeType) -> Iterator[list[str]]:
    """The threads that enter a code object inside, those that are there already among them."""
    names: list[str] = []

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is code:
            names.append(threading.current_thread().name)

    def in_loop(profile: Any) -> None:
        done = threading.Event()
        executor_loop().call_soon_threadsafe(lambda: (sys.setprofile(profile), done.set()))
        done.wait()

    tool_calls._IDLE.clear()  # these were begun before, and nobody looks at them
    threading.setprofile(look)
    sys.setprofile(look)
    in_loop(look)
    try:
        yield names
    finally:
        in_loop(None)
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def ways(case: Case) -> dict[str, Callable[[], Any]]:
    """Every way to run the first rows of a program; each is called twice."""
    program, backend = case.function, Script(case)

    def row() -> dict[str, Any]:
        return copy.deepcopy(dict(case.rows[0]))

    def batch() -> list[Any]:
        return [result.text() for result in program.run_batch([row(), row()], backend=backend, seed=0)]

    return {
        "run": lambda: program.run(**row(), backend=backend, seed=0).text(),
        "run_batch": batch,
        "arun": lambda: asyncio.run(program.arun(**row(), backend=backend, seed=0)).text(),
        "stream": lambda: list(program.stream(**row(), backend=backend, seed=0)),
        "bound": lambda: program.bind(**row()).run(backend=backend, seed=0).text(),
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", PROGRAMS, ids=lambda case: case.name)
def test_programs_of_the_corpus(case: Case) -> None:
    fresh = Function(case.function.definition)
    for name, way in ways(Case(case.name, fresh, case.rows, case.answers)).items():
        with entered(fresh.definition.code) as names:
            first, again = way(), way()
        assert not names, name
        assert first == again, name


@pytest.mark.slow
@pytest.mark.parametrize("name", ARGUMENTS)
def test_examples_on_the_command_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = EXAMPLES / f"{name}.py"
    (tmp_path / "answers.json").write_text(json.dumps(ANSWERS))
    command = ["run", str(path), "--backend", f"scripted:{tmp_path / 'answers.json'}"]
    with entered(open_function(str(path)).definition.code) as names:
        code = main([*command, "--arg", f"{ARGUMENTS[name]}=Why?", "--json"])
    said = capsys.readouterr()
    assert code == 0, said.err
    assert '"mode": "plan"' in said.out
    assert not names


def test_python_is_seen() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x")

    case = Case("here", program, ({},))
    with entered(program.definition.code) as names:
        program.run(backend=Script(case), mode="python").text()
    assert names == ["sglc-program"]
