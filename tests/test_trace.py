"""Time lines: what is in them, and that they keep the rules of Chrome's trace events."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.local import LocalBackend
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.errors import BackendError, UsageError

ROOT = Path(__file__).parent.parent
NO_SERVER = "http://127.0.0.1:9"


def check(path: Path) -> list[dict[str, Any]]:
    """The events of a trace, which keeps the rules."""
    data = json.loads(path.read_text())
    assert data["displayTimeUnit"] == "ms"
    events: list[dict[str, Any]] = data["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert any(e["name"] == "process_name" for e in events)
    slices = defaultdict(list)
    arrows: dict[int, dict[str, Any]] = {}
    for e in events:
        assert e["ph"] in ("X", "M", "s", "f")
        assert isinstance(e["name"], str)
        assert e["name"]
        assert isinstance(e["ts"], int | float)
        assert e["ts"] >= 0
        assert isinstance(e["pid"], int)
        assert isinstance(e["tid"], int)
        if e["ph"] != "M":
            assert (e["pid"], e["tid"]) in named
        if e["ph"] == "X":
            assert e["dur"] >= 0
            slices[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
        elif e["ph"] == "s":
            assert e["id"] not in arrows
            arrows[e["id"]] = e
        elif e["ph"] == "f":
            assert e["bp"] == "e"
            assert arrows[e["id"]]["ts"] <= e["ts"]
            assert (arrows[e["id"]]["name"], arrows[e["id"]]["cat"]) == (e["name"], e["cat"])
    for spans in slices.values():  # slices of a thread lie beside or inside each other
        open_: list[float] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ and open_[-1] <= begin + 0.002:  # times are rounded
                open_.pop()
            assert not open_ or end <= open_[-1] + 0.002
            open_.append(end)
    return events


def of(events: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    return [e for e in events if e["ph"] == "X" and e["cat"] == category and "args" in e and e["args"]]


def threads(events: list[dict[str, Any]]) -> Mapping[int, str]:
    return {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}


@sgl.tool
def look(text: str) -> str:
    time.sleep(0.002)
    return "found"


@sgl.function
def inner(s: Any, q: str) -> None:
    s += q + sgl.gen("i")


@sgl.function
def program(s: Any, q: str) -> str:
    s += q + sgl.gen("a")
    s += look(s["a"])
    forks = s.fork(2)
    for branch in forks:
        branch += "tip" + sgl.gen("tip")
    forks.join()
    s += sgl.gen("b") + sgl.select("c", ["x", "y"])
    return inner.run(s["c"])["i"]


def answer(asked: Asked) -> str:
    return "y" if asked.choices else "three words here"


def test_a_trace_has_every_step_and_where_it_waited(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    program.run_batch(
        [{"q": "one"}, {"q": "two"}], backend=ScriptedBackend(answer, word_s=0.002), trace=str(path),
        mode="python",
    )  # fmt: skip
    events = check(path)
    sites = sorted(e["args"]["site"] for e in of(events, "gen") + of(events, "select"))
    own = [
        "program.inner#0/inner.i#0",
        "program.a#0",
        "program.b#0",
        "program.c#0",
        "program[0].tip#0",
        "program[1].tip#0",
    ]
    assert sites == sorted(own * 2)
    assert len(of(events, "tool")) == 2
    names = threads(events)
    lanes = {names[e["tid"]] for e in events if e["ph"] == "X"}
    assert lanes >= {
        f"row {row}{rest}" for row in (0, 1) for rest in ("", ": Python", " branch 0", " branch 1")
    }
    (a, _) = (e for e in of(events, "gen") if e["args"]["site"] == "program.a#0")
    assert {key: value for key, value in a["args"].items() if key != "line"} == {
        "site": "program.a#0", "prompt_tokens": 1, "cached_tokens": 0, "computed_tokens": 1,
        "completion_tokens": 3, "finish": ["stop"],
    }  # fmt: skip
    assert "test_trace.py:" in a["args"]["line"]
    pieces = [e for e in events if e["ph"] == "X" and e["tid"] == a["tid"] and not e["args"]]
    assert {e["name"] for e in pieces} == {"to the first text", "text"}
    waits = [e for e in of(events, "wait") if e["args"]["site"] == "program.a#0"]
    assert len(waits) == 2
    source = Path(__file__).read_text().splitlines()
    assert all('look(s["a"])' in source[int(e["args"]["line"].split(":")[1]) - 1] for e in waits)
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    begins = [e for e in events if e["ph"] == "s" and e["tid"] == a["tid"]]
    assert any(ends[e["id"]]["tid"] == wait["tid"] for e in begins for wait in waits)


def test_generations_of_a_turn_that_were_submitted_together_follow_each_other(tmp_path: Path) -> None:
    @sgl.function
    def chain(s: Any) -> None:
        for number in range(3):
            s += f"{number}" + sgl.gen(f"g{number}")

    path = tmp_path / "t.json"
    chain.run(backend=ScriptedBackend(answer, word_s=0.002), trace=str(path)).sync()
    made = sorted(of(check(path), "gen"), key=lambda e: e["ts"])
    assert [e["name"] for e in made] == ["g0", "g1", "g2"]
    assert len({e["tid"] for e in made}) == 1
    assert [("submitted_us" in e["args"]) for e in made] == [False, True, True]


def test_a_trace_of_a_failed_run_says_what_failed(tmp_path: Path) -> None:
    @sgl.function
    def failing(s: Any) -> None:
        s += "x" + sgl.gen("good")
        s += "x" + sgl.gen("bad", regex="[0-9]+")

    path = tmp_path / "t.json"
    error = failing.run(backend=ScriptedBackend(answer), trace=str(path)).error()
    assert error is not None
    events = check(path)
    (bad,) = (e for e in of(events, "gen") if e["name"] == "bad")
    assert bad["args"]["error"].startswith("SGLC522")
    (row,) = of(events, "row")
    assert row["args"]["error"].startswith("SGLC522")


@pytest.mark.parametrize("many", [False, True])
def test_a_run_that_does_not_begin_has_a_trace_with_the_error(tmp_path: Path, many: bool) -> None:
    path = str(tmp_path / "t.json")
    begin: Any = partial(inner.run_batch, [{"q": "a"}, {"q": "b"}]) if many else partial(inner.run, "a")
    with pytest.raises(BackendError) as caught:
        begin(backend=NO_SERVER, trace=path)
    assert caught.value.code == "SGLC547"
    (row,) = of(check(Path(path)), "row")
    assert (row["name"], row["args"]["error"][:7]) == ("inner", "SGLC547")


@sgl.function
def found(s: Any) -> None:
    s += "x" + sgl.gen("a")
    s += look(s["a"])


@pytest.mark.parametrize("mode", ["plan", "python"])
def test_a_declared_function_has_the_line_of_its_call(tmp_path: Path, mode: Any) -> None:
    path = tmp_path / "t.json"
    found.run(backend=ScriptedBackend(answer), trace=str(path), mode=mode).sync()
    (tool,) = of(check(path), "tool")
    file, line, _ = tool["args"]["line"].split(":")
    assert "look(s[" in Path(file).read_text().splitlines()[int(line) - 1]


def test_a_replay_is_traced_with_its_own_times(tmp_path: Path) -> None:
    first, again = tmp_path / "first.json", tmp_path / "again.json"
    folder = str(tmp_path / "r")
    slow = ScriptedBackend(answer, word_s=0.05)
    inner.run("q", backend=slow, record=folder, trace=str(first)).sync()
    inner.run("q", backend=slow, replay=folder, trace=str(again)).sync()
    (one,), (other,) = of(check(first), "gen"), of(check(again), "gen")
    assert one["args"] == other["args"]
    assert one["dur"] > 150_000  # three words
    assert other["dur"] < one["dur"]


def test_a_trace_for_no_folder_is_refused_before_anything_runs(tmp_path: Path) -> None:
    backend = ScriptedBackend(answer)
    with pytest.raises(UsageError) as caught:
        inner.run("q", backend=backend, trace=str(tmp_path / "none" / "t.json"))
    assert caught.value.code == "SGLC057"
    assert backend.calls == 0


STOPPED = """\
import sys
import sglc as sgl

@sgl.function
def slow(s):
    s += "a" + sgl.gen("quick")
    if s["quick"]:
        print("going on", flush=True)
    s += "b" + sgl.gen("never", max_tokens=100000)
"""


def test_an_interrupted_run_leaves_a_trace(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(STOPPED)
    rules = [{"name": "quick", "text": "q"}, {"name": "never", "text": "word " * 10_000}]
    (tmp_path / "s.json").write_text(json.dumps({"rules": rules, "word_s": 0.01}))
    command = ["run", "slow.py", "--backend", "scripted:s.json", "--trace", "t.json"]
    running = subprocess.Popen(
        [sys.executable, "-m", "sglc.cli", *command], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stdout is not None
    assert running.stdout.readline() == "going on\n"
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    events = check(tmp_path / "t.json")
    assert "slow.quick#0" in [e["args"]["site"] for e in of(events, "gen")]
    assert len(of(events, "row")) == 1


def test_a_real_model_s_trace_has_first_texts_and_cached_tokens(local: LocalBackend, tmp_path: Path) -> None:
    @sgl.function
    def two(s: Any) -> None:
        s += sgl.user("Count to ten.") + sgl.assistant(sgl.gen("a", max_tokens=8))
        s += sgl.user("Go on.") + sgl.assistant(sgl.gen("b", max_tokens=8))

    path = tmp_path / "t.json"
    two.run(backend=local, trace=str(path)).sync()
    events = check(path)
    a, b = sorted(of(events, "gen"), key=lambda e: e["ts"])
    assert b["args"]["cached_tokens"] >= a["args"]["prompt_tokens"]
    assert [e["name"] for e in events if e["ph"] == "X" and not e["args"]].count("to the first text") == 2
