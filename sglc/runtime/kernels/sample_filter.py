"""What top_k, top_p and min_p keep of a row: its lowest logit that may be sampled.

The meaning is `sampler.filtered`'s, but logits are compared where that compares weights: tokens whose
logits differ and whose weights round to the same are told apart here.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sglc.runtime.kernels.rows import (
    COUNT,
    EOS_FROM,
    MIN_P,
    ROW,
    SAMPLES,
    SEQ_LEN,
    TEMPERATURE,
    TOP_K,
    TOP_P,
)

LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-3.4028234663852886e38)  # of float32; below it is only -inf, which is never sampled


@triton.jit
def load_tile(
    logits, start, end, banned, eos, eos_count, masks, mask_row, BLOCK: tl.constexpr, MASKED: tl.constexpr
):
    """Logits of the tokens from `start`, float32 [BLOCK], -inf from `end` on; then the same with those that
    may not be sampled at -inf, and whether there may be such."""
    ids = start + tl.arange(0, BLOCK)
    x = tl.load(logits + ids, mask=ids < end, other=float("-inf")).to(tl.float32)
    allowed = x
    barred = False
    if banned:
        for at in range(eos_count):
            eos_id = tl.load(eos + at)
            if (eos_id >= start) & (eos_id < start + BLOCK):
                allowed = tl.where(ids == eos_id, float("-inf"), allowed)
                barred = True
    if MASKED:  # noqa: SIM102  (the one is decided when compiled, the other when run)
        if mask_row >= 0:
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
def _order(x, IDLE: tl.constexpr):
    """int32 that grow with x, one for every bit pattern of the type x was widened from.

    The zeros get two. They tie all the same: what is found is a float again, which both reach.
    """
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> IDLE


@triton.jit
def _value(order, IDLE: tl.constexpr):
    """The float32 that `_order` gives `order`."""
    bits = tl.where(order < 0, ((order << IDLE) | ((1 << IDLE) - 1)) ^ 0x7FFFFFFF, order << IDLE)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _above(
    logits, order, ceiling, scale, vocab, banned, eos, eos_count, masks, mask_row,
    IDLE: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """How many tokens lie above `order`, and their weights' sum in float64."""
    count = tl.full([], 0, tl.int32)
    mass = tl.full([], 0.0, tl.float64)
    for start in range(0, vocab, BLOCK):
        allowed = load_tile(logits, start, vocab, banned, eos, eos_count, masks, mask_row, BLOCK, MASKED)[1]
        above = _order(allowed, IDLE) > order
        count += tl.sum(above.to(tl.int32), 0)
        mass += tl.sum(tl.where(above, tl.exp2((allowed - ceiling) * scale), 0.0), 0).to(tl.float64)
    return count, mass


@triton.jit
def _kept(
    logits, length, bottom, ceiling, scale, left, top_k, top_p, by_k, banned, eos, eos_count, masks, mask_row,
    IDLE: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The lowest logit above the order `bottom` that top_k, then top_p keep; `left` is the row's mass.

    With M(t) tokens, or their mass, above a logit t, top_k keeps the smallest t with M(t) < k, and top_p
    the smallest with M(t) < p * what top_k left. Both t are among the logits, so ties with them stay.
    They are found by bisection over the bit patterns.
    """
    most = _order(ceiling, IDLE)
    found = most
    if by_k:
        low = bottom
        high = most
        while high - 1 > low:
            middle = (low >> 1) + (high >> 1) + (low & high & 1)
            count, mass = _above(
                logits, middle, ceiling, scale, length, banned, eos, eos_count, masks, mask_row,
                IDLE, BLOCK, MASKED,
            )  # fmt: skip
            if count < top_k:
                high = middle
            else:
                low = middle
        found = high
        bottom = high - 1
        # Of the tokens that tie with the last one top_p counts only as many as make k.
        count, mass = _above(
            logits, high, ceiling, scale, length, banned, eos, eos_count, masks, mask_row, IDLE, BLOCK, MASKED
        )
        weight = tl.exp2((_value(high, IDLE) - ceiling) * scale)
        left = mass + (top_k - count) * weight.to(tl.float64)
    if top_p < 1:
        low = bottom
        high = most
        while high - 1 > low:
            middle = (low >> 1) + (high >> 1) + (low & high & 1)
            count, mass = _above(
                logits, middle, ceiling, scale, length, banned, eos, eos_count, masks, mask_row,
                IDLE, BLOCK, MASKED,
            )  # fmt: skip
            if mass < left * top_p:
                high = middle
            else:
                low = middle
        found = high
    return _value(found, IDLE)


@triton.jit
def filter_rows(
    logits, rows, fields, eos, masks, mask_of, lowest, likely,
    vocab, logits_stride, row_stride, capacity, eos_count, mask_stride,
    IDLE: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """lowest [R]: what the filters keep of a row are the logits from there on.

    They nearly always keep few, so those that may be kept are gathered first: from the largest logits of
    the BLOCK lanes that the row is read in, the K-th largest has at least K tokens at or above it.
    """
    r = tl.program_id(0)
    tl.store(lowest + r, float("-inf"))
    if tl.load(rows + SAMPLES * row_stride + r) == 0:
        return
    row = tl.load(rows + ROW * row_stride + r)
    temperature = row_field(fields, capacity, row, TEMPERATURE).to(tl.float32, bitcast=True)
    top_k = row_field(fields, capacity, row, TOP_K)
    top_p = row_field(fields, capacity, row, TOP_P).to(tl.float32, bitcast=True)
    min_p = row_field(fields, capacity, row, MIN_P).to(tl.float32, bitcast=True)
    by_k = (top_k > 0) & (top_k < vocab)
    if (temperature <= 0) | ((not by_k) & (top_p >= 1) & (min_p <= 0)):
        return
    banned = row_ban(fields, capacity, rows, row_stride, r, row)[0]
    mask_row = -1
    if MASKED:
        mask_row = tl.load(mask_of + r)
        masks += mask_row.to(tl.int64) * mask_stride
    logits += r.to(tl.int64) * logits_stride
    likely += r.to(tl.int64) * BLOCK
    scale = LOG2E / tl.maximum(temperature, 1e-30)
    peaks = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, vocab, BLOCK):
        peaks = tl.maximum(
            peaks, load_tile(logits, start, vocab, banned, eos, eos_count, masks, mask_row, BLOCK, MASKED)[1]
        )
    ceiling = tl.maximum(tl.max(peaks, 0), LOWEST)
    found = tl.full([], LOWEST, tl.float32)
    if min_p > 0:
        found = ceiling + tl.log(min_p) * temperature
    if by_k | (top_p < 1):
        bottom = _order(tl.full([], float("-inf"), tl.float32), IDLE)
        wanted = tl.where(by_k, top_k, BLOCK // 4)
        low = bottom
        high = _order(ceiling, IDLE)
        orders = _order(peaks, IDLE)
        while high - 1 > low:
            middle = (low >> 1) + (high >> 1) + (low & high & 1)
            if tl.sum((orders > middle).to(tl.int32), 0) < wanted:
                high = middle
            else:
                low = middle
        count = tl.full([], 0, tl.int32)
        mass = tl.full([], 0.0, tl.float64)
        total = tl.full([], 0.0, tl.float64)
        for start in range(0, vocab, BLOCK):
            allowed = load_tile(logits, start, vocab, banned, eos, eos_count, masks, mask_row, BLOCK, MASKED)[1]
            weights = tl.exp2((allowed - ceiling) * scale)
            total += tl.sum(weights, 0).to(tl.float64)
            may = _order(allowed, IDLE) >= high
            more = tl.sum(may.to(tl.int32), 0)
            if more > 0:
                at = count + tl.cumsum(may.to(tl.int32), 0) - 1
                tl.store(likely + at, allowed, mask=may & (at < BLOCK))
                mass += tl.sum(tl.where(may, weights, 0.0), 0).to(tl.float64)
                count += more
        tl.debug_barrier()  # what other threads of this program stored is read now
        if (count <= BLOCK) & ((by_k & (top_k <= BLOCK)) | ((not by_k) & (mass > total * top_p))):
            kept = _kept(
                likely, count, high - 1, ceiling, scale, total, top_k, top_p, by_k, False, eos, 0, masks, -1,
                IDLE, BLOCK, False,
            )  # fmt: skip
        else:
            kept = _kept(
                logits, vocab, bottom, ceiling, scale, total, top_k, top_p, by_k, banned, eos, eos_count,
                masks, mask_row, IDLE, BLOCK, MASKED,
            )  # fmt: skip
        found = tl.maximum(found, kept)
    tl.store(lowest + r, found)
