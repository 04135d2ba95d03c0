"""Rows on the device do what `ExecutorState` does, step after step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from sglc.runtime.executor.executor_state import ExecutorState
from sglc.runtime.kernels.rows import (
    BatchLists,
    Packed,
    RowState,
    batch_lists,
    finish_rows,
    keeps_lists,
    pack,
    packed_words,
    prepare,
    row_state,
    stage,
)
from sglc.runtime.step import SAMPLED, Opened, Step, TokenTree

pytestmark = pytest.mark.kernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, COLUMNS, PAGE, DUMMY_PAGE = 600, 20, 4, 9999
TOKENS_MOST, ROWS_MOST = 1024, 512
POISON = -77


@triton.jit(do_not_specialize=["count"])
def _finish(
    tokens, token_logprobs, rows, fields, ids, logprobs, count,
    row_stride, capacity, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = at < count
    token = tl.load(tokens + at, mask=live, other=0).to(tl.int32)
    logprob = tl.load(token_logprobs + at, mask=live, other=0.0)
    finish_rows(at, live, token, logprob, rows, row_stride, fields, capacity, ids, logprobs)


def finish(
    tokens: Tensor, token_logprobs: Tensor, lists: BatchLists, state: RowState, ids: Tensor, logprobs: Tensor
) -> None:
    """End a step whose samples are these; `ids` and `logprobs` get them as a step gives them."""
    if count := len(ids):
        _finish[(triton.cdiv(count, 256),)](
            tokens, token_logprobs, lists.rows, state.fields, ids, logprobs, count,
            lists.rows.shape[1], state.fields.shape[1], BLOCK=256, num_warps=4,
        )  # fmt: skip


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def opened(rows: np.ndarray, seq_len: np.ndarray, rng: np.random.Generator) -> Opened:
    count = len(rows)
    return Opened(
        rows=rows,
        seq_len=seq_len,
        temperature=rng.random(count, np.float32),
        top_p=rng.random(count, np.float32),
        top_k=rng.integers(-1, 50, count, np.int32),
        min_p=rng.random(count, np.float32),
        seeds=rng.integers(0, 2**64 - 1, count, np.uint64, endpoint=True),
        eos_from=rng.integers(0, 100, count, np.int32),
    )


def entries(row: int, first: int, pages: list[int]) -> np.ndarray:
    return np.array([(row, first + k, page) for k, page in enumerate(pages)], np.int32).reshape(-1, 3)


class Device:
    """The device's side of a run of steps, as an executor does it."""

    def __init__(self) -> None:
        self.state: RowState = row_state(ROWS, COLUMNS, DUMMY_PAGE, DEVICE)
        self.lists: BatchLists = batch_lists(TOKENS_MOST, ROWS_MOST, self.state.dummy, DEVICE)
        self.buffer = np.full(60_000, POISON, np.int32)
        self.before: Step | None = None

    def take(self, step: Step, bucket: tuple[int, int]) -> Packed:
        kept = self.before is not None and keeps_lists(self.before, step)
        packed = pack(step, None if kept else bucket, self.state.dummy, self.buffer)
        none = torch.zeros(1, dtype=torch.int32, device=DEVICE)
        stage(torch.from_numpy(packed.words.copy()).to(DEVICE), packed, self.state, self.lists, none)
        self.before = step
        return packed

    def prepared(self, tokens: int) -> Tensor:
        out = torch.full((4, tokens + 3), POISON, dtype=torch.int32, device=DEVICE)
        prepare(self.lists, self.state, PAGE, tokens, out)
        assert (out[:, tokens:] == POISON).all()
        return out[:, :tokens].cpu()

    def finished(self, rows: int, samples: np.ndarray) -> tuple[Tensor, Tensor]:
        tokens = torch.full((rows,), POISON, dtype=torch.int64, device=DEVICE)
        tokens[: len(samples)] = torch.from_numpy(samples.astype(np.int64)).to(DEVICE)
        ids = torch.full((rows,), POISON, dtype=torch.int32, device=DEVICE)
        logprobs = torch.full((rows,), float("nan"), device=DEVICE)
        finish(tokens, -tokens.float(), self.lists, self.state, ids, logprobs)
        return ids.cpu(), logprobs.cpu()


def check(
    device: Device, mirror: ExecutorState, step: Step, bucket: tuple[int, int], last: np.ndarray
) -> Packed:
    """Run `step` on both; `last` [ROWS] is what each row sampled last, brought up to date."""
    packed = device.take(step, bucket)
    batch = mirror.expand(step)
    total, count = len(batch.tokens), len(step.rows)
    ids, positions, slots, places = device.prepared(bucket[0])
    owner = np.repeat(batch.rows, np.diff(batch.starts))
    assert ids[:total].tolist() == np.where(batch.tokens == SAMPLED, last[owner], batch.tokens).tolist()
    assert positions[:total].tolist() == batch.positions.tolist()
    assert slots[:total].tolist() == batch.slots.tolist()
    ends = zip(np.diff(batch.starts).tolist(), mirror.seq_len[step.rows].tolist(), strict=True)
    assert places[:total].tolist() == [place for count, end in ends for place in range(end - count, end)]
    for padding in (ids, positions, places):
        assert padding[total:].tolist() == [0] * (bucket[0] - total)
    assert slots[total:].tolist() == [DUMMY_PAGE * PAGE] * (bucket[0] - total)
    assert device.lists.decoding.item() == step.decoding
    assert device.lists.ends[:count].tolist() == (batch.starts[1:] - 1).tolist()
    state = device.state
    for name in ("temperature", "top_p", "top_k", "min_p", "eos_from"):
        kept = getattr(state, name).cpu().numpy()
        assert (
            kept[: len(getattr(mirror, name))][step.rows].tolist() == getattr(mirror, name)[step.rows].tolist()
        )
    halves = state.fields[5:7].cpu().numpy().T.copy().view(np.uint64)[:, 0]
    assert halves[step.rows].tolist() == batch.seeds.tolist()

    samples = (step.index * 1000 + np.arange(count)).astype(np.int32)
    out_ids, logprobs = device.finished(bucket[1], samples)
    wanted = np.where(step.sample, samples, -1)
    assert out_ids[:count].tolist() == wanted.tolist()
    assert logprobs[:count].tolist() == np.where(step.sample, -samples, 0).tolist()
    assert out_ids[count:].tolist() == [-1] * (bucket[1] - count)
    last[step.rows[step.sample]] = samples[step.sample]
    assert state.last[:ROWS].tolist() == last.tolist()
    assert state.seq_len[step.rows.astype(np.int64)].tolist() == mirror.seq_len[step.rows].tolist()
    assert state.seq_len[state.dummy].item() == 0
    assert (state.table[state.dummy] == DUMMY_PAGE).all()
    return packed


def test_prefill_then_decode_over_page_boundaries() -> None:
    rng = np.random.default_rng(0)
    device, mirror, last = Device(), ExecutorState(PAGE), np.zeros(ROWS, np.int32)
    rows = ints(5, 2, 599)
    first = Step(
        index=0,
        rows=rows,
        decoding=0,
        sample=np.array([True, False, True]),
        lengths=ints(PAGE - 1, PAGE, PAGE + 1),
        ids=rng.integers(0, 100, 3 * PAGE, np.int32),
        opened=opened(rows, ints(0, 3, 2 * PAGE), rng),
        pages=np.concatenate(
            (entries(5, 0, [11]), entries(2, 0, [7, 8]), entries(599, 0, [1, 2, 3, 4])), dtype=np.int32
        ),
    )
    check(device, mirror, first, (16, 8), last)
    mixed = Step(
        index=1,
        rows=ints(5, 599, 2),
        decoding=2,
        sample=np.ones(3, np.bool_),
        lengths=ints(2),
        ids=ints(90, 91),
        pages=entries(2, 2, [31]),
    )
    check(device, mirror, mixed, (8, 4), last)
    for index in range(2, 9):
        due = [
            entries(row, position // PAGE, [40 + 3 * index + row % 3])
            for row, position in ((5, index + 2), (599, index + 12), (2, index + 7))
            if position % PAGE == 0
        ]
        step = Step(
            index=index,
            rows=ints(5, 599, 2),
            decoding=3,
            sample=np.ones(3, np.bool_),
            pages=np.concatenate([*due, np.empty((0, 3), np.int32)]),
        )
        packed = check(device, mirror, step, (4, 4), last)
        assert packed.tokens == (4 if index == 2 else 0)
        assert packed.entries == len(due)
        assert bool(packed.words.size) == (index == 2 or bool(due))


def test_a_reopened_row_forgets_and_the_latest_entry_counts() -> None:
    rng = np.random.default_rng(1)
    device, mirror, last = Device(), ExecutorState(PAGE), np.zeros(ROWS, np.int32)
    for index, pages in enumerate(([1, 2, 3], [4, 5, 6])):
        row = ints(7)
        step = Step(
            index=index,
            rows=row,
            decoding=0,
            sample=np.ones(1, np.bool_),
            lengths=ints(2 * PAGE + 1),
            ids=rng.integers(0, 9, 2 * PAGE + 1, np.int32),
            opened=opened(row, ints(0), rng),
            pages=np.concatenate(
                (entries(7, 0, [99, 98]), entries(7, 0, pages), entries(7, 2, [97]), entries(7, 2, pages[2:]))
            ),
        )
        packed = check(device, mirror, step, (16, 1), last)
        assert packed.entries == 3


def test_random_steps() -> None:
    """More rows, tokens and entries than one program takes; rows end and begin again."""
    rng = np.random.default_rng(2)
    device, mirror, last = Device(), ExecutorState(PAGE), np.zeros(ROWS, np.int32)
    fresh_page = branched = 0
    live: list[int] = []
    lengths = np.zeros(ROWS, np.int64)
    for index in range(8):
        live = [row for row in live if rng.random() > 0.1 and lengths[row] + 6 < COLUMNS * PAGE]
        idle = rng.permutation(np.setdiff1d(np.arange(ROWS), live)).astype(np.int32)
        new = idle[: int(rng.integers(0, min(300, ROWS_MOST - len(live))))] if index % 3 != 2 else idle[:0]
        begin = rng.integers(0, 2 * PAGE, len(new)).astype(np.int32)
        counts = rng.integers(1, 4, len(new)).astype(np.int32)
        lengths[new] = 0
        needed = np.concatenate((lengths[live] + 1, begin + counts)).astype(np.int64)
        rows = np.concatenate((np.array(live, np.int32), new))
        held = np.concatenate((-(-lengths[live] // PAGE), np.zeros(len(new), np.int64))).astype(np.int64)
        pages = []
        for row, have, need in zip(rows.tolist(), held.tolist(), (-(-needed // PAGE)).tolist(), strict=True):
            pages.append(entries(row, have, list(range(fresh_page, fresh_page + need - have))))
            fresh_page += need - have
        # Of some rows the last ids branch, those of steps before among them.
        trees = []
        for at, (first, count) in enumerate(zip(begin.tolist(), counts.tolist(), strict=True), len(live)):
            if at % 3 == 0:
                ids = int(rng.integers(1, first + count + 1))
                depths = np.array([rng.integers(0, place + 1) for place in range(ids)], np.int32)
                trees.append(TokenTree(at, first + count - ids, depths, np.full(ids, ids, np.int32)))
        step = Step(
            index=index,
            rows=rows,
            decoding=len(live),
            trees=tuple(trees),
            sample=np.concatenate((np.ones(len(live), np.bool_), rng.random(len(new)) < 0.7)),
            lengths=counts,
            ids=rng.integers(0, 1000, int(counts.sum()), np.int32),
            opened=opened(new, begin, rng),
            copies=rng.integers(0, 9, (index % 3, 3), np.int32),
            pages=np.concatenate([*pages, np.empty((0, 3), np.int32)]).astype(np.int32),
        )
        check(device, mirror, step, (TOKENS_MOST, ROWS_MOST), last)
        lengths[rows] = needed
        live = [*live, *new[step.sample[len(live) :]].tolist()]
        branched += len(trees)
    assert fresh_page > 500
    assert branched > 100


def test_a_step_without_changes_packs_nothing() -> None:
    step = Step(index=3, rows=ints(4, 1), decoding=2, sample=np.ones(2, np.bool_))
    buffer = np.full(64, POISON, np.int32)
    packed = pack(step, None, ROWS, buffer)
    assert packed.words.size == 0
    assert (buffer == POISON).all()


def test_pack_fills_exactly_the_words_it_counts() -> None:
    rng = np.random.default_rng(3)
    step = Step(
        index=0,
        rows=ints(4, 1),
        decoding=1,
        sample=np.ones(2, np.bool_),
        lengths=ints(2),
        ids=ints(8, 9),
        opened=opened(ints(1), ints(0), rng),
        pages=entries(1, 0, [3]),
        copies=ints(5, 6, 2, 7, 8, 1).reshape(2, 3),
    )
    buffer = np.full(200, POISON, np.int32)
    packed = pack(step, (4, 3), ROWS, buffer)
    assert packed.words.size == packed_words(1, 1, 2, 4, 3)
    assert packed.words.base is buffer
    assert (buffer[packed.words.size :] == POISON).all()
    assert (packed.words != POISON).all()
    copies = packed.words[packed.copies_at : packed.copies_at + 3 * packed.copies]
    assert copies.tolist() == [5, 6, 2, 7, 8, 1]
    with pytest.raises(AssertionError):
        pack(step, (4, 3), ROWS, buffer[: packed.words.size - 1])
    with pytest.raises(AssertionError):
        pack(step, (2, 3), ROWS, buffer)


def test_lists_are_kept_only_by_the_same_decode() -> None:
    step = Step(index=3, rows=ints(4, 1), decoding=2, sample=np.ones(2, np.bool_))
    assert keeps_lists(step, replace(step, index=4))
    assert not keeps_lists(step, replace(step, rows=ints(1, 4)))
    assert not keeps_lists(step, replace(step, rows=ints(4), decoding=1, sample=np.ones(1, np.bool_)))
    assert not keeps_lists(step, replace(step, sample=np.array([True, False])))
    chunk = replace(step, decoding=1, lengths=ints(1), ids=ints(5))
    assert not keeps_lists(step, chunk)
    assert not keeps_lists(chunk, step)
    assert not keeps_lists(chunk, replace(chunk, index=4))


def test_finish_of_no_rows() -> None:
    device = Device()
    empty = torch.empty(0, dtype=torch.int32, device=DEVICE)
    before = device.state.fields.clone()
    finish(empty, empty.float(), device.lists, device.state, empty, empty.float())
    assert torch.equal(device.state.fields, before)
