# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Triton kernels of products with few rows, y = f(x W^T): bound by reading W, so built around that read.

Weights do not depend on the kernel before. With `PDL` a program therefore asks for its part of them (into
registers or the L2 cache) before it waits for that kernel, and reads everything else after. With `EARLY` the
kernel after may begin before that wait: it waits for this one, so for all before. Else it begins after.

Shapes: x [M, K], weight [N, K] or, gated, [2 * N, K] (gate rows, then up rows), out and residual [M, N],
bias [N]. The last dimension of each is contiguous. Sums are float32, and the order of every sum is fixed:
the same inputs give the same bits.

An RMS norm takes no pass of its own: its weight is a factor of W, and its scale a factor of the result.
squares: float32 [tiles, M], whose sum over `tiles` (at most SQUARES) is the sum of squares of x's rows;
None: no norm. squares_out: float32 [columns / BLOCK_N, M] of the same for `out`, or None.

With HEADS, y is heads of D features, HEADS of queries and KV_HEADS each of keys and values, which go where
`rope_store.store_heads` puts them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sglc.runtime.kernels.rope_store import store_heads

PREFETCH_BYTES = tl.constexpr(128)  # one line of the L2 cache
HELD = tl.constexpr(2048)  # sums of squares that a program loads ahead of its product


@triton.jit
def _wait(EARLY: tl.constexpr, PDL: tl.constexpr):
    """Until the kernel before is complete; the next one may take free multiprocessors."""
    if PDL and EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    if PDL:
        tl.extra.cuda.gdc_wait()
    if PDL and not EARLY:
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
def _some_squares(squares, first, tiles, rows, M, COUNT: tl.constexpr):
    """Sums of squares [COUNT, rows] from tile `first` on."""
    tile = first + tl.arange(0, COUNT)[:, None]
    return tl.load(squares + tile * M + rows[None, :], mask=(tile < tiles) & (rows < M)[None, :], other=0.0)


@triton.jit
def _scale(held, squares, tiles, rows, M, eps, K: tl.constexpr, COUNT: tl.constexpr, SQUARES: tl.constexpr):
    """1 / rms of each row, from the first COUNT sums of squares, `held`, and the others."""
    total = tl.sum(held, axis=0)
    for first in tl.static_range(COUNT, SQUARES, COUNT):
        total += tl.sum(_some_squares(squares, first, tiles, rows, M, COUNT), axis=0)
    return tl.rsqrt(total / K + eps)


@triton.jit
def _arrive(arrivals, PARTS: tl.constexpr):
    """Whether all other programs of the tile have stored their parts. Leaves zero for the next launch."""
    tl.debug_barrier()  # every thread's part is written before the arrival is announced
    last = tl.atomic_add(arrivals, 1, sem="acq_rel", scope="gpu") == PARTS - 1
    if last:
        tl.store(arrivals, 0)
    return last


@triton.jit
def _store(acc, out, bias, residual, squares_out, rows, columns, tile_n, M, N, out_stride, residual_stride):
    """Add `bias` and `residual` where they are given; round once; sum up the squares of what is stored."""
    mask = (rows < M)[:, None] & (columns < N)[None, :]
    if bias is not None:
        acc += tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    if residual is not None:
        at = residual + rows[:, None] * residual_stride + columns[None, :]
        acc += tl.load(at, mask=mask, other=0.0).to(tl.float32)
    rounded = acc.to(out.dtype.element_ty)
    tl.store(out + rows[:, None] * out_stride + columns[None, :], rounded, mask=mask)
    if squares_out is not None:
        kept = tl.where(mask, rounded.to(tl.float32), 0.0)
        tl.store(squares_out + tile_n * M + rows, tl.sum(kept * kept, axis=1), mask=rows < M)


@triton.jit
def _heads(
    first_row, first_column, M, ROWS: tl.constexpr, COUNT: tl.constexpr, D: tl.constexpr, TOTAL: tl.constexpr
):
    """Token, head and whether it is one, each [ROWS * COUNT, 1], of rows with COUNT heads each."""
    at = tl.arange(0, ROWS * COUNT)[:, None]
    token = first_row + at // COUNT
    head = first_column // D + at % COUNT
    return token, head, (token < M) & (head < TOTAL)


@triton.jit
def _biased_heads(acc, bias, head, live, D: tl.constexpr):
    """[rows, heads * D] -> [rows * heads, D], with `bias` where it is given."""
    x = tl.reshape(acc, (head.shape[0], D))
    if bias is not None:
        x += tl.load(bias + head * D + tl.arange(0, D)[None, :], mask=live, other=0.0).to(tl.float32)
    return x


@triton.jit(do_not_specialize=["M", "tiles"])
def tiled(
    x, weight, out, bias, residual, squares, squares_out, partials, arrivals,
    positions, slots, rotations, pool, norms,
    M, N, tiles, x_stride, out_stride, residual_stride, page_stride, eps, norm_eps,
    K: tl.constexpr, SQUARES: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
    STAGES: tl.constexpr, SWAP: tl.constexpr, GATED: tl.constexpr, EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One tile of the output, or one of SPLIT_K runs of its K. Grid: (tiles, SPLIT_K).

    SWAP multiplies W x^T, so that the rows of W fill the 64 rows of a warpgroup's product and x its
    narrow side. A split tile, and one that is part of a head, goes to `partials` float32 [SPLIT_K, rows,
    columns] (SWAP: [SPLIT_K, columns, rows]); the program that arrives last (`arrivals` int32, one for each
    tile or head, zero before and after) adds them up in the order of K.
    """
    COLUMNS: tl.constexpr = 2 * BLOCK_N if GATED else BLOCK_N
    WIDE: tl.constexpr = D if HEADS > 0 and D > COLUMNS else COLUMNS
    PARTS: tl.constexpr = SPLIT_K * (WIDE // COLUMNS)
    COUNT: tl.constexpr = min(SQUARES, HELD // BLOCK_M)
    TILES_K: tl.constexpr = triton.cdiv(triton.cdiv(K, BLOCK_K), SPLIT_K)
    EVEN: tl.constexpr = K == TILES_K * SPLIT_K * BLOCK_K
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
    _wait(EARLY, PDL)

    first = tile_n * COLUMNS // WIDE * WIDE  # of the tile or its head
    if squares is not None:
        held = _some_squares(squares, 0, tiles, rows, M, COUNT)
    if HEADS > 0:
        token, head, live = _heads(tile_m * BLOCK_M, first, M, BLOCK_M, WIDE // D, D, HEADS + 2 * KV_HEADS)
        position = tl.load(positions + token, mask=live, other=0).to(tl.int64)
        slot = tl.load(slots + token, mask=live, other=0).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    there = (rows < M)[:, None]
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
        if SWAP:
            acc = tl.dot(weight_tile, tl.trans(x_tile), acc, input_precision="ieee")
        else:
            acc = tl.dot(x_tile, tl.trans(weight_tile), acc, input_precision="ieee")

    if PARTS > 1:
        height = tiles_m * BLOCK_M
        width = tl.cdiv(N, BLOCK_N) * COLUMNS
        own = tile_n * COLUMNS + tl.arange(0, COLUMNS)
        every = first + tl.arange(0, WIDE)
        if SWAP:
            mine = partials + own[:, None] * height + rows[None, :]
            whole = partials + every[:, None] * height + rows[None, :]
        else:
            mine = partials + rows[:, None] * width + own[None, :]
            whole = partials + rows[:, None] * width + every[None, :]
        tl.store(mine + split * height * width, acc)
        if not _arrive(arrivals + first // WIDE * tiles_m + tile_m, PARTS):
            return
        # The first-level cache may hold what these addresses held before: read past it.
        acc = tl.load(whole, cache_modifier=".cg")
        for other in tl.static_range(1, SPLIT_K):
            acc += tl.load(whole + other * height * width, cache_modifier=".cg")
    if SWAP:
        acc = tl.trans(acc)
    if squares is not None:
        acc *= _scale(held, squares, tiles, rows, M, eps, K, COUNT, SQUARES)[:, None]
    if HEADS > 0:
        turn = tl.load(rotations + position * D + tl.arange(0, D)[None, :])
        store_heads(
            _biased_heads(acc, bias, head, live, D), turn, slot, head, token, live, out, pool, norms, norm_eps,
            out_stride, D, page_stride, HEADS, KV_HEADS, D, PAGE,
        )  # fmt: skip
    else:
        if GATED:
            acc = _activated(acc, BLOCK_M, BLOCK_N)
        columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        _store(acc, out, bias, residual, squares_out, rows, columns, tile_n, M, N, out_stride, residual_stride)


@triton.jit(do_not_specialize=["M", "tiles"])
def vector(
    x, weight, out, bias, residual, squares, squares_out, partials, arrivals,
    positions, slots, rotations, pool, norms,
    M, N, tiles, x_stride, out_stride, residual_stride, page_stride, eps, norm_eps,
    K: tl.constexpr, SQUARES: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GATED: tl.constexpr, EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """BLOCK_N columns of all rows without tensor cores, for M <= BLOCK_M of 1 to 8. Grid: (columns / BLOCK_N,).

    W stays in registers from its load to its use: its first BLOCK_K columns are on the way before the
    program waits, and the next ones while it multiplies. Parts of a head meet in `partials` float32 [M, N].
    """
    COLUMNS: tl.constexpr = 2 * BLOCK_N if GATED else BLOCK_N
    WIDE: tl.constexpr = D if HEADS > 0 and D > COLUMNS else COLUMNS
    COUNT: tl.constexpr = min(SQUARES, HELD // BLOCK_M)
    STEPS: tl.constexpr = triton.cdiv(K, BLOCK_K)
    EVEN: tl.constexpr = K % BLOCK_K == 0
    tile_n = tl.program_id(0)
    k = tl.arange(0, BLOCK_K)
    weight_rows = _weight_rows(tile_n * BLOCK_N, N, BLOCK_N, GATED)
    weight_at = weight + weight_rows[:, None] * K + k[None, :]
    tile = tl.load(weight_at) if EVEN else tl.load(weight_at, mask=(k < K)[None, :], other=0.0)
    if PDL and STEPS > 1:
        _prefetch(weight, weight_rows, BLOCK_K, K, min(K - BLOCK_K, 4096), COLUMNS)
    _wait(EARLY, PDL)

    rows = tl.arange(0, BLOCK_M)
    if squares is not None:
        held = _some_squares(squares, 0, tiles, rows, M, COUNT)
    if HEADS > 0:
        first = tile_n * COLUMNS // WIDE * WIDE  # of the tile or its head
        token, head, live = _heads(0, first, M, BLOCK_M, WIDE // D, D, HEADS + 2 * KV_HEADS)
        position = tl.load(positions + token, mask=live, other=0).to(tl.int64)
        slot = tl.load(slots + token, mask=live, other=0).to(tl.int64)
        turn = tl.load(rotations + position * D + tl.arange(0, D)[None, :])
    acc = tl.zeros((BLOCK_M, COLUMNS), tl.float32)
    for step in range(STEPS):
        at = step * BLOCK_K + k
        values = tile.to(tl.float32)
        if STEPS > 1:
            tile = tl.load(weight_at + (step + 1) * BLOCK_K, mask=(at + BLOCK_K < K)[None, :], other=0.0)
        for row in tl.static_range(BLOCK_M):
            x_row = tl.load(x + row * x_stride + at, mask=(at < K) & (row < M), other=0.0).to(tl.float32)
            part = tl.sum(values * x_row[None, :], axis=1)
            acc += tl.where((rows == row)[:, None], part[None, :], 0.0)
    if squares is not None:
        acc *= _scale(held, squares, tiles, rows, M, eps, K, COUNT, SQUARES)[:, None]
    if HEADS > 0:
        if WIDE > COLUMNS:
            own = tile_n * COLUMNS + tl.arange(0, COLUMNS)
            tl.store(partials + rows[:, None] * N + own[None, :], acc)
            if not _arrive(arrivals + first // WIDE, WIDE // COLUMNS):
                return
            whole = partials + rows[:, None] * N + (first + tl.arange(0, WIDE))[None, :]
            acc = tl.load(whole, cache_modifier=".cg")
        store_heads(
            _biased_heads(acc, bias, head, live, D), turn, slot, head, token, live, out, pool, norms, norm_eps,
            out_stride, D, page_stride, HEADS, KV_HEADS, D, PAGE,
        )  # fmt: skip
    else:
        if GATED:
            acc = _activated(acc, BLOCK_M, BLOCK_N)
        columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        _store(acc, out, bias, residual, squares_out, rows, columns, tile_n, M, N, out_stride, residual_stride)
