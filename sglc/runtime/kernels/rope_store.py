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

from sglc.runtime.model_config import RopeScaling
from sglc.runtime.rope import rope_frequencies

_BLOCK_HEADS = 8
_E4M3_MAX = tl.constexpr(448.0)


def rotation_table(head_dim: int, theta: float, scaling: RopeScaling | None, length: int) -> Tensor:
    """Cosine and sine of every position and pair, on the CPU: float32 [length, head_dim / 2, 2]."""
    frequencies, magnitude = rope_frequencies(head_dim, theta, scaling)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    return torch.stack((angles.cos(), angles.sin()), dim=-1) * magnitude


@triton.jit
def _rope_store(
    qkv, out, positions, slots, rotations, pool, q_norm, k_norm, eps,
    token_stride, head_stride, out_token_stride, out_head_stride, page_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[:, None]
    feature = tl.arange(0, D)[None, :]
    # What all heads share is loaded once per head, in the layout of x: the cache has it, and no
    # layout is converted.
    shared = feature + tl.zeros([BLOCK, 1], tl.int32)
    is_query = head < HEADS
    is_value = head >= HEADS + KV_HEADS
    inside = head < HEADS + 2 * KV_HEADS
    if NORM:
        # Constant, so these may run ahead of the kernel before.
        q_weight = tl.load(q_norm + shared).to(tl.float32)
        k_weight = tl.load(k_norm + shared).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    position = tl.load(positions + token).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    x = tl.load(qkv + token * token_stride + head * head_stride + feature, mask=inside, other=0.0)
    x = x.to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / D + eps)
        x = tl.where(is_value, x, x * scale * tl.where(is_query, q_weight, k_weight))
    turn = tl.load(rotations + position * D + shared)
    even, odd = tl.split(tl.reshape(x, [BLOCK, D // 2, 2]))
    cos, sin = tl.split(tl.reshape(turn, [BLOCK, D // 2, 2]))
    turned = tl.join(even * cos - odd * sin, even * sin + odd * cos)
    x = tl.where(is_value, x, tl.reshape(turned, [BLOCK, D]))

    to_query = out + token * out_token_stride + head * out_head_stride + feature
    tl.store(to_query, x.to(out.dtype.element_ty), mask=is_query)
    part = tl.maximum(head - HEADS, 0)  # keys' heads, then values'
    to_pool = pool + slot // PAGE * page_stride + (part * PAGE + slot % PAGE) * D + feature
    if pool.dtype.element_ty == tl.float8e4nv:
        x = tl.clamp(x, -_E4M3_MAX, _E4M3_MAX)
    tl.store(to_pool, x.to(pool.dtype.element_ty), mask=inside & (head >= HEADS))


def rope_store(
    qkv: Tensor,
    positions: Tensor,
    slots: Tensor,
    rotations: Tensor,
    pool: Tensor,
    heads: int,
    *,
    norm: tuple[Tensor, Tensor, float] | None = None,
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
        norm: weights [D] of the queries' and keys' norm and its epsilon (Qwen3).
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
    q_norm, k_norm, eps = norm or (qkv, qkv, 0.0)
    _rope_store[(tokens, triton.cdiv(total, _BLOCK_HEADS))](
        qkv, out, positions, slots, rotations, pool, q_norm, k_norm, eps,
        qkv.stride(0), qkv.stride(1), out.stride(0), out.stride(1), pool.stride(0),
        HEADS=heads, KV_HEADS=kv_heads, D=d, PAGE=page_size,
        BLOCK=_BLOCK_HEADS, NORM=norm is not None, PDL=pdl,
        num_warps=max(1, _BLOCK_HEADS * d // 256), launch_pdl=pdl,
    )  # fmt: skip
    return out
