"""A program is recorded once, and again when something changes that its body reads."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import ScriptedBackend
from sglc.frontend.tracing.guards import fingerprint, frozen
from sglc.frontend.tracing.tools import pure
from sglc.ir.text.printer import to_text
from tests.oracle_backend import OracleBackend

PROMPT = "first"
CONFIG: dict[str, Any] = {"style": ["kind"]}
SETTINGS = SimpleNamespace(depth=1)
SUFFIX = ModuleType("suffix")
SUFFIX.text = "!"  # type: ignore[attr-defined]


def changed(old: dict[str, object], new: dict[str, object]) -> str:
    """The first thing that is not as it was; "" if all is."""
    names = dict.fromkeys((*old, *new))
    return next((name for name in names if name not in old or name not in new or old[name] != new[name]), "")


def helper(s: Any, style: str = "plain") -> None:
    s += f"{PROMPT} {style}"


def ending() -> str:
    return "."


@pure
def shout(text: str) -> str:
    return text.upper() + ending()


@sgl.function
def inner(s: Any, q: str) -> None:
    s += CONFIG["style"][0] + q + sgl.gen("inner")


@sgl.function
def program(s: Any, q: str) -> Any:
    helper(s)
    s += f"{SETTINGS.depth}{SUFFIX.text}" + shout("loud") + q + sgl.gen("x")
    return inner(q=s["x"])["inner"]


@pytest.fixture
def backend() -> OracleBackend:
    return OracleBackend()


CHANGES: list[tuple[str, str, Any, str]] = [
    (__name__, "PROMPT", "second", "helper: global PROMPT"),
    (__name__, "SETTINGS", SimpleNamespace(depth=2), "SETTINGS"),
    (__name__, "ending", lambda: "?", "ending"),
    (__name__, "helper", lambda s: None, "helper"),
    (__name__, "CONFIG", {"style": ["strict"]}, "CONFIG"),
]


def test_a_second_trace_records_nothing() -> None:
    new = sgl.function(program.definition.call)
    first = new.trace()
    assert new.trace() is first
    assert new.memo.made == 1


@pytest.mark.parametrize(("where", "name", "value", "told"), CHANGES, ids=[name for _, name, *_ in CHANGES])
def test_a_changed_global_records_again(
    monkeypatch: pytest.MonkeyPatch, where: str, name: str, value: Any, told: str
) -> None:
    first = program.trace()
    before, made = fingerprint(program.definition.call), program.memo.made
    monkeypatch.setitem(globals(), name, value)
    again = program.trace()
    assert program.memo.made == made + 1
    assert told in changed(before, fingerprint(program.definition.call))
    assert name == "helper" or to_text(again) != to_text(first)
    monkeypatch.undo()
    assert to_text(program.trace()) == to_text(first)


def test_changes_in_place_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    first = to_text(program.trace())
    monkeypatch.setattr(SUFFIX, "text", "?")
    second = to_text(program.trace())
    monkeypatch.setitem(CONFIG, "style", ["strict"])
    third = to_text(program.trace())
    monkeypatch.setattr(SETTINGS, "depth", 7)
    assert len({first, second, third, to_text(program.trace())}) == 4


def test_a_changed_closure_records_again() -> None:
    word = "a"

    @sgl.function
    def closing(s: Any) -> None:
        s += word + sgl.gen("x")

    first = closing.trace()
    assert closing.trace() is first
    before = fingerprint(closing.definition.call)
    word = "b"
    assert "'b'" in to_text(closing.trace())
    assert changed(before, fingerprint(closing.definition.call)) == "closure word"


def test_what_is_not_read_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    first = program.trace()
    monkeypatch.setitem(globals(), "CHANGES", [])
    assert program.trace() is first


def test_arguments_and_sampling_are_parts_of_the_key() -> None:
    first = program.trace()
    bound = program.bind(q="bound")
    assert "'bound'" in to_text(bound.trace()) or "bound" in to_text(bound.trace())
    assert bound.memo is program.memo
    assert bound.trace() is bound.trace()
    assert program.bind(q="bound").trace() is bound.trace()
    assert program.trace(temperature=0) is not first
    assert program.trace() is first


def test_compiling_twice_gives_the_same_plan(backend: OracleBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    @sgl.function
    def plain(s: Any, q: str) -> None:
        s += PROMPT + q + sgl.gen("x")

    first = plain.compile(backend).compiled
    assert plain.compile(backend).compiled is first
    assert plain.memo.made == 1
    monkeypatch.setitem(globals(), "PROMPT", "other")
    assert plain.compile(backend).compiled is not first
    assert plain.memo.made == 2


def test_data_is_frozen_by_value_and_type() -> None:
    different: list[Any] = [
        1,
        True,
        1.0,
        "1",
        b"1",
        None,
        [1],
        (1,),
        {1: 1},
        {1},
        frozenset({1}),
        [True],
        0.0,
        -0.0,
    ]
    kept = [frozen(item) for item in different]
    assert len(set(kept)) == len(different)
    assert [frozen(item) for item in different] == kept
    item = object()
    assert frozen(item) == frozen(item) != frozen(object())


def test_a_function_that_refers_to_itself() -> None:
    def make() -> Callable[..., Any]:
        def again(s: Any, depth: int = 2) -> None:
            if depth:
                again(s, depth - 1)

        return again

    function = make()
    assert changed(fingerprint(function), fingerprint(function)) == ""
    assert changed(fingerprint(function), fingerprint(make())) == ""  # nothing tells the two apart


CALLED: list[str] = []


@sgl.tool
def noting(text: str) -> str:
    CALLED.append(text)
    return text


def test_what_a_tool_changes_for_itself_is_no_guard() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += noting("a") + sgl.gen("x")

    backend = ScriptedBackend(lambda asked: "x")
    results = [program.run(backend=backend).sync() for _ in range(3)]
    assert [(result.mode, result.why_python) for result in results] == [("plan", "")] * 3
    assert len(program._plans.leaves) == 1


class Hidden(str):
    def __repr__(self) -> str:
        return "'***'"


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize("key", [Hidden("red"), Colour.RED, "red"])
def test_what_a_text_is_and_not_how_it_shows_itself_is_looked_at(key: str) -> None:
    @sgl.function
    def program(s: Any, q: str) -> None:
        named = "-".join([key, q])
        s += q
        if named == "red-x":
            s += " yes"
        s += sgl.gen("a")

    backend = ScriptedBackend(lambda asked: ".")
    results = [program.run(q=q, backend=backend).sync() for q in ("y", "x", "z", "x")]
    assert [result.text() for result in results] == ["y.", "x yes.", "z.", "x yes."]
    assert results[0].mode == results[3].mode == "plan"  # a path is recorded when it is taken again
