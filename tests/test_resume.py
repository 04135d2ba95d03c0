"""Runs that were cut anywhere go on from their recordings, and end as if nothing had happened."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.cli import main
from sglc.errors import BackendError, Paused, RunError, SglcError, UsageError
from sglc.execution import tool_calls
from sglc.execution.result import Result
from sglc.execution.unread import UNREAD
from sglc.ir.grammar.call_format import HERMES
from sglc.ir.plan.backend import Backend
from sglc.ir.plan.events import Usage
from sglc.ir.target import Target
from sglc.observe import observer
from sglc.observe.replay import calls, tape
from sglc.observe.replay.going_on import GoingOn
from sglc.observe.replay.recorder import RowRecorder, TapeRecorder
from sglc.observe.replay.tape import FILE, error_json
from sglc.observe.replay.writer import Writer
from tests.depth import at_depth, few, some_of
from tests.oracle_backend import OracleBackend
from tests.random_programs import ARGS
from tests.test_plan_run import Recorded
from tests.test_record import ran, random_plan

CALLED: list[tuple[Any, ...]] = []
MOODS: list[str] = []


def echoing(asked: Asked) -> str:
    """Every prompt, site and sample has its own answer."""
    if asked.choices:
        return asked.choices[len(asked.prompt) % len(asked.choices)]
    if asked.site.name == "step":
        dishes = [HERMES.written("order", {"dish": dish}) for dish in ("soup", f"{len(asked.prompt)} beans")]
        return "\n".join([*dishes, HERMES.written("weigh", {"dish": "soup"})])
    return f"{asked.site.name}{asked.sample} of {len(asked.prompt)} {sum(map(ord, asked.prompt)) % 997}"


# -- programs ----------------------------------------------------------------------------------------


@sgl.tool
def look(query: str) -> str:
    CALLED.append(("look", query))
    return f"fact of {query}"


@sgl.tool
def divide(a: int, b: int) -> Any:
    CALLED.append(("divide", a, b))
    return (a // b, {"is": [a, None, 0.5]})


@sgl.tool(idempotent=True)
def save(text: str) -> None:
    CALLED.append(("save", text))


@sgl.tool
async def later(text: str, turns: int = 0) -> str:
    CALLED.append(("later", text))
    for _ in range(turns):
        await asyncio.sleep(0)
    return text + "!"


@sgl.pure
def shout(text: str) -> str:
    return text.upper()


@sgl.function
def helper(s: Any, text: str) -> None:
    s += text + sgl.gen("h")
    s += look(s["h"]) + sgl.gen("i")


@sgl.function
def chain(s: Any, q: str) -> None:
    s += sgl.system("Be brief.") + sgl.user(q) + sgl.assistant(sgl.gen("a"))
    s += sgl.user("Why?") + sgl.assistant(sgl.gen("b", stop="\n")) + sgl.user("So?")
    s += sgl.assistant(sgl.select("c", ["yes", "no"]))


@sgl.function
def forked(s: Any, q: str) -> str:
    """Branches that call the same function with the same arguments."""
    s += "Q: " + q
    forks = s.fork(3)
    for number, branch in enumerate(forks):
        branch += look("x") + f" tip {number}:" + sgl.gen("tip", n=2 if number == 1 else 1)
        branch += look(str(number // 2)) + sgl.gen("why")
    forks.join()
    s += " best:" + sgl.select("best", ["one", "three"])
    return s["best"] + str(s["tip"])


@sgl.function
def caught(s: Any, q: str) -> Any:
    s += q + sgl.gen("a")
    try:
        divide(1, 0)
    except ZeroDivisionError as error:
        s += f" caught {error}"
    s += sgl.gen("b") + shout(s["a"])
    save(s["b"])
    return [divide(7, 2), look(q)]


@sgl.function
def nested(s: Any, q: str) -> Any:
    first = helper.run(q)
    second = helper(first["h"])
    third = [result["i"] for result in helper.run_batch([{"text": q}, {"text": "x"}])]
    s += second["h"] + look(q) + sgl.gen("a")
    return third


@sgl.function
async def tasks(s: Any, q: str) -> Any:
    """Tasks that come to the same function in another order than they began in."""

    async def branch(number: int) -> str:
        first = await later(f"{number}", turns=9 - 3 * number)
        return first + look("same") + await later(first)

    s += q + sgl.gen("a")
    texts = await asyncio.gather(branch(0), branch(1), branch(2))
    s += "".join(texts) + sgl.gen("b")
    return [look(q), *texts]


@sgl.function
async def agents(s: Any, q: str) -> Any:
    """Programs that are called in tasks, in another order each time."""

    async def agent(number: int) -> Any:
        for _ in range(random.SystemRandom().randrange(9)):
            await asyncio.sleep(0)
        return (await helper.arun(f"{q} {number}"))["i"]

    texts = await asyncio.gather(agent(0), agent(1), agent(2))
    s += "".join(texts) + sgl.gen("a")
    return texts


@sgl.tool
def order(dish: str, amount: int = 1) -> str:
    CALLED.append(("order", dish, amount))
    return f"{amount} of {dish}"


def weigh(dish: str) -> dict[str, str]:
    """Undeclared, as functions that models call may be."""
    CALLED.append(("weigh", dish))
    return {"weighs": dish}


@sgl.function
def waiter(s: Any, q: str) -> Any:
    """A model that calls functions, twice."""
    for _ in range(2):
        s += sgl.user(q) + sgl.assistant(sgl.gen("step", tools=[order, weigh]))
        s += sgl.user(sgl.run_tools(s["step"]) + look(q))
    s += sgl.assistant(sgl.gen("b"))


@sgl.function
def breaking(s: Any, q: str) -> Any:
    """A plan that goes on as Python."""
    s += look(q) + sgl.gen("a")
    s += look(s["a"]) + " " + str(len(list(map(ord, s["a"])))) + sgl.gen("b")
    found = {look(word) for word in s["b"].split()[:2]}
    s += " ".join(sorted(found)) + sgl.gen("c")


@sgl.function
def excused(s: Any, q: str) -> None:
    """A generation that fails, and a program that goes on."""
    s += q + sgl.gen("a")
    try:
        s += sgl.gen("digits", regex="[0-9]+")
        found = s["digits"]
    except BackendError:
        found = "none"
    s += look(found) + sgl.gen("b")


@sgl.function
def failing(s: Any, q: str) -> None:
    forks = s.fork(2)
    forks[0] += q + sgl.gen("a", regex="[0-9]+")
    forks[1] += q + look(q) + sgl.gen("b")
    forks.join()


@sgl.function
def raising(s: Any, q: str) -> None:
    s += q + look(q) + sgl.gen("a")
    raise ValueError(s["a"])


PROGRAMS = (chain, forked, caught, nested, tasks, agents, waiter, breaking, excused, failing, raising)


# -- cutting -----------------------------------------------------------------------------------------


def shown(result: Result) -> Any:
    """All that a result shows, but for times."""
    return {key: value for key, value in result.as_json().items() if key != "timing"}


class Whole:
    """A run of rows that nothing came between, and its recording."""

    def __init__(self, program: sgl.Function, folder: Path, mode: str = "auto", rows: int = 2) -> None:
        self.program, self.mode = program, mode
        self.rows = [{"q": f"q{number}"} for number in range(rows)]
        self.backend = ScriptedBackend(echoing)
        CALLED.clear()
        self.results = [shown(one) for one in self._run(self.backend, folder)]
        self.called = sorted(CALLED, key=str)
        self.recording = (folder / FILE).read_bytes()

    def _run(self, backend: Any, folder: Path, **options: Any) -> list[Result]:
        sgl.set_default_backend(backend)  # of what calls programs by itself
        try:
            return self.program.run_batch(
                self.rows, backend=backend, record=str(folder), seed=5, mode=self.mode, **options
            )
        finally:
            sgl.set_default_backend(None)

    def cut(self, folder: Path, length: int) -> None:
        """Go on with the first bytes of the recording, and look at what comes of it."""
        folder.mkdir()
        (folder / FILE).write_bytes(self.recording[:length])
        lines = [json.loads(line) for line in self.recording[:length].split(b"\n")[:-1]]
        answers = sum(line.get("is") == "answer" for line in lines)
        ended = sum(line.get("is") == "called" for line in lines)
        CALLED.clear()
        backend = ScriptedBackend(echoing)
        results = self._run(backend, folder, resume=True)
        doubt = [one for one in results if getattr(one.error(), "code", "") == "SGLC426"]
        begun = sum(line.get("is") == "call" and "value" not in line for line in lines)
        if doubt:
            assert begun > ended
            again = ScriptedBackend(echoing)
            results = self._run(again, folder, resume=True, redo="all")
            backend.calls += again.calls
        assert [shown(one) for one in results] == self.results
        # Where a row ends in doubt, tasks of it that wait for a generation or a function are stopped.
        most = 3 * len(doubt) if self.program is agents else 0
        assert 0 <= backend.calls + answers - self.backend.calls - self._failed_again(lines) <= most
        assert 0 <= len(CALLED) + ended - len(self.called) <= most
        # And all of it is in the recording now.
        CALLED.clear()
        idle = ScriptedBackend(echoing)
        assert [shown(one) for one in self._run(idle, folder, resume=True)] == self.results
        assert (idle.calls, CALLED) == (0, [])

    def _failed_again(self, lines: Sequence[Any]) -> int:
        """Answers that say of generations that they were never asked for."""
        return sum(line.get("is") == "answer" and line["target"] is None for line in lines)


def lengths(recording: bytes, torn: int, seed: int, step: int = 1) -> list[int]:
    """Where to cut: behind every line, or some of them, and at some other places."""
    ends = [0] + [at + 1 for at, byte in enumerate(recording) if byte == ord("\n")]
    ends = ends[::step] + ends[-2:]
    return ends + random.Random(seed).sample(range(len(recording)), min(torn, len(recording)))


CASES = some_of([(program, mode) for program in PROGRAMS for mode in ("auto", "python")], 2, len(PROGRAMS))


@pytest.mark.slow
@pytest.mark.parametrize(("program", "mode"), CASES, ids=lambda one: getattr(one, "__name__", one))
def test_a_run_that_was_cut_anywhere_goes_on(program: sgl.Function, mode: str, tmp_path: Path) -> None:
    whole = Whole(program, tmp_path / "whole", mode)
    for number, length in enumerate(lengths(whole.recording, at_depth(1, 1, 50), 3, at_depth(4, 4, 1))):
        whole.cut(tmp_path / str(number), length)


# -- declared functions ------------------------------------------------------------------------------


@sgl.tool
def charge(amount: int) -> str:
    CALLED.append(("charge", amount))
    return f"charged {amount}"


@sgl.tool
def strange(text: str) -> Any:
    CALLED.append(("strange", text))
    return {text} if len(CALLED) == 1 else text


@sgl.tool
def moody(text: str) -> str:
    CALLED.append(("moody", text))
    if MOODS:
        raise ConnectionError("not now")
    return text


@sgl.function
def shop(s: Any, q: str) -> Any:
    s += q + sgl.gen("a")
    s += charge(3) + sgl.gen("b") + charge(3)
    save(s["b"])
    s += sgl.gen("c")


def code_of(result: Result) -> str:
    error = result.error()
    return error.code if isinstance(error, SglcError) else type(error).__name__


def without(folder: Path, drop: Callable[[dict[str, Any]], bool]) -> None:
    """The recording up to the first line that is to be dropped."""
    lines = (folder / FILE).read_bytes().splitlines(keepends=True)
    end = next(number for number, line in enumerate(lines) if drop(json.loads(line)))
    (folder / FILE).write_bytes(b"".join(lines[:end]))


@pytest.mark.slow
def test_what_was_begun_and_is_not_known_to_have_ended_is_in_doubt(tmp_path: Path) -> None:
    backend = ScriptedBackend(echoing)
    first = shop.run("q", backend=backend, record=str(tmp_path)).sync()
    second = f"{__name__}.charge"
    without(tmp_path, lambda line: (line.get("is"), line.get("occurrence")) == ("called", 1))
    CALLED.clear()
    backend = ScriptedBackend(echoing)
    result = shop.run("q", backend=backend, record=str(tmp_path), resume=True)
    error: Any = result.error()
    assert (code_of(result), CALLED, backend.calls) == ("SGLC426", [], 0)
    assert f"`{second}` was begun" in error.message
    assert "call 2" in error.note
    assert "(3)" in error.note
    assert "idempotent" in error.hint
    assert error.loc.line
    for redo in (second, "charge", ["charge", "else"], "all"):
        copy = tmp_path / str(redo)
        copy.mkdir()
        (copy / FILE).write_bytes((tmp_path / FILE).read_bytes())
        CALLED.clear()
        again = shop.run("q", backend=backend, record=str(copy), resume=True, redo=redo).sync()
        assert shown(again) == shown(first)
        assert [("charge", 3), ("save", first["b"])] == CALLED


def test_what_may_be_done_twice_is(tmp_path: Path) -> None:
    first = shop.run("q", backend=ScriptedBackend(echoing), record=str(tmp_path)).sync()
    without(tmp_path, lambda line: line.get("is") == "called" and line["function"].endswith(".save"))
    CALLED.clear()
    again = shop.run("q", backend=ScriptedBackend(echoing), record=str(tmp_path), resume=True).sync()
    assert shown(again) == shown(first)
    assert [("save", first["b"])] == CALLED


def test_a_value_that_is_not_kept_is_asked_for_again_only_if_that_is_said(tmp_path: Path) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.gen("a")
        s += strange(s["a"]) + sgl.gen("b")

    def run(**options: Any) -> Result:
        return program.run(backend=ScriptedBackend(echoing), record=str(tmp_path), **options).sync()

    CALLED.clear()
    assert code_of(run()) == "SGLC424"
    assert code_of(run(resume=True)) == "SGLC424"
    assert len(CALLED) == 1
    assert code_of(run(resume=True, redo="strange")) == "NoneType"
    assert len(CALLED) == 2


@sgl.tool
def odd(text: str) -> Any:
    CALLED.append(("odd", text))
    return {1: text}


@sgl.tool(idempotent=True)
def odd_once(text: str) -> Any:
    CALLED.append(("odd_once", text))
    return {text}


@sgl.pure
def odd_always(text: str) -> Any:
    CALLED.append(("odd_always", text))
    return frozenset([text])


@pytest.mark.parametrize("mode", ["auto", "python"])
def test_a_journal_goes_without_values_that_it_cannot_hold(mode: Any, tmp_path: Path) -> None:
    """Nobody has asked for it: the row runs as it would without."""

    @sgl.function
    def program(s: Any, q: str) -> None:
        s += q + sgl.gen("a")
        s += odd(s["a"])[1] + str(len(odd_once(s["a"]))) + str(len(odd_always(s["a"]))) + sgl.gen("b")

    def run(journal: Path | None, **options: Any) -> Result:
        CALLED.clear()
        keeps = {} if journal is None else {"journal": str(journal)}
        backend = ScriptedBackend(echoing)
        rows = [{"q": "x"}]
        (made,) = program.stream_batch(rows, backend=backend, seed=1, mode=mode, **keeps, **options)
        assert backend.calls <= 2
        return made.sync()

    bare = run(None)
    every = [(name, bare["a"]) for name in ("odd", "odd_always", "odd_once")]
    for part, limits in (("whole", {}), ("cut", {"max_calls": 1})):
        first = run(tmp_path / part, **limits)
        assert sorted(CALLED) == every
        assert code_of(first) == ("SGLC408" if limits else "NoneType")
        assert limits or shown(first) == shown(bare)
        # A row that goes on is not given the value, and its function is called again if that may be done.
        told = run(tmp_path / part, resume=True).error()
        assert isinstance(told, SglcError)
        assert (told.code, "`redo`" in told.hint, every[0] in CALLED) == ("SGLC424", True, False)
        again = run(tmp_path / part, resume=True, redo="odd")
        began = {"mode": "python"} if limits else {}  # under a budget, and it goes on as it began
        assert shown(again) == {**shown(bare), **began}
        assert sorted(CALLED) == every


def test_a_program_that_was_changed_does_not_go_on(tmp_path: Path) -> None:
    """Nothing of it happens, though it catches everything."""

    def made(word: str, amount: int) -> sgl.Function:
        @sgl.function
        def program(s: Any) -> None:
            s += "first" + sgl.gen("a")
            try:
                s += word + sgl.gen("b") + charge(amount)
                s += s["b"] + sgl.gen("c")
            except Exception:
                s += charge(100)
            charge(7)

        return program

    CALLED.clear()
    backend = ScriptedBackend(echoing)
    made("x", 1).run(backend=backend, record=str(tmp_path), mode="python").sync()
    without(tmp_path, lambda line: line.get("args") == [7])
    for word, amount, code in (("y", 1, "SGLC420"), ("x", 2, "SGLC425")):
        CALLED.clear()
        idle = ScriptedBackend(echoing)
        changed = made(word, amount).run(backend=idle, record=str(tmp_path), resume=True)
        assert (code_of(changed), CALLED, idle.calls) == (code, [], 0)
    rest = ScriptedBackend(echoing)
    assert code_of(made("x", 1).run(backend=rest, record=str(tmp_path), resume=True)) == "NoneType"
    assert (CALLED, rest.calls) == ([("charge", 7)], 1)


# -- what ended ----------------------------------------------------------------------------------------


def test_what_failed_is_asked_again_if_that_is_said(tmp_path: Path) -> None:
    """What the program caught is as it was."""
    failing_now = {"b", "d"}
    asked: list[str] = []

    def answer(asking: Asked) -> str | None:
        asked.append(asking.site.name)
        return None if asking.site.name in failing_now else echoing(asking)

    @sgl.function
    def program(s: Any, q: str) -> None:
        s += q + sgl.gen("a")
        try:
            s += sgl.gen("b")
            found = s["b"]
        except BackendError:
            found = "none"
        s += found + look(found) + sgl.gen("c")
        forks = s.fork(2)
        for branch in forks:
            branch += sgl.gen("d")
        s += forks[0]["d"] + forks[1]["d"]

    def run(**options: Any) -> Sequence[Result]:
        asked.clear()
        CALLED.clear()
        rows = [{"q": "x"}, {"q": "y"}]
        return program.run_batch(rows, backend=ScriptedBackend(answer), record=str(tmp_path), **options)

    assert [code_of(one) for one in run()] == ["SGLC521", "SGLC521"]
    assert [code_of(one) for one in run(resume=True)] == ["SGLC521", "SGLC521"]
    assert (asked, CALLED) == ([], [])
    assert [code_of(one) for one in run(resume=True, retry_failed=True)] == ["SGLC521", "SGLC521"]
    assert sorted(asked) == ["d"] * 4
    failing_now.clear()
    again = run(resume=True, retry_failed=True)
    assert [code_of(one) for one in again] == ["NoneType", "NoneType"]
    assert (sorted(asked), CALLED) == (["d"] * 4, [])
    assert [failure.site.name for failure in again[0].failures] == ["b"]
    assert [shown(one) for one in run(resume=True)] == [shown(one) for one in again]
    assert asked == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "python"])
def test_a_function_that_raised_is_called_again_if_that_is_said(mode: Any, tmp_path: Path) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.gen("a")
        s += look("x") + moody(s["a"]) + sgl.gen("b")

    def run(**options: Any) -> Result:
        CALLED.clear()
        backend = ScriptedBackend(echoing)
        return program.run(backend=backend, record=str(tmp_path), mode=mode, seed=1, **options).sync()

    MOODS.append("bad")
    assert code_of(run()) == "ConnectionError"
    MOODS.clear()
    assert code_of(run(resume=True)) == "ConnectionError"
    assert CALLED == []
    good = run(resume=True, retry_failed=True)
    assert code_of(good) == "NoneType"
    assert [("moody", good["a"])] == CALLED


@pytest.mark.slow
def test_rows_that_were_stopped_go_on(tmp_path: Path) -> None:
    """By Ctrl-C, by a deadline or by a budget: that is no end of theirs."""
    rows = [{"q": f"q{number}"} for number in range(6)]
    whole = chain.run_batch(rows, backend=ScriptedBackend(echoing), seed=1)
    slow = ScriptedBackend(echoing, word_s=0.002)
    first = chain.stream_batch(rows, backend=slow, seed=1, num_threads=2, record=str(tmp_path))
    assert shown(next(first)) == shown(whole[0])
    first.close()  # type: ignore[attr-defined]
    again = chain.run_batch(rows, backend=slow, seed=1, max_calls=2, record=str(tmp_path), resume=True)
    assert {code_of(result) for result in again} <= {"NoneType", "SGLC408"}
    rest = ScriptedBackend(echoing)
    last = chain.run_batch(rows, backend=rest, record=str(tmp_path), resume=True)
    assert [shown(result) for result in last] == [shown(result) for result in whole]
    assert 0 < rest.calls <= 6
    assert chain.run("q0", backend=slow, timeout=1e-4, seed=1, record=str(tmp_path / "late")).error()
    # The seed is given again: a run that ended before its row began has left no recording.
    late = chain.run("q0", backend=rest, seed=1, record=str(tmp_path / "late"), resume=True).sync()
    assert shown(late) == shown(whole[0])


def test_a_generation_that_was_answered_when_its_run_was_stopped_goes_on(tmp_path: Path) -> None:
    """It has the stop for an answer, and the next one of its segment, which was asked, too."""
    backend, stop = ScriptedBackend(echoing), error_json(RunError("SGLC407", "the run was stopped"))
    whole = chain.run("q", backend=backend, seed=1, record=str(tmp_path)).sync()
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    stopped = 0
    for line in lines:
        if line.get("is") == "answer":
            del line["answer"], line["times"]
            line["error"] = stop
            stopped += 1
        elif line.get("is") == "end":
            line["error"] = stop
    assert stopped > 1
    (tmp_path / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    calls = backend.calls
    assert shown(chain.run("q", backend=backend, seed=1, record=str(tmp_path), resume=True)) == shown(whole)
    assert backend.calls == 2 * calls


def test_no_function_begins_when_its_run_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits for a thread is not called, none behind the recording's end."""

    @sgl.function
    def saves(s: Any, q: str) -> None:
        s += q + sgl.gen("a")
        save(s["a"])

    begins: SimpleQueue[Callable[[], None]] = SimpleQueue()
    recorders: list[RowRecorder] = []

    def begin(row: RowRecorder, backend: Backend, mode: str) -> Backend:
        recorders.append(row)
        return began(row, backend, mode)

    began = RowRecorder.begin
    monkeypatch.setattr(tool_calls, "in_thread", begins.put)
    monkeypatch.setattr(RowRecorder, "begin", begin)
    CALLED.clear()
    result = saves.run("q", backend=ScriptedBackend(echoing), seed=1, mode="plan", record=str(tmp_path))
    late = begins.get(timeout=60)
    result.stop()
    assert "SGLC407" in str(result.error())
    late()
    assert not CALLED
    with pytest.raises(RunError, match="SGLC407"):
        recorders[0].called("save", ("y",), {}, pure=False)
    assert '"call"' not in (tmp_path / FILE).read_text()


def test_a_row_that_was_interrupted_in_a_function_goes_on(tmp_path: Path) -> None:
    """By Ctrl-C, where the program runs in this thread."""

    @sgl.tool(idempotent=True)
    def patient(q: str) -> str:
        CALLED.append(("patient", q))
        if len(CALLED) == 1:
            raise KeyboardInterrupt
        return q

    @sgl.function
    def program(s: Any, q: str) -> None:
        s += q + sgl.gen("a")
        s += patient(s["a"]) + sgl.gen("b")

    CALLED.clear()
    backend = ScriptedBackend(echoing)
    with pytest.raises(KeyboardInterrupt):
        program.run("q", backend=backend, record=str(tmp_path), use_thread=False)
    again = program.run("q", backend=backend, record=str(tmp_path), resume=True).sync()
    assert again["b"]
    assert (len(CALLED), backend.calls) == (2, 2)


@pytest.mark.slow
def test_a_plan_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    shop.compile(ScriptedBackend(echoing)).save(path)
    rows = [{"q": "x"}, {"q": "y"}]

    def run(**options: Any) -> tuple[list[Any], int]:
        CALLED.clear()
        backend = ScriptedBackend(echoing)
        results = sgl.load_plan(path).run_batch(rows, backend=backend, record=str(tmp_path / "r"), **options)
        return [shown(result) for result in results], backend.calls

    # Row by row: where it is cut, no function of the other one is going on.
    whole, calls = run(seed=3, num_threads=1)
    assert len(CALLED) == 6
    without(tmp_path / "r", lambda line: line.get("occurrence") == 1)
    rest, left = run(resume=True)
    assert rest == whole
    assert 0 < left < calls
    assert 0 < len(CALLED) < 6
    single = sgl.load_plan(path).run(
        {"q": "x"}, backend=ScriptedBackend(echoing), record=str(tmp_path / "s"), seed=3
    )
    single.sync()
    without(tmp_path / "s", lambda line: line.get("occurrence") == 1)
    again = sgl.load_plan(path).run(
        {"q": "x"}, backend=ScriptedBackend(echoing), record=str(tmp_path / "s"), resume=True
    )
    assert shown(again.sync()) == shown(single) == whole[0]


def test_coroutines_and_pieces_go_on(tmp_path: Path) -> None:
    folder = str(tmp_path)
    first = chain.run("q", backend=ScriptedBackend(echoing), record=folder, seed=1).sync()
    without(tmp_path, lambda line: line.get("site") == "chain.b#0")
    rest = ScriptedBackend(echoing)
    pieces = list(chain.stream("q", backend=rest, record=folder, resume=True))
    assert "".join(text for site, text in pieces if site.name == "a") == first["a"]
    assert "".join(text for site, text in pieces if site.name == "b") == first["b"]
    assert rest.calls == 2
    again = asyncio.run(chain.arun("q", backend=rest, record=folder, resume=True))
    assert shown(again) == shown(first)
    assert rest.calls == 2


# -- pauses --------------------------------------------------------------------------------------------


@sgl.function
def asking(s: Any, q: str) -> Any:
    s += q + sgl.gen("a")
    said = sgl.pause("approve", "Shall it be paid?", text=s["a"], amount=3)
    s += f" {said} " + charge(3) + sgl.gen("b")
    return sgl.pause("name")


@sgl.function
def catching(s: Any, q: str) -> Any:
    s += q + sgl.gen("a")
    try:
        if sgl.pause("approve", "Shall it be paid?", text=s["a"], amount=3) == "yes":
            s += " yes " + charge(3) + sgl.gen("b")
    except Exception:
        charge(100)
        s += sgl.gen("c")
    return sgl.pause("name")


@pytest.mark.slow
@pytest.mark.parametrize(("program", "mode"), [(asking, "plan"), (asking, "python"), (catching, "auto")])
def test_a_run_waits_for_a_person(program: sgl.Function, mode: Any, tmp_path: Path) -> None:
    backend = ScriptedBackend(echoing)

    def run(**options: Any) -> Result:
        CALLED.clear()
        return program.run("q", backend=backend, record=str(tmp_path), mode=mode, seed=2, **options).sync()

    first: Any = run().error()
    assert isinstance(first, Paused)
    assert (first.code, first.name, first.question) == ("SGLC413", "approve", "Shall it be paid?")
    assert (first.data["amount"], backend.calls, CALLED) == (3, 1, [])
    assert first.loc is not None
    assert "approve" in first.hint
    replayed: Any = program.run("q", replay=str(tmp_path), mode=mode).error()
    assert (str(replayed), replayed.name, replayed.data) == (str(first), "approve", first.data)
    assert str(run(resume=True, answers={"other": 1}).error()) == str(first)
    second: Any = run(resume=True, answers={"approve": "yes"}).error()
    assert isinstance(second, Paused)
    assert (second.name, second.question, second.data) == ("name", None, {})
    assert CALLED == [("charge", 3)]
    result = run(resume=True, answers={"approve": "no", "name": {"first": ["Ada", 1]}})
    assert (result.error(), result.ret_value) == (None, {"first": ["Ada", 1]})
    assert " yes charged 3" in result.text()
    assert (backend.calls, CALLED) == (2, [])
    assert shown(run(resume=True)) == shown(result)


@pytest.mark.slow
def test_other_rows_go_on_and_answers_are_for_rows(tmp_path: Path) -> None:
    @sgl.function
    def program(s: Any, q: str) -> Any:
        s += q + sgl.gen("a")
        return [sgl.pause("name"), sgl.pause("name")] if q == "ask" else s["a"]

    def run(**options: Any) -> list[Result]:
        rows = [{"q": "ask"}, {"q": "go"}, {"q": "ask"}]
        return program.run_batch(rows, backend=ScriptedBackend(echoing), record=str(tmp_path), **options)

    assert [code_of(result) for result in run()] == ["SGLC413", "NoneType", "SGLC413"]
    both = run(resume=True, answers={"name": "all", 2: {"name": "own", "name#1": "again"}})
    assert [code_of(result) for result in both] == ["SGLC413", "NoneType", "NoneType"]
    assert both[2].ret_value == ["own", "again"]
    error: Any = both[0].error()
    assert error.name == "name#1"
    assert run(resume=True, answers={"name#1": None})[0].ret_value == ["all", None]


@pytest.mark.slow
def test_a_pause_of_a_called_program_ends_those_around(tmp_path: Path) -> None:
    @sgl.function
    def inner(s: Any, q: str) -> Any:
        s += q + sgl.gen("h")
        return sgl.pause("name", "Whose?")

    @sgl.function
    def outer(s: Any, q: str) -> Any:
        called = inner.run(q)
        if q == "unread":
            return called.sync() and charge(1)
        try:
            s += str(called.ret_value)
        except Exception:
            s += charge(100)
        return s.text() + charge(1)

    CALLED.clear()
    backend = ScriptedBackend(echoing)
    error: Any = outer.run("q", backend=backend, record=str(tmp_path)).error()
    assert (error.code, error.name, CALLED) == ("SGLC413", "inner#0/name", [])
    again = outer.run("q", backend=backend, record=str(tmp_path), resume=True, answers={"inner#0/name": "Ada"})
    assert again.ret_value == "Adacharged 1"
    assert backend.calls == 1
    unread: Any = outer.run("unread", backend=backend, record=str(tmp_path / "unread")).error()
    assert unread.code == "SGLC413"
    told = [one.unread_error() for one in tuple(UNREAD) if one.name == "inner"]
    assert [error for error in told if error is not None] == []


def test_where_nothing_is_recorded_a_pause_says_so(tmp_path: Path) -> None:
    error: Any = catching.run("q", backend=ScriptedBackend(echoing)).error()
    assert (error.code, error.name) == ("SGLC413", "approve")
    assert "record" in error.hint
    assert error.loc is not None

    @sgl.tool
    def hidden(q: str) -> str:
        return str(sgl.pause("name"))

    @sgl.function
    def program(s: Any, q: str) -> None:
        s += hidden(q) + sgl.gen("a")

    assert code_of(program.run("q", backend=ScriptedBackend(echoing), record=str(tmp_path))) == "SGLC431"


# -- refusals ------------------------------------------------------------------------------------------


def refused(**options: Any) -> str:
    with pytest.raises(UsageError) as caught_error:
        chain.run("q", backend=ScriptedBackend(echoing), **options)
    return caught_error.value.code


def test_rows_that_do_not_run_are_not_read(tmp_path: Path) -> None:
    """Not even looked into: what a batch has done already takes no memory."""
    rows = [{"q": f"r{number}"} for number in range(6)]
    chain.run_batch(rows, backend=ScriptedBackend(echoing), record=str(tmp_path))
    file = tmp_path / FILE
    lines = file.read_bytes().splitlines(keepends=True)
    broken = [line.replace(b'"within"', b"within") if b'"row": 3' in line else line for line in lines]
    file.write_bytes(b"".join(broken))
    assert set(tape.read_tape(tmp_path, {1, 3}).rows) == {0, 2, 4, 5}
    with pytest.raises(UsageError, match="no recording"):
        tape.read_tape(tmp_path, {1})
    asked: list[Asked] = []
    backend = ScriptedBackend(asked.append)
    again = chain.stream_batch(rows, backend=backend, record=str(tmp_path), resume=True, skip={3})
    assert [result.row for result in again if result.error() is None] == [0, 1, 2, 4, 5]
    assert not asked


@pytest.mark.parametrize("torn", [0, 1, (1 << 16) - 1, 1 << 16, (1 << 17) + 5])
def test_a_line_that_was_torn_is_cut_off_however_long_it_is(tmp_path: Path, torn: int) -> None:
    (tmp_path / FILE).write_bytes(b"one\n" + b"x" * torn)
    Writer(tmp_path, resume=True).close()
    assert (tmp_path / FILE).read_bytes() == b"one\n"
    (tmp_path / FILE).write_bytes(b"x" * torn)
    Writer(tmp_path, resume=True).close()
    assert (tmp_path / FILE).read_bytes() == b""


@pytest.mark.slow
def test_what_cannot_go_on_is_refused(tmp_path: Path) -> None:
    folder = str(tmp_path / "r")
    chain.run("q", backend=ScriptedBackend(echoing), record=folder, seed=1, resume=True).sync()  # it begins
    assert refused(record=folder) == "SGLC050"
    assert refused(record=folder, resume=True, seed=2) == "SGLC055"
    with pytest.raises(UsageError, match="one of `chain`, not of `helper`"):
        helper.run("q", record=folder, resume=True, backend=ScriptedBackend(echoing))
    assert refused(resume=True) == "SGLC081"
    assert refused(record=folder, retry_failed=True) == "SGLC081"
    assert refused(record=folder, answers={"x": 1}) == "SGLC081"
    assert refused(record=folder, resume=True, answers={"x": {1, 2}}) == "SGLC081"
    assert refused(record=folder, resume=True, redo=3) == "SGLC081"
    assert refused(replay=folder, resume=True) == "SGLC081"
    writer = Writer(folder, resume=True)
    assert refused(record=folder, resume=True) == "SGLC080"
    writer.close()
    lines = (tmp_path / "r" / FILE).read_bytes()
    (tmp_path / "r" / FILE).write_bytes(lines.replace(b'"is": "begin"', b'"is": "x"'))
    assert refused(record=folder, resume=True) == "SGLC052"
    (tmp_path / "r" / FILE).write_bytes(lines)
    assert chain.run("q", backend=ScriptedBackend(echoing), record=folder, resume=True).error() is None
    assert (tmp_path / "r" / FILE).read_bytes() == lines


def test_a_row_goes_on_with_the_model_that_it_began_with(tmp_path: Path) -> None:
    class Other(ScriptedBackend):
        @cached_property
        def target(self) -> Target:
            return replace(ScriptedBackend(echoing).target, name="other")

    folder = str(tmp_path)
    shop.run("q", backend=ScriptedBackend(echoing), record=folder, mode="python").sync()
    without(tmp_path, lambda line: line.get("occurrence") == 1)
    CALLED.clear()
    assert code_of(shop.run("q", backend=Other(echoing), record=folder, resume=True)) == "SGLC434"
    assert CALLED == []
    assert code_of(shop.run("q", backend=ScriptedBackend(echoing), record=folder, resume=True)) == "NoneType"


def test_a_row_goes_on_in_the_mode_that_it_began_in(tmp_path: Path) -> None:
    folder = str(tmp_path)
    backend = ScriptedBackend(echoing)
    shop.run("q", backend=backend, record=folder, mode="python").sync()
    without(tmp_path, lambda line: line.get("occurrence") == 1)
    CALLED.clear()
    assert code_of(shop.run("q", backend=backend, record=folder, resume=True, mode="plan")) == "SGLC432"
    assert CALLED == []
    again = shop.run("q", backend=backend, record=folder, resume=True).sync()
    assert (again.mode, code_of(again)) == ("python", "NoneType")


def test_a_row_goes_on_with_the_arguments_that_it_began_with(tmp_path: Path) -> None:
    @sgl.function
    def program(s: Any, q: str, more: float) -> str:
        s += "x" + sgl.gen("a")
        if q != "done" and s["a"]:
            sgl.pause("name")
        return q.upper()

    def run(*rows: tuple[str, float], **options: Any) -> list[str]:
        backend = ScriptedBackend(echoing)
        results = program.run_batch(rows, backend=backend, record=str(tmp_path), mode="python", **options)
        return [code_of(result) for result in results]

    assert run(("done", 1.0), ("wait", float("nan"))) == ["NoneType", "SGLC413"]
    assert run(("done", 1.0), ("wait", float("nan")), resume=True) == ["NoneType", "SGLC413"]
    assert run(("wait", 1.0), ("done", float("nan")), resume=True) == ["SGLC433", "SGLC433"]
    assert run(("done", 1.0), ("wait", 2.0), resume=True, answers={"name": 1}) == ["NoneType", "SGLC433"]
    again = run(("done", 1.0), ("wait", float("nan")), resume=True, answers={"name": 1})
    assert again == ["NoneType", "NoneType"]


def test_a_full_disk_ends_rows_and_what_is_there_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"q": f"q{number}"} for number in range(8)]
    whole = chain.run_batch(rows, backend=ScriptedBackend(echoing), seed=1)
    room, real = [9000], os.write

    def write(file: int, data: Any) -> int:
        took = min(len(data), room[0])
        room[0] -= took
        if not took:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, bytes(data[:took]))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        full = chain.run_batch(
            rows, backend=ScriptedBackend(echoing), seed=1, record=str(tmp_path), num_threads=1
        )
    assert {code_of(result) for result in full} == {"NoneType", "SGLC423"}
    rest = ScriptedBackend(echoing)
    again = chain.run_batch(rows, backend=rest, record=str(tmp_path), resume=True)
    assert [shown(result) for result in again] == [shown(result) for result in whole]
    assert 0 < rest.calls < 24


# -- the command line ------------------------------------------------------------------------------------

SOURCE = """\
import sglc as sgl


@sgl.tool
def send(text: str) -> str:
    with open("sent.txt", "a") as file:
        file.write(text + "\\n")
    return "sent"


@sgl.function
def mail(s, to):
    s += "To " + to + ":" + sgl.gen("text")
    if sgl.pause("approve", "Shall it be sent?", to=to):
        s += send(to) + sgl.gen("end")
"""


@pytest.fixture
def mails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command for two mails; both scripts are in the folder."""
    monkeypatch.chdir(tmp_path)
    Path("mail.py").write_text(SOURCE)
    Path("rows.jsonl").write_text('{"to": "Ada"}\n{"to": "Bob"}\n')
    Path("script.json").write_text('[{"name": "text", "text": "hello"}, {"name": "end", "text": "bye"}]')
    return ["run", "mail.py", "--backend", "scripted:script.json", "--record", "r", "--json"]


@pytest.mark.slow
def test_rows_wait_and_go_on_at_the_command_line(mails: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command = [*mails, "--batch", "rows.jsonl", "-o", "out.jsonl"]
    assert main(command) == 1
    told = capsys.readouterr().err
    assert told.count("error[SGLC413]") == 2
    assert "--answer approve=JSON" in told
    assert main([*command, "--resume", "--answer", "1:approve=true"]) == 1
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert sorted((row["index"], row["error"] is None) for row in rows) == [(0, False), (1, True)]
    assert main([*command, "--resume", "--answer", "0:approve=false"]) == 0
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert {row["index"]: row["text"] for row in rows} == {0: "To Ada:hello", 1: "To Bob:hellosentbye"}
    assert Path("sent.txt").read_text() == "Bob\n"
    capsys.readouterr()
    assert main([*command[:-2], "--resume"]) == 0  # all of it is in the recording, too
    shown_rows = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    assert shown_rows == ["To Ada:hello", "To Bob:hellosentbye"]


@pytest.mark.slow
def test_one_run_goes_on_at_the_command_line(mails: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command = [*mails, "--arg", "to=Ada"]
    assert main(command) == 1
    without_end = [*command, "--resume", "--answer", "approve=true"]
    assert main(without_end) == 0
    without(Path("r"), lambda line: line.get("is") == "called")
    assert main(without_end) == 1
    assert "error[SGLC426]" in capsys.readouterr().err
    assert Path("sent.txt").read_text() == "Ada\n"
    assert main([*command, "--resume", "--redo", "send"]) == 0
    assert Path("sent.txt").read_text() == "Ada\nAda\n"


def test_what_a_run_reads_is_written_before_it_does(tmp_path: Path) -> None:
    written: list[str] = []

    @sgl.function
    def program(s: Any, q: str) -> None:
        s += q + sgl.gen("a")
        CALLED.append((s["a"],))
        written.append((tmp_path / FILE).read_text().splitlines()[-1])
        s += sgl.gen("b")

    backend = ScriptedBackend(echoing)
    result = program.run("q", backend=backend, record=str(tmp_path), mode="python").sync()
    assert json.loads(written[0])["answer"]["samples"][0]["text"] == result["a"]


def test_that_a_function_is_called_is_written_before_it_is(tmp_path: Path) -> None:
    @sgl.tool
    def looking(q: str) -> str:
        file = tmp_path / FILE
        CALLED.append(("looking", file.read_bytes() if file.exists() else b""))
        return q

    @sgl.function
    def program(s: Any, q: str) -> None:
        s += looking(q) + sgl.gen("a")

    for mode in ("plan", "python"):
        CALLED.clear()
        (tmp_path / FILE).unlink(missing_ok=True)
        program.run("q", backend=ScriptedBackend(echoing), record=str(tmp_path), mode=mode).sync()
        ((_, written),) = CALLED
        assert written.endswith(b"\n")
        last = json.loads(written.splitlines()[-1])
        assert (last["is"], last["args"]) == ("call", ["q"])
        assert "value" not in last


# -- the tests find what they should ---------------------------------------------------------------------


def no_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RowRecorder, "_ended", lambda self, call, **given: None)


def no_tasks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(calls, "task_path", lambda: "")


def one_occurrence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tape, "occurrence_of", lambda line: ("", 0))
    patch.setattr(calls, "occurrence_of", lambda line: ("", 0))


def any_row(patch: pytest.MonkeyPatch) -> None:
    row = TapeRecorder.row
    patch.setattr(TapeRecorder, "row", lambda self, number, *rest: row(self, number // 2, *rest))


def begun_late(patch: pytest.MonkeyPatch) -> None:
    write = Writer.write
    patch.setattr(
        Writer,
        "write",
        lambda self, line, when="now": write(self, line, "later" if line.get("is") == "call" else when),
    )


def torn_lines(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "ftruncate", lambda file, length: None)


def twice_served(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RowRecorder, "known", lambda self, *_: None)


def tools_as_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(observer, "run_tools", SimpleNamespace(name=""))


def redone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GoingOn, "redoes", lambda self, name: True)


def cutting(program: sgl.Function, torn: int) -> Callable[[Path], None]:
    def check(tmp_path: Path) -> None:
        whole = Whole(program, tmp_path / "whole", "python")
        places = lengths(whole.recording, torn, 3)
        for number, length in enumerate(places[-torn:] if torn else places):
            whole.cut(tmp_path / str(number), length)

    return check


MUTANTS = [
    (no_ends, cutting(shop, 0)),
    (no_tasks, cutting(tasks, 0)),
    (one_occurrence, cutting(shop, 0)),
    (one_occurrence, cutting(forked, 0)),
    (tools_as_one, cutting(waiter, 0)),
    (one_occurrence, cutting(waiter, 0)),
    (begun_late, test_that_a_function_is_called_is_written_before_it_is),
    (any_row, cutting(chain, 0)),
    (torn_lines, cutting(chain, 3)),
    (twice_served, cutting(chain, 0)),
    (redone, test_what_was_begun_and_is_not_known_to_have_ended_is_in_doubt),
]


@pytest.mark.slow
@pytest.mark.parametrize(("mutant", "check"), few(MUTANTS, 3), ids=lambda one: one.__name__)
def test_what_is_done_twice_or_not_at_all_is_found_out(
    mutant: Callable[[pytest.MonkeyPatch], None], check: Callable[[Path], None], tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        with pytest.raises((AssertionError, SglcError)):
            check(tmp_path)


@pytest.mark.slow
def test_a_function_that_comes_back_too_late_is_in_doubt(tmp_path: Path) -> None:
    """Nobody waited for it any more when it did, and nothing is written behind the end of a recording."""
    back = threading.Event()

    @sgl.tool
    def slow(q: str) -> str:
        CALLED.append(("slow", q))
        back.wait(30)
        return q

    @sgl.function
    def program(s: Any, q: str) -> None:
        s += slow(q) + sgl.gen("a")

    CALLED.clear()
    backend = ScriptedBackend(echoing)
    error: Any = program.run("q", backend=backend, record=str(tmp_path), timeout=0.2).error()
    assert error.code == "SGLC411"
    written = (tmp_path / FILE).read_bytes()
    back.set()
    assert code_of(program.run("q", backend=backend, record=str(tmp_path), resume=True)) == "SGLC426"
    assert (tmp_path / FILE).read_bytes()[: len(written)] == written
    assert CALLED == [("slow", "q")]
    assert program.run("q", backend=backend, record=str(tmp_path), resume=True, redo="slow")["a"]
    assert CALLED == [("slow", "q")] * 2


# -- random programs -------------------------------------------------------------------------------------


def calls_of(result: Result) -> dict[str, Any]:
    """Its generations with all that is known of them, but for times, and what a cache had."""
    return {
        str(call.site): (
            replace(call, started_s=0.0, first_s=0.0, ended_s=0.0, usage=Usage()),
            (call.usage.prompt, call.usage.completion),
        )
        for call in result.calls
    }


def check_random(seeds: range, folder: Path) -> int:
    """Random plans on a model of ids, cut at random places; how many answers were served."""
    backend = OracleBackend()
    args, served = {**ARGS, "b": "beta"}, 0
    for seed in seeds:
        chance = random.Random(seed)
        plan, tools = random_plan(seed, backend), Recorded()
        place = folder / f"r{seed}"
        whole = ran(plan, args, tools, backend=backend, seed=seed, record=str(place))
        recording = (place / FILE).read_bytes()
        ends = [at + 1 for at, byte in enumerate(recording) if byte == ord("\n")]
        for length in chance.sample(ends, min(3, len(ends))):
            (place / FILE).write_bytes(recording[:length])
            lines = [json.loads(line) for line in recording[:length].splitlines()]
            rest = Recorded()
            again = ran(
                plan, args, rest, backend=backend, record=str(place), resume=True, seed=seed, redo="all"
            )
            if whole.error() is None:
                assert {**shown(again), "usage": 0} == {**shown(whole), "usage": 0}
                made, before = calls_of(again), calls_of(whole)
                assert {site: call for site, (call, _) in made.items()} == {
                    site: call for site, (call, _) in before.items()
                }
                # One that had the answer of another makes its own call where that one is served.
                own = {str(call.site) for call in whole.calls if not call.usage.unified}
                assert {site: made[site] for site in own} == {site: before[site] for site in own}
                ended = sum(line.get("is") == "called" for line in lines)
                assert len(rest.calls) <= len(tools.calls) - ended
            else:
                assert str(again.error()) == str(whole.error())
            served += sum("answer" in line for line in lines)
    backend.close()
    return served


@pytest.mark.slow
def test_random_programs_go_on(tmp_path: Path) -> None:
    assert check_random(range(at_depth(2, 6, 200)), tmp_path) > at_depth(1, 15, 600)
