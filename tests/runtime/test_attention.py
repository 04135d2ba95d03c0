"""Paged attention equals the dense one, for any mix of rows and any sharing of pages."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from sglc.runtime.attention import split_plan, torch_attention
from sglc.runtime.attention.split_plan import BUCKET_COST, plan_attention, shared_prefixes
from sglc.runtime.attention.torch_attention import PagedAttention
from sglc.runtime.step import Batch, TokenTree
from tests.depth import few, some_of
from tests.runtime.handmade import Row, make_batch

HEADS = ((9, 3), (4, 4), (8, 1))
HEAD_DIM = 16


def reference(
    step: Batch, heads: torch.Tensor, pool: torch.Tensor, q_heads: int, page_size: int
) -> torch.Tensor:
    """Each token alone, in float64, over the keys that its row's page table names."""
    pool, heads = pool.double(), heads.double()
    kv_heads = pool.shape[1] // 2
    out = torch.empty(len(heads), q_heads, HEAD_DIM, dtype=torch.float64)
    trees = {tree.row: tree for tree in step.trees}
    for row, pages in enumerate(step.pages):
        for token in range(step.starts[row], step.starts[row + 1]):
            if row in trees:
                place = trees[row].base + trees[row].until.size - (step.starts[row + 1] - token)
                below = [i < trees[row].base or place < _end(trees[row], i) for i in range(place + 1)]
                seen = np.flatnonzero(below)
            else:
                seen = np.arange(step.positions[token] + 1)
            slots = torch.from_numpy(pages[seen // page_size].astype(np.int64) * page_size + seen % page_size)
            for head in range(q_heads):
                key = head // (q_heads // kv_heads)
                weights = (pool[slots, key] @ heads[token, head] / HEAD_DIM**0.5).softmax(0)
                out[token, head] = weights @ pool[slots, kv_heads + key]
    return out.flatten(1)


def _end(tree: TokenTree, place: int) -> int:
    return tree.base + int(tree.until[place - tree.base])


def with_trees(rng: random.Random, step: Batch) -> Batch:
    """`step`, some rows of which branch: in the middle of what is new, or in a step before."""
    positions, trees = step.positions.copy(), []
    for row, (begin, end) in enumerate(itertools.pairwise(step.starts.tolist())):
        first = int(positions[begin])
        if rng.random() < 0.4 or not first:
            continue
        base = rng.randint(max(1, first - rng.choice((0, 0, 30))), first + end - begin - 1)
        depths = [0]
        while base + len(depths) < first + end - begin:
            depths.append(rng.randint(max(0, depths[-1] - 3), depths[-1] + 1))
        count = len(depths)
        until = [next((j for j in range(i + 1, count) if depths[j] <= depths[i]), count) for i in range(count)]
        trees.append(TokenTree(row, base, np.array(depths, np.int32), np.array(until, np.int32)))
        new = min(count, end - begin)
        positions[end - new : end] = base + np.array(depths[count - new :])
    return replace(step, positions=positions, trees=tuple(trees))


def random_rows(rng: random.Random, page_size: int, *, most: int) -> list[Row]:
    """Rows that fork from each other at page borders, as the radix tree makes them."""
    fresh = itertools.count()
    grown: list[tuple[list[int], int]] = []  # pages, tokens with KV
    rows: list[Row] = []
    for number in range(rng.randint(1, most)):
        pages, first = [], 0
        if grown and rng.random() < 0.75:
            origin, length = rng.choice(grown)
            first = rng.randint(0, length) // page_size * page_size
            pages = origin[: first // page_size]
        elif rng.random() < 0.7:
            first = rng.choice((1, page_size, rng.randint(1, 700)))
        new = rng.choice((1, 1, 1, rng.randint(1, 20), rng.randint(40, 90)))
        # A row that forked may have decoded some tokens of its own since.
        first += rng.choice((0, 0, rng.randint(1, 40))) if first else 0
        while len(pages) * page_size < first + new:
            if rng.random() < 0.2:
                next(fresh)  # a gap, so that the row's pages are no neighbours
            pages.append(next(fresh))
        grown.append((pages, first))
        rows.append(Row(tokens=[0] * new, pages=pages, first=first, row=number))
    # Page ids in no order at all, as after a long run.
    names = list(range(max(p for row in rows for p in row.pages) + 1))
    if rng.random() < 0.5:
        rng.shuffle(names)
    rows = [Row(tokens=r.tokens, pages=[names[p] for p in r.pages], first=r.first, row=r.row) for r in rows]
    rng.shuffle(rows)
    return rows


def check(step: Batch, page_size: int, heads: int, kv_heads: int, dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(len(step.tokens))
    slots = int(step.pages.max() + 1) * page_size
    pool = torch.randn(slots, 2 * kv_heads, HEAD_DIM, generator=generator, dtype=dtype)
    made = torch.randn(len(step.tokens), heads + 2 * kv_heads, HEAD_DIM, generator=generator, dtype=dtype)
    pool[torch.from_numpy(step.slots.astype(np.int64))] = made[:, heads:]
    plan = plan_attention(step.starts, step.positions, step.pages, page_size, step.trees)
    paged = PagedAttention(plan, heads, kv_heads, HEAD_DIM, page_size, pool)
    order = torch.arange(len(made)) if plan.order is None else torch.from_numpy(plan.order)
    got = torch.empty(len(made), heads * HEAD_DIM, dtype=dtype)
    got[order] = paged.forward(made[order], pool)
    torch.testing.assert_close(
        got.double(), reference(step, made, pool, heads, page_size), rtol=0, atol=tolerance
    )


@pytest.mark.parametrize("page_size", few([1, 4, 16], 2))
@pytest.mark.parametrize("seed", few(range(8), 3))
def test_equals_dense_attention(seed: int, page_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Low prices, so that small cases are cut into many pieces too.
    rng = random.Random(seed * 100 + page_size)
    monkeypatch.setattr(split_plan, "MIN_SAVED", rng.choice((1, 64, 512)))
    monkeypatch.setattr(split_plan, "BUCKET_COST", rng.choice((1, 32, 384)))
    # Many rows go another way than few.
    monkeypatch.setattr(torch_attention, "_FUSED_ROWS", rng.choice((0, 2, 24)))
    heads, kv_heads = rng.choice(HEADS)
    step = make_batch(random_rows(rng, page_size, most=14), page_size)
    check(step, page_size, heads, kv_heads, torch.float32, 1e-5)


@pytest.mark.parametrize("page_size", few([1, 4, 16], 2))
@pytest.mark.parametrize("seed", few(range(6), 2))
def test_rows_that_branch_equal_dense_attention(seed: int, page_size: int) -> None:
    rng = random.Random(seed * 100 + page_size)
    heads, kv_heads = rng.choice(HEADS)
    steps = [with_trees(rng, make_batch(random_rows(rng, page_size, most=10), page_size)) for _ in range(4)]
    assert sum(len(step.trees) for step in steps) > 2
    for step in steps:
        check(step, page_size, heads, kv_heads, torch.float32, 1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_without_the_fused_kernel(seed: int) -> None:
    """Other devices and types take plain products: here float64 on the CPU."""
    rng = random.Random(seed)
    heads, kv_heads = rng.choice(HEADS)
    check(make_batch(random_rows(rng, 4, most=10), 4), 4, heads, kv_heads, torch.float64, 1e-5)


def test_a_shared_prefix_is_attended_once() -> None:
    shared = list(range(40))
    rows = [Row(tokens=[0], pages=[*shared, 40 + r], first=640 + r % 3, row=r) for r in range(16)]
    step = make_batch(rows, 16)
    plan = plan_attention(step.starts, step.positions, step.pages, 16)
    assert [(p.begin, p.end, p.pages.length, p.pages.index) for p in plan.prefixes] == [(0, 16, 640, None)]
    assert [(b.begin, b.end, b.length, b.offset) for b in plan.buckets] == [(0, 16, 3, 640)]
    check(step, 16, 9, 3, torch.float32, 1e-5)


def test_a_page_that_is_being_written_is_not_shared() -> None:
    """Rows name the same page, but each attends to its own new token in it: nothing is hoisted."""
    rows = [Row(tokens=[0], pages=[*range(63), 63], first=1007, row=0)]
    rows += [Row(tokens=[0], pages=[*range(63), 64 + r], first=1008, row=1 + r) for r in range(3)]
    step = make_batch(rows, 16)
    plan = plan_attention(step.starts, step.positions, step.pages, 16)
    assert [p.pages.length for p in plan.prefixes] == [62 * 16]
    check(step, 16, 4, 4, torch.float32, 1e-5)


def test_rows_of_different_lengths_are_not_padded_to_the_longest() -> None:
    rows = [
        Row(tokens=[0], pages=[100 * r + p for p in range(70)][: 1 + first // 16], first=first, row=r)
        for r, first in enumerate((20, 25, 30, 1000, 1010))
    ]
    step = make_batch(rows, 16)
    plan = plan_attention(step.starts, step.positions, step.pages, 16)
    assert [len(b.positions) for b in plan.buckets] == [3, 2]


def test_padding_reads_no_page_of_another_row() -> None:
    """What a broken row left in its pages must not reach its neighbours, not even times zero."""
    rows = [Row(tokens=[0], pages=[0, 1, 2], first=47), Row(tokens=[0], pages=[3], first=15, row=1)]
    step = make_batch(rows, 16)
    pool, heads = torch.ones(64, 2, HEAD_DIM), torch.ones(2, 3, HEAD_DIM)
    pool[:48] = torch.nan
    plan = plan_attention(step.starts, step.positions, step.pages, 16)
    assert [len(b.positions) for b in plan.buckets] == [2]
    assert plan.order is not None
    out = PagedAttention(plan, 1, 1, HEAD_DIM, 16, pool).forward(heads, pool)
    assert out.isnan().all(dim=1).tolist() == [row == 0 for row in plan.order]


@pytest.mark.parametrize("seed", some_of(range(40), 10, 16))
def test_sharing_saves_as_much_as_any_single_level_partition(seed: int) -> None:
    rng = random.Random(seed)
    table = np.array(
        [[rng.randint(0, 1) + 2 * c for c in range(5)] for _ in range(rng.randint(2, 6))], np.int32
    )
    limits = np.array([rng.randint(0, 5) for _ in table], np.int32)
    groups = shared_prefixes(range(len(table)), table, limits, 512)
    assert sorted(r for g in groups for r in g.rows) == list(range(len(table)))
    for group in groups:
        assert all(limits[r] >= group.pages for r in group.rows)
        assert len({tuple(table[r, : group.pages]) for r in group.rows}) == 1

    def common(rows: tuple[int, ...]) -> int:
        limit = min(int(limits[r]) for r in rows)
        return max(c for c in range(limit + 1) if len({tuple(table[r, :c]) for r in rows}) == 1)

    def best(rows: tuple[int, ...]) -> int:
        if not rows:
            return 0
        first, rest = rows[0], rows[1:]
        return max(
            len(mates) * common((first, *mates)) + best(tuple(r for r in rest if r not in mates))
            for size in range(len(rest) + 1)
            for mates in itertools.combinations(rest, size)
        )

    assert sum((len(g.rows) - 1) * g.pages for g in groups) == best(tuple(range(len(table))))


@pytest.mark.parametrize("seed", range(20))
def test_buckets_are_cut_where_it_is_cheapest(seed: int) -> None:
    rng = random.Random(seed)
    lengths = sorted(rng.randint(1, 900) for _ in range(rng.randint(1, 8)))

    def price(runs: list[list[int]]) -> int:
        return sum(len(run) * run[-1] + BUCKET_COST for run in runs)

    got = [lengths[run] for run in split_plan._split(lengths)]
    assert [n for run in got for n in run] == lengths
    cuts = (
        [lengths[a:b] for a, b in itertools.pairwise((0, *cut, len(lengths)))]
        for size in range(len(lengths))
        for cut in itertools.combinations(range(1, len(lengths)), size)
    )
    assert price(got) == min(price(runs) for runs in cuts)
