"""Programs that call themselves, and runs in processes that were forked."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.errors import RunError, SglcError, UsageError
from sglc.frontend.locate import of_error
from sglc.frontend.tracing import trace
from tests.oracle_backend import OracleBackend
from tests.waiting import HANG_S

BACKEND = ScriptedBackend(lambda asked: " yes")


def deeper(times: int, mode: str) -> sgl.Result:
    """A program, which has not run before, that calls itself so often."""

    @sgl.function
    def again(s: Any, left: int) -> None:
        s += f"{left}:" + sgl.gen("a")
        if left and s["a"]:
            again(left=left - 1)

    return again.run(left=times, backend=BACKEND, mode=mode).sync()


def test_a_program_too_deep_for_a_plan_is_not_traced_in_ever_more_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = 0
    traces = trace._on_all_paths

    def counted(*given: Any) -> Any:
        nonlocal traced
        traced += 1
        return traces(*given)

    monkeypatch.setattr(trace, "_on_all_paths", counted)
    result = deeper(25, "auto")
    assert "called in more than 20 programs" in result.why_python
    assert result.usage.calls == 26
    assert traced < 300


@pytest.mark.parametrize("mode", ["auto", "python"])
def test_who_calls_itself_without_an_end_is_told(mode: str) -> None:
    @sgl.function
    def endless(s: Any) -> Any:
        s += "more"
        return endless().ret_value

    error = endless.run(backend=BACKEND, mode=mode).error()
    assert isinstance(error, RecursionError)
    assert "more than 200 deep" in str(error)


def test_runs_in_runs_end_however_deep_they_are() -> None:
    """None of them reads what it called, so that the innermost ends last."""

    @sgl.function
    def inner(s: Any, left: int) -> None:
        s += f"{left}:" + sgl.gen("a")
        if left:
            inner(left=left - 1)

    assert inner.run(left=180, backend=BACKEND, mode="python").sync().usage.calls == 181


FORKING = """
import os, signal
import sglc as sgl
from sglc.backends.scripted import Asked, ScriptedBackend

@sgl.tool
def twice(text: str) -> str:
    return text * 2

@sgl.function
def asks(s):
    s += "Q:" + sgl.gen("a", max_tokens=1, temperature=0)
    return twice(s["a"])

backend = {backend}
asks.run(backend=backend, mode={mode!r}).sync()
child = os.fork()
if not child:
    signal.alarm(60)
    try:
        print(asks.run(backend=backend, mode={mode!r}, timeout=10).ret_value, flush=True)
    except sgl.SglcError as error:
        print(error.code, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.parametrize(
    ("mode", "backend", "printed"),
    [
        ("plan", "ScriptedBackend(lambda asked: 'no')", "nono"),
        ("python", "ScriptedBackend(lambda asked: 'no')", "nono"),
        ("plan", "None", "SGLC523"),
    ],
    ids=["a plan", "Python", "a model in the process"],
)
def test_a_forked_process_runs_programs_or_says_why_not(
    tmp_path: Path, mode: str, backend: str, printed: str
) -> None:
    script = tmp_path / "forking.py"
    script.write_text(FORKING.format(backend=backend, mode=mode))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=HANG_S)
    assert (done.stdout.strip(), done.stderr) == (printed, "")


IN_FLIGHT = """
import os, signal
import sglc as sgl
from sglc.backends.scripted import Asked, ScriptedBackend

@sgl.function
def asks(s):
    s += "Q:" + sgl.gen("a", max_tokens=2, temperature=0)
    return s["a"]

backend = ScriptedBackend(lambda asked: "yes no", word_s=0.5)
asks.run(backend=ScriptedBackend(lambda asked: "yes"), mode={mode!r}).sync()
running = [asks.run(backend=backend, mode={mode!r}) for _ in range(2)]
child = os.fork()
if not child:
    signal.alarm(60)
    running[0].stop()
    print([result.error().code for result in running], flush=True)
    try:
        running[1]["a"]
    except sgl.SglcError as error:
        print(error.code, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print([result.ret_value for result in running])
"""


@pytest.mark.parametrize("mode", ["plan", "python"])
def test_nobody_waits_in_a_forked_process_for_what_its_parent_had_begun(tmp_path: Path, mode: str) -> None:
    script = tmp_path / "forking.py"
    script.write_text(IN_FLIGHT.format(mode=mode))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=HANG_S)
    child = "['SGLC523', 'SGLC523']\nSGLC523\n"
    assert (done.stdout, done.stderr) == (child + "['yes no', 'yes no']\n", "")


@pytest.mark.parametrize("mode", ["pyhton", "PLAN", "", 0])
def test_no_other_mode_is_taken(mode: Any) -> None:
    @sgl.function
    def asks(s: Any) -> None:
        s += "Q:" + sgl.gen("a")

    for begin in (asks.run, lambda **given: asks.run_batch([{}], **given)):
        with pytest.raises(UsageError, match="`mode` is one of") as caught:
            begin(backend=BACKEND, mode=mode)
        assert caught.value.code == "SGLC023"


@pytest.mark.parametrize("seed", ["x", -1, 1.5, True, 2**70])
def test_what_is_no_seed(seed: Any) -> None:
    @sgl.function
    def asks(s: Any) -> None:
        s += "Q:" + sgl.gen("a")

    for begin in (asks.run, lambda **given: asks.run_batch([{}], **given)):
        with pytest.raises(UsageError, match="`seed` is an integer"):
            begin(backend=BACKEND, seed=seed)


@sgl.function
def told(s: Any, of: str) -> Any:
    s += of + sgl.gen("said", max_tokens=4)
    return s["said"]


def in_a_batch() -> list[str]:
    return [result.ret_value for result in told.run_batch([{"of": "a"}, {"of": "b"}, {"of": "a"}])]


def in_a_stream() -> list[str]:
    return [result.ret_value for result in told.stream_batch([{"of": "a"}, {"of": "b"}, {"of": "a"}])]


def together() -> list[str]:
    first, second = sgl.run_together([(told, [{"of": "a"}, {"of": "b"}]), (told, [{"of": "a"}])])
    return [result.ret_value for result in (*first, *second)]


@sgl.function
def around(s: Any, batch: Any) -> Any:
    s += "Q" + sgl.gen("before")
    made = batch()
    s += ",".join(made)
    return made


BATCHES = pytest.mark.parametrize("batch", [in_a_batch, in_a_stream, together])


@BATCHES
def test_a_batch_in_a_program_runs_as_a_part_of_it(batch: Any, tmp_path: Path) -> None:
    backend = OracleBackend()
    result = around.run(batch, backend=backend, seed=3, record=str(tmp_path))
    assert result.error() is None
    assert result.text() == "Q" + result["before"] + ",".join(result.ret_value)
    assert result.usage.calls == 4
    assert len({call.site for call in result.calls}) == 4
    assert len(set(result.ret_value)) == 3  # each draws its own
    for again in (
        around.run(batch, backend=backend, seed=3),
        around.run(batch, backend=ScriptedBackend(lambda asked: None), replay=str(tmp_path)),
    ):
        assert again.ret_value == result.ret_value
        assert sorted(str(call.site) for call in again.calls) == sorted(str(call.site) for call in result.calls)


@BATCHES
def test_the_budget_of_a_program_holds_the_batches_in_it(batch: Any) -> None:
    result = around.run(batch, backend=BACKEND, max_calls=3)
    error = result.error()
    assert isinstance(error, RunError)
    assert error.code == "SGLC408"
    assert result.usage.calls == 3


@sgl.function
def between(s: Any) -> str:
    s += "a" + sgl.gen("first")
    s += sgl.gen("second")
    made = told.run(of="it")
    s += sgl.gen("third")
    return str(made["said"])


@sgl.function
def in_rows(s: Any) -> None:
    s += "a" + sgl.gen("first")
    rows = told.run_batch([{"of": of} for of in "abc"])
    s += "".join(row["said"] for row in rows if row.error() is None) + sgl.gen("last")


@pytest.mark.parametrize("mode", ["auto", "python"])
@pytest.mark.parametrize(
    ("program", "most", "passed", "sites"),
    [
        (between, 1, "second", ["first"]),
        (between, 2, "said", ["first", "second"]),
        (between, 3, "third", ["first", "second", "said"]),
        (in_rows, 3, "said", ["first", "said", "said"]),
    ],
)
def test_calls_are_counted_in_the_order_of_the_program(
    program: Any, most: int, passed: str, sites: list[str], mode: Any
) -> None:
    for _ in range(5):
        result = program.run(backend=BACKEND, max_calls=most, mode=mode)
        assert f"`{passed}` passes the run's budget of {most} calls" in str(result.error())
        assert sorted(call.site.name for call in result.calls) == sorted(sites)
        rows = [str(call.site) for call in result.calls if "@" in str(call.site)]
        assert [row.split("@")[1][0] for row in rows] == ["0", "1"][: len(rows)]


@sgl.tool
def asks_another(of: str) -> str:
    return str(told.run(of=of)["said"])


@sgl.function
def by_tools(s: Any) -> None:
    for number in range(4):
        s += asks_another(str(number))


@sgl.function
def by_calls(s: Any, given: dict[str, Any], caught: bool = False) -> None:
    for number in range(4):
        result = told.run(of=str(number), **given)
        if not caught or result.error() is None:
            s += result["said"]


@pytest.mark.parametrize(
    ("program", "given"),
    [
        (by_tools, {}),
        (by_calls, {"given": {"seed": 5}}),
        (by_calls, {"given": {"max_calls": 9}}),
        (by_calls, {"given": {"max_tokens": 99}}),
        (by_calls, {"given": {"seed": 5}, "caught": True}),
        (by_calls, {"given": {}, "caught": True}),
    ],
)
@pytest.mark.parametrize("limit", [{"max_calls": 2}, {"max_tokens": 4}])
def test_a_budget_holds_whatever_the_calls_have_of_their_own(
    program: Any, given: dict[str, Any], limit: dict[str, int]
) -> None:
    asked: list[Asked] = []

    def says(one: Asked) -> str:
        asked.append(one)
        return "one two"

    result = program.run(**given, backend=ScriptedBackend(says), **limit)
    error = result.error()
    assert isinstance(error, RunError)
    assert error.code == "SGLC408"
    assert f"budget of {2 if 'max_calls' in limit else '4 generated tokens'}" in error.message
    assert len(asked) == 2


def test_the_budget_of_a_call_is_its_own_to_pass() -> None:
    result = by_calls.run(
        {"max_tokens": 1}, True, backend=ScriptedBackend(lambda asked: "one two"), max_calls=9
    )
    assert result.error() is None
    assert result.text() == ""


@sgl.function
def calls_twice(s: Any) -> Any:
    s.messages()
    return [told.run(of=of).ret_value for of in "ab"]


@sgl.function
def a_batch_of_two(s: Any) -> Any:
    s.messages()
    return [row.ret_value for row in told.run_batch([{"of": "a"}, {"of": "b"}])]


@pytest.mark.parametrize("program", [calls_twice, a_batch_of_two])
@pytest.mark.parametrize("most", [1, 2, 4])
def test_the_budget_of_a_program_holds_what_its_calls_call(program: Any, most: int) -> None:
    @sgl.function
    def runs(s: Any) -> Any:
        return [program.run().ret_value for _ in range(3)]

    @sgl.function
    def batch(s: Any) -> Any:
        return [row.ret_value for row in program.run_batch([{}] * 3)]

    asked: list[Any] = []

    def answer(given: Any) -> str:
        asked.append(given)
        return " yes"

    for outer in (runs, batch):
        asked.clear()
        result = outer.run(backend=ScriptedBackend(answer), max_calls=most, mode="python").sync()
        error = result.error()
        assert isinstance(error, RunError)
        assert error.code == "SGLC408"
        assert len(asked) == result.usage.calls == most


def test_a_batch_of_a_plan_in_a_program_runs_on_its_back_end(tmp_path: Path) -> None:
    told.compile(BACKEND).save(str(tmp_path / "told.json"))
    plan = sgl.load_plan(str(tmp_path / "told.json"))
    made = around.run(lambda: [result["said"] for result in plan.run_batch([{"of": "a"}])], backend=BACKEND)
    assert made.ret_value == [" yes"]


@sgl.function
def told_twice(s: Any) -> Any:
    s += "q" + sgl.gen("a")
    s.messages()
    return s.text()


@sgl.function
def told_behind_retries(s: Any) -> Any:
    s += "q" + sgl.gen("a", regex=" yes", retries=1)
    return s.text()


@sgl.function
def scope_behind_turns(s: Any) -> Any:
    with s.var_scope("v"):
        s += sgl.user("q") + sgl.assistant(sgl.gen("a"))
    s.messages()
    return s["v"]


@pytest.mark.parametrize("program", [told_twice, told_behind_retries, scope_behind_turns])
def test_a_called_program_reads_its_text_as_alone(program: Any) -> None:
    @sgl.function
    def calls(s: Any) -> Any:
        return [program.run().ret_value, *(row.ret_value for row in program.run_batch([{}]))]

    alone = program.run(backend=BACKEND).ret_value
    assert alone.count(" yes") == 1
    assert calls.run(backend=BACKEND).ret_value == [alone, alone]


@pytest.mark.parametrize("ahead", [0, 1])
def test_which_rows_began_ahead_of_a_stream_that_is_left_is_nothing_to_replay(
    ahead: int, tmp_path: Path
) -> None:
    """Two rows begin ahead of the one that is read: in the recording alone, or in the replay alone."""
    begin_ahead, read = iter((ahead, not ahead, not ahead)), 1

    @sgl.function
    def half_read(s: Any) -> Any:
        begun, left = threading.Event(), threading.Event()

        def rows() -> Iterator[dict[str, str]]:
            yield {"of": "a"}
            if next(begin_ahead):
                yield from ({"of": "b"}, {"of": "c"})
                time.sleep(0.1)  # for the others to end
            begun.set()
            left.wait(HANG_S)

        stream = told.stream_batch(rows())
        given = [next(stream).ret_value]
        begun.wait(HANG_S)
        if read == 2:
            given.append(next(stream).error() is None)
        del stream
        left.set()
        s += sgl.gen("behind")
        return given

    recorded = half_read.run(backend=BACKEND, record=str(tmp_path), mode="python").sync()
    replayed = half_read.run(backend=BACKEND, replay=str(tmp_path), mode="python")
    assert recorded.error() is None
    assert replayed.error() is None
    assert replayed.ret_value == recorded.ret_value
    assert not replayed.failures
    if not ahead:
        read = 2  # what is read is to be there, whatever the program does with its error
        error = half_read.run(backend=BACKEND, replay=str(tmp_path), mode="python").error()
        assert isinstance(error, RunError)
        assert error.code == "SGLC421"


@pytest.mark.parametrize(("first", "second"), [("plan", "python"), ("python", "plan")])
def test_a_recording_is_replayed_in_the_other_mode(first: Any, second: Any, tmp_path: Path) -> None:
    @sgl.tool
    def noted(text: str) -> str:
        return text

    @sgl.function
    def inner(s: Any, with_tool: bool) -> Any:
        s += "in" + sgl.gen("b")
        return noted(s["b"]) if with_tool else s["b"]

    @sgl.function
    def outer(s: Any, with_tool: bool = False) -> Any:
        s += "q" + sgl.gen("a")
        for _ in range(2):
            s += inner(with_tool).ret_value
        return s["a"]

    recorded = outer.run(backend=BACKEND, record=str(tmp_path / "a"), mode=first).sync()
    replayed = outer.run(replay=str(tmp_path / "a"), mode=second).sync()
    assert replayed.error() is None
    assert replayed.text() == recorded.text()
    recorded = outer.run(True, backend=BACKEND, record=str(tmp_path / "b"), mode=first).sync()
    assert outer.run(True, replay=str(tmp_path / "b")).text() == recorded.text()
    error = outer.run(True, replay=str(tmp_path / "b"), mode=second).error()
    assert isinstance(error, RunError)
    assert error.code == "SGLC421"
    assert error.hint.startswith(f'replay it in the mode that it was recorded in, `mode="{first}"`')


def test_a_plan_in_a_program_is_a_part_of_it_as_its_function_is(tmp_path: Path) -> None:
    backend = OracleBackend()
    told.compile(backend).save(str(tmp_path / "told.json"))
    plan = sgl.load_plan(str(tmp_path / "told.json"))

    @sgl.function
    def calls(s: Any, program: Any) -> Any:
        one = program.run(of="a")["said"]
        return [one, *(row["said"] for row in program.run_batch([{"of": "b"}, {"of": "c"}]))]

    of_function = calls.run(told, backend=backend, seed=3)
    of_plan = calls.run(plan, backend=backend, seed=3, record=str(tmp_path / "recorded"))
    assert of_plan.ret_value == of_function.ret_value
    assert of_plan.usage == of_function.usage
    assert {call.site for call in of_plan.calls} == {call.site for call in of_function.calls}
    again = calls.run(plan, backend=backend, replay=str(tmp_path / "recorded"))
    assert again.ret_value == of_plan.ret_value
    few = calls.run(plan, backend=backend, max_calls=2)
    error = few.error()
    assert isinstance(error, RunError)
    assert error.code == "SGLC408"
    assert few.usage.calls == 2


# -- called programs that fail -----------------------------------------------------------------------


@sgl.function
def half_good(s: Any) -> None:
    s += "Q" + sgl.gen("good") + sgl.gen("bad")


@sgl.function
def reads_the_good_half(s: Any) -> Any:
    made = half_good()
    s += "So" + made["good"] + sgl.gen("x")
    return made["good"]


@sgl.function
def reads_nothing(s: Any) -> None:
    half_good()
    s += "So" + sgl.gen("x")


@sgl.function
def catches_the_bad_half(s: Any) -> Any:
    made = half_good()
    try:
        return made["bad"]
    except sgl.SglcError:
        s += "So" + sgl.gen("x")
    return None


@sgl.function
def calls_a_batch(s: Any) -> Any:
    made = half_good.run_batch([{}])
    s += "So" + sgl.gen("x")
    return made[0]["good"]


@pytest.mark.parametrize("mode", ["auto", "python"])
@pytest.mark.parametrize(
    ("program", "code"),
    [
        (reads_the_good_half, "SGLC521"),
        (reads_nothing, "SGLC521"),
        (catches_the_bad_half, ""),
        (calls_a_batch, ""),
    ],
    ids=lambda given: getattr(given, "__name__", given),
)
def test_a_failure_of_a_called_program_that_nobody_reads_ends_the_run(
    program: Any, code: str, mode: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = ScriptedBackend(lambda asked: None if asked.site.name == "bad" else f" {asked.site.name}")
    result = program.run(backend=backend, mode=mode)
    error = result.error()
    assert getattr(error, "code", "") == code
    assert result.variables == {"x": " x"}
    assert [failure.site.name for failure in result.failures] == ["bad"]
    del result, error
    gc.collect()
    assert ("of `half_good` failed" in capsys.readouterr().err) == (program is calls_a_batch)


@sgl.function
def breaks(s: Any) -> None:
    s += "b" + sgl.gen("bad")


@pytest.mark.parametrize("mode", ["auto", "python"])
def test_who_looks_at_the_failures_of_a_call_goes_on(mode: Any) -> None:
    @sgl.function
    def looks(s: Any) -> None:
        s += str([isinstance(one.error, SglcError) and one.error.code for one in breaks.run().failures])

    result = looks.run(backend=ScriptedBackend(lambda asked: None), mode=mode)
    assert (result.error(), result.text()) == (None, "['SGLC521']")


def test_failed_calls_that_were_looked_at_are_let_go() -> None:
    alive: list[weakref.ref[Any]] = []

    @sgl.function
    def many(s: Any) -> Any:
        for _ in range(20):
            result = breaks.run()
            assert result.error() is not None
            alive.append(weakref.ref(result))
        del result
        gc.collect()
        return sum(one() is not None for one in alive)

    result = many.run(backend=ScriptedBackend(lambda asked: None), mode="python")
    assert result.ret_value <= 2


def test_all_failures_of_calls_that_nobody_reads_are_told_as_one(capfd: pytest.CaptureFixture[str]) -> None:
    @sgl.function
    def two(s: Any) -> None:
        breaks.run()
        breaks.run()

    result = two.run(backend=ScriptedBackend(lambda asked: None), mode="python")
    error = result.error()
    assert isinstance(error, SglcError)
    assert error.code == "SGLC521"
    gc.collect()
    assert capfd.readouterr().err == ""


# -- what is read of them in a `try`, and what they raise ----------------------------------------------


@sgl.function
def half_stored(s: Any) -> str:
    s["before"] = "fixed"
    s += "Q" + sgl.gen("bad")
    s["read"] = s["bad"].strip()
    s["behind"] = "none"
    return "fixed"


def in_try(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def body(s: Any) -> Any:
        made = half_stored()
        try:
            found = read(made)
        except Exception:
            found = "caught"
        s += f"{found}" + sgl.gen("x")
        return found

    return body


def in_finally(s: Any) -> Any:
    made = half_stored()
    try:
        return made.ret_value
    finally:
        s += "finally" + sgl.gen("x")


def in_a_comprehension(s: Any) -> Any:
    def value(made: Any) -> Any:
        try:
            return made.ret_value
        except sgl.SglcError:
            return "caught"

    found = [value(made) for made in (half_stored(), half_stored())]
    s += "".join(found)
    return found


def in_a_loop(s: Any) -> Any:
    found = []
    for _ in range(2):
        made = half_stored.run()
        try:
            found.append(made.ret_value)
        except sgl.SglcError:
            continue
    s += f"{len(found)}" + sgl.gen("x")
    return found


def its_value(made: Any) -> Any:
    return made.ret_value


def its_value_by_name(made: Any) -> Any:
    return getattr(made, "ret_value", "none")


def whether_it_has_a_value(made: Any) -> Any:
    return hasattr(made, "ret_value")


def a_constant_behind_what_failed(made: Any) -> Any:
    return made["behind"]


def its_items(made: Any) -> Any:
    return [*made]


def its_failures(made: Any) -> Any:
    return len(made.failures)


def its_variables(made: Any) -> Any:
    return sorted(made.variables)


def its_json(made: Any) -> Any:
    return made.as_json()["value"]


def what_is_stored_over_it(made: Any) -> Any:
    made["behind"] = "other"
    return made["behind"]


READS = [
    its_value, its_value_by_name, whether_it_has_a_value, a_constant_behind_what_failed, its_items,
    its_failures, its_variables, its_json, what_is_stored_over_it,
]  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [*map(in_try, READS), in_finally, in_a_comprehension, in_a_loop],
    ids=[read.__name__ for read in (*READS, in_finally, in_a_comprehension, in_a_loop)],
)
def test_what_a_plan_reads_of_a_call_in_a_try_is_caught_as_by_python(body: Any) -> None:
    backend = ScriptedBackend(lambda asked: None if asked.site.name == "bad" else f" {asked.site.name}")
    program = sgl.function(body)
    told = []
    for mode in ("python", "auto"):
        result = program.run(backend=backend, mode=mode).sync()
        error = result.error()
        told.append((getattr(error, "code", ""), error or result.ret_value, dict(result.variables)))
    assert str(told[0]) == str(told[1])
    shown = program.explain(backend).text()
    assert "graph break" in shown
    assert "source" not in shown  # it breaks at the read


@sgl.function
def picky(s: Any, word: str) -> str:
    s += word + sgl.gen("y")
    if s["y"] == " no":
        raise ValueError("no, says " + s["y"])
    if s["y"] == " y":
        raise AssertionError("not y")
    return str(s["y"])


@sgl.function
def asks_the_picky(s: Any, word: str) -> Any:
    made = picky(word).ret_value
    s += made + sgl.gen("x")
    return made


@sgl.function
def asks_for_all(s: Any, word: str) -> Any:
    s += sgl.gen("words")
    return [picky(word).ret_value for word in s["words"].split()]


@sgl.function
def raises_in_a_loop(s: Any, word: str) -> None:
    def again() -> bool:
        nonlocal s
        s += word + sgl.gen("y")
        if s["y"] == " y":
            raise ValueError("not y")
        return True

    sgl.loop(again, max_iters=2)


@sgl.function
def raises_in_a_map(s: Any, word: str) -> Any:
    def checked(item: str) -> str:
        if item == "y":
            raise ValueError("not " + item)
        return item

    s += sgl.gen("words")
    return sgl.map(s["words"].split(), checked)


@sgl.function
def raises_in_a_comprehension(s: Any, word: str) -> Any:
    def checked(item: str) -> str:
        if item == "y":
            raise KeyError(item)
        return item

    s += sgl.gen("words")
    return {item: checked(item) for item in s["words"].split()}


RAISING = [asks_the_picky, asks_for_all, raises_in_a_loop, raises_in_a_map, raises_in_a_comprehension]


@pytest.mark.parametrize("answer", [" y", " no", " z"])
@pytest.mark.parametrize("program", RAISING, ids=lambda program: program.definition.name)
def test_what_is_raised_in_a_call_or_a_block_is_raised_by_the_plan(
    program: Any, answer: str, tmp_path: Path
) -> None:
    backend = ScriptedBackend(lambda asked: "a y b" if asked.site.name == "words" else answer)
    compiled = program.compile(backend=backend)
    compiled.save(tmp_path / "plan.json")
    assert "graph break" not in program.explain(backend).text()
    alone = sgl.load_plan(tmp_path / "plan.json").run(word="w", backend=backend)
    python = program.run("w", backend=backend, mode="python")
    own = program.run("w", backend=backend)
    error = python.error()
    assert (type(own.error()), str(own.error())) == (type(error), str(error))
    if error is None:
        assert alone.ret_value == own.ret_value == python.ret_value
    else:
        found = alone.error()
        assert isinstance(found, RunError)
        assert found.message == f"`{type(error).__name__}` in `{program.definition.name}`: {error}"
        assert error.__traceback__ is not None
        assert found.loc == of_error(error)


@sgl.function
def always_raises(s: Any) -> Any:
    s += sgl.select("y", choices=["a", "b"])
    if s["y"] == "a":
        raise ValueError("a")
    raise KeyError("b")


def calls_it(s: Any) -> Any:
    return always_raises().ret_value + "!"


def loops_it(s: Any) -> None:
    def body() -> None:
        raise ValueError("a")

    sgl.loop(body, max_iters=2)


def maps_it(s: Any) -> Any:
    def body(item: str) -> str:
        raise ValueError(item)

    s += sgl.gen("x")
    return [body(item) for item in s["x"].split()]


@pytest.mark.parametrize("body", [calls_it, loops_it, maps_it])
def test_what_raises_on_every_path_is_left_to_python(body: Any) -> None:
    program = sgl.function(body)
    backend = ScriptedBackend(lambda asked: asked.choices[0] if asked.choices else "a")
    assert "raises on every path" in program.explain(backend).text()
    error = program.run(backend=backend).error()
    assert (type(error), str(error)) == (ValueError, "a")
