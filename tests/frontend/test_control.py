"""Structured ops, tools and programs in programs: plain Python in a run, one op each in a recorded program."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import ScriptedBackend
from sglc.errors import RunError, SglcError, TraceError
from sglc.frontend.tracing import control as ctl
from sglc.frontend.tracing.tools import pure, tool, tools_of
from sglc.ir.core import Program, Type, walk
from sglc.ir.ops import Call, Cond, Gen, HostCall, Loop, Map, PureCall, Switch, Tool
from sglc.ir.text.printer import from_text, to_text
from sglc.ir.verify.verify import verify
from tests.frontend.stand_in import Answers, StandIn, interpreted, same_on_every_path
from tests.oracle_backend import OracleBackend
from tests.reference.interpret import Model, meaning
from tests.source_fuzz.answers import HashBackend
from tests.waiting import Gate

BACKEND = OracleBackend()
SEEN: list[Any] = []


@tool
def note(text: str, *, level: int = 0, tags: Any = None) -> list[str]:
    SEEN.append((text, level, tags))
    return [text, "more"]


@tool
def anything(text: str):  # type: ignore[no-untyped-def]
    return {"text": text}


@pure
def double(text: str) -> str:
    return text * 2


@pure
def judge(text: str) -> bool:
    return text < "8"


def traced(function: sgl.Function, **options: Any) -> Program:
    program = function.trace(**options)
    verify(program)
    assert to_text(from_text(to_text(program), "test.sglir")) == to_text(program)
    return program


def every(program: Program, kind: type) -> list[Any]:
    return [op for op in walk(program.ops) if isinstance(op, kind)]


def graph_break(function: sgl.Function) -> HostCall:
    (found,) = every(traced(function), HostCall)
    return found  # type: ignore[no-any-return]


def declared(name: str, given: tuple[Any, ...], named: Any) -> Any:
    made = tools_of()[name](*given, **named)
    return tuple(made) if isinstance(made, list) else made


# -- cond and switch -----------------------------------------------------------------------------------


@sgl.function
def conditional(s: Any, word: str) -> Any:
    s += word + sgl.gen("x")

    def yes() -> str:
        nonlocal s
        s += "yes" + sgl.gen("why")
        s["kind"] = "good"
        return s["why"]  # type: ignore[no-any-return]

    def no(s: Any = s) -> str:
        s += "no"
        s["kind"] = "bad " + s["x"]
        return "none"

    why = ctl.cond(judge(s["x"]), yes, no)
    s += f"because {why}, so {s['kind']}" + sgl.gen("end")
    return {"why": why, "kind": s["kind"], "end": s["end"]}


@sgl.function
def switched(s: Any) -> Any:
    s += "which" + sgl.select("x", choices=["a", "b", "c"])

    def more() -> None:
        nonlocal s
        s += "A" + sgl.select("y", choices=["1", "2"])
        s += "one" if s["y"] == "1" else "two" + sgl.gen("two")

    def other() -> None:
        nonlocal s
        s += "other"

    ctl.switch(s["x"], {"a": more, "b": lambda: None}, other)
    s += sgl.gen("end")
    return s["end"]


@sgl.function
def without_orelse(s: Any) -> Any:
    s += sgl.gen("x")
    ctl.cond(ctl.not_(ctl.contains("1", s["x"])), lambda: s.user("no one") and None)
    ctl.cond(ctl.eq(s["x"].strip().lower(), "abcd"), lambda: s.user("abcd"))
    s += sgl.gen("end")
    return [s["end"], ctl.parse_json('{"a": [1]}')]


def test_cond_is_one_op() -> None:
    program = traced(conditional)
    (branch,) = every(program, Cond)
    assert every(program, HostCall) == []
    assert len(every(program, Gen)) == 3
    assert [value.type for value in branch.results].count(Type.STREAM) == 1
    for word in "abcdefghij":
        assert same_on_every_path(conditional, word=word) == 1


def test_switch_is_one_op_with_branches_in_its_arms() -> None:
    program = traced(switched)
    assert [op.cases for op in program.ops if isinstance(op, Switch)] == [("a", "b")]
    assert len(every(program, Switch)) == 2
    assert [op.site.name for op in every(program, Gen)] == ["two", "end"]
    assert same_on_every_path(switched) == 4


def test_a_predicate_on_any_text() -> None:
    program = traced(without_orelse)
    assert len(every(program, Cond)) == 2
    assert every(program, HostCall) == []


@pytest.mark.parametrize("function", [conditional, switched], ids=lambda f: f.__name__)
def test_an_ordinary_run_is_plain_python(function: sgl.Function) -> None:
    args = {parameter.name: "w" for parameter in function.definition.parameters}
    result = function.run(**args, backend=BACKEND, seed=3, max_new_tokens=3)
    assert result.error() is None
    assert result["end"]


def test_a_predicate_that_is_known_is_no_op() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        ctl.cond(True, lambda: s.user("a"), lambda: s.user("b"))
        return [ctl.switch("x", {"y": lambda: 1}, lambda: 2), ctl.eq("a", "a"), ctl.not_("")]

    made = traced(program)
    assert every(made, Cond) == []
    assert made.returns == (2, True, True)


def test_a_variable_of_one_arm_cannot_be_read() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.gen("x")

        def then() -> None:
            s["only"] = "here"

        ctl.cond(ctl.eq(s["x"], "a"), then)
        return s["only"]

    with pytest.raises(TraceError, match="some arms of a branch store it") as caught:
        program.trace()
    assert caught.value.code == "SGLC148"
    assert caught.value.loc is not None
    assert caught.value.loc.line == program.definition.code.co_firstlineno + 8


def test_arms_that_end_in_different_turns_are_refused() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.gen("x")

        def then(s: Any = s) -> None:
            s += sgl.user_begin()

        ctl.cond(ctl.eq(s["x"], "a"), then)

    with pytest.raises(TraceError, match="different chat turns"):
        program.trace()


def test_an_arm_may_go_on_as_ordinary_python() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.gen("x")
        ctl.cond(ctl.eq(s["x"], "a"), lambda: time.sleep(9), lambda: s.user("b"))
        s += sgl.gen("end")

    made = traced(program)
    assert "sleep" in graph_break(program).reason
    assert [op.site.name for op in every(made, Gen)] == ["x", "end"]


def test_all_arms_may_go_on_as_ordinary_python() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.gen("x")
        ctl.cond(ctl.eq(s["x"], "a"), lambda: time.sleep(1), lambda: time.sleep(2))
        s += sgl.gen("never")

    made = traced(program)
    assert len(every(made, HostCall)) == 2
    assert [op.site.name for op in every(made, Gen)] == ["x"]


def test_python_s_own_variables_are_not_carried() -> None:
    @sgl.function
    def assigns(s: Any) -> Any:
        count = 0
        s += sgl.gen("x")

        def then() -> None:
            nonlocal count
            count += 1

        ctl.cond(ctl.eq(s["x"], "a"), then)
        return count

    @sgl.function
    def appends(s: Any) -> Any:
        found: list[str] = []
        s += sgl.gen("x")
        ctl.cond(ctl.eq(s["x"], "a"), lambda: found.append("a"), lambda: found.append("b"))
        return found

    assert "`count`" in graph_break(assigns).reason
    assert {op.reason for op in every(traced(appends), HostCall)} == {
        "`.append(...)` changes what outlives the program"
    }


def test_a_loop_over_constants_still_makes_lists() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.gen("x")

        def then() -> Any:
            own = []
            for i in range(2):
                own.append(f"{i}")
            return own

        return ctl.cond(ctl.eq(s["x"], "a"), then, lambda: ["p", "q"])

    assert every(traced(program), HostCall) == []


# -- loop ----------------------------------------------------------------------------------------------


@sgl.function
def looped(s: Any) -> Any:
    s += "go"
    s["last"] = "nothing"

    def body() -> Any:
        nonlocal s
        s += "think" + sgl.gen("thought") + sgl.select("act", choices=["On", "Off"])
        s["last"] = f"{s['thought']} after {s['last']}"
        return ctl.not_(ctl.eq(s["act"], "Off"))

    ctl.loop(body, max_iters=3)
    s += "end" + sgl.gen("end")
    return [s["act"], s["last"], s["end"]]


def loop_by_hand(state: StandIn) -> Any:
    """What `looped` does, with the sites of iterations."""
    return looped.definition.call(state)


def test_loop_carries_streams_and_variables() -> None:
    program = traced(looped)
    (op,) = every(program, Loop)
    assert op.max_iters == 3
    assert [value.type for value in op.init].count(Type.STREAM) == 1
    assert len(every(program, Gen)) == 2
    for stops in range(4):
        script = (0,) * stops + (1,)
        found = interpreted(program, Answers(script), declared)
        rounds = min(stops + 1, 3)
        thoughts = [text for site, (_, text) in found.calls.items() if site.name == "thought"]
        assert len(thoughts) == rounds
        last = "nothing"
        for thought in thoughts:
            last = f"{thought} after {last}"
        assert found.returns == ("On" if stops >= 3 else "Off", last, list(found.calls.values())[-1][1])
        prompt = list(found.calls.values())[-1][0]
        assert prompt.startswith("go")
        assert prompt.count("think") == rounds


def test_loop_in_an_ordinary_run() -> None:
    result = looped.run(backend=BACKEND, seed=1, max_new_tokens=3)
    assert result.error() is None
    assert 1 <= result.text().count("think") <= 3


def test_a_loop_without_an_answer_runs_to_its_bound() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        def body(s: Any = s) -> None:
            s += "x" + sgl.gen("x")

        ctl.loop(body, max_iters=3)
        return s["x"]

    found = interpreted(traced(program), Answers(()), declared)
    assert len(found.calls) == 3
    assert found.returns == list(found.calls.values())[-1][1]
    assert len(program.run(backend=BACKEND, max_new_tokens=2).calls) == 3


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_join_in_a_loop_keeps_what_the_first_iteration_stored(by_hand: bool) -> None:
    """No block says both what the first iteration does and what later ones do."""

    @sgl.function
    def program(s: Any, joins: bool, most: int) -> Any:
        def body(s: Any = s) -> None:
            forks = s.fork(2)
            for fork in forks:
                fork += "x" + sgl.gen("x")
                if by_hand:
                    fork["y"] = "text"
            if joins:
                s.join(forks)
            s += forks[0]["x"]

        ctl.loop(body, max_iters=most)
        return s["x"] if joins else None

    assert "joins `x` again" in graph_break(program.bind(joins=True, most=2)).reason
    for arguments in ({"joins": True, "most": 1}, {"joins": False, "most": 2}):
        assert len(every(traced(program.bind(**arguments)), Loop)) == 1
    python, auto = (
        program.run(True, 3, backend=BACKEND, seed=1, max_new_tokens=3, mode=mode).sync()
        for mode in ("python", "auto")
    )
    assert auto.ret_value == python.ret_value == [call.samples[0].text for call in python.calls[:2]]
    assert (auto.text(), dict(auto.variables)) == (python.text(), dict(python.variables))


def test_a_branch_on_a_loops_result() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        def body(s: Any = s) -> Any:
            s += sgl.select("act", choices=["a", "b"])
            return ctl.eq(s["act"], "a")

        ctl.loop(body, max_iters=2)
        return 1 if s["act"] == "a" else 2

    (branch,) = every(traced(program), Switch)
    assert branch.cases == ("a", "b")


def test_turns_in_a_loop() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        def body(s: Any = s) -> None:
            s += sgl.user("more") + sgl.assistant(sgl.gen("x"))

        ctl.loop(body, max_iters=2)
        s += sgl.user("end") + sgl.assistant(sgl.gen("y"))

    assert len(every(traced(program), Loop)) == 1

    @sgl.function
    def broken(s: Any) -> Any:
        def body(s: Any = s) -> None:
            s += sgl.user_begin()

        ctl.loop(body, max_iters=2)

    with pytest.raises(TraceError, match="another chat turn"):
        broken.trace()


def test_ordinary_python_in_a_loop_is_a_boundary_before_it() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.gen("before")

        def body(s: Any = s) -> None:
            s += sgl.gen("x")
            time.sleep(9)

        ctl.loop(body, max_iters=2)

    made = traced(program)
    assert [op.site.name for op in every(made, Gen)] == ["before"]
    assert "sleep" in graph_break(program).reason


def test_loops_in_a_loop_store_what_is_not_there_before() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        def outer() -> None:
            def inner() -> Any:
                nonlocal s

                def innermost() -> None:
                    nonlocal s
                    s += sgl.gen("third")

                s += sgl.gen("second")
                s["stored"] = s["second"]
                ctl.loop(innermost, max_iters=2)
                return ctl.not_(ctl.eq(s["second"], s["third"]))

            ctl.loop(inner, max_iters=2)

        ctl.loop(outer, max_iters=2)
        return [s["stored"], s["third"]]

    assert len(every(traced(program), Loop)) == 3
    equal_runs(program)


def test_loops_in_arms_in_a_loop_store_what_is_not_there_before() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s["word"] = "a"

        def outer() -> None:
            def inner() -> None:
                nonlocal s
                s += sgl.gen("made")

            def other() -> None:
                s["made"] = "other"

            ctl.cond(ctl.eq(s["word"], "a"), lambda: ctl.loop(inner, max_iters=2), other)
            s["word"] = s["made"]
            ctl.loop(inner, max_iters=1)

        ctl.loop(outer, max_iters=3)
        return [s["word"], s["made"]]

    assert len(every(traced(program), Loop)) == 3
    equal_runs(program)


def test_a_loop_stores_what_one_arm_of_a_branch_before_it_has_stored() -> None:
    @sgl.function
    def program(s: Any, word: str) -> Any:
        s += sgl.gen("made")
        ctl.cond(ctl.eq(word, "a"), lambda: s.set_var("stored", "arm"))
        s["between"] = "between"
        ctl.loop(lambda: s.set_var("stored", "loop") and None, max_iters=2)
        return s["stored"]

    for word in "ab":
        python, plan = (
            program.run(word, backend=HashBackend(), seed=1, mode=mode) for mode in ("python", "plan")
        )
        assert list(plan.variables.items()) == list(python.variables.items())
        assert plan.ret_value == python.ret_value == "loop"


@pytest.mark.parametrize("bounds", [(1, 2), (2, 1), (2, 2)])
def test_a_join_in_a_loop_in_a_loop_keeps_what_the_first_has_stored(bounds: tuple[int, int]) -> None:
    @sgl.function
    def program(s: Any) -> Any:
        def inner() -> None:
            forks = s.fork(2)
            forks += sgl.gen("made")
            s.join(forks)

        ctl.loop(lambda: ctl.loop(inner, max_iters=bounds[0]), max_iters=bounds[1])
        return s["made"]

    assert program.run(backend=HashBackend()).mode == "python"


@pytest.mark.parametrize("bound", [0, -1, True, "3"])
def test_a_loop_needs_a_bound(bound: Any) -> None:
    with pytest.raises(TraceError, match="max_iters"):
        ctl.loop(lambda: None, max_iters=bound)


# -- map -----------------------------------------------------------------------------------------------


@sgl.function
def mapped(s: Any, word: str) -> Any:
    s += "read" + sgl.gen("x")

    def body(item: str) -> Any:
        with s.copy() as branch:
            branch += f"{item}: " + sgl.gen("y")
            made = branch["y"]
        return f"<{made}>"

    tips = ctl.map(["one", word, s["x"]], body)
    s += "end" + sgl.gen("end")
    return tips


def test_map_is_one_op() -> None:
    program = traced(mapped)
    (op,) = every(program, Map)
    assert every(program, HostCall) == []
    found = interpreted(program, Answers(()), declared, word="w")
    made = [(prefix, text) for site, (prefix, text) in found.calls.items() if site.name == "y"]
    first = found.calls[next(site for site in found.calls if site.name == "x")][1]
    assert [prefix for prefix, _ in made] == [f"read{first}{item}: " for item in ("one", "w", first)]
    assert found.returns == tuple(f"<{text}>" for _, text in made)
    assert [value.type for value in op.results] == [Type.LIST]


def test_map_in_an_ordinary_run() -> None:
    result = mapped.run("w", backend=BACKEND, seed=1, max_new_tokens=2)
    assert len(result.ret_value) == 3


@pytest.mark.parametrize("words", ["", "a", "a b"])
def test_a_map_whose_body_returns_nothing_gives_none_for_each_item(words: str) -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.gen("words")

        def body(item: str) -> None:
            note(item)

        made = ctl.map(s["words"].split(), body)
        s += str(made)
        others = [body(item) for item in s["words"].split()]
        return [made, others, ctl.map([s["words"], "other"], body), ctl.map([], body), len(made)]

    assert every(traced(program), HostCall) == []
    backend = ScriptedBackend(lambda asked: words)
    none, count = [None] * len(words.split()), len(words.split())
    for mode in ("python", "plan"):
        result = program.run(backend=backend, mode=mode)
        assert result.ret_value == [none, none, [None, None], [], count]
        assert result.text() == words + str(none)


USES_OF_STATES: list[Any] = [
    lambda made: made is None,
    lambda made: [branch is None for branch in made],
    lambda made: "some" if made else "none",
    lambda made: made == [None],
    lambda made: ctl.map(["x"], lambda item: item if made is None else "some"),
    lambda made: len(made),
]


@pytest.mark.parametrize("use", USES_OF_STATES, ids=range(len(USES_OF_STATES)))
@pytest.mark.parametrize("else_", [None, "text"])
@pytest.mark.parametrize("literal", [True, False])
def test_states_that_a_map_gives_are_no_values_of_a_plan(use: Any, else_: str | None, literal: bool) -> None:
    @sgl.function
    def program(s: Any, used: bool = True) -> Any:
        s += sgl.gen("words")
        items = ["a", "b"] if literal else s["words"].split()
        made = ctl.map(items, lambda item: s.fork(1)[0].user(item) if item == "a" else else_)
        return use(made) if used else None

    backend = ScriptedBackend(lambda asked: "a b")
    assert program.run(used=False, backend=backend, mode="plan").ret_value is None
    with pytest.raises(SglcError) as caught:
        program.run(backend=backend, mode="plan")
    assert caught.value.code == "SGLC058"
    runs = [program.run(backend=backend, mode=mode).ret_value for mode in ("python", "auto")]
    assert runs[0] == runs[1]


def test_a_state_that_one_arm_of_a_branch_gives_is_no_value_of_a_plan() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.gen("word")
        made = ctl.cond(ctl.eq(s["word"], "a"), lambda: s.user("yes"))
        return made is None

    for mode in ("python", "auto"):
        results = [
            program.run(backend=ScriptedBackend(says), mode=mode) for says in (lambda _: "a", lambda _: "b")
        ]
        assert [(result.ret_value, result.mode) for result in results] == [(False, "python"), (True, "python")]


@pytest.mark.parametrize("mode", ["python", "plan"])
def test_a_map_goes_over_what_another_one_or_json_gives(mode: Any) -> None:
    @sgl.function
    def program(s: Any, counts: Any) -> Any:
        s += sgl.gen("words")
        rows = sgl.map(s["words"].split(","), lambda word: word.split(":"))
        told = sgl.parse_json(f"[{s['words']}]")
        lengths = sgl.map(rows, len)
        added = [sgl.map(items, lambda item: item + 1) for items in (lengths, counts, told)]
        return [lengths, sgl.map(rows, lambda row: row[0]), *added]

    result = program.run([1, 2], backend=ScriptedBackend(lambda asked: "3,4"), mode=mode)
    assert result.ret_value == [[1, 1], ["3", "4"], [2, 2], [2, 3], [4, 5]]


def test_lists_in_what_a_map_gives_stay_lists() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        return ctl.map(["a", "b"], lambda item: [item, ctl.map(["c", "d"], double)])

    assert equal_runs(program).ret_value == [[item, ["cc", "dd"]] for item in "ab"]


@dataclass(frozen=True)
class Kept:
    """What the body of a map gives."""

    word: str


def test_tuples_and_objects_in_what_a_map_gives_stay_what_they_are() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        made = ctl.map(["a", "b"], lambda item: ({"k": [(item, 1)]}, Kept(item)))
        s += f"{made} {[[(word, Kept(word))] for word in sgl.map(['c'], double)]}"
        return made

    assert equal_runs(program).ret_value == [({"k": [(item, 1)]}, Kept(item)) for item in "ab"]


def test_tuples_that_a_loop_carries_stay_tuples() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s["from_before"] = ("a", ["b", ("c",)])

        def body() -> Any:
            nonlocal s
            s += sgl.gen("word") + str(s["from_before"])
            s["from_before"] = (s["word"], [s["from_before"][0], (1,)])
            s["its_own"] = (s["word"], {"k": (s["word"],)})
            return ctl.eq(s["word"], "")

        ctl.loop(body, max_iters=2)
        s += f"{s['from_before']} {s['its_own']}"
        return s["from_before"], s["its_own"]

    assert len(every(traced(program), Loop)) == 1
    equal_runs(program)


def test_tuples_that_a_called_program_stores_stay_tuples() -> None:
    @sgl.function
    def stores(s: Any) -> Any:
        s["pair"] = ("a", [("b", double("c"))])

    @sgl.function
    def program(s: Any) -> Any:
        made = stores()
        s += f"{made['pair']}"
        first, (second,) = made["pair"]
        return made["pair"], first, second

    assert equal_runs(program).ret_value == (("a", [("b", "cc")]), "a", ("b", "cc"))


def test_map_must_not_change_a_state_from_outside() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        def body(item: str, s: Any = s) -> None:
            s += item

        ctl.map(["a"], body)

    with pytest.raises(TraceError, match="made outside of it") as caught:
        program.trace()
    assert caught.value.code == "SGLC148"


def test_what_map_stores_cannot_be_read() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        def body(item: str) -> None:
            s["item"] = item

        ctl.map(["a"], body)
        return s["item"]

    with pytest.raises(TraceError, match="once for each item"):
        program.trace()


@sgl.function
def joins_for_each(s: Any) -> Any:
    s += "go"
    s["last"] = "none"

    def body(item: str) -> Any:
        before, seen = s["last"], "x" in s
        forks = s.fork(2)
        for fork in forks:
            fork += f"{item}:" + sgl.gen("x")
        s.join(forks)
        with s.var_scope("scope"):
            pass
        s["last"] = item
        return [before, f"{seen}", s["x"][0] + s["x"][1]]

    return ctl.map(["a", "b"], body)


@sgl.function
def maps_in_a_map(s: Any) -> Any:
    def inner(item: str) -> None:
        s[item] = f"{item} of {s['outer']}"

    def body(item: str) -> Any:
        s["outer"] = item
        ctl.map(["a", "b"] if item == "one" else ["b", "c"], inner)
        return "a" in s

    return [body("one"), *ctl.map(["two"], body)]


def equal_runs(program: sgl.Function) -> sgl.Result:
    """What the program gives, which is the same as Python and as a plan."""
    python, plan = (
        program.run(backend=HashBackend(), seed=1, mode=mode).sync()  # type: ignore[arg-type]
        for mode in ("python", "plan")
    )
    assert python.error() is None
    assert plan.ret_value == python.ret_value
    assert dict(plan.variables) == dict(python.variables)
    assert plan.text() == python.text()
    assert {call.site for call in plan.calls} == {call.site for call in python.calls}
    return python


def test_items_of_a_map_see_nothing_of_each_other() -> None:
    result = equal_runs(joins_for_each)
    assert [value[:2] for value in result.ret_value] == [["none", "False"]] * 2
    assert (result["last"], result["x"]) == ("b", [call.samples[0].text for call in result.calls[2:]])
    failed = fails_in_the_second.run(backend=HashBackend(), mode="python")
    assert failed.error() is not None
    assert dict(failed.variables) == {"last": "a"}


@sgl.function
def fails_in_the_second(s: Any) -> None:
    def body(item: str) -> None:
        assert item == "a"
        s["last"] = item

    ctl.map(["a", "b"], body)


def test_a_map_in_a_map() -> None:
    result = maps_in_a_map.run(backend=HashBackend(), mode="python")
    assert result.ret_value == [True, True]
    assert dict(result.variables) == {"outer": "two", "a": "a of one", "b": "b of two", "c": "c of two"}
    assert equal_runs(maps_and_reads).ret_value == [["0", "False", ["c", "d"]]] * 3


@sgl.function
def maps_and_reads(s: Any) -> Any:
    s["last"] = "0"

    def inner(item: str) -> str:
        s["last"] = s["new"] = item
        return item

    def body(item: str) -> Any:
        return [s["last"], f"{'new' in s}", ctl.map(["c", "d"], inner)]

    return ctl.map(["a", "b", "e"], body)


def test_variables_behind_a_map_have_the_order_of_its_items() -> None:
    @sgl.function
    def program(s: Any) -> None:
        def body(item: str) -> None:
            def then() -> None:
                s["of a"] = item

            def orelse() -> None:
                s["of others"] = item

            ctl.cond(ctl.eq(item, "a"), then, orelse)

        ctl.map(["a", "b"], body)

    assert list(equal_runs(program).variables) == ["of a", "of others"]


@sgl.function
def stores_as_python(s: Any, item: str) -> None:
    s += item + sgl.gen("x")
    time.sleep(0)
    s["said"] = f"of {item}"


@pytest.mark.parametrize("batch", [False, True])
def test_what_an_item_of_a_map_calls_has_its_own_variables(batch: bool) -> None:
    @sgl.function
    def program(s: Any) -> Any:
        made: list[sgl.Result] = []

        def body(item: str) -> Any:
            made.extend(stores_as_python.run_batch([{"item": item}]) if batch else [stores_as_python(item)])
            return [each["said"] for each in made]

        return ctl.map(["a", "b"], body)

    assert program.run(backend=HashBackend()).ret_value == [["of a"], ["of a", "of b"]]


@pytest.mark.parametrize("outside", [False, True])
def test_branches_outlive_the_item_of_a_map_that_made_them(outside: bool) -> None:
    @sgl.function
    def program(s: Any) -> Any:
        made = list(s.fork(2)) if outside else []

        def body(item: str) -> Any:
            if item != "a":
                return [each.text() for each in made] and [each["said"] for each in made if not outside]
            if not outside:
                made.extend(s.fork(2))
            for branch in made:
                branch += item + sgl.gen("x", regex="[0-9]", retries=2)
                branch["said"] = item
                branch += sgl.gen("y", regex="[0-9]", retries=2)
            s.join(made)
            return []

        items = ctl.map(["a", "b", "c"], body)
        return [items, *s["y"], *(each["said"] for each in made)]

    result = program.run(backend=ScriptedBackend(lambda asked: "7"), mode="python").ret_value
    assert result == [[[], *[[] if outside else ["a", "a"]] * 2], "7", "7", "a", "a"]


def test_a_join_asks_for_no_variable_that_its_branches_have_not() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += "go" + sgl.select("x", choices=["a", "b"])
        forks = s.fork(2)
        forks += lambda i: f"{i}" + sgl.gen("y")

        def then() -> None:
            s["other"] = "of the arm"

        ctl.cond(ctl.eq(s["x"], "a"), then)
        s.join(forks)
        return s["y"]

    equal_runs(program)


def test_a_comprehension_that_stores_is_ordinary_python() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.gen("x", json_schema={"type": "array", "items": {"type": "string"}})
        s["last"] = "none"

        def body(item: str) -> Any:
            before = s["last"]
            s["last"] = item
            return before

        return [body(item) for item in ctl.parse_json(s["x"])]

    assert "stores `last` for each item" in graph_break(program).reason


@pytest.mark.parametrize("arm", ["a", "b"])
def test_each_arm_may_join(arm: str) -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += "go" + sgl.select("x", choices=["a", "b"])
        forks = s.fork(2)
        forks += lambda i: f"{i}" + sgl.gen("y")

        def then() -> None:
            s.join(forks)

        def orelse() -> None:
            others = s.fork(["of the arm"])
            others += sgl.gen("z")
            s.join(others)
            if s["x"] == "a":  # a path each
                s.join(forks, "concate_and_append")
            else:
                s.join(forks)

        ctl.cond(ctl.eq(s["x"], arm), then, orelse)
        s += "end" + sgl.gen("end")

    equal_runs(program)

    @sgl.function
    def goes_on(s: Any) -> None:
        forks = s.fork(1)
        s += "go" + sgl.select("x", choices=["a", "b"])
        ctl.cond(ctl.eq(s["x"], arm), lambda: len(s.join(forks)))
        forks += "more"

    with pytest.raises(TraceError, match="has been joined"):
        goes_on.trace()


@pytest.mark.parametrize("many", [False, True])
def test_a_body_that_comes_again_joins_a_branch_once(many: bool) -> None:
    @sgl.function
    def loops(s: Any) -> None:
        forks = s.fork(2)
        forks += lambda i: f"{i}" + sgl.gen("y")

        def body() -> None:
            s.join(forks)

        ctl.loop(body, max_iters=2 if many else 1)

    @sgl.function
    def maps(s: Any) -> None:
        forks = s.fork(2)
        forks += lambda i: f"{i}" + sgl.gen("y")

        def body(item: str) -> None:
            s.join(forks)

        ctl.map(["a", "b"] if many else ["a"], body)

    for program in (loops, maps):
        if many:
            assert "joins a branch" in graph_break(program).reason
        else:
            assert every(traced(program), HostCall) == []
        python, auto = (program.run(backend=HashBackend(), mode=mode).error() for mode in ("python", "auto"))
        assert str(python) == str(auto)
        assert (python is not None) == many


@pytest.mark.parametrize("arm", ["a", "b"])
def test_whether_a_variable_of_one_arm_is_there_is_not_guessed(arm: str) -> None:
    @sgl.function
    def program(s: Any, joins: bool, plain: bool = False) -> Any:
        s += "go" + sgl.select("x", choices=["a", "b"])

        def then() -> None:
            s["y"] = "of the arm"

        ctl.cond(ctl.eq(s["x"], arm), then)
        if plain:
            return None
        if not joins:
            return "y" in s
        forks = s.fork(1)
        forks[0]["y"] = "of the branch"
        return len(s.join(forks))

    @sgl.function
    def called(s: Any) -> bool:
        return "y" in program(False, plain=True)

    for joins in (True, False):
        assert "`y` is stored" in graph_break(program.bind(joins=joins)).reason
        python, auto = (
            program.run(joins, backend=BACKEND, seed=1, mode=mode).ret_value for mode in ("python", "auto")
        )
        assert auto == python
    assert "stores under `y`" in graph_break(called).reason
    python, auto = (called.run(backend=BACKEND, seed=1, mode=mode).ret_value for mode in ("python", "auto"))
    assert auto == python


@pytest.mark.parametrize("read", [False, True])
def test_what_a_loop_stores_is_there_from_its_second_iteration_on(read: bool) -> None:
    @sgl.function
    def program(s: Any) -> Any:
        def body() -> None:
            if read:
                try:
                    s["before"] = s["y"]
                except KeyError:
                    s["before"] = "none"
            else:
                s["before"] = str("y" in s)
            s["y"] = "stored"
            s["here"] = str("y" in s)
            branch = s.fork(1)
            branch += "go" + sgl.gen("x")

        ctl.loop(body, max_iters=2)
        return [s["before"], s["here"]]

    python, auto = (
        program.run(backend=HashBackend(), seed=1, mode=mode).ret_value for mode in ("python", "auto")
    )
    assert auto == python == ["stored" if read else "True", "True"]
    if not read:
        assert "`y` is stored shows when the program runs" in graph_break(program).reason


def test_what_is_stored_in_any_case_is_there() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += "go" + sgl.select("x", choices=["a", "b"])
        s["before"] = "stored"
        seen = []

        def body(item: str) -> None:
            s["before"] = item
            s["once"] = item

        ctl.map(["a", "b"], body)
        seen += ["before" in s, "once" in s]
        ctl.cond(ctl.eq(s["x"], "a"), lambda: s.set_var("once", []))
        ctl.cond(ctl.eq(s["x"], "a"), lambda: s.set_var("y", "a"), lambda: s.set_var("y", s["x"]))
        seen += ["once" in s, "y" in s]
        if s["x"] == "a":
            s += "a" + sgl.gen("z")
        else:
            s += "b" + sgl.gen("z")
        return [*seen, "z" in s]

    assert every(traced(program), HostCall) == []
    for mode in ("python", "plan"):
        assert program.run(backend=HashBackend(), seed=1, mode=mode).ret_value == [True] * 5


# -- tools ---------------------------------------------------------------------------------------------


@sgl.function
def tooled(s: Any, word: str) -> Any:
    s += word + sgl.gen("x")
    notes = note(s["x"], level=2, tags={"all": [word, s["x"], 1, None, True]})
    found = anything(f"{s['x']}!")
    s += double(s["x"]) + double("ab") + sgl.gen("end")
    return {"notes": notes, "found": found, "end": s["end"], "more": notes + ["own"]}  # noqa: RUF005


def test_tools_are_ops_with_data() -> None:
    SEEN.clear()
    program = traced(tooled)
    assert SEEN == []
    assert [(op.name, op.gives) for op in every(program, Tool)] == [
        (f"{__name__}.note", "list"), (f"{__name__}.anything", "json"),
    ]  # fmt: skip
    assert [op.name for op in every(program, PureCall)] == ["sglc.known"] * 2 + [f"{__name__}.double"]
    found: Any = interpreted(program, Answers(()), declared, word="w")
    (text,) = [made for site, (_, made) in found.calls.items() if site.name == "x"]
    assert [(text, 2, {"all": ("w", text, 1, None, True)})] == SEEN
    assert found.returns["notes"] == (text, "more")
    assert found.returns["more"] == (text, "more", "own")
    assert found.returns["found"] == {"text": f"{text}!"}
    assert list(found.calls.values())[-1][0] == f"w{text}{text}{text}abab"


def test_a_tool_in_a_run_is_the_plain_function() -> None:
    SEEN.clear()
    result = tooled.run("w", backend=BACKEND, max_new_tokens=2)
    assert result.ret_value["notes"] == [result["x"], "more"]
    assert len(SEEN) == 1


def test_tools_of_a_program() -> None:
    assert sorted(tools_of(traced(tooled))) == [f"{__name__}.{name}" for name in ("anything", "double", "note")]
    assert tools_of()[f"{__name__}.double"]("a") == "aa"


def test_an_async_tool_is_awaited_in_a_run() -> None:
    @tool
    async def wait(text: str) -> str:
        await asyncio.sleep(0)
        return text + "!"

    @sgl.function
    async def program(s: Any) -> Any:
        s += "a" + sgl.gen("x")
        return await wait(s["x"])

    result = program.run(backend=BACKEND, max_new_tokens=2)
    assert result.ret_value == result["x"] + "!"


def test_what_is_no_data_is_not_given_to_a_tool() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.gen("x")
        note(BACKEND)  # type: ignore[arg-type]

    assert "given to `note`" in graph_break(program).reason


def test_a_number_is_not_a_text() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.gen("x")
        s += len(s["x"])

    assert "appending it" in graph_break(program).reason


def test_whether_a_value_is_a_text_shows_when_the_program_runs() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.gen("x")
        s += anything(s["x"])["text"] + sgl.gen("y")

    made = traced(program)
    assert [op.name for op in every(made, PureCall)] == ["sglc.known", "operator.getitem", "sglc.text"]
    model = Model(lambda site, prefix: f"{len(prefix)}.", lambda *_: 0, declared=declared)
    assert [prefix for prefix, _ in meaning(made, model, {}).calls.values()] == ["", "0.0."]


def test_a_name_is_declared_once() -> None:
    def make(first: bool) -> Callable[..., Any]:
        if first:

            @tool
            def same() -> str:
                return "1"
        else:

            @tool
            def same() -> str:
                return "2"

        return same

    make(True)
    make(True)  # the same place again: a module that is loaded twice
    with pytest.raises(TraceError, match="declared twice") as caught:
        make(False)
    assert caught.value.code == "SGLC149"


def test_a_module_that_is_loaded_again_brings_its_newest_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever line they are in now. Two of one name in it are still a mistake."""
    function = "\n@sgl.{}\ndef named_once(a: str) -> str:\n    return a + '{}'\n"
    path = tmp_path / "loaded_again.py"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path.write_text("import sglc as sgl\n" + function.format("tool", 1))
    module = importlib.import_module("loaded_again")
    monkeypatch.setitem(sys.modules, "loaded_again", module)
    for number, kind in ((2, "pure"), (3, "tool")):
        path.write_text("# moved\n" * number + "import sglc as sgl\n" + function.format(kind, number))
        importlib.reload(module)
        assert module.named_once("a") == tools_of()["loaded_again.named_once"]("a") == f"a{number}"
    path.write_text("import sglc as sgl\n" + function.format("tool", 4) + function.format("tool", 5))
    with pytest.raises(TraceError, match="declared twice"):
        importlib.reload(module)


def test_a_tool_is_a_function() -> None:
    with pytest.raises(TraceError, match="`@tool` wants a function, not `int`"):
        tool(3)  # type: ignore[call-overload]


def test_result_types_come_from_annotations() -> None:
    names: dict[str, Any] = {"tool": tool}
    source = "def f(x: Unknown) -> {}: ...\n"
    for number, (annotation, kind) in enumerate(
        [
            ("str", Type.TEXT),
            ("bool", Type.BOOL),
            ("list[str]", Type.LIST),
            ("dict", Type.JSON),
            ("int", Type.JSON),
        ]
    ):
        exec("from __future__ import annotations\n" + source.format(annotation), names)
        names["f"].__qualname__ = f"annotated_{number}"
        assert tool(names["f"]).gives is kind


# -- programs in programs ------------------------------------------------------------------------------


@sgl.function
def expand(s: Any, tip: str, style: str = "kind", times: int = 1) -> Any:
    for _ in range(times):
        s += f"Expand ({style}): {tip}\n" + sgl.gen("detailed_tip", stop="\n")
    if style == "kind":
        s += sgl.select("good", choices=["yes", "no"])
        if s["good"] == "no":
            s += sgl.gen("why")
    return {"tip": s["detailed_tip"]}


@sgl.function
def advise(s: Any, topic: str) -> Any:
    s += topic + sgl.gen("tip_1") + sgl.gen("tip_2")
    first = expand(tip=s["tip_1"])
    second = ctl.call(expand, s["tip_2"], style="strict", times=2)
    s += f"1. {first['detailed_tip']} 2. {second['detailed_tip']}" + sgl.gen("summary")
    return [s["summary"], first.ret_value["tip"], "good" in first]


def test_a_program_in_a_program_is_a_call() -> None:
    program = traced(advise)
    calls = every(program, Call)
    assert [op.site.occurrence for op in calls] == [0, 1]
    assert [len([op for op in walk(call.program.ops) if isinstance(op, Gen)]) for call in calls] == [2, 2]
    found: Any = interpreted_calls(program, topic="t")
    by_name = {str(site).rsplit(".", 1)[-1]: text for site, (_, text) in found.calls.items()}
    assert found.returns == (by_name["summary#0"], found.returns[1], True)
    prompt = next(prefix for site, (prefix, _) in found.calls.items() if site.name == "summary")
    assert f"1. {found.returns[1]} 2. " in prompt


def interpreted_calls(program: Program, **args: str) -> Any:
    return meaning(program, Model(lambda site, prefix: f"<{len(prefix)}>", lambda *_: 0), args)


def test_a_program_in_a_program_runs_on_the_same_back_end() -> None:
    first = advise.run("t", backend=BACKEND, seed=5, max_new_tokens=3)
    again = advise.run("t", backend=BACKEND, seed=5, max_new_tokens=3)
    other = advise.run("t", backend=BACKEND, seed=6, max_new_tokens=3)
    assert first.error() is None
    assert first.text() == again.text()
    assert first.text() != other.text()


def test_a_failure_in_a_called_program_surfaces_where_it_is_read() -> None:
    @sgl.function
    def fails(s: Any) -> None:
        s += "a" + sgl.gen("x")
        raise ValueError("inside")

    @sgl.function
    def program(s: Any) -> Any:
        called = fails()
        s += "b" + sgl.gen("y")
        return None if s["y"] == "never" else called.ret_value

    result = program.run(backend=BACKEND, max_new_tokens=2)
    error = result.error()
    assert isinstance(error, SglcError | ValueError)
    assert "inside" in str(error)
    assert "y" in result  # the text may be empty: it is sampled


def test_a_called_program_with_a_boundary_is_one() -> None:
    @sgl.function
    def inner(s: Any) -> None:
        s += sgl.gen("x")
        time.sleep(9)

    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.gen("before")
        return inner()["x"]

    found = graph_break(program)
    assert "`inner` goes on as ordinary Python" in found.reason
    assert found.loc.line == program.definition.code.co_firstlineno + 3


def test_programs_that_call_themselves() -> None:
    @sgl.function
    def down(s: Any, depth: int) -> Any:
        s += f"{depth}" + sgl.gen("x")
        return down(depth=depth - 1)["x"] if depth else s["x"]

    @sgl.function
    def forever(s: Any) -> Any:
        s += sgl.gen("x")
        return forever()["x"]

    @sgl.function
    def three(s: Any) -> Any:
        return down(depth=2)["x"]

    assert len(every(traced(three), Call)) == 1
    assert "`forever`" in graph_break(forever).reason


def test_a_program_that_uses_values_of_its_caller_is_a_boundary() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.gen("x")
        outer = s["x"]

        @sgl.function
        def inner(t: Any) -> Any:
            t += outer

        inner()

    assert every(traced(program), HostCall)


def test_parse_json_in_a_run() -> None:
    assert ctl.parse_json('{"a": [1, true]}') == {"a": [1, True]}
    for text in ("", "NaN", "{", "[" * 100_000):
        with pytest.raises(RunError, match="no JSON") as caught:
            ctl.parse_json(text)
        assert caught.value.code == "SGLC460"


def test_a_run_that_is_given_up_in_a_map_keeps_what_its_items_have_stored() -> None:
    gate = Gate()

    @sgl.function
    def pays(s: Any) -> Any:
        s["total"] = "none"

        def body(item: str) -> str:
            if item == "three":
                gate.wait()
            s["paid_" + item] = s["total"] = item
            return item

        return sgl.map(["one", "two", "three"], body)

    result = pays.run(backend=HashBackend(), mode="python", timeout=0.3).sync()
    gate.open()
    assert isinstance(error := result.error(), SglcError)
    assert error.code == "SGLC411"
    assert dict(result.variables) == {"total": "two", "paid_one": "one", "paid_two": "two"}


def test_what_makes_the_items_of_a_map_stands_between_them() -> None:
    @sgl.function
    def marked(s: Any) -> Any:
        def rows() -> Any:
            for name in ("a", "b", "c"):
                s["row"] = name
                yield name

        def body(item: str) -> str:
            s["row"] = s["row"] + "!"
            return item + s["row"]

        return sgl.map(rows(), body)

    result = marked.run(backend=HashBackend(), mode="python").sync()
    assert result.ret_value == ["aa!", "bb!", "cc!"]


def test_what_a_thread_stores_behind_an_item_of_a_map_stays() -> None:
    @sgl.function
    def begins(s: Any) -> None:
        threads = []

        def body(item: str) -> str:
            s[item] = "begun"
            threads.append(threading.Thread(target=lambda: s.set_var(item, "done")))
            return item

        def waits(item: str) -> str:
            threads[0].start()
            threads[0].join()
            return item

        sgl.map(["one", "two", "three"], lambda item: waits(item) if item == "three" else body(item))

    result = begins.run(backend=HashBackend(), mode="python").sync()
    assert dict(result.variables) == {"one": "done", "two": "begun"}
