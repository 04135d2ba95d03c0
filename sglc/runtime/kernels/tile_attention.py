"""Attention of tiles: many query tokens over the same paged keys.

A tile is some tokens, whose heads of one kv head are packed into the rows of one matrix, and a run of
keys of one page table. New tokens of a prompt are tiles (each token sees the keys up to its own, but in a
row that branches), and so are tokens of rows that share a prefix: they read it once, together (cascade
attention, as in Hydragen, arXiv 2402.05099). A tile that has all keys of its tokens writes the result;
others leave partial results for `decode_attention.merge`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sglc.runtime.attention.tile_plan import ITEM
from sglc.runtime.kernels.decode_attention import LOG2E


@dataclass(frozen=True, slots=True)
class TileConfig:
    """How the kernel runs: packed query rows of a tile, keys of a block, programs per multiprocessor."""

    rows: int = 128
    block: int = 64
    per_sm: int = 1
    warps: int = 8
    stages: int = 3


@triton.jit
def _tile(
    q, pool, table, places, items, item_count, members, out, values, sums,
    scale, q_stride, pool_stride, table_stride, out_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    M: tl.constexpr, BLOCK: tl.constexpr, ITEM: tl.constexpr, PRECISION: tl.constexpr,
    TREES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    GROUP: tl.constexpr = HEADS // KV_HEADS
    COMPUTE: tl.constexpr = (
        tl.float16 if pool.dtype.element_ty.primitive_bitwidth == 8 else pool.dtype.element_ty
    )
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    packed = tl.arange(0, M)
    feature = tl.arange(0, D)
    inside = tl.arange(0, BLOCK)
    work = tl.load(item_count) * KV_HEADS
    for number in range(tl.program_id(0), work, tl.num_programs(0)):
        item = items + (number // KV_HEADS) * ITEM
        head = number % KV_HEADS
        first = tl.load(item)
        count = tl.load(item + 1)
        row = tl.load(item + 2)
        begin = tl.load(item + 3)
        end = tl.load(item + 4)
        part = tl.load(item + 5)
        live = packed < count * GROUP
        token = tl.load(members + first + packed // GROUP, mask=live, other=0)
        place = tl.load(places + token, mask=live, other=-1)
        at_head = head * GROUP + packed % GROUP
        query = tl.load(
            q + token[:, None].to(tl.int64) * q_stride + at_head[:, None] * D + feature[None, :],
            mask=live[:, None], other=0.0,
        ).to(COMPUTE)  # fmt: skip
        top = tl.full([M], float("-inf"), tl.float32)
        weight = tl.zeros([M], tl.float32)
        acc = tl.zeros([M, D], tl.float32)
        end = tl.minimum(end, tl.max(place, 0) + 1)
        # Keys that every token sees need no mask.
        seen_by_all = tl.min(tl.where(live, place, 2147483647), 0) + 1
        if TREES:
            base = tl.load(item + 6)
            until = items + tl.load(item + 7) - base
            seen_by_all = tl.minimum(seen_by_all, base)
        whole = begin + tl.maximum(tl.minimum(seen_by_all, end) - begin, 0) // BLOCK * BLOCK
        pages = table + row.to(tl.int64) * table_stride
        # Pages are known one block ahead: keys whose place is looked up in the same turn are not prefetched.
        page = tl.load(pages + (begin + inside) // PAGE, mask=begin + inside < end, other=0)
        for start in range(begin, whole, BLOCK):
            at = start + inside
            next_page = tl.load(pages + (at + BLOCK) // PAGE, mask=at + BLOCK < end, other=0)
            slot = page.to(tl.int64) * pool_stride + (head * PAGE + at % PAGE) * D
            k = tl.load(pool + slot[:, None] + feature[None, :]).to(COMPUTE)
            v = tl.load(pool + slot[:, None] + (KV_HEADS * PAGE * D + feature[None, :])).to(COMPUTE)
            scores = tl.dot(query, tl.trans(k), input_precision=PRECISION) * scale
            above = tl.maximum(top, tl.max(scores, 1))
            p = tl.exp2(scores - above[:, None])
            shrink = tl.exp2(top - above)
            weight = weight * shrink + tl.sum(p, 1)
            acc = tl.dot(p.to(COMPUTE), v, acc * shrink[:, None], input_precision=PRECISION)
            top = above
            page = next_page
        for start in range(whole, end, BLOCK):
            at = start + inside
            next_page = tl.load(pages + (at + BLOCK) // PAGE, mask=at + BLOCK < end, other=0)
            slot = page.to(tl.int64) * pool_stride + (head * PAGE + at % PAGE) * D
            k = tl.load(pool + slot[:, None] + feature[None, :]).to(COMPUTE)
            v = tl.load(pool + slot[:, None] + (KV_HEADS * PAGE * D + feature[None, :])).to(COMPUTE)
            scores = tl.dot(query, tl.trans(k), input_precision=PRECISION) * scale
            # Rows that hold no token see one key, so that nothing is divided by 0.
            sees = (at[None, :] <= place[:, None]) & (at < end)[None, :]
            if TREES:
                branches = (at >= base) & (at < end)
                last = tl.load(until + at, mask=branches, other=2147483647)
                sees &= last[None, :] > tl.where(branches[None, :], place[:, None] - base, 0)
            scores = tl.where(sees, scores, float("-inf"))
            above = tl.maximum(tl.maximum(top, tl.max(scores, 1)), -1e30)
            p = tl.exp2(scores - above[:, None])
            shrink = tl.exp2(top - above)
            weight = weight * shrink + tl.sum(p, 1)
            acc = tl.dot(p.to(COMPUTE), v, acc * shrink[:, None], input_precision=PRECISION)
            top = above
            page = next_page
        some = tl.where(weight > 0, weight, 1.0)
        acc = acc / some[:, None]
        if part < 0:
            to = out + token[:, None].to(tl.int64) * out_stride + at_head[:, None] * D + feature[None, :]
            tl.store(to, acc.to(out.dtype.element_ty), mask=live[:, None])
        else:
            place = (part * KV_HEADS + head) * M + packed
            tl.store(values + place[:, None].to(tl.int64) * D + feature[None, :], acc, mask=live[:, None])
            none = float("-inf")
            tl.store(sums + place, tl.where(weight > 0, top + tl.log2(some), none), mask=live)


def tile_config(dtype: torch.dtype, *, narrow: bool) -> TileConfig:
    """What is fastest on an H200; float32 is for checking, and its products take many registers.

    `narrow` tiles are for prefixes that few rows share: reading their keys is all that there is to do.
    """
    if dtype is torch.float32:
        return TileConfig(rows=16 if narrow else 32, block=32)
    return TileConfig(rows=16, block=32, per_sm=4, warps=2) if narrow else TileConfig()


def tile_attention(
    q: Tensor, pool: Tensor, table: Tensor, places: Tensor, items: Tensor, item_count: Tensor,
    members: Tensor, out: Tensor, values: Tensor, sums: Tensor, config: TileConfig, programs: int, *,
    trees: bool = False, pdl: bool = False,
) -> None:  # fmt: skip
    """Run the first `item_count` int32 [1] items, each for every kv head.

    Args:
        q, pool, table, places, out: as for `decode_attention`.
        items: int32 [I, ITEM]: first member, members (at most rows // group), page table row, first key,
            end of the keys, place of the partial results (-1: none, the tile has all keys); and with `trees`
            the key from which the row branches (`WHOLE`: nowhere), and where behind the start of `items` it is
            said until where each key from there on is seen (`step.TokenTree`).
        members: int32 [N] tokens. A token sees the keys up to its own place.
        values: float32 [P * kv_heads * rows, D], sums: float32 [P * kv_heads * rows]: result of place p, kv
            head h and packed row m = i * group + g (member i, its g-th head of h) at (p * kv_heads + h) *
            rows + m. Sums are base-2 logarithms.
        programs: how many programs share the items.
    """
    _, _, kv_heads, page_size, head_dim = pool.shape
    _tile[(programs,)](
        q, pool, table, places, items, item_count, members, out, values, sums,
        head_dim**-0.5 * LOG2E, q.stride(0), pool.stride(0), table.stride(0), out.stride(0),
        HEADS=out.shape[1], KV_HEADS=kv_heads, D=head_dim, PAGE=page_size, M=config.rows, BLOCK=config.block,
        ITEM=ITEM, PRECISION="ieee" if pool.dtype is torch.float32 else "tf32", TREES=trees, PDL=pdl,
        num_warps=config.warps, num_stages=config.stages, **({"launch_pdl": True} if pdl else {}),
    )  # fmt: skip
