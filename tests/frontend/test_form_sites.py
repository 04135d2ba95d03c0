"""What stands in a structured form has the same sites, and so the same samples, in a plan and as Python."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import Rule, ScriptedBackend, by_rules
from sglc.errors import SglcError
from tests.source_fuzz.answers import HashBackend


@sgl.function
def sub(s: Any, x: str) -> Any:
    s += x + sgl.gen("a") + sgl.gen("b")
    return s["a"]


@sgl.function
def looped(s: Any, x: str) -> Any:
    def body(s: Any = s) -> None:
        s += x + sgl.gen("a")

    sgl.loop(body, 2)
    return s["a"]


@sgl.function
def loops(s: Any, a: str) -> None:
    def body(s: Any = s) -> Any:
        s += sgl.gen("x")
        sgl.loop(inner, 2)
        return sgl.not_(sgl.contains("Rome", s["x"]))

    def inner(s: Any = s) -> None:
        s += sgl.gen("x")

    s += a + sgl.gen("x")
    sgl.loop(body, 3)
    for _ in range(2):
        sgl.loop(inner, 2)
    s += sgl.gen("x")


@sgl.function
def arms(s: Any, a: str) -> None:
    def two(s: Any = s) -> None:
        s += sgl.gen("x") + sgl.gen("x")

    def one(s: Any = s) -> None:
        s += sgl.gen("x")

    def body(s: Any = s) -> None:
        s += sgl.select("c", choices=["yes", "no", "stop"])
        sgl.cond(sgl.eq(s["c"], "yes"), two, one)
        sgl.switch(s["c"], {"yes": one, "no": two}, one)

    s += a
    sgl.loop(body, 4)
    sgl.cond(a == "t", two)
    sgl.switch(a, {"t": one, "u": two})
    s += sgl.gen("x")


@sgl.function
def items(s: Any, a: str) -> Any:
    def body(item: str) -> Any:
        fork = s.fork(1)[0]
        fork += item

        def again(fork: Any = fork) -> None:
            fork += sgl.gen("x") + sub(item)["b"]

        sgl.loop(again, 2)
        fork += sgl.gen("x")
        return fork["x"]

    made = sgl.map([a, "b", "c"], body)
    s += made[1] + sgl.gen("x")
    return made


@sgl.function
def calls(s: Any, a: str) -> None:
    def body(s: Any = s) -> None:
        s += sub(a)["a"] + looped(a)["a"]
        for fork in (forks := s.fork(2)):
            fork += sgl.gen("x")
        s += forks[0]["x"] + sub(a)["b"]

    sgl.loop(body, 2)
    s += sub(a)["a"]


@sgl.function
def questions(s: Any, a: str) -> None:
    def body(s: Any = s) -> None:
        s += sgl.select("c", choices=["yes", "no"])
        if s["c"] == "yes":
            s += sgl.gen("x")
        s += sgl.gen("x")

    s += a + sgl.select("d", choices=["yes", "no"])
    if s["d"] == "yes":
        sgl.loop(body, 2)
    s += sgl.gen("x")
    sgl.loop(body, 2)


@sgl.function
def goes_on(s: Any, a: str) -> str:
    def body(s: Any = s) -> None:
        s += sgl.gen("x")

    s += a
    sgl.loop(body, 2)
    s += sgl.gen("x", dtype=int, retries=1)  # Python takes over
    sgl.loop(body, 2)
    return str(s["x"])


@sgl.function
async def coroutine(s: Any, a: str) -> None:
    def body(s: Any = s) -> None:
        s += sgl.gen("x")

    s += a
    sgl.loop(body, 3)
    s += sgl.gen("x")


Asked = list[tuple[str, int | None, tuple[str, ...]]]


def asked(backend: HashBackend) -> Asked:
    calls = [(call.site, call.seed, call.texts) for call in backend.calls_made]
    assert len({site for site, *_ in calls}) == len(calls)
    return sorted(calls, key=str)


def made(program: sgl.Function, mode: Any) -> tuple[str, Any, Asked]:
    backend = HashBackend()
    result = program.run("t", backend=backend, seed=3, mode=mode).sync()
    return result.mode, result.ret_value, asked(backend)


@pytest.mark.parametrize(
    "program", [loops, arms, items, calls, questions, goes_on, coroutine], ids=lambda program: program.__name__
)
def test_samples_are_those_of_python(program: sgl.Function) -> None:
    _, value, calls = made(program, "python")
    mode, planned, in_plan = made(program, "auto")
    assert mode == ("python" if program is goes_on else "plan")
    assert (planned, in_plan) == (value, calls)

    backend = HashBackend()
    asyncio.run(_awaited(program, backend))
    assert asked(backend) == calls

    batches = []
    for way in ("python", "auto"):
        backend = HashBackend()
        rows = program.run_batch([{"a": "t"}, {"a": "u"}, {"a": "t"}], backend=backend, seed=3, mode=way)
        values = [row.ret_value for row in rows]
        batches.append((values, sorted((call.site, call.seed, call.texts) for call in backend.calls_made)))
    assert batches[0] == batches[1]


async def _awaited(program: sgl.Function, backend: HashBackend) -> None:
    (await program.arun("t", backend=backend, seed=3)).sync()


def test_sites_say_the_form_the_arm_and_the_iterations() -> None:
    sites = {site for site, *_ in made(arms, "python")[2]}
    assert "arms~0@1.c#0" in sites  # the second iteration of the first form
    assert "arms~0~0:1@1.x#0" in sites or "arms~0~0:0@1.x#0" in sites  # an arm of the first one in it
    assert {"arms~1:0.x#0", "arms~2:0.x#0", "arms.x#0"} <= sites


def test_a_plan_s_variables_of_a_loop_are_read_in_a_body_that_runs_as_python() -> None:
    @sgl.function
    def around(s: Any, a: str) -> None:
        s += looped(a)["a"]

    result = around.run("t", backend=HashBackend(), seed=3, mode="python")
    assert result.error() is None


def test_tasks_and_threads_count_their_forms_apart() -> None:
    """In whatever order they come to them."""

    def run(order: list[int], *, threads: bool) -> Asked:
        @sgl.function
        async def program(s: Any) -> None:
            forks = s.fork(2)
            come = [asyncio.Event() for _ in forks]

            async def one(number: int) -> None:
                if number != order[0]:
                    await come[order[0]].wait()
                sgl.loop(partial(extended, forks[number]), 2)
                come[number].set()

            await asyncio.gather(*(one(number) for number in range(2)))

        def extended(fork: Any) -> None:
            fork += sgl.gen("x")

        @sgl.function
        def threaded(s: Any) -> None:
            forks, come = s.fork(2), [Event(), Event()]

            def one(number: int) -> None:
                if number != order[0]:
                    come[order[0]].wait()
                sgl.loop(partial(extended, forks[number]), 2)
                come[number].set()

            with ThreadPoolExecutor(2) as pool:
                for running in [pool.submit(copy_context().run, one, number) for number in range(2)]:
                    running.result()

        backend = HashBackend()
        result = (threaded if threads else program).run(backend=backend, seed=3, mode="python").sync()
        assert result.error() is None
        return asked(backend)

    for threads in (False, True):
        assert run([0, 1], threads=threads) == run([1, 0], threads=threads)


@sgl.function
def raising(s: Any) -> Any:
    s += sgl.gen("list", dtype=list[str])

    def one(item: str) -> Any:
        fork = s.fork(1)[0]
        fork += item + sgl.gen("o")
        if item == "none":
            raise ValueError("item " + fork["o"])
        return fork["o"]

    return [one(item) for item in s["list"]]


def test_what_a_comprehension_raises_is_of_what_python_was_answered() -> None:
    made = []
    for mode in ("auto", "python"):
        backend = HashBackend()
        result = raising.run(backend=backend, seed=3, mode=mode)
        assert result.error() is None
        made.append((asked(backend), result.ret_value))
    assert made[0] == made[1]
    why = raising.run(backend=HashBackend(), seed=3).sync().why_python
    assert why is not None
    assert why.startswith("a comprehension that generates, over a list")


def test_how_often_a_loop_goes_round_may_be_an_argument() -> None:
    @sgl.function
    def program(s: Any, n: int) -> Any:
        def body(s: Any = s) -> None:
            s += sgl.gen("x")

        sgl.loop(body, max_iters=n)
        return len(s.text())

    backend = HashBackend()
    for n in (2, 3, 2):
        result = program.run(n=n, backend=backend, mode="plan")
        assert (result.error(), len(result.calls)) == (None, n)


def test_a_declared_function_has_no_forms_of_the_body() -> None:
    @sgl.tool
    def listed(text: str) -> str:
        return "".join(sgl.map(["a", text], lambda item: item))

    @sgl.tool
    async def looked_up(text: str) -> str:
        await asyncio.sleep(0)
        return "".join(sgl.map(["a", text], lambda item: item))

    @sgl.function
    async def program(s: Any, a: str) -> None:
        s += listed(a) + await looked_up(a)
        sgl.loop(lambda: s.user(sub(a)["a"]) and None, 2)

    assert made(program, "python")[1:] == made(program, "plan")[1:]


def test_a_rule_names_the_function_as_it_is_written() -> None:
    backend = ScriptedBackend(by_rules([Rule(function="loops", name="x", text="Rome")]))
    assert loops.run("t", backend=backend).sync().error() is None


@pytest.mark.parametrize(("recorded", "replayed"), [("python", "auto"), ("auto", "python")])
def test_a_recording_is_replayed_the_other_way(recorded: Any, replayed: Any, tmp_path: Path) -> None:
    one = arms.run("t", backend=HashBackend(), seed=3, mode=recorded, record=tmp_path / "tape").sync()
    other = arms.run("t", mode=replayed, replay=tmp_path / "tape").sync()
    assert other.text() == one.text()


def test_a_recording_with_other_sites_says_what_it_has(tmp_path: Path) -> None:
    """One of before there were sites of forms."""
    looped.run("t", backend=HashBackend(), seed=3, record=tmp_path / "tape").sync()
    tape = tmp_path / "tape" / "recording.jsonl"
    lines = [json.loads(line) for line in tape.read_text().splitlines()]
    old = [{**line, **({"site": line["site"].replace("~0", "")} if "site" in line else {})} for line in lines]
    tape.write_text("".join(json.dumps(line) + "\n" for line in old))
    error = looped.run("t", replay=tmp_path / "tape").sync().error()
    assert isinstance(error, SglcError)
    assert error.code == "SGLC421"
    assert "`looped@0.a#0`" in str(error)
