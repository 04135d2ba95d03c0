"""Ahead-of-time recording: what becomes IR, and where ordinary Python begins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import ScriptedBackend
from sglc.errors import RunError, TraceError
from sglc.ir.core import Program, Value
from sglc.ir.ops import (
    Append,
    Arg,
    Format,
    Gen,
    HostCall,
    Join,
    PureCall,
    RoleClose,
    RoleOpen,
    Root,
    Select,
    Store,
    TextOf,
)
from sglc.ir.text.printer import to_text
from sglc.ir.verify.verify import verify
from sglc.lang.ir import REGEX_INT, REGEX_STR

CALLS: list[str] = []
PREFIX = "Q: "


def tool(text: str) -> str:
    CALLS.append(text)
    return text


def turn(s: Any, text: str) -> None:
    """A helper that is given the state: entered, and recorded like the program itself."""
    s += sgl.user(f"{PREFIX}{text}")
    s += sgl.assistant(sgl.gen("answer"))


def traced(function: sgl.Function) -> Program:
    program = function.trace()
    verify(program)
    return program


def ops(program: Program, kind: type) -> list[Any]:
    return [op for op in program.ops if isinstance(op, kind)]


def test_arguments_and_f_strings_stay_symbolic() -> None:
    @sgl.function
    def ask(s: Any, question: str, *, tone: str = "kind", limit: int = 3) -> None:
        s += f"{PREFIX}{question} ({tone}, {limit:03d}, {'x'!r})\n" + sgl.gen("answer")

    program = traced(ask)
    assert [op.name for op in program.params if isinstance(op, Arg)] == ["question", "tone", "limit"]
    (text,) = ops(program, Format)
    assert [part for part in text.parts if isinstance(part, str)] == ["Q: ", " (", ", ", ", 'x')\n"]
    assert [op.args[1] for op in ops(program, PureCall)] == ["03d"]


def test_a_tool_is_a_boundary_and_is_not_called() -> None:
    CALLS.clear()

    @sgl.function
    def program(s: Any, question: str) -> None:
        s += question
        s += sgl.gen("call")
        s += tool(s["call"])
        s += sgl.gen("never")

    made = traced(program)
    assert CALLS == []
    assert isinstance(made.ops[-1], HostCall)
    assert made.ops[-1].reason == "`.append(...)` changes what outlives the program"
    assert [op.site.name for op in ops(made, Gen)] == ["call"]
    assert made.ops[-1].loc.line == tool.__code__.co_firstlineno + 1


@pytest.mark.parametrize(
    "observe",
    [
        lambda text: bool(text), lambda text: text == "a", lambda text: "a" in text, lambda text: len(text),
        lambda text: list(text), lambda text: int(text), lambda text: hash(text), lambda text: text[0],
        lambda text: text.strip(), lambda text: "%s" % text,  # noqa: UP031
        lambda text: f"{text:>5}", lambda text: text * 2,
        lambda text: {text: 1}, lambda text: sorted([text, "b"]), lambda text: repr(text),
        lambda text: text < "b",
    ],
)  # fmt: skip
def test_every_observation_is_a_boundary(observe: Any) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x")
        forks = s.fork(1)
        forks += lambda i: str(observe(s["x"]))

    made = program.trace()
    assert isinstance(made.ops[-1], HostCall)


def test_a_helper_with_the_state_is_entered() -> None:
    @sgl.function
    def chat(s: Any, question: str) -> None:
        turn(s, question)
        turn(s, "and now?")

    program = traced(chat)
    assert not ops(program, HostCall)
    assert [op.site.occurrence for op in ops(program, Gen)] == [0, 1]
    assert [op.role for op in ops(program, RoleOpen)] == ["user", "assistant"] * 2


def test_closures_and_loops_over_constants() -> None:
    aspects = ["a", "b"]

    @sgl.function
    def program(s: Any) -> dict[str, Any]:
        forks = s.fork(aspects)
        for fork, aspect in zip(forks, aspects, strict=True):
            fork += f"{aspect}: " + sgl.gen("score")
        return dict(s.join(forks))

    made = traced(program)
    assert [op.text for op in ops(made, Append)] == ["a: ", "b: "]
    (join,) = ops(made, Join)
    assert [value.id for value in join.values] == [op.results[1].id for op in ops(made, Gen)]
    assert len(made.returns["score"]) == 2  # type: ignore[arg-type, index, call-overload]


def test_nested_forks_gather_lists_of_lists() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        outer = s.fork(2)
        for child in outer:
            inner = child.fork(2)
            inner += lambda i: f"{i}" + sgl.gen("x")
            inner.join()
        return outer.join()

    made = traced(program)
    joins = ops(made, Join)
    assert [join.site.fork for join in joins] == [(0,), (1,), ()]
    assert joins[2].values == (joins[0].results[0], joins[1].results[0])
    assert made.returns == {"x": joins[2].results[0]}


def test_three_spellings_of_a_role_record_the_same() -> None:
    @sgl.function
    def expression(s: Any) -> None:
        s += sgl.user("hi" + sgl.select("x", choices=["a", "b"]))

    @sgl.function
    def method(s: Any) -> None:
        s.user("hi" + sgl.select("x", choices=["a", "b"]))

    @sgl.function
    def block(s: Any) -> None:
        with s.user():
            s += "hi" + sgl.select("x", choices=["a", "b"])

    @sgl.function
    def begin_end(s: Any) -> None:
        s += sgl.user_begin()
        s += "hi" + sgl.select("x", choices=["a", "b"])
        s += sgl.user_end()

    texts = {to_text(traced(f)).replace(f.__name__, "f") for f in (expression, method, block, begin_end)}
    assert len(texts) == 1
    assert ops(traced(block), Select)


def test_the_first_parameter_may_have_any_name() -> None:
    @sgl.function
    def program(prompt: Any, s: str) -> None:
        prompt += s + sgl.gen("x")

    assert [op.name for op in traced(program).params if isinstance(op, Arg)] == ["s"]


def test_an_exception_inside_a_turn_leaves_the_state_usable() -> None:
    @sgl.function
    def program(s: Any) -> None:
        try:
            with s.user():
                raise ValueError
        except ValueError:
            s += sgl.assistant("sorry")

    made = traced(program)
    assert [op.role for op in ops(made, RoleClose)] == ["user", "assistant"]


def test_an_exception_names_its_place() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "a"
        raise ValueError("no good")

    with pytest.raises(RunError, match="no good") as caught:
        program.trace()
    assert caught.value.loc is not None
    assert caught.value.loc.line == program.definition.code.co_firstlineno + 3


def test_no_source_is_a_boundary() -> None:
    names: dict[str, Any] = {}
    exec("def program(s):\n    s += 'a'\n", names)
    made = sgl.function(names["program"]).trace()
    assert isinstance(made.ops[-1], HostCall)
    assert "source" in made.ops[-1].reason


def test_a_missing_variable_is_a_key_error_too() -> None:
    @sgl.function
    def program(s: Any) -> str:
        return str(s["nothing"])

    with pytest.raises(TraceError, match="nothing") as caught:
        program.trace()
    assert isinstance(caught.value, KeyError)


def test_inputs_are_not_changed() -> None:
    stops = ["\n"]

    @sgl.function
    def program(s: Any) -> None:
        s += sgl.gen("x", stop=stops)
        s += sgl.gen("y", stop=stops)
        own = []
        own.append("z")
        s += sgl.gen(own[0])
        stops.append("later")

    made = program.trace()
    assert stops == ["\n"]
    assert [op.site.name for op in ops(made, Gen)] == ["x", "y", "z"]
    assert [op.sampling.stop for op in ops(made, Gen)] == [("\n",), ("\n",), ()]
    assert isinstance(made.ops[-1], HostCall)


def test_returned_texts_are_values() -> None:
    @sgl.function
    def program(s: Any, name: str) -> Any:
        s += sgl.gen("x")
        return {"hello": [s["x"], name, 3, None], "both": s["x"] + name}

    returns: Any = traced(program).returns
    assert isinstance(returns["hello"][0], Value)
    assert returns["hello"][2:] == (3, None)
    assert isinstance(returns["both"], Value)


def test_scopes_copies_and_appended_branches() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        with s.var_scope("scope"):
            s += "a" + sgl.gen("x")
        with s.copy() as c:
            c += "b" + sgl.gen("y")
        forks = s.fork(2)
        forks += lambda i: f"{i}" + sgl.gen("z")
        forks.join(mode="concate_and_append")
        s += s["scope"]
        return s["scope"]

    made = traced(program)
    assert not ops(made, HostCall)
    first, _, left, right = ops(made, Gen)
    assert [op.text for op in ops(made, Append)][-5:-1] == ["0", left.results[1], "1", right.results[1]]
    (text,) = ops(made, Format)[-1:]
    assert text.parts == ("a", first.results[1])
    assert isinstance(made.returns, Value)


def test_a_scope_over_chat_turns_is_a_text_of_the_stream() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        with s.var_scope("scope"):
            s += sgl.user("hi")
        s += sgl.assistant(sgl.gen("x"))
        return s["scope"]

    made = traced(program)
    begin, end = ops(made, Root)[0].results[0], ops(made, RoleClose)[0].results[0]
    stored, returned = ops(made, TextOf)
    assert (stored.stream, stored.since) == (returned.stream, returned.since) == (end, begin)
    assert [(op.name, op.value) for op in ops(made, Store)] == [("scope", stored.results[0])]
    assert made.returns == returned.results[0]


def test_forms_are_sglang_s() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen_int("i", stop="x") + sgl.gen("s", dtype="str") + sgl.gen("r", regex="[a-c]+")

    made = ops(traced(program), Gen)
    assert [op.sampling.regex for op in made] == [REGEX_INT, REGEX_STR, "[a-c]+"]
    assert made[0].sampling.stop == ("x", " ", "\n")


@sgl.tool
async def look(text: str) -> str:
    return text.upper()


async def twice(s: Any, name: str) -> str:
    s += sgl.gen(name)
    return await look(s[name]) + await look(s[name])


@sgl.function
async def inner(s: Any, q: str) -> str:
    s += q + sgl.gen("i")
    return s["i"]


@sgl.function
async def awaiting(s: Any, q: str) -> Any:
    s += q
    said = await twice(s, "a")
    late = look("never awaited")
    result = await inner.arun(said)
    return said, result.ret_value, late is None


@pytest.mark.slow
def test_an_async_program_is_traced_with_what_it_awaits(recwarn: Any) -> None:
    kinds = [type(op).__name__ for op in traced(awaiting).ops]
    assert kinds.count("Tool") == 2
    assert kinds.count("Call") == 1
    assert not ops(traced(awaiting), HostCall)
    backend = ScriptedBackend(lambda asked: f"<{asked.site.name}>")
    results = [awaiting.run("q", backend=backend, mode=mode) for mode in ("plan", "python")]
    assert [result.ret_value for result in results] == [("<A><A>", "<i>", False)] * 2
    assert results[0].text() == results[1].text() == "q<a>"


def test_what_else_is_awaited_is_a_graph_break() -> None:
    @sgl.function
    async def program(s: Any) -> None:
        s += "a"
        await asyncio.sleep(0)

    (call,) = ops(traced(program), HostCall)
    assert "sleep" in call.reason
