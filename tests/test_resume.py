"""Runs that were cut anywhere go on from their recordings, and end as if nothing had happened."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.errors import BackendError, Paused, RunError, SglcError, UsageError
from sglc.execution.result import Result
from sglc.observe.replay import calls, tape
from sglc.observe.replay.recorder import RowRecorder, TapeRecorder
from sglc.observe.replay.tape import FILE
from tests.depth import at_depth, few

CALLED: list[tuple[Any, ...]] = []


def echoing(asked: Asked) -> str:
    """Every prompt, site and sample has its own answer."""
    if asked.choices:
        return asked.choices[len(asked.prompt) % len(asked.choices)]
    return f"{asked.site.name}{asked.sample} of {len(asked.prompt)} {sum(map(ord, asked.prompt)) % 997}"


# -- programs ----------------------------------------------------------------------------------------


@sgl.tool
def look(query: str) -> str:
    CALLED.append(("look", query))
    return f"fact of {query}"


@sgl.tool
def divide(a: int, b: int) -> Any:
    CALLED.append(("divide", a, b))
    return (a // b, {"is": [a, None, 0.5]})


@sgl.tool(idempotent=True)
def save(text: str) -> None:
    CALLED.append(("save", text))


@sgl.tool
async def later(text: str, turns: int = 0) -> str:
    CALLED.append(("later", text))
    for _ in range(turns):
        await asyncio.sleep(0)
    return text + "!"


@sgl.pure
def shout(text: str) -> str:
    return text.upper()


@sgl.function
def helper(s: Any, text: str) -> None:
    s += text + sgl.gen("h")
    s += look(s["h"]) + sgl.gen("i")


@sgl.function
def chain(s: Any, q: str) -> None:
    s += sgl.system("Be brief.") + sgl.user(q) + sgl.assistant(sgl.gen("a"))
    s += sgl.user("Why?") + sgl.assistant(sgl.gen("b", stop="\n")) + sgl.user("So?")
    s += sgl.assistant(sgl.select("c", ["yes", "no"]))


@sgl.function
def forked(s: Any, q: str) -> str:
    """Branches that call the same function with the same arguments."""
    s += "Q: " + q
    forks = s.fork(3)
    for number, branch in enumerate(forks):
        branch += look("x") + f" tip {number}:" + sgl.gen("tip", n=2 if number == 1 else 1)
        branch += look(str(number // 2)) + sgl.gen("why")
    forks.join()
    s += " best:" + sgl.select("best", ["one", "three"])
    return s["best"] + str(s["tip"])


@sgl.function
def caught(s: Any, q: str) -> Any:
    s += q + sgl.gen("a")
    try:
        divide(1, 0)
    except ZeroDivisionError as error:
        s += f" caught {error}"
    s += sgl.gen("b") + shout(s["a"])
    save(s["b"])
    return [divide(7, 2), look(q)]


@sgl.function
def nested(s: Any, q: str) -> Any:
    first = helper.run(q)
    second = helper(first["h"])
    third = [result["i"] for result in helper.run_batch([{"text": q}, {"text": "x"}])]
    s += second["h"] + look(q) + sgl.gen("a")
    return third


@sgl.function
async def tasks(s: Any, q: str) -> Any:
    """Tasks that come to the same function in another order than they began in."""

    async def branch(number: int) -> str:
        first = await later(f"{number}", turns=9 - 3 * number)
        return first + look("same") + await later(first)

    s += q + sgl.gen("a")
    texts = await asyncio.gather(branch(0), branch(1), branch(2))
    s += "".join(texts) + sgl.gen("b")
    return [look(q), *texts]


@sgl.function
def breaking(s: Any, q: str) -> Any:
    """A plan that goes on as Python."""
    s += look(q) + sgl.gen("a")
    s += look(s["a"]) + " " + str(len(list(map(ord, s["a"])))) + sgl.gen("b")
    found = {look(word) for word in s["b"].split()[:2]}
    s += " ".join(sorted(found)) + sgl.gen("c")


@sgl.function
def excused(s: Any, q: str) -> None:
    """A generation that fails, and a program that goes on."""
    s += q + sgl.gen("a")
    try:
        s += sgl.gen("digits", regex="[0-9]+")
        found = s["digits"]
    except BackendError:
        found = "none"
    s += look(found) + sgl.gen("b")


@sgl.function
def failing(s: Any, q: str) -> None:
    forks = s.fork(2)
    forks[0] += q + sgl.gen("a", regex="[0-9]+")
    forks[1] += q + look(q) + sgl.gen("b")
    forks.join()


@sgl.function
def raising(s: Any, q: str) -> None:
    s += q + look(q) + sgl.gen("a")
    raise ValueError(s["a"])


PROGRAMS = (chain, forked, caught, nested, tasks, breaking, excused, failing, raising)


# -- cutting -----------------------------------------------------------------------------------------


def shown(result: Result) -> Any:
    """All that a result shows, but for times."""
    return {key: value for key, value in result.as_json().items() if key != "timing"}


class Whole:
    """A run of rows that nothing came between, and its recording."""

    def __init__(self, program: sgl.Function, folder: Path, mode: str = "auto", rows: int = 2) -> None:
        self.program, self.mode = program, mode
        self.rows = [{"q": f"q{number}"} for number in range(rows)]
        self.backend = ScriptedBackend(echoing)
        CALLED.clear()
        self.results = [shown(one) for one in self._run(self.backend, folder)]
        self.called = sorted(CALLED, key=str)
        self.recording = (folder / FILE).read_bytes()

    def _run(self, backend: Any, folder: Path, **options: Any) -> list[Result]:
        sgl.set_default_backend(backend)  # of what calls programs by itself
        try:
            return self.program.run_batch(
                self.rows, backend=backend, record=str(folder), seed=5, mode=self.mode, **options
            )
        finally:
            sgl.set_default_backend(None)

    def cut(self, folder: Path, length: int) -> None:
        """Go on with the first bytes of the recording, and look at what comes of it."""
        folder.mkdir()
        (folder / FILE).write_bytes(self.recording[:length])
        lines = [json.loads(line) for line in self.recording[:length].split(b"\n")[:-1]]
        answers = sum(line.get("is") == "answer" for line in lines)
        ended = sum(line.get("is") == "called" for line in lines)
        CALLED.clear()
        backend = ScriptedBackend(echoing)
        results = self._run(backend, folder, resume=True)
        doubt = [one for one in results if getattr(one.error(), "code", "") == "SGLC426"]
        begun = sum(line.get("is") == "call" and "value" not in line for line in lines)
        if doubt:
            assert begun > ended
            again = ScriptedBackend(echoing)
            results = self._run(again, folder, resume=True, redo="all")
            backend.calls += again.calls
        assert [shown(one) for one in results] == self.results
        assert backend.calls + answers == self.backend.calls + self._failed_again(lines)
        assert len(CALLED) + ended == len(self.called)
        # And all of it is in the recording now.
        CALLED.clear()
        idle = ScriptedBackend(echoing)
        assert [shown(one) for one in self._run(idle, folder, resume=True)] == self.results
        assert (idle.calls, CALLED) == (0, [])

    def _failed_again(self, lines: Sequence[Any]) -> int:
        """Answers that say of generations that they were never asked for."""
        return sum(line.get("is") == "answer" and line["target"] is None for line in lines)


def lengths(recording: bytes, torn: int, seed: int) -> list[int]:
    """Where to cut: behind every line, and at some other places."""
    ends = [0] + [at + 1 for at, byte in enumerate(recording) if byte == ord("\n")]
    return ends + random.Random(seed).sample(range(len(recording)), min(torn, len(recording)))


@pytest.mark.parametrize("mode", ["auto", "python"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_run_that_was_cut_anywhere_goes_on(program: sgl.Function, mode: str, tmp_path: Path) -> None:
    whole = Whole(program, tmp_path / "whole", mode)
    for number, length in enumerate(lengths(whole.recording, at_depth(1, 5, 50), 3)):
        whole.cut(tmp_path / str(number), length)
