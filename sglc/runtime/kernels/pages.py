"""Copies between pages of the KV pool: what a fork inside a page needs."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_WORDS = {size: dtype for dtype in (torch.int32, torch.int16, torch.uint8) for size in (dtype.itemsize,)}


@triton.jit
def _copy_tokens(
    pool, copies, layer_stride, page_stride, PAGE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    copy = tl.program_id(0)
    layer = tl.program_id(1).to(tl.int64)
    source = tl.load(copies + 3 * copy).to(tl.int64)
    target = tl.load(copies + 3 * copy + 1).to(tl.int64)
    tokens = tl.load(copies + 3 * copy + 2)
    head = pool + layer * layer_stride + tl.program_id(2) * (PAGE * WIDTH)
    at = tl.arange(0, BLOCK)
    live = at < tl.minimum(tokens, PAGE) * WIDTH
    words = tl.load(head + source * page_stride + at, mask=live)
    tl.store(head + target * page_stride + at, words, mask=live)


def copy_tokens(pool: Tensor, copies: Tensor) -> None:
    """Copy the first slots of pages to other pages, in all layers.

    Args:
        pool: [layers, pages, 2, kv_heads, page_size, D] of any type, a page of a layer contiguous.
        copies: int32 [C, 3], contiguous: source page, target page, tokens. No page is the target of one
            copy and the source or target of another.
    """
    layers, _, parts, kv_heads, page_size, d = pool.shape
    if not len(copies):
        return
    assert pool[0, 0].is_contiguous(), pool.stride()
    assert copies.is_contiguous(), copies.stride()
    # Bits are moved, so the type does not matter: words as wide as a head's features allow.
    size = next(size for size in _WORDS if d * pool.element_size() % size == 0)
    words = pool.view(_WORDS[size])
    width = words.shape[-1]
    _copy_tokens[(len(copies), layers, parts * kv_heads)](
        words, copies, words.stride(0), words.stride(1),
        PAGE=page_size, WIDTH=width, BLOCK=triton.next_power_of_2(page_size * width), num_warps=4,
    )  # fmt: skip
