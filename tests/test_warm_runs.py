"""Runs whose plan is there: what they go through, what they leave behind, and where rows of a batch begin."""

from __future__ import annotations

import contextvars
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.execution.answers.duplicates import Duplicates
from sglc.execution.batch.runner import run_batch
from sglc.execution.bind import fitted
from sglc.execution.lifecycle import CallSetup, Run, RunSetup
from sglc.ir.plan.asked import numbered
from tests.small_default import small_default
from tests.waiting import HANG_S, until

WINDOW = 4


@sgl.function
def chain(s: Any, question: str) -> None:
    s += "Question: " + question + "\n"
    s += "Answer:" + sgl.gen("answer", max_tokens=4) + sgl.gen("reason", max_tokens=4)


@sgl.function
def forked(s: Any, question: str) -> None:
    forks = s.fork(3)
    for fork in forks:
        fork += question + sgl.gen("tip", max_tokens=4)
    forks.join()


@sgl.function
def read(s: Any, question: str) -> None:
    for name in ("answer", "reason"):
        s += question + sgl.gen(name, max_tokens=4)
        if s[name] == "never":
            s += " again"


@sgl.function
def chosen(s: Any, question: str) -> None:
    s += question + sgl.select("verdict", choices=["fine", "poor"])


@sgl.function
def lengths(s: Any, items: list[str]) -> None:
    """For every number of items another plan; a path is traced when it comes the second time."""
    for item in items:
        s += item + ":" + sgl.gen("tip", max_tokens=4)


def says(asked: Asked) -> str:
    return "fine"


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("program", [chain, forked, read], ids=lambda one: str(one.__name__))
def test_runs_of_plans_leave_no_cycles(program: sgl.Function, no_collection: None) -> None:
    backend = ScriptedBackend(says)
    rows = [{"question": f"{number}?"} for number in range(20)]
    program.run_batch(rows, backend=backend)
    assert (0, 0) in (left_by(program, rows, backend) for _ in range(5))


@pytest.mark.parametrize("program", [chain, forked, read], ids=lambda one: str(one.__name__))
def test_runs_as_python_leave_no_run_behind(program: sgl.Function, no_collection: None) -> None:
    before = sum(isinstance(each, Run) for each in gc.get_objects())
    for number in range(20):
        assert program.run(question=f"{number}?", backend=ScriptedBackend(says), mode="python").error() is None
    assert sum(isinstance(each, Run) for each in gc.get_objects()) - before < 3  # one may be about to end


def test_one_run_does_not_look_for_others_that_ask_for_the_same() -> None:
    backend, looked = ScriptedBackend(says), 0

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal looked
        looked += event == "call" and frame.f_code in (Duplicates.__init__.__code__, numbered.__code__)

    sys.setprofile(look)
    try:
        result = chosen.run(question="Why?", backend=backend)  # its choice is one that others may ask for
    finally:
        sys.setprofile(None)
    assert (result["verdict"], result.mode, looked) == ("fine", "plan", 0)


def test_who_waits_for_the_end_is_not_woken_before() -> None:
    may = threading.Event()

    def says_then(asked: Asked) -> str:
        may.wait(HANG_S)
        return "fine"

    result = chain.run(question="?", backend=ScriptedBackend(says_then))
    waiting = threading.Thread(target=result.sync)
    waiting.start()
    until(lambda: result.outputs.at_end)
    assert not result.outputs.change.waiting  # a change wakes nobody
    may.set()
    waiting.join(HANG_S)
    assert not waiting.is_alive()
    assert result.error() is None


def left_by(program: sgl.Function, rows: list[dict[str, Any]], backend: ScriptedBackend) -> tuple[int, int]:
    """Objects in cycles that runs leave, and that their results do; threads of earlier tests may add some."""
    gc.collect()
    results = program.run_batch(rows, backend=backend)
    single = program.run(question="one", backend=backend).sync()
    assert [result.error() for result in (*results, single)] == [None] * 21
    runs = gc.collect()
    del results, single
    return runs, gc.collect()


def made_where(program: sgl.Function, rows: list[dict[str, Any]], mode: Any = "auto") -> list[tuple[str, bool]]:
    """Of each row of a batch: the thread that made its run, and whether it was made at once."""
    backend, where = ScriptedBackend(says), list[tuple[str, bool]]()
    call, context = CallSetup(program.__name__, backend, 1), contextvars.copy_context()

    def make(number: int, row: dict[str, Any], at_once: bool) -> Run | None:
        fitting = fitted(program.definition, {}, (), row)
        run = program._made(fitting, RunSetup(call, number, context), mode, at_once=at_once)
        if run is not None:
            where.append((threading.current_thread().name, at_once))
        return run

    results = list(run_batch(make, rows, backend, WINDOW, None, program.__name__))
    assert [result.error() for result in results] == [None] * len(rows)
    assert [result.row for result in results] == list(range(len(rows)))
    return where


def test_a_row_begins_where_another_one_ends() -> None:
    where = made_where(chain, [{"question": f"{number}?"} for number in range(40)])
    outside = [name for name, at_once in where if not at_once]
    assert {name for name, at_once in where if at_once} == {"sglc-executor"}
    assert len(outside) < len(where) / 2  # those of the first window have none before them


def test_what_has_to_be_traced_is_made_outside_of_the_loop() -> None:
    rows = [{"items": ["a"] * (1 + number % 5)} for number in range(40)]
    where = made_where(lengths, rows)
    assert len(where) == len(rows)
    assert all((name == "sglc-executor") == at_once for name, at_once in where)


def test_python_is_never_made_in_the_loop() -> None:
    where = made_where(chain, [{"question": f"{number}?"} for number in range(12)], "python")
    assert [at_once for _, at_once in where] == [False] * 12


def test_what_cannot_be_made_fails_the_batch_behind_the_rows_before() -> None:
    backend = ScriptedBackend(says)
    call, context = CallSetup("chain", backend, 1), contextvars.copy_context()

    def make(number: int, row: str, at_once: bool) -> Run | None:
        if number == 30:
            raise LookupError("no row 30")
        fitting = fitted(chain.definition, {}, (), {"question": row})
        return chain._made(fitting, RunSetup(call, number, context), "auto", at_once=at_once)

    results = run_batch(make, ["?"] * 40, backend, WINDOW, None, "chain")
    given = [next(results).row for _ in range(30)]
    assert given == list(range(30))
    with pytest.raises(LookupError, match="no row 30"):
        next(results)


def entered(backend: str) -> list[str]:
    """The modules that a warm run goes through, in a process of its own."""
    line = [sys.executable, "-m", "tests.modules_entered", backend]
    here = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True, env=here)
    return done.stdout.split()[1:]


@pytest.mark.slow
def test_modules_that_a_generation_goes_through(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"text": "four"}]')
    modules = entered(f"scripted:{script}")
    assert "sglc.execution.session" in modules
    assert len(modules) <= 18, modules


@pytest.mark.slow
def test_modules_that_a_generation_of_a_model_goes_through() -> None:
    small_default()
    modules = entered("local")
    assert "sglc.runtime.engine.engine" in modules
    assert len(modules) <= 42, modules


@pytest.mark.slow
def test_a_last_row_that_cannot_be_made_at_once_is_not_lost() -> None:
    backend, last = ScriptedBackend(says), 99
    chain.run(question="?", backend=backend).sync()  # its plan is there
    call, context = CallSetup("chain", backend, 1), contextvars.copy_context()

    def make(number: int, row: str, at_once: bool) -> Run | None:
        if at_once and number == last:
            for thread in threading.enumerate():
                if thread.name == "sglc-last row":  # it may not end while this row is on its way
                    thread.join(0.2)
            return None
        fitting = fitted(chain.definition, {}, (), {"question": row})
        return chain._made(fitting, RunSetup(call, number, context), "auto", at_once=at_once)

    results = run_batch(make, ["?"] * (last + 1), backend, WINDOW, None, "last row")
    assert [result.row for result in results] == list(range(last + 1))
