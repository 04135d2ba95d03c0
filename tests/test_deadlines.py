"""Deadlines: of a run, of each row, of a batch. Where it was is told, and what goes on changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.api.plan import LoadedPlan
from sglc.backends.local import LocalBackend
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.cli.program_file import open_function
from sglc.errors import RunError, SglcError, UsageError, render
from sglc.execution.result import Result
from sglc.ir.plan.segment import ReleaseNode, Segment
from tests.depth import few, some_of
from tests.oracle_backend import OracleBackend
from tests.small_default import says
from tests.waiting import Gate, HandClock, let_the_loop_run, somebody_at, until

FILE = Path(__file__)
GATE = Gate()  # what hangs, hangs until the end of the test
WOKEN: list[str] = []


@pytest.fixture(autouse=True)
def gate() -> Iterator[None]:
    GATE.shut()
    WOKEN.clear()
    yield
    GATE.open()
    until(lambda: not {"sglc-sleeper", "sglc-program"} & {thread.name for thread in threading.enumerate()})
    until(lambda: GATE.waiting == 0 and not somebody_at(str(FILE)))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    return HandClock(monkeypatch)


def line_of(text: str) -> int:
    """Of this file, the line that has `# text` at its end."""
    (number,) = (n for n, line in enumerate(FILE.read_text().splitlines(), 1) if line.endswith(f"  # {text}"))
    return number


def place(result: Result) -> tuple[str, int]:
    """Code and line of a result's error."""
    error = result.error()
    assert isinstance(error, SglcError)
    assert error.loc is not None
    assert Path(error.loc.file).name == FILE.name
    return error.code, error.loc.line


def is_at(where: str, result: Result) -> bool:
    """Whether a run is where it stays until its deadline."""
    ready = [output.ready for output in result.outputs.generations.values()]  # of two generations at most
    if where == "awaits":
        return GATE.waiting > 0
    if where == "generates":
        return ready == [True, False] and not any(t.name == "sglc-leaver" for t in threading.enumerate())
    return ready[:1] == [True] and somebody_at(str(FILE), line_of(where))


def answering(asked: Asked) -> str:
    return "w " * 3_000 if asked.site.name == "endless" else f" {asked.site.name}"


def slow() -> ScriptedBackend:
    return ScriptedBackend(answering, word_s=0.01)


# -- where a run was ---------------------------------------------------------------------------------


@sgl.function
def sleeper(s: Any) -> None:
    s += "a" + sgl.gen("x")
    if s["x"]:
        GATE.wait()  # asleep
    WOKEN.append("body")
    s["late"] = "late"
    s += sgl.gen("y")
    WOKEN.append(s["y"])


@sgl.function
def reader(s: Any) -> Any:
    s += "a" + sgl.gen("x")
    s += sgl.gen("endless", max_tokens=5_000)
    if s["endless"]:  # reads
        return "never"
    return None


@sgl.function
def leaver(s: Any) -> None:
    s += "a" + sgl.gen("x")
    s += sgl.gen("endless", max_tokens=5_000)  # generates


@sgl.function
async def awaiter(s: Any) -> None:
    s += "a" + sgl.gen("x")
    assert s["x"]
    await GATE.awaited()  # awaits


@sgl.function
def caller(s: Any) -> None:
    s += "a" + sgl.gen("x")
    assert s["x"]
    s += reader.run()["endless"]  # calls


@pytest.mark.parametrize(
    ("program", "where"),
    [(sleeper, "asleep"), (reader, "reads"), (leaver, "generates"), (awaiter, "awaits"), (caller, "calls")],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_a_late_run_says_where_it_is_and_keeps_what_it_has(
    program: sgl.Function, where: str, clock: HandClock
) -> None:
    backend = slow()
    result = program.run(backend=backend, timeout=1.5, mode="python")
    clock.advance(1.5, lambda: is_at(where, result))
    assert place(result) == ("SGLC411", line_of(where))
    assert result["x"] == " x"
    assert result.partial_text.startswith("a x")
    until(lambda: backend.kept == 0)
    with pytest.raises(RunError, match=r"did not end within 1.5 s"):
        result.text()


@sgl.function
async def cleans_up(s: Any) -> None:
    s += "a" + sgl.gen("x")
    assert s["x"]
    try:
        await asyncio.gather(asyncio.sleep(3_600), GATE.awaited())
    finally:
        await asyncio.sleep(0)
        WOKEN.append("closed")


def has_cleaned_up() -> bool:
    return WOKEN == ["closed"] and not any(t.name == "sglc-cleans_up" for t in threading.enumerate())


@pytest.mark.parametrize("mode", ["auto", "python"])
def test_a_coroutine_that_is_late_leaves_what_it_has_entered(mode: Any, clock: HandClock) -> None:
    result = cleans_up.run(backend=slow(), timeout=1.5, mode=mode)
    clock.advance(1.5, lambda: GATE.waiting)
    error = result.error()
    assert isinstance(error, RunError)
    assert error.code == "SGLC411"
    until(has_cleaned_up)


@pytest.mark.parametrize("mode", ["auto", "python"])
def test_a_coroutine_that_is_stopped_leaves_what_it_has_entered(mode: Any) -> None:
    result = cleans_up.run(backend=ScriptedBackend(answering), mode=mode)
    until(lambda: GATE.waiting > 0)
    result.stop()
    error = result.error()
    assert isinstance(error, RunError)
    assert error.code == "SGLC407"
    assert result["x"] == " x"
    until(has_cleaned_up)


def test_a_cancelled_arun_cancels_the_coroutine() -> None:
    async def main() -> None:
        running = asyncio.create_task(cleans_up.arun(backend=ScriptedBackend(answering)))
        while not GATE.waiting:
            await asyncio.sleep(0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    until(has_cleaned_up)


def test_a_coroutine_that_leaves_is_not_cancelled_again() -> None:
    """Its caller's stop is told to it, and so is that the call of it was cancelled."""

    @sgl.function
    async def caller(s: Any) -> None:
        await cleans_up.arun()

    result = caller.run(backend=ScriptedBackend(answering), mode="python")
    until(lambda: GATE.waiting > 0)
    result.stop()
    assert result.error() is not None
    until(has_cleaned_up)


def test_what_a_late_run_looks_like(clock: HandClock) -> None:
    clock.advance(1.5, lambda: GATE.waiting)
    error = sleeper.run(backend=slow(), timeout=1.5).error()
    assert isinstance(error, SglcError)
    lines = render(error).splitlines()
    assert lines[0] == "error[SGLC411]: the run did not end within 1.5 s"
    assert lines[1].endswith(f"test_deadlines.py:{line_of('asleep')}:9")
    assert lines[-2:] == [
        "note: it waited here; what was computed before is kept", "hint: give it more time: `timeout`",
    ]  # fmt: skip


def test_a_body_that_wakes_up_late_changes_nothing(clock: HandClock) -> None:
    backend = ScriptedBackend(answering)
    clock.advance(1.5, lambda: GATE.waiting)
    result = sleeper.run(backend=backend, timeout=1.5)
    assert result.error() is not None
    before, calls = dict(result.variables), backend.calls
    GATE.open()
    until(lambda: bool(WOKEN))
    until(lambda: not any(t.name == "sglc-sleeper" for t in threading.enumerate()))
    assert WOKEN == ["body"]  # nothing was generated for it
    assert dict(result.variables) == before == {"x": " x"}
    assert "late" not in result
    assert backend.calls == calls
    until(lambda: backend.kept == 0)


def test_a_body_that_wakes_up_late_can_begin_nothing(clock: HandClock) -> None:
    errors: list[BaseException] = []

    @sgl.tool
    def act() -> str:
        WOKEN.append("acted")
        return ""

    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x")
        assert s["x"]
        GATE.wait()
        begins = (
            act, lambda: leaver.run().text(), lambda: leaver.run_batch([{}])[0].text(),
            lambda: plan.run().ret_value, lambda: plan.run_batch([{}])[0].ret_value,
        )  # fmt: skip
        for begin in begins:
            try:
                begin()
            except RunError as error:
                errors.append(error)
        WOKEN.append("over")

    backend = slow()
    plan = LoadedPlan(leaver.compile(backend).plan)
    clock.advance(1.0, lambda: GATE.waiting)
    assert program.run(backend=backend, timeout=1.0).error() is not None
    calls = backend.calls
    sgl.set_default_backend(backend)  # a batch in a body goes there
    try:
        GATE.open()
        until(lambda: bool(WOKEN))
    finally:
        sgl.set_default_backend(None)
    assert WOKEN == ["over"]
    assert [error.code for error in errors if isinstance(error, RunError)] == ["SGLC411"] * 5
    assert backend.calls == calls


def test_the_model_stops_at_the_deadline(clock: HandClock) -> None:
    oracle = OracleBackend(step_s=0.002)
    oracle.oracle.holds = lambda: "x" in oracle.submitted
    clock.advance(0.3, lambda: oracle.held)

    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x", max_tokens=3_000, ignore_eos=True)

    result = program.run(backend=oracle, timeout=0.3)
    assert result.error() is not None
    oracle.settle()
    assert oracle.oracle.launched < 1_000
    assert result.usage.calls == 0
    oracle.close()


def test_a_run_in_the_caller_s_thread_has_its_deadline_too(clock: HandClock) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x")
        assert s["x"]
        inside.set()
        until(lambda: clock.running == 0)  # the run is over, and its body is not
        ended.set()

    inside, ended = threading.Event(), threading.Event()
    clock.advance(0.3, inside.is_set)
    result = program.run(backend=slow(), timeout=0.3, use_thread=False)
    assert ended.is_set()
    error = result.error()
    assert isinstance(error, RunError)
    assert error.code == "SGLC411"


class Stuck(ScriptedBackend):
    """Gives no answer, and does not let go either."""

    let_go = False

    async def submit(self, segment: Segment, *, streams: bool = True) -> Any:
        try:
            await GATE.awaited()
        except asyncio.CancelledError:
            if not any(isinstance(node, ReleaseNode) for node in segment.nodes):
                await GATE.awaited()
                self.let_go = True
            raise
        yield


@pytest.mark.parametrize("planned", [False, True])
def test_a_back_end_that_does_not_let_go_holds_up_nobody(planned: bool, clock: HandClock) -> None:
    backend = Stuck(answering)
    clock.advance(0.3, lambda: GATE.waiting)
    program = LoadedPlan(leaver.compile(backend).plan) if planned else leaver
    assert program.run(backend=backend, timeout=0.3).error() is not None
    assert not backend.let_go


@pytest.mark.usefixtures("clock")
def test_a_run_in_time_is_as_without_a_deadline() -> None:
    backend = ScriptedBackend(answering)

    @sgl.function
    def program(s: Any) -> Any:
        s += "a" + sgl.gen("x")
        return s["x"]

    for runs in (program, LoadedPlan(program.compile(backend).plan)):
        assert runs.run(backend=backend, timeout=30).ret_value == " x"
        results = runs.run_batch([{}] * 50, backend=backend, timeout=30, row_timeout=30)
        assert [result.ret_value for result in results] == [" x"] * 50


@pytest.mark.parametrize("wrong", [0, -1, "5", True, float("inf"), float("nan")])
def test_a_deadline_that_is_none_is_refused(wrong: Any) -> None:
    backend = ScriptedBackend(answering)
    plan = LoadedPlan(leaver.compile(backend).plan)
    for begin in (
        lambda: leaver.run(backend=backend, timeout=wrong),
        lambda: leaver.run_batch([{}], backend=backend, timeout=wrong),
        lambda: leaver.run_batch([{}], backend=backend, row_timeout=wrong),
        lambda: plan.run(backend=backend, timeout=wrong),
        lambda: plan.run_batch([{}], backend=backend, row_timeout=wrong),
    ):
        with pytest.raises(UsageError) as caught:
            begin()
        assert caught.value.code == "SGLC041"
        assert caught.value.loc is not None
    assert backend.submits == 0


def test_a_parameter_may_be_called_timeout() -> None:
    @sgl.function
    def program(s: Any, timeout: str) -> str:
        return timeout

    assert program.run(timeout="never", backend=ScriptedBackend(answering)).ret_value == "never"


# -- plans -------------------------------------------------------------------------------------------


@sgl.tool
def hanging(text: str) -> str:
    GATE.wait()
    WOKEN.append(text)
    return text


@sgl.tool
def after(text: str) -> str:
    WOKEN.append("after")
    return text


@sgl.function
def with_tool(s: Any, word: str) -> None:
    s += word + sgl.gen("x")
    s += hanging(s["x"])  # the tool
    s += after(s["x"]) + sgl.gen("y")


@sgl.tool
async def hanging_too(text: str) -> str:
    await GATE.awaited()
    return text


@sgl.function
async def awaits_a_tool(s: Any, word: str) -> None:
    s += word + sgl.gen("x")
    s += await hanging_too(s["x"])  # the awaited tool


@pytest.mark.parametrize("mode", ["python", "plan"])
@pytest.mark.parametrize(
    ("program", "where"), [(with_tool, "the tool"), (awaits_a_tool, "the awaited tool")], ids=["def", "async"]
)
def test_a_late_run_is_where_its_program_calls_a_tool(
    program: sgl.Function, where: str, mode: Any, clock: HandClock
) -> None:
    result = program.run("a", backend=slow(), timeout=1.5, mode=mode)
    clock.advance(1.5, lambda: GATE.waiting)
    assert place(result) == ("SGLC411", line_of(where))
    assert result.variables == {"x": " x"}


@pytest.mark.slow
def test_a_late_plan_says_what_it_waits_for(clock: HandClock) -> None:
    backend = slow()
    plan = LoadedPlan(with_tool.compile(backend).plan)
    clock.advance(1.5, lambda: GATE.waiting)
    result = plan.run(word="a", backend=backend, timeout=1.5)
    assert place(result) == ("SGLC411", line_of("the tool"))
    error = result.error()
    assert isinstance(error, SglcError)
    assert error.note.startswith("it waited for `")
    assert error.note.endswith("hanging`; what was computed before is kept")
    assert result.variables == {"x": " x"}
    calls = backend.calls
    GATE.open()
    until(lambda: bool(WOKEN))
    until(lambda: backend.kept == 0)
    let_the_loop_run()
    assert WOKEN == [" x"]  # the next tool is not called
    assert backend.calls == calls
    late = LoadedPlan(leaver.compile(backend).plan).run(backend=backend, timeout=1.5)
    clock.advance(1.5, lambda: is_at("generates", late))
    assert place(late) == ("SGLC411", line_of("generates"))
    assert late.variables == {"x": " x"}


# -- batches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 3])
def test_a_late_row_gives_up_its_place(window: int, clock: HandClock) -> None:
    @sgl.function
    def program(s: Any, number: int) -> int:
        s += f"{number}" + sgl.gen("x")
        assert s["x"]
        if number % 3 == 0:
            GATE.wait()
        return number

    rows = [(i,) for i in range(9)]
    clock.advance(0.5, lambda: GATE.waiting - clock.rung == window, times=3 // window)
    results = program.run_batch(rows, backend=slow(), num_threads=window, row_timeout=0.5)
    codes = [getattr(result.error(), "code", None) for result in results]
    assert codes == ["SGLC411", None, None] * 3
    assert [result.row for result in results] == list(range(9))
    assert all(result["x"] == " x" for result in results)


@pytest.mark.parametrize("planned", [False, True])
def test_rows_that_a_batch_has_no_time_for_do_not_begin(planned: bool, clock: HandClock) -> None:
    backend = slow()
    clock.advance(0.5, lambda: clock.running == 4)
    program = LoadedPlan(leaver.compile(backend).plan) if planned else leaver
    results = program.run_batch([{}] * 12, backend=backend, num_threads=4, timeout=0.5)
    codes = [getattr(result.error(), "code", None) for result in results]
    assert codes == ["SGLC411"] * 4 + ["SGLC412"] * 8
    assert backend.submits <= 8
    error = results[-1].error()
    assert isinstance(error, SglcError)
    assert error.message == "the batch ended before this row began: its 0.5 s were over"
    assert error.loc is not None
    until(lambda: backend.kept == 0)


# -- a thousand rows, three of which go wrong --------------------------------------------------------

THOUSAND = """\
import time

import sglc as sgl


@sgl.tool
def look(word: str) -> str:
    if word == "broken":
        raise LookupError("no such page")
    if word == "hanging":
        time.sleep(60)
    return f" {word}."


@sgl.function
def ask(s, word):
    s += "About" + look(word)
    s += sgl.gen("answer", max_tokens=8)
    s += sgl.gen("more", max_tokens=50)
    return s["more"]
"""
ODD = {123: "broken", 456: "hanging", 789: "wordy"}
SECONDS = 10.0  # of a row; all but the hanging one take much less


def words(count: int) -> list[dict[str, str]]:
    return [{"word": ODD.get(i, f"w{i}")} for i in range(count)]


def check(results: Sequence[Any], count: int, odd: dict[int, str]) -> None:
    """`results` in order: (row, value, code, place of the error)."""
    assert [row for row, *_ in results] == list(range(count))
    wrong = {row: (code, loc) for row, _, code, loc in results if code is not None}
    assert {row: code for row, (code, _) in wrong.items()} == odd
    assert all(loc and "ask.py:" in loc for _, loc in wrong.values()), wrong
    assert all(value == f" more of {row % 10}" for row, value, code, _ in results if code is None)


def told(asked: Asked) -> str:
    """Answers that tell which row asked."""
    row = next((row for row, word in ODD.items() if f"About {word}." in asked.prompt), None)
    if asked.site.name == "answer":
        return " fine"
    if row == 789:
        return " word" * 40
    return f" more of {asked.prompt.partition('.')[0][-1]}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("thousand")
    (made / "ask.py").write_text(THOUSAND)
    return made


@pytest.mark.parametrize("planned", few([False, True], 1))
def test_a_thousand_rows_three_of_which_go_wrong(planned: bool, folder: Path, clock: HandClock) -> None:
    program = open_function(str(folder / "ask.py"))
    backend = ScriptedBackend(told)
    runs: Any = program
    if planned:
        program.compile(backend).save(folder / "thousand.json")
        runs = sgl.load_plan(folder / "thousand.json")
    clock.advance(SECONDS, lambda: clock.begun == 1_000 and clock.running == 1)
    results = runs.run_batch(
        words(1_000), backend=backend, seed=1, max_tokens=20, row_timeout=SECONDS, timeout=60
    )
    shown = []
    for result in results:
        error = result.error()
        code = {LookupError: "SGLC409"}.get(type(error)) or getattr(error, "code", None)
        loc = str(getattr(error, "loc", None)) if error is not None else None
        if isinstance(error, LookupError):  # the program's own exception, as it was raised
            loc = "ask.py:9"
        shown.append((result.row, None if error else result.ret_value, code, loc))
    check(shown, 1_000, {123: "SGLC409", 456: "SGLC411", 789: "SGLC408"})
    assert results[789]["answer"] == " fine"  # what was computed before is kept
    until(lambda: backend.kept == 0)


@pytest.mark.slow
@pytest.mark.parametrize("planned", some_of([False, True], 1, 1))  # each waits for a row's ten seconds
def test_a_thousand_rows_from_the_command_line(planned: bool, folder: Path) -> None:
    rules = [{"name": "answer", "text": " fine"}, {"prompt": "About wordy", "text": " word" * 40}]
    rules += [{"prompt": rf"About w\d*{digit}\.", "text": f" more of {digit}"} for digit in range(10)]
    (folder / "answers.json").write_text(json.dumps(rules))
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, words(1_000))))
    program = "ask.py"
    environment = {**os.environ, "PYTHONPATH": str(FILE.parent.parent)}

    def sglc(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "sglc.cli", *arguments], cwd=folder, capture_output=True, text=True,
            timeout=120, env=environment, check=False,
        )  # fmt: skip

    if planned:
        target = ["--target", "scripted:answers.json"]
        assert sglc("compile", program, *target, "--emit", "json", "-o", "plan.json").returncode == 0
        program = "plan.json"
    done = sglc(
        "run", program, "--backend", "scripted:answers.json", "--batch", "rows.jsonl", "--json", "--seed", "1",
        "--row-timeout", str(SECONDS), "--timeout", "90", "--max-tokens", "20",
        *(["--tools", "ask.py"] if planned else []),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    errors = [line["error"] or {"code": None, "loc": None} for line in lines]
    shown = [
        (line["index"], line["value"], error["code"], error["loc"])
        for line, error in zip(lines, errors, strict=True)
    ]
    if not planned:  # there an exception of the body is told as such, at its column
        assert shown[123][2:] == ("LookupError", "ask.py:9:9")
        shown[123] = (123, None, "SGLC409", "ask.py:9")
    check(shown, 1_000, {123: "SGLC409", 456: "SGLC411", 789: "SGLC408"})
    told = [line for line in done.stderr.splitlines() if line.startswith("row ")]
    assert sorted(line.partition(":")[0] for line in told) == ["row 123", "row 456", "row 789"]
    assert done.stderr.count(" --> ask.py:") == 3
    assert "1000 rows" in done.stderr


@sgl.tool
def kind(word: str) -> str:
    if word == "broken":
        raise LookupError("no such page")
    if word == "hanging":
        GATE.wait()
    return "wordy" if word == "wordy" else "plain"


@sgl.tool
def is_wordy(word: str) -> bool:
    declared: Any = kind
    return bool(declared.function(word) == "wordy")


@sgl.function
def country(s: Any, word: str) -> Any:
    s += f"The capital of {word} is"
    s += sgl.gen("answer", max_tokens=4, temperature=0)
    if is_wordy(word):
        s += sgl.gen("more", max_tokens=40, temperature=0, ignore_eos=True)
    return s["answer"]


@pytest.mark.parametrize("planned", [False, True])
def test_rows_that_go_wrong_on_a_real_model(planned: bool, local: LocalBackend, clock: HandClock) -> None:
    given = ["France", "broken", "Spain", "hanging", "Italy", "wordy", "Greece", "Japan"]
    program: Any = LoadedPlan(country.compile(local).plan) if planned else country
    clock.advance(12, lambda: clock.begun == len(given) and clock.running == 1)
    results = program.run_batch([{"word": w} for w in given], backend=local, max_tokens=12, row_timeout=12)
    codes = [type(e).__name__ if (e := r.error()) and not hasattr(e, "code") else getattr(e, "code", None)
             for r in results]  # fmt: skip
    broken = "SGLC409" if planned else "LookupError"
    assert codes == [None, broken, None, "SGLC411", None, "SGLC408", None, None]
    good = [result for result in results if result.error() is None]
    assert all(isinstance(result.ret_value, str) and result.ret_value for result in good)
    assert says(good[0].ret_value, " Paris")
    assert results[5]["answer"]
    assert local.machine is not None
    until(lambda: local.machine is not None and local.machine.idle)
