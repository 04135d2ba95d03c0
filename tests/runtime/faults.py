"""Bugs planted in the runtime, each as a patch: the fuzz test must find every one of them.

A fault is a function that patches classes through pytest's `MonkeyPatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sglc.ir.sampling import Sampling
from sglc.runtime import choice_trie
from sglc.runtime.cache.page_pool import PagePool
from sglc.runtime.cache.page_tree import SOME_DAY, Key, PageNode, PrefixMatch, RadixTree, Worth
from sglc.runtime.cache.sequence_handles import Handles, Prefix
from sglc.runtime.choice_trie import ChoiceTries
from sglc.runtime.engine import engine, jump_forward, logit_masks, lookahead, scores
from sglc.runtime.engine.engine import Engine
from sglc.runtime.engine.lookahead import Lookaheads
from sglc.runtime.executor.executor_state import ExecutorState
from sglc.runtime.scheduler import requests
from sglc.runtime.scheduler.batch_state import BatchState, PrefillChunk
from sglc.runtime.scheduler.kv_allocator import KVAllocator, RowWork
from sglc.runtime.scheduler.queue import RequestQueue
from sglc.runtime.scheduler.requests import (
    EngineRequest,
    PartKind,
    RequestPart,
    SampleState,
)
from sglc.runtime.scheduler.reservations import PrefixReservations
from sglc.runtime.scheduler.samples import JumpForward, Likely, Lookahead
from sglc.runtime.step import F32, I32, Batch, Bool, Opened, Step, StepResult

Fault = Callable[[pytest.MonkeyPatch], None]


def no_copy_on_write(patch: pytest.MonkeyPatch) -> None:
    """A row writes on in the shared partial page instead of a copy."""
    original = KVAllocator._copies

    def copies(self: KVAllocator, index: int, decode: I32, chunks: list[PrefillChunk]) -> I32:
        made = original(self, index, decode, chunks)
        for source, target, _ in made.tolist():
            self.rows.table[self.rows.table == target] = source
        return made[:0]

    patch.setattr(KVAllocator, "_copies", copies)


def copy_one_token_short(patch: pytest.MonkeyPatch) -> None:
    """A copied page lacks its last token."""
    original = KVAllocator._copies

    def copies(self: KVAllocator, index: int, decode: I32, chunks: list[PrefillChunk]) -> I32:
        made = original(self, index, decode, chunks)
        made[:, 2] -= made[:, 2] > 1
        return made

    patch.setattr(KVAllocator, "_copies", copies)


def insert_after_abort(patch: pytest.MonkeyPatch) -> None:
    """What an aborted row has computed enters the tree."""
    original = Engine._forget

    def forget(self: Engine, request: EngineRequest) -> None:
        for row, work in list(self.allocator.work.items()):
            if work.part.request is request and work.part.kind is PartKind.SAMPLE:
                self.allocator.retire(row, int(self.rows.seq_len[row]))
        original(self, request)

    patch.setattr(Engine, "_forget", forget)


def tail_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """The last kept token is taken for written although it has no KV yet."""
    original = KVAllocator.retire

    def retire(self: KVAllocator, row: int, keep: int) -> PageNode:
        return original(self, row, keep + 1 if keep else 0)

    patch.setattr(KVAllocator, "retire", retire)


def double_free(patch: pytest.MonkeyPatch) -> None:
    """A retired row gives its pages back twice."""
    original = PagePool.retire

    def retire(self: PagePool, pages: I32, step: int) -> None:
        original(self, pages, step)
        original(self, pages, step)

    patch.setattr(PagePool, "retire", retire)


def stale_generation(patch: pytest.MonkeyPatch) -> None:
    """A reused row takes its predecessor's late results for its own."""
    original = BatchState.close

    def close(self: BatchState, row: int) -> None:
        original(self, row)
        self.generation[row] -= 1

    patch.setattr(BatchState, "close", close)


def evict_locked_page(patch: pytest.MonkeyPatch) -> None:
    """Eviction takes a leaf that a row still reads."""
    original = RadixTree.evict

    def evict(self: RadixTree, most: int = 1) -> None:
        stack = [self.root]
        while stack:
            node = stack.pop()
            stack += node.children
            if node.refs and not node.children:
                refs, node.refs = node.refs, 0
                assert node.parent is not None
                self._remove(node, node.parent)
                node.refs = refs
                return
        original(self, most)

    patch.setattr(RadixTree, "evict", evict)


def pending_used_in_same_step(patch: pytest.MonkeyPatch) -> None:
    """Prompt pages are in the tree before the step that computes them is launched."""
    original = KVAllocator.open

    def open_row(
        self: KVAllocator, part: RequestPart, match: PrefixMatch, left: int
    ) -> tuple[int, int, int] | None:
        opened = original(self, part, match, left)
        if opened is not None and part.kind is PartKind.SAMPLE:
            row, known, tokens = opened
            self._take_pages(np.empty(0, np.int32), [PrefillChunk(row, tokens)])
            self.rows.seq_len[row] = known + tokens
            self._insert_prompt(row, self.work[row], 0)
            self.rows.seq_len[row] = known
        return opened

    patch.setattr(KVAllocator, "open", open_row)


def quarantine_skipped(patch: pytest.MonkeyPatch) -> None:
    """Pages are free while a step in flight still touches them."""
    original = PagePool.retire
    patch.setattr(PagePool, "retire", lambda self, pages, step: original(self, pages, -1))


def unlock_too_early(patch: pytest.MonkeyPatch) -> None:
    """Locks end although a step in flight still reads the nodes."""
    patch.setattr(KVAllocator, "_unlock", lambda self, node, step: self.tree.unlock(node))


def leaked_lock(patch: pytest.MonkeyPatch) -> None:
    """The lock on a page that was copied from is never taken back."""
    original = KVAllocator._end_copy

    def end_copy(self: KVAllocator, row: int, step: int) -> None:
        source = self.work[row].source
        assert source is not None
        self.tree.lock(source)
        original(self, row, step)

    patch.setattr(KVAllocator, "_end_copy", end_copy)


def seed_of_first_sample(patch: pytest.MonkeyPatch) -> None:
    """Every row samples with the seed of the first that ran."""
    original = BatchState.sample_with

    def sample_with(self: BatchState, row: int, sampling: Sampling, *rest: Any, **named: Any) -> None:
        original(self, row, sampling, *rest, **named)
        self.seeds[row] = self.seeds[0]

    patch.setattr(BatchState, "sample_with", sample_with)


def wrong_seed_position(patch: pytest.MonkeyPatch) -> None:
    """Decode rows give the position of the token to come, not of the one passed in."""
    original = ExecutorState.expand

    def expand(self: ExecutorState, step: Step) -> Batch:
        batch = original(self, step)
        positions = batch.positions.copy()
        positions[: step.decoding] += 1
        return replace(batch, positions=positions)

    patch.setattr(ExecutorState, "expand", expand)


def page_not_told(patch: pytest.MonkeyPatch) -> None:
    """Of the pages that a row takes at once, the last one is not told to the executor."""
    original = BatchState.add_pages

    def add_pages(self: BatchState, rows: I32, counts: I32, pages: I32) -> None:
        original(self, rows, counts, pages)
        if counts[-1] > 1:
            self._entries[-1] = self._entries[-1][:-1]

    patch.setattr(BatchState, "add_pages", add_pages)


def page_table_of_the_predecessor(patch: pytest.MonkeyPatch) -> None:
    """A row that begins keeps the page table of the one before it."""
    original = ExecutorState._open

    def open_rows(self: ExecutorState, opened: Opened) -> None:
        before = self.table.copy()
        original(self, opened)
        self.table[: len(before), : before.shape[1]] = before

    patch.setattr(ExecutorState, "_open", open_rows)


def sampling_of_the_predecessor(patch: pytest.MonkeyPatch) -> None:
    """A row that begins again keeps the temperature of the one before it."""
    original = ExecutorState._open

    def open_rows(self: ExecutorState, opened: Opened) -> None:
        before = self.temperature.copy()
        original(self, opened)
        self.temperature[: before.size] = before

    patch.setattr(ExecutorState, "_open", open_rows)


def entries_lost_when_looking_ahead(patch: pytest.MonkeyPatch) -> None:
    """What a step enters into page tables is lost if two steps before it are not drained."""
    original = KVAllocator.build

    def build(self: KVAllocator, index: int, decode: I32, chunks: list[PrefillChunk]) -> Step:
        step = original(self, index, decode, chunks)
        return replace(step, pages=step.pages[:0]) if index - self._drained > 2 else step

    patch.setattr(KVAllocator, "build", build)


def stop_ids_of_the_predecessor(patch: pytest.MonkeyPatch) -> None:
    """A reused row keeps the stop ids of the one before it."""
    original = BatchState.sample_with

    def sample_with(self: BatchState, row: int, sampling: Sampling, *rest: Any, **named: Any) -> None:
        before = self.stops[row].copy()
        original(self, row, sampling, *rest, **named)
        if self.generation[row]:
            self.stops[row] = before

    patch.setattr(BatchState, "sample_with", sample_with)


def many_stop_ids_of_the_predecessor(patch: pytest.MonkeyPatch) -> None:
    """A reused row keeps the stop ids of the one before it, if those were more than are looked for at once."""
    original = BatchState.close

    def close(self: BatchState, row: int) -> None:
        stops = self._many_stops.get(row)
        original(self, row)
        if stops is not None:
            self._many_stops[row] = stops

    patch.setattr(BatchState, "close", close)


def logprobs_of_the_predecessor(patch: pytest.MonkeyPatch) -> None:
    """Log-probabilities are not entered where the row before had some."""
    original = BatchState.take

    def take(self: BatchState, rows: I32, tokens: I32, logprobs: F32) -> tuple[Bool, Bool]:
        before = self.logprobs.copy()
        taken = original(self, rows, tokens, logprobs)
        np.copyto(self.logprobs, before, where=before != 0)
        return taken

    patch.setattr(BatchState, "take", take)


def order_kept_when_a_row_ends(patch: pytest.MonkeyPatch) -> None:
    """Rows that have nothing left to launch decode on."""
    original = BatchState.advance

    def advance(self: BatchState, step: Step) -> None:
        self._steps_left += 1
        original(self, step)

    patch.setattr(BatchState, "advance", advance)


def stale_min_tokens(patch: pytest.MonkeyPatch) -> None:
    """A reused row keeps its predecessor's `min_tokens`."""
    original = BatchState.sample_with

    def sample_with(self: BatchState, row: int, sampling: Sampling, *rest: Any, **named: Any) -> None:
        before = int(self.min_tokens[row])
        original(self, row, sampling, *rest, **named)
        self.min_tokens[row] = before

    patch.setattr(BatchState, "sample_with", sample_with)


def dropped_cut(patch: pytest.MonkeyPatch) -> None:
    """A cut does nothing."""
    patch.setattr(Engine, "cut", lambda self, request, sample, length: None)


def partial_match_one_too_long(patch: pytest.MonkeyPatch) -> None:
    """A partial match claims one token more than is equal."""
    original = RadixTree.match

    def match(self: RadixTree, ids: Key, limit: int, start: PageNode) -> PrefixMatch:
        found = original(self, ids, limit, start)
        longer = found.source is not None and found.tokens + 1 < len(found.source.key)
        if longer and found.length < limit:
            return replace(found, tokens=found.tokens + 1)
        return found

    patch.setattr(RadixTree, "match", match)


def whole_prompt_from_cache(patch: pytest.MonkeyPatch) -> None:
    """A partial match is as long as the page allows, whatever the limit that keeps a token to compute."""
    original = RadixTree.match

    def match(self: RadixTree, ids: Key, limit: int, start: PageNode) -> PrefixMatch:
        return original(self, ids, len(ids), start)

    patch.setattr(RadixTree, "match", match)


def duplicate_insert_overwrites(patch: pytest.MonkeyPatch) -> None:
    """Inserting what is there replaces the page."""
    original = RadixTree.insert

    def insert(
        self: RadixTree, parent: PageNode, key: Key, page: int, step: int, *, locked: bool = False
    ) -> tuple[PageNode, bool]:
        node, new = original(self, parent, key, page, step, locked=locked)
        if not new and node.page != page:
            node.pages[:] = [page]
            return node, True
        return node, new

    patch.setattr(RadixTree, "insert", insert)


def score_rows_inserted(patch: pytest.MonkeyPatch) -> None:
    """Choices that were only scored enter the tree."""
    original = KVAllocator.retire

    def retire(self: KVAllocator, row: int, keep: int) -> PageNode:
        choice = self.work[row].part.trie is not None
        return original(self, row, int(self.rows.seq_len[row]) if choice else keep)

    patch.setattr(KVAllocator, "retire", retire)


def evictable_leaf_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A node whose last child goes is not queued for eviction."""
    patch.setattr(RadixTree, "_settle", lambda self, node: None)


def promises_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Admission counts pages that running rows will still take."""
    patch.setattr(KVAllocator, "available", property(lambda self: self.pool.free + int(self.tree.evictable)))


def scores_shifted(patch: pytest.MonkeyPatch) -> None:
    """A choice is scored one position too early."""
    original = RequestQueue._chunk

    def chunk(self: RequestQueue, part: RequestPart, row: int, tokens: int) -> PrefillChunk:
        made = original(self, part, row, tokens)
        first = int(self.allocator.rows.seq_len[row])
        return replace(made, scored=tuple((max(first, at - 1), token) for at, token in made.scored))

    patch.setattr(RequestQueue, "_chunk", chunk)


def below_the_id_before(patch: pytest.MonkeyPatch) -> None:
    """In a row that branches, an id sees those that its neighbour sees, and stands behind it."""
    original = choice_trie.tries_of

    def tries_of(choices: Sequence[Sequence[int]], room: int, *, branching: bool) -> ChoiceTries:
        made = original(choices, room, branching=branching)
        straight = [
            replace(
                trie, depths=np.arange(len(trie.ids), dtype=np.int32), until=np.full_like(trie.until, 2**20)
            )
            for trie in made.tries
        ]
        return ChoiceTries(tuple(straight), made.where)

    patch.setattr(engine, "tries_of", tries_of)


def an_id_seen_one_too_long(patch: pytest.MonkeyPatch) -> None:
    """The first id behind a branch sees the last one of the branch before, too."""
    original = choice_trie.tries_of

    def tries_of(choices: Sequence[Sequence[int]], room: int, *, branching: bool) -> ChoiceTries:
        made = original(choices, room, branching=branching)
        return ChoiceTries(tuple(replace(trie, until=trie.until + 1) for trie in made.tries), made.where)

    patch.setattr(engine, "tries_of", tries_of)


def branches_forgotten_when_cut(patch: pytest.MonkeyPatch) -> None:
    """Of a trie in several steps, each step knows only its own ids' branches."""
    original = BatchState.build

    def build(self: BatchState, index: int, decode: I32, chunks: list[PrefillChunk], copies: I32) -> Step:
        made = original(self, index, decode, chunks, copies)
        lengths = dict(enumerate(made.lengths.tolist(), made.decoding))
        told = []
        for tree in made.trees:
            until = tree.until.copy()
            until[: max(0, tree.until.size - lengths[tree.row])] = 2**20
            told.append(replace(tree, until=until))
        return replace(made, trees=tuple(told))

    patch.setattr(BatchState, "build", build)


def choices_enter_the_tree(patch: pytest.MonkeyPatch) -> None:
    """Pages of a prompt's row enter the tree with the choices that lie behind it."""
    original = KVAllocator._insert_prompt

    def insert(self: KVAllocator, row: int, work: RowWork, step: int) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(RequestPart, "kept", property(lambda part: len(part.ids)))
            original(self, row, work, step)

    patch.setattr(KVAllocator, "_insert_prompt", insert)


def looking_ahead_of_the_mask(patch: pytest.MonkeyPatch) -> None:
    """A constrained row is launched while its last token is in flight."""
    patch.setattr(BatchState, "known", lambda self, rows: rows)


def mask_of_the_state_before(patch: pytest.MonkeyPatch) -> None:
    """A constrained sample's state stays one token behind."""
    original = logit_masks.allowed_next

    seen: dict[SampleState, int] = {}  # there is one mask for each token

    def allowed(request: EngineRequest, sample: int, made: int) -> I32:
        state = request.samples[sample]
        now, state.state = state.state, seen.get(state, state.state)
        seen[state] = now
        mask = original(request, sample, made)
        state.state = now
        return mask

    patch.setattr(logit_masks, "allowed_next", allowed)


def mask_of_the_first_sample(patch: pytest.MonkeyPatch) -> None:
    """All samples of a request get the mask of its first."""
    original = logit_masks.allowed_next
    patch.setattr(logit_masks, "allowed_next", lambda request, sample, made: original(request, 0, made))


def constraint_dropped_after_a_cut(patch: pytest.MonkeyPatch) -> None:
    """When a sample is cut, the others of its request go on without masks."""
    original = Engine.cut

    def cut(self: Engine, request: int, sample: int, length: int) -> None:
        original(self, request, sample, length)
        rows = [row for row, work in self.allocator.work.items() if work.part.request.id == request]
        self.rows.constrained[rows] = False

    patch.setattr(Engine, "cut", cut)


def masks_in_another_order(patch: pytest.MonkeyPatch) -> None:
    """Masks are in the order of row numbers, not of the step's rows."""
    original = logit_masks.steered

    def steered(step: Step, rows: BatchState, work: Mapping[int, RowWork]) -> Step:
        made = original(step, rows, work)
        return replace(made, masks=made.masks[np.argsort(step.rows[made.masked], kind="stable")])

    patch.setattr(engine, "steered", steered)


def end_allowed_anywhere(patch: pytest.MonkeyPatch) -> None:
    """Ids that end a sample are allowed where the text may not end."""
    original = logit_masks.allowed_next

    def allowed(request: EngineRequest, sample: int, made: int) -> I32:
        mask = original(request, sample, made)
        for token in request.stop_ids:
            mask.view(np.uint8)[token // 8] |= 1 << token % 8
        return mask

    patch.setattr(logit_masks, "allowed_next", allowed)


def run_one_too_long(patch: pytest.MonkeyPatch) -> None:
    """A forced run takes in the likeliest-looking id behind it."""
    original = jump_forward.forced_run

    def run(request: EngineRequest, state: int, made: int) -> JumpForward | None:
        found = original(request, state, made)
        assert request.sampling is not None
        if found is None or found.finish or made + len(found.ids) + 1 >= request.sampling.max_tokens:
            return found
        constraint = request.constraint
        assert constraint is not None
        allowed = np.flatnonzero(constraint.mask(found.state))
        token = int(allowed[0])
        if constraint.done(constraint.advance(found.state, token)):
            return found
        return replace(found, ids=(*found.ids, token), state=constraint.advance(found.state, token))

    patch.setattr(jump_forward, "forced_run", run)


def run_behind_max_tokens(patch: pytest.MonkeyPatch) -> None:
    """A forced run goes on behind `max_tokens`."""
    original = jump_forward.forced_run

    def run(request: EngineRequest, state: int, made: int) -> JumpForward | None:
        return original(request, state, made - 1 if made else made)

    patch.setattr(jump_forward, "forced_run", run)


def mask_before_the_run(patch: pytest.MonkeyPatch) -> None:
    """What is sampled behind a run gets the mask of the place before its last id."""
    original = jump_forward.forced_run

    def run(request: EngineRequest, state: int, made: int) -> JumpForward | None:
        found = original(request, state, made)
        if found is None or found.finish:
            return found
        constraint = request.constraint
        assert constraint is not None
        for token in found.ids[:-1]:
            state = constraint.advance(state, token)
        return replace(found, state=state)

    patch.setattr(jump_forward, "forced_run", run)


def run_scored_one_place_late(patch: pytest.MonkeyPatch) -> None:
    """The ids of a run have the log-probabilities of their own places, not of those before."""
    original = RequestQueue._chunk

    def chunk(self: RequestQueue, part: RequestPart, row: int, tokens: int) -> PrefillChunk:
        made = original(self, part, row, tokens)
        last = int(self.allocator.rows.seq_len[row]) + tokens - 1
        if not self.allocator.rows.forced[row]:
            return made
        return replace(made, scored=tuple((min(last, at + 1), token) for at, token in made.scored))

    patch.setattr(RequestQueue, "_chunk", chunk)


def run_without_a_page(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks whether there are pages for a run."""
    original = KVAllocator.force

    def force(self: KVAllocator, row: int, ids: tuple[int, ...], *, ends: bool) -> bool:
        self.reserved -= 1000
        jump_forward = original(self, row, ids, ends=ends)
        self.reserved += 1000
        return jump_forward

    patch.setattr(KVAllocator, "force", force)


def run_outlives_its_row(patch: pytest.MonkeyPatch) -> None:
    """A sample whose row gave way is still taken for one on its run."""
    original = RequestQueue._preempt

    def preempt(self: RequestQueue, row: int) -> None:
        part = self.allocator.work[row].part
        run = part.request.samples[part.index].run
        original(self, row)
        part.request.samples[part.index].run = run

    patch.setattr(RequestQueue, "_preempt", preempt)


def penalties_without_the_run(patch: pytest.MonkeyPatch) -> None:
    """Penalties behind a run do not count its ids."""
    original = logit_masks._biased

    def biased(step: Step, offsets: list[int], work: Mapping[int, RowWork]) -> Step:
        states = [s for row in step.rows.tolist() for s in work[row].part.request.samples]
        runs = [(state, state.run) for state in states]
        for state in states:
            state.run = None
        made = original(step, offsets, work)
        for state, run in runs:
            state.run = run or state.run
        return made

    patch.setattr(logit_masks, "_biased", biased)


def stretched_prompt_shared_whole(patch: pytest.MonkeyPatch) -> None:
    """A run behind a prompt enters the tree as if it were of the prompt."""
    original = KVAllocator._insert_prompt

    def insert(self: KVAllocator, row: int, work: RowWork, step: int) -> None:
        if self.rows.forced[row] and not work.diverged:
            known = self.rows.tokens[row, : int(self.rows.seq_len[row])]
            work.part = replace(work.part, ids=tuple(known.tolist()))
        original(self, row, work, step)

    patch.setattr(KVAllocator, "_insert_prompt", insert)


def pins_lost_by_eviction(patch: pytest.MonkeyPatch) -> None:
    """The pins of an evicted node do not move to the node that takes over."""
    original = RadixTree._remove

    def remove(self: RadixTree, node: PageNode, successor: PageNode) -> None:
        before = successor.pins
        original(self, node, successor)
        successor.pins = before

    patch.setattr(RadixTree, "_remove", remove)


def split_unlocks_what_is_above(patch: pytest.MonkeyPatch) -> None:
    """What a locked run is split from is not locked."""
    original = RadixTree._split

    def split(self: RadixTree, node: PageNode, tokens: int) -> PageNode:
        upper = original(self, node, tokens)
        upper.refs -= upper is not node and upper.refs > 0
        return upper

    patch.setattr(RadixTree, "_split", split)


def split_mixes_up_pages(patch: pytest.MonkeyPatch) -> None:
    """The pages behind a cut are one too far ahead."""
    original = RadixTree._split

    def split(self: RadixTree, node: PageNode, tokens: int) -> PageNode:
        upper = original(self, node, tokens)
        if upper is not node:
            node.pages = [*node.pages[1:], node.pages[0]]
        return upper

    patch.setattr(RadixTree, "_split", split)


def prefix_leads_behind_itself(patch: pytest.MonkeyPatch) -> None:
    """What is known of a prefix takes in what one of those who begin with it goes on with."""

    def lead(self: Handles, prefix: Prefix, node: PageNode) -> None:
        prefix.node = self._tree.until(node, len(prefix.ids) + 3 * self._tree.page_size)

    patch.setattr(Handles, "_lead", lead)


def path_outlives_its_pages(patch: pytest.MonkeyPatch) -> None:
    """What is remembered of the way to a node has pages that eviction took from its end."""
    original = KVAllocator._pages_to

    def pages_to(self: KVAllocator, node: PageNode) -> I32:
        return self._paths.get(node, original(self, node))

    patch.setattr(KVAllocator, "_pages_to", pages_to)


def penalties_one_token_late(patch: pytest.MonkeyPatch) -> None:
    """A row with penalties is launched while its last token is in flight."""
    original = BatchState.sample_with

    def sample_with(self: BatchState, row: int, sampling: Sampling, *rest: Any, **named: Any) -> None:
        original(self, row, sampling, *rest, **named)
        self.stepwise[row] = named["constrained"]

    patch.setattr(BatchState, "sample_with", sample_with)


def penalties_of_the_prompt(patch: pytest.MonkeyPatch) -> None:
    """Penalties count the prompt's ids too."""
    original = logit_masks._biased

    def biased(step: Step, offsets: list[int], work: Mapping[int, RowWork]) -> Step:
        for offset in offsets:
            request = work[int(step.rows[offset])].part.request
            for state in request.samples:
                for token in request.ids:
                    state.counts.setdefault(token, 1)
        return original(step, offsets, work)

    patch.setattr(logit_masks, "_biased", biased)


def bias_of_another_row(patch: pytest.MonkeyPatch) -> None:
    """A bias is added to the row before."""
    original = logit_masks._biased

    def biased(step: Step, offsets: list[int], work: Mapping[int, RowWork]) -> Step:
        made = original(step, offsets, work)
        sampling = np.flatnonzero(made.sample)
        before = sampling[np.searchsorted(sampling, made.bias_at) - 1].astype(np.int32)
        return replace(made, bias_at=before)

    patch.setattr(logit_masks, "_biased", biased)


def repetition_of_the_text_alone(patch: pytest.MonkeyPatch) -> None:
    """The penalty on repetition does not see the prompt."""
    original = logit_masks._repeated

    def repeated(step: Step, offsets: list[int], rows: BatchState) -> Step:
        made = original(step, offsets, rows)
        row = step.rows[made.repeated_at]
        pairs = zip(row.tolist(), made.repeated_ids.tolist(), strict=True)
        sampled = np.array([token in rows.tokens[at, rows.begun[at] :] for at, token in pairs], np.bool_)
        return replace(
            made,
            repeated_at=made.repeated_at[sampled],
            repeated_ids=made.repeated_ids[sampled],
            repetition=made.repetition[sampled],
        )

    patch.setattr(logit_masks, "_repeated", repeated)


def scored_prompt_from_cache(patch: pytest.MonkeyPatch) -> None:
    """What is cached of a prompt gets no scores."""
    original = requests.first_part

    def first_part(request: EngineRequest) -> RequestPart:
        part = original(request)
        part.limit = len(part.ids) - 1 if part.kind is PartKind.SAMPLE else part.limit
        return part

    patch.setattr(engine, "first_part", first_part)


def likeliest_of_the_place_before(patch: pytest.MonkeyPatch) -> None:
    """A place is given the likeliest ids of the one before it in the step."""
    original = scores.likeliest_at

    def likeliest_at(result: StepResult, index: int, count: int) -> Likely:
        return original(result, max(index - 1, 0), count)

    patch.setattr(engine, "likeliest_at", likeliest_at)


def late_row_decodes(patch: pytest.MonkeyPatch) -> None:
    """A row goes on before it is known what it may sample."""
    original = BatchState.known

    def known(self: BatchState, rows: I32) -> I32:
        self.late[:] = False
        return original(self, rows)

    patch.setattr(BatchState, "known", known)


def late_prompt_begins(patch: pytest.MonkeyPatch) -> None:
    """A sample gets a row before it is known what it may begin with."""
    patch.setattr(RequestPart, "late", False)


def late_end_not_seen(patch: pytest.MonkeyPatch) -> None:
    """A sample goes on behind an id that is found to end its text when others have gone on."""
    original = jump_forward.look_ahead

    def look_ahead(*rest: Any, **named: Any) -> Lookahead:
        return replace(original(*rest, **named), ends=False)

    patch.setattr(lookahead, "look_ahead", look_ahead)


def mask_found_for_another_sample(patch: pytest.MonkeyPatch) -> None:
    """What one sample may go on with is taken for all of its request."""
    original = Lookaheads._ask

    def ask(self: Lookaheads, question: Any, state: int, token: int | None, made: int) -> None:
        original(self, question, question.request.samples[0].state, token, made)

    patch.setattr(Lookaheads, "_ask", ask)


def run_of_a_row_that_gave_way_goes_on(patch: pytest.MonkeyPatch) -> None:
    """A run that is begun again keeps the scores of the first time."""
    patch.setattr(jump_forward, "replace", lambda run, **named: run)


def retracted_row_loses_a_token(patch: pytest.MonkeyPatch) -> None:
    """A row that gave way goes on one token short of what it had."""
    original = BatchState.resume
    patch.setattr(BatchState, "resume", lambda self, row, logprobs: original(self, row, logprobs[1:]))


def retracted_row_takes_what_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    """A row that gave way counts its launched tokens as known."""
    original = BatchState.sampled

    def sampled(self: BatchState, row: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        made = int(self.made[row])
        self.made[row] = min(self.end[row], self.seq_len[row]) - self.begun[row]
        found = original(self, row)
        self.made[row] = made
        return found

    preempt = RequestQueue._preempt

    def retract_with(self: RequestQueue, row: int) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(BatchState, "sampled", sampled)
            preempt(self, row)

    patch.setattr(RequestQueue, "_preempt", retract_with)


def retraction_keeps_a_lock(patch: pytest.MonkeyPatch) -> None:
    """A row that gives way keeps its prefix locked."""
    original = RequestQueue._preempt

    def preempt(self: RequestQueue, row: int) -> None:
        self.allocator.tree.lock(self.allocator.work[row].node)
        original(self, row)

    patch.setattr(RequestQueue, "_preempt", preempt)


def recomputed_tokens_counted_twice(patch: pytest.MonkeyPatch) -> None:
    """What a row computes again after it gave way is prompt."""
    original = RequestQueue._admitted

    def admitted(self: RequestQueue, part: RequestPart, row: int, known: int) -> None:
        original(self, part, row, known)
        if part.logprobs is not None:
            part.request.computed += len(part.ids) - known

    patch.setattr(RequestQueue, "_admitted", admitted)


def unpromised_pages_taken(patch: pytest.MonkeyPatch) -> None:
    """Every row goes on, whether there is a page for it or not."""

    def promise(self: KVAllocator, decode: I32) -> I32:
        due = self._due(decode)
        self.rows.reserved[due] += 1
        self.reserved += due.size
        return decode

    patch.setattr(KVAllocator, "promise", promise)


def namespace_ignored_in_match(patch: pytest.MonkeyPatch) -> None:
    """Prefixes are looked up in the namespace "" only."""
    original = RadixTree.match

    def match(self: RadixTree, ids: Key, limit: int, start: PageNode) -> PrefixMatch:
        return original(self, ids, limit, self.root if start.parent is None and not start.scratch else start)

    patch.setattr(RadixTree, "match", match)


def dead_node_outlives_a_pinned_one(patch: pytest.MonkeyPatch) -> None:
    """What was released is evicted last."""
    original = RadixTree._rank

    def rank(self: RadixTree, node: PageNode) -> tuple[int, int, int, int]:
        worth, *rest = original(self, node)
        return (worth or 9, *rest)  # type: ignore[return-value]

    patch.setattr(RadixTree, "_rank", rank)


def nearest_use_goes_first(patch: pytest.MonkeyPatch) -> None:
    """Of pinned leaves the one that is needed next is evicted first."""
    original = RadixTree._rank

    def rank(self: RadixTree, node: PageNode) -> tuple[int, int, int, int]:
        worth, use, last, serial = original(self, node)
        return worth, use if use <= -SOME_DAY else -use, last, serial

    patch.setattr(RadixTree, "_rank", rank)


def release_kills_what_others_use(patch: pytest.MonkeyPatch) -> None:
    """What is released is dead down from the root, whoever else goes through it."""

    def demote(self: RadixTree, node: PageNode) -> None:
        leaf = node
        while node.parent is not None:
            node.worth = int(Worth.DEAD)
            node = node.parent
        self._queue(leaf)

    patch.setattr(RadixTree, "demote", demote)


def hold_never_taken_back(patch: pytest.MonkeyPatch) -> None:
    """What a program has left stays held, whoever needs its pages, and for however long."""
    patch.setattr(PrefixReservations, "expire", lambda self, step: None)
    patch.setattr(PrefixReservations, "give_up", lambda self, place=-1: False)


def hold_outlives_its_handle(patch: pytest.MonkeyPatch) -> None:
    """A hold stays when its handle ends."""
    original = Engine.release

    def release(self: Engine, handle: int) -> None:
        hold = self.reservations.held.pop(handle, None)
        original(self, handle)
        if hold is not None:
            self.reservations.held[handle] = hold

    patch.setattr(Engine, "release", release)
    patch.setattr(PrefixReservations, "expire", lambda self, step: None)


def hold_ends_with_the_lock_kept(patch: pytest.MonkeyPatch) -> None:
    """A hold that ends leaves its lock behind."""
    patch.setattr(PrefixReservations, "drop", lambda self, handle: self.held.pop(handle, None))


def expected_after_its_end(patch: pytest.MonkeyPatch) -> None:
    """A handle that has ended is still expected to be used."""
    original = Handles.release

    def release(self: Handles, handle: int, *wanted: Any) -> None:
        node = self.node(handle)
        original(self, handle, *wanted)
        self._tree.pin(node, 5)

    patch.setattr(Handles, "release", release)


def program_goes_behind_new_ones(patch: pytest.MonkeyPatch) -> None:
    """Who comes last is served first, so that a program waits for as long as there are new ones."""
    original = RequestPart.__post_init__

    def made(self: RequestPart) -> None:
        original(self)
        self.order = (0, 0, -self.request.turn.place, 0, self.request.id, self.index)

    patch.setattr(RequestPart, "__post_init__", made)


FAULTS: tuple[Fault, ...] = (
    no_copy_on_write,
    copy_one_token_short,
    insert_after_abort,
    tail_off_by_one,
    double_free,
    stale_generation,
    evict_locked_page,
    pending_used_in_same_step,
    quarantine_skipped,
    unlock_too_early,
    leaked_lock,
    seed_of_first_sample,
    wrong_seed_position,
    page_not_told,
    page_table_of_the_predecessor,
    sampling_of_the_predecessor,
    entries_lost_when_looking_ahead,
    stop_ids_of_the_predecessor,
    many_stop_ids_of_the_predecessor,
    logprobs_of_the_predecessor,
    order_kept_when_a_row_ends,
    stale_min_tokens,
    dropped_cut,
    partial_match_one_too_long,
    whole_prompt_from_cache,
    duplicate_insert_overwrites,
    score_rows_inserted,
    evictable_leaf_forgotten,
    promises_forgotten,
    scores_shifted,
    below_the_id_before,
    an_id_seen_one_too_long,
    branches_forgotten_when_cut,
    choices_enter_the_tree,
    looking_ahead_of_the_mask,
    mask_of_the_state_before,
    mask_of_the_first_sample,
    constraint_dropped_after_a_cut,
    masks_in_another_order,
    end_allowed_anywhere,
    run_one_too_long,
    run_behind_max_tokens,
    mask_before_the_run,
    run_scored_one_place_late,
    run_without_a_page,
    run_outlives_its_row,
    penalties_without_the_run,
    stretched_prompt_shared_whole,
    pins_lost_by_eviction,
    split_unlocks_what_is_above,
    split_mixes_up_pages,
    prefix_leads_behind_itself,
    path_outlives_its_pages,
    penalties_one_token_late,
    penalties_of_the_prompt,
    repetition_of_the_text_alone,
    bias_of_another_row,
    scored_prompt_from_cache,
    likeliest_of_the_place_before,
    late_row_decodes,
    late_prompt_begins,
    late_end_not_seen,
    mask_found_for_another_sample,
    run_of_a_row_that_gave_way_goes_on,
    retracted_row_loses_a_token,
    retracted_row_takes_what_is_in_flight,
    retraction_keeps_a_lock,
    recomputed_tokens_counted_twice,
    unpromised_pages_taken,
    namespace_ignored_in_match,
    dead_node_outlives_a_pinned_one,
    nearest_use_goes_first,
    release_kills_what_others_use,
    hold_never_taken_back,
    hold_outlives_its_handle,
    hold_ends_with_the_lock_kept,
    expected_after_its_end,
    program_goes_behind_new_ones,
)
