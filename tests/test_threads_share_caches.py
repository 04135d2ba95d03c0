"""What is remembered of programs is remembered for all threads, however little room there is for it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import ScriptedBackend
from sglc.frontend.tracing import guards, stores
from sglc.frontend.tracing.guards import Memo
from sglc.passes import compile as compiling

pytestmark = pytest.mark.slow


class Slow(dict[Any, Any]):
    """Others come in between before something is gone."""

    def __delitem__(self, key: Any) -> None:
        time.sleep(0)
        super().__delitem__(key)


TARGET = ScriptedBackend(lambda _: "x").target
THREADS, TIMES = 6, 10


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def raised_by_threads(work: Callable[[int], None]) -> list[BaseException]:
    raised: list[BaseException] = []

    def run(first: int) -> None:
        try:
            for number in islice(cycle(range(5)), first, first + TIMES):
                work(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(first,)) for first in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_compiled_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    @sgl.function
    def ask(s: Any, length: int) -> None:
        s += "a" + sgl.gen("b", n=length)

    programs = [ask.trace(args={"length": length + 1}) for length in range(5)]
    monkeypatch.setattr(compiling, "_CACHE", Slow())
    monkeypatch.setattr(compiling, "_CACHE_SIZE", 2)
    monkeypatch.setattr(compiling, "compile_program", lambda program, target, **_: program)

    def work(number: int) -> None:
        found: Any = compiling.cached(programs[number], TARGET)
        assert found is programs[number]

    assert raised_by_threads(work) == []
    assert len(compiling._CACHE) == 2


def test_what_was_made_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "_MOST_ENTRIES", 2)
    memo: Memo[int] = Memo()
    memo._entries = Slow()

    def work(number: int) -> None:
        assert memo.get(number, lambda: (number, lambda: "")) == number

    assert raised_by_threads(work) == []
    assert len(memo._entries) == 2


def test_what_code_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_KNOWN", Slow())
    monkeypatch.setattr(stores, "_MOST", 2)
    codes = [compile(f"def f():\n global x{i}\n x{i} = 1", "f.py", "exec") for i in range(5)]

    def work(number: int) -> None:
        assert ("global", f"x{number}") in stores._stored_by(codes[number])

    assert raised_by_threads(work) == []
    assert len(stores._KNOWN) == 2
