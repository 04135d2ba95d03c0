"""Runs steps on one CUDA device: the rows' state stays there, and a step is one CUDA graph.

A step that changes nothing but the rows' lengths copies nothing to the device: a graph is replayed and
its outputs are copied back. Changes (rows that begin, pages handed out, another set of rows) travel as one
packed buffer, and the cut into tiles as another. Everything is queued on one stream, so the order of
launches is the order of effects; pinned buffers are a ring, each used again only when its event is over.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from sglc.errors import BackendError
from sglc.runtime.attention.tile_plan import (
    ITEM,
    LEVELS,
    PrefixGroup,
    TilePlan,
    TileShape,
    plan_tiles,
    shared_prefixes,
)
from sglc.runtime.choice_trie import MOST_TOKENS
from sglc.runtime.executor.cuda_model import CudaModel, PassKind, TileArguments, Tokens
from sglc.runtime.executor.executor_state import ExecutorState
from sglc.runtime.executor.sampler import likeliest
from sglc.runtime.kernels.automata import Automata
from sglc.runtime.kernels.decode_attention import Tiles
from sglc.runtime.kernels.likeliest import likeliest_of_sampled
from sglc.runtime.kernels.log_probabilities import log_probabilities_of
from sglc.runtime.kernels.pages import copy_tokens
from sglc.runtime.kernels.pushdown_masks import pushdown_masks
from sglc.runtime.kernels.rows import (
    batch_lists,
    keeps_lists,
    pack,
    packed_words,
    prepare,
    row_state,
    stage,
)
from sglc.runtime.kernels.sample import adjustments, sample, sample_scratch
from sglc.runtime.model.config import ModelConfig
from sglc.runtime.step import F32, I32, ByteAutomaton, Filters, Step, StepCost, StepResult, pack_ids

# Tokens of steps, which are captured before they come: launches of a batch of long prompts would take a third
# of the host's time, and to capture such a step while it is waited for takes 20 ms.
BUCKETS = (
    1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512,
    *range(768, 2049, 256), *range(2560, 8193, 512),
)  # fmt: skip
_LARGE = 256  # what larger steps are padded to: kernels are specialised in multiples of 16
_COSTLY = 2048  # tokens up to which steps are timed: of more, none is beside rows that decode
_FREE_SHARE = 0.9  # of the free memory, for the KV pool
_HEAD_ROWS = 256  # places whose logits are looked at together
_HEADER = 8  # words of a plan before its arrays: the number of items, and padding
_MEMBERS = 1 + LEVELS  # of a plan, for each token: its chunk's tile, and a prefix on each level
_NO_SCORES = torch.empty(0)
# What steps contain: of a step with prompts and rows that decode, these may always share prefixes.
_DECODE = PassKind(decode=True, cascade=False, prompts=False)
_CASCADE = PassKind(decode=True, cascade=True, prompts=False)
_NARROW = PassKind(decode=True, cascade=True, prompts=False, narrow=True)
_PROMPTS = PassKind(decode=False, cascade=False, prompts=True)
_MIXED = PassKind(decode=True, cascade=True, prompts=True)
_PREFILL_FLOPS = 80e12  # a second, of the tile kernel on an H200, for a few hundred tokens behind many keys
_MOST_TOPS = 32  # likeliest ids that are looked for in a graph
_AUTOMATA_WORDS = 16 << 20  # room for tables of automata
# And for what their states allow, or so much of the memory.
_AUTOMATA_MASKS_BYTES, _AUTOMATA_SHARE = 96 << 20, 256


@dataclass(frozen=True, slots=True)
class Ticket:
    """A launched step: where its outputs will be, pinned, and the event behind them.

    out: int32 [3 * R']. scores: float32 [S]. top_ids: int64, and top_logprobs: float32 [A + C, tops]; without
    the first A where `likely` has them, int32 [2, R', T], ids and bits of log-probabilities of all rows.
    """

    index: int
    rows: int
    out: Tensor
    scores: Tensor
    top_ids: Tensor
    top_logprobs: Tensor
    likely: Tensor
    top_rows: I32
    done: torch.Event | None

    def result(self) -> StepResult:
        """Waits for the device."""
        if self.done is not None:
            self.done.synchronize()
        out = self.out.numpy().reshape(3, -1)[:, : self.rows].copy()
        top_ids, top_logprobs = self.top_ids.numpy().astype(np.int32), self.top_logprobs.numpy()
        if self.likely.numel():
            found = self.likely.numpy()[:, self.top_rows, : top_ids.shape[1]]
            top_ids = np.concatenate((found[0], top_ids))
            top_logprobs = np.concatenate((found[1].view(np.float32), top_logprobs))
        return StepResult(
            self.index, out[0], out[1].view(np.float32), self.scores.numpy(), top_ids, top_logprobs, out[2]
        )


@dataclass(frozen=True, slots=True)
class _FlightBuffer:
    """Pinned buffers of one step in flight, and the event behind their last use (None: on the CPU)."""

    words: Tensor
    masks: Tensor
    plan: Tensor
    out: Tensor
    likely: Tensor
    done: torch.Event | None


@dataclass(frozen=True, slots=True)
class _PassPiece:
    """What one graph does of a step. Steps of decode alone that sample plainly are one piece. Of others, the
    layers depend on the tokens and what samples on the rows, so these are two pieces, and there are few of
    each: layers, which take 10 ms to capture, are captured before they come, and what samples takes 1 ms.

    tokens: of the layers, 0 if it has none. rows: of what samples, 0 if it does not; some may have `filters`,
    or automata with `stacks`, and `tops` likeliest ids are looked for. `scores`: they are no rows to be sampled
    from, but places whose next ids are scored.
    """

    tokens: int
    rows: int
    kind: PassKind | None
    filters: Filters = Filters.NONE
    stacks: bool = False
    tops: int = 0
    scores: bool = False


class CudaExecutor:
    """An `Executor` of a Llama-family model on a CUDA device; on the CPU only in Triton's interpreter.

    Args:
        weights: under Hugging Face's names, on `device`, in the type to compute in.
        kv_dtype: of the KV pool: that type, or float8_e4m3fn.
        pages: of the pool; None: what fits into nine tenths of the free memory.
        max_rows, max_tokens: rows in flight, and tokens of a step, at most.
        max_len: longest sequence.
        depth: steps that may be undrained.
        cascade: prefixes that rows share are read once.
        graphs: False launches every kernel by itself.
        token_bytes: of every id, index = id: without them no automata are kept.

    Raises:
        BackendError: the pool does not fit into the device's memory (SGLC530).
    """

    trees = keeps = True

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        *,
        device: torch.device | str = "cuda",
        kv_dtype: torch.dtype | None = None,
        page_size: int = 16,
        pages: int | None = None,
        max_rows: int = 256,
        max_tokens: int = 8192,
        max_len: int | None = None,
        eos_ids: Sequence[int] | None = None,
        depth: int = 2,
        cascade: bool = True,
        graphs: bool = True,
        token_bytes: Sequence[bytes] = (),
    ) -> None:
        self.config = config
        self.page_size = page_size
        self.depth = depth
        self.vocab_size = config.vocab_size
        self._device = torch.device(device)
        on_cuda = self._device.type == "cuda"
        self._cascade = cascade
        self._graphs = graphs and on_cuda
        self._max_rows, self._max_tokens = max_rows, max_tokens
        max_len = min(max_len or config.max_len, config.max_len)
        processors = torch.cuda.get_device_properties(self._device).multi_processor_count if on_cuda else 2
        with torch.inference_mode():
            dtype = next(iter(weights.values())).dtype
            kv_dtype = kv_dtype or dtype
            self._model = CudaModel(config, weights, max_tokens, max_rows, processors, kv_dtype)
            group = config.heads // config.kv_heads
            self._shapes = {
                narrow: TileShape(
                    tile.rows, group, config.kv_heads, page_size, self._model.tile_programs(narrow=narrow)
                )
                for narrow, tile in self._model.tiles.items()
            }
            self._logits = self._empty(max_rows, config.vocab_size, dtype=dtype)
            self._inputs = self._empty(4, max_tokens, dtype=torch.int32)
            self._out = self._empty(3 * max_rows, dtype=torch.int32)
            self._scored_rows = min(_HEAD_ROWS, max_rows)
            self._wanted = self._empty(2, self._scored_rows, dtype=torch.int32)  # places and their ids
            self._scores = self._empty(self._scored_rows, dtype=torch.float32)
            self._likely = self._empty(2 * max_rows * _MOST_TOPS, dtype=torch.int32)
            ids = config.eos_ids if eos_ids is None else eos_ids
            self._eos_ids = torch.tensor(list(ids), dtype=torch.int32, device=self._device)
            self._scratch = sample_scratch(max_rows, self._device)
            self._adjustments = adjustments(max_rows + 1, config.vocab_size, self._device)
            mask_bytes = -(-config.vocab_size // 8)
            memory = torch.cuda.get_device_properties(self._device).total_memory if on_cuda else 0
            room = max(_AUTOMATA_MASKS_BYTES, memory // _AUTOMATA_SHARE)
            self._automata = Automata(
                token_bytes, config.vocab_size, self._eos_ids, max_rows,
                words=_AUTOMATA_WORDS, masks=room // mask_bytes,
            )  # fmt: skip
            # Prefixes on one level have at least two rows each; cutting keys adds a piece for each program.
            programs = max(shape.programs for shape in self._shapes.values())
            self._parts = 2 * max_rows + 2 * programs // config.kv_heads
            partial = self._parts * config.kv_heads * max(shape.rows for shape in self._shapes.values())
            self._tile_values = self._empty(partial, config.head_dim, dtype=torch.float32)
            self._tile_sums = self._empty(partial, dtype=torch.float32)
            items = self._parts + max_tokens // self._shapes[False].tokens + max_rows
            plan = _HEADER + (1 + 2 * LEVELS + _MEMBERS) * max_tokens + ITEM * items + MOST_TOKENS * max_rows
            self._plan_words = torch.zeros(plan, dtype=torch.int32, device=self._device)
            columns = -(-max_len // page_size) + 1
            # All rows may begin at once, and every page of their prefixes be new to the device.
            words = packed_words(max_rows, 2 * max_rows * columns, max_rows, max_tokens, max_rows, max_rows)
            self._words = self._empty(words, dtype=torch.int32)
            self._flights = [self._flight(words, plan) for _ in range(depth + 1)]
            self._pool, self.pages = self._make_pool(kv_dtype, pages)
            self._state = row_state(max_rows, columns, self.pages, self._device)
            self._lists = batch_lists(max_tokens, max_rows, self._state.dummy, self._device)
        self._mirror = ExecutorState(page_size)
        self._automaton: I32 = np.full(max_rows, -1, np.int32)  # that a row follows
        self._captured: dict[_PassPiece, torch.cuda.CUDAGraph | None] = {}
        self._capturing = torch.cuda.Stream(self._device) if self._graphs else None  # type: ignore[no-untyped-call]
        self._graph_pool = torch.cuda.graph_pool_handle() if self._graphs else None
        self._before: Step | None = None
        self._bucket = (0, 0)
        self._kind = _DECODE
        self._filters = Filters.NONE  # that rows of the step have
        self._stacks = False  # whether one follows an automaton with a stack
        self._tops = 0  # likeliest ids that the graph looks for
        self._launched = 0

    def _empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self._device)

    def _flight(self, words: int, plan: int) -> _FlightBuffer:
        def pinned(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, pin_memory=self._device.type == "cuda")

        done = torch.Event(self._device) if self._device.type == "cuda" else None
        masks = pinned(self._max_rows, self._automata.tables.masks.shape[1])
        likely = pinned(2 * self._max_rows * _MOST_TOPS)
        return _FlightBuffer(pinned(words), masks, pinned(plan), pinned(3 * self._max_rows), likely, done)

    def _make_pool(self, dtype: torch.dtype, pages: int | None) -> tuple[Tensor, int]:
        """[layers, pages + 1, 2, kv_heads, page_size, D] of zeros, the last page for padding; and `pages`."""
        c = self.config
        page = (2, c.kv_heads, self.page_size, c.head_dim)
        size = 2 * c.kv_heads * self.page_size * c.head_dim * dtype.itemsize * c.layers
        free = torch.cuda.mem_get_info(self._device)[0] if self._device.type == "cuda" else 1 << 30
        if pages is None:
            pages = int(free * _FREE_SHARE) // size - 1
        if pages < 1 or (pages + 1) * size > free:
            raise BackendError(
                "SGLC530",
                f"a KV pool of {max(pages, 0) * self.page_size} tokens does not fit on `{self._device}`",
                note=f"{free / 2**30:.1f} GiB are free, and a page takes {size / 2**20:.1f} MiB",
                hint="ask for a smaller pool, or a smaller model",
            )
        raw = torch.zeros(
            (c.layers, pages + 1, *page),
            dtype=torch.uint8 if dtype.itemsize == 1 else dtype,
            device=self._device,
        )
        return raw.view(dtype), pages

    # -- a step

    def launch(self, step: Step) -> Ticket:
        """Queue `step` on the device's current stream."""
        slot = self._flights[self._launched % len(self._flights)]
        if slot.done is not None:
            slot.done.synchronize()
        self._launched += 1
        self._mirror.follow(step)
        with torch.inference_mode():
            bucket = self._bucket_of(step)
            self._stage(step, slot, bucket)
            asked = step.tops if step.top_rows.size and step.tops <= _MOST_TOPS else 0
            self._tops = 1 << (asked - 1).bit_length() if asked else 0
            self._execute(bucket, self._kind)
            size = 3 * bucket[1]
            slot.out[:size].copy_(self._out[:size], non_blocking=True)
            likely = slot.likely[: 2 * bucket[1] * self._tops]
            if self._tops:
                likely.copy_(self._likely[: likely.numel()], non_blocking=True)
                likely = likely.view(2, -1, self._tops)
            scores, top_ids, top_logprobs = self._scored(step)
            if slot.done is not None:
                slot.done.record()
        return Ticket(
            step.index, len(step.rows), slot.out[:size], scores, top_ids, top_logprobs, likely, step.top_rows,
            slot.done,
        )  # fmt: skip

    def ready(self, ticket: Ticket) -> bool:
        """Whether a step is over."""
        return ticket.done is None or ticket.done.query()

    def drain(self, ticket: Ticket) -> StepResult:
        """The outcome of the oldest undrained step."""
        return ticket.result()

    def hold(self, automaton: ByteAutomaton) -> int | None:
        """What rows are opened with that follow `automaton`, until `release`; None: there is no room for it."""
        with torch.inference_mode():
            return self._automata.hold(automaton)

    def release(self, automaton: ByteAutomaton) -> None:
        """Ends what one `hold` began."""
        self._automata.release(automaton)

    def _scored(self, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities [S] of `score_ids`; and where likeliest ids are asked for, those and theirs."""
        tops: list[tuple[Tensor, Tensor]] = []
        count, sampled = step.score_at.size, step.top_rows.size and not self._tops
        if not count and not sampled:
            none = _NO_SCORES.view(0, 1).expand(0, step.tops)
            return _NO_SCORES, none.long(), none
        if sampled:
            tops.append(likeliest(self._logits[self._put(step.top_rows)], step.tops))
        wanted = self._put(np.stack((step.score_at, step.score_ids)))
        scores = torch.empty(count, device=self._device)
        for begin in range(0, count, self._scored_rows):
            end = min(begin + self._scored_rows, count)
            rows = _padded(end - begin, self._scored_rows)
            self._wanted[:, : end - begin].copy_(wanted[:, begin:end])
            self._replay(_PassPiece(0, rows, None, scores=True))
            scores[begin:end].copy_(self._scores[: end - begin])
            first, last = np.searchsorted(step.top_scores, (begin, end)).tolist()
            if last > first:
                asked = self._put(step.top_scores[first:last] - np.int32(begin))
                tops.append(likeliest(self._logits[asked], step.tops))
        empty = torch.empty((0, step.tops), device=self._device)
        top_ids = torch.cat([found for found, _ in tops]) if tops else empty.long()
        top_logprobs = torch.cat([found for _, found in tops]) if tops else empty
        return (
            self._fetched(scores),
            self._fetched(top_ids),
            self._fetched(top_logprobs),
        )

    def _put(self, values: I32 | F32) -> Tensor:
        """A copy on the device, which nobody waits for."""
        there = torch.from_numpy(values)
        return there.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else there

    def _fetched(self, here: Tensor) -> Tensor:
        """A copy in pinned memory, queued behind what the device still does."""
        if self._device.type == "cpu":
            return here.clone()  # the next step writes there, maybe before this one is drained
        there = torch.empty(here.shape, dtype=here.dtype, pin_memory=here.numel() > 0)
        return there.copy_(here, non_blocking=True)

    def _bucket_of(self, step: Step) -> tuple[int, int]:
        """Tokens and rows that a step is padded to; of decode alone, they are as many."""
        rows = _padded(len(step.rows), self._max_rows)
        return (_padded(step.decoding + len(step.ids), self._max_tokens) if len(step.ids) else rows), rows

    def _stage(self, step: Step, slot: _FlightBuffer, bucket: tuple[int, int]) -> None:
        """Bring what the step changes to the device."""
        before, self._before = self._before, step
        same = before is not None and bucket == self._bucket and keeps_lists(before, step)
        self._bucket = bucket
        if step.opened.automaton.size:
            self._automaton[step.opened.rows] = step.opened.automaton
        masks, stacks = self._masks(step, slot)
        packed = pack(step, None if same else bucket, self._state.dummy, slot.words.numpy(), masks)
        self._adjust(step)
        if count := len(packed.words):
            self._words[:count].copy_(slot.words[:count], non_blocking=True)
            stage(self._words[:count], packed, self._state, self._lists, self._automata.tables.words)
            if packed.copies:
                copies = self._words[packed.copies_at : packed.copies_at + 3 * packed.copies]
                copy_tokens(self._pool, copies.view(-1, 3))
        self._put_stacks(stacks)
        if not same:
            self._filters = self._mirror.filters(step.rows, self.vocab_size)
            self._stacks = any(
                self._automata.stack_of(held) is not None
                for held in np.unique(self._automaton[step.rows]).tolist()
                if held >= 0
            )
            prefixes = self._shared(step)
            self._kind = self._kind_of(step, prefixes)
            self._put_plan(self._plan(step, prefixes), slot, bucket[0])

    def _masks(self, step: Step, slot: _FlightBuffer) -> tuple[I32, dict[int, tuple[int, ...]]]:
        """Rows whose masks the step brings, or whose automata moved on; and stacks, by row.

        The rows are (row, state, mask, states on the stack), int32 [n, 4].
        """
        count = step.masked.size
        changed = [(row, -1, at, 0) for at, row in enumerate(step.rows[step.masked].tolist())]
        if count:
            slot.masks.numpy()[:count, : step.masks.shape[1]] = step.masks
            self._automata.tables.masks[:count].copy_(slot.masks[:count], non_blocking=True)
        stacks: dict[int, tuple[int, ...]] = {}
        opened = step.opened
        begun = np.flatnonzero(opened.automaton >= 0)
        starts = zip(opened.rows[begun].tolist(), opened.state[begun].tolist(), strict=True)
        for moves, places in ((False, starts), (True, step.states.tolist())):
            for row, state in places:
                held = int(self._automaton[row])
                if (stack := self._automata.stack_of(held)) is not None:
                    at, stacks[row] = stack.places[state]
                    changed.append((row, at, self._automata.first_own + row, len(stacks[row])))
                elif moves:
                    changed.append((row, state, self._automata.mask_of(held, state), 0))
        return np.array(changed, np.int32).reshape(-1, 4), stacks

    def _put_stacks(self, stacks: dict[int, tuple[int, ...]]) -> None:
        """Rows have these stacks from now on, and the masks that follow from them."""
        if not stacks:
            return
        deep = {row: stack for row, stack in stacks.items() if stack}
        if deep:
            width = max(map(len, deep.values()))
            values = np.array([(*stack, *[0] * (width - len(stack))) for stack in deep.values()], np.int32)
            rows = self._put(np.array([*deep], np.int32)).long()
            self._state.stacks[:, :width].index_copy_(0, rows, self._put(values))
        pushdown_masks(
            self._put(np.array([*stacks], np.int32)), self._state, self._automata.tables,
            self._automata.first_own, self._eos_ids, self.vocab_size,
        )  # fmt: skip

    def _adjust(self, step: Step) -> None:
        """Bring what is added to logits to the device."""
        opened = step.opened
        if opened.adjusted.any():
            begun = np.flatnonzero(opened.adjusted)
            rows = self._put(opened.rows[begun]).long()
            self._adjustments.added.index_fill_(0, rows, 0.0)
            self._adjustments.seen.index_fill_(0, rows, 0)
            self._adjustments.repetition.index_fill_(0, rows, 0.0)
            owner, ids, _ = opened.added[:, opened.added[2] > 0]
            if owner.size:
                again, at = np.unique(owner, return_inverse=True)
                seen = pack_ids(at, ids, again.size, self.vocab_size)
                self._adjustments.seen.index_copy_(0, self._put(opened.rows[again]).long(), self._put(seen))
        if opened.values.size:
            self._add(opened.rows[opened.added[0]], opened.added[1], opened.values)
        if step.bias_at.size:
            self._add(step.rows[step.bias_at], step.bias_ids, step.bias)
        if step.repeated_at.size:
            at, first, which = np.unique(step.repeated_at, return_index=True, return_inverse=True)
            repeated = pack_ids(which, step.repeated_ids, at.size, self.vocab_size)
            rows = self._put(step.rows[at]).long()
            self._adjustments.repeated.index_copy_(0, rows, self._put(repeated[:, ::-1].copy()))
            self._adjustments.repetition.index_copy_(0, rows, self._put(step.repetition[first]))

    def _add(self, rows: I32, ids: I32, values: F32) -> None:
        """From now on `values` are added to the logits of `ids` in `rows`; arrays [n], no pair twice."""
        self._adjustments.added[self._put(rows).long(), self._put(ids).long()] = self._put(values)

    def _kind_of(self, step: Step, prefixes: Sequence[PrefixGroup]) -> PassKind:
        if len(step.ids):
            return replace(_MIXED if step.decoding else _PROMPTS, trees=bool(step.trees))
        if not prefixes:
            return _DECODE
        fits = sum(len(prefix.rows) for prefix in prefixes) <= 2 * self._shapes[True].tokens * len(prefixes)
        return _NARROW if fits else _CASCADE

    def _shared(self, step: Step) -> list[PrefixGroup]:
        """Prefixes that decoding rows share. Their pages are whole, so they stay right while the rows grow."""
        rows = step.rows[: step.decoding]
        if step.decoding < 2 or not self._cascade:
            return []
        # The mirror has counted the step's token: of the page that it is written to nothing is shared.
        whole = (self._mirror.seq_len[rows] - 1) // self.page_size
        return shared_prefixes(self._mirror.table[rows, : int(whole.max())], whole, self.page_size)

    def _plan(self, step: Step, prefixes: Sequence[PrefixGroup]) -> TilePlan | None:
        if not prefixes and not len(step.lengths):
            return None
        prompts = step.rows[step.decoding :]
        firsts = self._mirror.seq_len[prompts] - step.lengths
        chunks = list(zip(prompts.tolist(), firsts.tolist(), step.lengths.tolist(), strict=True))
        shape = self._shapes[self._kind.narrow]
        return plan_tiles(step.rows[: step.decoding].tolist(), prefixes, chunks, shape, step.trees)

    def _put_plan(self, plan: TilePlan | None, slot: _FlightBuffer, tokens: int) -> None:
        """Bring a plan (none: no tiles) for a bucket of `tokens` to the device, all of it in one copy."""
        words = slot.plan.numpy()
        lists = _HEADER + (1 + 2 * LEVELS) * tokens
        words[:lists] = 0
        used = lists
        if plan is not None:
            assert plan.parts <= self._parts, (plan.parts, self._parts)
            words[0] = len(plan.items)
            at = _HEADER
            for values, width in ((plan.shared, 1), (plan.splits, LEVELS), (plan.first, LEVELS)):
                words[at : at + values.size] = values.ravel()
                at += width * tokens
            words[at : at + len(plan.members)] = plan.members
            at += _MEMBERS * tokens
            used = at + plan.words.size
            words[at:used] = plan.words
        self._plan_words[:used].copy_(slot.plan[:used], non_blocking=True)

    def _tiles(self, tokens: int, kind: PassKind) -> TileArguments:
        """Where `_put_plan` brings the plan of a bucket of `tokens`."""
        words, at = self._plan_words, _HEADER
        shared = words[at : at + tokens]
        at += tokens
        splits, first = (
            words[at + LEVELS * tokens * i :][: LEVELS * tokens].view(tokens, LEVELS) for i in (0, 1)
        )
        at += 2 * LEVELS * tokens
        left = Tiles(splits, first, self._tile_values, self._tile_sums, self._shapes[kind.narrow].rows)
        return TileArguments(shared, words[at + _MEMBERS * tokens :], words[:1], words[at:], left)

    def _execute(self, bucket: tuple[int, int], kind: PassKind) -> None:
        """Run the step that is staged."""
        tokens, rows = bucket
        if not (kind.prompts or self._filters or self._stacks or self._tops):
            self._replay(_PassPiece(tokens, rows, kind))
            return
        self._replay(_PassPiece(tokens, 0, kind))
        self._replay(_PassPiece(0, rows, None, self._filters, self._stacks, self._tops))

    def _replay(self, piece: _PassPiece) -> None:
        """Run a piece: as a graph, from its second time on."""
        if not self._graphs or piece.tokens > BUCKETS[-1]:
            self._run(piece, pdl=False)
        elif piece not in self._captured:
            self._captured[piece] = None
            self._run(piece, pdl=self._model.overlaps)
        else:
            graph = self._captured[piece]
            if graph is None:
                graph = self._captured[piece] = self._capture(piece)
            graph.replay()

    def _capture(self, piece: _PassPiece) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        collects = gc.isenabled()
        gc.disable()  # graphs of an executor that is no more may not be freed while another one is captured
        try:
            with torch.cuda.stream(self._capturing):
                graph.capture_begin(pool=self._graph_pool, capture_error_mode="thread_local")
                self._run(piece, pdl=self._model.overlaps)
                graph.capture_end()
        finally:
            if collects:
                gc.enable()
        return graph

    def _run(self, piece: _PassPiece, *, pdl: bool) -> None:
        """Launch the kernels of a piece: layers, then head, sampling, and the growth of the rows."""
        tokens, rows, kind = piece.tokens, piece.rows, piece.kind
        if kind is not None:
            inputs = self._inputs[:, :tokens]
            prepare(self._lists, self._state, self.page_size, tokens, inputs)
            ids, positions, slots, places = inputs
            rows_of = self._lists.token_rows[:tokens]
            arguments = Tokens(ids, positions, slots, places, rows_of, self._lists.decoding)
            self._model.attend(
                arguments, self._pool, self._state.table, self._tiles(tokens, kind), kind, pdl=pdl
            )  # fmt: skip
        if not rows:
            return
        if piece.scores:
            places, ids = self._wanted[:, :rows]
            logits = self._model.logits(
                self._model.finish(self._max_tokens, places, pdl=False), self._logits[:rows]
            )
            log_probabilities_of(logits, ids, self._scores[:rows])
            return
        # Only of a step without prompts is every token the last of its row.
        wanted = self._lists.ends[:rows] if kind is None else None
        hidden = self._model.finish(tokens or self._max_tokens, wanted, pdl=pdl)
        logits = self._model.logits(hidden, self._logits[:rows], pdl=pdl)
        ids, logprobs, follows = self._out[: 3 * rows].view(3, rows)
        sample(
            logits[:rows], self._lists, self._state, self._eos_ids, self._scratch, self._automata.tables,
            self._adjustments, ids, logprobs.view(torch.float32), follows, filters=piece.filters,
            first_own=self._automata.first_own if piece.stacks else None,
        )  # fmt: skip
        if piece.tops:
            best = self._likely[: 2 * rows * piece.tops].view(2, rows, piece.tops)
            likeliest_of_sampled(
                logits[:rows], ids, logprobs.view(torch.float32), best[0], best[1].view(torch.float32)
            )

    def warm_up(self, rows: int) -> StepCost:
        """Compile kernels and capture the graphs of steps with up to `rows` rows; gives what steps cost.

        Measured with nothing but padding, whose attention is next to nothing. Before the first step only.
        """
        with torch.inference_mode():
            self._lists.tokens.zero_()[0] = self._state.dummy
            self._lists.rows.zero_()[0] = self._state.dummy
            self._lists.decoding.zero_()
            sizes = _sizes(self._max_tokens)
            few = _sizes(min(rows, self._max_rows))
            kinds = (_DECODE, _CASCADE, _NARROW) if self._cascade else (_DECODE,)
            pieces = [_PassPiece(size, end, kind) for size in few for end in (size, 0) for kind in kinds]
            # What samples in other ways is captured when it comes: its kernels are ready.
            for filters in (Filters.NONE, Filters.ALL):
                pieces += [_PassPiece(0, size, None, filters) for size in few]
            # Of more tokens, rows that branch are beside none that decode.
            pieces += [
                _PassPiece(size, 0, replace(kind, trees=trees))
                for size in sorted({*sizes, self._max_tokens})
                for kind in (_PROMPTS, _MIXED)
                for trees in ((False, True) if size <= _COSTLY else (False,))
            ]
            for piece in pieces:
                self._replay(piece)
                self._replay(piece)
            self._compile_rare(few[0])
            self._before = None
            products_s = tuple(
                (size, self._seconds(partial(self._execute, (size, min(size, few[-1])), _PROMPTS)))
                for size in sizes
                if size <= _COSTLY
            )
            source = torch.empty(1 << 28, dtype=torch.uint8, device=self._device)
            target = torch.empty_like(source)
            byte_s = self._seconds(lambda: target.copy_(source)) / (2 * source.numel())
        c = self.config
        pair_flops = 4 * c.layers * c.heads * c.head_dim
        key_bytes = 2 * c.layers * c.kv_heads * c.head_dim * self._pool.element_size()
        return StepCost(products_s, key_bytes * byte_s, pair_flops / _PREFILL_FLOPS)

    def _compile_rare(self, rows: int) -> None:
        """Compile the kernels that few samples need: who asks first would have all others wait for seconds."""
        stacks, scores = _PassPiece(0, rows, None, stacks=True), _PassPiece(0, rows, None, scores=True)
        tops = [replace(stacks, tops=1 << power) for power in range(_MOST_TOPS.bit_length())]
        for piece in (stacks, scores, *tops):
            self._replay(piece)
        self._put_stacks({self._state.dummy: ()})
        for at in range(2):  # words that begin at 16 bytes, and others
            copy_tokens(self._pool, self._words[at : at + 3].view(1, 3))
        classes, zero = np.zeros(256, np.uint8), np.zeros((1, 1), np.int32)
        masks = np.array([[0], [1], [-1]], np.int32)
        anything = ByteAutomaton(classes, zero, np.ones(1, np.bool_), zero[0], masks)
        if self.hold(anything) is not None:
            self.release(anything)

    def _seconds(self, run: Callable[[], object]) -> float:
        """Median time of `run` on the device."""
        run()
        times: list[float] = []
        for _ in range(5):
            begin, end = (torch.Event(self._device, enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        return sorted(times)[2]


def _padded(count: int, most: int) -> int:
    """The bucket of `count` tokens or rows, of which there are `most` at most."""
    large = -(-count // _LARGE) * _LARGE
    return min(next((size for size in BUCKETS if size >= count), large), most)


def _sizes(most: int) -> list[int]:
    """All buckets of up to `most` tokens or rows."""
    return sorted({min(size, most) for size in BUCKETS})
