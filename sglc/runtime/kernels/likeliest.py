"""The likeliest ids of rows, whose logits are read once: groups by their largest, then the ids of the first."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sglc.runtime.kernels.race import order_of

_TILE = 2048  # logits that a program reads
_MOST_GROUPS = 2048  # of a row
_GROUP = 128  # logits, at least
_NONE = tl.constexpr(-(2**63))


@triton.jit
def _keys(logits, numbers, there):
    """int64 in the order of the logits: of equal ones the lower number is first, what is not `there` last."""
    return tl.where(
        there, (order_of(logits, 0).to(tl.int64) << 32) | (0x7FFFFFFF - numbers).to(tl.int64), _NONE
    )


@triton.jit
def _number(key):
    return 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def _largest_of_groups(
    logits, stride, largest, vocab, GROUP: tl.constexpr, MOST: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """largest float32 [R, MOST]: of each GROUP logits of a row."""
    row, part = tl.program_id(0), tl.program_id(1)
    ids = part * TILE + tl.arange(0, TILE)
    own = tl.load(logits + row.to(tl.int64) * stride + ids, mask=ids < vocab, other=float("-inf"))
    found = tl.max(tl.reshape(own.to(tl.float32), [TILE // GROUP, GROUP]), 1)
    first = row * MOST + part * (TILE // GROUP)
    tl.store(largest + first + tl.arange(0, TILE // GROUP), found)


@triton.jit(do_not_specialize_on_alignment=["sampled", "logprobs", "best_ids", "best_logprobs"])
def _best_of_row(
    logits, stride, largest, sampled, logprobs, best_ids, best_logprobs, vocab,
    COUNT: tl.constexpr, GROUP: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """The COUNT first ids are in the COUNT first groups. What one logit lacks to its log-probability is what
    each lacks."""
    row = tl.program_id(0)
    logits += row.to(tl.int64) * stride
    numbers, place = tl.arange(0, MOST), tl.arange(0, COUNT)
    there = numbers * GROUP < vocab
    found = tl.load(largest + row * MOST + numbers, mask=there, other=0.0)
    keys = _keys(found, numbers, there)
    groups = tl.zeros([COUNT], tl.int32)
    for at in tl.static_range(COUNT):
        best = tl.max(keys, 0)
        keys = tl.where(keys == best, _NONE, keys)
        groups = tl.where((place == at) & (best != _NONE), _number(best), groups)
    ids = tl.reshape(groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :], [COUNT * GROUP])
    there = ids < vocab
    keys = _keys(tl.load(logits + ids, mask=there, other=0.0).to(tl.float32), ids, there)
    first = tl.zeros([COUNT], tl.int32)
    for at in tl.static_range(COUNT):
        best = tl.max(keys, 0)
        keys = tl.where(keys == best, _NONE, keys)
        first = tl.where(place == at, _number(best), first)
    one = tl.maximum(tl.load(sampled + row), 0)
    lack = tl.load(logits + one).to(tl.float32) - tl.load(logprobs + row)
    tl.store(best_ids + row * COUNT + place, first)
    tl.store(best_logprobs + row * COUNT + place, tl.load(logits + first).to(tl.float32) - lack)


def likeliest_of_sampled(
    logits: Tensor, ids: Tensor, logprobs: Tensor, best_ids: Tensor, best_logprobs: Tensor
) -> None:
    """The likeliest ids of each row, best first (of equal ones the lowest), and their log-probabilities.

    Args:
        logits: [R, V], of any type, a row contiguous.
        ids: int32 [R], of which `logprobs`, float32 [R], are known; below 0 counts as 0.
        best_ids: int32 [R, count] is written, and `best_logprobs`, float32 [R, count]. `count` is a power of
            two, at most V.
    """
    rows, vocab = logits.shape
    count = best_ids.shape[1]
    group = max(_GROUP, triton.next_power_of_2(triton.cdiv(vocab, _MOST_GROUPS)))
    tile = max(_TILE, group)
    largest = torch.empty(rows, _MOST_GROUPS, device=logits.device)
    _largest_of_groups[(rows, triton.cdiv(vocab, tile))](
        logits, logits.stride(0), largest, vocab, group, _MOST_GROUPS, tile, num_warps=4
    )
    _best_of_row[(rows,)](
        logits, logits.stride(0), largest, ids, logprobs, best_ids, best_logprobs, vocab, count, group,
        _MOST_GROUPS, num_warps=4,
    )  # fmt: skip
