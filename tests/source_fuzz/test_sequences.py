"""A program shows the same whatever ran before, in which mode, and whatever was changed in between.

`make test` plays 50 sequences and looks for some planted faults; `make nightly` plays 3,000 and looks for all.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.depth import at_depth, some_of
from tests.source_fuzz.sequence_faults import FAULTS
from tests.source_fuzz.sequences import played, random_sequence, shown, unequal

SEED = 0
SEQUENCES, PARTS = at_depth(10, 10, 3_000), at_depth(1, 1, 30)
# The sequence that found a fault the last time is looked at first: the others are made when it no longer does.
FOUND_BY = json.loads((Path(__file__).parent / "found_by.json").read_text())
_MOST = 300  # sequences until a planted fault has to be found


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_calls_in_any_mode_show_what_python_shows(part: int) -> None:
    ran: Counter[str] = Counter()
    numbers = range(part, SEQUENCES, PARTS)
    for number in numbers:
        sequence = random_sequence(SEED, number)
        outcomes = played(sequence, python=False)
        found = unequal(sequence, outcomes)
        if found is not None:
            pytest.fail(shown(sequence, found))
        for outcome in outcomes:
            ran.update(row["ran"] for row in outcome.get("rows", [outcome]) if "ran" in row)
    assert ran["plan"] > 2 * len(numbers)
    assert ran["python"] > 2 * len(numbers)
    assert ran["plan, then python"] > len(numbers) // 10


def test_sequences_are_the_same_ones_again() -> None:
    assert random_sequence(3, 14) == random_sequence(3, 14) != random_sequence(4, 14)


@pytest.mark.slow
@pytest.mark.parametrize("name", some_of(list(FAULTS), 2, 6))
def test_a_planted_fault_is_found(name: str) -> None:
    for number in (FOUND_BY["sequences"].get(name, 0), *range(_MOST)):
        sequence = random_sequence(SEED, number)
        with FAULTS[name]():
            if unequal(sequence, played(sequence, python=False)) is not None:
                return
    pytest.fail(f"not found in {_MOST} sequences")
