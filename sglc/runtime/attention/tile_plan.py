"""Which attention of a step is done in tiles (`kernels.tile_attention`): pure functions of the page tables.

New tokens of prompts are always tiles. Rows that decode and begin with the same pages read those once,
together, where that saves more than it costs; prefixes may be nested. The others, and what follows a
prefix, are left to `kernels.decode_attention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sglc.runtime.attention.split_plan import by_prefix
from sglc.runtime.step import I32, TokenTree

LEVELS = 2  # nested prefixes of a row, which leave partial results for its token
ITEM = 8  # fields of an item
WHOLE = (1 << 31) - 1  # the key from which a row branches that does not
LEAST_KEYS = 128  # keys of a tile that is split no further
# A tile kernel costs a launch in every layer, some 3 us, in which 4,096 keys of 8 heads could be read.
LEAST_SAVED = 4096  # keys that all prefixes of a step must save together
LEAST_SAVED_BY_PREFIX = 512


@dataclass(frozen=True, slots=True)
class TileShape:
    """What the cut depends on: packed query rows of a tile, query heads per kv head, kv heads, tokens of a
    page, and how many programs share the tiles."""

    rows: int
    group: int
    kv_heads: int
    page_size: int
    programs: int

    @property
    def tokens(self) -> int:
        """Tokens of a full tile."""
        return self.rows // self.group


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """The rows `rows` of a batch have pages begin : end of their tables in common."""

    rows: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class TilePlan:
    """Arguments of the kernels, all int32.

    items [I, ITEM]: first member, members, page table row, first key, end of the keys, place of the partial
    result (-1: none, the tile has all keys), the key from which the row branches, and where in `words` it is
    said until where each key behind it is seen. words: the items, and behind them that. members [N]: tokens.
    Of every token, shared [T]: leading keys that prefixes cover; splits, first [T, LEVELS]: as
    `kernels.decode_attention.Tiles` has them. parts: places of partial results.
    """

    items: I32
    words: I32
    members: I32
    shared: I32
    splits: I32
    first: I32
    parts: int


def shared_prefixes(table: I32, limits: I32, page_size: int, levels: int = LEVELS) -> list[PrefixGroup]:
    """Nested prefixes of the rows of `table` [R, K] that save most keys, each row in at most `levels` of them.

    `limits` int32 [R]: how many pages of each row may be shared; there is at least one row.
    """
    rows = len(limits)
    if rows < 2 or not table.shape[1] or np.unique(table[:, 0]).size == rows:
        return []
    order, common = by_prefix(range(rows), table, limits)
    runs = _runs(common)
    least = -(-LEAST_SAVED_BY_PREFIX // page_size)
    saved, chosen = _best(runs, 0, len(runs), 0, levels, least)
    if saved * page_size < LEAST_SAVED:
        return []
    return [PrefixGroup(tuple(order[run.begin : run.end]), behind, run.pages) for run, behind in chosen]


@dataclass(frozen=True, slots=True)
class _TileRun:
    """Sorted rows begin : end share their first `pages` pages, and no longer run does. Those inside of it
    are the ones before it in a list, from number `first` on."""

    begin: int
    end: int
    pages: int
    first: int


def _runs(common: Sequence[int]) -> list[_TileRun]:
    """All runs of two rows or more that share a page, inner ones before those around them.

    common[i]: pages that sorted row i shares with row i + 1. One look at each (Abouelhoda et al. 2004,
    "Replacing suffix trees with enhanced suffix arrays", algorithm 4.4).
    """
    found: list[_TileRun] = []
    open_runs = [(0, 0, 0)]  # pages, first row, runs found before it began
    for row, pages in enumerate([*common, 0]):
        begin, first = row, len(found)
        while pages < open_runs[-1][0]:
            inner, begin, first = open_runs.pop()
            found.append(_TileRun(begin, row + 1, inner, first))
        if pages > open_runs[-1][0]:
            open_runs.append((pages, begin, first))
    return found


def _best(
    runs: Sequence[_TileRun], begin: int, end: int, behind: int, left: int, least: int
) -> tuple[int, list[tuple[_TileRun, int]]]:
    """The most pages that runs[begin:end] save, `behind` pages being dealt with, and the runs that save them.

    Of runs inside of each other, `left` at most are taken, each for what is behind the one around it; outer
    ones come first. One that saves less than `least` is not worth its launches.
    """
    saved: list[int] = []  # the most that each run and those inside of it save
    inside: dict[int, list[tuple[_TileRun, int]]] = {}  # of each run that is better taken: what is taken inside
    for number in range(begin, end):
        run = runs[number]
        within, child = 0, number - 1
        while child >= run.first:
            within += saved[child - begin]
            child = runs[child].first - 1
        own = (run.end - run.begin - 1) * (run.pages - behind)
        if own >= least:
            deeper, taken = 0, list[tuple[_TileRun, int]]()
            if left > 1:
                deeper, taken = _best(runs, run.first, number, run.pages, left - 1, least)
            if own + deeper > within:
                inside[number] = taken
                within = own + deeper
        saved.append(within)
    total, chosen, number = 0, list[tuple[_TileRun, int]](), end - 1
    while number >= begin:
        if number in inside:
            total += saved[number - begin]
            chosen += [(runs[number], behind), *inside[number]]
            number = runs[number].first
        number -= 1
    return total, chosen


def plan_tiles(
    rows: Sequence[int],
    prefixes: Sequence[PrefixGroup],
    chunks: Sequence[tuple[int, int, int]],
    shape: TileShape,
    trees: Sequence[TokenTree] = (),
) -> TilePlan:
    """The tiles of a step whose first tokens decode, one for each of `rows`, followed by chunks.

    Args:
        rows: page table rows of the decoding tokens.
        prefixes: of these, offsets into `rows`.
        chunks: (page table row, first position, tokens) of rows with new tokens, in the step's order.
        trees: of those, the ones that branch.
    """
    tokens = len(rows) + sum(count for _, _, count in chunks)
    members: list[int] = []
    # Tokens, row, begin and end of keys, level, cut, where the row branches, and where that is said.
    tiles: list[tuple[int, int, int, int, int, int, int, int]] = []
    branching = {tree.row - len(rows): tree for tree in trees}
    until: list[I32] = []
    said = 0
    level = [0] * len(rows)
    shared = np.zeros(tokens, np.int32)
    for prefix in prefixes:  # an outer prefix comes before those inside of it
        of_prefix = prefix.rows
        at, row = level[of_prefix[0]], rows[of_prefix[0]]
        begin, end = prefix.begin * shape.page_size, prefix.end * shape.page_size
        for some in range(0, len(of_prefix), shape.tokens):
            tiles.append((min(shape.tokens, len(of_prefix) - some), row, begin, end, at, 1, WHOLE, 0))
        members += of_prefix
        for member in of_prefix:
            level[member] += 1
        shared[list(of_prefix)] = end
    for number, (row, first, count) in enumerate(chunks):
        tree = branching.get(number)
        base = WHOLE if tree is None else tree.base
        for some in range(0, count, shape.tokens):
            of_tile = min(shape.tokens, count - some)
            tiles.append((of_tile, row, 0, first + some + of_tile, 0, 0, base, said))
        if tree is not None:
            until.append(tree.until)
            said += tree.until.size
    table = np.array(tiles, np.int32).reshape(-1, 8)
    of_chunks = np.arange(len(rows), tokens, dtype=np.int32)
    return _cut(table, np.concatenate((np.array(members, np.int32), of_chunks)), tokens, shared, shape, until)


def _cut(
    tiles: I32, members: I32, tokens: int, shared: I32, shape: TileShape, until: Sequence[I32]
) -> TilePlan:
    """Cut the keys of `tiles` [N, 8] so that there are enough pieces for all programs, the longest first.

    A tile whose tokens have other keys too (`cut`), or that is cut here, leaves partial results.
    """
    counts, row, begin, end, level, cut, base, said = tiles.T
    keys = int((end - begin).sum()) * shape.kv_heads
    longest = max(LEAST_KEYS, -(-keys // shape.programs // 64) * 64)
    pieces = -(-(end - begin) // longest)
    partial = (cut == 1) | (pieces > 1)
    kept = np.where(partial, pieces, 0)
    place = np.cumsum(kept) - kept
    starts = np.cumsum(counts) - counts
    # One line for each piece of each tile.
    tile = np.repeat(np.arange(len(tiles)), pieces)
    piece = np.arange(len(tile)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first_key = begin[tile] + piece * longest
    items = np.stack(
        (
            starts[tile],
            counts[tile],
            row[tile],
            first_key,
            np.minimum(first_key + longest, end[tile]),
            np.where(partial[tile], place[tile] + piece, -1),
            base[tile],
            said[tile] + ITEM * tile.size,
        ),
        axis=1,
    ).astype(np.int32)
    items = items[np.argsort(items[:, 3] - items[:, 4], kind="stable")]
    # One entry for each member of each tile.
    owner = np.repeat(np.arange(len(tiles)), counts)
    within = np.arange(len(members)) - starts[owner]
    some = partial[owner]
    splits = np.zeros((tokens, LEVELS), np.int32)
    first = np.zeros((tokens, LEVELS), np.int32)
    at = members[some], level[owner[some]]
    splits[at] = pieces[owner[some]]
    size = shape.kv_heads * shape.rows
    first[at] = place[owner[some]] * size + within[some] * shape.group
    words = np.concatenate((items.ravel(), *until))
    return TilePlan(items, words, members, shared, splits, first, int(kept.sum()))
