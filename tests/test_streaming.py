"""Results while they are made: nothing lost, nobody spins, errors last. On the oracle unless said."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.local import LocalBackend
from sglc.backends.scripted import ScriptedBackend
from sglc.errors import BackendError, SglcError, UsageError
from sglc.execution.result import Result
from sglc.execution.unread import RUNNING
from tests.depth import few
from tests.oracle_backend import OracleBackend
from tests.small_default import says
from tests.waiting import HANG_S, until

SHORT: dict[str, Any] = {"max_tokens": 3}
LONG: dict[str, Any] = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def oracle() -> Iterator[OracleBackend]:
    backend = OracleBackend(step_s=0.002)
    yield backend
    backend.oracle.gate.set()
    backend.oracle.step_s = 0.0
    backend.close()


@sgl.function
def count(s: Any) -> None:
    s += "one, two," + sgl.gen("x", **LONG) + " end"


@sgl.function
def chat(s: Any, question: str) -> None:
    s += sgl.system("Be brief.")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("a", **LONG))
    assert s["a"]  # an observation: what follows is a second launch
    s += sgl.user("More.")
    s += sgl.assistant(sgl.gen("b", **LONG))


async def collected(result: Result, var: str | None, slow: OracleBackend | None = None) -> list[Any]:
    """What an asynchronous reader gets; a `slow` one lets that model make ten steps between two pieces."""
    pieces = []
    async for piece in result.text_async_iter(var):
        pieces.append(piece)
        if slow is not None:
            await asyncio.to_thread(slow.make_steps, 10, result)
    return pieces


@sgl.function
def threaded(s: Any) -> None:
    """Its own threads go on with a branch each, and with the prompt that these were forked from."""
    s += "A" + sgl.gen("a", **SHORT)
    forks = s.fork(3)

    def go_on(fork: Any) -> None:
        nonlocal s
        fork += "b" + sgl.gen("b", **SHORT)
        s += sgl.gen("p", **SHORT)
        assert fork["b"]

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(go_on, forks))
    s += sgl.gen("end", **SHORT)


@pytest.mark.parametrize("turn", few(range(12), 4))
def test_threads_of_a_program_go_on_with_prompts_that_they_share(turn: int) -> None:
    backend, said = ScriptedBackend(lambda asked: "4"), "A44444"
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        state = threaded.run(backend=backend, seed=turn, stream=True, timeout=HANG_S, mode="python")
        assert ["".join(state.text_iter()), "".join(state.text_iter("end"))] == [said, "4"]
        rows = threaded.stream_batch([{}] * 4, backend=backend, seed=turn, timeout=HANG_S, mode="python")
        assert ["".join(row.text_iter()) for row in rows] == [said] * 4
    finally:
        sys.setswitchinterval(before)


@sgl.function
def in_turns(s: Any) -> None:
    def go_on(number: int) -> None:
        nonlocal s
        for _ in range(3):
            s += sgl.user(f"{number}?") + sgl.assistant(sgl.gen("a", **SHORT))
            s.user(f"{number}!")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(go_on, range(4)))


@pytest.mark.parametrize("turn", few(range(12), 4))
def test_what_a_thread_appends_at_once_stands_together(turn: int) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        backend = ScriptedBackend(lambda asked: "4")
        state = in_turns.run(backend=backend, seed=turn, timeout=HANG_S, mode="python")
        turns = state.messages()
    finally:
        sys.setswitchinterval(before)
    assert len(turns) == 4 * 3 * 3
    for asked, answer in itertools.pairwise(turns):
        assert (asked["content"][-1:] == "?") == (answer["role"] == "assistant")


# -- nothing is lost -------------------------------------------------------------------------------


def test_b3_a_slow_reader_gets_everything(oracle: OracleBackend) -> None:
    """SGLang drops what comes while its consumer is busy."""
    result = count.run(backend=oracle, stream=True)
    pieces = []
    for piece in result.text_iter("x"):
        pieces.append(piece)
        oracle.make_steps(10, result)
    assert len(pieces) == len(result["x"]) > 10  # a character a piece
    assert "".join(pieces) == result["x"]


def test_b3_a_slow_reader_of_the_whole_text_gets_everything(oracle: OracleBackend) -> None:
    result = count.run(backend=oracle, stream=True)
    pieces = []
    for piece in result.text_iter():
        pieces.append(piece)
        oracle.make_steps(10, result)
    assert "".join(pieces) == "one, two," + result["x"] + " end" == result.text()


@pytest.mark.parametrize("var", ["x", None])
def test_b3_a_slow_coroutine_gets_everything(oracle: OracleBackend, var: str | None) -> None:
    result = count.run(backend=oracle, stream=True)
    pieces = asyncio.run(collected(result, var, oracle))
    assert len(pieces) > 10
    assert "".join(pieces) == (result["x"] if var else result.text())


def test_a_late_reader_gets_everything_and_again(oracle: OracleBackend) -> None:
    result = count.run(backend=oracle, stream=True).sync()
    for _ in range(2):
        assert "".join(result.text_iter("x")) == result["x"]
        assert "".join(result.text_iter()) == result.text()


def test_an_early_reader_waits_without_spinning(oracle: OracleBackend) -> None:
    """SGLang's `text_iter("x")` burns a core until `x` is submitted."""
    gate = threading.Event()

    @sgl.function
    def program(s: Any) -> None:
        gate.wait()
        s += "a" + sgl.gen("x", **LONG)

    result = program.run(backend=oracle, stream=True)
    threading.Timer(0.4, gate.set).start()
    before = time.thread_time()
    text = "".join(result.text_iter("x"))
    assert text == result["x"]
    assert time.thread_time() - before < 0.1

    gate.clear()
    result = program.run(backend=oracle, stream=True)
    threading.Timer(0.4, gate.set).start()
    before = time.thread_time()
    assert "".join(asyncio.run(collected(result, "x"))) == text
    assert time.thread_time() - before < 0.1


def test_readers_do_not_disturb_each_other(oracle: OracleBackend) -> None:
    result = chat.run("Hi", backend=oracle, stream=True)
    texts: dict[int, str] = {}

    def follow(number: int, var: str | None, steps: int) -> None:
        pieces = []
        for piece in result.text_iter(var):
            pieces.append(piece)
            oracle.make_steps(steps, result)
        texts[number] = "".join(pieces)

    kinds = [("a", 0), ("a", 3), ("b", 0), (None, 0), (None, 2)]
    threads = [threading.Thread(target=follow, args=(i, *kind)) for i, kind in enumerate(kinds)]
    for thread in threads:
        thread.start()

    async def both() -> tuple[list[Any], list[Any]]:
        return await asyncio.gather(collected(result, None), collected(result, "b", oracle))

    whole, second = asyncio.run(both())
    for thread in threads:
        thread.join()
    expected = {"a": result["a"], "b": result["b"], None: result.text()}
    assert texts == {i: expected[var] for i, (var, _) in enumerate(kinds)}
    assert ["".join(whole), "".join(second)] == [expected[None], expected["b"]]


# -- what comes, and when --------------------------------------------------------------------------


def test_the_text_comes_in_order_over_launches(oracle: OracleBackend) -> None:
    result = chat.run("Hi", backend=oracle, stream=True)
    text = "".join(result.text_iter())
    assert text == result.text()
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n")
    assert result["a"] + "<|im_end|>\n<|im_start|>user\nMore.<|im_end|>\n" in text
    assert text.endswith(result["b"] + "<|im_end|>\n")


def test_text_is_there_before_what_follows_is_computed(oracle: OracleBackend) -> None:
    oracle.oracle.gate.clear()
    result = count.run(backend=oracle, stream=True)
    pieces = result.text_iter()
    assert next(pieces) == "one, two,"  # while the model stands still
    assert not result.ended
    oracle.oracle.gate.set()
    assert "one, two," + "".join(pieces) == result.text()


def test_a_branch_is_no_part_of_the_text_but_its_variables_are_read(oracle: OracleBackend) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "a"
        forks = s.fork(2)
        forks += lambda i: str(i) + sgl.gen("x", **LONG)
        forks.join()
        s += "b" + sgl.gen("y", **LONG)
        s += " so " + s["y"]

    result = program.run(backend=oracle, stream=True)
    assert "".join(result.text_iter()) == "ab" + result["y"] + " so " + result["y"]
    assert list(result.text_iter("x")) == [result["x"]]
    assert len(result["x"]) == 2


def test_what_is_not_streamed_comes_whole_and_once(oracle: OracleBackend) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s["mine"] = {"k": 1}
        s["nothing"] = None
        s += "a" + sgl.select("choice", choices=["yes", "no"])
        with s.var_scope("scope"):
            s += " [" + sgl.gen("inner", **LONG) + "]"
        s += sgl.gen("many", n=3, **LONG | {"temperature": 1.0})

    result = program.run(backend=oracle, stream=True, seed=1)
    assert list(result.text_iter("choice")) == [result["choice"]]
    assert result["choice"] in ("yes", "no")
    assert list(result.text_iter("mine")) == [{"k": 1}]
    assert list(result.text_iter("nothing")) == [None]
    assert list(result.text_iter("scope")) == [" [" + result["inner"] + "]"]
    assert list(result.text_iter("many")) == [result["many"]]
    assert len(set(result["many"])) == 3
    assert result.text() == "a" + result["choice"] + result["scope"] + result["many"][0]
    assert "".join(result.text_iter()) == result.text()
    assert result.variables == {name: result[name] for name in result.variables}


def test_a_run_without_stream_gives_each_generation_whole(oracle: OracleBackend) -> None:
    result = count.run(backend=oracle)
    assert list(result.text_iter("x")) == [result["x"]]
    assert list(count.run(backend=oracle).text_iter()) == ["one, two,", result["x"], " end"]


def test_meta_data_comes_with_the_pieces(oracle: OracleBackend) -> None:
    result = count.run(backend=oracle, stream=True)

    async def pairs() -> list[tuple[Any, dict[str, Any]]]:
        return [pair async for pair in result.text_async_iter("x", return_meta_data=True)]

    got = asyncio.run(pairs())
    assert "".join(piece for piece, _ in got) == result["x"]
    assert [meta["finish_reason"] for _, meta in got[:-1]] == [None] * (len(got) - 1)
    whole = result.get_meta_info("x")
    assert whole is not None
    # Lists of all pieces add up to those of the whole; the rest comes with the last one.
    lists = [key for key in whole if key.startswith(("input_", "output_"))]
    for key in lists:
        assert [entry for _, meta in got for entry in meta[key]] == whole[key]
    assert all(got[-1][1][key] == whole[key] for key in whole if key not in lists)
    assert len(whole["output_token_logprobs"]) == LONG["max_tokens"]
    for piece, meta in got[:-1]:
        # One character is one id here; the three control tokens have none.
        assert len(piece) == sum(id_ > 2 for _, id_, _ in meta["output_token_logprobs"])


def test_meta_data_without_a_variable_is_refused(oracle: OracleBackend) -> None:
    result = count.run(backend=oracle, stream=True)

    async def first() -> Any:
        return await anext(result.text_async_iter(return_meta_data=True))

    with pytest.raises(UsageError, match="needs a variable") as caught:
        asyncio.run(first())
    assert caught.value.code == "SGLC024"


# -- ends and errors -------------------------------------------------------------------------------


def test_the_program_s_error_comes_after_everything(oracle: OracleBackend) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x", **LONG)
        assert s["x"]
        s += "never launched"
        raise ZeroDivisionError

    result = program.run(backend=oracle, stream=True)
    for whole in (True, False):
        pieces: list[str] = []
        with pytest.raises(ZeroDivisionError):
            pieces.extend(result.text_iter(None if whole else "y"))
        assert "".join(pieces) == ("a" + result["x"] if whole else "")
    assert "".join(result.text_iter("x")) == result["x"]  # what is whole is read without an error
    assert result.partial_text == "a" + result["x"]


def test_a_generation_that_fails_keeps_its_pieces(oracle: OracleBackend) -> None:
    oracle.oracle.broken = lambda step: step.index == 10
    result = count.run(backend=oracle, stream=True)
    for var, start in (("x", ""), (None, "one, two,")):
        pieces: list[str] = []
        with pytest.raises(BackendError, match="on fire"):
            pieces.extend(result.text_iter(var))
        text = "".join(pieces)
        assert text.startswith(start)
        assert 5 < len(text) - len(start) < LONG["max_tokens"]
        with pytest.raises(BackendError, match="on fire"):
            asyncio.run(collected(result, var))


def test_a_variable_that_never_comes_is_a_key_error(oracle: OracleBackend) -> None:
    result = count.run(backend=oracle, stream=True)
    for read in (
        lambda: list(result.text_iter("nope")),
        lambda: result["nope"],
        lambda: result.get_var("nope"),
    ):
        with pytest.raises(KeyError) as caught:
            read()
        assert isinstance(caught.value, SglcError)
        assert caught.value.message == "the program stored nothing under `nope`"
        assert caught.value.note == "stored: `x`"
        assert caught.value.loc is not None
    with pytest.raises(KeyError, match="nope"):
        asyncio.run(collected(result, "nope"))
    assert "nope" not in result
    assert "x" in result
    assert result.get_meta_info("nope") is None


# -- one variable before the end -------------------------------------------------------------------


def test_b4_a_variable_is_read_before_the_run_has_ended(oracle: OracleBackend) -> None:
    """SGLang blocks on a variable in several places that wait for something later; here nothing does."""
    gate = threading.Event()

    @sgl.function
    def program(s: Any) -> None:
        with s.user():
            s["mine"] = 7
            with s.var_scope("scope"):
                s += "a" + sgl.gen("x", **LONG) + "b"
                assert s["x"]  # inside its turn and its scope
        forks = s.fork(2)
        forks += sgl.gen("y", **LONG)
        forks.join()
        assert len(s["y"][1]) == LONG["max_tokens"]
        gate.wait()
        s += sgl.assistant(sgl.gen("late", **LONG))

    result = program.run(backend=oracle)
    assert result["mine"] == 7
    assert len(result["x"]) <= LONG["max_tokens"]
    assert len(result["y"]) == 2
    assert result["scope"] == "a" + result["x"] + "b"
    assert "x" in result
    meta = result.get_meta_info("x")
    assert meta is not None
    assert meta["completion_tokens"] == LONG["max_tokens"]
    assert not result.ended
    gate.set()
    assert result["late"]
    assert result["mine"] == 7


def test_the_newest_value_of_a_name_is_read(oracle: OracleBackend) -> None:
    gates = [threading.Event(), threading.Event()]

    @sgl.function
    def program(s: Any) -> list[str]:
        seen = []
        for gate in gates:
            s += "a" + sgl.gen("x", **LONG)
            seen.append(s["x"])
            gate.wait()
        return seen

    result = program.run(backend=oracle, stream=True)
    first = result["x"]
    assert "".join(result.text_iter("x")) == first
    gates[0].set()
    until(lambda: result["x"] != first or result.ended)
    second = result["x"]
    assert "".join(result.text_iter("x")) == second
    gates[1].set()
    assert result.ret_value == [first, second]


def test_a_reader_waits_for_the_launch_since_a_newer_value_may_take_the_name(oracle: OracleBackend) -> None:
    recorded, gate = threading.Event(), threading.Event()

    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x", **LONG)
        recorded.set()
        gate.wait()
        s += "b" + sgl.gen("x", **LONG)

    result = program.run(backend=oracle, stream=True)
    assert recorded.wait(20)
    threading.Timer(0.1, gate.set).start()
    text = "".join(result.text_iter("x"))
    assert text == result["x"]
    assert [call.samples[0].text == text for call in result.calls] == [False, True]


# -- `stream` --------------------------------------------------------------------------------------


def test_stream_gives_the_pieces_of_every_branch(oracle: OracleBackend) -> None:
    @sgl.function
    def program(s: Any, word: str) -> None:
        s += word
        forks = s.fork(2)
        forks += lambda i: str(i) + sgl.gen("x", **LONG)
        forks.join()
        s += sgl.select("y", choices=["p", "q"])

    pieces = list(program.stream("w", backend=oracle))
    made = program.run("w", backend=oracle)
    for i in range(2):
        of_branch = [text for site, text in pieces if site.name == "x" and site.fork == (i,)]
        assert "".join(of_branch) == made["x"][i]
        assert len(of_branch) > 10
    assert [text for site, text in pieces if site.name == "y"] == [made["y"]]
    branches = [site.fork for site, _ in pieces if site.name == "x"]
    assert branches != sorted(branches), "branches run side by side"


def test_stream_raises_at_its_end_and_stops_when_it_is_closed(oracle: OracleBackend) -> None:
    @sgl.function
    def failing(s: Any) -> None:
        s += "a" + sgl.gen("x", **LONG)
        assert s["x"]
        raise ZeroDivisionError

    pieces: list[Any] = []
    with pytest.raises(ZeroDivisionError):
        pieces.extend(failing.stream(backend=oracle))
    assert len(pieces) > 10

    @sgl.function
    def endless(s: Any) -> None:
        s += "a" + sgl.gen("x", max_tokens=3_000, ignore_eos=True)

    stream = endless.stream(backend=oracle)
    next(stream)
    assert not oracle.idle
    stream.close()  # type: ignore[attr-defined]
    oracle.settle()
    assert oracle.oracle.launched < 1_000


def test_a_stream_that_is_closed_before_its_first_piece_stops(oracle: OracleBackend) -> None:
    @sgl.function
    def endless(s: Any) -> None:
        s += "a" + sgl.gen("x", max_tokens=3_000, ignore_eos=True)

    oracle.oracle.holds = lambda: "x" in oracle.submitted
    before = set(RUNNING)
    endless.stream(backend=oracle).close()  # type: ignore[attr-defined]
    assert set(RUNNING) <= before
    endless.stream(backend=oracle)  # and is dropped
    assert set(RUNNING) <= before
    oracle.settle()
    assert oracle.oracle.launched < 1_000


def test_a_cancelled_reader_stops_the_run(oracle: OracleBackend) -> None:
    @sgl.function
    def endless(s: Any) -> None:
        s += "a" + sgl.gen("x", max_tokens=3_000, ignore_eos=True)

    async def main() -> Result:
        result = endless.run(backend=oracle)
        reading = asyncio.create_task(collected(result, "x"))
        await asyncio.sleep(0)  # it reads: a task that is cancelled before it began has asked for nothing
        while not oracle.held:
            await asyncio.sleep(0.001)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        return result

    oracle.oracle.holds = lambda: "x" in oracle.submitted
    result = asyncio.run(main())
    assert result not in RUNNING
    oracle.settle()
    error = result.error()
    assert isinstance(error, SglcError)
    assert error.code == "SGLC407"


# -- on the real model -----------------------------------------------------------------------------


def test_the_real_model_streams(local: LocalBackend) -> None:
    @sgl.function
    def program(s: Any, question: str) -> None:
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen("answer", max_tokens=12, temperature=0))

    result = program.run("What is the capital of France?", backend=local, stream=True)
    text = "".join(result.text_iter())
    pieces = list(result.text_iter("answer"))
    assert "".join(pieces) == result["answer"]
    assert says(result["answer"], "Paris")
    assert len(pieces) > 3
    assert text == result.text()
