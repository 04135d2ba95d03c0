"""Random programs on the oracle: every count lies where the estimate said; broken estimates are caught."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sglc.explain.estimate import abstract_values, token_counts, walk_plan, walk_segment
from sglc.explain.estimate.forecast import Tally
from sglc.explain.estimate.intervals import ZERO, Interval
from sglc.explain.estimate.prefix_tree import PrefixTree
from tests.depth import at_depth, some_of
from tests.soak_explain import check

PROGRAMS = at_depth(6, 15, 400)


def test_bounds_hold_on_random_programs() -> None:
    found: Counter[str] = Counter()
    for seed in range(PROGRAMS):
        found.update(check(seed))
    assert found["calls"] > 4 * PROGRAMS
    assert found["exact prompts"] > 2 * PROGRAMS


def test_bounds_hold_when_no_argument_is_known() -> None:
    found: Counter[str] = Counter()
    for seed in range(PROGRAMS // 3):
        found.update(check(seed, given={}))
    assert found["calls"] > 4 * (PROGRAMS // 3)


def literals_one_by_one(patch: pytest.MonkeyPatch) -> None:
    """A literal counts for each op that writes it, not for the whole run."""

    def apart(line: Sequence[token_counts.Item]) -> token_counts.Line:
        return tuple(item for item in line if item != "")

    patch.setattr(token_counts, "merged", apart)
    patch.setattr(walk_plan, "merged", apart)
    patch.setattr(walk_segment, "merged", apart)
    patch.setattr(abstract_values, "merged", apart)


def prefixes_of_forks_twice(patch: pytest.MonkeyPatch) -> None:
    """What stands before a fork counts as computed in every branch."""
    add = PrefixTree.add

    def alone(self: PrefixTree, *args: Any) -> tuple[int, int, bool, int]:
        add(self, *args)
        return 0, 0, False, 0

    patch.setattr(PrefixTree, "add", alone)


def both_arms(patch: pytest.MonkeyPatch) -> None:
    """All arms of a choice count."""
    patch.setattr(walk_plan, "one_of", lambda tallies: sum(tallies, Tally()))


def first_arm(patch: pytest.MonkeyPatch) -> None:
    """Only the first arm of a choice is gone through."""
    arms = walk_plan._arms
    patch.setattr(walk_plan, "_arms", lambda step, form: arms(step, form)[:1])


def loops_once(patch: pytest.MonkeyPatch) -> None:
    """A loop is taken to run once."""
    loop = walk_plan._PlanWalk.loop
    patch.setattr(
        walk_plan._PlanWalk, "loop", lambda self, step, at: loop(self, replace(step, max_iters=1), at)
    )


def silent(patch: pytest.MonkeyPatch) -> None:
    """Generated texts are taken to be empty."""
    patch.setattr(walk_segment, "kept", lambda sampling, counter: ZERO)


def half_the_limit(patch: pytest.MonkeyPatch) -> None:
    """A generation is taken to make half of what it may."""
    whole: Callable[..., Interval] = walk_segment.completion  # type: ignore[attr-defined]

    def half(*args: Any) -> Interval:
        span = whole(*args)
        assert span.high is not None
        return Interval(span.low, span.high // 2, span.likely)

    patch.setattr(walk_segment, "completion", half)


def no_room_at_joints(patch: pytest.MonkeyPatch) -> None:
    """Texts that meet are taken to keep their tokens."""
    patch.setattr(token_counts.TokenCounter, "_roomy", lambda self, item, *_: item)


MUTANTS = (
    literals_one_by_one, prefixes_of_forks_twice, both_arms, first_arm, loops_once, silent, half_the_limit,
    no_room_at_joints,
)  # fmt: skip
# The program that showed it the last time is looked at first.
SHOWN_BY = {
    "both_arms": 18,
    "first_arm": 18,
    "literals_one_by_one": 4,
    "loops_once": 7,
    "no_room_at_joints": 48,
}


@pytest.mark.parametrize("mutant", some_of(MUTANTS, 1, 4), ids=lambda mutant: mutant.__name__)
def test_broken_estimates_are_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    for seed in (SHOWN_BY.get(mutant.__name__, 0), *range(100)):
        try:
            check(seed)
        except AssertionError:
            return
    pytest.fail("no program shows it")
