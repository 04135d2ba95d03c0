"""An exponential race over a part of a row, and what it is run among: logits of what a row may sample.

Noise is a hash of (seed, position, token), as `sampler.drawn` has it. Both compute in float32, the race here
as noise / weight with weights relative to the best token seen so far; so they choose the same token up to
rounding, that is unless the two best of a race are equal to about 1e-6.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sglc.runtime.kernels.rows import (
    ADJUSTED,
    COUNT,
    EOS_FROM,
    MASK,
    ROW,
    SEED_HIGH,
    SEED_LOW,
    SEQ_LEN,
    TEMPERATURE,
)

LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-3.4028234663852886e38)  # of float32; below it is only -inf, which is never sampled


def part_length(vocab: int, parts: int, tile: int) -> int:
    """How many tokens each of `parts` of a row has, a multiple of `tile`."""
    length: int = triton.cdiv(triton.cdiv(vocab, parts), tile) * tile
    return length


@triton.jit
def order_of(x, idle):
    """int32 that grow with x, one for every bit pattern of the type x was widened from, `idle` bits wider.

    The zeros get two. They tie all the same: what is found is a float again, which both reach.
    """
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> idle


@triton.jit
def value_of(order, idle):
    """The float32 that `order_of` gives `order`."""
    bits = tl.where(order < 0, ((order << idle) | ((1 << idle) - 1)) ^ 0x7FFFFFFF, order << idle)
    return bits.to(tl.float32, bitcast=True)


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
def allowed_of(logits, ids, live, banned, eos, eos_count, masks, masked, adjust, adjusted):
    """What is sampled from of any tokens `ids`, as `load_tile` says it of neighbours; -inf where not `live`."""
    allowed = tl.load(logits + ids, mask=live, other=float("-inf")).to(tl.float32)
    if adjusted:
        repetition = tl.load(adjust - 1)
        if repetition > 0:
            words = tl.load(adjust - 2 - ids // 32, mask=live, other=0.0).to(tl.int32, bitcast=True)
            less = tl.where(allowed > 0, allowed / repetition, allowed * repetition)
            allowed = tl.where((words >> (ids % 32)) & 1 != 0, less, allowed)
        allowed += tl.load(adjust + ids, mask=live, other=0.0)
    if banned:
        for at in range(eos_count):
            allowed = tl.where(ids == tl.load(eos + at), float("-inf"), allowed)
    if masked:
        words = tl.load(masks + ids // 32, mask=live, other=0)
        allowed = tl.where((words >> (ids % 32)) & 1 != 0, allowed, float("-inf"))
    return allowed


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
def race_part(
    logits, rows, fields, eos, masks, adjust, values, winners,
    vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride, parts, chunk,
    splits, r, number, floor, below, BLOCK: tl.constexpr,
):  # fmt: skip
    """Part `number` of row `r` races, among logits from `floor` on that are no less than the
    largest one so far and `below`, which is not above 0."""
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
            least = tl.maximum(floor, highest + below)
            if peak >= least:
                u = _unit(ids, key_low, key_high)
                handicap = tl.where(allowed >= least, tl.exp2((highest - allowed) * scale), float("inf"))
                # The exponential is never below u, so few tiles can hold a better one, and only they cost more.
                if tl.min(u * handicap, 0) < score:
                    scores = _exponential(u) * handicap
                    best = tl.min(scores, 0)
                    if best < score:
                        score = best
                        winner = tl.min(tl.where(scores == best, ids, vocab), 0)
        else:
            if highest > ceiling:
                winner = tl.min(tl.where(allowed == highest, ids, vocab), 0)
        ceiling = highest
    tl.store(values + part, top)
    tl.store(values + parts + part, tl.sum(totals, 0))
    tl.store(values + 2 * parts + part, ceiling)
    tl.store(values + 3 * parts + part, score)
    tl.store(winners + part, winner)


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
