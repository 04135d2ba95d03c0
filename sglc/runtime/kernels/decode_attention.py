"""Attention of rows that decode one token each, over paged KV, with the work split evenly.

The keys of all (token, kv head) pairs lie one behind the other in blocks of `BLOCK` keys, and every
program takes an equal run of blocks (lean attention, Sanovar et al. 2024, arXiv 2405.10480). A pair
that lies inside one run is finished there. What a run holds of a cut pair goes to a scratch slot: a
program has at most two, of the pair that its run begins inside of and of the one that it ends inside
of. The last program to write a slot of a pair adds them up by log-sum-exp, always in the same order,
and with them the partial results of prefixes that rows share (`tile_attention`). How many keys a row
has is read on the device, so a CUDA graph serves any lengths.

8-bit pools are read as pairs of features in 16-bit words, which the tensor cores' load instructions
can take, and become float16 in registers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sglc.runtime.attention.tile_plan import LEVELS

LOG2E = 1.4426950408889634
_FEW = 512  # tokens of which each gets programs of `merge` of its own; of more most have nothing to merge


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """How the kernel runs: keys of one block, and programs per multiprocessor, which all fit at once."""

    block: int = 32
    per_sm: int = 6
    warps: int = 2
    stages: int = 3


def decode_config(kv_dtype: torch.dtype, *, short: bool = False) -> DecodeConfig:
    """What reads an H200's memory fastest, at all numbers of rows: many programs of few warps.

    `short`: what is left to read behind prefixes is a few blocks a row.
    """
    if kv_dtype.itemsize == 1:
        return DecodeConfig(per_sm=12, warps=1)
    return DecodeConfig(block=16, per_sm=12, warps=1) if short else DecodeConfig()


@dataclass(frozen=True, slots=True)
class DecodeScratch:
    """Partial results of cut pairs, two slots for each program.

    values: float32 [2 * programs, group, D]; sums: float32 [2 * programs, group], base-2 logarithms
    of the softmax's denominators. written: int32 [programs], zeros between launches: slots written of the
    pair that a program's run ends inside of. blocks: int32 [tokens + 1] key blocks of all tokens
    before each.
    """

    values: Tensor
    sums: Tensor
    written: Tensor
    blocks: Tensor
    programs: int


def decode_scratch(
    config: DecodeConfig, tokens: int, heads: int, kv_heads: int, head_dim: int, device: torch.device | str,
    processors: int,
) -> DecodeScratch:  # fmt: skip
    """Scratch for up to `tokens` decoding tokens on a device of `processors` multiprocessors."""
    programs, group = config.per_sm * processors, heads // kv_heads
    return DecodeScratch(
        torch.empty(2 * programs, group, head_dim, dtype=torch.float32, device=device),
        torch.empty(2 * programs, group, dtype=torch.float32, device=device),
        torch.zeros(programs, dtype=torch.int32, device=device),
        torch.zeros(tokens + 1, dtype=torch.int32, device=device),
        programs,
    )


@triton.jit
def _count_blocks(positions, shared, decoding, blocks, tokens, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    count = tl.load(decoding)
    at = tl.arange(0, WIDTH)
    live = at < count
    keys = tl.load(positions + at, mask=live, other=0) + 1 - tl.load(shared + at, mask=live, other=0)
    mine = tl.where(live, (keys + BLOCK - 1) // BLOCK, 0)
    total = tl.cumsum(mine, 0)
    tl.store(blocks + at + 1, total, mask=at < tokens)
    tl.store(blocks, 0)


def count_blocks(
    positions: Tensor, shared: Tensor, decoding: Tensor, scratch: DecodeScratch, config: DecodeConfig
) -> None:
    """Fill `scratch.blocks` for a step; once for all its layers.

    Args:
        positions: int32 [T] positions; the first `decoding` int32 [1] tokens are decoding rows'.
        shared: int32 [T] leading keys that `tile_attention` takes.
    """
    tokens = min(len(positions), len(scratch.blocks) - 1)
    _count_blocks[(1,)](
        positions, shared, decoding, scratch.blocks, tokens,
        BLOCK=config.block, WIDTH=triton.next_power_of_2(max(tokens, 2)), num_warps=4,
    )  # fmt: skip


@triton.jit
def _find(blocks, unit, tokens):
    """The token whose blocks hold number `unit`: the last t with blocks[t] <= unit."""
    low = 0
    high = tokens
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(blocks + middle) <= unit:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def _halves(words, NATIVE: tl.constexpr):
    """The two e4m3 numbers of 16-bit words, as float16: the lower byte's, the upper's."""
    if NATIVE:
        # Two words at a time: both lower bytes, then both upper ones, converted in pairs.
        low, high = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 sorted;
            .reg .b16 lower, upper;
            prmt.b32 sorted, $2, 0, 0x3120;
            mov.b32 {lower, upper}, sorted;
            cvt.rn.f16x2.e4m3x2 $0, lower;
            cvt.rn.f16x2.e4m3x2 $1, upper;
            }
            """,
            "=r,=r,r", [words], dtype=(tl.float16, tl.float16), is_pure=True, pack=2,
        )  # fmt: skip
    else:
        # Sign to bit 15, exponent and mantissa to bits 13 to 7: that is 2^8 too small.
        wide = words.to(tl.int32)
        low = (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.int16).to(tl.float16, bitcast=True) * 256.0
        high = ((wide & 0x8000) | ((wide & 0x7F00) >> 1)).to(tl.int16).to(tl.float16, bitcast=True) * 256.0
    return low.to(tl.float16), high.to(tl.float16)


@triton.jit
def _add(values, sums, at, live, top, weight, acc, feature, D: tl.constexpr):
    """Take partial results `at` [N] of one head into (top, weight, acc [D])."""
    theirs = tl.load(sums + at, mask=live, other=float("-inf"), cache_modifier=".cg")
    above = tl.maximum(top, tl.max(theirs, 0))
    factor = tl.exp2(theirs - above)
    part = tl.load(
        values + at[:, None].to(tl.int64) * D + feature[None, :],
        mask=live[:, None],
        other=0.0,
        cache_modifier=".cg",
    )
    old = tl.exp2(top - above)
    return above, weight * old + tl.sum(factor, 0), acc * old + tl.sum(part * factor[:, None], 0)


@triton.jit
def _add_tiles(
    tiles, tile_at, tile_values, tile_sums, token, head, top, weight, acc,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, LEVELS: tl.constexpr, TILE: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """Take a token's partial results of tiles into (top, weight, acc [D]) of one head."""
    few = tl.arange(0, N)
    feature = tl.arange(0, D)
    for level in tl.static_range(LEVELS):
        splits = tl.load(tiles + token * LEVELS + level)
        base = tl.load(tile_at + token * LEVELS + level) + head // GROUP * TILE + head % GROUP
        for some in range(0, splits, N):
            at = base + (some + few) * (KV_HEADS * TILE)
            top, weight, acc = _add(
                tile_values, tile_sums, at, some + few < splits, top, weight, acc, feature, D
            )
    return top, weight, acc


@triton.jit
def _with_tiles(
    tiles, tile_at, tile_values, tile_sums, token, kv_head, top, acc, group_at, feature,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, LEVELS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """`acc` [M, D] of sums `top` [M] (base-2 logarithms) together with a token's partial results of tiles."""
    weight = tl.full(top.shape, 1.0, tl.float32)
    live = group_at < GROUP
    for level in tl.static_range(LEVELS):
        splits = tl.load(tiles + token * LEVELS + level)
        at = tl.load(tile_at + token * LEVELS + level) + kv_head * TILE + group_at
        for _ in range(splits):
            theirs = tl.load(tile_sums + at, mask=live, other=float("-inf"))
            part = tl.load(
                tile_values + at[:, None].to(tl.int64) * D + feature[None, :], mask=live[:, None], other=0.0
            )
            above = tl.maximum(top, theirs)
            old, new = tl.exp2(top - above), tl.exp2(theirs - above)
            acc = acc * old[:, None] + part * new[:, None]
            weight = weight * old + new
            top = above
            at += KV_HEADS * TILE
    return acc / weight[:, None]


@triton.jit
def _decode(
    q, pool, table, rows, positions, shared, decoding, blocks, out, values, sums, written,
    tiles, tile_at, tile_values, tile_sums,
    scale, q_stride, pool_stride, table_stride, out_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    WORDS: tl.constexpr, CASCADE: tl.constexpr, LEVELS: tl.constexpr, TILE: tl.constexpr,
    PRECISION: tl.constexpr, NATIVE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    GROUP: tl.constexpr = HEADS // KV_HEADS
    M: tl.constexpr = 16 if GROUP <= 16 else GROUP
    WIDTH: tl.constexpr = D // 2 if WORDS else D
    COMPUTE: tl.constexpr = tl.float16 if WORDS else pool.dtype.element_ty
    program = tl.program_id(0)
    tokens = tl.load(decoding)
    total = tl.load(blocks + tokens) * KV_HEADS
    share = tl.maximum(tl.cdiv(total, tl.num_programs(0)), 1)
    start = program * share
    unit = start
    end = tl.minimum(unit + share, total)
    group_at = tl.arange(0, M)
    live = group_at[:, None] < GROUP
    wide = tl.arange(0, WIDTH)
    inside = tl.arange(0, BLOCK)
    if unit < end:
        token = _find(blocks, unit // KV_HEADS, tokens)
        while unit < end:
            before = tl.load(blocks + token)
            count = tl.load(blocks + token + 1) - before
            rest = unit - before * KV_HEADS
            head = rest // count
            first = rest % count
            last = tl.minimum(count, first + end - unit)
            row = tl.load(rows + token)
            begin = tl.load(shared + token)
            length = tl.load(positions + token) + 1
            if PDL:
                # What is read before does not change during a step: only the queries and the step's own
                # keys are the kernel's before. To wait once more costs nothing.
                tl.extra.cuda.gdc_wait()
                tl.extra.cuda.gdc_launch_dependents()
            of_group = q + token.to(tl.int64) * q_stride + (head * GROUP + group_at[:, None]) * D
            top = tl.full([M], float("-inf"), tl.float32)
            weight = tl.zeros([M], tl.float32)
            acc = tl.zeros([M, WIDTH], tl.float32)
            if WORDS:
                even = tl.load(of_group + 2 * wide[None, :], mask=live, other=0.0).to(COMPUTE)
                odd = tl.load(of_group + 2 * wide[None, :] + 1, mask=live, other=0.0).to(COMPUTE)
                acc_odd = tl.zeros([M, WIDTH], tl.float32)
            else:
                query = tl.load(of_group + wide[None, :], mask=live, other=0.0).to(COMPUTE)
            for block in range(first, last):
                at = begin + block * BLOCK + inside
                seen = at < length
                page = tl.load(table + row.to(tl.int64) * table_stride + at // PAGE, mask=seen, other=0)
                slot = page.to(tl.int64) * pool_stride + (head * PAGE + at % PAGE) * WIDTH
                k = tl.load(pool + slot[:, None] + wide[None, :])
                v = tl.load(pool + slot[:, None] + (KV_HEADS * PAGE * WIDTH + wide[None, :]))
                if WORDS:
                    k_even, k_odd = _halves(k, NATIVE)
                    scores = tl.dot(even, tl.trans(k_even), input_precision=PRECISION)
                    scores = tl.dot(odd, tl.trans(k_odd), scores, input_precision=PRECISION) * scale
                else:
                    scores = tl.dot(query, tl.trans(k), input_precision=PRECISION) * scale
                scores = tl.where(seen[None, :], scores, float("-inf"))
                above = tl.maximum(top, tl.max(scores, 1))
                p = tl.exp2(scores - above[:, None])
                shrink = tl.exp2(top - above)
                weight = weight * shrink + tl.sum(p, 1)
                if WORDS:
                    v_even, v_odd = _halves(v, NATIVE)
                    acc = tl.dot(p.to(COMPUTE), v_even, acc * shrink[:, None], input_precision=PRECISION)
                    acc_odd = tl.dot(p.to(COMPUTE), v_odd, acc_odd * shrink[:, None], input_precision=PRECISION)
                else:
                    acc = tl.dot(p.to(COMPUTE), v, acc * shrink[:, None], input_precision=PRECISION)
                top = above
            if WORDS:
                acc = tl.interleave(acc, acc_odd)
            feature = tl.arange(0, D)
            acc = acc / weight[:, None]
            if (first == 0) & (last == count):
                if CASCADE:
                    acc = _with_tiles(
                        tiles, tile_at, tile_values, tile_sums, token, head, top + tl.log2(weight), acc,
                        group_at, feature, KV_HEADS, GROUP, D, LEVELS, TILE,
                    )  # fmt: skip
                to = out + token.to(tl.int64) * out_stride + (head * GROUP + group_at[:, None]) * D
                tl.store(to + feature[None, :], acc.to(out.dtype.element_ty), mask=live)
            else:
                # The pair that a run begins inside of has its first slot, the one it ends inside of the second.
                place = 2 * program + (unit > start).to(tl.int32)
                kept = values + (place * GROUP + group_at[:, None]).to(tl.int64) * D + feature[None, :]
                tl.store(kept, acc, mask=live)
                tl.store(sums + place * GROUP + group_at, top + tl.log2(weight), mask=group_at < GROUP)
                pair = before * KV_HEADS + head * count
                opener = pair // share
                closer = (pair + count - 1) // share
                tl.debug_barrier()
                arrived = tl.atomic_add(written + opener, 1, sem="acq_rel", scope="gpu")
                if arrived == closer - opener:
                    tl.store(written + opener, 0)
                    for g in tl.static_range(GROUP):
                        all_top, all_weight = float("-inf"), 0.0
                        all_acc = tl.zeros([D], tl.float32)
                        for some in range(opener, closer + 1, 16):
                            others = some + tl.arange(0, 16)
                            slots = 2 * others + (pair > others * share).to(tl.int32)
                            all_top, all_weight, all_acc = _add(
                                values, sums, slots * GROUP + g, others <= closer, all_top, all_weight, all_acc,
                                feature, D,
                            )  # fmt: skip
                        if CASCADE:
                            all_top, all_weight, all_acc = _add_tiles(
                                tiles, tile_at, tile_values, tile_sums, token, head * GROUP + g, all_top,
                                all_weight, all_acc, KV_HEADS, GROUP, D, LEVELS, TILE, 16,
                            )  # fmt: skip
                        whole_to = out + token.to(tl.int64) * out_stride + (head * GROUP + g) * D + feature
                        tl.store(whole_to, (all_acc / all_weight).to(out.dtype.element_ty))
                tl.debug_barrier()
            unit += last - first
            if (last == count) & (head == KV_HEADS - 1):
                token += 1
    elif PDL:
        tl.extra.cuda.gdc_wait()


@dataclass(frozen=True, slots=True)
class Tiles:
    """What `tile_attention` leaves for tokens whose keys it does not have all of.

    splits: int32 [T, LEVELS] partial results for a token, of up to LEVELS nested prefixes (0: none).
    first: int32 [T, LEVELS] where the first split's is, for kv head 0 and its first head; that of the next
    split lies kv_heads * `rows` further, of the next kv head `rows`, of the next head 1.
    values: float32 [P, D]. sums: float32 [P].
    """

    splits: Tensor
    first: Tensor
    values: Tensor
    sums: Tensor
    rows: int


def decode_attention(
    q: Tensor, pool: Tensor, table: Tensor, rows: Tensor, positions: Tensor, shared: Tensor, decoding: Tensor,
    out: Tensor, scratch: DecodeScratch, config: DecodeConfig, *, tiles: Tiles | None = None, pdl: bool = False,
) -> None:  # fmt: skip
    """Attention of the first `decoding` tokens, each over the keys of its row behind the shared ones.

    Args:
        q: [T, H, D] rotated queries, rows contiguous (a view of the merged q, k, v product will do).
        pool: [pages, 2, kv_heads, page_size, D] of one layer, the step's own keys and values written.
        table: int32 [rows, K] page tables. rows, positions: int32 [T] of the tokens.
        shared: int32 [T] leading keys left to `tile_attention`, whole pages, and less than the row has.
        decoding: int32 [1] how many tokens, the first ones, are decoding rows'.
        out: [T, heads, D], written for these tokens.
        tiles: results of `tile_attention` for their shared keys (None: nothing is shared).
    """
    _, _, kv_heads, page_size, head_dim = pool.shape
    words = pool.dtype.itemsize == 1
    if words:
        pool = pool.view(torch.int16)
    some = tiles or Tiles(decoding, decoding, scratch.values, scratch.sums, 0)
    _decode[(scratch.programs,)](
        q, pool, table, rows, positions, shared, decoding, scratch.blocks, out, scratch.values, scratch.sums,
        scratch.written, some.splits, some.first, some.values, some.sums,
        head_dim**-0.5 * LOG2E, q.stride(0), pool.stride(0), table.stride(0),
        out.stride(0),
        HEADS=out.shape[1], KV_HEADS=kv_heads, D=head_dim, PAGE=page_size, BLOCK=config.block, WORDS=words,
        CASCADE=tiles is not None, LEVELS=LEVELS, TILE=some.rows,
        PRECISION="ieee" if pool.dtype is torch.float32 else "tf32", NATIVE=q.is_cuda, PDL=pdl,
        num_warps=config.warps, num_stages=config.stages, **({"launch_pdl": True} if pdl else {}),
    )  # fmt: skip


@triton.jit
def _merge(
    out, splits, first, values, sums, begin, tokens, out_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, LEVELS: tl.constexpr, TILE: tl.constexpr,
    SOME: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    head = tl.program_id(1)
    some = tl.program_id(0) * SOME + tl.arange(0, SOME)
    live = (some >= tl.load(begin)) & (some < tokens)
    left = tl.zeros([SOME], tl.int32)
    for level in tl.static_range(LEVELS):
        left += tl.load(splits + some * LEVELS + level, mask=live, other=0)
    # Most programs find nothing to do.
    if tl.sum(left, 0) > 0:
        for i in range(SOME):
            token = tl.program_id(0) * SOME + i
            if tl.sum(tl.where(some == token, left, 0), 0) > 0:
                top = tl.full([], float("-inf"), tl.float32)
                weight = tl.full([], 0.0, tl.float32)
                acc = tl.zeros([D], tl.float32)
                top, weight, acc = _add_tiles(
                    splits,
                    first,
                    values,
                    sums,
                    token,
                    head,
                    top,
                    weight,
                    acc,
                    KV_HEADS,
                    GROUP,
                    D,
                    LEVELS,
                    TILE,
                    16,
                )
                to = out + token.to(tl.int64) * out_stride + head * D + tl.arange(0, D)
                tl.store(to, (acc / weight).to(out.dtype.element_ty))


def merge(out: Tensor, begin: Tensor, tiles: Tiles, kv_heads: int, *, pdl: bool = False) -> None:
    """Put the partial results of tiles together, of all tokens but the first `begin` int32 [1] of `out`.

    Tokens without any are left as they are. out: [T, heads, D].
    """
    tokens, heads, head_dim = out.shape
    some = 1 if tokens <= _FEW else 8
    _merge[(triton.cdiv(tokens, some), heads)](
        out, tiles.splits, tiles.first, tiles.values, tiles.sums, begin, tokens, out.stride(0),
        KV_HEADS=kv_heads, GROUP=heads // kv_heads, D=head_dim, LEVELS=LEVELS, TILE=tiles.rows, SOME=some,
        PDL=pdl, num_warps=2, **({"launch_pdl": True} if pdl else {}),
    )  # fmt: skip
