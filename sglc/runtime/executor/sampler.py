"""Choosing the next token of each row, and log-probabilities, by torch.

Filters apply in this order, each to what the one before left: temperature, top_k, top_p, min_p (the
order of transformers). All three keep the most likely tokens, so together they are one lowest logit
per row; tokens that tie with it are kept. A sample is the winner of an exponential race (the Gumbel-max
trick): the token with the largest weight / noise, where a token's noise is a hash of (seed, position,
token) and of nothing else, so of no other row and no device. Rounding differs with the batch, and
changes the winner only where the two best are equal to rounding; an inverse cumulative distribution
would change with it wherever the tail's steps are as small as the rounding, once in some hundred tokens.
What steps change of logits comes before all of that (`allowed_logits`). Log-probabilities are natural
logarithms of the model's own distribution: before penalties, bias, `no_eos`, masks, temperature and filters.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglc.runtime.executor.logits_output import LogitsKernels, SamplerInput
from sglc.runtime.step import U64

_GOLDEN = 0x9E3779B9 - 2**32  # 2**32 / golden ratio as int32: spreads token ids over all bits
_MOST_NOISE = 69.0  # finite, so that a token that is alone wins
_CANDIDATES = 512  # most likely tokens that hold top_p's mass nearly always


def exponentials(keys: U64, vocab: int, device: torch.device) -> Tensor:
    """Exponentially distributed noise, a function of (key, token) alone: float32 [R, vocab]."""
    halves = torch.from_numpy(keys.view(np.int32).reshape(-1, 2).copy()).to(device)
    x = torch.arange(vocab, dtype=torch.int32, device=device) * _GOLDEN ^ halves[:, :1]
    x = _mix32(_mix32(x) ^ halves[:, 1:])
    # 31 bits, in which small numbers, the ones that win, keep all their digits.
    noise = x.bitwise_and_(0x7FFFFFFF).float().add_(0.5).mul_(2.0**-31).neg_().log1p_().neg_()
    return noise.clamp_(max=_MOST_NOISE)


def _mix32(x: Tensor) -> Tensor:
    """The 32-bit finaliser `lowbias32` of Chris Wellons' hash prospector, on int32, in place."""
    x ^= (x >> 16) & 0xFFFF
    x *= 0x7FEB352D
    x ^= (x >> 15) & 0x1FFFF
    x *= 0x846CA68B - (1 << 32)  # as an int32
    x ^= (x >> 16) & 0xFFFF
    return x


def drawn(logits: Tensor, allowed: Tensor, choice: SamplerInput) -> tuple[Tensor, Tensor]:
    """Next tokens int64 [R] and their log-probabilities float32 [R], behind what is `allowed` of the logits."""
    tokens = allowed.argmax(dim=-1)
    drawn = np.flatnonzero(choice.temperature > 0)
    if len(drawn) == len(tokens):
        tokens = _draw(allowed, choice, drawn)
    elif len(drawn):
        rows = torch.from_numpy(drawn).to(logits.device)
        tokens[rows] = _draw(allowed[rows], choice, drawn)
    return tokens, log_probabilities(logits, tokens)


def log_probabilities(logits: Tensor, ids: Tensor, rows: Tensor | None = None) -> Tensor:
    """log p(ids[i]) under row rows[i] (None: row i): float32 [N] from logits [W, V], ids and rows int64 [N]."""
    logits = logits.float()
    if rows is None:
        rows = torch.arange(len(ids), device=ids.device)
    return logits[rows, ids] - logits.logsumexp(dim=-1)[rows]  # a copy of many rows takes longer than these


def likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` likeliest ids of every row, best first, int64 [N, count], and their log-probabilities."""
    logits = logits.float()
    best = logits.topk(count, dim=-1)
    return best.indices, best.values - logits.logsumexp(dim=-1, keepdim=True)


TORCH = LogitsKernels(drawn, log_probabilities, likeliest)


def filtered(logits: Tensor, choice: SamplerInput, rows: NDArray[np.intp]) -> Tensor:
    """Probabilities that remain after temperature and filters, the best one being 1: float32 [R', V].

    `logits` [R', V] belong to the rows `rows` of `choice`; each has a temperature above 0.
    """

    def column(values: NDArray[np.floating]) -> Tensor:
        return torch.from_numpy(values[rows].astype(np.float32)[:, None]).to(logits.device)

    vocab = logits.shape[1]
    top_k = np.where(choice.top_k > 0, np.minimum(choice.top_k, vocab), vocab)[rows]
    top_p = choice.top_p[rows].astype(np.float64)
    # Relative to the row's best, so that a tiny temperature does not overflow.
    top = logits.amax(dim=-1, keepdim=True)
    weights = ((logits - top) / column(choice.temperature)).exp()
    if (top_k < vocab).any() or (top_p < 1).any():
        lowest = _lowest_weight(weights, top_k, top_p)
        weights = torch.where(weights >= lowest, weights, 0.0)
    if (choice.min_p[rows] > 0).any():
        weights = torch.where(weights >= column(choice.min_p), weights, 0.0)
    return weights


def _draw(logits: Tensor, choice: SamplerInput, rows: NDArray[np.intp]) -> Tensor:
    weights = filtered(logits, choice, rows)
    return (weights / exponentials(choice.keys[rows], weights.shape[1], weights.device)).argmax(dim=-1)


def _lowest_weight(weights: Tensor, top_k: NDArray[np.integer], top_p: NDArray[np.float64]) -> Tensor:
    """The smallest weight that top_k, then top_p keep: float32 [R, 1]."""
    vocab = weights.shape[1]
    limit_k = torch.from_numpy(top_k.astype(np.int64)).to(weights.device)
    limit_p = torch.from_numpy(top_p).to(weights.device)
    total = weights.sum(dim=-1, dtype=torch.float64)
    # Sorting 50,000 numbers costs more than the rest, and a row nearly always needs few of them.
    count = int(top_k.max()) if (top_k < vocab).all() else min(_CANDIDATES, vocab)
    if not weights.is_cpu and not (top_k < vocab).all():
        count = vocab  # whether few are enough is not known without waiting for the device
    best = weights.topk(count, dim=-1).values
    mass = best.cumsum(dim=-1, dtype=torch.float64)
    if count < int(top_k.max()):
        by_k = (limit_k > count) & (limit_k < vocab)
        by_p = (limit_k == vocab) & (limit_p < 1) & (mass[:, -1] < limit_p * total)
        if (by_k | by_p).any():
            best = weights.sort(dim=-1, descending=True).values
            mass = best.cumsum(dim=-1, dtype=torch.float64)
    last_k = limit_k.clamp(max=best.shape[1])[:, None] - 1
    # top_p counts the mass that top_k left.
    left = torch.where(limit_k[:, None] < vocab, mass.gather(1, last_k), total[:, None])
    # A token stays if the tokens before it do not reach the mass; the best one always does.
    reached = (mass - best) < limit_p[:, None] * left
    last_p = torch.where(limit_p < 1, reached.sum(dim=-1) - 1, last_k[:, 0]).clamp(min=0)[:, None]
    lowest = best.gather(1, torch.minimum(last_k, last_p))
    unfiltered = (limit_k == vocab) & (limit_p >= 1)
    return torch.where(unfiltered[:, None], 0.0, lowest)
