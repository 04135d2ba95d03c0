"""How one step's attention is cut into dense pieces: a pure function of the page table.

Tokens are put into an order in which every piece is a slice. A token attends in at most two pieces,
which share no key: `SharedPrefix` (keys before all of the piece's tokens, in common for all its rows), and
one of `KeyChunk` (the new tokens of one long row, among themselves) and `Bucket` (short rows, each with
its own keys, padded to one shape). Rows that begin with the same pages attend to those once, together
(cascade attention); that is chosen only where it saves more than it costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sglc.runtime.step import I32, TokenTree

I64 = NDArray[np.int64]

LONG_ROW = 48  # new tokens from which a row is a piece of its own
MIN_SAVED = 512  # keys that a shared prefix must save, over its rows; below that, pieces cost more
BUCKET_COST = 384  # padded keys that are as dear as one more bucket


@dataclass(frozen=True, slots=True)
class Pages:
    """KV of `length` consecutive positions: the slots from `first_slot`, or the pages `index`."""

    length: int
    first_slot: int = 0
    index: I64 | None = None


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Tokens `begin:end` attend to all of `pages`, which lie before every one of them."""

    begin: int
    end: int
    pages: Pages


@dataclass(frozen=True, slots=True)
class KeyChunk:
    """Tokens `begin:end` are one row's; each attends to itself and to those before it."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tokens `begin:end` of R rows, each row's padded to `width` queries and `length` keys.

    Row r's keys are those of `pages` [R, P] from position `offset` on; where `pages` is None (R = 1)
    they are the `length` slots from `first_slot`. Query (r, i) is token `queries[r * width + i]` (None:
    no padding), stands at position `positions[r, i]`, and sees keys up to there. `kept` names the
    padded places that hold the tokens `begin:end`, in order. Where ids branch, key k is not seen from
    `until[k]` on (int64 [length]); positions are then those that they would have if none did.
    """

    begin: int
    end: int
    width: int
    length: int
    offset: int
    positions: I64
    pages: I64 | None
    first_slot: int = 0
    queries: I64 | None = None
    kept: I64 | None = None
    until: I64 | None = None


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """`order` int64 [T]: the step's token at each place (None: as they come). Pieces are in `order`."""

    order: I64 | None
    prefixes: tuple[SharedPrefix, ...]
    chunks: tuple[KeyChunk, ...]
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows whose first `pages` pages are the same ones."""

    rows: tuple[int, ...]
    pages: int


def plan_attention(
    starts: I32, positions: I32, pages: I32, page_size: int, trees: Sequence[TokenTree] = ()
) -> AttentionPlan:
    """Cut the attention of a step into pieces (arguments as in `Batch`).

    Every row has at least one token, and its tokens' positions are consecutive but for `trees`.
    """
    counts, firsts = np.diff(starts), positions[starts[:-1]]
    branching: dict[int, TokenTree] = {}
    split = 0
    for tree in trees:
        row = tree.row + split
        firsts[row] = tree.base + tree.depths.size - counts[row]
        straight = tree.base - int(firsts[row])
        if straight >= LONG_ROW:  # what comes before the branches is a row of its own
            starts = np.insert(starts, row + 1, starts[row] + straight)
            firsts = np.insert(firsts, row + 1, tree.base)
            pages = np.insert(pages, row, pages[row], axis=0)
            counts = np.diff(starts)
            row, split = row + 1, split + 1
        branching[row] = tree
    builder = _Builder(starts, counts, firsts, pages, page_size)
    rows = [row for row in range(len(counts)) if row not in branching]
    for row in rows:
        if counts[row] >= LONG_ROW:
            builder.add_long(row)
    for row, tree in branching.items():
        builder.add_tree(row, tree)
    short = [row for row in rows if counts[row] < LONG_ROW]
    for group in shared_prefixes(short, pages, firsts // page_size, page_size):
        builder.add_group(group)
    return builder.plan()


def shared_prefixes(rows: Sequence[int], pages: I32, limits: I32, page_size: int) -> list[Group]:
    """Partition `rows` into groups that share their first pages so as to save most keys.

    A row lies in one group, so of nested prefixes the one that saves more is taken. `limits` [R]:
    how many pages of each row may be shared. The rows that share nothing worth it are one group of 0
    pages, the last one.
    """
    if len(rows) < 2 or pages.shape[1] == 0:
        return [Group(tuple(rows), 0)] if rows else []
    if len(np.unique(pages[rows, 0])) == len(rows):
        return [Group(tuple(rows), 0)]
    ordered, common = by_prefix(rows, pages, limits)
    groups: list[Group] = []
    alone: list[int] = []
    for places, shared in _best_cut(common, 0, len(ordered))[1]:
        members = sorted(ordered[i] for i in places)
        if (len(members) - 1) * shared * page_size >= MIN_SAVED:
            groups.append(Group(tuple(members), shared))
        else:
            alone += members
    if alone:
        groups.append(Group(tuple(sorted(alone)), 0))
    return groups


def by_prefix(rows: Sequence[int], pages: I32, limits: I32) -> tuple[list[int], list[int]]:
    """`rows` with equal prefixes side by side, and how many leading pages each shares with the next.

    pages: [R, K] page tables. limits: [R] how many pages of each row may be shared.
    """
    # Big-endian bytes compare as the page ids do; nothing is smaller than any page.
    known = np.where(np.arange(pages.shape[1]) < limits[:, None], pages + 1, 0)[np.asarray(rows)]
    keys = known.astype(">i4").view(f"S{4 * pages.shape[1]}").ravel()
    ordered: list[int] = np.asarray(rows)[np.argsort(keys, kind="stable")].tolist()
    table, bound = pages[ordered], limits[ordered]
    equal = np.logical_and.accumulate(table[1:] == table[:-1], axis=1).sum(axis=1)
    common: list[int] = np.minimum(equal, np.minimum(bound[1:], bound[:-1])).tolist()
    return ordered, common


def _best_cut(common: Sequence[int], begin: int, end: int) -> tuple[int, list[tuple[list[int], int]]]:
    """Most pages that sorted rows begin:end can save, and the (rows, shared pages) that save them.

    common[i]: pages that row i shares with row i + 1. Rows begin:end are a node of a trie; its
    children are the runs that share more. A child joins the node's own group if its rows save more
    there than in the child's best groups.
    """
    if end - begin == 1:
        return 0, [([begin], 0)]
    inner = common[begin : end - 1]
    shared = min(inner)
    saved, start = -shared, begin
    parts: list[tuple[list[int], int]] = []
    joined: list[int] = []
    for cut in [*(begin + i + 1 for i, c in enumerate(inner) if c == shared), end]:
        child_saved, child = _best_cut(common, start, cut)
        if (cut - start) * shared >= child_saved:
            saved += (cut - start) * shared
            joined += range(start, cut)
        else:
            saved += child_saved
            parts += child
        start = cut
    if not joined:
        return saved + shared, parts
    return saved, [*parts, (joined, shared)]


class _Builder:
    """Collects pieces, and the order of tokens that makes them slices."""

    def __init__(self, starts: I32, counts: I32, firsts: I32, pages: I32, page_size: int) -> None:
        self.starts, self.counts, self.firsts = starts, counts, firsts
        self.pages, self.page_size = pages, page_size
        self.rows: list[int] = []
        self.tokens = 0
        self.prefixes: list[SharedPrefix] = []
        self.chunks: list[KeyChunk] = []
        self.buckets: list[Bucket] = []

    def plan(self) -> AttentionPlan:
        order = None
        if self.rows != list(range(len(self.rows))):
            order = np.concatenate([np.arange(self.starts[r], self.starts[r + 1]) for r in self.rows])
            order = order.astype(np.int64)
        return AttentionPlan(order, tuple(self.prefixes), tuple(self.chunks), tuple(self.buckets))

    def add_long(self, row: int) -> None:
        begin, end = self._take([row])
        if first := int(self.firsts[row]):
            self.prefixes.append(SharedPrefix(begin, end, self._context(row, 0, first)))
        self.chunks.append(KeyChunk(begin, end))

    def add_tree(self, row: int, tree: TokenTree) -> None:
        """A row that branches: all that lies before its branches and its new tokens is seen by all of these."""
        begin, end = self._take([row])
        first, count = int(self.firsts[row]), int(self.counts[row])
        offset = min(first, tree.base) // self.page_size * self.page_size
        if offset:
            self.prefixes.append(SharedPrefix(begin, end, self._context(row, 0, offset)))
        length = first + count - offset
        until = np.full(length, first + count, np.int64)
        until[tree.base - offset :] = tree.base + tree.until
        keys = self._context(row, offset, length)
        index = None if keys.index is None else keys.index[None]
        positions = np.arange(first, first + count)[None]
        self.buckets.append(
            Bucket(begin, end, count, length, offset, positions, index, keys.first_slot, until=until)
        )

    def add_group(self, group: Group) -> None:
        if not group.rows:
            return
        begin = self.tokens
        offset = group.pages * self.page_size
        lengths = {r: int(self.firsts[r] + self.counts[r]) - offset for r in group.rows}
        for single in (True, False):
            rows = [r for r in group.rows if bool(self.counts[r] == 1) is single]
            rows.sort(key=lambda r: (lengths[r], r))
            for part in _split([lengths[r] for r in rows]):
                self._add_bucket(rows[part], group.pages, lengths[rows[part][-1]])
        if group.pages:
            self.prefixes.append(SharedPrefix(begin, self.tokens, self._context(group.rows[0], 0, offset)))

    def _add_bucket(self, rows: list[int], skip: int, length: int) -> None:
        """`rows` in one bucket: their first `skip` pages are dealt with, the longest has `length` keys."""
        offset = skip * self.page_size
        counts = self.counts[rows]
        width = int(counts.max())
        begin, end = self._take(rows)
        places = np.minimum(np.arange(width), counts[:, None] - 1)
        positions = (self.firsts[rows][:, None] + places).astype(np.int64)
        queries = kept = None
        if (counts != width).any():
            offsets = np.cumsum(counts) - counts + begin
            queries = (offsets[:, None] + places).astype(np.int64).ravel()
            kept = np.flatnonzero(np.arange(width) < counts[:, None])
        if len(rows) == 1:
            context = self._context(rows[0], offset, length)
            index = None if context.index is None else context.index[None]
            self.buckets.append(
                Bucket(begin, end, width, length, offset, positions, index, context.first_slot, queries, kept)
            )
            return
        used = -(-length // self.page_size)
        index = self.pages[rows, skip : skip + used].astype(np.int64)
        # Behind its end a row reads its own first page again; the mask hides it.
        index = np.where(index < 0, index[:, :1], index)
        self.buckets.append(Bucket(begin, end, width, length, offset, positions, index, 0, queries, kept))

    def _take(self, rows: list[int]) -> tuple[int, int]:
        begin = self.tokens
        self.rows += rows
        self.tokens += int(self.counts[rows].sum())
        return begin, self.tokens

    def _context(self, row: int, offset: int, length: int) -> Pages:
        """Positions offset : offset + length of `row`; `offset` is the start of a page."""
        skip = offset // self.page_size
        index = self.pages[row, skip : skip + -(-length // self.page_size)].astype(np.int64)
        if (np.diff(index) == 1).all():
            return Pages(length, first_slot=int(index[0]) * self.page_size)
        return Pages(length, index=index)


def _split(lengths: Sequence[int]) -> list[slice]:
    """Cut ascending `lengths` into runs: padding to a run's longest, or paying for one more run."""
    count = len(lengths)
    ends = np.asarray(lengths, dtype=np.int64)
    sizes = np.arange(count, 0, -1)
    # cost[i]: the least for the first i rows; cut[i]: where their last run then begins.
    cost, cut = np.zeros(count + 1, dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
    for end in range(1, count + 1):
        costs = cost[:end] + sizes[count - end :] * ends[end - 1]
        cut[end] = costs.argmin()
        cost[end] = costs[cut[end]] + BUCKET_COST
    runs = []
    while count:
        runs.append(slice(int(cut[count]), count))
        count = int(cut[count])
    return runs[::-1]
