"""Batches whose results come as they end, ended at random moments: no hang, no result lost, each one once."""

from __future__ import annotations

import inspect
import os
import random
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sglc as sgl
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.execution.batch import runner
from sglc.execution.batch.runner import BatchControl, Interrupted, run_batch
from tests.depth import at_depth

HANGS_S = 60.0  # far more than any of them takes


@sgl.function
def plan(s: Any, q: str, n: int = 0) -> None:
    s += q + f"{n + 1}" + sgl.gen("a") + sgl.gen("b")


@sgl.function
def paths(s: Any, q: str, n: int = 0) -> None:
    """Rows of a path that is new are not made in the executor's loop."""
    s += q + sgl.gen("a")
    if n % 3:
        s += f"{n % 7}" * (n % 7) + sgl.gen("b")


@sgl.function
def python(s: Any, q: str, n: int = 0) -> str:
    s += q + sgl.gen("a")
    return str(id(s)) if not s["a"] else s["a"]  # what is not compiled


class Ends(Exception):
    """What a generator of rows raises."""


@dataclass
class Played:
    """What came of a batch, and what could have."""

    rows: int
    skipped: frozenset[int]
    given: list[int] = field(default_factory=list)
    there: set[int] = field(default_factory=set)  # results that were there when it was stopped
    begun: int = 0
    failed: list[int] = field(default_factory=list)
    raised: BaseException | None = None
    stopped: bool = False
    drained: bool = False
    hangs: bool = False


def play(seed: int, hangs_s: float = HANGS_S) -> Played:
    """One batch of some shape, stopped or drained, or not, at some moment, from some thread."""
    draw = random.Random(seed)
    rows, raises = draw.choice([0, 1, 5, 40, 120]), draw.random() < 0.2
    skipped = frozenset(n for n in range(rows) if draw.random() < draw.choice([0, 0.3]))
    made = Played(rows, skipped)
    pause_s = draw.choice([0.0, 0.0, 1e-4, 1e-3])
    program = draw.choice([plan, paths, python])
    window = draw.choice(["auto", 1, 3, 64])
    end, when = draw.choice(["", "stop", "stop", "drain"]), draw.randrange(max(rows, 1))
    by_time = draw.random() < 0.5
    after_s, reads_s = draw.random() * 0.02, draw.choice([0.0, 0.0, 2e-3])
    most = draw.choice([None, None, 1 + rows // 2])

    def words(asked: Asked) -> str:
        return " w" * (1 + hash((seed, asked.prompt)) % 4)

    def each() -> Iterator[dict[str, Any]]:
        for number in range(rows):
            yield {"q": f"{number} ", "n": 0 if number % 5 else number}
        if raises:
            raise Ends

    async def awaited() -> AsyncIterator[dict[str, Any]]:
        for row in each():
            yield row

    forms: list[Callable[[], Any]] = [each, awaited, *([] if raises else [lambda: list(each())])]
    ended = 0
    control = BatchControl(None if most is None else lambda begun: begun < most)

    def finish() -> None:
        if control.batch is not None and end == "stop":
            with control.batch._room:
                made.there = {result.row for result in control.batch._done}
        if end == "stop":
            made.stopped = True
            control.stop()
        else:
            made.drained = True
            control.drain()

    watched: dict[str, Any] = {}
    if draw.random() < 0.3:
        watched = {"trace": str(Path(tempfile.gettempdir()) / f"sglc-{os.getpid()}-{seed}.json")}

    def run() -> None:
        nonlocal ended
        backend = ScriptedBackend(words, word_s=pause_s)
        try:
            for result in program.stream_batch(
                draw.choice(forms)(), backend=backend, num_threads=window, ordered=False, skip=skipped,
                control=control, **watched,
            ):  # fmt: skip
                made.given.append(result.row)
                time.sleep(reads_s)
                if result.failed:
                    made.failed.append(result.row)
                ended += 1
                if most is not None and ended == most:
                    control.drain()
                if end and not by_time and ended == when:
                    threading.Thread(target=finish).start()
        except Exception as problem:
            made.raised = problem
        made.begun = control.begun

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    if end and by_time:
        time.sleep(after_s)
        finish()
    thread.join(hangs_s)
    if watched:
        Path(watched["trace"]).unlink(missing_ok=True)
    made.hangs = thread.is_alive()
    if most is not None:
        made.drained = True
    return made


def wrong(made: Played) -> str:
    """What of it must not be; else ""."""
    if made.hangs:
        return "it hangs"
    if not isinstance(made.raised, Ends | None):
        return f"it raises {made.raised!r}"
    if len(set(made.given)) < len(made.given):
        return "a result comes twice"
    if made.skipped & set(made.given):
        return "a row runs that is to be skipped"
    if made.failed:
        return "a row that was stopped has a result"
    if not made.there <= set(made.given):
        return "a result that was there is lost"
    if not made.stopped and len(made.given) != made.begun:
        return "a row that has begun has no result"
    if not made.stopped and not made.drained and set(made.given) != set(range(made.rows)) - made.skipped:
        return "a row is lost"
    return ""


@pytest.mark.slow
def test_no_result_is_lost_whenever_a_batch_ends() -> None:
    found = {seed: said for seed in range(at_depth(25, 60, 5_000)) if (said := wrong(play(seed)))}
    assert not found


ENDED = "            self._live -= 1\n            if not self._ordered:\n"
TOLD = "if not self._ordered or number == self._next:"
CLOSED = "            self._closed = True\n"
FAULTS = {
    "a result comes twice": ("self._done.append(result)", "self._done.extend([result, result])"),
    "nobody is told that a row has ended": (TOLD, "if False:"),
    "a row that was to be made in the loop is lost": ("self._turns.appendleft((number, row))", "pass"),
    "a row that ended keeps its place": (ENDED, "            if not self._ordered:\n"),
    "rows that are skipped run": ("if numbered[0] in self._skip:", "if False:"),
    "what was there is dropped": ("while not self._done:", "while not self._done or self._stopping:"),
    "a drain stops": (CLOSED, "            self._closed = self._stopping = True\n"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_batch_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = FAULTS[fault]
    source = inspect.getsource(runner._Batch)
    assert source.count(old) == 1, fault
    space = dict(vars(runner))
    exec(compile(source.replace(old, new), runner.__file__, "exec", dont_inherit=True, flags=1 << 24), space)
    monkeypatch.setattr(runner, "_Batch", space["_Batch"])
    assert any(wrong(play(seed, hangs_s=3.0)) for seed in range(200))


def test_a_row_that_cannot_be_made_ends_the_batch() -> None:
    """Behind the results of those before, in whatever order they come."""

    def make(number: int, row: str, at_once: bool) -> Any:
        raise Ends

    delivery = runner.Delivery(ordered=False)
    with pytest.raises(Ends):
        list(
            run_batch(make, ["a", "b"], ScriptedBackend(lambda asked: "x"), None, None, "x", delivery=delivery)
        )


@pytest.mark.parametrize(("turn_s", "most"), [(60.0, 2), (-1.0, 100)])
def test_rows_that_take_long_are_made_in_the_thread(
    turn_s: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop is there for others, too; rows that are made at once are made in it, but for the first one."""
    monkeypatch.setattr(runner, "_TURN_S", turn_s)
    plan.run("a", backend=ScriptedBackend(lambda asked: ".")).sync()
    made: list[int] = []
    inside = runner._Batch._made
    monkeypatch.setattr(
        runner._Batch, "_made", lambda self, number, row: made.append(number) or inside(self, number, row)
    )
    rows = [{"q": f"{number}"} for number in range(100)]
    results = plan.run_batch(rows, backend=ScriptedBackend(lambda asked: "."))
    assert [result.text() for result in results] == [f"{number}1.." for number in range(100)]
    assert (len(made) > 90) == (most == 100), made
    assert len(made) <= most


def test_what_is_asked_before_a_row_begins_may_raise() -> None:
    def admits(begun: int) -> bool:
        if begun > 20:
            raise Ends
        return True

    control = BatchControl(admits)
    rows = [{"q": "a"}] * 100
    backend = ScriptedBackend(lambda asked: ".")
    given: list[int] = []
    batch = plan.stream_batch(rows, backend=backend, ordered=False, control=control)
    with pytest.raises(Ends):
        given.extend(result.row for result in batch)
    assert len(given) == 21


def test_ctrl_c_while_results_come_as_they_end() -> None:
    def rows() -> Iterator[dict[str, str]]:
        yield {"q": "a"}
        yield {"q": "b"}
        raise KeyboardInterrupt

    backend = ScriptedBackend(lambda asked: "x")
    batch = plan.stream_batch(rows(), backend=backend, ordered=False)
    held = [next(batch), next(batch)]
    with pytest.raises(Interrupted) as caught:
        next(batch)
    assert caught.value.results == sorted(held, key=lambda result: result.row)


def test_rows_that_never_come_end_with_the_batch() -> None:
    """An async iterator that waits for ever does not hold back who stops."""

    async def rows() -> AsyncIterator[dict[str, str]]:
        import asyncio

        yield {"q": "a"}
        await asyncio.Event().wait()

    control = BatchControl()
    batch = plan.stream_batch(
        rows(), backend=ScriptedBackend(lambda asked: "x"), ordered=False, control=control
    )
    assert next(batch).row == 0
    threading.Thread(target=control.stop).start()
    assert list(batch) == []


@pytest.mark.parametrize(
    "skip",
    [np.array([0, 2]), np.array([0]), range(0), {1}, ()],
    ids=["array", "one", "range", "set", "nothing"],
)
def test_what_is_skipped_is_asked_for_no_more_than_a_number(skip: Any) -> None:
    rows = [{"q": f"{number}?"} for number in range(4)]
    results = plan.stream_batch(rows, backend=ScriptedBackend(lambda asked: "yes"), skip=skip)
    assert [result.row for result in results] == [number for number in range(4) if number not in skip]
