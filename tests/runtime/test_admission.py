"""Expected lengths, the use of pages that follows from them, and who gives way."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sglc.runtime.scheduler.admission import (
    Holder,
    PageUsage,
    choose_preempted,
    expected_tokens,
    may_start,
    peak_pages,
)
from sglc.runtime.scheduler.kv_allocator import Lengths
from sglc.runtime.step import I32


def ints(*values: int) -> I32:
    return np.array(values, np.int32)


def usage(*rows: tuple[int, int, int]) -> PageUsage:
    """Of rows (tokens, left, returned)."""
    return PageUsage(*np.array(rows, np.int32).reshape(-1, 3).T)


def simulated(rows: PageUsage, page_size: int) -> int:
    """The peak, step by step."""
    pages = -(-rows.tokens // page_size)
    peak = 0
    for step in range(int(rows.left.max(initial=0)) + 1):
        grown = -(-(rows.tokens + step) // page_size) - pages
        peak = max(peak, int(np.where(step <= rows.left, grown, -rows.returned).sum()))
    return peak


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_the_peak_is_that_of_a_simulation(page_size: int) -> None:
    rng = random.Random(page_size)
    for _ in range(500):
        rows = usage(
            *((rng.randint(0, 40), rng.randint(0, 30), rng.randint(0, 5)) for _ in range(rng.randint(0, 8)))
        )
        assert peak_pages(rows, page_size) == simulated(rows, page_size)


def test_rows_that_end_pay_for_those_that_go_on() -> None:
    # 8 tokens each: 2 pages more for the short one, 6 for the long one, which begins when 4 are back.
    assert peak_pages(usage((8, 8, 4)), 4) == 2
    assert peak_pages(usage((8, 24, 2)), 4) == 6
    assert peak_pages(usage((8, 8, 4), (8, 24, 2)), 4) == 4
    assert peak_pages(usage((8, 0, 4), (8, 8, 2)), 4) == 0


def test_a_row_starts_if_its_pages_now_and_the_peak_fit() -> None:
    rows = usage((8, 8, 4), (8, 24, 2))
    assert may_start(6, 2, rows, 4)
    assert not may_start(5, 2, rows, 4)
    assert not may_start(1, 2, usage(), 4)
    assert may_start(2, 2, usage(), 4)


def test_more_rows_run_than_a_promise_of_all_tokens_allows() -> None:
    # Rows of 16 tokens and up to 64 more, in 40 pages of 16: a promise gives 5 pages to each of 8 rows.
    started: list[tuple[int, int, int]] = []
    lengths = Lengths()
    left = expected_tokens(ints(0), ints(64), lengths.share)[0]
    while may_start(40 - len(started), 1, usage(*started, (16, left, 1)), 16):
        started.append((16, int(left), 1))
    assert len(started) == 13
    exact = expected_tokens(ints(64), ints(64), lengths.share)[0]
    assert not may_start(40 - 8, 1, usage(*[(16, exact, 1)] * 9), 16)


def test_the_share_follows_what_is_seen() -> None:
    lengths = Lengths()
    for _ in range(300):
        lengths = lengths.observed(20, 200)
    assert lengths.share == pytest.approx(0.1, abs=0.01)
    for _ in range(300):
        lengths = lengths.observed(200, 200)
    assert lengths.share == pytest.approx(1.0, abs=0.01)


def test_the_share_stays_a_share() -> None:
    rng = random.Random(0)
    lengths = Lengths()
    for _ in range(1_000):
        most = rng.randint(1, 50)
        lengths = lengths.missed() if rng.random() < 0.1 else lengths.observed(rng.randint(0, most), most)
        assert 0 <= lengths.share <= 1


def test_a_miss_makes_the_next_guess_longer() -> None:
    lengths = Lengths(0.2, 64)
    assert lengths.missed().share == pytest.approx(0.6)
    assert lengths.missed().missed().share == pytest.approx(0.8)


def test_expected_tokens_stay_between_the_bounds() -> None:
    expected = expected_tokens(ints(0, 80, 0, 0, 0, 90), ints(100, 100, 70, 1, 0, 90), 0.5)
    assert expected.tolist() == [50, 80, 35, 1, 0, 90]
    assert expected.dtype == np.int32


def test_a_sample_that_may_go_on_is_never_expected_to_be_over() -> None:
    assert expected_tokens(ints(0), ints(1), 0.01).tolist() == [1]


def test_the_row_that_loses_least_gives_way_and_of_equal_ones_the_latest() -> None:
    rows = [
        Holder(0, (1, 0), lost_tokens=5, pages=1),
        Holder(1, (2, 0), lost_tokens=40, pages=3),
        Holder(2, (3, 0), lost_tokens=9, pages=1),
        Holder(3, (3, 1), lost_tokens=9, pages=1),
    ]
    assert choose_preempted(1, rows) == (3,)
    assert choose_preempted(2, rows) == (3, 2)
    assert choose_preempted(5, rows) == (3, 2, 1)
    assert choose_preempted(50, rows) == (3, 2, 1)  # the oldest stays, though it loses least
    assert choose_preempted(0, rows) == ()


def test_what_a_row_wants_is_not_needed_when_it_gives_way() -> None:
    rows = [Holder(0, (1, 0), 1, 1, wants=1), Holder(1, (2, 0), 1, 0, wants=1), Holder(2, (3, 0), 1, 0)]
    assert choose_preempted(1, rows) == (1,)


def test_the_only_row_stays() -> None:
    assert choose_preempted(3, [Holder(4, (9, 0), 10, 5, wants=1)]) == ()
    assert choose_preempted(3, []) == ()
