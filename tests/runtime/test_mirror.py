"""What steps mean: a mirror writes them out as they are written out by hand."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from sglc.ir.sampling import Sampling
from sglc.runtime.executor.executor_state import ExecutorState
from sglc.runtime.scheduler.kv_allocator import RUN_PAGES
from sglc.runtime.step import SAMPLED, Batch, Filters, Step
from tests.runtime.handmade import Row, make_batch, make_step
from tests.runtime.test_engine import LONG, Bench


def same(one: Batch, other: Batch) -> None:
    for field in fields(Batch):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype, field.name
            np.testing.assert_array_equal(left, right, field.name)
        else:
            assert left == right, field.name


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_step_of_rows_that_begin_is_written_out(page_size: int) -> None:
    rng = np.random.default_rng(page_size)
    for index in range(20):
        rows, following = [], 0
        for number in rng.permutation(40)[: rng.integers(1, 9)].tolist():
            first, new = int(rng.integers(0, 70)), int(rng.integers(1, 50))
            pages = -(-(first + new) // page_size)
            rows.append(
                Row(
                    tokens=rng.integers(0, 99, new).tolist(),
                    pages=range(following, following + pages),
                    first=first,
                    row=number,
                    sample=bool(rng.integers(2)),
                    temperature=float(rng.random()),
                    top_p=float(rng.random()),
                    top_k=int(rng.integers(-1, 9)),
                    min_p=float(rng.random()),
                    seed=int(rng.integers(2**63)),
                    no_eos=bool(rng.integers(2)),
                )
            )
            following += pages
        score = [(0, 5), (len(rows[0].tokens) - 1, 7)]
        expected = make_batch(rows, page_size, index=index, copies=[(900, 901, 3)], score=score)
        step = make_step(rows, page_size, index=index, copies=[(900, 901, 3)], score=score)
        same(ExecutorState(page_size).expand(step), expected)


def test_rows_go_on_from_where_they_were() -> None:
    mirror = ExecutorState(4)
    begun = Row(tokens=[5, 6, 7], pages=[9], row=3, temperature=0.5, seed=8, no_eos=True)
    mirror.expand(make_step([begun], 4))
    decode = replace(make_step([replace(begun, tokens=[SAMPLED], begins=False)], 4), index=1)
    for index in (1, 2):
        entered = np.array([(3, 1, 4)], np.int32)
        batch = mirror.expand(replace(decode, index=index, pages=entered if index == 2 else entered[:0]))
        first = 2 + index
        pages = [9, 4][:index]
        row = replace(begun, tokens=[SAMPLED], pages=pages, first=first, no_eos=False)
        same(batch, make_batch([row], 4, index=index))
    assert mirror.seq_len[3] == 5


def test_pages_behind_the_end_of_a_row_are_not_shown() -> None:
    mirror = ExecutorState(4)
    row = Row(tokens=[1, 2, 3, 4, 5], pages=[7, 8, 9, 10], row=1)
    other = Row(tokens=list(range(9)), pages=[1, 2, 3], row=0)
    batch = mirror.expand(make_step([row, other], 4))
    assert batch.pages.tolist() == [[7, 8, -1], [1, 2, 3]]


def test_a_row_that_begins_again_has_nothing_of_the_one_before() -> None:
    mirror = ExecutorState(4)
    mirror.expand(make_step([Row(tokens=range(12), pages=[7, 8, 9], row=2, temperature=1.0)], 4))
    batch = mirror.expand(make_step([Row(tokens=[1], pages=[5], row=2)], 4))
    assert batch.pages.tolist() == [[5]]
    assert batch.positions.tolist() == [0]
    assert batch.temperature.tolist() == [0.0]
    assert mirror.table[2].max() == 5


def test_a_row_that_never_began_is_refused() -> None:
    with pytest.raises(AssertionError, match="never opened"):
        ExecutorState(4).expand(make_step([Row(tokens=[1], pages=[5], row=2, begins=False)], 4))


def test_which_filters_rows_have() -> None:
    """A row counts for one kind: top_k that leaves something out, else top_p, else min_p."""
    kinds = [
        ({}, Filters.NONE),
        ({"top_k": 100, "min_p": 0.0}, Filters.NONE),  # as many as there are
        ({"top_k": 100, "top_p": 0.5}, Filters.TOP_P),
        ({"top_k": 9, "top_p": 0.5, "min_p": 0.1}, Filters.TOP_K),
        ({"top_p": 0.5, "min_p": 0.1}, Filters.TOP_P),
        ({"min_p": 0.1}, Filters.MIN_P),
    ]
    rows = [Row(tokens=[5], pages=[at], row=at, **options) for at, (options, _) in enumerate(kinds)]  # type: ignore[arg-type]
    mirror = ExecutorState(4)
    mirror.follow(make_step(rows, 4))
    for at, (_, kind) in enumerate(kinds):
        assert mirror.filters(np.array([at], np.int32), 100) == kind
    assert mirror.filters(np.arange(6, dtype=np.int32), 100) == Filters.ALL
    assert mirror.filters(np.array([0, 4, 5], np.int32), 100) == Filters.TOP_P | Filters.MIN_P


def quiet(step: Step) -> bool:
    """Nothing of the step has to be brought to a device."""
    changes = (step.opened.rows, step.pages, step.copies, step.lengths, step.ids, step.score_at, step.masked)
    return not any(array.size for array in changes)


@pytest.mark.parametrize("depth", [1, 4])
def test_steady_decode_says_nothing_but_page_entries(depth: int) -> None:
    """Four rows of prompts of 6, 7, 8, 9 tokens; each takes pages in runs, so an entry is rare."""
    bench = Bench(page_size=4, depth=depth, pages=400)
    sampling = Sampling(max_tokens=100, ignore_eos=True)
    for i in range(4):
        bench.gen(LONG[10 * i : 10 * i + 6 + i], sampling, watch=False)
    bench.run()
    prefill, *decode = bench.oracle.steps
    assert prefill.opened.rows.tolist() == [0, 1, 2, 3]
    assert len(decode) == 99
    assert all(step.decoding == step.rows.size == 4 for step in decode)
    for step in decode:
        assert not step.opened.rows.size
        assert quiet(replace(step, pages=step.pages[:0]))
    runs = [step.pages for step in decode if step.pages.size]
    # 105 tokens at most are 27 pages: 2 or 3 of the prompt, then runs, the last one cut to what is reserved.
    assert len(runs) <= 4 * -(-25 // RUN_PAGES)
    assert all(len(pages) <= 4 * RUN_PAGES for pages in runs)
    entered = np.concatenate([step.pages for step in bench.oracle.steps])
    assert len({tuple(entry) for entry in entered[:, :2].tolist()}) == len(entered)
    assert [int((entered[:, 0] == row).sum()) for row in range(4)] == [-(-(6 + i + 99) // 4) for i in range(4)]


def test_a_run_of_pages_takes_nothing_from_the_cache() -> None:
    """One page is made room for, more are taken only if they are free."""
    bench = Bench(page_size=4, pages=10)
    kept = bench.engine.extend(None, LONG[:16])
    bench.engine.warm(kept)
    bench.run()
    bench.gen(LONG[20:24], Sampling(max_tokens=27, ignore_eos=True))
    bench.step(2)
    pool, rows, tree = bench.engine.allocator.pool, bench.engine.rows, bench.engine.tree
    assert (pool.free, rows.held[0], tree.evictable) == (10 - 4 - 1 - RUN_PAGES, 1 + RUN_PAGES, 4)
    bench.step(16)
    assert (pool.free, rows.held[0], tree.evictable) == (0, 2 + RUN_PAGES, 4)
    bench.step(4)
    assert (pool.free, rows.held[0], tree.evictable) == (0, 3 + RUN_PAGES, 3)
    bench.run()
    assert bench.nothing_left()
