"""Every arm of a branch is recorded: a recorded program does what its plain body does, whatever is answered."""

from __future__ import annotations

from typing import Any, Literal

import pytest

import sglc as sgl
from sglc.errors import Loc, RunError, TraceError
from sglc.frontend.outputs.finite_regex import members
from sglc.frontend.tracing.control_blocks import record_map
from sglc.frontend.tracing.interpreter import data
from sglc.frontend.tracing.open_turns import StreamTurns
from sglc.frontend.tracing.paths import Frame, explore
from sglc.frontend.tracing.tools import pure, tool
from sglc.frontend.values.block_exit import BlockExit, Opaque, Stored, Unsettled
from sglc.ir.core import Program, Type, Value, walk
from sglc.ir.ops import Cond, Eq, Format, Gen, HostCall, Select, Switch, Tool
from sglc.ir.text.printer import from_text, to_text
from sglc.ir.verify.verify import verify
from tests.frontend.stand_in import same_on_every_path

CALLED: list[str] = []
COUNTER = {"n": 0}


@tool
def search(query: str) -> str:
    CALLED.append(query)
    return f"found {query}"


@tool
def is_good(text: str) -> bool:
    return text < "8"


@pure
def shout(text: str) -> str:
    return text.upper() + "!"


lookup = CALLED.append  # what is not known


def traced(function: sgl.Function, **options: Any) -> Program:
    program = function.trace(**options)
    verify(program)
    assert to_text(from_text(to_text(program), "test.sglir")) == to_text(program)
    return program


def every(program: Program, kind: type) -> list[Any]:
    return [op for op in walk(program.ops) if isinstance(op, kind)]


# -- programs ------------------------------------------------------------------------------------------


@sgl.function
def react(s: Any, question: str) -> Any:
    s += "Question: " + question + "\n"
    for i in range(1, 5):
        s += f"Thought {i}:" + sgl.gen(f"thought_{i}", stop="\n")
        s += f"Act {i}:" + sgl.select(f"act_{i}", choices=["Search", "Finish"])
        if s[f"act_{i}"] == "Finish":
            s += "[" + sgl.gen("answer", stop="]") + "]"
            break
        s += "[" + sgl.gen(f"query_{i}", stop="]") + "]\n"
        s += f"Observation {i}: {search(s[f'query_{i}'])}\n"
    return s["thought_1"]


@sgl.function
def react_undeclared(s: Any, question: str) -> Any:
    s += question
    for i in range(1, 5):
        s += sgl.gen(f"thought_{i}") + sgl.select(f"act_{i}", choices=["Search", "Finish"])
        if s[f"act_{i}"] == "Finish":
            break
        s += f"{lookup(s[f'thought_{i}'])}"
    return s["thought_1"]


@sgl.function
def nested(s: Any) -> Any:
    s += "a" + sgl.select("x", choices=["y", "n"])
    label = "?"
    if s["x"] == "y":
        s += "yes" + sgl.select("deep", choices=["1", "2"])
        if s["deep"] == "1":
            s += "one" + sgl.gen("why")
        label = s["deep"]
    else:
        s += "no"
    s += "b" + sgl.select("z", choices=["p", "q", "r"])
    if s["z"] in ("p", "q"):
        s += "low" + sgl.gen("more")
    s += "end" + sgl.gen("end") + f"{label}{s['x']}{s['z']}" + sgl.gen("very")
    return {"x": s["x"], "label": label, "low": s["z"] != "r", "end": s["end"]}


@sgl.function
def until(s: Any) -> Any:
    s += "start" + sgl.select("act", choices=["Think", "Finish"])
    rounds = 0
    while s["act"] != "Finish" and rounds < 4:
        rounds += 1
        s += f"round {rounds}" + sgl.gen("thought") + sgl.select("act", choices=["Think", "Finish"])
    s += "done" + sgl.gen("answer")
    return [s["answer"], rounds]


@sgl.function
def yes_or_no(s: Any) -> Any:
    s += "Is it?" + sgl.gen("is", dtype=bool)
    s += "Sure?" + sgl.gen("sure", regex="(?:very|some?what|n[oa])")
    if s["is"] == "True" and s["sure"].startswith("s"):
        s += "Why?" + sgl.gen("why")
        return s["why"]
    return len(s["sure"])


@sgl.function
def dispatch(s: Any) -> Any:
    ways = {"add": "+", "sub": "-", "none": ""}
    s += "op" + sgl.select("op", choices=["add", "sub", "none"])
    sign = ways[s["op"]]
    s += f"1 {sign} 1 = " + sgl.gen("result")
    return {ways[s["op"]]: s["result"]}


@sgl.function
def matched(s: Any) -> Any:
    s += sgl.select("mood", choices=[" Good", "bad ", "So-So"])
    match s["mood"].strip().lower():
        case "good":
            s += ":)" + sgl.gen("joy")
        case "bad":
            s += ":("
        case other:
            s += f"hm, {other}"
    s += sgl.gen("end")
    return s["mood"].strip()


@sgl.function
def compared(s: Any) -> Any:
    s += sgl.select("grade", choices=["a", "c", "f"])
    if "a" <= s["grade"] < "d":
        s += "pass" + sgl.gen("praise")
    note = "good" if s["grade"] != "f" else "bad"
    s += f"{s['grade']!r:>5}{note}" + sgl.gen("end")
    return sorted([s["grade"], "b"])


@sgl.function
def with_tools(s: Any, text: str) -> Any:
    s += text + sgl.gen("x")
    good = is_good(s["x"])
    if good:
        s += "good" + sgl.gen("praise")
    else:
        s += shout(s["x"])
    s += sgl.gen("end")
    return {"good": bool(good), "shout": shout("constant")}


@sgl.function
def in_turns(s: Any) -> Any:
    s += sgl.user("hello") + sgl.assistant(sgl.select("kind", choices=["ask", "tell"]))
    if s["kind"] == "ask":
        s += sgl.user("what?") + sgl.assistant(sgl.gen("what"))
    s += sgl.user("bye") + sgl.assistant(sgl.gen("bye"))
    return s["bye"]


@sgl.function
def different_returns(s: Any) -> Any:
    s += sgl.select("x", choices=["text", "list", "none", "number"]) + sgl.gen("y")
    match s["x"]:
        case "text":
            return s["y"]
        case "list":
            return [s["y"], 1]
        case "number":
            return 3
    return None


@sgl.function
def pitfalls(s: Any, text: str) -> Any:
    s += text + sgl.select("x", choices=["a", "b"]) + sgl.select("y", choices=["1", "2"])
    assert s["x"] in {"a", "b"}
    both = s["x"] == "a" and s["y"] == "1"
    either = s["x"] == "a" or s["y"]
    s += "both" if both else "not both"
    s += f"{either}" + sgl.gen("z")
    words = [s["x"], s["y"], "c"]
    s += ",".join(word * 2 for word in words if word not in ("b",))
    kind = is_good(s["z"])
    if kind is True:
        s += "good"
    counted = {word: len(word) for word in words}
    s += sgl.gen("end") + ("text" if isinstance(s["z"], str) else "no text")
    s += {True: "yes", False: "no"}[isinstance(s["x"], int)] + sgl.gen("last")
    return [sorted(counted), f"{s['x']:>3}|{s['y']!r}", s["x"] is not None, "%s-%s" % (s["x"], s["y"])]  # noqa: UP031


@sgl.function
def bounded(s: Any) -> Any:
    found: list[str] = []
    for i in range(3):
        s += f"{i}" + sgl.select("more", choices=["yes", "no"])
        found.append(s["more"])
        if s["more"] == "no":
            continue
        s += sgl.gen("thought")
        try:
            if found.count("yes") == 2:
                raise LookupError(s["more"])
        except LookupError as error:
            s += f"caught {error.args[0]}"
    else:
        s += "done" + sgl.gen("end")
    return found


PROGRAMS = [
    (react, 5), (nested, 9), (until, 6), (yes_or_no, 10), (dispatch, 3), (matched, 3), (compared, 3),
    (with_tools, 1), (pitfalls, 4), (bounded, 8), (in_turns, 2), (different_returns, 4),
]  # fmt: skip


@pytest.mark.parametrize(("function", "runs"), PROGRAMS, ids=[f.__name__ for f, _ in PROGRAMS])
def test_it_does_what_the_plain_body_does(function: sgl.Function, runs: int) -> None:
    args = {parameter.name: "w" for parameter in function.definition.parameters}
    assert every(traced(function), HostCall) == []
    assert same_on_every_path(function, **args) == runs


def test_both_arms_of_a_tool_are_taken() -> None:
    lengths = {same_on_every_path(with_tools, text=text) for text in "abcdefghijklmnopqrst"}
    assert lengths == {1}
    (branch,) = every(traced(with_tools), Cond)
    assert [len(every_in(branch.then.ops, Gen)), len(every_in(branch.orelse.ops, Gen))] == [1, 0]


def every_in(ops: Any, kind: type) -> list[Any]:
    return [op for op in walk(ops) if isinstance(op, kind)]


# -- shape ---------------------------------------------------------------------------------------------


def test_react_is_recorded_completely() -> None:
    CALLED.clear()
    program = traced(react)
    assert CALLED == []
    assert [op.cases for op in every(program, Switch)] == [("Search", "Finish")] * 4
    assert len(every(program, Tool)) == 4
    assert len(every(program, Select)) == 4


def test_an_undeclared_tool_is_one_boundary_and_is_not_called() -> None:
    CALLED.clear()
    (graph_break,) = every(traced(react_undeclared), HostCall)
    assert CALLED == []
    assert "append" in graph_break.reason
    assert graph_break.loc.line == react_undeclared.definition.code.co_firstlineno + 7


def test_what_follows_a_branch_is_recorded_once() -> None:
    program = traced(nested)
    assert [sum(op.site.name == name for op in every(program, Gen)) for name in ("end", "very", "more")] == [
        1,
        1,
        2,
    ]
    assert len([op for op in program.ops if isinstance(op, Switch)]) == 2


def test_many_branches_in_sequence_stay_linear() -> None:
    @sgl.function
    def program(s: Any) -> None:
        for i in range(6):
            s += f"{i}" + sgl.select(f"x{i}", choices=["a", "b"])
            if s[f"x{i}"] == "a":
                s += "A" + sgl.gen(f"y{i}")
        s += sgl.gen("end")

    made = traced(program)
    assert len(every(made, Switch)) == 6
    assert len(every(made, Gen)) == 7
    assert same_on_every_path(program) == 64


def test_a_tail_is_not_shared_where_chat_turns_differ() -> None:
    assert [op.site.name for op in every(traced(in_turns), Gen)] == ["what", "bye", "bye"]


def test_a_value_that_is_only_appended_is_no_branch() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.select("x", choices=["a", "b"])
        s += f"you chose {s['x']}, {s['x'].strip()}"
        return s["x"].lower()

    assert every(traced(program), Switch) == []
    assert same_on_every_path(program) == 2


def test_a_choice_of_one_is_known() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.select("x", choices=["a", "a"])
        return 1 if s["x"] == "a" else 2

    made = traced(program)
    assert every(made, Switch) == []
    assert made.returns == 1


def test_a_typed_variable_is_the_object_in_every_arm() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.gen("n", dtype=Literal["one", "two"])
        if s["n"] == "one":
            s += "1" + sgl.gen("more")
        return s["n"]

    (branch,) = every(traced(program), Switch)
    assert branch.cases == ("one", "two")


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("(True|False)", ("True", "False")), ("a|b|", ("a", "b", "")), ("x?y", ("xy", "y")),
        ("[ab]c", ("ac", "bc")), (r"a\.b\-c", ("a.b-c",)), ("(?:a|b)(c|d)", ("ac", "ad", "bc", "bd")),
        ("a+", None), ("a*", None), ("a{2}", None), ("[^a]", None), (r"\d", None), ("[a-z]", None), (".", None),
        ("(?=a)b", None), ("a??", None), ("(a|b", None), ("a)", None), ("[ab", None),
        ("[abcdefgh][abcdefgh][abcdefgh]", None),
    ],
)  # fmt: skip
def test_finite_languages(pattern: str, texts: tuple[str, ...] | None) -> None:
    assert members(pattern) == texts


def test_a_generation_that_may_end_early_is_not_finite() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.gen("x", dtype=bool, max_tokens=3)
        if s["x"] == "True":
            return {"True": 1}[s["x"]]
        return {s["x"]: 0}

    made = traced(program)
    assert every(made, Switch) == []
    assert len(every(made, Cond)) == 1


# -- limits --------------------------------------------------------------------------------------------


def test_too_many_paths_are_left_to_python() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.select("act", choices=["On", "Off"])
        while s["act"] != "Off":
            s += sgl.gen("x") + sgl.select("act", choices=["On", "Off"])

    made = traced(program, max_paths=5)
    assert len(every(made, Switch)) == 4
    (graph_break,) = every(made, HostCall)
    assert "too many paths" in graph_break.reason
    assert len(every(traced(program), Switch)) == 63


@sgl.function
def summarizes(s: Any, chunk: str) -> Any:
    s += f"Summarize: {chunk}\n" + sgl.gen("summary")
    return s["summary"]


@sgl.function
def reduces(s: Any, text: str) -> None:
    s += text + sgl.gen("list")
    parts = s["list"].split(",")
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [summarizes("\n".join(pair))["summary"] if len(pair) > 1 else pair[0] for pair in pairs]
    s += parts[0]


def test_what_paths_record_again_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `while` whose turns are long is left to Python before its paths take the square of their length."""
    items: list[Any] = []
    monkeypatch.setattr(data, "record_map", lambda *given: items.append(given) or record_map(*given))
    made = traced(reduces)
    assert "too many paths" in every(made, HostCall)[-1].reason
    assert 20 <= len(every(made, Cond)) <= 60  # two in a turn
    assert len(items) < 500  # of 4,032 for 64 paths


def test_what_stands_before_all_decisions_is_no_bound() -> None:
    @sgl.function
    def program(s: Any) -> None:
        for number in range(80):
            s += sgl.gen(f"x{number}")
        s += sgl.select("c", [f"case {number}" for number in range(64)])
        kept = []
        if s["c"] != "case 0":
            kept.append(s["c"] + "!")
        s += "".join(kept)

    made = traced(program)
    assert not every(made, HostCall)
    assert len(every(made, Switch)) == 1


def test_an_exception_on_one_path_is_the_runs() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.select("x", choices=["a", "b", "c"])
        if s["x"] == "b":
            raise ValueError("b is not allowed")
        return {"a": 1}[s["x"]]

    raised = [(op.error, op.reason) for op in every(traced(program), HostCall)]
    assert raised == [("ValueError", "b is not allowed"), ("KeyError", "'c'")]


def test_an_exception_on_the_only_path_is_an_error() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.gen("x")
        raise ValueError("never good")

    with pytest.raises(RunError, match="never good"):
        program.trace()


def test_misuse_in_one_arm_is_an_error() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.select("x", choices=["a", "b"])
        return s["nothing"] if s["x"] == "b" else ""

    with pytest.raises(TraceError, match="nothing") as caught:
        program.trace()
    assert caught.value.code == "SGLC110"


def test_a_body_that_counts_its_runs_is_left_to_python_before_it_does() -> None:
    box = type("Box", (), {"count": 0})

    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.select("x", choices=["a", "b"])
        box.count += 1  # type: ignore[attr-defined]
        return s["x"] == "a"

    (graph_break,) = every(traced(program), HostCall)
    assert ".count = " in graph_break.reason
    assert box.count == 0  # type: ignore[attr-defined]


def test_a_list_is_the_same_on_every_path() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        items: list[Any] = ["first"]
        s += sgl.select("x", choices=["a", "b"])
        items.append(s["x"] == "a")
        if s["x"] == "a":
            items.append("more")
        return items

    assert every(traced(program), HostCall) == []
    assert same_on_every_path(program) == 2


def test_a_list_of_the_caller_is_not_changed() -> None:
    @sgl.function
    def program(s: Any, items: Any) -> Any:
        s += sgl.select("x", choices=["a", "b"])
        items.append(s["x"] == "a")
        return items

    given = ["first"]
    (graph_break,) = every(traced(program.bind(items=given)), HostCall)
    assert given == ["first"]
    assert "outlives" in graph_break.reason


def test_mixed_boundaries() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.select("x", choices=["a", "b", "c"])
        if s["x"] == "a":
            lookup("a")
        elif s["x"] == "b":
            s += sgl.gen("y")
            lookup("b")
        s += sgl.select("z", choices=["p", "q"])
        if s["z"] == "p":
            lookup("p")
        else:
            lookup("q")

    made = traced(program)
    assert len(every(made, HostCall)) == 4
    assert [op.site.name for op in every(made, Gen)] == ["y"]


def test_an_arm_in_which_every_arm_is_left_to_python() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.select("x", choices=["a", "b", "c"])
        if s["x"] == "a":
            s += sgl.select("y", choices=["1", "2"])
            if s["y"] == "1":
                lookup("1")
            else:
                lookup("2")
        s += "b" if s["x"] == "b" else sgl.gen("c")
        s += sgl.gen("end")
        return s["end"]

    made = traced(program)
    assert len({op.loc for op in every(made, HostCall)}) == 2
    assert [op.site.name for op in every(made, Gen)] == ["c", "end"]


def test_streams_with_different_turns_before_a_branch_are_not_brought_together() -> None:
    """A prompt that goes on from either could not be written exactly: each arm says its own text."""

    @sgl.function
    def body(s: Any) -> None:
        with s.var_scope("one"):
            s += sgl.user("hi")
        with s.var_scope("two"):
            s += sgl.user("ho")
        s += sgl.user_begin() + sgl.select("pick", choices=["a", "b"])
        if s["pick"] == "a":
            s += s["one"]
        else:
            s += s["two"]
        s += sgl.user_end() + sgl.gen("end")

    (branch,) = every(traced(body), Switch)
    assert [value.type for value in branch.results] == [Type.TEXT]


def test_what_a_path_has_made_is_no_object_of_all_paths_behind_it() -> None:
    """Neither where the first path alone comes back, whose values keep their ids."""
    fresh = iter(range(100, 200))
    made, asked, other = Value(1, Type.TEXT), Value(2, Type.BOOL), Value(0, Type.TEXT)
    held = {name: Opaque(object(), (value,)) for name, value in (("made", made), ("before", other))}

    def run(frame: Frame) -> BlockExit | None:
        frame.ops += [Format(("a",), results=(made,)), Eq(made, "a", results=(asked,))]
        if not frame.decide(asked, (), Loc("f.py", 1)).outcome:
            frame.ops.append(HostCall("it ends"))
            return None
        return BlockExit(
            variables={(0, name): Stored(leaf, leaf.item, kept=True) for name, leaf in held.items()}
        )

    block = explore(run, lambda kind: Value(next(fresh), kind), StreamTurns, Loc("f.py", 1))
    assert block.exit is not None
    assert block.exit.variables[0, "before"].item is held["before"].item
    assert isinstance(block.exit.variables[0, "made"].leaf, Unsettled)
