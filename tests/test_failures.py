"""Everything that can go wrong, in every way of running: the right error, and everything else goes on.

One row fails: alone, streamed, or as the third of five, as a function and as a plan. What was computed
before is kept, the other rows are whole, and nothing stays behind: no stream, no thread, no work.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.api.plan import LoadedPlan
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.errors import BackendError, RunError, SglcError
from sglc.execution.batch.runner import Interrupted
from sglc.execution.result import Result
from sglc.ir.plan.events import Event, NodeFailed, batches_of
from sglc.ir.plan.segment import ExtendNode, GenNode, Segment
from sglc.runtime.step import Step
from tests.frontend.programs import from_file
from tests.oracle_backend import OracleBackend
from tests.waiting import HandClock, press_ctrl_c, until

BAD, ROWS = 2, 5
GATE = threading.Event()  # what hangs, hangs until the end of the test
WAITING = threading.Event()  # set by what hangs


@pytest.fixture(autouse=True)
def gate() -> Iterator[None]:
    GATE.clear()
    WAITING.clear()
    yield
    GATE.set()


@sgl.tool
def act(word: str) -> str:
    if word == "raises":
        raise LookupError("no such page")
    if word == "hangs":
        WAITING.set()
        GATE.wait()
    return f"[{word}]"


@sgl.function
def work(s: Any, word: str) -> Any:
    s += "Do" + sgl.gen("first")
    if sgl.eq(s["first"], ""):
        s += "nothing"
    s += act(word) + sgl.gen("second", max_tokens=100)
    return s["second"]


class Scripted(ScriptedBackend):
    """Fails where a prompt says so: `[dies]` breaks it down, and behind `[unanswered]` it has no answer."""

    def __init__(self) -> None:
        super().__init__(self.say)
        self.firsts = 0  # segments that gave their run its `first`

    def say(self, asked: Asked) -> str | None:
        if asked.site.name == "first":
            return " one"
        if "[unanswered]" in asked.prompt:
            return None
        return " much" * (40 if "[long]" in asked.prompt else 2)

    async def submit(self, segment: Segment, *, streams: bool = True) -> Any:
        texts = [part for node in segment.nodes if isinstance(node, ExtendNode) for part in node.parts]
        if any(isinstance(text, str) and "[dies]" in text for text in texts):
            raise ConnectionError("gone")
        async for event in super().submit(segment, streams=streams):
            yield event
        self.firsts += any(isinstance(node, GenNode) and node.site.name == "first" for node in segment.nodes)


KINDS = {
    "raises": ({"SGLC409", "LookupError"}, {}),
    "unanswered": ({"SGLC521"}, {}),
    "dies": ({"SGLC502"}, {}),
    "hangs": ({"SGLC411"}, {"timeout": 1.0}),
    "long": ({"SGLC408"}, {"max_tokens": 10}),
}


def one(program: Any, word: str, options: dict[str, Any]) -> list[Result]:
    return [program.run(word=word, **options).sync()]


def streamed(program: Any, word: str, options: dict[str, Any]) -> list[Result]:
    result = program.run(word=word, stream=True, **options)
    pieces, errors = [], []
    try:
        pieces += result.pieces()
    except Exception as error:
        errors.append(error)
    assert pieces[0][0].name == "first"
    assert errors == [result.error()]
    return [result]


def batch(program: Any, word: str, options: dict[str, Any]) -> list[Result]:
    own = {"row_timeout" if name == "timeout" else name: value for name, value in options.items()}
    results: list[Result] = program.run_batch(
        [{"word": word if i == BAD else f"w{i}"} for i in range(ROWS)], **own
    )
    return results


@pytest.mark.parametrize("planned", [False, True], ids=["function", "plan"])
@pytest.mark.parametrize("way", [one, streamed, batch])
@pytest.mark.parametrize("kind", KINDS)
def test_one_row_that_fails(
    kind: str, way: Callable[..., list[Result]], planned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(threading.enumerate())
    backend = Scripted()
    program: Any = LoadedPlan(work.compile(backend).plan) if planned else work
    codes, options = KINDS[kind]
    if kind == "hangs":  # its time is over when all others have ended, and it has its first text
        clock = HandClock(monkeypatch)
        count = ROWS if way is batch else 1
        clock.advance(1.0, lambda: WAITING.is_set() and backend.firsts == count and clock.running == 1)
    results = way(program, kind, {"backend": backend, **options})  # type: ignore[dict-item]
    bad = results[BAD if len(results) > 1 else 0]
    error = bad.error()
    assert error is not None
    assert (error.code if isinstance(error, SglcError) else type(error).__name__) in codes
    assert bad["first"] == " one"
    assert bad.variables["first"] == " one"
    for read in (lambda: bad.ret_value, bad.text, lambda: bad["second"]):
        with pytest.raises(type(error)):
            read()
    good = [result for result in results if result is not bad]
    assert [result.ret_value for result in good] == [" much much"] * (len(results) - 1)
    # Nothing stays behind, and the back end goes on.
    GATE.set()
    until(lambda: backend.kept == 0)
    until(lambda: not left(before))
    assert program.run(word="w", backend=backend).ret_value == " much much"


def left(before: set[threading.Thread]) -> list[str]:
    """Threads that were begun since, but the executor's own and those that wait for the next tool."""
    kept = {"sglc-executor", "sglc-python"}
    return [t.name for t in threading.enumerate() if t not in before and t.name not in kept]


# -- stopped from outside ----------------------------------------------------------------------------


@pytest.mark.parametrize("planned", [False, True], ids=["function", "plan"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_run_that_is_stopped_in_a_tool(planned: bool, stream: bool) -> None:
    backend = Scripted()
    program: Any = LoadedPlan(work.compile(backend).plan) if planned else work
    mode: dict[str, Any] = {} if planned else {"mode": "python"}
    result = program.run(word="hangs", backend=backend, stream=stream, **mode)
    until(WAITING.is_set)
    until(lambda: len(result.outputs.calls) == 1)  # a plan calls the tool beside the first generation
    until(lambda: backend.firsts == 1)
    result.stop()
    if not planned:  # a body ends when its Python does
        assert not result.ended
        GATE.set()
    error = result.error()
    assert isinstance(error, RunError)
    assert error.code == "SGLC407"
    assert dict(result.variables) == {"first": " one"}
    assert backend.calls == 1
    until(lambda: backend.kept == 0)


@sgl.function
def endless(s: Any, word: str) -> Any:
    s += word + sgl.gen("x", max_tokens=4, ignore_eos=True)
    if sgl.eq(word, "long"):
        s += "b" + sgl.gen("y", max_tokens=3_000, ignore_eos=True)
    return s["x"]


def test_ctrl_c_while_a_plan_runs() -> None:
    oracle = OracleBackend(step_s=0.001)
    plan = LoadedPlan(endless.compile(oracle).plan)
    oracle.oracle.holds = lambda: "y" in oracle.submitted
    result = plan.run(word="long", backend=oracle)
    press_ctrl_c(lambda: oracle.held)
    with pytest.raises(KeyboardInterrupt):
        result.sync()
    oracle.settle()
    until(lambda: result.ended)
    assert oracle.oracle.launched < 2_000
    assert [call.usage.completion for call in result.calls] == [4]
    assert result.error() is not None
    oracle.close()


def test_ctrl_c_while_a_batch_of_a_plan_runs() -> None:
    oracle = OracleBackend(step_s=0.001)
    plan = LoadedPlan(endless.compile(oracle).plan)
    rows = [{"word": "short" if i < 3 else "long"} for i in range(9)]
    oracle.oracle.holds = lambda: oracle.submitted.count("y") == 4  # so the three short ones have ended
    press_ctrl_c(lambda: oracle.held)
    with pytest.raises(Interrupted) as caught:
        plan.run_batch(rows, backend=oracle, num_threads=4)
    oracle.settle()
    assert oracle.oracle.launched < 2_500
    done = [result for result in caught.value.results if result.error() is None]
    assert [result.row for result in done] == [0, 1, 2]
    assert all(result.ret_value == result["x"] for result in done)
    machine = oracle.machine
    assert machine is not None
    until(lambda: machine._kept.empty)  # rows give back what they kept when their stop has come to them
    oracle.close()


def test_closing_a_batch_of_a_plan_stops_its_rows() -> None:
    oracle = OracleBackend(step_s=0.001)
    plan = LoadedPlan(endless.compile(oracle).plan)
    rows = [{"word": "short" if i == 0 else "long"} for i in range(20)]
    oracle.oracle.holds = lambda: oracle.submitted.count("y") == 4
    results = plan.stream_batch(rows, backend=oracle, num_threads=4)
    assert next(results).error() is None
    results.close()  # type: ignore[attr-defined]
    oracle.settle()
    assert oracle.oracle.launched < 1_500
    oracle.close()


def test_the_window_of_a_plan_is_bounded_and_kept_full() -> None:
    live, most = [0], [0]
    lock = threading.Lock()

    def count(word: str) -> str:
        with lock:
            live[0] += 1
            most[0] = max(most[0], live[0])
        if word in {"w0", "w1", "w2", "w3"}:
            until(lambda: most[0] >= 4)
        if word == "w0":
            until(lambda: len(done) >= 8)  # the first row delays no other
        with lock:
            live[0] -= 1
            done.append(word)
        return word

    done: list[str] = []
    backend = Scripted()
    plan = LoadedPlan(work.compile(backend).plan, {"act": count})
    results = plan.run_batch([{"word": f"w{i}"} for i in range(40)], backend=backend, num_threads=4)
    assert [result.error() for result in results] == [None] * 40
    assert most[0] == 4
    assert done.index("w0") >= 8
    assert [result.row for result in results] == list(range(40))


@pytest.mark.timeout(60)  # who asks and is not answered waits for ever
def test_a_question_that_fails_is_answered() -> None:
    backend = OracleBackend()
    assert backend.server_info()["pages"] == 8_000
    del backend.oracle.pages  # what it is asked for next
    # The first question breaks the runtime, and another one cannot be begun from that oracle.
    for code, words in (("SGLC504", "the runtime failed: `AttributeError`"), ("SGLC501", "cannot be loaded")):
        with pytest.raises(SglcError, match=words) as caught:
            backend.server_info()
        assert caught.value.code == code


def test_a_runtime_in_a_thread_that_breaks_is_begun_again() -> None:
    backend = OracleBackend()

    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x", max_tokens=3)

    def broken(step: Step) -> bool:
        raise AssertionError("a fault of the runtime")

    before = program.run(backend=backend, seed=1)["x"]
    for _ in range(2):
        backend.oracle.broken = broken
        error = program.run(backend=backend, seed=1).error()
        assert isinstance(error, BackendError)
        assert error.code == "SGLC504"
        assert program.run(backend=backend, seed=1)["x"] == before
    backend.close()


class AfterTheNext(ScriptedBackend):
    """Says that `bad` has failed when the program has gone on behind it already, and first of all then."""

    def __init__(self) -> None:
        super().__init__(lambda asked: None if asked.site.name == "bad" else "fine")
        self.segments = 0

    async def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        self.segments += 1
        if self.segments == 2:
            await asyncio.sleep(0.05)  # the failure of the first is told before
        async for batch in batches_of(super().submit(segment, streams=streams)):
            for event in batch:
                while isinstance(event, NodeFailed) and self.segments < 2:
                    await asyncio.sleep(0.001)
                yield event


@sgl.function
def goes_on_behind_a_failure(s: Any) -> None:
    s += sgl.gen("good")
    s += sgl.gen("bad")
    if len(s["good"]) == 4:
        s += sgl.gen("next")
        s += s["next"].upper()


def test_what_goes_on_behind_a_failure_tells_of_it() -> None:
    result = goes_on_behind_a_failure.run(backend=AfterTheNext(), mode="python")
    error = result.error()
    assert isinstance(error, SglcError)
    assert (error.code, error.loc and error.loc.line) == ("SGLC521", _line_of(goes_on_behind_a_failure) + 2)


def _line_of(program: sgl.Function) -> int:
    return program.definition.loc.line


@pytest.mark.parametrize("mode", ["python", "plan"])
@pytest.mark.parametrize("read", ["text", "error"])
def test_the_place_of_an_error_is_where_the_program_raised_it(mode: Any, read: str, tmp_path: Path) -> None:
    """Whoever reads the result raises the error again, from a file of his own."""
    source = """
        import sglc as sgl
        def program(s):
            s += "Q: " + sgl.gen("x")
            if s["x"] == "wrong":
                raise ValueError("it is wrong")
    """
    program = from_file(tmp_path, source)
    result = program.run(backend=ScriptedBackend(lambda asked: "wrong"), mode=mode)
    if read == "text":
        with pytest.raises(ValueError, match="it is wrong"):
            result.text()
    assert result.as_json()["error"]["loc"] == f"{tmp_path / 'program.py'}:6:9"
