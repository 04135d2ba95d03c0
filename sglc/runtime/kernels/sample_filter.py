"""What top_k, top_p and min_p keep of a row: its lowest logit that may be sampled.

They nearly always keep few tokens, so those that may be kept are gathered first, and looked through alone.
The meaning is `sampler.filtered`'s, but logits are compared where that compares weights: tokens whose
logits differ and whose weights round to the same are told apart here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sglc.runtime.kernels.rows import (
    ADJUSTED,
    COUNT,
    EOS_FROM,
    MASK,
    MIN_P,
    ROW,
    SAMPLES,
    SEQ_LEN,
    TEMPERATURE,
    TOP_K,
    TOP_P,
)

_MOST_PARTS = 32  # of a row
_FEW_ROWS = 64  # of which some programs would leave multiprocessors idle
_BLOCK = 4096  # tokens
_TILE = 512  # of those that are gathered: few have a token that may be kept, and only they cost more
# How many low bits of a float32 are 0 when it was widened from the type.
_IDLE_BITS = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}
LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-3.4028234663852886e38)  # of float32; below it is only -inf, which is never sampled


@triton.jit
def load_tile(logits, start, end, banned, eos, eos_count, masks, masked, adjust, adjusted, BLOCK: tl.constexpr):
    """Logits of the tokens from `start`, float32 [BLOCK], -inf from `end` on; then what is sampled from: less
    for repetition, with what is added, those at -inf that may not be sampled; and whether the two differ."""
    ids = start + tl.arange(0, BLOCK)
    x = tl.load(logits + ids, mask=ids < end, other=float("-inf")).to(tl.float32)
    allowed = x
    barred = False
    if adjusted:
        repetition = tl.load(adjust - 1)
        if repetition > 0:
            word = tl.arange(0, BLOCK // 32)
            words = tl.load(adjust - 2 - start // 32 - word, mask=start + 32 * word < end, other=0.0)
            bits = (words.to(tl.int32, bitcast=True)[:, None] >> tl.arange(0, 32)[None, :]) & 1
            less = tl.where(x > 0, x / repetition, x * repetition)
            allowed = tl.where(tl.reshape(bits, [BLOCK]) != 0, less, x)
        allowed += tl.load(adjust + ids, mask=ids < end, other=0.0)
        barred = True
    if banned:
        for at in range(eos_count):
            eos_id = tl.load(eos + at)
            if (eos_id >= start) & (eos_id < start + BLOCK):
                allowed = tl.where(ids == eos_id, float("-inf"), allowed)
                barred = True
    if masked:
        word = tl.arange(0, BLOCK // 32)
        words = tl.load(masks + start // 32 + word, mask=start + 32 * word < end, other=0)
        bits = (words[:, None] >> tl.arange(0, 32)[None, :]) & 1
        allowed = tl.where(tl.reshape(bits, [BLOCK]) != 0, allowed, float("-inf"))
        barred = True
    return x, allowed, barred


@triton.jit
def row_field(fields, capacity, row, FIELD: tl.constexpr):
    return tl.load(fields + FIELD * capacity + row)


@triton.jit
def row_ban(fields, capacity, rows, row_stride, r, row):
    """Whether row `r` may not end its turn, and the position that it samples for."""
    length = row_field(fields, capacity, row, SEQ_LEN) + tl.load(rows + COUNT * row_stride + r)
    return length < row_field(fields, capacity, row, EOS_FROM), length


@triton.jit
def row_bounds(fields, capacity, row, masks, mask_stride, adjust, adjust_stride):
    """Whether masks, and what is added, say what row number `row` samples from; and where both begin."""
    mask = row_field(fields, capacity, row, MASK)
    adjusted = row_field(fields, capacity, row, ADJUSTED) != 0
    masks += tl.maximum(mask, 0).to(tl.int64) * mask_stride
    return mask >= 0, masks, adjusted, adjust + row.to(tl.int64) * adjust_stride


@triton.jit
def _order(x, idle):
    """int32 that grow with x, one for every bit pattern of the type x was widened from, `idle` bits wider.

    The zeros get two. They tie all the same: what is found is a float again, which both reach.
    """
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> idle


@triton.jit
def _value(order, idle):
    """The float32 that `_order` gives `order`."""
    bits = tl.where(order < 0, ((order << idle) | ((1 << idle) - 1)) ^ 0x7FFFFFFF, order << idle)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _above(
    logits, order, ceiling, scale, vocab, banned, eos, eos_count, masks, masked, adjust, adjusted,
    idle, BLOCK: tl.constexpr,
):  # fmt: skip
    """How many tokens lie above `order`, and their weights' sum in float64."""
    count = tl.full([], 0, tl.int32)
    mass = tl.full([], 0.0, tl.float64)
    for start in range(0, vocab, BLOCK):
        allowed = load_tile(
            logits, start, vocab, banned, eos, eos_count, masks, masked, adjust, adjusted, BLOCK
        )[1]
        above = _order(allowed, idle) > order
        count += tl.sum(above.to(tl.int32), 0)
        mass += tl.sum(tl.where(above, tl.exp2((allowed - ceiling) * scale), 0.0), 0).to(tl.float64)
    return count, mass


@triton.jit
def _kept(
    logits, length, bottom, ceiling, scale, left, top_k, top_p, by_k, banned, eos, eos_count, masks, masked,
    adjust, adjusted, idle, BLOCK: tl.constexpr,
):  # fmt: skip
    """The lowest logit above the order `bottom` that top_k, then top_p keep; `left` is the row's mass.

    With M(t) tokens, or their mass, above a logit t, top_k keeps the smallest t with M(t) < k, and top_p
    the smallest with M(t) < p * what top_k left. Both t are among the logits, so ties with them stay.
    They are found by bisection over the bit patterns.
    """
    most = _order(ceiling, idle)
    found = most
    if by_k:
        low = bottom
        high = most
        while high - 1 > low:
            middle = (low >> 1) + (high >> 1) + (low & high & 1)
            count, mass = _above(
                logits, middle, ceiling, scale, length, banned, eos, eos_count, masks, masked, adjust, adjusted,
                idle, BLOCK,
            )  # fmt: skip
            if count < top_k:
                high = middle
            else:
                low = middle
        found = high
        bottom = high - 1
        # Of the tokens that tie with the last one top_p counts only as many as make k.
        count, mass = _above(
            logits, high, ceiling, scale, length, banned, eos, eos_count, masks, masked, adjust, adjusted,
            idle, BLOCK,
        )  # fmt: skip
        weight = tl.exp2((_value(high, idle) - ceiling) * scale)
        left = mass + (top_k - count) * weight.to(tl.float64)
    if top_p < 1:
        low = bottom
        high = most
        while high - 1 > low:
            middle = (low >> 1) + (high >> 1) + (low & high & 1)
            count, mass = _above(
                logits, middle, ceiling, scale, length, banned, eos, eos_count, masks, masked, adjust, adjusted,
                idle, BLOCK,
            )  # fmt: skip
            if mass < left * top_p:
                high = middle
            else:
                low = middle
        found = high
    return _value(found, idle)


@triton.jit
def _row_filters(fields, capacity, row, vocab):
    """A row's temperature, top_k, top_p and min_p; whether top_k keeps less than all, and whether any does."""
    temperature = row_field(fields, capacity, row, TEMPERATURE).to(tl.float32, bitcast=True)
    top_k = row_field(fields, capacity, row, TOP_K)
    top_p = row_field(fields, capacity, row, TOP_P).to(tl.float32, bitcast=True)
    min_p = row_field(fields, capacity, row, MIN_P).to(tl.float32, bitcast=True)
    by_k = (top_k > 0) & (top_k < vocab)
    return temperature, top_k, top_p, min_p, by_k, (temperature > 0) & (by_k | (top_p < 1) | (min_p > 0))


@triton.jit
def _peaks(
    logits, rows, fields, eos, masks, adjust, peaks,
    vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride, chunk,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """peaks [R, BLOCK]: a part of a row is read in BLOCK / PARTS lanes; their largest logits."""
    r, part = tl.program_id(0), tl.program_id(1)
    if tl.load(rows + SAMPLES * row_stride + r) == 0:
        return
    row = tl.load(rows + ROW * row_stride + r)
    if not _row_filters(fields, capacity, row, vocab)[5]:
        return
    banned = row_ban(fields, capacity, rows, row_stride, r, row)[0]
    masked, masks, adjusted, adjust = row_bounds(
        fields, capacity, row, masks, mask_stride, adjust, adjust_stride
    )
    logits += r.to(tl.int64) * logits_stride
    LANES: tl.constexpr = BLOCK // PARTS
    # Lanes stay apart until the end: inside a thread they cost no barrier.
    found = tl.full([BLOCK], float("-inf"), tl.float32)
    end = tl.minimum(part * chunk + chunk, vocab)
    for start in range(part * chunk, end, BLOCK):
        allowed = load_tile(logits, start, end, banned, eos, eos_count, masks, masked, adjust, adjusted, BLOCK)[
            1
        ]
        found = tl.maximum(found, allowed)
    found = tl.max(tl.reshape(found, [PARTS, LANES]), 0)
    tl.store(peaks + r.to(tl.int64) * BLOCK + part * LANES + tl.arange(0, LANES), found)


@triton.jit
def _bound(rows, fields, peaks, bounds, vocab, row_stride, capacity, IDLE: tl.constexpr, BLOCK: tl.constexpr):
    """bounds int32 [R]: the order from which on a row's likeliest tokens are gathered.

    From the largest logits of all lanes, the K-th largest has at least K tokens at or above it.
    """
    r = tl.program_id(0)
    if tl.load(rows + SAMPLES * row_stride + r) == 0:
        return
    row = tl.load(rows + ROW * row_stride + r)
    _, top_k, top_p, _, by_k, some = _row_filters(fields, capacity, row, vocab)
    if (not some) | ((not by_k) & (top_p >= 1)):
        return
    # Where something was added, logits have digits that their type has not.
    idle = tl.where(row_field(fields, capacity, row, ADJUSTED) != 0, 0, IDLE)
    found = tl.load(peaks + r.to(tl.int64) * BLOCK + tl.arange(0, BLOCK))
    orders = _order(found, idle)
    wanted = tl.where(by_k, top_k, BLOCK // 4)
    low = _order(tl.full([], float("-inf"), tl.float32), idle)
    high = _order(tl.maximum(tl.max(found, 0), LOWEST), idle)
    while high - 1 > low:
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        if tl.sum((orders > middle).to(tl.int32), 0) < wanted:
            high = middle
        else:
            low = middle
    tl.store(bounds + r, high)


@triton.jit
def _gather(
    logits, rows, fields, eos, masks, adjust, peaks, bounds, likely, sums,
    vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride, chunk,
    IDLE: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """likely [R, BLOCK]: of each part of a row the logits that top_k and top_p may keep, -inf behind them.

    sums float64 [R, 3, PARTS]: how many there are in a part, their weight, and that of all in the part.
    """
    r, part = tl.program_id(0), tl.program_id(1)
    if tl.load(rows + SAMPLES * row_stride + r) == 0:
        return
    row = tl.load(rows + ROW * row_stride + r)
    temperature, _, top_p, _, by_k, some = _row_filters(fields, capacity, row, vocab)
    if (not some) | ((not by_k) & (top_p >= 1)):
        return
    banned = row_ban(fields, capacity, rows, row_stride, r, row)[0]
    masked, masks, adjusted, adjust = row_bounds(
        fields, capacity, row, masks, mask_stride, adjust, adjust_stride
    )
    idle = tl.where(adjusted, 0, IDLE)
    logits += r.to(tl.int64) * logits_stride
    scale = LOG2E / tl.maximum(temperature, 1e-30)
    ceiling = tl.max(tl.load(peaks + r.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)), 0)
    ceiling = tl.maximum(ceiling, LOWEST)
    bound = tl.load(bounds + r)
    LANES: tl.constexpr = BLOCK // PARTS
    likely += r.to(tl.int64) * BLOCK + part * LANES
    tl.store(likely + tl.arange(0, LANES), tl.full([LANES], float("-inf"), tl.float32))
    tl.debug_barrier()  # other threads of this program write there now
    count = tl.full([], 0, tl.int32)
    mass = tl.full([], 0.0, tl.float64)
    totals = tl.zeros([TILE // 8], tl.float32)
    end = tl.minimum(part * chunk + chunk, vocab)
    for start in range(part * chunk, end, TILE):
        allowed = load_tile(logits, start, end, banned, eos, eos_count, masks, masked, adjust, adjusted, TILE)[
            1
        ]
        weights = tl.exp2((allowed - ceiling) * scale)
        totals += tl.sum(tl.reshape(weights, [TILE // 8, 8]), 1)
        may = _order(allowed, idle) >= bound
        more = tl.sum(may.to(tl.int32), 0)
        if more > 0:
            at = count + tl.cumsum(may.to(tl.int32), 0) - 1
            tl.store(likely + at, allowed, mask=may & (at < LANES))
            mass += tl.sum(tl.where(may, weights, 0.0), 0).to(tl.float64)
            count += more
    sums += r * 3 * PARTS + part
    tl.store(sums, count.to(tl.float64))
    tl.store(sums + PARTS, mass)
    tl.store(sums + 2 * PARTS, tl.sum(totals.to(tl.float64), 0))


@triton.jit
def _keep(
    logits, rows, fields, eos, masks, adjust, peaks, likely, sums, lowest,
    vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride,
    IDLE: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """lowest [R]: what the filters keep of a row are the logits from there on."""
    r = tl.program_id(0)
    tl.store(lowest + r, float("-inf"))
    if tl.load(rows + SAMPLES * row_stride + r) == 0:
        return
    row = tl.load(rows + ROW * row_stride + r)
    temperature, top_k, top_p, min_p, by_k, some = _row_filters(fields, capacity, row, vocab)
    if not some:
        return
    ceiling = tl.max(tl.load(peaks + r.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)), 0)
    ceiling = tl.maximum(ceiling, LOWEST)
    found = tl.full([], LOWEST, tl.float32)
    if min_p > 0:
        found = ceiling + tl.log(min_p) * temperature
    if by_k | (top_p < 1):
        banned = row_ban(fields, capacity, rows, row_stride, r, row)[0]
        masked, masks, adjusted, adjust = row_bounds(
            fields, capacity, row, masks, mask_stride, adjust, adjust_stride
        )
        idle = tl.where(adjusted, 0, IDLE)
        scale = LOG2E / tl.maximum(temperature, 1e-30)
        bottom = _order(tl.full([], float("-inf"), tl.float32), idle)
        parts = tl.arange(0, PARTS)
        sums += r * 3 * PARTS
        counts = tl.load(sums + parts)
        mass = tl.sum(tl.load(sums + PARTS + parts), 0)
        total = tl.sum(tl.load(sums + 2 * PARTS + parts), 0)
        enough = tl.where(by_k, tl.sum(counts, 0) >= top_k, mass > total * top_p)
        if enough & (tl.max(counts, 0) <= BLOCK // PARTS):
            kept = _kept(
                likely + r.to(tl.int64) * BLOCK, BLOCK, bottom, ceiling, scale, total, top_k, top_p, by_k,
                False, eos, 0, masks, False, adjust, False, idle, BLOCK,
            )  # fmt: skip
        else:
            kept = _kept(
                logits + r.to(tl.int64) * logits_stride, vocab, bottom, ceiling, scale, total, top_k, top_p,
                by_k, banned, eos, eos_count, masks, masked, adjust, adjusted, idle, BLOCK,
            )  # fmt: skip
        found = tl.maximum(found, kept)
    tl.store(lowest + r, found)


@dataclass(frozen=True, slots=True)
class FilterScratch:
    """Of rows: lowest float32 [R], what `filter_rows` gives; peaks and likely float32 [R, BLOCK], sums float64
    [R, 3 * _MOST_PARTS], and bounds int32 [R]."""

    lowest: Tensor
    peaks: Tensor
    likely: Tensor
    sums: Tensor
    bounds: Tensor


def filter_scratch(rows: int, device: torch.device | str) -> FilterScratch:
    """Scratch for batches of up to `rows` rows."""
    lowest, peaks, likely = (
        torch.empty(rows, *shape, dtype=torch.float32, device=device) for shape in ((), (_BLOCK,), (_BLOCK,))
    )
    sums = torch.empty(rows, 3 * _MOST_PARTS, dtype=torch.float64, device=device)
    return FilterScratch(lowest, peaks, likely, sums, torch.empty(rows, dtype=torch.int32, device=device))


def filter_rows(
    logits: Tensor, rows: Tensor, fields: Tensor, eos_ids: Tensor, masks: Tensor, adjust: Tensor,
    scratch: FilterScratch,
) -> None:  # fmt: skip
    """`scratch.lowest` gets the lowest logit of each row that may be sampled, of rows without filters -inf.

    Arguments as those of `sample.sample`: rows int32 [4, R], fields int32 [fields, capacity]. A row is read in
    parts, each by a program, and read twice; what rows without filters cost is four launches.
    """
    count, vocab = logits.shape
    parts = _MOST_PARTS if count <= _FEW_ROWS else _MOST_PARTS // 4  # each number is compiled by itself
    chunk = triton.cdiv(triton.cdiv(vocab, parts), _BLOCK) * _BLOCK
    read = (logits, rows, fields, eos_ids, masks, adjust, scratch.peaks)
    sizes = (
        vocab, logits.stride(0), rows.shape[1], fields.shape[1], len(eos_ids), masks.stride(0),
        adjust.stride(0),
    )  # fmt: skip
    idle = _IDLE_BITS[logits.dtype]
    _peaks[(count, parts)](*read, *sizes, chunk, PARTS=parts, BLOCK=_BLOCK, num_warps=8)
    _bound[(count,)](
        rows, fields, scratch.peaks, scratch.bounds, vocab, rows.shape[1], fields.shape[1],
        IDLE=idle, BLOCK=_BLOCK, num_warps=8,
    )  # fmt: skip
    _gather[(count, parts)](
        *read, scratch.bounds, scratch.likely, scratch.sums, *sizes, chunk,
        IDLE=idle, PARTS=parts, BLOCK=_BLOCK, TILE=_TILE, num_warps=4,
    )  # fmt: skip
    _keep[(count,)](
        *read, scratch.likely, scratch.sums, scratch.lowest, *sizes,
        IDLE=idle, PARTS=parts, BLOCK=_BLOCK, num_warps=8,
    )  # fmt: skip
