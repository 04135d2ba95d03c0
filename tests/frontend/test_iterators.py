"""Iterators over a list that only a run knows are gone through once; a plan has them where that is at once."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import Asked, ScriptedBackend


@sgl.function
def kept(s: Any) -> str:
    s += sgl.gen("a")
    words = (word.strip() for word in s["a"].split(","))
    s += "Said " + " and ".join(words) + ". Sorted: " + " and ".join(sorted(words))
    return str(sgl.gen("b"))


@sgl.function
def always_true(s: Any) -> str:
    s += sgl.gen("a")
    numbers = (word for word in s["a"].split(",") if word.isdigit())
    if numbers:
        s += "numbers" + sgl.gen("b")
        return "yes"
    return "no"


@sgl.function
def mapped_twice(s: Any) -> tuple[int, int]:
    s += sgl.gen("a")
    lengths = map(len, s["a"].split(","))
    return max(lengths, default=0), sum(lengths)


@sgl.function
def chained_twice(s: Any) -> list[list[str]]:
    s += sgl.gen("a")
    words = s["a"].split(",")
    chained = itertools.chain(words, words)
    return [list(chained), list(chained)]


@sgl.function
def has_no_length(s: Any) -> int:
    s += sgl.gen("a")
    return len(reversed(s["a"].split(",")))  # type: ignore[arg-type]


@sgl.function
def handed_on(s: Any) -> list[str]:
    s += sgl.gen("a")
    return (lambda items: [*items, *items])(word for word in s["a"].split(","))


@sgl.function
def first(s: Any) -> str:
    s += sgl.gen("a")
    words = s["a"].split(",")
    try:
        return next(word for word in words)
    except StopIteration:
        return "none"


@sgl.function
def at_once(s: Any) -> tuple[Any, ...]:
    s += sgl.gen("a")
    words = s["a"].split(",")
    pairs = [number for number, _ in enumerate(zip(words, reversed(words), strict=False))]
    counted = Counter(word for word in words).most_common(1)
    mean = statistics.mean(len(word) for word in words)
    return (
        ", ".join(word.strip() for word in words), sum(map(len, words)), any(word == "x" for word in words),
        pairs, counted, mean, tuple(reversed(words)), "tea" in (word for word in words),
        list(itertools.chain(words, words)),
    )  # fmt: skip


def run(program: Any, mode: str) -> tuple[Any, list[str], str]:
    """What is returned or raised, the prompts, and the mode that ran."""
    asked: list[str] = []

    def answer(one: Asked) -> str:
        asked.append(one.prompt)
        return "tea, milk"

    result = program.run(backend=ScriptedBackend(answer), mode=mode)
    error = result.error()
    return (repr(error) if error else result.ret_value), asked, result.mode


@pytest.mark.parametrize(
    "program", [kept, always_true, mapped_twice, chained_twice, has_no_length, handed_on, first]
)
def test_what_may_be_gone_through_again_is_no_list(program: Any) -> None:
    assert run(program, "auto") == run(program, "python")
    with pytest.raises(sgl.SglcError):  # and tracing it breaks: it does not fail
        program.run(backend=ScriptedBackend(lambda asked: "tea"), mode="plan")
    program.compile()


def test_what_is_gone_through_at_once_needs_no_python() -> None:
    *made, mode = run(at_once, "auto")
    assert mode == "plan"
    assert made == [*run(at_once, "python")[:2]]
