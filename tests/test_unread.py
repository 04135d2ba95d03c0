"""Runs whose results nobody reads: they are finished, their failures are printed, and Ctrl-C ends them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sglc.execution.result
from sglc.execution.result import Result, RunOutcome
from tests.depth import some_of

pytestmark = pytest.mark.slow

PROGRAM = """
import os, sys
import sglc as sgl
from sglc.api.plan import LoadedPlan
from sglc.backends.scripted import ScriptedBackend

slow = ScriptedBackend(lambda asked: None if asked.site.name == "bad" else "text", word_s=0.2)
never = ScriptedBackend(lambda asked: "text", word_s=1000)

@sgl.tool
def act(text):
    print("acted on", text, flush=True)
    return text

@sgl.function
def late(s):
    s += "A" + sgl.gen("first")
    act(s["first"])
    s += "B" + sgl.gen("bad")

@sgl.function
def raises(s):
    s += "A" + sgl.gen("first")
    if len(s["first"]) > 2:
        raise LookupError("no such page")

@sgl.function
def waits(s):
    print("begun", flush=True)
    s += "A" + sgl.gen("first")
    return s["first"].upper()

"""

FAILED = """\
acted on text
sglc: `late` failed, and its error was never read:
error[SGLC521]: the script has nothing for `late.bad#0`
 --> prog.py:19:16
   |
19 |     s += "B" + sgl.gen("bad")
   |                ^^^^^^^^^^^^^^
note: the prompt ends in 'AtextB'
"""

RAISED = """\
sglc: `raises` failed, and its error was never read:
error[SGLC401]: `LookupError` in `raises`: no such page
 --> prog.py:25:9
   |
25 |         raise LookupError("no such page")
   |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""

CASES = {
    "late.run(backend=slow)": FAILED,
    "result = late.run(backend=slow)": FAILED,
    "LoadedPlan(late.compile(slow).plan, [act]).run(backend=slow)": FAILED,
    "raises.run(backend=slow)": RAISED,
    "raises.run_batch([{}], backend=slow)": RAISED.replace("`raises` failed", "row 0 of `raises` failed"),
    "late.run(backend=slow).sync()": FAILED,
    "late.run(backend=slow).error()": "acted on text\n",
    "result = late.run(backend=slow); result.stop()": "",
    # The threads of its parent's runs are not in a child.
    "waits.run(backend=slow); os.fork() or sys.exit()": "begun\n",
}


def started(tmp_path: Path, statement: str) -> subprocess.Popen[str]:
    (tmp_path / "prog.py").write_text(PROGRAM + statement + "\n")
    return subprocess.Popen(
        [sys.executable, "prog.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.parametrize("statement", some_of(list(CASES), 2, 4))
def test_a_run_that_nobody_reads_is_finished(tmp_path: Path, statement: str) -> None:
    out, _ = started(tmp_path, statement).communicate(timeout=60)
    assert out.replace(f"{tmp_path}/", "") == CASES[statement]


def test_ctrl_c_ends_the_wait(tmp_path: Path) -> None:
    process = started(tmp_path, "waits.run(backend=never)")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert "sglc: 1 run was stopped before the end\n" in out


def test_a_process_that_ctrl_c_ends_stops_its_runs(tmp_path: Path) -> None:
    process = started(tmp_path, "waits.run(backend=never)\nraise KeyboardInterrupt")
    out, _ = process.communicate(timeout=60)
    # The run may begin while the interrupt is told, in the middle of a line.
    lines = [line for line in out.replace("begun", "").splitlines() if line]
    assert lines[-2:] == ["KeyboardInterrupt", "sglc: 1 run was stopped before the end"]


def test_a_result_that_was_read_asks_nothing_of_modules_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    result = Result("fails", 0)
    result.finish(RunOutcome(None, LookupError("no such page"), {}, {}, "", list, 0.0))
    assert result.error()
    monkeypatch.setattr(sglc.execution.result, "sys", None)  # as at the end of the interpreter
    result.__del__()
