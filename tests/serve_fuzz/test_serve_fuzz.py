"""Hostile requests to a real server: each is answered, nobody else suffers, nothing is left; faults are found.

`python -m tests.serve_fuzz` sends more of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.depth import at_depth
from tests.serve_fuzz.campaign import limited_server, run
from tests.serve_fuzz.faults import FAULTS, RAISES, changed_copy
from tests.serve_fuzz.hostile import KINDS
from tests.serve_fuzz.kills import kill_at_random

SEED = 0
REQUESTS = at_depth(16, 16, 2_000)  # one of each kind, at least


@pytest.mark.slow
def test_hostile_requests_are_answered_and_leave_nothing_behind() -> None:
    with limited_server() as server:
        summary = run(server, range(REQUESTS), SEED)
    assert summary.requests == REQUESTS
    assert {kind.partition(":")[0] for kind in summary.statuses} == {*KINDS}
    assert summary.wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("kills", [at_depth(2, 2, 50)])
def test_a_runtime_that_is_ended_at_any_moment_is_begun_again(kills: int, tmp_path: Path) -> None:
    with limited_server("--request-timeout", "60", root=changed_copy(RAISES, tmp_path)) as server:
        summary = kill_at_random(server, kills, SEED)
    assert len(summary.killed) == kills
    assert summary.wrong == []


@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault: str, tmp_path: Path) -> None:
    """By requests of which as many are sent in a campaign's first minutes."""
    try:
        with limited_server(root=changed_copy(FAULTS[fault], tmp_path)) as server:
            wrong = run(server, range(250), SEED, first_wrong=True).wrong
    except AssertionError as error:  # it does not end as it should
        wrong = [str(error)]
    assert wrong, f"{fault} is not found"


@pytest.mark.slow
def test_faults_can_be_planted(tmp_path: Path) -> None:
    for number, changes in enumerate((*FAULTS.values(), RAISES)):
        changed_copy(changes, tmp_path / str(number))
