"""How programs are run: alone, awaited, bound, in batches, stopped. On the oracle unless said."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import doctest
import gc
import pydoc
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.local import LocalBackend
from sglc.backends.scripted import ScriptedBackend
from sglc.cli import main
from sglc.cli.program_file import open_function
from sglc.errors import BackendError, RunError, UsageError
from sglc.execution.batch.runner import Interrupted
from sglc.execution.result import Result
from sglc.execution.unread import RUNNING
from sglc.ir.plan.segment import GenNode, Segment
from sglc.ir.target import Target
from tests.oracle_backend import OracleBackend
from tests.small_default import says
from tests.waiting import HANG_S, let_the_loop_run, press_ctrl_c, until

LONG: dict[str, Any] = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
ENDLESS: dict[str, Any] = {"max_tokens": 3_000, "ignore_eos": True}


@pytest.fixture
def oracle() -> Iterator[OracleBackend]:
    backend = OracleBackend()
    yield backend
    backend.oracle.gate.set()
    backend.oracle.step_s = 0.0
    backend.close()


@sgl.function
def pair(s: Any, left: str, right: str = "R") -> str:
    s += f"{left} and {right}:" + sgl.gen("x", **LONG)
    return left + right


# -- one run ---------------------------------------------------------------------------------------


def test_arun_gives_the_ended_result(oracle: OracleBackend) -> None:
    oracle.oracle.step_s = 0.002

    async def both() -> tuple[Result, Result]:
        return await asyncio.gather(
            pair.arun("a", backend=oracle, seed=1), pair.arun("b", backend=oracle, seed=2)
        )

    results = asyncio.run(both())
    assert [result.ended for result in results] == [True, True]
    assert [result.ret_value for result in results] == ["aR", "bR"]
    assert [result.seed for result in results] == [1, 2]


def test_arun_that_is_cancelled_stops_the_run(oracle: OracleBackend) -> None:
    oracle.oracle.step_s = 0.002

    @sgl.function
    def endless(s: Any) -> None:
        s += "a" + sgl.gen("x", **ENDLESS)

    async def end(limit: asyncio.Timeout) -> None:
        while not oracle.held:
            await asyncio.sleep(0.001)
        limit.reschedule(0)

    async def cancelled() -> None:
        async with asyncio.timeout(None) as limit:
            ending = asyncio.create_task(end(limit))
            await endless.arun(backend=oracle)
        await ending

    oracle.oracle.holds = lambda: "x" in oracle.submitted

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    oracle.settle()
    assert oracle.oracle.launched < 1_000


class Hanging(ScriptedBackend):
    """Its start hangs, as that of a server which does not answer, until `gate` is set."""

    def __init__(self) -> None:
        super().__init__(lambda _: "said")
        self.gate, self.starting, self.started = threading.Event(), threading.Event(), threading.Event()

    def start(self) -> None:
        self.starting.set()
        self.gate.wait(5)
        self.started.set()


WHO: contextvars.ContextVar[str] = contextvars.ContextVar("WHO", default="nobody")


@sgl.function
def whose(s: Any, q: str) -> str:
    s += q + sgl.gen("x", **LONG)
    return WHO.get()


def test_arun_leaves_the_loop_to_others_while_the_back_end_starts() -> None:
    backend = Hanging()

    async def main() -> Result:
        WHO.set("me")
        running = asyncio.create_task(whose.arun("q", backend=backend))
        while not backend.starting.is_set():
            await asyncio.sleep(0)
        assert not backend.started.is_set()  # this goes on before that has ended
        backend.gate.set()
        return await running

    result = asyncio.run(main())
    assert (result["x"], result.ret_value) == ("said", "me")


def test_arun_that_is_cancelled_while_the_back_end_starts_asks_for_nothing() -> None:
    backend = Hanging()

    async def main() -> None:
        running = asyncio.create_task(whose.arun("q", backend=backend))
        while not backend.starting.is_set():
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    before = set(RUNNING)
    asyncio.run(main())
    assert not backend.started.is_set()
    backend.gate.set()
    until(backend.started.is_set)
    until(lambda: set(RUNNING) <= before)
    let_the_loop_run()
    assert backend.calls == 0


def test_the_time_of_arun_goes_on_while_the_back_end_starts() -> None:
    backend = Hanging()
    result = asyncio.run(whose.arun("q", backend=backend, timeout=0.05))
    error = result.error()
    assert isinstance(error, RunError)
    assert error.code == "SGLC411"
    assert not backend.started.is_set()
    backend.gate.set()
    until(backend.started.is_set)
    let_the_loop_run()
    assert backend.calls == 0


def test_arun_raises_what_the_start_of_the_back_end_raises() -> None:
    with pytest.raises(BackendError, match="SGLC547"):
        asyncio.run(whose.arun("q", backend="http://127.0.0.1:1", timeout=60))


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_ctrl_c_in_a_body_in_the_main_thread_is_raised_by_run(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = ScriptedBackend(lambda _: "said")

    def body(s: Any) -> None:
        s += "a" + sgl.gen("x", **LONG)
        assert s["x"]
        signal.raise_signal(signal.SIGINT)
        s += sgl.gen("y", **LONG)

    async def awaiting(s: Any) -> None:
        body(s)
        await asyncio.sleep(0)

    program = sgl.function(body if kind == "plain" else awaiting)
    before = set(RUNNING)
    with pytest.raises(KeyboardInterrupt):
        program.run(backend=backend, use_thread=False)
    let_the_loop_run()
    assert set(RUNNING) <= before
    assert backend.calls == 1
    gc.collect()
    assert not capsys.readouterr().err


def test_a_batch_in_a_run_that_is_stopped_begins_no_row_more_and_is_silent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    backend = ScriptedBackend(lambda _: "said", word_s=1_000)
    began, told = threading.Event(), list[str]()
    ended = threading.Event()

    @sgl.function
    def leaf(s: Any, q: str) -> None:
        s += q + sgl.gen("x", **LONG)

    @sgl.tool
    def many(q: str) -> str:
        began.set()
        try:
            leaf.run_batch([(f"{q}{row}",) for row in range(50)], backend=backend, num_threads=2)
        except RunError as error:
            told.append(error.code)
        finally:
            ended.set()
        return "all"

    @sgl.function
    def program(s: Any, q: str) -> None:
        s += many(q) + sgl.gen("y", **LONG)

    before = set(RUNNING)
    result = program.run("q", backend=backend)
    assert began.wait(HANG_S)
    until(lambda: len(set(RUNNING) - before) == 3)  # the run, and two rows
    result.stop()
    assert ended.wait(HANG_S)
    assert told == ["SGLC407"]
    until(lambda: set(RUNNING) <= before)
    result.sync()
    gc.collect()
    assert not capsys.readouterr().err


def test_an_async_program_runs(oracle: OracleBackend) -> None:
    async def tool(text: str) -> str:
        await asyncio.sleep(0)
        return text.upper()

    @sgl.function
    async def program(s: Any, word: str) -> list[str]:
        s += word + sgl.gen("x", **LONG)
        first, second = await asyncio.gather(tool(s["x"]), tool(word))
        s += first + sgl.gen("y", **LONG)
        return [first, second]

    result = program.run("ab", backend=oracle)
    assert result.ret_value == [result["x"].upper(), "AB"]
    assert result.text() == "ab" + result["x"] + result["x"].upper() + result["y"]
    rows = program.run_batch([("a",), ("b",)], backend=oracle)
    assert [row.ret_value[1] for row in rows] == ["A", "B"]


def test_an_async_program_that_raises_keeps_its_error(oracle: OracleBackend) -> None:
    @sgl.function
    async def program(s: Any) -> None:
        s += "a" + sgl.gen("x", **LONG)
        assert s["x"]
        await asyncio.sleep(0)
        raise ZeroDivisionError

    result = program.run(backend=oracle)
    assert isinstance(result.error(), ZeroDivisionError)
    assert result["x"]


def test_every_kind_of_parameter_is_passed(oracle: OracleBackend) -> None:
    @sgl.function
    def program(s: Any, a: str, /, b: str, *rest: str, c: str = "C", **named: str) -> Any:
        s += "a" + sgl.gen("x", **LONG)
        return a, b, rest, c, named

    assert program.run("1", "2", "3", "4", d="5", backend=oracle).ret_value == (
        "1",
        "2",
        ("3", "4"),
        "C",
        {"d": "5"},
    )


def test_a_parameter_may_be_called_self(oracle: OracleBackend) -> None:
    class Debater:
        name = "Ann"

        @sgl.function
        def speak(s, self: Any) -> Any:  # the prompt comes first
            s += self.name + sgl.gen("word")

    result = Debater.speak.run(self=Debater(), backend=oracle)
    assert result.text() == "Ann" + result["word"]


def test_a_body_sees_the_caller_s_context(oracle: OracleBackend) -> None:
    user = contextvars.ContextVar("user", default="nobody")

    @sgl.function
    def program(s: Any) -> str:
        return user.get()

    user.set("alice")
    assert program.run(backend=oracle).ret_value == "alice"
    assert program.run_batch([{}], backend=oracle)[0].ret_value == "alice"


@sgl.function
def documented(s: Any, question: str) -> str:
    """Ask.

    >>> documented.__name__
    'documented'
    """
    s += question
    return question


def test_a_program_is_documented_as_its_function_is() -> None:
    (examples,) = doctest.DocTestFinder().find(documented, "documented", sys.modules[__name__])
    assert doctest.DocTestRunner().run(examples) == (0, 1)
    found = doctest.DocTestFinder().find(sys.modules[__name__])
    assert [test.name for test in found if test.examples] == [f"{__name__}.documented"]
    for program in (documented, documented.bind(question="?")):
        assert (program.__module__, program.__qualname__) == (__name__, "documented")
        assert program.__annotations__ == documented.__wrapped__.__annotations__
    assert "Ask." in pydoc.render_doc(documented)


# -- bind, cache -----------------------------------------------------------------------------------


def test_bound_arguments_win(oracle: OracleBackend) -> None:
    bound = pair.bind(right="bound")
    assert bound.run("a", backend=oracle).ret_value == "abound"
    assert bound.run("a", right="called", backend=oracle).ret_value == "abound"
    assert bound.run("a", "called", backend=oracle).ret_value == "abound"
    assert bound.bind(left="L").run(backend=oracle).ret_value == "Lbound"
    assert pair.run("a", backend=oracle).ret_value == "aR"


def test_b9_bind_writes_into_no_row_and_loses_nothing(oracle: OracleBackend) -> None:
    """SGLang writes bound values into the caller's rows, and a second `bind` keeps not everything."""
    rows: list[Any] = [{"left": "a"}, {"left": "b", "right": "row"}, ("c",), ["d", "row"]]
    before = copy.deepcopy(rows)
    bound = pair.bind(left="L").bind(right="bound")
    results = bound.run_batch(rows, backend=oracle, seed=3)
    assert rows == before
    assert [result.ret_value for result in results] == ["Lbound"] * 4
    assert bound.__name__ == "pair"
    assert bound.definition == pair.definition


def test_binding_an_unknown_name_is_an_error() -> None:
    with pytest.raises(UsageError, match="no parameter `up`") as caught:
        pair.bind(up="x")
    assert caught.value.code == "SGLC021"


def test_a_bound_text_is_traced_as_a_constant() -> None:
    from sglc.ir.text.printer import to_text

    text = to_text(pair.bind(left="LEFT").trace())
    assert "LEFT" in text
    assert "left" not in text
    assert "def pair(right: arg('right'" in text


@sgl.function
def tutor(s: Any, question: str) -> None:
    s += sgl.system("You are a patient tutor of mathematics.")
    s += sgl.user(f"The question is: {question}")
    s += sgl.assistant(sgl.gen("answer", **LONG))


def test_cache_computes_what_all_runs_begin_with(oracle: OracleBackend) -> None:
    cold = OracleBackend()
    (call,) = tutor.run("one?", backend=cold).calls
    assert call.usage.cached == 0
    cold.close()

    tutor.cache(oracle)
    (call,) = tutor.run("one?", backend=oracle).calls
    tokenizer = oracle.target.tokenizer
    assert tokenizer is not None
    shared = tokenizer.decode(call.prompt_ids[: call.usage.cached])
    assert shared.endswith("The question is: ")


def test_cache_has_nothing_to_do_without_a_common_beginning(
    oracle: OracleBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    @sgl.function
    def program(s: Any, question: str) -> None:
        s += question + sgl.gen("x", **LONG)

    def submit(self: LocalBackend, segment: Segment) -> Any:
        raise AssertionError("nothing is to be submitted")

    monkeypatch.setattr(LocalBackend, "submit", submit)
    program.cache(oracle)


def test_flush_cache_forgets_prefixes(oracle: OracleBackend) -> None:
    sgl.flush_cache(oracle)  # nothing runs yet
    assert pair.run("a", backend=oracle).usage.cached == 0
    assert pair.run("a", backend=oracle).usage.cached > 0
    oracle.settle()
    assert sgl.get_server_info(oracle)["cached_pages"] > 0
    sgl.flush_cache(oracle)
    assert sgl.get_server_info(oracle)["cached_pages"] == 0
    assert pair.run("a", backend=oracle).usage.cached == 0


def test_server_info(oracle: OracleBackend) -> None:
    info = sgl.get_server_info(oracle)
    assert {key: info[key] for key in ("backend", "model", "device", "pages", "page_size", "max_rows")} == {
        "backend": "local", "model": "oracle", "device": "cpu", "pages": 8_000, "page_size": 4, "max_rows": 8,
    }  # fmt: skip
    assert info["free_pages"] == info["pages"]


def test_a_back_end_without_a_cache_says_so() -> None:
    class Bare:
        target = Target("bare")

        def start(self) -> None: ...

        def submit(self, segment: Segment) -> Any: ...

        def close(self) -> None: ...

    for call in (sgl.flush_cache, sgl.get_server_info):
        with pytest.raises(UsageError, match="`bare`") as caught:
            call(Bare())
        assert caught.value.code == "SGLC022"


def test_the_default_back_end_is_used(oracle: OracleBackend) -> None:
    sgl.set_default_backend(oracle)
    try:
        result = pair.run("a").sync()
        assert oracle.machine is not None
        assert oracle.machine.submits == 1
        assert sgl.get_server_info()["model"] == "oracle"
        assert result.error() is None
    finally:
        sgl.set_default_backend(None)


# -- meta data -------------------------------------------------------------------------------------


def test_meta_info_of_a_generation_and_a_choice(oracle: OracleBackend) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "ab" + sgl.gen("x", **LONG) + sgl.gen("many", n=2, stop="e", **LONG) + ":"
        s += sgl.select("y", choices=["yes", "no"])

    result = program.run(backend=oracle)
    generated = result.get_meta_info("x")
    assert generated is not None
    assert generated["prompt_tokens"] == 2
    assert generated["completion_tokens"] == LONG["max_tokens"]
    assert generated["finish_reason"] == {"type": "length", "length": LONG["max_tokens"]}
    (sample,) = result.calls[0].samples
    assert generated["output_token_logprobs"] == [
        (logprob, id_, None) for logprob, id_ in zip(sample.logprobs, sample.ids, strict=True)
    ]
    assert generated["site"]["name"] == "x"
    several = result.get_meta_info("many")
    assert several is not None
    assert [sample["text"] for sample in several["samples"]] == result["many"]
    chosen = result.get_meta_info("y")
    assert chosen is not None
    call = result.calls[-1]
    assert chosen["normalized_prompt_logprobs"] == list(call.scores)
    assert ["yes", "no"][chosen["choice"]] == result["y"]
    assert [len(scored) for scored in chosen["input_token_logprobs"]] == [3, 2]
    assert chosen["input_token_logprobs"][0][0] == (call.logprobs[0][0], call.choice_ids[0][0], None)


# -- failures --------------------------------------------------------------------------------------


def test_b1_nothing_hangs_after_an_error_of_the_back_end(oracle: OracleBackend) -> None:
    """SGLang's worker thread exits, and whatever is asked later waits for ever."""
    oracle.oracle.broken = lambda step: step.index == 5
    reached: list[str] = []

    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x", **LONG)
        s += " more"
        for _ in range(2):
            with pytest.raises(BackendError, match="on fire"):
                s["x"]
            reached.append("read")
        reached.append(s.text())
        oracle.oracle.broken = lambda step: False
        s += " and more" + sgl.gen("y", **LONG)  # after the error: it is made, and nothing blocks
        reached.append(s["y"].lower())

    result = program.run(backend=oracle, stream=True)
    assert result.error() is None
    assert reached == ["read", "read", "a more", result["y"].lower()]
    assert "".join(result.text_iter()) == result.text()
    assert result.text().endswith(f" more and more{result['y']}")
    with pytest.raises(BackendError, match="on fire"):
        result["x"]
    # The same back end goes on.
    assert pair.run("a", backend=oracle)["x"]


def test_b2_an_error_is_never_swallowed(oracle: OracleBackend) -> None:
    """SGLang prints a warning and returns half a text; a failed branch shifts the others' places."""

    @sgl.function
    def program(s: Any, number: int) -> int:
        s += "row" + sgl.gen("x", **LONG)
        forks = s.fork(3)
        forks += lambda i: "b" * (5_000 if number == i == 1 else 1)
        forks += lambda i: str(i) + sgl.gen("branch", **LONG)
        forks.join()
        return 10 // (number - 2)

    results = program.run_batch([{"number": i} for i in range(4)], backend=oracle)
    assert [type(result.error()) for result in results] == [type(None), RunError, ZeroDivisionError, type(None)]
    with pytest.raises(RunError):
        results[1].text()
    with pytest.raises(ZeroDivisionError):
        results[2].text()
    good, failed = results[0]["branch"], results[1]["branch"]
    assert failed == [good[0], None, good[2]]
    assert results[3].ret_value == 10


def test_b8_a_list_of_stops_is_left_alone(oracle: OracleBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang extends the caller's list by the chat template's stops, at every call."""
    stops = ["zz", "yy"]
    seen: list[tuple[str, ...]] = []
    submit = LocalBackend.submit

    def watched(self: LocalBackend, segment: Segment) -> Any:
        seen.extend(node.sampling.stop for node in segment.nodes if isinstance(node, GenNode))
        return submit(self, segment)

    monkeypatch.setattr(LocalBackend, "submit", watched)

    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("Hi") + sgl.assistant(sgl.gen("x", stop=stops, **LONG))
        s += sgl.user("Hi") + sgl.assistant(sgl.gen("y", **LONG))

    for _ in range(3):
        program.run(backend=oracle, stop=stops).sync()
    assert stops == ["zz", "yy"]
    assert seen == [("zz", "yy")] * 6


# -- batches ---------------------------------------------------------------------------------------


def test_rows_are_dicts_and_tuples_mixed(oracle: OracleBackend) -> None:
    rows: list[Any] = [{"left": "a"}, ("b",), ["c", "r"], {"left": "d", "right": "e"}]
    results = pair.run_batch(rows, backend=oracle)
    assert [result.ret_value for result in results] == ["aR", "bR", "cr", "de"]
    assert [result.row for result in results] == [0, 1, 2, 3]


@pytest.mark.parametrize("row", [("a", "b", "c"), {"up": "a"}, "ab", 3])
def test_a_row_that_does_not_fit_stops_the_batch_before_it_begins(oracle: OracleBackend, row: Any) -> None:
    for start in (pair.run_batch, pair.stream_batch):
        with pytest.raises(UsageError) as caught:
            start([{"left": "a"}, row], backend=oracle)
        assert "row 1 of the batch" in caught.value.note
    assert oracle.machine is None


@pytest.mark.parametrize("number", [0, -1, "many", 2.5])
def test_a_wrong_number_of_threads_is_refused(oracle: OracleBackend, number: Any) -> None:
    with pytest.raises(UsageError, match="num_threads") as caught:
        pair.run_batch([{"left": "a"}], backend=oracle, num_threads=number)
    assert caught.value.code == "SGLC023"


def test_generator_style_gives_rows_in_order_as_they_end(oracle: OracleBackend) -> None:
    gate = threading.Event()

    @sgl.function
    def program(s: Any, number: int) -> int:
        if number == 2:
            gate.wait()
        return number

    rows = [(i,) for i in range(4)]
    results = program.run_batch(rows, backend=oracle, generator_style=True)
    assert [next(results).ret_value, next(results).ret_value] == [0, 1]
    gate.set()
    assert [result.ret_value for result in results] == [2, 3]
    assert list(program.run_batch([], backend=oracle, generator_style=True)) == []


def test_a_row_that_sleeps_delays_no_other_and_threads_are_bounded(oracle: OracleBackend) -> None:
    window, count = 4, 64
    others = threading.Semaphore(0)
    lock = threading.Lock()
    live = most_live = most_threads = 0
    ended: list[int] = []
    before = threading.active_count()

    @sgl.function
    def program(s: Any, number: int) -> int:
        nonlocal live, most_live, most_threads
        with lock:
            live += 1
            most_live = max(most_live, live)
            most_threads = max(most_threads, threading.active_count() - before)
        if number == 0:  # sleeps until all others have ended
            assert all(others.acquire(timeout=HANG_S) for _ in range(count - 1))
        s += f"{number}:" + sgl.gen("x", **LONG)
        assert s["x"]
        with lock:
            live -= 1
            ended.append(number)
        others.release()
        return number

    results = program.run_batch([(i,) for i in range(count)], backend=oracle, num_threads=window)
    assert [result.ret_value for result in results] == list(range(count))
    assert ended[-1] == 0
    assert most_live == window
    assert most_threads <= window + 2  # the runtime's thread and the executor's


def test_the_window_is_kept_full(oracle: OracleBackend) -> None:
    """Work-conserving: with places free, no row waits for one that began before it."""
    barrier = threading.Barrier(3, timeout=HANG_S)  # passes when rows 1, 2, 3, then 4, 5, 6 are live at once
    passed = threading.Semaphore(0)

    @sgl.function
    def program(s: Any, number: int) -> None:
        if number:
            barrier.wait()
            passed.release()
        else:
            assert all(passed.acquire(timeout=HANG_S) for _ in range(6))  # row 0 ends last

    results = program.run_batch([(i,) for i in range(7)], backend=oracle, num_threads=4)
    assert [result.error() for result in results] == [None] * 7


# -- stopping --------------------------------------------------------------------------------------


@sgl.function
def two_parts(s: Any, word: str) -> None:
    s += word + sgl.gen("x", **LONG)
    assert s["x"]
    s += "then" + sgl.gen("y", **ENDLESS)


def test_stop_ends_generations_and_keeps_what_there_was(oracle: OracleBackend) -> None:
    oracle.oracle.step_s = 0.001
    result = two_parts.run("a", backend=oracle, stream=True)
    reader = result.text_iter("y")
    first = next(reader)
    result.stop()
    rest: list[str] = []
    with pytest.raises(RunError, match="was stopped") as caught:
        rest.extend(reader)
    assert caught.value.code == "SGLC407"
    oracle.settle()
    assert oracle.oracle.launched < 1_000
    assert len(result["x"]) > 10
    assert result.partial_text.startswith("a" + result["x"] + "then" + first)
    with pytest.raises(RunError, match="was stopped"):
        assert result["y"]


def test_a_stopped_run_launches_nothing_more(oracle: OracleBackend) -> None:
    gate = threading.Event()

    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x", **LONG)
        assert s["x"]
        gate.wait()
        s += "b" + sgl.gen("y", **LONG)

    result = program.run(backend=oracle)
    assert result["x"]
    result.stop()
    gate.set()
    error = result.error()
    assert isinstance(error, RunError)
    assert error.code == "SGLC407"
    assert len(result.calls) == 1
    oracle.settle()
    assert sgl.get_server_info(oracle)["running_rows"] == 0


def test_closing_a_batch_stops_its_rows(oracle: OracleBackend) -> None:
    oracle.oracle.step_s = 0.001
    oracle.oracle.holds = lambda: oracle.submitted.count("y") == 4

    @sgl.function
    def program(s: Any, number: int) -> None:
        began.append(number)
        s += "a" + sgl.gen("y" if number else "x", **(ENDLESS if number else LONG))

    began: list[int] = []
    results = program.stream_batch([(i,) for i in range(20)], backend=oracle, num_threads=4)
    assert next(results).error() is None
    results.close()  # type: ignore[attr-defined]
    oracle.settle()
    assert oracle.oracle.launched < 1_000
    assert len(began) < 10


def test_ctrl_c_while_a_result_is_read_stops_the_run(oracle: OracleBackend) -> None:
    oracle.oracle.step_s = 0.001
    oracle.oracle.holds = lambda: "y" in oracle.submitted
    result = two_parts.run("a", backend=oracle)
    assert result["x"]
    press_ctrl_c(lambda: oracle.held)
    with pytest.raises(KeyboardInterrupt):
        result.text()
    oracle.settle()
    assert oracle.oracle.launched < 2_000
    assert result["x"]
    assert "y" not in result


def test_ctrl_c_stops_a_batch_and_keeps_the_rows_that_had_ended(oracle: OracleBackend) -> None:
    oracle.oracle.step_s = 0.001

    @sgl.function
    def program(s: Any, number: int) -> int:
        name = "x" if number < 2 else "y"
        s += f"{number}" + sgl.gen(name, **(ENDLESS if number > 1 else LONG))
        assert s[name]
        return number

    oracle.oracle.holds = lambda: oracle.submitted.count("y") == 4  # both short rows have ended
    press_ctrl_c(lambda: oracle.held)
    with pytest.raises(Interrupted) as caught:
        program.run_batch([(i,) for i in range(9)], backend=oracle, num_threads=4)
    oracle.settle()
    assert [result.ret_value for result in caught.value.results] == [0, 1]
    assert oracle.oracle.launched < 2_000
    until(
        lambda: not any(thread.name == "sglc-program" for thread in threading.enumerate()),
        "rows of a stopped batch go on",
    )


# -- on the real model -----------------------------------------------------------------------------


def test_the_real_model_finds_its_beginning_computed(local: LocalBackend) -> None:
    @sgl.function
    def program(s: Any, question: str) -> None:
        s += sgl.system("You answer in exactly one word, whatever you are asked about geography.")
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen("answer", max_tokens=8, temperature=0))

    local.flush_cache()
    program.cache(local)
    result = program.run("What is the capital of France?", backend=local)
    assert says(result["answer"], "Paris")
    (call,) = result.calls
    tokenizer = local.target.tokenizer
    assert tokenizer is not None
    cached = tokenizer.decode(call.prompt_ids[: call.usage.cached])
    assert "whatever you are asked about geography." in cached
    assert "capital" not in cached
    info = sgl.get_server_info(local)
    assert info["model"] == "smollm2"
    assert (info["device"], info["dtype"]) == ("cpu", "float32")
    assert info["free_pages"] < info["pages"]


def test_the_real_model_runs_an_async_program(local: LocalBackend) -> None:
    @sgl.function
    async def program(s: Any, question: str) -> str:
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen("answer", max_tokens=8, temperature=0))
        await asyncio.sleep(0)
        answer: str = s["answer"]
        return answer.strip()

    result = asyncio.run(program.arun("What is the capital of France?", backend=local))
    assert says(result.ret_value, "Paris")


def test_a_compiled_function_runs_on_its_back_end(oracle: OracleBackend) -> None:
    @sgl.function
    def expand(s: Any, tip: str) -> None:
        s += f"Expand: {tip}" + sgl.gen("more", max_tokens=3, temperature=0)

    @sgl.function
    def program(s: Any, topic: str) -> None:
        s += f"A tip for {topic}:" + sgl.gen("tip", max_tokens=4)
        branch = expand(tip=s["tip"])
        s += "So: " + branch["more"]

    compiled = program.compile(backend=oracle, temperature=0)
    assert compiled.plan.names == ("topic",)
    result = compiled.run(topic="tea")
    assert result.text() == program.run(topic="tea", backend=oracle, temperature=0).text()
    rows = list(compiled.run_batch([("tea",), ("rice",)]))
    assert rows[0]["tip"] == result["tip"]
    assert len(rows) == 2


def test_programs_go_by_their_names_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "names_made.py").write_text(
        "import sglc as sgl\n\n"
        "def made(begin):\n    @sgl.function\n    def program(s):\n        s += begin\n    return program\n\n"
        "first, second = made('a'), made('b')\n"
    )
    (tmp_path / "names_taken.py").write_text("from names_made import second\n")
    backend = ScriptedBackend(lambda asked: None)
    for spec, text in (
        ("names_made.py:first", "a"), ("names_made.py:second", "b"),
        ("names_taken.py:second", "b"), ("names_taken.py", "b"),
    ):  # fmt: skip
        assert open_function(str(tmp_path / spec)).run(backend=backend).text() == text


def test_a_file_may_name_its_encoding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = (
        "# -*- coding: latin-1 -*-\nimport sglc\n@sglc.function\ndef f(s):\n    s += 'café' + sglc.gen('a')\n"
    )
    (tmp_path / "f.py").write_bytes(source.encode("latin-1"))
    (tmp_path / "script.json").write_text('[{"text": "!"}]')
    command = ["run", str(tmp_path / "f.py"), "--backend", f"scripted:{tmp_path / 'script.json'}"]
    assert main(command) == 0
    assert capsys.readouterr().out == "café!\n"
    (tmp_path / "f.py").write_bytes(source.replace("latin-1", "utf-8").encode("latin-1"))
    assert main(command) == 2
    assert "error[SGLC002]" in capsys.readouterr().err
