"""Batches of any iterable: rows as they are needed, results that nobody holds are gone, no thread a row."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import ScriptedBackend
from sglc.errors import UsageError
from sglc.execution.batch.runner import Interrupted
from tests.depth import at_depth

AHEAD = 4096  # rows that are looked at together
ROWS = at_depth(9_000, 9_000, 100_000)


@sgl.function
def asked(s: Any, q: str) -> str:
    s += q + sgl.gen("a")
    return s["a"] + "!"


def backend() -> ScriptedBackend:
    return ScriptedBackend(lambda asked: f"<{asked.prompt}>")


@pytest.mark.slow
def test_rows_are_taken_a_window_ahead_and_results_are_dropped() -> None:
    taken = 0

    def rows(count: int) -> Iterator[dict[str, str]]:
        nonlocal taken
        for number in range(count):
            taken += 1
            yield {"q": str(number)}

    results: list[weakref.ref[sgl.Result]] = []
    others = set(threading.enumerate())  # what other tests left ends when it likes
    threads: set[threading.Thread] = set()
    alive, ahead = 0, 0
    for number, result in enumerate(asked.stream_batch(rows(ROWS), backend=backend())):
        assert result.ret_value == f"<{number}>!"
        results.append(weakref.ref(result))
        ahead = max(ahead, taken - number)
        if number and not number % 1_000:
            threads.update(thread for thread in threading.enumerate() if thread not in others)
            gc.collect()
            alive = max(alive, sum(one() is not None for one in results))
    assert taken == len(results) == ROWS
    assert ahead <= 2 * AHEAD + 64  # and a window of rows that are live
    assert len(threads) <= 2  # the one that feeds, and the loop
    assert alive <= 2


def test_a_list_from_any_iterable() -> None:
    results = asked.run_batch(({"q": text} for text in "abc"), backend=backend())
    assert [result.ret_value for result in results] == ["<a>!", "<b>!", "<c>!"]
    plan = asked.compile(backend()).plan
    from sglc.api.plan import LoadedPlan

    loaded = LoadedPlan(plan).run_batch(({"q": text} for text in "abc"), backend=backend())
    assert [result.ret_value for result in loaded] == ["<a>!", "<b>!", "<c>!"]


@pytest.mark.parametrize("wrong", [{"q": "a", "z": 1}, RuntimeError("no more")])
def test_what_the_rows_raise_comes_behind_the_results_before(wrong: Any) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield {"q": "a"}
        yield {"q": "b"}
        if isinstance(wrong, Exception):
            raise wrong
        yield wrong

    batch = asked.stream_batch(rows(), backend=backend())
    assert [next(batch).ret_value, next(batch).ret_value] == ["<a>!", "<b>!"]
    with pytest.raises((UsageError, RuntimeError), match=r"row 2 of the batch|no more"):
        next(batch)


def test_a_row_begins_before_the_next_one_comes() -> None:
    first = threading.Event()

    def rows() -> Iterator[dict[str, str]]:
        yield {"q": "a"}
        assert first.wait(60)
        yield {"q": "b"}

    batch = asked.stream_batch(rows(), backend=backend())
    assert next(batch).ret_value == "<a>!"
    first.set()
    assert next(batch).ret_value == "<b>!"


def test_an_endless_batch_ends_when_its_iterator_is_closed() -> None:
    def rows() -> Iterator[dict[str, str]]:
        while True:
            yield {"q": "x"}

    batch = asked.stream_batch(rows(), backend=backend(), hoist_prefix=False)
    assert [next(batch).ret_value for _ in range(3)] == ["<x>!"] * 3
    batch.close()  # type: ignore[attr-defined]


def test_ctrl_c_gives_the_results_that_are_held() -> None:
    def rows() -> Iterator[dict[str, str]]:
        yield {"q": "a"}
        yield {"q": "b"}
        raise KeyboardInterrupt

    batch = asked.stream_batch(rows(), backend=backend())
    held = [next(batch), next(batch)]
    with pytest.raises(Interrupted) as caught:
        next(batch)
    assert caught.value.results == held
