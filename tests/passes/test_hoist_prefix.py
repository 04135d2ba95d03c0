"""What taking `hoist_prefix` away costs, by counts."""

from __future__ import annotations

from typing import Any

import pytest

import sglc as sgl
from sglc.api.plan import LoadedPlan
from sglc.passes.compile import compile_program
from sglc.passes.pipelines import extended
from tests.oracle_backend import OracleBackend

ESSAYS = [f"{letter} " * 100 for letter in "abcdefgh"]
ROWS = [{"essay": essay, "question": f"{number}?"} for number in range(6) for essay in ESSAYS]


@sgl.function
def ask(s: Any, essay: str, question: str) -> None:
    s += essay + question
    s += sgl.gen("answer", max_tokens=2, temperature=0, ignore_eos=True)


def backend() -> OracleBackend:
    """With room for the prompts of four rows, and no more."""
    return OracleBackend(max_rows=4, pages=240, page_size=4)


def computed(results: Any) -> int:
    return sum(result.usage.computed for result in results)


@pytest.mark.slow
def test_rows_compute_what_they_share_once_only_with_it() -> None:
    with_it, without = backend(), backend()
    hoisted = ask.run_batch(ROWS, backend=with_it, seed=1)
    plain = ask.run_batch(ROWS, backend=without, seed=1, passes="-hoist_prefix")
    assert [one.text() for one in hoisted] == [one.text() for one in plain]
    trie = sum(map(len, ESSAYS)) + len(ROWS) * len("0?")
    assert computed(hoisted) <= 1.1 * trie
    assert computed(plain) > 4 * computed(hoisted)
    for one in (with_it, without):
        one.close()


@pytest.mark.slow
def test_plans_are_told_by_it_how_rows_begin() -> None:
    target = backend().target
    plans = [
        LoadedPlan(compile_program(ask.trace(), target, extended(passes, target)).plan)
        for passes in (["+unify"], ["-hoist_prefix"])
    ]
    assert [len(loaded.plan.leads) for loaded in plans] == [1, 0]
    hoisted, plain = (loaded.run_batch(ROWS, backend=backend(), seed=1) for loaded in plans)
    assert [one.text() for one in hoisted] == [one.text() for one in plain]
    assert computed(plain) > 4 * computed(hoisted)


def test_rows_are_explained_with_what_they_share() -> None:
    said = [
        one.message
        for one in ask.explain(backend(), rows=ROWS).compiled.remarks
        if one.source == "hoist_prefix"
    ]
    assert (
        said[0] == "`answer` begins with `essay`, `question`: rows share as much of it as they have in common"
    )
    total, trie = sum(len(row["essay"]) + 2 for row in ROWS), sum(map(len, ESSAYS)) + 2 * len(ROWS)
    assert said[1] == f"hoisted {total - trie:,} of {total:,} tokens out of {len(ROWS)} rows"
