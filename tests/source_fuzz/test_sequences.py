"""A program shows the same whatever ran before, in which mode, and whatever was changed in between."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.depth import at_depth
from tests.source_fuzz.sequence_faults import FAULTS
from tests.source_fuzz.sequences import played, random_sequence, shown, unequal

SEED = 0
SEQUENCES = at_depth(10, 150, 3_000)
# The sequence that found a fault the last time is looked at first: the others are made when it no longer does.
FOUND_BY = json.loads((Path(__file__).parent / "found_by.json").read_text())
_MOST = 300  # sequences until a planted fault has to be found


@pytest.mark.slow
def test_calls_in_any_mode_show_what_python_shows() -> None:
    for number in range(SEQUENCES):
        sequence = random_sequence(SEED, number)
        found = unequal(sequence)
        if found is not None:
            pytest.fail(shown(sequence, found))


@pytest.mark.slow
def test_sequences_run_plans_and_python_and_both() -> None:
    ran: Counter[str] = Counter()
    for number in range(25):
        for outcome in played(random_sequence(SEED, number), python=False):
            ran.update(row["ran"] for row in outcome.get("rows", [outcome]) if "ran" in row)
    assert ran["plan"] > 50
    assert ran["python"] > 50
    assert ran["plan, then python"] > 2


def test_sequences_are_the_same_ones_again() -> None:
    assert random_sequence(3, 14) == random_sequence(3, 14) != random_sequence(4, 14)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str) -> None:
    for number in (FOUND_BY["sequences"].get(name, 0), *range(_MOST)):
        with FAULTS[name]():
            if unequal(random_sequence(SEED, number)) is not None:
                return
    pytest.fail(f"not found in {_MOST} sequences")
