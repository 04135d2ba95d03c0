"""Where the rows in flight keep their KV: pages and locks from admission to the end of a row.

A row's pages are those of the locked path to its `node`, then private ones. Prompt pages enter the
tree at the launch that computes them, other pages when the row retires. Pages and locks are given
up only when the last step that touches them is drained. `reserved` pages are promised to rows: there
are always as many free or evictable ones. A row is promised the pages of its prompt; those of what it
samples are promised when they are due, and when there are none, a row is preempted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sglc.runtime.cache.page_pool import PagePool
from sglc.runtime.cache.page_tree import PageNode, PrefixMatch, RadixTree
from sglc.runtime.scheduler.admission import (
    Holder,
    PageUsage,
    choose_preempted,
    expected_tokens,
    may_start,
)
from sglc.runtime.scheduler.batch_state import ROW, TOKENS, BatchState, PrefillChunk
from sglc.runtime.scheduler.requests import PartKind, RequestPart
from sglc.runtime.step import I32, NO_TRIPLES, Step

RUN_PAGES = 4  # that a decoding row takes at once
_MOST_PATHS = 512  # that are remembered: of a batch's rows with different beginnings
_NO_PAGES: I32 = np.empty(0, np.int32)
_WINDOW_SAMPLES = 64  # what has been observed counts as this many samples at most


@dataclass(frozen=True, slots=True)
class Lengths:
    """What samples have used of their `max_tokens`: the mean `share`, known as well as `samples` make it.

    It starts as if four samples had used half: that lets in twice as many rows as a promise of all
    tokens would, and a few ends correct it either way.
    """

    share: float = 0.5
    samples: float = 4.0

    def observed(self, generated: int, max_tokens: int) -> Lengths:
        """After a sample that could have been longer or shorter ended with `generated` tokens."""
        samples = min(self.samples + 1, _WINDOW_SAMPLES)
        return Lengths(self.share + (generated / max_tokens - self.share) / samples, samples)

    def missed(self) -> Lengths:
        """After pages ran short: the samples that run now are longer than those that have ended."""
        return Lengths((1 + self.share) / 2, self.samples)


@dataclass(slots=True, eq=False)
class RowWork:
    """What a row works on. `node` is locked and covers the row's first `shared` pages."""

    part: RequestPart
    node: PageNode
    shared: int
    publish: bool = False  # its partial prompt page goes to the tree, the row goes on in a copy
    diverged: bool = False  # an equal page was in the tree first: its pages stay private for now
    later: int = 0  # pages behind its prompt that it asks for at most
    source: PageNode | None = None  # locked: the row's next page begins with `copied` tokens of this one
    copied: int = 0


class KVAllocator:
    """Pool, tree and rows, and the rules that tie them together."""

    def __init__(self, pages: int, page_size: int, max_rows: int, max_len: int) -> None:
        self.page_size = page_size
        self.pool = PagePool(pages)
        self.tree = RadixTree(page_size, lambda page: self.pool.drop(page))
        self.rows = BatchState(max_rows, max_len, page_size)
        self.work: dict[int, RowWork] = {}
        self.unfinished: list[int] = []  # rows whose prompt is not launched to its end, oldest first
        self.reserved = 0
        self._later = 0  # of all rows
        self.lengths = Lengths()
        self._paths: dict[PageNode, I32] = {}  # see `_pages_to`; the oldest first
        self._copying: dict[int, None] = {}  # rows with a `source`, oldest first
        self._unlocks: list[tuple[int, PageNode]] = []
        self._drained = -1

    @property
    def available(self) -> int:
        """Pages that are free or can be freed, less those promised."""
        return self.pool.free + self.tree.evictable - self.reserved

    # -- admission

    def open(self, part: RequestPart, match: PrefixMatch, left: int) -> tuple[int, int, int] | None:
        """A row for `part`: (row, tokens known, tokens of its first chunk <= left), None if it must wait."""
        begun, size = match.node.end, self.page_size
        pages = -(-len(part.ids) // size) - begun // size
        later = -(-part.end // size) - -(-len(part.ids) // size)  # pages that it asks for behind those, at most
        # Without room for the page to copy from too, the row does without the copy.
        for source in (match.source, None) if match.source else (None,):
            known = begun + match.tokens if source else begun
            self.tree.lock(match.node)
            if source:
                self.tree.lock(source, held=match.node)
            shared_pages = min(self._shared_pages(source or match.node), begun // size)
            available = self.available
            # Where all of it fits whatever becomes of the rows, nothing has to be guessed.
            if pages + later + self._later <= available or (
                pages <= available and self._may_start(part, pages, later, shared_pages)
            ):
                row = self._occupy(part, match, source, pages, shared_pages)
                self.work[row].later = later
                self._later += later
                return row, known, min(left, len(part.ids) - known)
            self.tree.unlock(source or match.node)
        return None

    def _shared_pages(self, node: PageNode) -> int:
        """Of the pages down to `node`, which a row has locked, those that others have locked too."""
        while node.parent is not None and node.refs == 1:
            node = node.parent
        return node.end // self.page_size

    def _may_start(self, part: RequestPart, at_once: int, own: int, shared_pages: int) -> bool:
        """Whether `part` is expected to find its pages, as do all rows that run.

        It takes `at_once` now, and `own` later, at most.
        """
        rows, size = self.rows, self.page_size
        running = np.flatnonzero(rows.active)
        later = -(-rows.end[running] // size) - rows.held[running] - rows.reserved[running]
        if at_once + own + int(np.maximum(later, 0).sum()) <= self.available:
            return True
        tokens = np.append(np.maximum(rows.seq_len, rows.prompt_len)[running], np.int32(len(part.ids)))
        least = np.append(rows.least[running], np.int32(part.least))
        most = np.append(rows.end[running], np.int32(part.end)) - tokens
        left = expected_tokens(np.maximum(least - tokens, 0), most, self.lengths.share)
        pages = -(-tokens // size)
        returned = pages - np.append(rows.shared_pages[running], np.int32(shared_pages))
        # What a row has taken before it was due, it will not ask for again.
        ahead = int((rows.held + rows.reserved)[running].sum() - pages[:-1].sum())
        return may_start(self.available + ahead, at_once, PageUsage(tokens, left, returned), size)

    def _occupy(
        self, part: RequestPart, match: PrefixMatch, source: PageNode | None, pages: int, shared_pages: int
    ) -> int:
        known = match.node.end + (match.tokens if source else 0)
        path = self._pages_to(match.node)
        row = self.rows.open(part.array, known, part.end, path, pages)
        self.rows.least[row], self.rows.shared_pages[row] = part.least, shared_pages
        self.reserved += pages
        work = self.work[row] = RowWork(part, match.node, path.size)
        self.unfinished.append(row)
        if source:
            self.tree.lock(match.node)  # the lock on `source` covers its path too, but ends earlier
            work.source, work.copied = source, match.tokens
            self._copying[row] = None
        return row

    def _pages_to(self, node: PageNode) -> I32:
        """The pages down to `node`, all of them whole: int32 [n]. Rows that begin alike walk what differs."""
        known, behind, at = self._paths, list[list[int]](), node
        while at.parent is not None and at not in known:
            behind.append(at.pages)
            at = at.parent
        pages = known.get(at, _NO_PAGES)[: at.end // self.page_size]  # of more, if eviction has shortened it
        if behind:
            pages = np.concatenate((pages, *(np.array(run, np.int32) for run in reversed(behind))))
            if len(known) == _MOST_PATHS:
                del known[next(iter(known))]
            known[node] = pages
        return pages

    def publish(self, row: int) -> bool:
        """Share the row's partial last prompt page too, if there is a page for the row to go on in."""
        work = self.work[row]
        if not work.publish and self.available > 0:
            work.publish = True
            self.rows.reserved[row] += 1
            self.reserved += 1
        return work.publish

    # -- pages for what is sampled

    def force(self, row: int, ids: Sequence[int], *, ends: bool) -> bool:
        """The row goes on with `ids`, which are not sampled, if there are pages for them; whether it does.

        It has nothing in flight. If the ids end it, the last one's KV is not needed.
        """
        rows = self.rows
        length = int(rows.begun[row] + rows.made[row]) + len(ids) - ends
        pages = max(0, -(-length // self.page_size) - int(rows.held[row] + rows.reserved[row]))
        if pages > self.available:
            return False
        rows.reserved[row] += pages
        self.reserved += pages
        rows.force(row, ids, length, ends=ends)
        if row not in self.unfinished:
            # The prompt is through. Others wait for this row as long as for a token.
            self.work[row].diverged = True
            self.unfinished.insert(0, row)
        return True

    def missing(self, decode: I32) -> int:
        """How many pages the next tokens of the rows `decode` int32 [n] lack."""
        due = self._due(decode).size
        return max(0, due - self.available) if due else 0

    def promise(self, decode: I32) -> I32:
        """Promise pages for the next tokens of the rows `decode` int32 [n]; gives those that can go on.

        If there are not enough, the oldest rows have them.
        """
        due = self._due(decode)
        if not due.size:
            return decode
        waits: list[int] = []
        if due.size > self.available:
            oldest_first = sorted(due.tolist(), key=lambda row: self.work[row].part.order)
            waits = oldest_first[self.available :]
            due = np.setdiff1d(due, waits)
        self.rows.reserved[due] += 1
        self.reserved += due.size
        served: I32 = decode[~np.isin(decode, waits)] if waits else decode
        return served

    @property
    def relief(self) -> bool:
        """Whether pages come back by themselves, when steps that are in flight are drained."""
        ending = self.rows.active & (self.rows.seq_len >= self.rows.end)
        return bool(self._unlocks or self.pool.awaited or ending.any())

    def giving_way(self, missing: int, decode: I32) -> tuple[int, ...]:
        """Which of the rows `decode` int32 [n] are preempted for the `missing` pages."""
        due = set(self._due(decode).tolist())
        holders = []
        for row in decode.tolist():
            work = self.work[row]
            shared_pages = self._shared_pages(work.node)
            lost = int(self.rows.seq_len[row]) - shared_pages * self.page_size
            holders.append(
                Holder(row, work.part.order, lost, int(self.rows.held[row]) - shared_pages, row in due)
            )
        self.lengths = self.lengths.missed()
        return choose_preempted(missing, holders)

    def observe(self, generated: int, max_tokens: int) -> None:
        """A sample that could have been shorter or longer ended with `generated` tokens."""
        self.lengths = self.lengths.observed(generated, max_tokens)

    def _due(self, decode: I32) -> I32:
        short = self.rows.short(decode)
        due: I32 = short[self.rows.reserved[short] == 0]
        return due

    # -- a step

    def build(self, index: int, decode: I32, chunks: list[PrefillChunk]) -> Step:
        """The step for one token of each row of `decode` int32 [n], and for `chunks`, its pages taken."""
        short = self.rows.short(decode) if self.rows.steps_paged <= 0 else decode[:0]
        if short.size or chunks:
            self._take_pages(short, chunks)
        copies = self._copies(index, decode, chunks) if self._copying else NO_TRIPLES
        return self.rows.build(index, decode, chunks, copies)

    def _take_pages(self, short: I32, chunks: list[PrefillChunk]) -> None:
        """Pages for what `chunks` write, and for the next tokens of the rows `short` int32 [n]."""
        rows = np.concatenate((short, np.array([*map(ROW, chunks)], np.int32)))
        counts = np.ones(rows.size, np.int32)
        ends = self.rows.seq_len[rows[short.size :]] + np.array([*map(TOKENS, chunks)], np.int32)
        # A row that decoded may hold more than its run needs.
        counts[short.size :] = np.maximum(-(-ends // self.page_size) - self.rows.held[rows[short.size :]], 0)
        total = int(counts.sum())
        # Pages that a row will need soon spare it the next steps' entries, if every row can still have one.
        to_end = -(-self.rows.end[short] // self.page_size) - self.rows.held[short]
        ahead = np.minimum(RUN_PAGES, to_end) - 1
        more = int(ahead.sum())
        if self.pool.free >= total + more and self.available >= more + len(self.work):
            counts[: short.size] += ahead
            self.rows.reserved[short] += ahead
            self.reserved += more
            total += more
        if not total:
            return
        while self.pool.free < total:
            self.tree.evict(total - self.pool.free)
        self.rows.add_pages(rows, counts, self.pool.take(total))
        self.reserved -= total

    def _copies(self, index: int, decode: I32, chunks: list[PrefillChunk]) -> I32:
        present = np.zeros(self.rows.active.size, np.bool_)
        present[decode] = True
        present[[*map(ROW, chunks)]] = True
        copies = []
        for row in [row for row in self._copying if present[row]]:
            work = self.work[row]
            assert work.source is not None
            target = int(self.rows.seq_len[row]) // self.page_size
            copies.append((work.source.page, int(self.rows.table[row, target]), work.copied))
            self._end_copy(row, index)
        return np.array(copies, np.int32).reshape(-1, 3)

    def _end_copy(self, row: int, step: int) -> None:
        work = self.work[row]
        if work.source is not None:
            self._unlock(work.source, step)
            work.source = None
            del self._copying[row]

    def launched(self, step: Step, chunks: Iterable[PrefillChunk]) -> list[int]:
        """`step` is launched: its prompt pages enter the tree. Gives the rows whose prompt is through."""
        self.rows.advance(step)
        ended = []
        for chunk in chunks:
            row, work = chunk.row, self.work[chunk.row]
            if work.part.kind is not PartKind.CHOICE:
                self._insert_prompt(row, work, step.index)
            if self.rows.seq_len[row] >= self.rows.prompt_len[row]:
                self.unfinished.remove(row)
                ended.append(row)
        return ended

    def _insert_prompt(self, row: int, work: RowWork, step: int) -> None:
        size, done = self.page_size, min(int(self.rows.seq_len[row]), work.part.kept)
        ids = work.part.ids
        if not work.diverged:
            pages = self.rows.table[row, work.shared : done // size]
            behind = ids[work.shared * size : done // size * size]
            work.node, count = self.tree.insert_pages(work.node, behind, pages.tolist(), step)
            if count:
                self.pool.adopt_all(pages[:count])
                work.shared += count
            work.diverged = count < pages.size
        if work.publish and not work.diverged and done == len(ids) and done % size:
            page = int(self.rows.table[row, work.shared])
            leaf, new = self.tree.insert(work.node, ids[work.shared * size :], page, step)
            if new:
                self.pool.adopt(page)
                self.tree.lock(leaf)  # until the row's next step has copied it
                work.source, work.copied = leaf, done % size
                self._copying[row] = None
                self.rows.drop_last_page(row)

    # -- the end of a row

    def retire(self, row: int, keep: int) -> PageNode:
        """End a row. The KV of its first `keep` tokens enters the tree; gives the deepest node of them.

        The row's last launched step may still run: what it touches stays until it is drained.
        """
        work = self.work.pop(row)
        self.reserved -= int(self.rows.reserved[row])
        self._later -= work.later
        size, last = self.page_size, int(self.rows.last_step[row])
        pages = self.rows.table[row, work.shared : self.rows.held[row]].tolist()
        spare: list[int] = []
        kept = tuple(self.rows.tokens[row, work.shared * size : keep].tolist())
        entering = -(-len(kept) // size)
        node, count = self.tree.insert_pages(work.node, kept, pages[: len(kept) // size], last)
        if count:
            self.pool.adopt_all(np.array(pages[:count], np.int32))
        for i, page in enumerate(pages[count:entering], count):
            child, new = self.tree.insert(node, kept[i * size : (i + 1) * size], page, last, locked=True)
            if new:
                self.pool.adopt(page)
            elif last > self._drained and not child.refs and self.available < 1:
                entering = i  # to lock that page and keep ours in quarantine would break a promise
                break
            else:
                spare.append(page)
                self.tree.lock(child, held=node)
            node = child
        spare += pages[entering:]
        self._unlock(node, last)
        if spare:
            self.pool.retire(np.array(spare, np.int32), last)
        if work.source is not None:
            self._unlock(work.source, last)
            del self._copying[row]
        if row in self.unfinished:
            self.unfinished.remove(row)
        self.rows.close(row)
        return node

    def drained(self, step: int) -> None:
        """`step` and all before it are over."""
        self._drained = step
        self.pool.drained(step)
        due, self._unlocks = self._unlocks, []
        for entry in due:
            if entry[0] <= step:
                self.tree.unlock(entry[1])
            else:
                self._unlocks.append(entry)

    def _unlock(self, node: PageNode, step: int) -> None:
        if step <= self._drained:
            self.tree.unlock(node)
        else:
            self._unlocks.append((step, node))

    def reset(self, drained: int) -> None:
        """Forget all KV and all rows, after a failure of the executor. No step is in flight."""
        for row in list(self.work):
            self.rows.close(row)
        self.rows.forget_changes()
        self.work.clear()
        self.unfinished.clear()
        self._copying.clear()
        self._unlocks.clear()
        self._paths.clear()
        self.reserved = self._later = 0
        self.pool = PagePool(self.pool.owner.size)
        self.tree.clear()
        self._drained = drained
        self.pool.drained(drained)
