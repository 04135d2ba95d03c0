"""The cut of a step's attention into tiles: every token sees every key once."""

from __future__ import annotations

import numpy as np
import pytest

from sglc.runtime.attention.tile_plan import (
    LEVELS,
    PrefixGroup,
    TilePlan,
    TileShape,
    plan_tiles,
    shared_prefixes,
)
from sglc.runtime.step import I32
from tests.depth import few

SHAPE = TileShape(rows=64, group=2, kv_heads=8, page_size=16, programs=264)


def forest(tree: list[tuple[int, int]], own: int, width: int) -> I32:
    """A page table: (pages, children) of each depth, then `own` pages of each leaf."""
    counter = iter(range(10**9))
    paths: list[list[int]] = [[]]
    for pages, children in tree:
        paths = [path + [next(counter) for _ in range(pages)] for path in paths]
        paths = [list(path) for path in paths for _ in range(children)]
    table = np.full((len(paths), width), -1, np.int32)
    for row, path in enumerate(paths):
        full = path + [next(counter) for _ in range(own)]
        table[row, : len(full)] = full
    return table


def saved(prefixes: list[PrefixGroup]) -> int:
    return sum((len(p.rows) - 1) * (p.end - p.begin) for p in prefixes)


def test_rows_of_their_own_share_nothing() -> None:
    table = forest([(0, 256)], 40, 64)
    assert shared_prefixes(table, np.full(256, 39, np.int32), 16) == []


def test_a_fork_is_one_prefix_whatever_the_order_of_its_rows() -> None:
    table = forest([(256, 64)], 4, 300)[np.random.default_rng(0).permutation(64)]
    (prefix,) = shared_prefixes(table, np.full(64, 258, np.int32), 16)
    assert sorted(prefix.rows) == list(range(64))
    assert (prefix.begin, prefix.end) == (0, 256)


def test_nested_forks_are_nested_prefixes() -> None:
    table = forest([(37, 8), (15, 4)], 3, 64)
    found = shared_prefixes(table, np.full(32, 54, np.int32), 16)
    assert [(p.begin, p.end, len(p.rows)) for p in found] == [(0, 37, 32)] + [(37, 52, 4)] * 8
    assert saved(found) == 31 * 37 + 8 * 3 * 15


def test_of_deeper_trees_the_levels_that_save_most_are_taken() -> None:
    table = forest([(20, 2), (40, 2), (60, 8)], 3, 200)
    found = shared_prefixes(table, np.full(32, 122, np.int32), 16)
    depth = np.zeros(32, np.int64)
    for prefix in found:
        depth[list(prefix.rows)] += 1
    assert depth.max() == LEVELS
    # The two outer levels would save 31 * 20 + 2 * 15 * 40, the two inner ones more.
    assert saved(found) == 2 * 15 * 60 + 4 * 7 * 60


def test_limits_keep_the_page_that_is_written_out() -> None:
    table = forest([(100, 16)], 1, 128)
    (prefix,) = shared_prefixes(table, np.full(16, 90, np.int32), 16)
    assert prefix.end == 90


def test_what_saves_too_little_is_not_shared() -> None:
    assert shared_prefixes(forest([(30, 2)], 4, 64), np.full(2, 32, np.int32), 16) == []


def most(table: I32, rows: list[int], behind: int, left: int, least: int) -> int:
    """The most pages that prefixes of `rows` can save: by trying, at each node of their trie, both ways."""
    if len(rows) < 2 or not left:
        return 0
    width = table.shape[1]
    depth = next((c for c in range(width) if len({*table[rows, c].tolist()}) > 1), width)
    groups: dict[int, list[int]] = {}
    for row in rows:
        groups.setdefault(int(table[row, depth]) if depth < width else row, []).append(row)

    def below(reached: int, remaining: int) -> int:
        return sum(most(table, group, reached, remaining, least) for group in groups.values())

    own = (len(rows) - 1) * (depth - behind)
    return max(below(behind, left), own + below(depth, left - 1) if own >= least else 0)


@pytest.mark.parametrize("seed", few(range(30), 10))
def test_prefixes_save_as_much_as_any_choice_of_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, width = int(rng.integers(2, 24)), int(rng.integers(40, 90))
    table = np.arange(rows * width, dtype=np.int32).reshape(rows, width)
    for row in range(1, rows):  # each row begins as an earlier one does
        shared = int(rng.integers(0, width))
        table[row, :shared] = table[rng.integers(row), :shared]
    for levels in (1, 2, 3):
        found = shared_prefixes(table, np.full(rows, width, np.int32), 64, levels)
        best = most(table, list(range(rows)), 0, levels, 512 // 64)
        assert saved(found) == (best if best * 64 >= 4096 else 0)
        for prefix in found:
            assert (table[list(prefix.rows), : prefix.end] == table[prefix.rows[0], : prefix.end]).all()


def coverage(plan: TilePlan, tokens: int, shape: TileShape, length: int) -> I32:
    """How often the tiles show each key to each token [T, length], before the mask by position."""
    seen = np.zeros((tokens, length), np.int32)
    for first, count, _, begin, end, *_ in plan.items.tolist():
        seen[plan.members[first : first + count], begin:end] += 1
    return seen


@pytest.mark.parametrize("seed", range(20))
def test_every_token_sees_every_key_once(seed: int) -> None:
    generator = np.random.default_rng(seed)
    tree = [(int(generator.integers(0, 60)), int(generator.integers(1, 6))) for _ in range(3)]
    table = forest(tree, 3, 256)
    rows = len(table)
    pages = (table >= 0).sum(axis=1)
    positions = pages * 16 - 1 - generator.integers(0, 40, rows)
    prefixes = shared_prefixes(table, (positions // 16).astype(np.int32), 16)
    chunks = [(rows + i, int(generator.integers(0, 700)), int(generator.integers(1, 90))) for i in range(4)]
    plan = plan_tiles(range(rows), prefixes, chunks, SHAPE)
    tokens = rows + sum(count for _, _, count in chunks)
    seen = coverage(plan, tokens, SHAPE, 4096)
    for token in range(rows):
        shared = int(plan.shared[token])
        assert shared <= positions[token], "its own key is left to the row"
        assert (seen[token, :shared] == 1).all()
        assert not seen[token, shared:].any()
    token = rows
    for _, first, count in chunks:
        for i in range(count):
            assert (seen[token, : first + i + 1] == 1).all()
            token += 1
    # Each partial result has a place of its own, and the places are those that tokens look at.
    places = plan.items[plan.items[:, 5] >= 0, 5]
    assert sorted(places.tolist()) == list(range(plan.parts))
    size = SHAPE.kv_heads * SHAPE.rows
    for first, count, _, _, _, place, *_ in plan.items.tolist():
        for i, token in enumerate(plan.members[first : first + count].tolist()):
            starts, numbers = plan.first[token], plan.splits[token]
            looked = [
                s + k * size for s, n in zip(starts.tolist(), numbers.tolist(), strict=True) for k in range(n)
            ]
            assert (place * size + i * SHAPE.group in looked) == (place >= 0)


def test_few_tiles_are_cut_for_all_programs_and_many_are_not() -> None:
    one = plan_tiles([], [], [(0, 4000, 20)], SHAPE)
    assert one.parts == len(one.items) == 32
    many = plan_tiles([], [], [(0, 0, 8192)], SHAPE)
    assert many.parts == 0
    assert len(many.items) == 256
    assert (np.diff(many.items[:, 4] - many.items[:, 3]) <= 0).all(), "the longest first"
