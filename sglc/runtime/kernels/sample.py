"""Sampling: the lowest logit that filters keep, a race over the vocabulary, its outcome.

The meaning is `sampler.choose`'s: an exponential race whose noise is a hash of (seed, position, token).
Both compute in float32, the race here as noise / weight with weights relative to the best token seen so
far; so they choose the same token up to rounding, that is unless the two best of a race are equal to
about 1e-6.

`_race` reads the logits once, several programs to a row. What filters do returns at once for rows without
top_k, top_p and min_p, so one CUDA graph serves all; rows that they leave less than all have a race behind
them. A row that does not sample costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sglc.runtime.kernels.automata import STACK_AT, AutomataTables, mask_at, state_behind
from sglc.runtime.kernels.pushdown_masks import pushdown_masks, stack_behind
from sglc.runtime.kernels.rows import (
    ADJUSTED,
    AUTOMATON,
    DEPTH,
    FREQUENCY,
    MASK,
    PRESENCE,
    ROW,
    SAMPLES,
    SEED_HIGH,
    SEED_LOW,
    STATE,
    TEMPERATURE,
    BatchLists,
    RowState,
    finish_rows,
)
from sglc.runtime.kernels.sample_filter import (
    LOG2E,
    LOWEST,
    FilterScratch,
    filter_rows,
    filter_scratch,
    listed_count,
    listed_row,
    load_tile,
    race_winner,
    row_ban,
    row_bounds,
    row_field,
    row_filters,
)

_PROGRAMS = 792  # of a race: 6 for each of 132 multiprocessors, as many as their registers hold
_REGISTERS = 80
_MOST_PARTS = 128  # of a row
_FILTERED_PARTS = 16  # of a row with filters, at least
_BLOCK = 2048  # tokens
# Which rows race: all, those without top_k, or those that filters have left less.
_ALL, _WHOLE, _FILTERED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@dataclass(frozen=True, slots=True)
class SampleScratch:
    """Partial results of races, values float32 [4, N] and ids int32 [N]; and what filters need."""

    values: Tensor
    ids: Tensor
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
    parts = max(_PROGRAMS, rows * _FILTERED_PARTS)
    return SampleScratch(
        torch.empty(4, parts, dtype=torch.float32, device=device),
        torch.empty(parts, dtype=torch.int32, device=device),
        filter_scratch(rows, device),
    )


@triton.jit
def _mix64(x):
    """The finaliser of splitmix64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _mix32(x):
    """The finaliser lowbias32."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _unit(ids, key_low, key_high):
    """Noise as uniform numbers above 0, float32: its exponentials are -log(1 - u)."""
    x = _mix32(ids.to(tl.uint32) * 0x9E3779B9 ^ key_low)
    x = _mix32(x ^ key_high)
    return ((x & 0x7FFFFFFF).to(tl.int32).to(tl.float32) + 0.5) * (2.0**-31)


@triton.jit
def _exponential(u):
    """-log(1 - u), which is never below u; small ones keep all their digits."""
    series = u * (1 / 11)
    for term in tl.static_range(10, 0, -1):
        series = u * (series + 1 / term)
    return tl.where(u < 0.25, series, -tl.log(tl.maximum(1 - u, 1e-30)))


@triton.jit
def _race(
    logits, rows, fields, eos, masks, adjust, listed, most, lowest, values, winners,
    vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride, parts, chunk, splits,
    BLOCK: tl.constexpr, RACING: tl.constexpr,
):  # fmt: skip
    """values: of a part of a row the largest logit, the sum of exp(logit - it), the largest that may be
    sampled, and the winner's noise / weight, relative to that one.

    _FILTERED rows race among the tokens that are left. Where they race apart, all but those with top_k have
    done so before, among all their tokens.
    """
    if RACING == _FILTERED:
        for item in range(tl.program_id(0), listed_count(listed) * splits, tl.num_programs(0)):
            filtered = listed_row(listed, most, item // splits)
            floor = tl.maximum(tl.load(lowest + filtered), LOWEST)
            _race_part(
                logits, rows, fields, eos, masks, adjust, values, winners,
                vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride, parts, chunk,
                splits, filtered, item % splits, floor, BLOCK,
            )  # fmt: skip
    else:
        r, number = tl.program_id(0) // splits, tl.program_id(0) % splits
        races = tl.load(rows + SAMPLES * row_stride + r) != 0
        if RACING == _WHOLE:
            filters = row_filters(fields, capacity, tl.load(rows + ROW * row_stride + r), vocab)
            races = races & (not filters[4])
        if races:
            _race_part(
                logits, rows, fields, eos, masks, adjust, values, winners,
                vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride, parts, chunk,
                splits, r, number, tl.full([], LOWEST, tl.float32), BLOCK,
            )  # fmt: skip


@triton.jit
def _race_part(
    logits, rows, fields, eos, masks, adjust, values, winners,
    vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride, parts, chunk,
    splits, r, number, floor, BLOCK: tl.constexpr,
):  # fmt: skip
    """Part `number` of row `r` races, as of `_race`, among logits from `floor` on."""
    part = r * splits + number
    row = tl.load(rows + ROW * row_stride + r)
    banned, position = row_ban(fields, capacity, rows, row_stride, r, row)
    temperature = row_field(fields, capacity, row, TEMPERATURE).to(tl.float32, bitcast=True)
    scale = LOG2E / tl.maximum(temperature, 1e-30)
    seed = row_field(fields, capacity, row, SEED_LOW).to(tl.uint32, bitcast=True).to(tl.uint64)
    seed += row_field(fields, capacity, row, SEED_HIGH).to(tl.uint32, bitcast=True).to(tl.uint64) << 32
    key = _mix64(seed + _mix64(position.to(tl.uint64) + 0x9E3779B97F4A7C15))
    key_low = key.to(tl.uint32)
    key_high = (key >> 32).to(tl.uint32)
    masked, masks, adjusted, adjust = row_bounds(
        fields, capacity, row, masks, mask_stride, adjust, adjust_stride
    )
    logits += r.to(tl.int64) * logits_stride

    begin = number * chunk
    end = tl.minimum(begin + chunk, vocab)
    top = tl.full([], LOWEST, tl.float32)
    # Sums stay apart until the end: added up inside a thread they cost no barrier.
    totals = tl.zeros([BLOCK // 8], tl.float32)
    ceiling = tl.full([], LOWEST, tl.float32)
    score = tl.full([], float("inf"), tl.float32)
    winner = begin
    for start in range(begin, end, BLOCK):
        x, allowed, barred = load_tile(
            logits, start, end, banned, eos, eos_count, masks, masked, adjust, adjusted, BLOCK
        )
        ids = start + tl.arange(0, BLOCK)
        peak = tl.max(x, 0)
        above = tl.maximum(top, peak)
        weights = tl.reshape(tl.exp2((x - above) * LOG2E), [BLOCK // 8, 8])
        totals = totals * tl.exp2((top - above) * LOG2E) + tl.sum(weights, 1)
        top = above
        if barred:
            peak = tl.max(allowed, 0)
        highest = tl.maximum(ceiling, peak)
        if temperature > 0:
            score *= tl.exp2((highest - ceiling) * scale)
            u = _unit(ids, key_low, key_high)
            handicap = tl.where(allowed >= floor, tl.exp2((highest - allowed) * scale), float("inf"))
            # The exponential is never below u, so few tiles can hold a better one, and only they cost more.
            if tl.min(u * handicap, 0) < score:
                scores = _exponential(u) * handicap
                least = tl.min(scores, 0)
                if least < score:
                    score = least
                    winner = tl.min(tl.where(scores == least, ids, vocab), 0)
        else:
            if highest > ceiling:
                winner = tl.min(tl.where(allowed == highest, ids, vocab), 0)
        ceiling = highest
    tl.store(values + part, top)
    tl.store(values + parts + part, tl.sum(totals, 0))
    tl.store(values + 2 * parts + part, ceiling)
    tl.store(values + 3 * parts + part, score)
    tl.store(winners + part, winner)


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


def race_parts(rows: int, vocab: int, *, filters: bool = False) -> tuple[int, int]:
    """Into how many parts each of `rows` rows is cut, and their length in tokens, a multiple of the block.

    Of rows with `filters` few may race a second time, which all multiprocessors are to have work with.
    """
    wanted = min(
        max(_PROGRAMS // rows, _FILTERED_PARTS if filters else 1), triton.cdiv(vocab, _BLOCK), _MOST_PARTS
    )
    chunk = triton.cdiv(triton.cdiv(vocab, wanted), _BLOCK) * _BLOCK
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
    filters: bool = True,
    first_own: int | None = None,
) -> None:
    """Choose a token for each row of the lists that samples, and end the step (`rows.finish`).

    Args:
        logits: [R, V] of bfloat16, float16 or float32, a row contiguous: of the first R rows of the lists.
        eos_ids: int32 [E], what a row may not sample before its `eos_from`.
        ids, logprobs: int32 and float32 [R], get the chosen tokens and the natural logarithm of their
            probability in the model's own distribution; -1 and 0 where a row does not sample.
        filters: whether a row may have top_k, top_p or min_p.
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
    splits, chunk = race_parts(rows, vocab, filters=filters)
    less = scratch.filters

    def race(racing: tl.constexpr) -> None:
        programs = min(rows * splits, _PROGRAMS) if racing is _FILTERED else rows * splits
        _race[(programs,)](
            *read, less.listed, len(less.lowest), less.lowest, scratch.values, scratch.ids, *sizes,
            scratch.ids.shape[0], chunk, splits, BLOCK=_BLOCK, RACING=racing.value, num_warps=4,
            maxnreg=_REGISTERS,
        )  # fmt: skip

    if filters:
        race(_WHOLE)
        filter_rows(*read, scratch.values, scratch.ids, splits, _MOST_PARTS, less)
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
