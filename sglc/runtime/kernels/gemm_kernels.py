# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Triton kernels of products with few rows, y = f(x W^T): bound by reading W, so built around that read.

Weights do not depend on the kernel before. With `PDL` a program therefore asks for its part of them (into
registers or the L2 cache) before it waits for that kernel, and reads everything else after.

Shapes: x [M, K], weight [N, K] or, gated, [2 * N, K] (gate rows, then up rows), out and residual [M, N],
bias [N], norm_weight [K]. The last dimension of each is contiguous. Sums are float32, and the order of
every sum is fixed: the same inputs give the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

PREFETCH_BYTES = tl.constexpr(128)  # one line of the L2 cache


@triton.jit
def _wait(PDL: tl.constexpr):
    """Until the kernel before is complete; then the next one may take free multiprocessors."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def _weight_rows(first, N, BLOCK_N: tl.constexpr, GATED: tl.constexpr):
    """Rows of the weight that give the columns `first` on; gated, a gate row and its up row in turn.

    Columns past the last read a row that exists and are not stored: no mask cuts the loads up.
    """
    if GATED:
        turn = tl.arange(0, 2 * BLOCK_N)
        rows = tl.minimum(first + turn // 2, N - 1) + (turn % 2) * N
    else:
        rows = tl.minimum(first + tl.arange(0, BLOCK_N), N - 1)
    return rows


@triton.jit
def _prefetch(weight, rows, first_k, K: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr):
    """Ask the L2 cache for weight[rows, first_k : first_k + SPAN], a line at a time."""
    ELEMENTS: tl.constexpr = PREFETCH_BYTES // (weight.dtype.element_ty.primitive_bitwidth // 8)
    LINES: tl.constexpr = triton.next_power_of_2(triton.cdiv(SPAN, ELEMENTS))
    k = tl.minimum(first_k + tl.arange(0, LINES) * ELEMENTS, K - 1)
    lines = tl.reshape(weight + rows[:, None] * K + k[None, :], (ROWS * LINES,))
    asm: tl.constexpr = "prefetch.global.L2 [$1]; mov.b32 $0, 0;"
    tl.inline_asm_elementwise(asm, "=r,l", [lines], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _activated(acc, ROWS: tl.constexpr, BLOCK_N: tl.constexpr):
    """[ROWS, 2 * BLOCK_N] of gate and up in turn -> silu(gate) * up."""
    gate, up = tl.split(tl.reshape(acc, (ROWS, BLOCK_N, 2)))
    return gate * tl.sigmoid(gate) * up


@triton.jit
def _store(acc, out, bias, residual, rows, columns, M, N, out_stride, residual_stride):
    """Add `bias` and `residual` where they are given; round once."""
    mask = (rows < M)[:, None] & (columns < N)[None, :]
    if bias is not None:
        acc += tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    if residual is not None:
        at = residual + rows[:, None] * residual_stride + columns[None, :]
        acc += tl.load(at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + rows[:, None] * out_stride + columns[None, :], acc.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["M"])
def tiled(
    x, weight, out, bias, residual, norm_weight, partials, arrivals,
    M, N, x_stride, out_stride, residual_stride, eps, K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
    STAGES: tl.constexpr, SWAP: tl.constexpr, GATED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One tile of the output, or one of SPLIT_K runs of its K. Grid: (tiles, SPLIT_K).

    SWAP multiplies W x^T, so that the rows of W fill the 64 rows of a warpgroup's product and x its
    narrow side. A split tile's sums go to `partials` float32 [tiles, SPLIT_K, tile + BLOCK_M]; the program
    that arrives last (`arrivals` int32 [tiles], zero before and after) adds them up in the order of K.
    """
    COLUMNS: tl.constexpr = 2 * BLOCK_N if GATED else BLOCK_N
    TILES_K: tl.constexpr = triton.cdiv(triton.cdiv(K, BLOCK_K), SPLIT_K)
    EVEN: tl.constexpr = K == TILES_K * SPLIT_K * BLOCK_K
    DTYPE: tl.constexpr = weight.dtype.element_ty
    # A float16 row times its norm weight may overflow before its scale is known.
    SCALE_FIRST: tl.constexpr = (norm_weight is not None) and (tl.float16 == DTYPE)
    tiles_m = tl.cdiv(M, BLOCK_M)
    tile = tl.program_id(0)
    split = tl.program_id(1)
    tile_m = tile % tiles_m  # neighbours share rows of W
    tile_n = tile // tiles_m
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    weight_rows = _weight_rows(tile_n * BLOCK_N, N, BLOCK_N, GATED)
    first_k = split * (TILES_K * BLOCK_K)
    if PDL:
        _prefetch(weight, weight_rows, first_k, K, min(TILES_K * BLOCK_K, 2048), COLUMNS)
    _wait(PDL)

    k = tl.arange(0, BLOCK_K)
    there = (rows < M)[:, None]
    squares = tl.zeros((BLOCK_M,), tl.float32)
    if SCALE_FIRST:
        for begin in range(0, K, BLOCK_K):
            at = begin + k
            values = tl.load(
                x + rows[:, None] * x_stride + at[None, :], mask=there & (at < K)[None, :], other=0.0
            ).to(tl.float32)
            squares += tl.sum(values * values, axis=1)
        scale = tl.rsqrt(squares / K + eps)
    acc = tl.zeros((COLUMNS, BLOCK_M) if SWAP else (BLOCK_M, COLUMNS), tl.float32)
    x_at = x + rows[:, None] * x_stride + (first_k + k)[None, :]
    weight_at = weight + weight_rows[:, None] * K + (first_k + k)[None, :]
    for step in tl.range(0, TILES_K, num_stages=STAGES):
        begin = step * BLOCK_K
        if EVEN:
            x_tile = tl.load(x_at + begin, mask=there, other=0.0)
            weight_tile = tl.load(weight_at + begin)
        else:
            inside = (first_k + begin + k < K)[None, :]
            x_tile = tl.load(x_at + begin, mask=there & inside, other=0.0)
            weight_tile = tl.load(weight_at + begin, mask=inside, other=0.0)
        if norm_weight is not None:
            norm = tl.load(norm_weight + first_k + begin + k, mask=first_k + begin + k < K, other=0.0)
            values = x_tile.to(tl.float32)
            if SCALE_FIRST:
                values *= scale[:, None]
            else:
                squares += tl.sum(values * values, axis=1)
            x_tile = (values * norm.to(tl.float32)[None, :]).to(DTYPE)
        if SWAP:
            acc = tl.dot(weight_tile, tl.trans(x_tile), acc, input_precision="ieee")
        else:
            acc = tl.dot(x_tile, tl.trans(weight_tile), acc, input_precision="ieee")

    if SPLIT_K > 1:
        SIZE: tl.constexpr = BLOCK_M * COLUMNS
        if SWAP:
            at = tl.arange(0, COLUMNS)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
        else:
            at = tl.arange(0, BLOCK_M)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        mine = partials + tile * (SPLIT_K * (SIZE + BLOCK_M))
        tl.store(mine + split * (SIZE + BLOCK_M) + at, acc)
        if norm_weight is not None:
            tl.store(mine + split * (SIZE + BLOCK_M) + SIZE + tl.arange(0, BLOCK_M), squares)
        tl.debug_barrier()  # every thread's part is written before the arrival is announced
        arrived = tl.atomic_add(arrivals + tile, 1, sem="acq_rel", scope="gpu")
        if arrived < SPLIT_K - 1:
            return
        # The first-level cache may hold what these addresses held before: read past it.
        acc = tl.load(mine + at, cache_modifier=".cg")
        for other in tl.static_range(1, SPLIT_K):
            acc += tl.load(mine + other * (SIZE + BLOCK_M) + at, cache_modifier=".cg")
        if norm_weight is not None:
            at_square = mine + SIZE + tl.arange(0, BLOCK_M)
            squares = tl.load(at_square, cache_modifier=".cg")
            for other in tl.static_range(1, SPLIT_K):
                squares += tl.load(at_square + other * (SIZE + BLOCK_M), cache_modifier=".cg")
        tl.store(arrivals + tile, 0)
    if SWAP:
        acc = tl.trans(acc)
    if (norm_weight is not None) and (not SCALE_FIRST):
        acc *= tl.rsqrt(squares / K + eps)[:, None]
    if GATED:
        acc = _activated(acc, BLOCK_M, BLOCK_N)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    _store(acc, out, bias, residual, rows, columns, M, N, out_stride, residual_stride)


@triton.jit(do_not_specialize=["M"])
def vector(
    x, weight, out, bias, residual, norm_weight,
    M, N, x_stride, out_stride, residual_stride, eps, K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GATED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """BLOCK_N columns of all rows without tensor cores, for M <= BLOCK_M of 1 to 8. Grid: (columns / BLOCK_N,).

    W stays in registers from its load to its use: its first BLOCK_K columns are on the way before the
    program waits, and the next ones while it multiplies.
    """
    COLUMNS: tl.constexpr = 2 * BLOCK_N if GATED else BLOCK_N
    STEPS: tl.constexpr = triton.cdiv(K, BLOCK_K)
    EVEN: tl.constexpr = K % BLOCK_K == 0
    tile_n = tl.program_id(0)
    k = tl.arange(0, BLOCK_K)
    weight_rows = _weight_rows(tile_n * BLOCK_N, N, BLOCK_N, GATED)
    weight_at = weight + weight_rows[:, None] * K + k[None, :]
    tile = tl.load(weight_at) if EVEN else tl.load(weight_at, mask=(k < K)[None, :], other=0.0)
    if PDL and STEPS > 1:
        _prefetch(weight, weight_rows, BLOCK_K, K, min(K - BLOCK_K, 4096), COLUMNS)
    _wait(PDL)

    rows = tl.arange(0, BLOCK_M)
    acc = tl.zeros((BLOCK_M, COLUMNS), tl.float32)
    squares = tl.zeros((BLOCK_M,), tl.float32)
    for step in range(STEPS):
        at = step * BLOCK_K + k
        values = tile.to(tl.float32)
        if STEPS > 1:
            tile = tl.load(weight_at + (step + 1) * BLOCK_K, mask=(at + BLOCK_K < K)[None, :], other=0.0)
        if norm_weight is not None:
            norm = tl.load(norm_weight + at, mask=at < K, other=0.0).to(tl.float32)
        for row in tl.static_range(BLOCK_M):
            x_row = tl.load(x + row * x_stride + at, mask=(at < K) & (row < M), other=0.0).to(tl.float32)
            if norm_weight is not None:
                squares += tl.where(rows == row, tl.sum(x_row * x_row, axis=0), 0.0)
                x_row *= norm
            part = tl.sum(values * x_row[None, :], axis=1)
            acc += tl.where((rows == row)[:, None], part[None, :], 0.0)
    if norm_weight is not None:
        acc *= tl.rsqrt(squares / K + eps)[:, None]
    if GATED:
        acc = _activated(acc, BLOCK_M, BLOCK_N)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    _store(acc, out, bias, residual, rows, columns, M, N, out_stride, residual_stride)
