"""A plan whose program goes on as Python shows what Python alone shows: nothing twice, and nothing lost."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.scripted import Asked, ScriptedBackend

NUMBERS = itertools.count()


def answering(asked: Asked) -> str:
    return asked.choices[0] if asked.choices else f"<{asked.site}>"


@sgl.function
def reads_what_it_made(s: Any) -> None:
    s += "Q: " + sgl.gen("x")
    s += f" then {s['x']}\n"
    forks = s.fork(2)
    forks[0] += sgl.gen("side")
    forks[1] += sgl.gen("side")
    s += forks[0]["side"] + " or " + forks[1]["side"] + sgl.gen("y")
    if s["y"] == "nothing":
        return
    s += str(next(NUMBERS) < 0) + sgl.gen("z")


PROGRAMS = [reads_what_it_made]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("live", [False, True], ids=["at the end", "live"])
def test_the_whole_text_is_told_once(program: sgl.Function, live: bool) -> None:
    backend = ScriptedBackend(answering)
    python = program.run(backend=backend, mode="python").sync()
    result = program.run(backend=backend, stream=live)
    pieces = list(result.text_iter())
    assert result.why_python.startswith("it goes on as Python")
    assert "".join(pieces) == result.text() == python.text()
