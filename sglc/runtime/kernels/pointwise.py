"""Small kernels between the products: norm, gated activation, embedding.

Each computes in float32 and rounds once. With `pdl` a kernel is launched with programmatic dependent
launch: it waits for the one before only when constants are loaded, and lets the next one begin.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _rms_norm(x, weight, out, x_stride, out_stride, width, eps, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    values = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    values *= tl.rsqrt(tl.sum(values * values, 0) / width + eps)
    tl.store(out + row * out_stride + at, (values * scale).to(out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None, *, pdl: bool = False) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over rows; `out` may be `x`.

    Args:
        x, out: [T, H], a row contiguous.
        weight: [H], contiguous.
    """
    rows, width = x.shape
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    assert x.stride(1) == out.stride(1) == weight.stride(0) == 1, (x.stride(), out.stride(), weight.stride())
    if rows:
        block = triton.next_power_of_2(width)
        _rms_norm[(rows,)](
            x, weight, out, x.stride(0), out.stride(0), width, eps,
            BLOCK=block, PDL=pdl, num_warps=min(max(block // 256, 1), 16), launch_pdl=pdl,
        )  # fmt: skip
    return out


@triton.jit
def _silu_mul(gate_up, out, in_stride, out_stride, width, BLOCK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(gate_up + row * in_stride + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * in_stride + width + at, mask=inside, other=0.0).to(tl.float32)
    values = gate * tl.sigmoid(gate) * up
    tl.store(out + row * out_stride + at, values.to(out.dtype.element_ty), mask=inside)


def silu_mul(gate_up: Tensor, out: Tensor | None = None, *, pdl: bool = False) -> Tensor:
    """silu(gate) * up, [T, F] with contiguous rows, from `gate_up` [T, 2 * F]: gate, then up."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    if out is None:
        out = gate_up.new_empty(rows, width)
    assert gate_up.stride(1) == out.stride(1) == 1, (gate_up.stride(), out.stride())
    if rows:
        _silu_mul[(rows, triton.cdiv(width, _BLOCK))](
            gate_up, out, gate_up.stride(0), out.stride(0), width,
            BLOCK=_BLOCK, PDL=pdl, num_warps=4, launch_pdl=pdl,
        )  # fmt: skip
    return out


@triton.jit
def _embed(ids, table, out, table_stride, out_stride, width, BLOCK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    row = tl.load(ids + token).to(tl.int64)
    values = tl.load(table + row * table_stride + at, mask=inside, other=0.0)
    tl.store(out + token * out_stride + at, values.to(out.dtype.element_ty), mask=inside)


def embed(ids: Tensor, table: Tensor, out: Tensor, *, pdl: bool = False) -> Tensor:
    """Rows `ids` int32 or int64 [T] of `table` [V, H], into `out` [T, H]; rows contiguous, ids in range."""
    rows, width = out.shape
    assert len(ids) == rows, (len(ids), rows)
    assert table.stride(1) == out.stride(1) == 1, (table.stride(), out.stride())
    if rows:
        _embed[(rows, triton.cdiv(width, _BLOCK))](
            ids, table, out, table.stride(0), out.stride(0), width,
            BLOCK=_BLOCK, PDL=pdl, num_warps=4, launch_pdl=pdl,
        )  # fmt: skip
    return out
