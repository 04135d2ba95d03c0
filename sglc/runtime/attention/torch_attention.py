"""Paged attention in torch: the pieces of a plan, each a dense attention, merged by log-sum-exp.

Exact up to float rounding for every plan. Runs on any device; on the CPU the pieces are torch's
fused kernel. The pool of one layer is [slots, 2 * kv_heads, head_dim]: a slot's keys, then its values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglc.runtime.attention.split_plan import AttentionPlan, Bucket, KeyChunk, Pages

_FUSED_ROWS = 24  # of more rows, plain products are faster on the CPU than the fused kernel


@dataclass(frozen=True, slots=True)
class _Keys:
    """`Pages` or a bucket's pages on the device: `index` int64 [R * P], or slots from `first_slot`."""

    rows: int
    length: int
    first_slot: int
    index: Tensor | None


@dataclass(frozen=True, slots=True)
class _Prefix:
    begin: int
    end: int
    keys: _Keys


@dataclass(frozen=True, slots=True)
class _Bucket:
    begin: int
    end: int
    width: int
    keys: _Keys
    mask: Tensor | None
    queries: Tensor | None
    kept: Tensor | None


class PagedAttention:
    """The attention of one step, for every layer of it.

    `forward(heads, pool)`: heads [T, heads + 2 * kv_heads, D] in the plan's order (rotated, and the
    keys and values written to `pool` already) -> [T, heads * D].
    """

    def __init__(
        self, plan: AttentionPlan, heads: int, kv_heads: int, head_dim: int, page_size: int, like: Tensor
    ) -> None:
        """`like`: a tensor on the device and of the type that attention computes in."""
        self._heads, self._kv_heads, self._head_dim = heads, kv_heads, head_dim
        self._page_size = page_size
        self._scale = head_dim**-0.5
        self._device, self._dtype = like.device, like.dtype
        self._prefixes = [_Prefix(p.begin, p.end, self._keys(p.pages)) for p in plan.prefixes]
        self._chunks = plan.chunks
        self._buckets = [self._bucket(b) for b in plan.buckets]

    def forward(self, heads: Tensor, pool: Tensor) -> Tensor:
        tokens = len(heads)
        own: list[tuple[KeyChunk | _Bucket, Tensor, Tensor]] = []
        own += [(chunk, *self._chunk(chunk, heads)) for chunk in self._chunks]
        own += [(bucket, *self._own(bucket, heads, pool)) for bucket in self._buckets]
        if len(own) == 1 and not self._prefixes:
            return own[0][1].reshape(tokens, -1)
        out = heads.new_empty(tokens, self._heads, self._head_dim)
        sums = torch.empty(tokens, self._heads, dtype=own[0][2].dtype, device=self._device)
        for piece, values, log_sums in own:
            out[piece.begin : piece.end] = values
            sums[piece.begin : piece.end] = log_sums
        for prefix in self._prefixes:
            span = slice(prefix.begin, prefix.end)
            values, log_sums = self._prefix(prefix, heads, pool)
            share = torch.sigmoid(log_sums - sums[span])[..., None].to(self._dtype)
            torch.lerp(out[span], values, share, out=out[span])
        return out.view(tokens, -1)

    def _prefix(self, piece: _Prefix, heads: Tensor, pool: Tensor) -> tuple[Tensor, Tensor]:
        """All tokens against the same keys: their heads of one kv head become one run of queries."""
        tokens = piece.end - piece.begin
        queries = self._queries(heads[None, piece.begin : piece.end])
        return self._flat(*_dense(queries, *self._gather(piece.keys, pool), None, self._scale), tokens)

    def _own(self, piece: _Bucket, heads: Tensor, pool: Tensor) -> tuple[Tensor, Tensor]:
        source = heads[piece.begin : piece.end] if piece.queries is None else heads[piece.queries]
        queries = self._queries(source.view(piece.keys.rows, piece.width, -1, self._head_dim))
        keys, values = self._gather(piece.keys, pool)
        out, sums = self._flat(*_dense(queries, keys, values, piece.mask, self._scale), piece.width)
        return (out, sums) if piece.kept is None else (out[piece.kept], sums[piece.kept])

    def _chunk(self, piece: KeyChunk, heads: Tensor) -> tuple[Tensor, Tensor]:
        """One row's new tokens among themselves, straight from `heads`: no copy, no mask tensor."""
        group = self._heads // self._kv_heads
        new = heads[piece.begin : piece.end]
        # The heads that share keys are a dimension of their own, along which keys do not move.
        queries = new[:, : self._heads].view(-1, self._kv_heads, group, self._head_dim).permute(1, 2, 0, 3)
        keys = new[:, self._heads : self._heads + self._kv_heads].transpose(0, 1)[:, None]
        values = new[:, self._heads + self._kv_heads :].transpose(0, 1)[:, None]
        spread = (-1, group, -1, -1)
        out, sums = _causal(queries, keys.expand(spread), values.expand(spread), self._scale)
        return out.permute(2, 0, 1, 3).flatten(1, 2), sums.permute(2, 0, 1).flatten(1)

    def _queries(self, source: Tensor) -> Tensor:
        """[R, width, heads.., D] -> [R, kv_heads, group * width, D]"""
        group = self._heads // self._kv_heads
        rows, width = source.shape[:2]
        split = source[:, :, : self._heads].view(rows, width, self._kv_heads, group, self._head_dim)
        return split.permute(0, 2, 3, 1, 4).reshape(rows, self._kv_heads, group * width, self._head_dim)

    def _flat(self, out: Tensor, sums: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """[R, kv_heads, group * width, D] and [R, kv_heads, group * width] -> [R * width, heads, D] and
        [R * width, heads]"""
        group = self._heads // self._kv_heads
        split = (-1, self._kv_heads, group, width)
        by_token = out.reshape(*split, self._head_dim).permute(0, 3, 1, 2, 4)
        sums_by_token = sums.reshape(split).permute(0, 3, 1, 2)
        return (
            by_token.reshape(-1, self._heads, self._head_dim),
            sums_by_token.reshape(-1, self._heads),
        )

    def _gather(self, keys: _Keys, pool: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [R, kv_heads, length, D]; views of the pool if its pages are neighbours."""
        if keys.index is None:
            found = pool[None, keys.first_slot : keys.first_slot + keys.length]
        else:
            pages = pool.view(-1, self._page_size * pool.shape[1] * pool.shape[2])
            found = pages.index_select(0, keys.index)
            found = found.view(keys.rows, -1, pool.shape[1], pool.shape[2])[:, : keys.length]
        by_head = found.transpose(1, 2)
        return by_head[:, : self._kv_heads], by_head[:, self._kv_heads :]

    def _keys(self, pages: Pages) -> _Keys:
        index = None if pages.index is None else self._put(pages.index)
        return _Keys(1, pages.length, pages.first_slot, index)

    def _bucket(self, piece: Bucket) -> _Bucket:
        rows = len(piece.positions)
        index = None if piece.pages is None else self._put(piece.pages.ravel())
        return _Bucket(
            piece.begin,
            piece.end,
            piece.width,
            _Keys(rows, piece.length, piece.first_slot, index),
            self._mask(piece),
            None if piece.queries is None else self._put(piece.queries),
            None if piece.kept is None else self._put(piece.kept),
        )

    def _mask(self, piece: Bucket) -> Tensor | None:
        """0 where a query sees a key, -inf elsewhere: [R, 1, group * width, length]."""
        last = piece.positions - piece.offset
        if piece.until is None and (last == piece.length - 1).all():
            return None
        hidden = np.arange(piece.length) > last[:, :, None]
        if piece.until is not None:
            hidden |= piece.until <= piece.positions[:, :, None]
        mask = np.where(hidden, np.float32(-np.inf), np.float32(0))[:, None]
        if piece.width > 1:
            mask = np.tile(mask, (1, 1, self._heads // self._kv_heads, 1))
        return torch.from_numpy(mask).to(self._device, self._dtype, non_blocking=True)

    def _put(self, values: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values).to(self._device, non_blocking=True)


def _dense(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """softmax(q k^T * scale + mask) v and the logarithm of the softmax's denominator.

    q [B, H, Q, D]; k, v [B, H, N, D]; mask broadcasts to [B, H, Q, N] -> [B, H, Q, D], [B, H, Q].
    Every query sees a key.
    """
    if not (q.is_cpu and q.dtype is torch.float32):
        return _products(q, k, v, mask, scale)
    if len(q) > _FUSED_ROWS:
        return _products_by_head(q, k, v, mask, scale)
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, sums = fused(q, k, v, 0.0, False, attn_mask=mask, scale=scale)
    return out, sums


def _products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """`_dense` on any device, in any type; the softmax is in float32 at least."""
    scores = torch.matmul(q, k.transpose(-1, -2))
    scores = (scores if scores.dtype is torch.float64 else scores.float()) * scale
    if mask is not None:
        scores = scores + mask
    sums = scores.logsumexp(dim=-1)
    weights = (scores - sums[..., None]).exp().to(v.dtype)
    return torch.matmul(weights, v), sums


def _products_by_head(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """`_dense` for many rows of few queries, where the fused kernel's cost per row and head is most of it.

    One product per head over all rows reads keys and values where they lie; a product over rows and
    heads would copy them first. Results lie head by head, since strided ones would be slower.
    """
    rows, heads, width, _ = q.shape
    scores = q.new_empty(heads, rows, width, k.shape[2])
    base, weight = (q.new_zeros(1, 1, 1), 0) if mask is None else (mask[:, 0], 1)
    for head in range(heads):
        keys = k[:, head].transpose(1, 2)
        torch.baddbmm(base, q[:, head], keys, beta=weight, alpha=scale, out=scores[head])
    weights = scores.softmax(dim=-1)
    out = q.new_empty(heads, rows, width, q.shape[3])
    for head in range(heads):
        torch.bmm(weights[head], v[:, head], out=out[head])
    # A weight is exp(score - log sum). The largest one is at least 1 / N, so its logarithm is exact.
    sums = scores.amax(dim=-1) - weights.amax(dim=-1).log()
    return out.transpose(0, 1), sums.transpose(0, 1)


def _causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """As `_dense`, where query i sees the keys up to i; q, k, v [B, H, N, D]."""
    if q.is_cpu and q.dtype is torch.float32:
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, sums = fused(q, k, v, 0.0, True, scale=scale)
        return out, sums
    count = q.shape[2]
    hidden = torch.full((count, count), -torch.inf, device=q.device).triu(1)
    return _products(q, k, v, hidden, scale)
