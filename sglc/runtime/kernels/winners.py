"""Whether filters keep the token that won the race among all tokens of a row, or else which of the next ones.

What wins among all tokens wins among the kept ones as well, if it is one of them. If it is not, the best of the
other parts' winners that is kept wins, unless a kept token of the first one's part comes before it: that part
races once more, among tokens above those that are known not to be kept. So few rows are left whose bound has to
be found (`sample_filter`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sglc.runtime.kernels.race import (
    LOG2E,
    LOWEST,
    allowed_of,
    load_tile,
    order_of,
    part_length,
    race_part,
    race_winner,
    row_at,
    row_field,
    value_of,
)
from sglc.runtime.kernels.rows import MIN_P, ROW, SAMPLES, TEMPERATURE, TOP_K, TOP_P
from sglc.runtime.step import Filters

# What rows are listed for: that they are left less by a filter, or that parts of them race again.
BY_P, BY_K, BY_MIN, AGAIN = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
LISTS = tl.constexpr(4)
_BEST = tl.constexpr(4)  # of the winners of a row's parts
_PARTS = tl.constexpr(8)  # that a row is summed up in
_TILE = tl.constexpr(1024)  # tokens
_AGAIN_BLOCK = 4096  # tokens of a part that races again, which one program does alone


@triton.jit
def row_filters(fields, capacity, row, vocab):
    """A row's temperature, top_k and top_p; how far below the largest logit min_p reaches, which is not above
    0, and -inf without it; whether top_k keeps less than all, or else top_p does; and whether any does."""
    temperature = row_field(fields, capacity, row, TEMPERATURE).to(tl.float32, bitcast=True)
    top_k = row_field(fields, capacity, row, TOP_K)
    top_p = row_field(fields, capacity, row, TOP_P).to(tl.float32, bitcast=True)
    min_p = row_field(fields, capacity, row, MIN_P).to(tl.float32, bitcast=True)
    by_k = (temperature > 0) & (top_k > 0) & (top_k < vocab)
    by_p = (temperature > 0) & (not by_k) & (top_p < 1)
    reach = tl.where(min_p > 0, tl.log(tl.where(min_p > 0, min_p, 1.0)) * temperature, float("-inf"))
    return temperature, top_k, top_p, reach, by_k, by_p, by_k | by_p | ((temperature > 0) & (min_p > 0))


@triton.jit
def listed_row(listed, most, at):
    """Of all rows that are left less than all, number `at`; -1 where there are not as many."""
    by_p, by_k, by_min = tl.load(listed + BY_P), tl.load(listed + BY_K), tl.load(listed + BY_MIN)
    kind = (at >= by_p).to(tl.int32) + (at >= by_p + by_k).to(tl.int32)
    at -= tl.where(kind > 0, by_p, 0) + tl.where(kind > 1, by_k, 0)
    return tl.load(listed + LISTS + kind * most + at, mask=(kind < 2) | (at < by_min), other=-1)


@triton.jit
def listed_count(listed):
    """How many rows are left less than all."""
    return tl.load(listed + BY_P) + tl.load(listed + BY_K) + tl.load(listed + BY_MIN)


@triton.jit
def listed_as(listed, most, KIND: tl.constexpr, at):
    """Row number `at` of those listed as KIND."""
    return tl.load(listed + LISTS + KIND * most + at)


@triton.jit
def _list(listed, most, KIND: tl.constexpr, r):
    """List row `r` as KIND."""
    tl.store(listed + LISTS + KIND * most + tl.atomic_add(listed + KIND, 1), r)


@triton.jit
def _candidates(
    logits, rows, fields, eos, masks, adjust, values, winners, ceilings, best, best_parts, listed, most, lowest,
    vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride, parts, splits,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """Rows with top_k are listed, and those with min_p alone that does not keep who won; lowest of these.

    Of rows with top_p and without top_k: ceilings float32 [R], their largest logits; best float32 and
    best_parts int32 [R, _BEST]: the first winners in the order of the race, their logits and parts; -1 where
    none is.
    """
    r = tl.program_id(0)
    if tl.load(rows + SAMPLES * row_stride + r) == 0:
        return
    row, logits, banned, masks, masked, adjust, adjusted = row_at(
        logits, rows, fields, masks, adjust, logits_stride, row_stride, capacity, mask_stride, adjust_stride, r
    )
    temperature, _, _, reach, by_k, by_p, some = row_filters(fields, capacity, row, vocab)
    if by_k:
        _list(listed, most, BY_K, r)
        return
    if not some:
        return
    at = tl.arange(0, SPLITS)
    live = at < splits
    part = r * splits + at
    peaks = tl.load(values + 2 * parts + part, mask=live, other=LOWEST)
    ceiling = tl.max(peaks, 0)
    scores = tl.load(values + 3 * parts + part, mask=live, other=float("inf"))
    scores *= tl.exp2((ceiling - peaks) * (LOG2E / tl.maximum(temperature, 1e-30)))
    tokens = tl.minimum(tl.load(winners + part, mask=live, other=0), vocab - 1)
    own = allowed_of(logits, tokens, live, banned, eos, eos_count, masks, masked, adjust, adjusted)
    if by_p:
        tl.store(ceilings + r, ceiling)
        for place in tl.static_range(_BEST):
            first = tl.min(scores, 0)
            which = tl.where(first < float("inf"), tl.min(tl.where(scores == first, at, SPLITS), 0), SPLITS)
            tl.store(best + r * _BEST + place, tl.max(tl.where(at == which, own, float("-inf")), 0))
            tl.store(best_parts + r * _BEST + place, tl.where(which < SPLITS, which, -1))
            scores = tl.where(at == which, float("inf"), scores)
    else:
        if tl.max(tl.where(scores == tl.min(scores, 0), own, float("-inf")), 0) < ceiling + reach:
            tl.store(lowest + r, ceiling + reach)
            _list(listed, most, BY_MIN, r)


@triton.jit
def _check(
    logits, rows, fields, eos, masks, adjust, ceilings, best, sums,
    vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride, chunk,
):  # fmt: skip
    """sums float64 [R, 1 + _BEST, _PARTS]: of each part of rows with top_p and without top_k the mass, then
    that above each of the best."""
    r, part = tl.program_id(0), tl.program_id(1)
    if tl.load(rows + SAMPLES * row_stride + r) == 0:
        return
    row, logits, banned, masks, masked, adjust, adjusted = row_at(
        logits, rows, fields, masks, adjust, logits_stride, row_stride, capacity, mask_stride, adjust_stride, r
    )
    filters = row_filters(fields, capacity, row, vocab)
    if not filters[5]:
        return
    scale = LOG2E / tl.maximum(filters[0], 1e-30)
    ceiling = tl.load(ceilings + r)
    best += r * _BEST
    best_1, best_2, best_3, best_4 = tl.load(best), tl.load(best + 1), tl.load(best + 2), tl.load(best + 3)
    none = tl.zeros([_TILE // 4], tl.float32)
    whole, above_1, above_2, above_3, above_4 = none, none, none, none, none
    end = tl.minimum(part * chunk + chunk, vocab)
    for start in range(part * chunk, end, _TILE):
        allowed = load_tile(logits, start, end, banned, eos, eos_count, masks, masked, adjust, adjusted, _TILE)[
            1
        ]
        # Read together, so that much is under way, and summed up one by one: sums take registers.
        even, odd = tl.split(tl.reshape(allowed, [_TILE // 2, 2]))
        first, third = tl.split(tl.reshape(even, [_TILE // 4, 2]))
        second, fourth = tl.split(tl.reshape(odd, [_TILE // 4, 2]))
        for at in tl.static_range(4):
            own = first if at == 0 else second if at == 1 else third if at == 2 else fourth
            weights = tl.exp2((own - ceiling) * scale)
            whole += weights
            above_1 = tl.where(own > best_1, above_1 + weights, above_1)
            above_2 = tl.where(own > best_2, above_2 + weights, above_2)
            above_3 = tl.where(own > best_3, above_3 + weights, above_3)
            above_4 = tl.where(own > best_4, above_4 + weights, above_4)
    sums += r * (1 + _BEST) * _PARTS + part
    tl.store(sums, tl.sum(whole.to(tl.float64), 0))
    tl.store(sums + _PARTS, tl.sum(above_1.to(tl.float64), 0))
    tl.store(sums + 2 * _PARTS, tl.sum(above_2.to(tl.float64), 0))
    tl.store(sums + 3 * _PARTS, tl.sum(above_3.to(tl.float64), 0))
    tl.store(sums + 4 * _PARTS, tl.sum(above_4.to(tl.float64), 0))


@triton.jit
def _tell(
    rows, fields, ceilings, best, best_parts, sums, listed, most, totals, between,
    vocab, row_stride, capacity,
):  # fmt: skip
    """Rows whose winner top_p does not keep are listed, for parts to race AGAIN where another of the best is
    kept; totals float64 [R], the mass of a row. between float32 [R, 2]: what is not above the first is not
    kept, what is not below the second is."""
    r = tl.program_id(0)
    if tl.load(rows + SAMPLES * row_stride + r) == 0:
        return
    row = tl.load(rows + ROW * row_stride + r)
    _, _, top_p, reach, _, by_p, _ = row_filters(fields, capacity, row, vocab)
    if not by_p:
        return
    at = tl.arange(0, _BEST)
    part = tl.arange(0, _PARTS)
    sums += r * (1 + _BEST) * _PARTS
    total = tl.sum(tl.load(sums + part), 0)
    above = tl.sum(tl.load(sums + (1 + at)[:, None] * _PARTS + part[None, :]), 1)
    logits = tl.load(best + r * _BEST + at)
    there = tl.load(best_parts + r * _BEST + at) >= 0
    kept = there & (above < total * top_p) & (logits >= tl.load(ceilings + r) + reach)
    first = tl.min(tl.where(kept, at, _BEST), 0)
    if first > 0:
        tl.store(totals + r, total)
        tl.store(between + 2 * r, tl.max(tl.where(there & (kept == 0), logits, float("-inf")), 0))
        tl.store(between + 2 * r + 1, tl.min(tl.where(kept, logits, float("inf")), 0))
        if first < _BEST:
            _list(listed, most, AGAIN, r)
        else:
            _list(listed, most, BY_P, r)


@triton.jit
def _again(
    logits, rows, fields, eos, masks, adjust, values, winners, best, best_parts, between, listed, most,
    vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride, parts, chunk, splits,
    SPLITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The parts of the best that are not kept race among what may be. Where the winner of the row is not surely
    kept then, the row is listed."""
    if tl.program_id(0) >= tl.load(listed + AGAIN):
        return
    r = listed_as(listed, most, AGAIN, tl.program_id(0))
    low, high = tl.load(between + 2 * r), tl.load(between + 2 * r + 1)
    floor = value_of(order_of(tl.where(low == 0, 0.0, low), 0) + 1, 0)  # the next float32 above
    for place in range(_BEST):
        part = tl.load(best_parts + r * _BEST + place)
        if (part >= 0) & (tl.load(best + r * _BEST + place) <= low):
            race_part(
                logits, rows, fields, eos, masks, adjust, values, winners,
                vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride, parts, chunk,
                splits, r, part, floor, float("-inf"), BLOCK,
            )  # fmt: skip
    tl.debug_barrier()  # other threads of this program read what those have left
    row, logits, banned, masks, masked, adjust, adjusted = row_at(
        logits, rows, fields, masks, adjust, logits_stride, row_stride, capacity, mask_stride, adjust_stride, r
    )
    temperature = row_field(fields, capacity, row, TEMPERATURE).to(tl.float32, bitcast=True)
    token = race_winner(values, winners, r, parts, splits, temperature, vocab, SPLITS)[0]
    won = allowed_of(
        logits, token + tl.arange(0, 1), tl.full([1], True, tl.int1), banned, eos, eos_count, masks, masked,
        adjust, adjusted,
    )  # fmt: skip
    if tl.max(won, 0) < high:
        _list(listed, most, BY_P, r)


@dataclass(frozen=True, slots=True)
class WinnerScratch:
    """What is known of rows: `listed` int32 [LISTS + LISTS * R], how many rows are listed as each kind, then
    which; `lowest` float32 [R], from which logit on filters keep tokens; others as the kernels say."""

    listed: Tensor
    lowest: Tensor
    ceilings: Tensor
    best: Tensor
    best_parts: Tensor
    sums: Tensor
    totals: Tensor
    between: Tensor


def winner_scratch(rows: int, device: torch.device | str) -> WinnerScratch:
    """Scratch for batches of up to `rows` rows."""

    def room(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(rows, *shape, dtype=dtype, device=device)

    best = _BEST.value
    return WinnerScratch(
        listed=torch.empty(LISTS.value * (1 + rows), dtype=torch.int32, device=device),
        lowest=room(torch.float32),
        ceilings=room(torch.float32),
        best=room(torch.float32, best),
        best_parts=room(torch.int32, best),
        sums=room(torch.float64, 1 + best, _PARTS.value),
        totals=room(torch.float64),
        between=room(torch.float32, 2),
    )


def check_winners(
    logits: Tensor, rows: Tensor, fields: Tensor, eos_ids: Tensor, masks: Tensor, adjust: Tensor,
    values: Tensor, winners: Tensor, splits: int, most_splits: int, part: int, scratch: WinnerScratch,
    kinds: Filters,
) -> None:  # fmt: skip
    """`scratch.listed` says which rows are left less than all by a filter: those with top_k, and of others
    those of which the token that won is not known to be kept. No row is listed yet.

    Arguments as those of `sample.sample`: rows int32 [4, R], fields int32 [fields, capacity]; and what `splits`
    programs to a row, at most `most_splits`, have left of a race among all tokens of rows without top_k, each
    of `part` tokens. No row has filters but those of `kinds`.
    """
    count, vocab = logits.shape
    read = (logits, rows, fields, eos_ids, masks, adjust)
    row_stride, capacity = rows.shape[1], fields.shape[1]
    sizes = (
        vocab, logits.stride(0), row_stride, capacity, len(eos_ids), masks.stride(0), adjust.stride(0)
    )  # fmt: skip
    listed = (scratch.listed, len(scratch.lowest))
    best = (scratch.best, scratch.best_parts)
    _candidates[(count,)](
        *read, values, winners, scratch.ceilings, *best, *listed, scratch.lowest, *sizes, winners.shape[0],
        splits, most_splits, num_warps=1,
    )  # fmt: skip
    if Filters.TOP_P not in kinds:
        return
    chunk = part_length(vocab, _PARTS.value, _TILE.value)
    _check[(count, _PARTS.value)](
        *read, scratch.ceilings, scratch.best, scratch.sums, *sizes, chunk, num_warps=4
    )
    _tell[(count,)](
        rows, fields, scratch.ceilings, *best, scratch.sums, *listed, scratch.totals, scratch.between,
        vocab, row_stride, capacity, num_warps=1,
    )  # fmt: skip
    _again[(count,)](
        *read, values, winners, *best, scratch.between, *listed, *sizes, winners.shape[0], part, splits,
        most_splits, _AGAIN_BLOCK, num_warps=8,
    )  # fmt: skip
