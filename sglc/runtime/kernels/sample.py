"""Sampling: a race over the vocabulary, what filters keep, its outcome.

The meaning is `sampler.drawn`'s: an exponential race. `_race` reads the logits once, several programs to a
row. Rows of which filters do not keep who won have another race behind that, among what they keep. A row that
does not sample costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sglc.runtime.kernels.automata import STACK_AT, AutomataTables, mask_at, state_behind
from sglc.runtime.kernels.pushdown_masks import pushdown_masks, stack_behind
from sglc.runtime.kernels.race import LOG2E, LOWEST, part_length, race_part, race_winner, row_field
from sglc.runtime.kernels.rows import (
    ADJUSTED,
    AUTOMATON,
    DEPTH,
    FREQUENCY,
    MASK,
    PRESENCE,
    ROW,
    SAMPLES,
    STATE,
    TEMPERATURE,
    BatchLists,
    RowState,
    finish_rows,
)
from sglc.runtime.kernels.sample_filter import FilterScratch, filter_rows, filter_scratch
from sglc.runtime.kernels.winners import (
    LISTS,
    WinnerScratch,
    check_winners,
    listed_count,
    listed_row,
    row_filters,
    winner_scratch,
)
from sglc.runtime.step import Filters

_MOST_PARTS = 128  # of a row
_FILTERED_PARTS = 32  # of a row with filters, at least
# Which rows race: all, those without top_k, or those that filters have left less.
_ALL, _WHOLE, _FILTERED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@dataclass(frozen=True, slots=True)
class RaceShape:
    """How a race runs: so many programs at once, as many as their registers let 132 multiprocessors hold, each
    of so many warps, which look at a block of tokens at a time."""

    programs: int
    block: int
    warps: int
    registers: int


_FEW_ROWS = 8
_RACE_OF_FEW = RaceShape(programs=792, block=2048, warps=4, registers=80)
_RACE_OF_MANY = RaceShape(programs=2112, block=512, warps=1, registers=128)  # which nothing waits for others in


@dataclass(frozen=True, slots=True)
class SampleScratch:
    """Partial results of races, values float32 [4, N] and ids int32 [N]; and what filters need."""

    values: Tensor
    ids: Tensor
    known: WinnerScratch
    filters: FilterScratch


@dataclass(frozen=True, slots=True)
class Adjustments:
    """What is added to the logits of rows that have biases or penalties: added float32 [rows, V]; and which
    tokens such a row has sampled, bits int32 [rows, ceil(V / 32)].

    Before that, logits of the tokens of prompt and text are made less by `repetition` float32 [rows], 0 for
    nothing. `repeated` are their bits int32 [rows, W], the last word first: both stand before `added` in
    memory, so that kernels find them from there.
    """

    added: Tensor
    seen: Tensor
    repetition: Tensor
    repeated: Tensor


def adjustments(rows: int, vocab: int, device: torch.device | str) -> Adjustments:
    """Room for rows up to number `rows` - 1."""
    words = triton.cdiv(vocab, 32)
    before = triton.cdiv(words + 1, 32) * 32  # `added` begins where a load of many can
    room = torch.zeros(rows, before + vocab, dtype=torch.float32, device=device)
    return Adjustments(
        room[:, before:],
        torch.zeros(rows, words, dtype=torch.int32, device=device),
        room[:, before - 1],
        room.view(torch.int32)[:, before - 1 - words : before - 1],
    )


def sample_scratch(rows: int, device: torch.device | str) -> SampleScratch:
    """Scratch for batches of up to `rows` rows."""
    parts = max(_RACE_OF_MANY.programs, rows * _FILTERED_PARTS)
    return SampleScratch(
        torch.empty(4, parts, dtype=torch.float32, device=device),
        torch.empty(parts, dtype=torch.int32, device=device),
        winner_scratch(rows, device),
        filter_scratch(rows, device),
    )


@triton.jit
def _race(
    logits, rows, fields, eos, masks, adjust, listed, most, lowest, values, winners,
    vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride, parts, chunk, splits,
    BLOCK: tl.constexpr, RACING: tl.constexpr,
):  # fmt: skip
    """values: of a part of a row the largest logit, the sum of exp(logit - it), the largest that may be
    sampled, and the winner's noise / weight, relative to that one.

    _FILTERED rows race among the tokens that are left. Where they race apart, all but those with top_k have
    done so before, among all their tokens, or those of them that min_p may keep. Then none is listed yet.
    """
    if RACING == _FILTERED:
        for item in range(tl.program_id(0), listed_count(listed) * splits, tl.num_programs(0)):
            filtered = listed_row(listed, most, item // splits)
            floor = tl.maximum(tl.load(lowest + filtered), LOWEST)
            race_part(
                logits, rows, fields, eos, masks, adjust, values, winners,
                vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride, parts, chunk,
                splits, filtered, item % splits, floor, float("-inf"), BLOCK,
            )  # fmt: skip
    else:
        r, number = tl.program_id(0) // splits, tl.program_id(0) % splits
        races = tl.load(rows + SAMPLES * row_stride + r) != 0
        below = float("-inf")
        if RACING == _WHOLE:
            if tl.program_id(0) == 0:
                tl.store(listed + tl.arange(0, LISTS), 0)
            _, _, _, below, by_k, _, _ = row_filters(
                fields, capacity, tl.load(rows + ROW * row_stride + r), vocab
            )
            races = races & (not by_k)
        if races:
            race_part(
                logits, rows, fields, eos, masks, adjust, values, winners,
                vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride, parts, chunk,
                splits, r, number, tl.full([], LOWEST, tl.float32), below, BLOCK,
            )  # fmt: skip


@triton.jit(do_not_specialize=["splits"])
def _decide(
    logits, rows, fields, stacks, values, winners, automata, follow, begins, spelled, adjust, seen,
    ids, logprobs, follows, vocab, logits_stride, row_stride, capacity, stack_stride, adjust_stride,
    seen_stride, parts, splits, SPLITS: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0)
    token = 0
    logprob = 0.0
    left = 2
    if tl.load(rows + SAMPLES * row_stride + r) != 0:
        row = tl.load(rows + ROW * row_stride + r)
        temperature = row_field(fields, capacity, row, TEMPERATURE).to(tl.float32, bitcast=True)
        token, _, part, live = race_winner(values, winners, r, parts, splits, temperature, vocab, SPLITS)
        tops = tl.load(values + part, mask=live, other=LOWEST)
        totals = tl.load(values + parts + part, mask=live, other=0.0)
        top = tl.max(tops, 0)
        total = tl.sum(totals * tl.exp2((tops - top) * LOG2E), 0)
        logit = tl.load(logits + r.to(tl.int64) * logits_stride + token).to(tl.float32)
        logprob = logit - top - tl.log(total)
        automaton = row_field(fields, capacity, row, AUTOMATON)
        if automaton >= 0:
            state = row_field(fields, capacity, row, STATE)
            own = automata + automaton
            if tl.load(own + STACK_AT) == 0:
                state = state_behind(automata, automaton, state, token, begins, spelled)
                mask = mask_at(automata, automaton, state, state >= 0)
                tl.store(fields + MASK * capacity + row, mask)
                left = tl.load(follow + mask)
            else:  # its mask is made, and what may follow counted, behind this
                depth = row_field(fields, capacity, row, DEPTH)
                stack = stacks + row.to(tl.int64) * stack_stride
                state, depth = stack_behind(own, stack, depth, state, token, begins, spelled)
                tl.store(fields + DEPTH * capacity + row, depth)
                left = 0
            tl.store(fields + STATE * capacity + row, state)
        if row_field(fields, capacity, row, ADJUSTED) != 0:
            word = seen + row.to(tl.int64) * seen_stride + token // 32
            words = tl.load(word)
            again = (words >> (token % 32)) & 1
            less = row_field(fields, capacity, row, FREQUENCY).to(tl.float32, bitcast=True)
            if again == 0:
                less += row_field(fields, capacity, row, PRESENCE).to(tl.float32, bitcast=True)
            tl.store(word, words | (1 << (token % 32)))
            adjust += row.to(tl.int64) * adjust_stride
            tl.store(adjust + token, tl.load(adjust + token) - less)
            word = adjust - 2 - token // 32
            words = tl.load(word).to(tl.int32, bitcast=True) | (1 << (token % 32))
            tl.store(word, words.to(tl.float32, bitcast=True))
    tl.store(follows + r, left)
    finish_rows(r, r >= 0, token, logprob, rows, row_stride, fields, capacity, ids, logprobs)


def race_shape(rows: int) -> RaceShape:
    """How `rows` rows race."""
    return _RACE_OF_FEW if rows <= _FEW_ROWS else _RACE_OF_MANY


def race_parts(rows: int, vocab: int, *, filters: bool = False) -> tuple[int, int]:
    """Into how many parts each of `rows` rows is cut, and their length in tokens, a multiple of the block.

    Of rows with `filters` few may race a second time, which all multiprocessors are to have work with.
    """
    shape = race_shape(rows)
    least = _FILTERED_PARTS if filters else 1
    wanted = min(max(shape.programs // rows, least), triton.cdiv(vocab, shape.block), _MOST_PARTS)
    chunk = part_length(vocab, wanted, shape.block)
    return triton.cdiv(vocab, chunk), chunk


def sample(
    logits: Tensor,
    lists: BatchLists,
    state: RowState,
    eos_ids: Tensor,
    scratch: SampleScratch,
    automata: AutomataTables,
    adjustments: Adjustments,
    ids: Tensor,
    logprobs: Tensor,
    follows: Tensor,
    *,
    filters: Filters = Filters.ALL,
    first_own: int | None = None,
) -> None:
    """Choose a token for each row of the lists that samples, and end the step (`rows.finish`).

    Args:
        logits: [R, V] of bfloat16, float16 or float32, a row contiguous: of the first R rows of the lists.
        eos_ids: int32 [E], what a row may not sample before its `eos_from`.
        ids, logprobs: int32 and float32 [R], get the chosen tokens and the natural logarithm of their
            probability in the model's own distribution; -1 and 0 where a row does not sample.
        filters: which of them a row may have.
        first_own: where the rows' own masks begin, if a row may follow an automaton with a stack.
        follows: int32 [R], gets how many ids a row's automaton lets follow, up to 2; 2 without one.
    """
    rows, vocab = logits.shape
    if not rows:
        return
    assert logits.stride(1) == 1, logits.stride()
    assert len(ids) == len(logprobs) == rows, (len(ids), len(logprobs), rows)
    masks, adjust, seen = automata.masks, adjustments.added, adjustments.seen
    read = (logits, lists.rows, state.fields, eos_ids, masks, adjust)
    row_stride, capacity = lists.rows.shape[1], state.fields.shape[1]
    sizes = (vocab, logits.stride(0), row_stride, capacity, len(eos_ids), masks.stride(0), adjust.stride(0))
    splits, chunk = race_parts(rows, vocab, filters=bool(filters))
    shape, known = race_shape(rows), scratch.known

    def race(racing: tl.constexpr) -> None:
        programs = min(rows * splits, shape.programs) if racing is _FILTERED else rows * splits
        _race[(programs,)](
            *read, known.listed, len(known.lowest), known.lowest, scratch.values, scratch.ids, *sizes,
            scratch.ids.shape[0], chunk, splits, BLOCK=shape.block, RACING=racing.value,
            num_warps=shape.warps, maxnreg=shape.registers,
        )  # fmt: skip

    if filters:
        race(_WHOLE)
        check_winners(*read, scratch.values, scratch.ids, splits, _MOST_PARTS, chunk, known, filters)
        filter_rows(*read, known, scratch.filters, filters)
        race(_FILTERED)
    else:
        race(_ALL)
    _decide[(rows,)](
        logits, lists.rows, state.fields, state.stacks, scratch.values, scratch.ids, automata.words,
        automata.follow, automata.begins, automata.spelled, adjust, seen, ids, logprobs, follows,
        vocab, logits.stride(0), row_stride, capacity, state.stacks.stride(0), adjust.stride(0), seen.stride(0),
        scratch.ids.shape[0], splits, SPLITS=_MOST_PARTS, num_warps=1,
    )  # fmt: skip
    if first_own is not None:
        pushdown_masks(lists, state, automata, first_own, eos_ids, vocab, follows)
