"""Programs as people write them: all of them run, and those on the list trace, and do the same as plans."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sglc as sgl
from tests.corpus.case import Case, Row, Traced, run_python, same, traced
from tests.corpus.ledger import FAULTS, cases, python, read, trace, word, write

EVERY = pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)


def test_the_corpus_has_its_size() -> None:
    kinds = [case.name.split("/")[0] for case in cases()]
    assert {kind: kinds.count(kind) for kind in kinds} == {"benchmarks": 20, "idioms": 100, "tutorials": 20}
    assert len({case.name for case in cases()}) == len(cases())
    assert sum(bool(case.breaks) for case in cases() if case.name.startswith("idioms/")) <= 25
    for case in cases():
        if case.name.startswith("benchmarks/"):
            assert len(case.rows) == 20, case.name
            assert len({len(repr(row)) for row in case.rows}) > 5, f"{case.name}: rows are of one length"


@pytest.mark.slow
@EVERY
def test_runs_as_python(case: Case) -> None:
    for row in case.rows:
        python(case, row)


@pytest.mark.slow
@EVERY
def test_traces_as_listed(case: Case, request: pytest.FixtureRequest) -> None:
    found, listed = trace(case), read().get(case.name, "")
    now = word(case, found)
    if now in FAULTS:
        assert listed == now, found.difference or "no line of it breaks"
    elif listed and not request.config.getoption("--bless"):
        assert now == listed, found


@pytest.mark.slow
def test_the_list_is_of_today(request: pytest.FixtureRequest) -> None:
    now = {case.name: said for case in cases() if (said := word(case, trace(case)))}
    if request.config.getoption("--bless"):
        known = read()
        write({name: said for name, said in now.items() if said not in FAULTS or known.get(name) == said})
    assert read() == now, "another list than today's: run it with `--bless`"


def test_the_page_says_how_many() -> None:
    said = re.search(
        r"(\d+) compile whole and (\d+) have to break .* DSPy (\d+), and of 20 like SGLang's benchmarks (\d+)",
        Path("docs/language.md").read_text(encoding="utf-8"),
    )
    counts = Counter((name.split("/")[0], word) for name, word in read().items())
    whole = [counts[kind, "whole"] for kind in ("idioms", "tutorials", "benchmarks")]
    assert said is not None
    assert [int(number) for number in said.groups()] == [whole[0], counts["idioms", "breaks"], *whole[1:]]


# -- what finds it out -------------------------------------------------------------------------------


@sgl.function
def plain(s: Any, word: str) -> Any:
    s += word + sgl.gen("x")
    return [s["x"], 1]


@sgl.function
def wrong(s: Any, word: str) -> None:
    s += word + sgl.gen("x", regex="(?=a)b")


def test_a_plan_that_does_something_else_is_not_whole() -> None:
    case = Case("plain", plain, ({"word": "a"}, {"word": "b"}))
    assert traced(case) == Traced()

    def expected(case: Case, row: Row) -> Any:
        outcome = run_python(case, row)
        return outcome if row["word"] == "a" else replace(outcome, value=(*outcome.value,))

    found = traced(case, expected)
    assert not found.whole
    assert found.difference.startswith("row 1, value: [")


def test_what_does_not_compile_is_not_whole() -> None:
    found = traced(Case("wrong", wrong, ({"word": "a"},)))
    assert not found.whole
    assert "compiling raises" in found.breaks[0].reason
    assert found.breaks_at((found.breaks[0].line,))
    assert not found.breaks_at(())


def test_equal_values_of_other_types_differ() -> None:
    assert same({"a": [1, (2.0, None)]}, {"a": [1, (2.0, None)]})
    for one, other in ((1, True), (1, 1.0), ([1], (1,)), ({"a": 1}, {"a": True}), ([], [1])):
        assert not same(one, other)
