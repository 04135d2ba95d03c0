"""Which calls of a function run as plans: its leaves, which of them it keeps, and why a call is Python."""

from __future__ import annotations

import dataclasses
import gc
import random
import sys
import threading
import time
import weakref
from types import FrameType
from typing import Any

import pytest

import sglc as sgl
from sglc.api import plan_tree
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.errors import SglcError, UsageError
from tests.notebook import Notebook


def answering(asked: Asked) -> str:
    return "said"


BACKEND = ScriptedBackend(answering)
STYLE = "kind"


@dataclasses.dataclass
class Place:
    name: str


class Opaque:
    """An argument that is no data."""


@pytest.fixture
def program() -> sgl.Function:
    """It goes through its list, so every length is a path of its own."""

    @sgl.function
    def counted(s: Any, items: Any) -> Any:
        s += f"Be {STYLE}. "
        for item in items:
            s += item + sgl.gen("x")

    return counted


def mode_of(program: sgl.Function, *args: Any, **options: Any) -> str:
    result = program.run(*args, backend=BACKEND, **options)
    assert result.error() is None
    return result.mode


def of_length(size: int) -> list[str]:
    return ["one"] * size


def leaves_of(program: sgl.Function) -> list[int]:
    """How often each leaf was used, the last one that was used first."""
    return [leaf.hits for leaf in program.explain(BACKEND).leaves]


# -- which calls are plans -------------------------------------------------------------------------


def test_the_first_path_is_a_plan_at_once_and_any_other_when_it_comes_again(program: sgl.Function) -> None:
    modes = [mode_of(program, of_length(size)) for size in (1, 1, 2, 2, 1, 2, 3)]
    assert modes == ["plan", "plan", "python", "plan", "plan", "plan", "python"]
    assert leaves_of(program) == [2, 3]


def test_what_was_new_is_told(program: sgl.Function) -> None:
    for size in (1, 2):
        result = program.run(of_length(size), backend=BACKEND)
    new = program.explain(BACKEND).last_miss
    assert new == "len(items)"
    assert result.why_python == f"`{new}` is new here, and what comes once is not compiled"


def test_a_call_that_is_to_be_a_plan_is_one_at_once(program: sgl.Function) -> None:
    assert [mode_of(program, of_length(size), mode="plan") for size in (1, 2)] == ["plan", "plan"]
    assert [mode_of(program, of_length(size)) for size in (1, 2)] == ["plan", "plan"]


def test_a_call_that_is_to_be_python_leaves_nothing(program: sgl.Function) -> None:
    assert [mode_of(program, of_length(size), mode="python") for size in (1, 1, 2)] == ["python"] * 3
    assert leaves_of(program) == []
    assert mode_of(program, of_length(2)) == "plan"


def test_another_type_is_another_path(program: sgl.Function) -> None:
    assert [mode_of(program, items) for items in (["a"], ("a",), ("b",), ["c"])] == [
        "plan", "python", "plan", "plan",
    ]  # fmt: skip


def test_sampling_defaults_are_part_of_a_path(program: sgl.Function) -> None:
    modes = [mode_of(program, ["a"], temperature=t) for t in (0.0, 1.0, 1.0, 0.0)]
    assert modes == ["plan", "python", "plan", "plan"]


def test_what_is_read_outside_is_part_of_a_path(program: sgl.Function, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    for style in ("kind", "brief", "brief", "kind"):
        monkeypatch.setitem(globals(), "STYLE", style)
        result = program.run(["a"], backend=BACKEND)
        texts.append((result.mode, result.text().partition(".")[0]))
    assert texts == [("plan", "Be kind"), ("python", "Be brief"), ("plan", "Be brief"), ("plan", "Be kind")]


def test_what_is_bound_is_an_argument_like_any_other(program: sgl.Function) -> None:
    assert mode_of(program, ["a"]) == "plan"
    assert mode_of(program.bind(items=["b"])) == "plan"
    assert leaves_of(program) == [2]


def test_one_leaf_has_a_plan_for_every_back_end(program: sgl.Function) -> None:
    other = ScriptedBackend(answering, concurrency=3)
    assert [program.run(["a"], backend=to).mode for to in (BACKEND, other, BACKEND)] == ["plan"] * 3
    assert [len(leaf.plans) for leaf in program._plans.leaves] == [2]


def test_a_path_that_is_left_to_python_is_a_leaf_too() -> None:
    @sgl.function
    def timed(s: Any) -> None:
        s += str(time.monotonic()) + sgl.gen("x")

    results = [timed.run(backend=BACKEND).sync() for _ in range(2)]
    assert [result.mode for result in results] == ["python", "python"]
    (leaf,) = timed.explain(BACKEND).leaves
    assert leaf.hits == 2
    assert {result.why_python for result in results} == {leaf.why}
    assert "monotonic" in leaf.why


def test_threads_that_call_at_the_same_time_trace_once(program: sgl.Function) -> None:
    together = threading.Barrier(8)
    modes: list[str] = []

    def call() -> None:
        together.wait()
        modes.append(mode_of(program, ["a"]))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert modes == ["plan"] * 8
    assert leaves_of(program) == [8]


# -- which leaves are kept -------------------------------------------------------------------------


def test_the_leaf_that_was_not_used_for_longest_goes_first(
    program: sgl.Function, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_tree, "_MOST_LEAVES", 2)
    for size in (1, 2, 1, 3):  # 2 goes
        mode_of(program, of_length(size), mode="plan")
    assert len(leaves_of(program)) == 2
    assert [mode_of(program, of_length(size)) for size in (1, 3, 2, 2)] == ["plan", "plan", "python", "plan"]
    assert mode_of(program, of_length(1)) == "python"


def test_a_path_that_came_long_ago_has_not_come(program: sgl.Function, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_tree, "_MOST_MISSES", 2)
    modes = [mode_of(program, of_length(size)) for size in (1, 2, 3, 4, 2, 4)]
    assert modes == ["plan", "python", "python", "python", "python", "plan"]


@pytest.fixture
def limited() -> sgl.Function:
    """Every limit is a path of its own."""

    @sgl.function
    def answered(s: Any, limits: list[int]) -> Any:
        for number, limit in enumerate(limits):
            s += f"Question {number}:" + sgl.gen(f"x{number}", top_k=limit)

    return answered


def test_a_number_that_is_always_another_one_is_not_compiled_again_and_again(limited: sgl.Function) -> None:
    draw = random.Random(0)
    rows = [[draw.randint(1, 20) for _ in range(4)] for _ in range(300)]
    modes = [mode_of(limited, row) for row in rows]
    made = len(limited.explain(BACKEND, limits=[1]).leaves)
    assert made <= 8 + modes.count("plan") // 4 + len(rows) // 16, "traces cost more than plans save"
    assert modes.count("python") > 200
    why = limited.run([99] * 4, backend=BACKEND).sync().why_python
    assert why == "`limits[0]` is new here, and what comes seldom, as the last ones did, is not compiled"


def test_a_count_of_tokens_that_changes_is_data_from_then_on() -> None:
    @sgl.function
    def answered(s: Any, limits: list[int]) -> Any:
        for number, limit in enumerate(limits):
            s += f"Question {number}:" + sgl.gen(f"x{number}", max_tokens=limit)

    def leaves() -> list[tuple[int, bool]]:
        seen = answered.explain(BACKEND, limits=[1]).leaves
        return [(leaf.hits, "limits[0] is 5" in leaf.guards) for leaf in seen]

    assert [mode_of(answered, [5, 7]) for _ in range(3)] == ["plan"] * 3
    assert leaves() == [(3, True)]
    draw = random.Random(0)
    assert {mode_of(answered, [draw.randint(1, 20), draw.randint(1, 20)]) for _ in range(30)} == {"plan"}
    assert leaves() == [(30, False), (3, True)]
    assert [mode_of(answered, [5, 0]) for _ in range(2)] == ["python", "plan"]  # which makes no text


def test_a_path_that_comes_often_becomes_a_plan_whatever_came_before(limited: sgl.Function) -> None:
    for first in range(8):  # each comes twice and is a leaf that is used once
        for _ in range(2):
            mode_of(limited, [first + 1])
    modes = [mode_of(limited, [50]) for _ in range(30)]
    assert modes == ["python"] * 15 + ["plan"] * 15


def test_explain_shows_the_leaves_that_are_used_most_as_people_write_facts(limited: sgl.Function) -> None:
    for limit in range(1, 12):
        for _ in range(2 if limit == 7 else 1):
            mode_of(limited, [limit], mode="plan")
    told = limited.explain(BACKEND, limits=[1]).text().splitlines()
    shown = [line for line in told if "so far" in line]
    assert len(shown) == 8
    facts = "limits: list, len(limits) is 1, type(limits[0]) is int, limits[0] is 7"
    assert shown[0] == f"  so far 2 runs of a plan, where {facts}"
    assert told[told.index(shown[-1]) + 1] == "  and 3 runs of 3 others"


def test_a_leaf_holds_no_argument() -> None:
    @sgl.function
    def shown(s: Any, place: Place) -> Any:
        s += ("short " if len(place.name) < 9 else "long ") + place.name + sgl.gen("x")
        return place.name

    def called() -> weakref.ref[Place]:
        place = Place("Rome")
        result = shown.run(place, backend=BACKEND)
        assert (result.ret_value, result.mode) == ("Rome", "plan")
        return weakref.ref(place)

    known = called()
    gc.collect()
    assert known() is None
    assert leaves_of(shown) == [1]


# -- why a call is Python --------------------------------------------------------------------------


@sgl.function
def plain(s: Any, a: Any = "") -> None:
    s += f"{a}" + sgl.gen("x")
    if s["x"] == "more":
        s += sgl.gen("y")


@sgl.function
def unknown_call(s: Any) -> None:
    s += str(threading.get_ident()) + sgl.gen("x")


@sgl.function
def stores(s: Any) -> None:
    global STYLE
    STYLE = STYLE
    s += sgl.gen("x")


@sgl.function
def gives_itself(s: Any) -> Any:
    s += "a"
    return s


@sgl.function
def fails(s: Any) -> None:
    s += sgl.gen("x", regex="(")


@sgl.function
def stores_in_one_arm(s: Any) -> Any:
    s += sgl.select("x", choices=["a", "b"])
    if s["x"] == "a":
        s["y"] = "of one"
    return s["y"]


@sgl.function
def only_raises(s: Any) -> None:
    s += sgl.gen("x")
    raise ValueError("got " + s["x"])


@sgl.function
def looks_ahead(s: Any) -> None:
    s += sgl.gen("x", regex="(?=a)b")


REASONS = [
    (plain, {"mode": "python"}, "`mode` says so"),
    (plain, {"a": Opaque()}, "`a` is an object, and no data"),
    (plain, {"max_calls": 1}, "its budget of calls may end before it does"),
    (unknown_call, {}, "`get_ident(...)` is ordinary Python"),
    (stores, {}, "`STYLE = ...` changes what outlives the program"),
    (gives_itself, {}, "a `State` is returned"),
    (fails, {}, "it cannot be traced: "),
    (only_raises, {}, "`ValueError` in `only_raises`: what it says is known when it runs (test"),
]


@pytest.mark.parametrize(("program", "options", "why"), REASONS, ids=[why for *_, why in REASONS])
def test_why_a_call_is_python(program: sgl.Function, options: dict[str, Any], why: str) -> None:
    result = program.run(backend=BACKEND, **options)
    result.error()
    assert result.mode == "python"
    assert why in result.why_python


@pytest.mark.parametrize(
    ("program", "behind"),
    [(unknown_call, 1), (stores, 2), (stores_in_one_arm, 4), (only_raises, 2), (looks_ahead, 1)],
    ids=lambda given: given.definition.name if isinstance(given, sgl.Function) else "",
)  # fmt: skip
def test_why_it_is_python_is_told_with_its_place(program: sgl.Function, behind: int) -> None:
    result = program.run(backend=BACKEND)
    result.error()
    line = program.definition.loc.line + behind
    assert f"test_plan_tree.py:{line}:" in result.why_python


def test_a_call_that_is_to_be_a_plan_and_is_none_is_refused_before_it_begins() -> None:
    backend = ScriptedBackend(answering)
    with pytest.raises(UsageError) as refused:
        unknown_call.run(backend=backend, mode="plan")
    assert refused.value.code == "SGLC058"
    assert (
        refused.value.message == f"`unknown_call` runs as Python: {unknown_call.explain(BACKEND).leaves[0].why}"
    )
    assert refused.value.loc == unknown_call.definition.loc
    assert backend.kept == 0
    with pytest.raises(UsageError, match="SGLC058"):
        unknown_call.run_batch([{}], backend=backend, mode="plan")


@sgl.function
def bad_regex(s: Any) -> None:
    s += sgl.gen("x", regex="(")


@sgl.function
def bad_schema(s: Any) -> None:
    s += "a" + sgl.gen("x", json_schema='{"type": "nonsense"}')


@sgl.function
def reads_too_early(s: Any) -> None:
    s += "a" + sgl.gen("x")
    s += s["y"]


@pytest.mark.parametrize("program", [bad_regex, bad_schema, reads_too_early])
def test_what_is_wrong_as_python_too_is_refused_in_the_same_words(program: Any) -> None:
    said = program.run(backend=BACKEND, mode="python").error()
    for _ in range(2):  # it is compiled once
        with pytest.raises(SglcError) as refused:
            program.run(backend=BACKEND, mode="plan")
        assert (type(refused.value), str(refused.value)) == (type(said), str(said))


@sgl.function
def reads_too_early_in_one_arm(s: Any) -> None:
    s += "a" + sgl.gen("x")
    if s["x"] == "rare":
        s += s["y"]


@sgl.function
def bad_schema_in_one_arm(s: Any) -> None:
    s += "a" + sgl.gen("x")
    if s["x"] == "rare":
        s += sgl.gen("y", json_schema='{"type": "nonsense"}')


@sgl.function
def appends_in_a_map(s: Any) -> None:
    def body(word: str) -> None:
        s.__iadd__(word)

    sgl.map(["a", "b"], body)


@pytest.mark.parametrize(
    ("program", "behind"),
    [(reads_too_early_in_one_arm, 3), (bad_schema_in_one_arm, 3), (appends_in_a_map, 4)],
)
def test_what_only_a_plan_refuses_is_shown_with_its_place_and_what_mends_it(program: Any, behind: int) -> None:
    assert program.run(backend=BACKEND, mode="python").error() is None
    with pytest.raises(UsageError) as refused:
        program.run(backend=BACKEND, mode="plan")
    assert refused.value.code == "SGLC058"
    assert refused.value.loc is not None
    assert refused.value.loc.line == program.definition.loc.line + behind
    with pytest.raises(SglcError) as compiled:
        program.compile(BACKEND)
    assert (refused.value.note, refused.value.hint) == (compiled.value.note, compiled.value.hint)
    assert refused.value.hint


def test_what_is_equal_to_python_and_no_text_is_another_plan() -> None:
    """1 and True and 1.0 are equal, and so would be the programs that return them."""
    made = []
    for number in ("1", "True", "1.0", "1"):
        book = Notebook(
            "equal_returns", f"@sgl.function\ndef program(s):\n    s += sgl.gen('x')\n    return {number}"
        )
        result = book.module.program.run(backend=BACKEND)
        assert result.mode == "plan"
        made.append(repr(result.ret_value))
    assert made == ["1", "True", "1.0", "1"]


# -- what a first call costs -----------------------------------------------------------------------


def test_a_first_call_finds_out_no_more_than_its_run_needs() -> None:
    """It is given its arguments by their places, runs alone, and no arm of it generates."""

    @sgl.function
    def asks(s: Any, question: str) -> None:
        s += "Question: " + question + "\n" + sgl.select("kind", choices=["said", "meant"])
        s += "Why:" + sgl.gen("why", max_tokens=4)
        if s["why"] == "never":
            s += " again"

    entered: set[tuple[str, str]] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            entered.add((str(frame.f_globals.get("__name__")), frame.f_code.co_name))

    sys.setprofile(look)
    try:
        result = asks.run(question="Why?", backend=BACKEND)
    finally:
        sys.setprofile(None)
    assert (result.error(), result.mode) == (None, "plan")
    needless = {
        ("inspect", "signature"),
        ("sglc.ir.plan.asked", "_read"),
        ("sglc.passes.lowering.arm_tails", "with_arm_tails"),
    }
    assert needless & entered == set()
    assert ("sglc.passes.lowering.blocks", "begun") in entered
