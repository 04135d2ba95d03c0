"""What lies between the qkv product and attention, in one kernel: head norm, rotation, the store of KV.

Heads come in paired order (features 2j and 2j + 1 are turned together, `rope.pair_rows`), so a thread
holds whole pairs and nothing is exchanged. Norm and rotation are float32 with one rounding at the end,
where transformers rounds after each.

The KV pool of a layer is [pages, 2, kv_heads, page_size, D], keys then values: what a head has in a page
is one contiguous block. Slot s is token s % page_size of page s // page_size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sglc.runtime.model.config import RopeScaling
from sglc.runtime.model.rope import rope_frequencies

_BLOCK_HEADS = 8
_E4M3_MAX = tl.constexpr(448.0)


def rotation_table(head_dim: int, theta: float, scaling: RopeScaling | None, length: int) -> Tensor:
    """Cosine and sine of every position and pair, on the CPU: float32 [length, head_dim / 2, 2]."""
    frequencies, magnitude = rope_frequencies(head_dim, theta, scaling)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    return torch.stack((angles.cos(), angles.sin()), dim=-1) * magnitude


@triton.jit
def store_heads(
    x, turn, slot, head, token, live, out, pool, norms, eps,
    out_token_stride, out_head_stride, page_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Norm, rotate and store x float32 [R, D], rows of heads `head` and tokens `token` [R, 1], where `live`.

    Heads are queries, keys, values. turn: float32 [R, D] of the rotation table; slot: int64 [R, 1]. norms:
    [2, D], the weights of queries and keys, or None.
    """
    feature = tl.arange(0, D)[None, :]
    is_query = head < HEADS
    is_value = head >= HEADS + KV_HEADS
    if norms is not None:
        # Loaded for every row, in the layout of x: the cache has it, and no layout is converted.
        weight = tl.load(norms + tl.where(is_query, 0, D) + feature).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / D + eps)
        x = tl.where(is_value, x, x * scale * weight)
    ROWS: tl.constexpr = x.shape[0]
    even, odd = tl.split(tl.reshape(x, [ROWS, D // 2, 2]))
    cos, sin = tl.split(tl.reshape(turn, [ROWS, D // 2, 2]))
    turned = tl.join(even * cos - odd * sin, even * sin + odd * cos)
    x = tl.where(is_value, x, tl.reshape(turned, [ROWS, D]))

    to_query = out + token.to(tl.int64) * out_token_stride + head * out_head_stride + feature
    tl.store(to_query, x.to(out.dtype.element_ty), mask=live & is_query)
    part = tl.maximum(head - HEADS, 0)  # keys' heads, then values'
    to_pool = pool + slot // PAGE * page_stride + (part * PAGE + slot % PAGE) * D + feature
    if pool.dtype.element_ty == tl.float8e4nv:
        x = tl.clamp(x, -_E4M3_MAX, _E4M3_MAX)
    tl.store(to_pool, x.to(pool.dtype.element_ty), mask=live & (head >= HEADS))


@triton.jit
def _rope_store(
    qkv, out, positions, slots, rotations, pool, norms, eps,
    token_stride, head_stride, out_token_stride, out_head_stride, page_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    head = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[:, None]
    token = tl.program_id(0).to(tl.int64) + tl.zeros([BLOCK, 1], tl.int64)
    live = head < HEADS + 2 * KV_HEADS
    at = qkv + token * token_stride + head * head_stride + tl.arange(0, D)[None, :]
    x = tl.load(at, mask=live, other=0.0).to(tl.float32)
    slot = tl.load(slots + token).to(tl.int64)
    turn = tl.load(rotations + tl.load(positions + token).to(tl.int64) * D + tl.arange(0, D)[None, :])
    store_heads(
        x, turn, slot, head, token, live, out, pool, norms, eps,
        out_token_stride, out_head_stride, page_stride, HEADS, KV_HEADS, D, PAGE,
    )  # fmt: skip


def rope_store(
    qkv: Tensor,
    positions: Tensor,
    slots: Tensor,
    rotations: Tensor,
    pool: Tensor,
    heads: int,
    *,
    norm: tuple[Tensor, float] | None = None,
    out: Tensor | None = None,
    pdl: bool = False,
) -> Tensor:
    """Queries, normed and turned, [T, heads, D]: `out`, or a view of `qkv` that was turned in place.

    Args:
        qkv: [T, heads + 2 * kv_heads, D], queries, keys, values; features contiguous. D is a power of two.
        positions, slots: int32 or int64 [T]. Tokens with equal slots (padding) leave one of them there.
        rotations: float32 [length, D / 2, 2], contiguous, from `rotation_table`; positions < length.
        pool: [pages, 2, kv_heads, page_size, D], a page contiguous; any float type. float8_e4m3fn
            saturates at 448 and has no scale.
        norm: contiguous weights [2, D] of the queries' and keys' norm, and its epsilon (Qwen3).
        out: [T, heads, D] of qkv's type, features contiguous.
        pdl: launched with programmatic dependent launch.
    """
    tokens, total, d = qkv.shape
    kv_heads, page_size = pool.shape[2], pool.shape[3]
    assert total == heads + 2 * kv_heads, (tuple(qkv.shape), tuple(pool.shape))
    assert (pool.shape[1], pool.shape[4]) == (2, d), (tuple(qkv.shape), tuple(pool.shape))
    assert pool[0].is_contiguous(), pool.stride()
    assert qkv.stride(2) == 1, qkv.stride()
    assert rotations.is_contiguous(), rotations.stride()
    if out is None:
        out = qkv[:, :heads]
    if not tokens:
        return out
    norms, eps = norm or (None, 0.0)
    _rope_store[(tokens, triton.cdiv(total, _BLOCK_HEADS))](
        qkv, out, positions, slots, rotations, pool, norms, eps,
        qkv.stride(0), qkv.stride(1), out.stride(0), out.stride(1), pool.stride(0),
        HEADS=heads, KV_HEADS=kv_heads, D=d, PAGE=page_size, BLOCK=_BLOCK_HEADS, PDL=pdl,
        num_warps=max(1, _BLOCK_HEADS * d // 256), launch_pdl=pdl,
    )  # fmt: skip
    return out
