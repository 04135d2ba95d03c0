"""What top_k, top_p and min_p keep of a row: its lowest logit that may be sampled.

What wins the race among all tokens of a row wins it among the kept ones as well, if it is one of them; of
rows without top_k that is asked first, and mostly it is. Where top_p does not keep it, the mass above a few
logits is summed up, twice, and what lies between the two that the bound lies between is gathered, and looked
through alone. So are the tokens that top_k may keep, which lie in few of the groups that a row is cut into.
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

_PARTS = tl.constexpr(32)  # of a row, so that there is work for all where few rows are filtered
_PLACES = tl.constexpr(128)  # of a part, for what is gathered
_GATHERERS = tl.constexpr(8)  # of a row's groups, each with the places of four parts
_BY_P, _BY_K, _BY_MIN = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # by what rows are left less than all
_GROUPS = tl.constexpr(4096)  # of a row, at most, each with its largest logit
_GROUP = 32  # tokens, at least
_PROGRAMS = 2112  # that share the parts of all rows that are filtered: 16 for each of 132 multiprocessors
_TILE = tl.constexpr(1024)  # tokens
_PIVOTS = tl.constexpr(16)  # logits above which the mass is summed up
_NARROW_TILE = tl.constexpr(512)  # a thread has a sum for each of them
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
    logits, length, bottom, top, above, ceiling, scale, left, top_k, top_p, by_k, banned, eos, eos_count, masks,
    masked, adjust, adjusted, idle, BLOCK: tl.constexpr,
):  # fmt: skip
    """The lowest logit above the order `bottom` that top_k, then top_p keep; `left` is the row's mass.

    Where that is known to be no more than `top`, `above` is the mass above `top` that `logits` are without.

    With M(t) tokens, or their mass, above a logit t, top_k keeps the smallest t with M(t) < k, and top_p
    the smallest with M(t) < p * what top_k left. Both t are among the logits, so ties with them stay.
    They are found by bisection over the bit patterns.
    """
    most = _order(top, idle)
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
            if above + mass < left * top_p:
                high = middle
            else:
                low = middle
        found = high
    return _value(found, idle)


@triton.jit
def row_at(
    logits, rows, fields, masks, adjust, logits_stride, row_stride, capacity, mask_stride, adjust_stride, r
):  # fmt: skip
    """Row `r`: its number, where its logits begin, whether it may not end its turn, and as `row_bounds`."""
    row = tl.load(rows + ROW * row_stride + r)
    banned = row_ban(fields, capacity, rows, row_stride, r, row)[0]
    masked, masks, adjusted, adjust = row_bounds(
        fields, capacity, row, masks, mask_stride, adjust, adjust_stride
    )
    return row, logits + r.to(tl.int64) * logits_stride, banned, masks, masked, adjust, adjusted


@triton.jit
def race_winner(values, winners, r, parts, splits, temperature, vocab, SPLITS: tl.constexpr):
    """The token that won the race of row `r`; its largest logit; where programs' results lie, and which do."""
    at = tl.arange(0, SPLITS)
    live = at < splits
    part = r * splits + at
    ceilings = tl.load(values + 2 * parts + part, mask=live, other=LOWEST)
    scores = tl.load(values + 3 * parts + part, mask=live, other=float("inf"))
    tokens = tl.load(winners + part, mask=live, other=vocab)
    ceiling = tl.max(ceilings, 0)
    if temperature > 0:
        scores *= tl.exp2((ceiling - ceilings) * (LOG2E / tl.maximum(temperature, 1e-30)))
        wins = scores == tl.min(scores, 0)
    else:
        wins = ceilings == ceiling
    # Garbage (all logits NaN) still gives a token that exists.
    token = tl.minimum(tl.min(tl.where(wins, tokens, vocab), 0), vocab - 1)
    return token, ceiling, part, live


@triton.jit
def row_filters(fields, capacity, row, vocab):
    """A row's temperature, top_k, top_p and min_p; whether top_k keeps less than all, or else top_p does; and
    whether any does."""
    temperature = row_field(fields, capacity, row, TEMPERATURE).to(tl.float32, bitcast=True)
    top_k = row_field(fields, capacity, row, TOP_K)
    top_p = row_field(fields, capacity, row, TOP_P).to(tl.float32, bitcast=True)
    min_p = row_field(fields, capacity, row, MIN_P).to(tl.float32, bitcast=True)
    by_k = (temperature > 0) & (top_k > 0) & (top_k < vocab)
    by_p = (temperature > 0) & (not by_k) & (top_p < 1)
    return temperature, top_k, top_p, min_p, by_k, by_p, by_k | by_p | ((temperature > 0) & (min_p > 0))


@triton.jit
def listed_row(listed, most, at):
    """Of all rows that are left less than all, number `at`; -1 where there are not as many."""
    by_p, by_k, by_min = tl.load(listed), tl.load(listed + 1), tl.load(listed + 2)
    kind = (at >= by_p).to(tl.int32) + (at >= by_p + by_k).to(tl.int32)
    at -= tl.where(kind > 0, by_p, 0) + tl.where(kind > 1, by_k, 0)
    return tl.load(listed + 3 + kind * most + at, mask=(kind < 2) | (at < by_min), other=-1)


@triton.jit
def listed_count(listed):
    """How many rows are left less than all."""
    return tl.load(listed) + tl.load(listed + 1) + tl.load(listed + 2)


@triton.jit
def _check(
    logits, rows, fields, eos, masks, adjust, values, winners, sums, listed,
    vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride, chunk, parts, splits,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """sums float64 [R, 2, _PARTS]: of each part of rows with top_p and without top_k the mass above the token
    that won the race among all, infinite if min_p does not keep that, and the whole; of rows with min_p alone
    only that, once. Nothing is listed yet."""
    r, part = tl.program_id(0), tl.program_id(1)
    if (r == 0) & (part == 0):
        tl.store(listed + tl.arange(0, 4), 0, mask=tl.arange(0, 4) < 3)
    if tl.load(rows + SAMPLES * row_stride + r) == 0:
        return
    row, logits, banned, masks, masked, adjust, adjusted = row_at(
        logits, rows, fields, masks, adjust, logits_stride, row_stride, capacity, mask_stride, adjust_stride, r
    )
    temperature, _, _, min_p, by_k, by_p, some = row_filters(fields, capacity, row, vocab)
    if by_k | (not some) | ((not by_p) & (part > 0)):
        return
    scale = LOG2E / tl.maximum(temperature, 1e-30)
    token, ceiling, _, _ = race_winner(values, winners, r, parts, splits, temperature, vocab, SPLITS)
    near = token // 32 * 32
    around = load_tile(logits, near, vocab, banned, eos, eos_count, masks, masked, adjust, adjusted, 32)[1]
    won = tl.max(tl.where(near + tl.arange(0, 32) == token, around, float("-inf")), 0)
    above = tl.zeros([_TILE], tl.float32)
    whole = tl.zeros([_TILE], tl.float32)
    end = tl.where(by_p, tl.minimum(part * chunk + chunk, vocab), 0)
    for start in range(part * chunk, end, _TILE):
        allowed = load_tile(logits, start, end, banned, eos, eos_count, masks, masked, adjust, adjusted, _TILE)[
            1
        ]
        weights = tl.exp2((allowed - ceiling) * scale)
        whole += weights
        above += tl.where(allowed > won, weights, 0.0)
    if min_p > 0:
        above = tl.where(won < ceiling + tl.log(min_p) * temperature, float("inf"), above)
    sums += r * 2 * _PARTS + part
    tl.store(sums, tl.sum(above.to(tl.float64), 0))
    tl.store(sums + _PARTS, tl.sum(whole.to(tl.float64), 0))


@triton.jit
def _tell(
    rows, fields, values, winners, sums, listed, most, ceilings, totals,
    vocab, row_stride, capacity, parts, splits, SPLITS: tl.constexpr,
):  # fmt: skip
    """listed int32 [3 + 3 * most]: how many rows are left less than all by top_p, top_k and min_p alone, then
    which. Of rows without top_k the largest logits, ceilings float32 [R], and of those with top_p the mass,
    totals float64 [R]."""
    r = tl.program_id(0)
    less = False
    kind = _BY_MIN
    if tl.load(rows + SAMPLES * row_stride + r) != 0:
        row = tl.load(rows + ROW * row_stride + r)
        temperature, _, top_p, _, by_k, by_p, some = row_filters(fields, capacity, row, vocab)
        above = sums + r * 2 * _PARTS
        kind = tl.where(by_p, _BY_P, tl.where(by_k, _BY_K, _BY_MIN))
        if by_p:
            at = above + tl.arange(0, _PARTS)
            total = tl.sum(tl.load(at + _PARTS), 0)
            less = tl.sum(tl.load(at), 0) >= total * top_p
            tl.store(totals + r, total)
        elif some:
            less = by_k | (tl.load(above) > 0)
        if not by_k:
            ceiling = race_winner(values, winners, r, parts, splits, temperature, vocab, SPLITS)[1]
            tl.store(ceilings + r, ceiling)
    if less:
        tl.store(listed + 3 + kind * most + tl.atomic_add(listed + kind, 1), r)


@triton.jit
def _peaks(
    logits, rows, fields, eos, masks, adjust, listed, most, peaks,
    vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride, chunk,
    PARTS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """peaks [R, _GROUPS]: the largest logits of each GROUP tokens of rows with top_k."""
    for item in range(tl.program_id(0), tl.load(listed + _BY_K) * PARTS, tl.num_programs(0)):
        r, part = tl.load(listed + 3 + _BY_K * most + item // PARTS), item % PARTS
        _, own, banned, allowing, masked, added, adjusted = row_at(
            logits, rows, fields, masks, adjust, logits_stride, row_stride, capacity, mask_stride,
            adjust_stride, r,
        )  # fmt: skip
        end = tl.minimum(part * chunk + chunk, vocab)
        for start in range(part * chunk, end, _TILE):
            allowed = load_tile(
                own, start, end, banned, eos, eos_count, allowing, masked, added, adjusted, _TILE
            )[1]
            peak = tl.max(tl.reshape(allowed, [_TILE // GROUP, GROUP]), 1)
            tl.store(peaks + r * _GROUPS + start // GROUP + tl.arange(0, _TILE // GROUP), peak)


@triton.jit
def _bound(
    rows, fields, listed, most, peaks, bounds, ceilings, hits, vocab, row_stride, capacity,
    IDLE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Of rows with top_k ceilings; bounds int32 [R]: the order from which on tokens may be kept; and hits int32
    [R, 1 + _GROUPS]: how many groups have such tokens, and which.

    From the largest logits of all groups, the K-th largest has at least K tokens at or above it.
    """
    if tl.program_id(0) >= tl.load(listed + _BY_K):
        return
    r = tl.load(listed + 3 + _BY_K * most + tl.program_id(0))
    row = tl.load(rows + ROW * row_stride + r)
    top_k = row_field(fields, capacity, row, TOP_K)
    # Where something was added, logits have digits that their type has not.
    idle = tl.where(row_field(fields, capacity, row, ADJUSTED) != 0, 0, IDLE)
    at = tl.arange(0, _GROUPS)
    found = tl.load(peaks + r * _GROUPS + at, mask=at * GROUP < vocab, other=float("-inf"))
    ceiling = tl.maximum(tl.max(found, 0), LOWEST)
    tl.store(ceilings + r, ceiling)
    orders = _order(found, idle)
    low = _order(tl.full([], float("-inf"), tl.float32), idle)
    high = _order(ceiling, idle)
    while high - 1 > low:
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        if tl.sum((orders > middle).to(tl.int32), 0) < top_k:
            high = middle
        else:
            low = middle
    tl.store(bounds + r, high)
    hit = (orders >= high).to(tl.int32)
    hits += r * (1 + _GROUPS)
    tl.store(hits, tl.sum(hit, 0))
    tl.store(hits + tl.cumsum(hit, 0), at, mask=hit > 0)


@triton.jit
def _interval(pivots, masses, ceiling, wanted, LEVELS: tl.constexpr):
    """The logits between which the lowest one lies that top_p keeps, the upper one included, and the mass above
    that; the lower one is -inf where no pivot had `wanted` above it."""
    low = tl.full([], float("-inf"), tl.float32)
    high = ceiling
    above = tl.full([], 0.0, tl.float64)
    at = tl.arange(0, _PIVOTS)
    for level in tl.static_range(LEVELS):
        parts = tl.arange(0, _PARTS)[None, :]
        mass = tl.sum(tl.load(masses + (at + level * _PIVOTS)[:, None] * _PARTS + parts), 1)
        values = tl.load(pivots + level * _PIVOTS + at)
        high = tl.minimum(high, tl.min(tl.where(mass < wanted, values, float("inf")), 0))
        low = tl.maximum(low, tl.max(tl.where(mass < wanted, float("-inf"), values), 0))
        above = tl.maximum(above, tl.max(tl.where(mass < wanted, mass, 0.0), 0))
    return low, high, above


@triton.jit
def _narrow(
    logits, rows, fields, eos, masks, adjust, listed, most, ceilings, totals, pivots, masses,
    vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride, chunk,
    PARTS: tl.constexpr, LEVEL: tl.constexpr,
):  # fmt: skip
    """pivots [R, 2, _PIVOTS]: logits of rows that top_p leaves less, LEVEL 0 over most of the row, LEVEL 1
    between two of those. masses float64 [R, 2, _PIVOTS, _PARTS]: in a part the mass above each."""
    for item in range(tl.program_id(0), tl.load(listed + _BY_P) * PARTS, tl.num_programs(0)):
        r, part = tl.load(listed + 3 + _BY_P * most + item // PARTS), item % PARTS
        row, own, banned, allowing, masked, added, adjusted = row_at(
            logits, rows, fields, masks, adjust, logits_stride, row_stride, capacity, mask_stride,
            adjust_stride, r,
        )  # fmt: skip
        filters = row_filters(fields, capacity, row, vocab)
        scale = LOG2E / tl.maximum(filters[0], 1e-30)
        ceiling = tl.load(ceilings + r)
        total = tl.load(totals + r)
        row_pivots = pivots + r * 2 * _PIVOTS
        row_masses = masses + r * 2 * _PIVOTS * _PARTS
        between = _interval(row_pivots, row_masses, ceiling, total * filters[2], LEVEL)
        low, high = between[0], between[1]
        # Were all logits equal, they would lie so far below the largest; nearly all mass lies in half as
        # much more.
        span = (1.5 * tl.log2((vocab / total).to(tl.float32)) + 1) / scale
        at = tl.arange(0, _PIVOTS)
        values = high - tl.where(low == float("-inf"), span, high - low) * ((at + 1) * (1.0 / _PIVOTS))
        if part == 0:
            tl.store(row_pivots + LEVEL * _PIVOTS + at, values)
        found = tl.zeros([_NARROW_TILE, _PIVOTS], tl.float32)
        end = tl.minimum(part * chunk + chunk, vocab)
        for start in range(part * chunk, end, _NARROW_TILE):
            allowed = load_tile(
                own, start, end, banned, eos, eos_count, allowing, masked, added, adjusted, _NARROW_TILE
            )[1]
            weights = tl.exp2((allowed - ceiling) * scale)
            found += tl.where(allowed[:, None] > values[None, :], weights[:, None], 0.0)
        mass = tl.sum(found.to(tl.float64), 0)
        tl.store(row_masses + (at + LEVEL * _PIVOTS) * _PARTS + part, mass)


@triton.jit
def _gather(
    logits, rows, fields, eos, masks, adjust, listed, most, ceilings, totals, pivots, masses, likely, missed,
    bounds, hits, vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride, chunk,
    PARTS: tl.constexpr, GATHERERS: tl.constexpr, IDLE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """likely [R, _PARTS, _PLACES]: the logits that top_k may keep of each _GATHERERS-th group with some, in the
    places of a few parts, or of a part of the row those around the bound of top_p, -inf behind them; and how
    many have no place: missed int32 [R, _PARTS]."""
    by_p, by_k = tl.load(listed + _BY_P) * PARTS, tl.load(listed + _BY_K) * GATHERERS
    for item in range(tl.program_id(0), by_p + by_k, tl.num_programs(0)):
        if item < by_p:
            r, part = tl.load(listed + 3 + _BY_P * most + item // PARTS), item % PARTS
        else:
            r = tl.load(listed + 3 + _BY_K * most + (item - by_p) // GATHERERS)
            part = (item - by_p) % GATHERERS * (_PARTS // _GATHERERS)
        row, own, banned, allowing, masked, added, adjusted = row_at(
            logits, rows, fields, masks, adjust, logits_stride, row_stride, capacity, mask_stride,
            adjust_stride, r,
        )  # fmt: skip
        places = likely + (r * _PARTS + part) * _PLACES
        count = tl.full([], 0, tl.int32)
        if item < by_p:
            tl.store(places + tl.arange(0, _PLACES), tl.full([_PLACES], float("-inf"), tl.float32))
            tl.debug_barrier()  # other threads of this program write there now
            wanted = tl.load(totals + r) * row_field(fields, capacity, row, TOP_P).to(tl.float32, bitcast=True)
            low, high, _ = _interval(
                pivots + r * 2 * _PIVOTS, masses + r * 2 * _PIVOTS * _PARTS, tl.load(ceilings + r), wanted, 2
            )
            end = tl.minimum(part * chunk + chunk, vocab)
            for start in range(part * chunk, end, _TILE):
                allowed = load_tile(
                    own, start, end, banned, eos, eos_count, allowing, masked, added, adjusted, _TILE
                )[1]
                count = _gathered(places, count, allowed, (allowed > low) & (allowed <= high), _PLACES)
            tl.store(missed + r * _PARTS + part, tl.maximum(count - _PLACES, 0))
        else:
            room: tl.constexpr = _PARTS // _GATHERERS * _PLACES
            tl.store(places + tl.arange(0, room), tl.full([room], float("-inf"), tl.float32))
            tl.debug_barrier()
            idle = tl.where(adjusted, 0, IDLE)
            bound = tl.load(bounds + r)
            groups = hits + r * (1 + _GROUPS)
            for hit in range(part // (_PARTS // _GATHERERS), tl.load(groups), GATHERERS):
                start = tl.load(groups + 1 + hit) * GROUP
                allowed = load_tile(
                    own, start, vocab, banned, eos, eos_count, allowing, masked, added, adjusted, GROUP
                )[1]
                count = _gathered(places, count, allowed, _order(allowed, idle) >= bound, room)
            at = tl.arange(0, _PARTS // _GATHERERS)
            tl.store(missed + r * _PARTS + part + at, tl.maximum(count - room, 0))


@triton.jit
def _gathered(places, count, logits, may, ROOM: tl.constexpr):
    """Put those of `logits` that `may` into ROOM `places`, behind `count` others; how many there are then."""
    more = tl.sum(may.to(tl.int32), 0)
    if more > 0:
        at = count + tl.cumsum(may.to(tl.int32), 0) - 1
        tl.store(places + at, logits, mask=may & (at < ROOM))
    return count + more


@triton.jit
def _keep(
    logits, rows, fields, eos, masks, adjust, listed, most, ceilings, totals, pivots, masses, likely, missed,
    lowest, vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride,
    IDLE: tl.constexpr,
):  # fmt: skip
    """lowest [R]: what the filters keep of a row are the logits from there on."""
    r = listed_row(listed, most, tl.program_id(0))
    if r < 0:
        return
    row, logits, banned, masks, masked, adjust, adjusted = row_at(
        logits, rows, fields, masks, adjust, logits_stride, row_stride, capacity, mask_stride, adjust_stride, r
    )
    temperature, top_k, top_p, min_p, by_k, by_p, _ = row_filters(fields, capacity, row, vocab)
    ceiling = tl.load(ceilings + r)
    found = tl.full([], LOWEST, tl.float32)
    if min_p > 0:
        found = ceiling + tl.log(min_p) * temperature
    if by_k | by_p:
        idle = tl.where(adjusted, 0, IDLE)
        scale = LOG2E / tl.maximum(temperature, 1e-30)
        low = tl.full([], float("-inf"), tl.float32)
        high = ceiling
        above = tl.full([], 0.0, tl.float64)
        total = tl.full([], 0.0, tl.float64)
        if by_p:
            total = tl.load(totals + r)
            low, high, above = _interval(
                pivots + r * 2 * _PIVOTS, masses + r * 2 * _PIVOTS * _PARTS, ceiling, total * top_p, 2
            )
        # Of a pivot, which has more digits than a logit, it may be that of the next logit above.
        bottom = _order(low, idle) - (low > float("-inf")).to(tl.int32)
        if tl.max(tl.load(missed + r * _PARTS + tl.arange(0, _PARTS)), 0) == 0:
            kept = _kept(
                likely + r * _PARTS * _PLACES, _PARTS * _PLACES, bottom, high, above, ceiling, scale, total,
                top_k, top_p, by_k, False, eos, 0, masks, False, adjust, False, idle, _PARTS * _PLACES,
            )  # fmt: skip
        else:
            kept = _kept(
                logits, vocab, bottom, high, 0.0, ceiling, scale, total, top_k,
                top_p, by_k, banned, eos, eos_count, masks, masked, adjust, adjusted, idle, _PARTS * _PLACES,
            )  # fmt: skip
        found = tl.maximum(found, kept)
    tl.store(lowest + r, found)


@dataclass(frozen=True, slots=True)
class FilterScratch:
    """What is known of rows, as the kernels that make it say."""

    sums: Tensor
    listed: Tensor
    ceilings: Tensor
    totals: Tensor
    peaks: Tensor
    bounds: Tensor
    pivots: Tensor
    masses: Tensor
    likely: Tensor
    missed: Tensor
    hits: Tensor
    lowest: Tensor


def filter_scratch(rows: int, device: torch.device | str) -> FilterScratch:
    """Scratch for batches of up to `rows` rows."""
    parts, places, groups, pivots = _PARTS.value, _PLACES.value, _GROUPS.value, _PIVOTS.value

    def room(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(rows, *shape, dtype=dtype, device=device)

    return FilterScratch(
        sums=room(torch.float64, 2, parts),
        listed=torch.empty(3 + 3 * rows, dtype=torch.int32, device=device),
        ceilings=room(torch.float32),
        totals=room(torch.float64),
        peaks=room(torch.float32, groups),
        bounds=room(torch.int32),
        pivots=room(torch.float32, 2, pivots),
        masses=room(torch.float64, 2, pivots, parts),
        likely=room(torch.float32, parts, places),
        missed=room(torch.int32, parts),
        hits=room(torch.int32, 1 + groups),
        lowest=room(torch.float32),
    )


def filter_rows(
    logits: Tensor, rows: Tensor, fields: Tensor, eos_ids: Tensor, masks: Tensor, adjust: Tensor,
    values: Tensor, winners: Tensor, splits: int, most_splits: int, scratch: FilterScratch,
) -> None:  # fmt: skip
    """`scratch.listed` says which rows sample from less than all, `scratch.lowest` from which logit on.

    Arguments as those of `sample.sample`: rows int32 [4, R], fields int32 [fields, capacity]; and what `splits`
    programs to a row, at most `most_splits`, have left of a race among all tokens, which rows without top_k
    have behind them. A row is read in parts, each by a program: once where top_p keeps who won, else four
    times; once for top_k. What rows without filters cost is eight launches.
    """
    count, vocab = logits.shape
    chunk = triton.cdiv(triton.cdiv(vocab, _PARTS.value), _TILE.value) * _TILE.value
    read = (logits, rows, fields, eos_ids, masks, adjust)
    row_stride, capacity = rows.shape[1], fields.shape[1]
    sizes = (
        vocab, logits.stride(0), row_stride, capacity, len(eos_ids), masks.stride(0), adjust.stride(0)
    )  # fmt: skip
    idle = _IDLE_BITS[logits.dtype]
    race = (winners.shape[0], splits, most_splits)
    listed = (scratch.listed, len(scratch.lowest))
    parts, gatherers = _PARTS.value, _GATHERERS.value  # Triton's interpreter divides by no constexpr
    group = max(_GROUP, triton.next_power_of_2(triton.cdiv(vocab, _GROUPS.value)))
    _check[(count, parts)](
        *read, values, winners, scratch.sums, scratch.listed, *sizes, chunk, *race, num_warps=4
    )
    _tell[(count,)](
        rows, fields, values, winners, scratch.sums, *listed, scratch.ceilings, scratch.totals,
        vocab, row_stride, capacity, *race, num_warps=1,
    )  # fmt: skip
    programs = (min(count * parts, _PROGRAMS),)
    _peaks[programs](*read, *listed, scratch.peaks, *sizes, chunk, parts, group, num_warps=4)
    _bound[(count,)](
        rows, fields, *listed, scratch.peaks, scratch.bounds, scratch.ceilings, scratch.hits, vocab, row_stride,
        capacity, idle, group, num_warps=8,
    )  # fmt: skip
    made = (*listed, scratch.ceilings, scratch.totals, scratch.pivots, scratch.masses)
    gathered = (scratch.likely, scratch.missed)
    for level in range(2):
        _narrow[programs](*read, *made, *sizes, chunk, parts, level, num_warps=8)
    _gather[programs](
        *read, *made, *gathered, scratch.bounds, scratch.hits, *sizes, chunk, parts, gatherers, idle, group,
        num_warps=4,
    )  # fmt: skip
    _keep[(count,)](*read, *made, *gathered, scratch.lowest, *sizes, idle, num_warps=8)
