"""A run held against its estimate: on the real small model, and where it does not fit."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.local import LocalBackend
from sglc.cli import main
from sglc.cli.program_file import open_function
from sglc.explain.estimate.analyze import analyzed
from sglc.explain.render.analyze_text import analysis_text
from tests.oracle_backend import OracleBackend

ESSAY = json.loads(Path("examples/essays.jsonl").read_text().splitlines()[0])["essay"]


def sglc(*arguments: str) -> str:
    """What `sglc` prints in a process of its own: nothing is cached there."""
    command = [sys.executable, "-m", "sglc.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=280).stdout


@pytest.mark.slow
def test_the_judge_on_the_real_model(smollm2: Path) -> None:
    """Exact where nothing is generated before, else an interval whose middle is at most a tenth off."""
    lines = sglc(
        "explain", "examples/judge.py", "--arg", f"essay={ESSAY}", "--analyze", "--emit", "json"
    ).splitlines()
    estimate, analysis = map(json.loads, lines)
    steps = {step["site"]: step for step in estimate["estimate"]["steps"]}
    actual = {step["site"]: step for step in analysis["steps"]}
    assert steps.keys() == actual.keys()
    assert analysis["within"]
    assert analysis["errors"] == []
    for site, step in steps.items():
        low, high, _ = step["each"]["prompt"]
        used = actual[site]["usage"]
        assert low <= used["prompt"] <= high
        assert abs((low + high) / 2 - used["prompt"]) <= 0.1 * used["prompt"]
        assert abs(actual[site]["off"]) <= 0.1
        if step["kind"] == "gen":
            assert low == high == used["prompt"]
            assert step["each"]["shared"][:2] == [used["cached"]] * 2
            assert step["each"]["computed"][:2] == [used["computed"]] * 2
    assert estimate["estimate"]["counts"]["shared"][:2] == [analysis["usage"]["cached"]] * 2
    assert abs(analysis["off"]) <= 0.1
    assert analysis["chain"][-1] == "grade_essay.verdict#0"
    for call in analysis["calls"]:
        assert 0 <= call["ready_s"] <= call["first_s"] <= call["ended_s"] <= analysis["seconds"]
        assert (call["cached_text"] + call["rest_text"]).startswith(f"Evaluate this essay:\n{ESSAY}\n")


def test_chats_and_tools_on_the_real_model(local: LocalBackend) -> None:
    for name, given in (("tree", {"goal": "learn to swim"}), ("react", {"question": "Where was Linux made?"})):
        function = open_function(f"examples/{name}.py")
        explanation = function.explain(local, **given)
        analysis = analyzed(explanation.forecast, [function.run(backend=local, seed=1, **given)])
        for call in analysis.calls:
            assert call.within, call
        assert all(step.expected for step in analysis.steps)
        assert [step for step in analysis.steps if not step.within] == []


class Noted(OracleBackend):
    """Notes what had been printed when the first segment came."""

    def __init__(self, read: Any) -> None:
        super().__init__()
        self.read = read
        self.printed: str | None = None

    def submit(self, segment: Any, *, streams: bool = True) -> Any:  # type: ignore[override]
        if self.printed is None:
            self.printed = self.read()
        return super().submit(segment, streams=streams)


@pytest.mark.parametrize("emit", ["text", "json"])
def test_the_estimate_is_written_before_the_first_call(
    emit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.html"
    out = tmp_path / "out.txt"

    def read() -> str:
        assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
        return out.read_text(encoding="utf-8")

    backend = Noted(read)
    monkeypatch.setattr("sglc.cli.explain.connect", lambda options: backend)
    with out.open("w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        words = ["--emit", emit, "--html", str(path), "--seed", "1"]
        assert main(["explain", "examples/judge.py", "--arg", "essay=Bees.", "--analyze", *words]) == 0
    assert backend.printed is not None
    assert "grade_essay.verdict#0" in backend.printed
    whole = out.read_text(encoding="utf-8")
    assert whole.startswith(backend.printed)
    assert len(whole) > len(backend.printed)
    assert '"analysis"' not in backend.printed
    assert '"analysis"' in path.read_text(encoding="utf-8")
    backend.close()


def test_a_batch_is_analyzed_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    backend = OracleBackend()
    monkeypatch.setattr("sglc.cli.explain.connect", lambda options: backend)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"essay": f"Essay {n}."}) + "\n" for n in range(5)))
    assert main(["explain", "examples/judge.py", "--batch", str(rows), "--analyze"]) == 0
    out = capsys.readouterr().out
    assert "5 rows" in out
    assert "in all 20 calls" in out
    assert "    4: grade_essay.verdict#0" in out
    backend.close()


def test_what_stands_behind_a_graph_break_is_not_foreseen() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "ab" + sgl.gen("x", max_tokens=4)
        time.sleep(0)
        s += "c" + sgl.gen("y", max_tokens=4)

    backend = OracleBackend()
    explanation = program.explain(backend)
    assert [step.name for step in explanation.forecast.steps] == ["x"]
    assert "graph break at" in explanation.text()
    result = program.run(backend=backend, seed=1)
    analysis = analyzed(explanation.forecast, [result])
    assert analysis.within
    assert {step.site: step.expected for step in analysis.steps} == {"program.x#0": True, "program.y#0": False}
    text = analysis_text(explanation.forecast, analysis)
    assert "behind a graph break" in text
    assert "!" not in text
    ends = replace(explanation.forecast, goes_on=False)  # as if all were known
    analysis = analyzed(ends, [result])
    assert not analysis.within
    assert "! not foreseen" in analysis_text(ends, analysis)
    backend.close()


def test_what_lies_outside_the_bounds_is_said() -> None:
    function, backend = open_function("examples/judge.py"), OracleBackend()
    result = function.run(essay="A longer essay than the estimate is told of.", backend=backend, seed=1)
    forecast = function.explain(backend, essay="A short one.").forecast
    analysis = analyzed(forecast, [result])
    assert [step.within for step in analysis.steps] == [False, False, False, False]
    text = analysis_text(forecast, analysis)
    assert "not all within the bounds (!)" in text
    right = analyzed(
        function.explain(backend, essay="A longer essay than the estimate is told of.").forecast, [result]
    )
    assert right.within
    assert "all within the bounds" in analysis_text(forecast, right)
    backend.close()


def test_a_row_that_fails_is_told_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text('import sglc as sgl\n\n@sgl.function\ndef program(s, q):\n    s += q + sgl.gen("x")\n')
    backend = OracleBackend()
    monkeypatch.setattr("sglc.cli.explain.connect", lambda options: backend)
    assert main(["explain", str(program), "--arg", "q=", "--analyze"]) == 1
    _, _, ran = capsys.readouterr().out.partition("as it ran")
    assert "SGLC402" in ran
    assert "all within the bounds, as far as it came\n" in ran  # a call that was never made is not off
    assert "!" not in ran.partition("row 0 failed")[0]
    assert "time line" not in ran
    backend.close()


def test_the_chain_of_a_run_goes_by_what_was_waited_for() -> None:
    """Of two branches the slower one is on it, whichever was expected."""
    function, backend = open_function("examples/tree.py"), OracleBackend()
    forecast = function.explain(backend, goal="swim").forecast
    result = function.run(goal="swim", backend=backend, seed=1).sync()
    analysis = analyzed(forecast, [result])
    last = max(analysis.calls, key=lambda call: call.ended_s)
    assert analysis.chain[-1] == last.site
    assert len(analysis.chain) == 2
    assert analysis.chain[0][5:6] == analysis.chain[1][5:6]  # the plan of the same branch
    assert replace(analysis, steps=()).within
    backend.close()
