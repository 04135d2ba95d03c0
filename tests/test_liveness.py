"""Programs whose KV does not fit: what they come back to stays, what is over goes first, and nobody starves."""

from __future__ import annotations

import pytest

from sglc.runtime.cache.page_tree import Worth
from tests.agents import PAGE_SIZE, Agents, Clock, TimedBackend, least_recently_used, measure
from tests.depth import few
from tests.page_trace import End, Grow, Open, Trace, replay


@pytest.mark.slow
@pytest.mark.parametrize("shared", few([False, True], 1))
@pytest.mark.parametrize("tool_steps", few([0, 4], 1))
def test_half_as_much_is_computed_again_as_by_last_use(tool_steps: int, shared: bool) -> None:
    work = Agents(16, rounds=5, system=208, result=52, output=16, shared=shared, tool_steps=tool_steps)
    pages = work.tokens // PAGE_SIZE // 4
    programs = measure(work, pages, token_budget=128)
    requests = measure(work, pages, least_recently_used, token_budget=128)
    assert requests.recomputed > requests.bound > 0
    assert programs.bound <= programs.recomputed <= requests.recomputed / 2
    # What is less than a page, and two begin with, may be computed by both.
    assert measure(work, 2 * work.tokens // PAGE_SIZE).recomputed < PAGE_SIZE


@pytest.mark.slow
def test_half_as_much_is_computed_again_through_a_server_that_is_given_hints() -> None:
    work = Agents(16, rounds=5, system=208, result=52, output=16, tool_steps=4)
    pages = work.tokens // PAGE_SIZE // 4
    told, untold = (measure(work, pages, token_budget=128, hints=hints) for hints in ("sglc", ""))
    assert untold.recomputed > untold.bound > 0
    assert 0 < told.recomputed <= untold.recomputed / 2


def test_nothing_of_a_program_that_has_ended_is_worth_keeping() -> None:
    work = Agents(3, rounds=3, system=100, result=30, output=10)
    clock = Clock(work.count)
    backend = TimedBackend(clock, 400)
    try:
        work.run(clock, backend)
        machine = backend.machine
        assert machine is not None
        nodes = [machine.engine.tree.root]
        for node in nodes:
            nodes += node.children
        assert sum(len(node.pages) for node in nodes) > 30
        assert {node.worth for node in nodes[1:]} == {Worth.DEAD}
        assert not machine.engine.handles.pinned()
        assert not machine.engine.reservations.nodes()
    finally:
        backend.close()


def test_replay_takes_the_leaf_that_is_asked_for_the_latest() -> None:
    a, b, c = (tuple(range(i, i + 4)) for i in (0, 10, 20))
    trace = Trace(page_size=2, pages=4)
    for number, ids in enumerate((a, b, c, b, a)):
        trace.events += [Open(number, ids, 3, 0), Grow(number, 2), End(number, ids)]
    # With room for two of the three, `c` takes the place of `a`, which comes back later than `b`.
    assert replay(trace, 100) == 4 + 4 + 4 + 1 + 1
    assert replay(trace) == 4 + 4 + 4 + 1 + 4
    assert trace.computed == 20
