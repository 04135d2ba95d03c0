"""Types as `dtype` and of a tool's parameters: what a text is held to, and what is read from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import ScriptedBackend
from sglc.errors import RunError, TraceError


@sgl.function
def typed(s: Any, dtype: Any) -> None:
    s += sgl.gen("x", dtype=dtype)


def says(*texts: str) -> ScriptedBackend:
    """Answers with these texts in turn."""
    return ScriptedBackend(lambda asked: texts[asked.site.occurrence])


def read_as(dtype: Any, text: str) -> Any:
    return typed.run(dtype, backend=says(text))["x"]


def assert_none(dtype: Any, text: str) -> None:
    with pytest.raises(RunError, match="SGLC410"):
        read_as(dtype, text)


@dataclass
class Point:
    x: int
    y: float = 0.5


@pytest.mark.parametrize("text", ["1e999", "-1e999"])
def test_a_number_that_no_float_holds_is_none(text: str) -> None:
    assert_none(Point, f'{{"x": 1, "y": {text}}}')
    assert_none(list[float], f"[{text}]")


@pytest.mark.parametrize("deep", [201, 500, 100_000])
def test_a_value_that_is_nested_too_deeply_is_none(deep: int) -> None:
    assert_none(list, "[" * deep + "]" * deep)
    assert read_as(list, "[" * 200 + "]" * 200)


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(3000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(TraceError, match=r"SGLC103.*nested too deeply"):
        sgl.gen("x", json_schema=schema)
