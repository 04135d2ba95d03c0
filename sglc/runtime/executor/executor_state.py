"""The state of the rows that an executor keeps, in numpy: what a `Step` means.

Executors on the CPU own a `ExecutorState` and run the batches it gives. An executor that keeps the same state
on a device is held to this one by its tests.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter

import numpy as np

from sglc.runtime.step import F32, I32, SAMPLED, U64, Batch, Filters, Opened, Step, StepOptions

_ASKED = tuple(field.name for field in fields(StepOptions))
_asked = attrgetter(*_ASKED)


class ExecutorState:
    """Length, page table and sampling of every row; grows with the row numbers and lengths it is given."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.seq_len: I32 = np.empty(0, np.int32)  # tokens whose KV is written by the steps so far
        self.table: I32 = np.empty((0, 0), np.int32)  # page of positions k * page_size and up, or -1
        self.temperature: F32 = np.empty(0, np.float32)
        self.top_p: F32 = np.empty(0, np.float32)
        self.top_k: I32 = np.empty(0, np.int32)
        self.min_p: F32 = np.empty(0, np.float32)
        self.seeds: U64 = np.empty(0, np.uint64)
        self.eos_from: I32 = np.empty(0, np.int32)

    def expand(self, step: Step) -> Batch:
        """Apply `step`; gives it written out. Steps are expanded in the order of their launches.

        Raises:
            AssertionError: the step names a row that was never opened.
        """
        self.follow(step)
        size, rows, starts = self.page_size, step.rows, step.starts
        counts = np.diff(starts)
        after = self.seq_len[rows]
        first = after - counts
        columns = -(-int(after.max(initial=0)) // size)
        if columns > self.table.shape[1]:
            self._reserve(0, columns)
        owner = np.repeat(rows, counts)
        tokens = np.full(owner.size, SAMPLED, np.int32)
        tokens[step.decoding :] = step.ids
        places = np.arange(owner.size, dtype=np.int32) + np.repeat(first - starts[:-1], counts)
        positions = places.copy() if step.trees else places
        for tree in step.trees:
            end, count = starts[tree.row + 1], min(tree.depths.size, counts[tree.row])
            positions[end - count : end] = tree.base + tree.depths[tree.depths.size - count :]
        held = np.arange(columns) * size < after[:, None]
        return Batch(
            index=step.index,
            rows=rows,
            starts=starts,
            tokens=tokens,
            positions=positions,
            slots=self.table[owner, places // size] * size + places % size,
            pages=np.where(held, self.table[rows, :columns], np.int32(-1)),
            copies=step.copies,
            sample=step.sample,
            temperature=self.temperature[rows],
            top_p=self.top_p[rows],
            top_k=self.top_k[rows],
            min_p=self.min_p[rows],
            seeds=self.seeds[rows],
            no_eos=after < self.eos_from[rows],
            **dict(zip(_ASKED, _asked(step), strict=True)),
        )

    def follow(self, step: Step) -> None:
        """Apply `step` without writing it out; raises as `expand` does."""
        if step.opened.rows.size:
            self._open(step.opened)
        if step.pages.size:
            self._write(step.pages)
        assert step.rows.max(initial=-1) < self.seq_len.size, "a row that was never opened"
        self.seq_len[step.rows[: step.decoding]] += 1
        self.seq_len[step.rows[step.decoding :]] += step.lengths

    def filters(self, rows: I32, vocab: int) -> Filters:
        """What leaves samples of `rows` less than the `vocab` tokens that there are."""
        by_k = (self.top_k[rows] > 0) & (self.top_k[rows] < vocab)
        by_p = ~by_k & (self.top_p[rows] < 1)
        by_min = ~by_k & ~by_p & (self.min_p[rows] > 0)
        found = Filters.NONE
        for kind, some in ((Filters.TOP_P, by_p), (Filters.TOP_K, by_k), (Filters.MIN_P, by_min)):
            if some.any():
                found |= kind
        return found

    def _open(self, opened: Opened) -> None:
        rows = opened.rows
        self._reserve(int(rows.max()) + 1, 0)
        self.seq_len[rows] = opened.seq_len
        self.table[rows] = -1
        self.temperature[rows] = opened.temperature
        self.top_p[rows] = opened.top_p
        self.top_k[rows] = opened.top_k
        self.min_p[rows] = opened.min_p
        self.seeds[rows] = opened.seeds
        self.eos_from[rows] = opened.eos_from

    def _write(self, pages: I32) -> None:
        self._reserve(0, int(pages[:, 1].max()) + 1)
        self.table[pages[:, 0], pages[:, 1]] = pages[:, 2]  # of two equal places the last one counts

    def _reserve(self, rows: int, columns: int) -> None:
        """Have room for row numbers below `rows` and page tables of `columns`."""
        had, width = self.table.shape
        if columns > width:
            self.table = np.pad(self.table, ((0, 0), (0, max(columns, 2 * width) - width)), constant_values=-1)
        if rows <= had:
            return
        more = (0, max(rows, 2 * had) - had)
        self.table = np.pad(self.table, (more, (0, 0)), constant_values=-1)
        self.seq_len = np.pad(self.seq_len, more)
        self.temperature = np.pad(self.temperature, more)
        self.top_p = np.pad(self.top_p, more)
        self.top_k = np.pad(self.top_k, more)
        self.min_p = np.pad(self.min_p, more)
        self.seeds = np.pad(self.seeds, more)
        self.eos_from = np.pad(self.eos_from, more)
