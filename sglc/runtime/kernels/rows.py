"""The state of rows on the device, and the kernels that keep it: what `mirror.Mirror` does in numpy.

A step that changes something packs it into one buffer of int32 words (`pack`), which is copied to the
device and spread by one kernel (`stage`). Then, in steady decode without that, `prepare` says where each
token goes, and the sampler's last kernel lets rows grow (`finish_rows`). So the tensors of
a step have fixed addresses and a step changes no shape: a CUDA graph serves all steps of a bucket.

One more row than there are rows is the dummy: length 0, all pages the dummy page. Padding belongs to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from sglc.ir.grammar.pushdown import MOST_NESTED
from sglc.runtime.kernels.automata import STACK_AT, mask_at
from sglc.runtime.step import I32, SAMPLED, Step

# Rows of `RowState.fields`. What a row is opened with comes first, in the order of the packed buffer.
SEQ_LEN = tl.constexpr(0)
TEMPERATURE = tl.constexpr(1)
TOP_P = tl.constexpr(2)
TOP_K = tl.constexpr(3)
MIN_P = tl.constexpr(4)
SEED_LOW = tl.constexpr(5)
SEED_HIGH = tl.constexpr(6)
EOS_FROM = tl.constexpr(7)
AUTOMATON = tl.constexpr(8)
STATE = tl.constexpr(9)
MASK = tl.constexpr(10)
ADJUSTED = tl.constexpr(11)
FREQUENCY = tl.constexpr(12)
PRESENCE = tl.constexpr(13)
DEPTH = tl.constexpr(14)
LAST = tl.constexpr(15)
_OPENED = tl.constexpr(15)  # fields that opening a row sets
_FIELDS = 16
# Rows of `BatchLists.rows`.
ROW = tl.constexpr(0)
COUNT = tl.constexpr(1)
END = tl.constexpr(2)
SAMPLES = tl.constexpr(3)
# Of a token's offset: what lies above says how far its position is before its place.
_OFFSET_BITS = tl.constexpr(20)
_HEADER = tl.constexpr(8)  # words: opened rows, table entries, copies, tokens, rows, decoding rows, masks
_BLOCK = 256
NO_MASKS: I32 = np.empty((0, 4), np.int32)


@dataclass(frozen=True, slots=True)
class RowState:
    """What the device keeps of `capacity` rows, the last of which is the dummy.

    fields: int32 [16, capacity], floats and halves of seeds as bit patterns. table: int32 [capacity, K].
    stacks: int32 [capacity, `MOST_NESTED`], what lies on the stacks of rows whose automata have one. The others
    are views of `fields`, [capacity]. Of a row: `automaton` is where the tables of its automaton
    begin, and `state` the state that its ids have led to, -1 without one; `mask` the row of the masks that
    says what it may sample next, -1 for anything; and the field `DEPTH` how many states lie on its stack.
    """

    fields: Tensor
    table: Tensor
    stacks: Tensor
    seq_len: Tensor
    last: Tensor
    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    min_p: Tensor
    eos_from: Tensor
    automaton: Tensor
    state: Tensor
    mask: Tensor

    @property
    def dummy(self) -> int:
        """The row of padding."""
        return self.table.shape[0] - 1


@dataclass(frozen=True, slots=True)
class BatchLists:
    """Which tokens a step takes, padded to a bucket with tokens and rows of the dummy.

    tokens: int32 [3, T], of each token its row, its offset among the row's new tokens (above `_OFFSET_BITS`:
    how far its position lies before its place, in a row that branches), and its id or `SAMPLED`. rows: int32
    [4, R], of each row of the batch its number, how many tokens it takes (0 for padding), the token whose
    logits it samples from, and whether it samples. decoding: int32 [1]. The others are views.
    """

    tokens: Tensor
    rows: Tensor
    decoding: Tensor
    token_rows: Tensor
    ends: Tensor


@dataclass(frozen=True, slots=True)
class Packed:
    """A step's changes: `words` int32 [N], part of the buffer they were packed into; and their numbers.

    `copies` int32 [C, 3] begin at word `copies_at`. No words: nothing changes.
    """

    words: I32
    opened: int
    entries: int
    copies: int
    copies_at: int
    tokens: int
    rows: int
    masks: int


def row_state(rows: int, columns: int, dummy_page: int, device: torch.device | str) -> RowState:
    """State of `rows` rows, none open, with page tables of `columns` pages."""
    fields = torch.zeros(_FIELDS, rows + 1, dtype=torch.int32, device=device)
    fields[[AUTOMATON.value, STATE.value, MASK.value]] = -1
    table = torch.full((rows + 1, columns), dummy_page, dtype=torch.int32, device=device)
    return RowState(
        fields=fields,
        table=table,
        stacks=torch.zeros(rows + 1, MOST_NESTED, dtype=torch.int32, device=device),
        seq_len=fields[SEQ_LEN.value],
        last=fields[LAST.value],
        temperature=fields[TEMPERATURE.value].view(torch.float32),
        top_p=fields[TOP_P.value].view(torch.float32),
        top_k=fields[TOP_K.value],
        min_p=fields[MIN_P.value].view(torch.float32),
        eos_from=fields[EOS_FROM.value],
        automaton=fields[AUTOMATON.value],
        state=fields[STATE.value],
        mask=fields[MASK.value],
    )


def batch_lists(tokens: int, rows: int, dummy: int, device: torch.device | str) -> BatchLists:
    """Lists of up to `tokens` tokens of up to `rows` rows, all padding."""
    of_tokens = torch.zeros(3, tokens, dtype=torch.int32, device=device)
    of_rows = torch.zeros(4, rows, dtype=torch.int32, device=device)
    of_tokens[0] = dummy
    of_rows[ROW.value] = dummy
    decoding = torch.zeros(1, dtype=torch.int32, device=device)
    return BatchLists(of_tokens, of_rows, decoding, of_tokens[0], of_rows[END.value])


def keeps_lists(before: Step, step: Step) -> bool:
    """Whether the lists of `before` are those of `step`: the same rows decode, and nothing else happens."""
    return (
        not before.lengths.size
        and not step.lengths.size
        and np.array_equal(before.rows, step.rows)
        and np.array_equal(before.sample, step.sample)
    )


def packed_words(opened: int, entries: int, copies: int, tokens: int, rows: int, masks: int = 0) -> int:
    """Words that `pack` needs for so many changes, lists padded to `tokens` and `rows`."""
    changes = (_OPENED.value + 1) * opened + 3 * (entries + copies) + 4 * masks
    return int(_HEADER.value + changes + 3 * tokens + 4 * rows)


def pack(step: Step, bucket: tuple[int, int] | None, dummy: int, buffer: I32, masks: I32 = NO_MASKS) -> Packed:
    """Write what `step` changes to the front of `buffer` (pinned memory, as numpy sees it).

    Args:
        bucket: tokens and rows that the lists are padded to; None where the device has the step's lists
            already (`keeps_lists`, and the same bucket).
        dummy: `RowState.dummy`.
        buffer: int32, one-dimensional, at least `packed_words` long.
        masks: int32 [M, 4] (row, state of its automaton or -1, row of the masks, states on its stack) from this
            step's sample on.
    """
    opened, entries = step.opened, _latest(step.pages)
    tokens, rows = bucket or (0, 0)
    count = opened.rows.size
    if count and len(masks):
        fresh = np.isin(masks[:, 0], opened.rows)
        begun, masks = masks[fresh], masks[~fresh]
    else:
        begun = NO_MASKS
    size = packed_words(count, len(entries), len(step.copies), tokens, rows, len(masks))
    if size == _HEADER.value:
        return Packed(buffer[:0], 0, 0, 0, 0, 0, 0, 0)
    assert size <= buffer.size, (size, buffer.size)
    words = buffer[:size]
    words[: _HEADER.value] = (
        count, len(entries), len(step.copies), tokens, rows, step.decoding, len(masks), 0,
    )  # fmt: skip
    at = _HEADER.value
    if count:
        fields = words[at : at + (_OPENED.value + 1) * count].reshape(-1, count)
        fields[0] = opened.rows
        fields[1 + SEQ_LEN.value] = opened.seq_len
        fields[1 + TEMPERATURE.value] = opened.temperature.view(np.int32)
        fields[1 + TOP_P.value] = opened.top_p.view(np.int32)
        fields[1 + TOP_K.value] = opened.top_k
        fields[1 + MIN_P.value] = opened.min_p.view(np.int32)
        fields[1 + SEED_LOW.value] = (opened.seeds & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.int32)
        fields[1 + SEED_HIGH.value] = (opened.seeds >> np.uint64(32)).astype(np.uint32).view(np.int32)
        fields[1 + EOS_FROM.value] = opened.eos_from
        held = bool(opened.automaton.size)
        fields[1 + AUTOMATON.value] = opened.automaton if held else -1
        fields[1 + STATE.value] = opened.state if held else -1
        fields[1 + MASK.value] = -1
        fields[1 + ADJUSTED.value : 1 + DEPTH.value + 1] = 0
        if opened.adjusted.size:
            fields[1 + ADJUSTED.value] = opened.adjusted
            fields[1 + FREQUENCY.value] = opened.frequency.view(np.int32)
            fields[1 + PRESENCE.value] = opened.presence.view(np.int32)
        for row, state, mask, depth in begun.tolist():  # a kernel writes in no order
            places = [1 + STATE.value, 1 + MASK.value, 1 + DEPTH.value]
            fields[places, np.flatnonzero(opened.rows == row)] = state, mask, depth
        at += fields.size
    words[at : at + entries.size] = entries.ravel()
    copies_at = at + entries.size
    at = copies_at + step.copies.size
    words[copies_at:at] = step.copies.ravel()
    words[at : at + masks.size] = masks.ravel()
    at += masks.size
    if bucket is not None:
        _pack_lists(step, words[at:], tokens, rows, dummy)
    return Packed(words, count, len(entries), len(step.copies), copies_at, tokens, rows, len(masks))


def _pack_lists(step: Step, words: I32, tokens: int, rows: int, dummy: int) -> None:
    of_tokens = words[: 3 * tokens].reshape(3, tokens)
    of_rows = words[3 * tokens :].reshape(4, rows)
    starts = step.starts
    total, count = int(starts[-1]), step.rows.size
    assert total <= tokens, (total, tokens)
    assert count <= rows, (count, rows)
    counts = starts[1:] - starts[:-1]
    of_tokens[0, :total] = np.repeat(step.rows, counts)
    of_tokens[0, total:] = dummy
    of_tokens[1, :total] = np.arange(total, dtype=np.int32) - np.repeat(starts[:-1], counts)
    for tree in step.trees:
        end, ids = starts[tree.row + 1], tree.depths.size
        new = min(ids, int(counts[tree.row]))
        before = np.arange(ids - new, ids, dtype=np.int32) - tree.depths[ids - new :]
        of_tokens[1, end - new : end] |= before << _OFFSET_BITS.value
    of_tokens[2, : step.decoding] = SAMPLED
    of_tokens[2, step.decoding : total] = step.ids
    of_tokens[1:, total:] = 0
    of_rows[ROW.value, :count] = step.rows
    of_rows[ROW.value, count:] = dummy
    of_rows[COUNT.value, :count] = counts
    of_rows[END.value, :count] = starts[1:] - 1
    of_rows[SAMPLES.value, :count] = step.sample
    of_rows[COUNT.value :, count:] = 0


def _latest(pages: I32) -> I32:
    """`pages` without the entries that a later one overwrites: a kernel writes in no order."""
    if len(pages) < 2:
        return pages
    places = (pages[::-1, 0].astype(np.int64) << 32) | pages[::-1, 1]
    first = np.unique(places, return_index=True)[1]
    return pages if first.size == len(pages) else pages[::-1][first]


@triton.jit
def _stage(
    packed, fields, table, tokens, rows, decoding, automata,
    capacity, table_stride, token_stride, row_stride, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    opened = tl.load(packed)
    entries = tl.load(packed + 1)
    copies = tl.load(packed + 2)
    token_count = tl.load(packed + 3)
    row_count = tl.load(packed + 4)
    mask_count = tl.load(packed + 6)
    begin = packed + _HEADER
    live = at < opened
    row = tl.load(begin + at, mask=live, other=0)
    for field in tl.static_range(_OPENED):
        value = tl.load(begin + (field + 1) * opened + at, mask=live, other=0)
        tl.store(fields + field * capacity + row, value, mask=live)
    automaton = tl.load(begin + (AUTOMATON + 1) * opened + at, mask=live, other=-1)
    held = live & (automaton >= 0)
    state = tl.load(begin + (STATE + 1) * opened + at, mask=held, other=0)
    held &= tl.load(automata + automaton + STACK_AT, mask=held, other=1) == 0
    tl.store(fields + MASK * capacity + row, mask_at(automata, automaton, state, held), mask=held)
    begin += (_OPENED + 1) * opened
    live = at < entries
    row = tl.load(begin + 3 * at, mask=live, other=0).to(tl.int64)
    index = tl.load(begin + 3 * at + 1, mask=live, other=0)
    page = tl.load(begin + 3 * at + 2, mask=live, other=0)
    tl.store(table + row * table_stride + index, page, mask=live)
    begin += 3 * (entries + copies)
    live = at < mask_count
    row = tl.load(begin + 4 * at, mask=live, other=0)
    tl.store(fields + STATE * capacity + row, tl.load(begin + 4 * at + 1, mask=live, other=0), mask=live)
    tl.store(fields + MASK * capacity + row, tl.load(begin + 4 * at + 2, mask=live, other=0), mask=live)
    tl.store(fields + DEPTH * capacity + row, tl.load(begin + 4 * at + 3, mask=live, other=0), mask=live)
    begin += 4 * mask_count
    live = at < token_count
    for field in tl.static_range(3):
        value = tl.load(begin + field * token_count + at, mask=live, other=0)
        tl.store(tokens + field * token_stride + at, value, mask=live)
    begin += 3 * token_count
    live = at < row_count
    for field in tl.static_range(4):
        value = tl.load(begin + field * row_count + at, mask=live, other=0)
        tl.store(rows + field * row_stride + at, value, mask=live)
    tl.store(decoding, tl.load(packed + 5), mask=(tl.program_id(0) == 0) & (token_count > 0))


def stage(words: Tensor, packed: Packed, state: RowState, lists: BatchLists, automata: Tensor) -> None:
    """Apply a step's changes; `words` int32 [N] on the device is the copy of `packed.words`.

    `automata` int32 are the tables of all automata, see `kernels.automata`.
    """
    most = max(packed.opened, packed.entries, packed.tokens, packed.rows, packed.masks)
    if not most:
        return
    assert packed.tokens <= lists.tokens.shape[1], packed.tokens
    assert packed.rows <= lists.rows.shape[1], packed.rows
    _stage[(triton.cdiv(most, _BLOCK),)](
        words, state.fields, state.table, lists.tokens, lists.rows, lists.decoding, automata,
        state.fields.shape[1], state.table.shape[1], lists.tokens.shape[1], lists.rows.shape[1],
        BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip


@triton.jit(do_not_specialize=["count"])
def _prepare(
    tokens, fields, table, ids, positions, slots, places, count,
    token_stride, capacity, table_stride, PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = at < count
    row = tl.load(tokens + at, mask=live, other=0)
    offset = tl.load(tokens + token_stride + at, mask=live, other=0)
    given = tl.load(tokens + 2 * token_stride + at, mask=live, other=0)
    last = tl.load(fields + LAST * capacity + row, mask=live & (given < 0), other=0)
    before = offset >> _OFFSET_BITS
    offset -= before << _OFFSET_BITS
    place = tl.load(fields + SEQ_LEN * capacity + row, mask=live, other=0) + offset
    page = tl.load(table + row.to(tl.int64) * table_stride + place // PAGE, mask=live, other=0)
    tl.store(ids + at, tl.where(given < 0, last, given), mask=live)
    tl.store(positions + at, place - before, mask=live)
    tl.store(slots + at, page * PAGE + place % PAGE, mask=live)
    tl.store(places + at, place, mask=live)


def prepare(lists: BatchLists, state: RowState, page_size: int, tokens: int, out: Tensor) -> None:
    """Ids, positions, KV slots and places of the first `tokens` tokens of the lists, into `out` int32 [4, T].

    A token's place is how many are before it in its row, which is its position but in a row that branches.
    Padding gets id, position and place 0 and the first slot of the dummy page.
    """
    ids, positions, slots, places = out
    _prepare[(triton.cdiv(tokens, _BLOCK),)](
        lists.tokens, state.fields, state.table, ids, positions, slots, places, tokens,
        lists.tokens.shape[1], state.fields.shape[1], state.table.shape[1],
        PAGE=page_size, BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip


@triton.jit
def finish_rows(at, live, token, logprob, rows, row_stride, fields, capacity, ids, logprobs):
    """End the step for the rows `at` of the batch: they grow, keep what they sampled, and report it."""
    row = tl.load(rows + ROW * row_stride + at, mask=live, other=0)
    count = tl.load(rows + COUNT * row_stride + at, mask=live, other=0)
    samples = live & (tl.load(rows + SAMPLES * row_stride + at, mask=live, other=0) != 0)
    grows = live & (count > 0)  # the dummy does not
    length = tl.load(fields + SEQ_LEN * capacity + row, mask=grows, other=0)
    tl.store(fields + SEQ_LEN * capacity + row, length + count, mask=grows)
    tl.store(fields + LAST * capacity + row, token, mask=samples)
    tl.store(ids + at, tl.where(samples, token, -1), mask=live)
    tl.store(logprobs + at, tl.where(samples, logprob, 0.0), mask=live)
