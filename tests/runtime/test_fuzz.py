"""Random work on tiny pools: no violation in the engine as it is, one for each planted fault."""

from __future__ import annotations

import pytest

from tests.depth import at_depth, some_of
from tests.runtime.faults import FAULTS, Fault
from tests.runtime.soak import soak

STEPS = 20_000
PART = at_depth(300, 2_000, 5_000)
PARTS = at_depth(1, 1, 20)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_work_keeps_every_invariant(part: int) -> None:
    finished = cut = cached = matched = steered = scored = branched = preempted = forced = late = aborted = 0
    aborted_late = 0
    for driver in soak(PART, seed=10_000 * part):
        finished += driver.finished
        cut += driver.cuts
        cached += driver.cached
        matched += driver.matched
        steered += driver.steered
        scored += driver.prompts_scored
        branched += driver.branched
        preempted += driver.preempted
        forced += driver.forced
        late += driver.late
        aborted += driver.aborted
        aborted_late += driver.aborted_late
    # The streams are not empty ones.
    assert finished > 0.15 * PART
    assert cut > 0.01 * PART
    assert cached > 0.4 * PART
    assert matched > 0.015 * PART
    assert steered > 0.08 * PART
    assert scored > 0.04 * PART
    assert branched > 0.003 * PART
    assert preempted > 0.002 * PART
    assert forced > 0.08 * PART
    assert late > 0.1 * PART
    assert aborted > (0.01 if PART >= 2_000 else 0.005) * PART
    assert aborted_late > 0.0001 * PART or PART < 2_000


def test_requests_come_while_a_step_is_waited_for() -> None:
    meanwhile = finished = aborted = 0
    for driver in soak(PART // 2, seed=777, busy=True):
        finished += driver.finished
        meanwhile += driver.acted_meanwhile
        aborted += driver.aborted
    assert meanwhile > 0.2 * PART
    assert finished > 0.08 * PART
    assert aborted > 0.002 * PART


@pytest.mark.slow
def test_a_hold_is_renewed_before_it_ends() -> None:
    """The node that was held, and nothing else, would go."""
    for _ in soak(142, seed=110_018):
        pass


@pytest.mark.slow
def test_a_hold_takes_no_page_that_is_promised() -> None:
    """A row would find nothing to evict."""
    for _ in soak(47, seed=110_008):
        pass


@pytest.mark.parametrize("fault", some_of(FAULTS, 3, 16), ids=lambda fault: fault.__name__)
def test_planted_fault_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        for _ in soak(STEPS, seed=23):  # rows give way in its first engines, so that most are found soon
            pass
