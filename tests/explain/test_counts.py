"""Every number of an explanation is one that a run can have: of random programs, and of the corpus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sglc.backends.openai import OpenAIBackend, OpenAIOptions
from sglc.backends.scripted import ScriptedBackend
from sglc.errors import SglcError
from sglc.explain.explanation import Explanation, explained_program
from sglc.ir.plan.backend import Backend
from sglc.ir.text.printer import from_text
from tests.corpus.case import Case
from tests.corpus.ledger import cases
from tests.depth import at_depth, some_of
from tests.oracle_backend import OracleBackend
from tests.random_programs import random_program

BACKENDS: tuple[Backend, ...] = (
    ScriptedBackend(lambda asked: "x"),
    OracleBackend(),
    OpenAIBackend(OpenAIOptions(model="gpt-4.1-mini")),
)


def numbers(data: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Each number of an explanation, and each span of them, by where it stands."""
    match data:
        case bool():
            return
        case int() | float():
            yield at, data
        case [int(), int() | None, int() | float()]:
            yield at, tuple(data)
        case list():
            for number, item in enumerate(data):
                yield from numbers(item, f"{at}[{number}]")
        case dict():
            for name, item in data.items():
                yield from numbers(item, f"{at}.{name}")


def impossible(explanation: Explanation) -> list[tuple[str, Any]]:
    """The numbers that no run can have."""
    found: list[tuple[str, Any]] = []
    counted = {name: part for name, part in explanation.to_json().items() if name != "automata"}
    for at, number in numbers(counted):
        match number:
            case (low, high, likely):
                if not 0 <= low <= likely or (high is not None and likely > high):
                    found.append((at, number))
            case -1 if at.endswith(".above"):  # the first of the tree
                continue
            case _ if number < 0:
                found.append((at, number))
    tallies = [explanation.forecast.counts]
    for step in explanation.forecast.steps:
        tallies += [step.counts, step.each]
    for tally in tallies:
        for part in (tally.shared, tally.computed):
            if tally.prompt.high is not None and (part.high is None or part.high > tally.prompt.high):
                found.append(("a part of the prompt", (part, tally.prompt)))
    calls = explanation.forecast.counts.calls
    if calls.high is not None and explanation.forecast.depth > calls.high:
        found.append(("depth", (explanation.forecast.depth, calls)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.target.name)
def test_random_programs(backend: Backend) -> None:
    looked, chat = 0, backend.target.name.startswith("openai")
    for seed in range(at_depth(40 if chat else 15, 40 if chat else 20, 400)):
        program = random_program(
            seed, ascii_only=True, regions=seed % 2 == 1, images=False, chat=chat or seed % 3 == 0
        )
        try:
            explanation = explained_program(program, backend.target)
        except SglcError:  # the target cannot do it
            continue
        looked += 1
        assert impossible(explanation) == [], seed
        explanation.text()
        explanation.to_mermaid()
    assert looked > (0 if chat else at_depth(5, 7, 15))  # an API refuses most


def test_a_decision_on_a_constant_is_shown() -> None:
    program = from_text(
        "# sglir 2\ndef f():\n    s0 = root()\n    t0 = strip(' yes ')\n    switch(t0):\n        case 'yes':\n"
        "            s1, t1 = gen(s0, 'x')\n            yield\n    return s0\n",
        "constant.sglir",
    )
    assert "case 'yes'" in explained_program(program, BACKENDS[0].target).text()


@pytest.mark.slow
@pytest.mark.parametrize("case", some_of(cases(), 8, 20), ids=lambda case: case.name)
def test_the_corpus(case: Case) -> None:
    for rows in (None, list(case.rows)[:3]):
        try:
            explanation = case.function.explain(BACKENDS[0], rows=rows)
        except SglcError:  # it needs its arguments, or has more than a bound function takes
            continue
        assert impossible(explanation) == []
