"""Copies of functions: what they share with their originals, and when there is none."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import sglc as sgl
from sglc.frontend.source.rewrite import code_of, matches, rewrite, source_of, with_code
from tests.frontend.programs import (
    DEFERRED,
    deferred_source,
    from_file,
    launches,
)
from tests.oracle_backend import OracleBackend


@pytest.fixture
def oracle() -> OracleBackend:
    return OracleBackend()


def test_late_binding_and_defaults_are_those_of_the_function(oracle: OracleBackend) -> None:
    counts = {"calls": 0}
    word = "one"

    @sgl.function
    def program(s: Any, q: str = "q", *, tail: str = "!") -> str:
        nonlocal word
        counts["calls"] += 1
        s += word + sgl.gen("x", max_tokens=2)
        s += f"{later()} {s['x']} {word}{q}{tail}"
        word = "two"
        return f"{s['x']} {word}"

    def later() -> str:
        return "later"

    result, count = launches(program, oracle)
    assert count == 1
    assert result.text() == f"one{result['x']}later {result['x']} oneq!"
    assert result.ret_value == f"{result['x']} two"
    assert (word, counts) == ("two", {"calls": 1})
    word = "three"
    assert launches(program, oracle)[0].text().startswith("three")


def test_recording_ahead_of_time_sees_what_is_bound_later() -> None:
    seen: list[str] = []

    def program(text: str) -> str:
        seen.append(word)
        return f"{text} {word} {helper()}"

    made = rewrite(program, lambda function, *args, **kwargs: function(*args, **kwargs), lambda *parts: "".join(
        part if isinstance(part, str) else format(part[0], part[2]) for part in parts
    ))  # fmt: skip
    word = "bound later"

    def helper() -> str:
        return "helped"

    assert made("a") == "a bound later helped"
    assert seen == ["bound later"]
    assert made.__closure__ is not None
    assert all(cell in made.__closure__ for cell in program.__closure__ or ())


class Owner:
    __secret = "secret"

    def method(self, text: str, *, more: str = "m") -> str:
        return f"{text} {self.__secret} {more}"

    def parent(self) -> Any:
        return super().__init__

    @staticmethod
    def recursive(number: int) -> int:
        return 1 if number == 0 else Owner.recursive(number - 1) + 1


@pytest.mark.parametrize(
    "function", [Owner.method, Owner.parent, Owner.recursive, from_file, textwrap.dedent, json.dumps]
)
def test_a_source_gives_its_code_again(function: FunctionType) -> None:
    source = source_of(function.__code__)
    assert matches(source)
    code = code_of(source)
    made = with_code(function, code, {})
    assert (made.__name__, made.__qualname__, made.__defaults__) == (
        function.__name__, function.__qualname__, function.__defaults__,
    )  # fmt: skip
    assert made.__code__.co_firstlineno == function.__code__.co_firstlineno
    assert list(code.co_positions()) == list(function.__code__.co_positions())


def test_a_copy_of_a_method_has_its_private_names() -> None:
    made = rewrite(
        Owner.method, lambda f, *a, **k: f(*a, **k), lambda *parts: str(parts[-1][0]) + str(parts[2][0])
    )
    assert made(Owner(), "a") == "msecret"


def test_a_file_that_changed_defers_nothing(tmp_path: Path, oracle: OracleBackend) -> None:
    source = deferred_source(DEFERRED["appended"])
    program = from_file(tmp_path, source)
    (tmp_path / "program.py").write_text(source.replace('s += s["x"]', 's.x = s["x"]'))
    assert not matches(source_of(program.definition.code))
    _, count = launches(program, oracle, q="why")
    assert count > 1
    assert "not certainly that of the code" in program.explain(oracle).text()
