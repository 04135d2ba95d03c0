"""What is no text goes into no prompt as one, and says so where it is written: in a run and while compiling."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import ScriptedBackend
from sglc.errors import TraceError

BACKEND = ScriptedBackend(lambda asked: f"<{asked.site.name}>")


@sgl.function
def other(s: Any) -> Any:
    s += "Q" + sgl.gen("inner")
    return s["inner"]


@sgl.function
def in_braces(s: Any) -> None:
    s += f"a {sgl.gen('x')}"


@sgl.function
def with_a_width(s: Any) -> None:
    s += f"{'a' + sgl.gen('x'):>10}"


@sgl.function
def as_str(s: Any) -> None:
    s += "a" + str(sgl.select("x", choices=["a", "b"]))


@sgl.function
def percent(s: Any) -> None:
    s += "a %s" % sgl.gen("x")  # noqa: UP031


@sgl.function
def format_method(s: Any) -> None:
    s += "a {}".format(sgl.user("x"))


@sgl.function
def called_in_braces(s: Any) -> None:
    s += f"a {other()}"


@sgl.function
def called_beside_a_generated_text(s: Any) -> None:
    s += "a" + sgl.gen("x")
    s += f"{s['x']}{other()}"


@sgl.function
def called_behind_a_text(s: Any) -> None:
    s += "a" + other()


@sgl.function
def called_before_a_text(s: Any) -> None:
    s += other() + "a"


@sgl.function
def called_behind_a_generation(s: Any) -> None:
    s += sgl.gen("x") + other()


@sgl.function
def called_alone(s: Any) -> None:
    s += other()


@sgl.function
def state_in_braces(s: Any) -> None:
    s += f"a {s}"


@sgl.function
def branch(s: Any) -> None:
    s += s.fork(1)[0]


@sgl.function
def branches(s: Any) -> None:
    forks = s.fork(2)
    s += f"a {forks}"


@sgl.tool
async def look(word: str) -> str:
    return f"seen {word}"


async def helper() -> str:
    return "helped"


@sgl.function
async def tool_in_braces(s: Any) -> None:
    s += "a" + sgl.gen("x")
    s += f"a {look(s['x'])}"


@sgl.function
def tool_in_a_plain_def(s: Any) -> None:
    s += f"a {look('b')}"


@sgl.function
async def tool_behind_a_text(s: Any) -> None:
    s += "a" + look("b")  # type: ignore[operator]


@sgl.function
async def tool_alone(s: Any) -> None:
    s += look("b")


@sgl.function
async def coroutine_alone(s: Any) -> None:
    s += helper()


@sgl.function
async def coroutine_behind_a_generation(s: Any) -> None:
    s += sgl.gen("x") + helper()


WRONG = {
    in_braces: '`gen("x")` is no text',
    with_a_width: '`gen("x")` is no text',
    as_str: '`select("x", ...)` is no text',
    percent: '`gen("x")` is no text',
    format_method: "`user(...)` is no text",
    called_in_braces: "what `other(...)` gives is no text",
    called_beside_a_generated_text: "what `other(...)` gives is no text",
    called_behind_a_text: "what `other(...)` gives is no text",
    called_before_a_text: "what `other(...)` gives is no text",
    called_behind_a_generation: "what `other(...)` gives is no text",
    called_alone: "what `other(...)` gives is no text",
    state_in_braces: "a prompt state is no text",
    branch: "a prompt state is no text",
    branches: "a list of branches is no text",
    tool_in_braces: "what `look(...)` gives before it is awaited is no text",
    tool_in_a_plain_def: "what `look(...)` gives before it is awaited is no text",
    tool_behind_a_text: "what `look(...)` gives before it is awaited is no text",
    tool_alone: "what `look(...)` gives before it is awaited is no text",
    coroutine_alone: "what `helper(...)` gives before it is awaited is no text",
    coroutine_behind_a_generation: "what `helper(...)` gives before it is awaited is no text",
}


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_both_ways_refuse_it_in_the_same_words_and_at_the_same_place(program: Any) -> None:
    ran = program.run(backend=BACKEND).error()
    assert isinstance(ran, TraceError)
    assert (ran.code, ran.message) == ("SGLC156", WRONG[program])
    assert ran.loc is not None
    with pytest.raises(TraceError) as compiled:
        program.trace()
    assert str(compiled.value) == str(ran)


@sgl.function
def right(s: Any) -> Any:
    call = other()
    s += "a" + sgl.gen("x") + call["inner"]
    s += f"{s['x']}{call.ret_value}"
    return repr(sgl.gen("y")).startswith("GenExpr(")


def test_what_they_stand_for_goes_into_the_prompt() -> None:
    result = right.run(backend=BACKEND)
    assert result.text() == "a<x><inner><x><inner>"
    assert result.ret_value is True
    assert f"{result}" == str(result) == "ProgramState(a<x><inner><x><inner>)"  # outside of any prompt


def test_a_prompt_is_appended_to_and_not_gone_through() -> None:
    @sgl.function
    def added(s: Any) -> None:
        s = s + "a" + sgl.gen("x")

    @sgl.function
    def gone_through(s: Any) -> Any:
        return list(s)

    error = added.run(backend=BACKEND).error()
    assert isinstance(error, TraceError)
    assert (error.code, error.message) == ("SGLC156", "a prompt state is no text")
    assert error.hint.startswith("append to it, `s += ...`")
    result: Any = right.run(backend=BACKEND)
    for read in (lambda: list(result), lambda: gone_through.run(backend=BACKEND).ret_value):
        with pytest.raises(TypeError, match="object is not iterable"):
            read()


def test_what_was_not_awaited_says_so() -> None:
    @sgl.function
    async def program(s: Any) -> None:
        later = asyncio.Future[str]()
        s += sgl.gen("x") + later

    error = program.run(backend=BACKEND).error()
    assert isinstance(error, TraceError)
    assert (error.code, error.message) == ("SGLC102", "`Future` cannot be part of a prompt")
    assert error.hint.startswith("await it")


def test_what_a_declared_coroutine_function_gives_is_awaited_as_any_coroutine() -> None:
    assert asyncio.run(look("a")) == "seen a"  # type: ignore[arg-type]  # as a user writes it

    @sgl.function
    async def program(s: Any) -> Any:
        task = asyncio.create_task(look("b"))  # type: ignore[arg-type]
        seen = await asyncio.gather(look("c"), asyncio.wait_for(look("d"), 60))
        s += f"{await task} {seen} {await look('e')}"

    assert program.run(backend=BACKEND).text() == "seen b ['seen c', 'seen d'] seen e"


# -- what has no value before it is appended ---------------------------------------------------------


@sgl.function
def condition(s: Any) -> None:
    if sgl.gen("x"):
        s += "a"


@sgl.function
def negated(s: Any) -> None:
    s += f"a {not ('a' + sgl.gen('x'))}"


@sgl.function
def compared(s: Any) -> None:
    if sgl.select("x", ["a", "b"]) == "a":
        s += "a"


@sgl.function
def compared_from_the_right(s: Any) -> None:
    if "a" != sgl.gen("x"):  # noqa: SIM300
        s += "a"


@sgl.function
def ordered(s: Any) -> None:
    if sgl.gen_int("x") > 5:  # type: ignore[operator]
        s += "a"


@sgl.function
def measured(s: Any) -> None:
    s += str(len(sgl.gen("x")))  # type: ignore[arg-type]


@sgl.function
def iterated(s: Any) -> None:
    for item in sgl.gen("x"):  # type: ignore[attr-defined, var-annotated]
        s += item


@sgl.function
def searched(s: Any) -> None:
    if "a" in sgl.gen("x"):  # type: ignore[operator]
        s += "a"


@sgl.function
def one_of(s: Any) -> None:
    if sgl.gen("x") in ["a", "b"]:
        s += "a"


NO_VALUE = [
    condition,
    negated,
    compared,
    compared_from_the_right,
    ordered,
    measured,
    iterated,
    searched,
    one_of,
]


@pytest.mark.parametrize("program", NO_VALUE, ids=lambda program: program.__name__)
def test_nothing_can_be_asked_of_what_has_not_been_appended(program: Any) -> None:
    ran = program.run(backend=BACKEND).error()
    assert isinstance(ran, TraceError)
    assert ran.code == "SGLC158"
    assert ran.hint == 'append it first, `s += gen("x")`, then read `s["x"]`'
    with pytest.raises(TraceError) as compiled:
        program.trace()
    assert (compiled.value.message, compiled.value.hint) == (ran.message, ran.hint)
    assert ran.loc is not None
    assert compiled.value.loc is not None
    assert compiled.value.loc.line == ran.loc.line


def test_a_sum_that_reads_what_it_holds_is_told_that_it_is_appended_as_a_whole() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.gen("x") + s["x"]

    error = program.run(backend=BACKEND).error()
    assert isinstance(error, TraceError)
    hint = 'append `gen("x")` first, in a statement of its own: it is in the same expression'
    assert (error.code, error.hint) == ("SGLC110", hint)


def test_an_expression_is_itself_and_a_key() -> None:
    one, other = sgl.gen("x"), sgl.gen("y")
    assert one is not None
    assert {one: 1, other: 2}[one] == 1
