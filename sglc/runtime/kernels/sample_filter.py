"""What top_k, top_p and min_p keep of a row: its lowest logit that may be sampled.

Of rows with top_k the tokens that it may keep are gathered, which lie in few of the groups that a row is cut
into, and looked through alone. Of rows with top_p the mass above a few logits is summed up, twice, and what
lies between the two that the bound lies between is gathered. The meaning is `sampler.filtered`'s, but logits
are compared where that compares weights: tokens whose logits differ and whose weights round to the same are
told apart here.
Each kind of filter has kernels of its own, which are launched where a row may have it.
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
    row_at,
    row_field,
    value_of,
)
from sglc.runtime.kernels.rows import TOP_P
from sglc.runtime.kernels.winners import BY_K, BY_P, WinnerScratch, listed_as, row_filters
from sglc.runtime.step import Filters

_PARTS = tl.constexpr(32)  # of a row, so that there is work for all where few rows are filtered
_PLACES = tl.constexpr(128)  # of a part, for what is gathered
_ROOM = tl.constexpr(4096)  # those of all parts
_GROUPS = tl.constexpr(4096)  # of a row, at most, each with its largest logit
_GROUP = 32  # tokens, at least
_PROGRAMS = 2112  # that share the parts of all rows that are filtered: 16 for each of 132 multiprocessors
_TILE = tl.constexpr(1024)  # tokens
_PIVOTS = tl.constexpr(16)  # logits above which the mass is summed up
_NARROW_TILE = tl.constexpr(512)  # a thread has a sum for each of them
# How many low bits of a float32 are 0 when it was widened from the type.
_IDLE_BITS = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}


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
        above = order_of(allowed, idle) > order
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
    most = order_of(top, idle)
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
        weight = tl.exp2((value_of(high, idle) - ceiling) * scale)
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
    return value_of(found, idle)


@triton.jit
def _peaks(
    logits, rows, fields, eos, masks, adjust, listed, most, peaks,
    vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride, chunk,
    PARTS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """peaks [R, _GROUPS]: the largest logits of each GROUP tokens of rows with top_k."""
    for item in range(tl.program_id(0), tl.load(listed + BY_K) * PARTS, tl.num_programs(0)):
        r, part = listed_as(listed, most, BY_K, item // PARTS), item % PARTS
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
def _kth(orders, low, high, k):
    """The lowest order above `low`, `high` at most, with fewer than `k` of `orders` above it."""
    # What takes the time is to sum up over all threads: three counts at once, of 20 bits each.
    while high - 1 > low:
        wide = high.to(tl.int64) - low
        first = low + (wide >> 2).to(tl.int32)
        second = low + (wide >> 1).to(tl.int32)
        third = low + (3 * wide >> 2).to(tl.int32)
        counts = (orders > first).to(tl.int64) + ((orders > second).to(tl.int64) << 20)
        counts = tl.sum(counts + ((orders > third).to(tl.int64) << 40), 0)
        less_first = (counts & 0xFFFFF) < k
        less_second = ((counts >> 20) & 0xFFFFF) < k
        less_third = (counts >> 40) < k
        high = tl.where(less_first, first, tl.where(less_second, second, tl.where(less_third, third, high)))
        low = tl.where(
            less_first, low, tl.where(less_second, first, tl.where(less_third, second, third))
        )  # fmt: skip
    return high


@triton.jit
def _keep_by_k(
    logits, rows, fields, eos, masks, adjust, listed, most, peaks, hits, likely, lowest,
    vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride,
    IDLE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """lowest [R] of rows with top_k: what the filters keep of a row are the logits from there on.

    hits int32 [R, _GROUPS]: the groups with tokens that may be kept: of the largest logits of all groups, the
    K-th largest has at least K tokens at or above it. likely [R, _ROOM]: those tokens' logits.
    """
    if tl.program_id(0) >= tl.load(listed + BY_K):
        return
    r = listed_as(listed, most, BY_K, tl.program_id(0))
    row, logits, banned, masks, masked, adjust, adjusted = row_at(
        logits, rows, fields, masks, adjust, logits_stride, row_stride, capacity, mask_stride, adjust_stride, r
    )
    temperature, top_k, top_p, reach, _, _, _ = row_filters(fields, capacity, row, vocab)
    # Where something was added, logits have digits that their type has not.
    idle = tl.where(adjusted, 0, IDLE)
    at = tl.arange(0, _GROUPS)
    live = at * GROUP < vocab
    found = tl.load(peaks + r * _GROUPS + at, mask=live, other=float("-inf"))
    ceiling = tl.maximum(tl.max(found, 0), LOWEST)
    orders = order_of(found, idle)
    top = order_of(ceiling, idle)
    low = order_of(tl.full([], float("-inf"), tl.float32), idle)
    if top_k * GROUP <= vocab:  # there are that many groups
        low = tl.maximum(low, tl.min(tl.where(live, orders, top), 0) - 1)
    bound = _kth(orders, low, top, top_k)
    hit = (orders >= bound).to(tl.int32)
    hits += r * _GROUPS
    tl.store(hits + tl.cumsum(hit, 0) - 1, at, mask=hit > 0)
    groups = tl.sum(hit, 0)
    likely += r * _ROOM
    places = tl.arange(0, _ROOM)
    tl.store(likely + places, tl.full([_ROOM], float("-inf"), tl.float32))
    tl.debug_barrier()  # other threads of this program read there now, and write
    count = tl.full([], 0, tl.int32)
    together: tl.constexpr = _ROOM // GROUP
    for first in range(0, groups, together):
        which = first + tl.arange(0, together)
        there = which < groups
        ids = tl.load(hits + which, mask=there, other=0)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        allowed = allowed_of(
            logits, ids, there[:, None] & (ids < vocab), banned, eos, eos_count, masks, masked, adjust, adjusted
        )
        allowed = tl.reshape(allowed, [_ROOM])
        count = _gathered(likely, count, allowed, order_of(allowed, idle) >= bound, _ROOM)
    tl.debug_barrier()
    scale = LOG2E / tl.maximum(temperature, 1e-30)
    if count > _ROOM:
        kept = _kept(
            logits, vocab, bound - 1, ceiling, 0.0, ceiling, scale, 0.0, top_k, top_p, True, banned, eos,
            eos_count, masks, masked, adjust, adjusted, idle, _ROOM,
        )  # fmt: skip
    elif top_p < 1:
        kept = _kept(
            likely, _ROOM, bound - 1, ceiling, 0.0, ceiling, scale, 0.0, top_k, top_p, True, False, eos, 0,
            masks, False, adjust, False, idle, _ROOM,
        )  # fmt: skip
    else:
        kept = value_of(_kth(order_of(tl.load(likely + places), idle), bound - 1, top, top_k), idle)
    tl.store(lowest + r, tl.maximum(kept, ceiling + reach))


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
    for item in range(tl.program_id(0), tl.load(listed + BY_P) * PARTS, tl.num_programs(0)):
        r, part = listed_as(listed, most, BY_P, item // PARTS), item % PARTS
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
    vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride, chunk,
    PARTS: tl.constexpr,
):  # fmt: skip
    """likely [R, _PARTS, _PLACES]: of a part of the row the logits around the bound of top_p, -inf behind them;
    and how many have no place: missed int32 [R, _PARTS]."""
    for item in range(tl.program_id(0), tl.load(listed + BY_P) * PARTS, tl.num_programs(0)):
        r, part = listed_as(listed, most, BY_P, item // PARTS), item % PARTS
        row, own, banned, allowing, masked, added, adjusted = row_at(
            logits, rows, fields, masks, adjust, logits_stride, row_stride, capacity, mask_stride,
            adjust_stride, r,
        )  # fmt: skip
        places = likely + (r * _PARTS + part) * _PLACES
        count = tl.full([], 0, tl.int32)
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


@triton.jit
def _gathered(places, count, logits, may, ROOM: tl.constexpr):
    """Put those of `logits` that `may` into ROOM `places`, behind `count` others; how many there are then."""
    more = tl.sum(may.to(tl.int32), 0)
    if more > 0:
        at = count + tl.cumsum(may.to(tl.int32), 0) - 1
        tl.store(places + at, logits, mask=may & (at < ROOM))
    return count + more


@triton.jit
def _keep_by_p(
    logits, rows, fields, eos, masks, adjust, listed, most, ceilings, totals, pivots, masses, likely, missed,
    lowest, vocab, logits_stride, row_stride, capacity, eos_count, mask_stride, adjust_stride,
    IDLE: tl.constexpr,
):  # fmt: skip
    """lowest [R], as `_keep_by_k`, of rows with top_p whose winner that does not keep."""
    if tl.program_id(0) >= tl.load(listed + BY_P):
        return
    r = listed_as(listed, most, BY_P, tl.program_id(0))
    row, logits, banned, masks, masked, adjust, adjusted = row_at(
        logits, rows, fields, masks, adjust, logits_stride, row_stride, capacity, mask_stride, adjust_stride, r
    )
    temperature, top_k, top_p, reach, _, _, _ = row_filters(fields, capacity, row, vocab)
    ceiling, total = tl.load(ceilings + r), tl.load(totals + r)
    idle = tl.where(adjusted, 0, IDLE)
    scale = LOG2E / tl.maximum(temperature, 1e-30)
    low, high, above = _interval(
        pivots + r * 2 * _PIVOTS, masses + r * 2 * _PIVOTS * _PARTS, ceiling, total * top_p, 2
    )
    # Of a pivot, which has more digits than a logit, it may be that of the next logit above.
    bottom = order_of(low, idle) - (low > float("-inf")).to(tl.int32)
    if tl.max(tl.load(missed + r * _PARTS + tl.arange(0, _PARTS)), 0) == 0:
        kept = _kept(
            likely + r * _ROOM, _ROOM, bottom, high, above, ceiling, scale, total, top_k, top_p, False, False,
            eos, 0, masks, False, adjust, False, idle, _ROOM,
        )  # fmt: skip
    else:
        kept = _kept(
            logits, vocab, bottom, high, 0.0, ceiling, scale, total, top_k, top_p, False, banned, eos,
            eos_count, masks, masked, adjust, adjusted, idle, _ROOM,
        )  # fmt: skip
    tl.store(lowest + r, tl.maximum(kept, ceiling + reach))


@dataclass(frozen=True, slots=True)
class FilterScratch:
    """What is known of rows on the way, as the kernels that make it say."""

    peaks: Tensor
    pivots: Tensor
    masses: Tensor
    likely: Tensor
    missed: Tensor
    hits: Tensor


def filter_scratch(rows: int, device: torch.device | str) -> FilterScratch:
    """Scratch for batches of up to `rows` rows."""
    parts, places, groups, pivots = _PARTS.value, _PLACES.value, _GROUPS.value, _PIVOTS.value

    def room(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(rows, *shape, dtype=dtype, device=device)

    return FilterScratch(
        peaks=room(torch.float32, groups),
        pivots=room(torch.float32, 2, pivots),
        masses=room(torch.float64, 2, pivots, parts),
        likely=room(torch.float32, parts, places),
        missed=room(torch.int32, parts),
        hits=room(torch.int32, groups),
    )


def filter_rows(
    logits: Tensor, rows: Tensor, fields: Tensor, eos_ids: Tensor, masks: Tensor, adjust: Tensor,
    known: WinnerScratch, scratch: FilterScratch, kinds: Filters,
) -> None:  # fmt: skip
    """`known.lowest` says of the rows that are listed from which logit on they sample.

    Arguments as those of `winners.check_winners`, which is behind them. A row is read in parts, each by a
    program: once for top_k, three times for top_p.
    """
    count, vocab = logits.shape
    read = (logits, rows, fields, eos_ids, masks, adjust)
    sizes = (
        vocab, logits.stride(0), rows.shape[1], fields.shape[1], len(eos_ids), masks.stride(0), adjust.stride(0)
    )  # fmt: skip
    idle = _IDLE_BITS[logits.dtype]
    listed = (known.listed, len(known.lowest))
    parts = _PARTS.value  # Triton's interpreter divides by no constexpr
    chunk = part_length(vocab, parts, _TILE.value)
    programs = (min(count * parts, _PROGRAMS),)
    if Filters.TOP_K in kinds:
        group = max(_GROUP, triton.next_power_of_2(triton.cdiv(vocab, _GROUPS.value)))
        _peaks[programs](*read, *listed, scratch.peaks, *sizes, chunk, parts, group, num_warps=4)
        _keep_by_k[(count,)](
            *read, *listed, scratch.peaks, scratch.hits, scratch.likely, known.lowest, *sizes, idle, group,
            num_warps=8,
        )  # fmt: skip
    if Filters.TOP_P in kinds:
        made = (*listed, known.ceilings, known.totals, scratch.pivots, scratch.masses)
        for level in range(2):
            _narrow[programs](*read, *made, *sizes, chunk, parts, level, num_warps=8)
        gathered = (*made, scratch.likely, scratch.missed)
        _gather[programs](*read, *gathered, *sizes, chunk, parts, num_warps=4)
        _keep_by_p[(count,)](*read, *gathered, known.lowest, *sizes, idle, num_warps=8)
