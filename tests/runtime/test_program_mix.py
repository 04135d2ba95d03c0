"""Programs that want more rows than there are: who began first ends first, and nothing costs more for it."""

from __future__ import annotations

import pytest

from tests.agents import least_recently_used
from tests.program_mix import Waits, arrivals, run


def both(kind: str) -> tuple[Waits, Waits]:
    """With programs in the queue, and with requests."""
    programs = run(arrivals((kind,), 14, 0.1, 3), rows=6, pages=400)
    requests = run(arrivals((kind,), 14, 0.1, 3), rows=6, pages=400, arrange=least_recently_used)
    return programs, requests


@pytest.mark.slow
def test_trees_of_thought_end_one_after_another() -> None:
    programs, requests = both("tree")
    assert programs.percentile(0.5) < 0.7 * requests.percentile(0.5)
    assert programs.percentile(0.95) < requests.percentile(0.95)
    assert programs.prompt_tokens < 0.5 * requests.prompt_tokens


def test_single_questions_have_their_turn_as_they_come() -> None:
    programs, requests = both("one")
    assert programs == requests
