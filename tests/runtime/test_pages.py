"""The page pool: every page has one owner, and only that owner gives it back."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sglc.runtime.cache.page_pool import Owner, PagePool


def test_pages_are_handed_out_lowest_first_and_come_back() -> None:
    pool = PagePool(4)
    pages = pool.take(3)
    assert pages.tolist() == [0, 1, 2]
    assert pool.free == 1
    pool.retire(pages, -1)
    assert pool.free == 4
    assert pool.take(4).tolist() == [0, 1, 2, 3]


def test_more_than_there_is_cannot_be_taken() -> None:
    pool = PagePool(2)
    with pytest.raises(AssertionError, match="3 pages wanted, 2 free"):
        pool.take(3)


def test_quarantine_ends_when_its_step_is_drained() -> None:
    pool = PagePool(3)
    first, second = pool.take(1), pool.take(2)
    pool.retire(second, 5)
    pool.retire(first, 4)
    assert pool.free == 0
    assert (pool.owner == Owner.QUARANTINE).all()
    pool.drained(4)
    assert pool.free == 1
    pool.drained(5)
    assert pool.free == 3


def test_a_step_that_is_drained_needs_no_quarantine() -> None:
    pool = PagePool(1)
    pool.drained(7)
    pool.retire(pool.take(1), 7)
    assert pool.free == 1


def test_what_is_not_owned_so_cannot_be_freed() -> None:
    pool = PagePool(2)
    pages = pool.take(2)
    pool.adopt(0)
    with pytest.raises(AssertionError, match=r"pages \[0\] are not PRIVATE"):
        pool.retire(pages, -1)
    with pytest.raises(AssertionError, match=r"pages \[1\] are not NODE"):
        pool.drop(1)
    with pytest.raises(AssertionError, match="page 0 is not private"):
        pool.adopt(0)
    pool.drop(0)
    with pytest.raises(AssertionError, match=r"pages \[0\] are not NODE"):
        pool.drop(0)


def test_the_same_page_twice_in_one_call() -> None:
    pool = PagePool(2)
    page = pool.take(1)
    with pytest.raises(AssertionError, match="pages twice"):
        pool.retire(np.concatenate((page, page)), -1)


def test_random_moves_agree_with_a_dictionary() -> None:
    rng = random.Random(0)
    pool, step = PagePool(17), 0
    model: dict[int, tuple[Owner, int]] = dict.fromkeys(range(17), (Owner.FREE, 0))

    def owned(owner: Owner) -> list[int]:
        return [page for page, (kind, _) in model.items() if kind is owner]

    for _ in range(3_000):
        match rng.randrange(5):
            case 0:
                for page in pool.take(rng.randint(0, pool.free)).tolist():
                    assert model[page][0] is Owner.FREE
                    model[page] = (Owner.PRIVATE, 0)
            case 1 if owned(Owner.PRIVATE):
                page = rng.choice(owned(Owner.PRIVATE))
                pool.adopt(page)
                model[page] = (Owner.NODE, 0)
            case 2 if owned(Owner.NODE):
                page = rng.choice(owned(Owner.NODE))
                pool.drop(page)
                model[page] = (Owner.FREE, 0)
            case 3:
                pages = [page for page in owned(Owner.PRIVATE) if rng.random() < 0.5]
                until = step + rng.randint(-1, 3)
                pool.retire(np.array(pages, np.int32), until)
                for page in pages:
                    model[page] = (Owner.QUARANTINE, until) if until >= step else (Owner.FREE, 0)
            case _:
                pool.drained(step)
                for page, (kind, until) in model.items():
                    if kind is Owner.QUARANTINE and until <= step:
                        model[page] = (Owner.FREE, 0)
                step += 1
        assert pool.owner.tolist() == [model[page][0] for page in range(17)]
        assert pool.free == len(owned(Owner.FREE))
