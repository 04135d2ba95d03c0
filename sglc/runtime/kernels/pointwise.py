"""Small kernels between the products: norm, gated activation, embedding.

Each computes in float32 and rounds once. With `pdl` a kernel is launched with programmatic dependent
launch: it waits for the one before only when constants are loaded, and lets the next one begin.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
_LEAST_COLUMNS = 16  # of a tile, at many rows; a tile of fewer columns has few rows


@dataclass(slots=True)
class Squares:
    """Sums of squares of the rows of a tensor on the device, by tiles of its columns.

    values: float32, [tiles, M] at its start. tiles: how many whatever wrote the tensor left there, which
    depends on shapes alone and so holds for a captured graph; 0: none.
    """

    values: Tensor
    tiles: int = 0

    def claim(self, tiles: int, rows: int) -> None:
        """Take sums of `tiles` tiles of `rows` rows for written.

        Raises:
            ValueError: they do not fit.
        """
        if tiles * rows > self.values.numel():
            raise ValueError(f"sums of squares of {tiles} tiles of {rows} rows do not fit")
        self.tiles = tiles


def empty_squares(max_rows: int, width: int, device: torch.device | str) -> Squares:
    """Room for [M, width]: M of `max_rows` from `embed` or `row_squares`, of 256 from a product."""
    columns = triton.cdiv(width, _BLOCK)
    size = max(max_rows * columns, 256 * triton.cdiv(width, _LEAST_COLUMNS))
    return Squares(torch.empty(size, dtype=torch.float32, device=device))


@triton.jit
def _rms_norm(x, weight, out, x_stride, out_stride, width, eps, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    if weight is not None:
        factor = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    values = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    values *= tl.rsqrt(tl.sum(values * values, 0) / width + eps)
    if weight is not None:
        values *= factor
    tl.store(out + row * out_stride + at, values.to(out.dtype.element_ty), mask=inside)


def rms_norm(
    x: Tensor, weight: Tensor | None, eps: float, out: Tensor | None = None, *, pdl: bool = False
) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over rows; `out` may be `x`.

    Args:
        x, out: [T, H], a row contiguous.
        weight: [H], contiguous; None: ones.
    """
    rows, width = x.shape
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    assert x.stride(1) == out.stride(1) == 1, (x.stride(), out.stride())
    assert weight is None or weight.stride(0) == 1, weight
    if rows:
        block = triton.next_power_of_2(width)
        _rms_norm[(rows,)](
            x, weight, out, x.stride(0), out.stride(0), width, eps,
            BLOCK=block, PDL=pdl, num_warps=min(max(block // 256, 1), 16), launch_pdl=pdl,
        )  # fmt: skip
    return out


@triton.jit
def _row_squares(x, out, x_stride, width, BLOCK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * x_stride + at, mask=at < width, other=0.0).to(tl.float32)
    tl.store(out + row, tl.sum(values * values, 0))


def row_squares(x: Tensor, squares: Squares, *, pdl: bool = False) -> None:
    """Fill `squares` for x [T, H], a row contiguous."""
    rows, width = x.shape
    assert x.stride(1) == 1, x.stride()
    squares.claim(1, rows)
    if rows:
        block = triton.next_power_of_2(width)
        _row_squares[(rows,)](
            x, squares.values, x.stride(0), width,
            BLOCK=block, PDL=pdl, num_warps=min(max(block // 256, 1), 16), launch_pdl=pdl,
        )  # fmt: skip


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
def _embed(
    ids, table, out, squares, rows, table_stride, out_stride, width, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    at = tile * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    row = tl.load(ids + token).to(tl.int64)
    values = tl.load(table + row * table_stride + at, mask=inside, other=0.0).to(out.dtype.element_ty)
    tl.store(out + token * out_stride + at, values, mask=inside)
    if squares is not None:
        wide = values.to(tl.float32)
        tl.store(squares + tile * rows + token, tl.sum(wide * wide, 0))


def embed(
    ids: Tensor, table: Tensor, out: Tensor, *, squares: Squares | None = None, pdl: bool = False
) -> Tensor:
    """Rows `ids` int32 or int64 [T] of `table` [V, H], into `out` [T, H]; rows contiguous, ids in range.

    `squares` takes the sums of squares of `out`.
    """
    rows, width = out.shape
    assert len(ids) == rows, (len(ids), rows)
    assert table.stride(1) == out.stride(1) == 1, (table.stride(), out.stride())
    tiles = triton.cdiv(width, _BLOCK)
    if squares:
        squares.claim(tiles, rows)
    if rows:
        _embed[(rows, tiles)](
            ids, table, out, squares.values if squares else None, rows, table.stride(0), out.stride(0), width,
            BLOCK=_BLOCK, PDL=pdl, num_warps=4, launch_pdl=pdl,
        )  # fmt: skip
    return out
