"""Log-probabilities of given ids, whose logits are read once."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sglc.runtime.kernels.race import LOG2E

_BLOCK = 8192  # logits that are looked at together
_WARPS = 16


@triton.jit
def _log_probabilities(logits, stride, ids, out, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    logits += row.to(tl.int64) * stride
    inside = tl.arange(0, BLOCK)
    top = tl.full([], -1e30, tl.float32)  # from which no -inf is taken
    total = tl.full([], 0.0, tl.float32)
    for begin in range(0, vocab, BLOCK):
        own = tl.load(logits + begin + inside, mask=begin + inside < vocab, other=float("-inf"))
        own = own.to(tl.float32) * LOG2E
        above = tl.maximum(top, tl.max(own, 0))
        total = total * tl.exp2(top - above) + tl.sum(tl.exp2(own - above), 0)
        top = above
    one = tl.load(logits + tl.load(ids + row)).to(tl.float32)
    tl.store(out + row, one - (top + tl.log2(total)) / LOG2E)


def log_probabilities_of(logits: Tensor, ids: Tensor, out: Tensor) -> None:
    """`out` float32 [N] = log p(ids[i]) under row i.

    The sum is carried along with the largest so far (Milakov and Gimelshein, arXiv 1805.02867).

    Args:
        logits: [N, V], of any type, a row contiguous.
        ids: int32 [N].
    """
    rows, vocab = logits.shape
    _log_probabilities[(rows,)](logits, logits.stride(0), ids, out, vocab, BLOCK=_BLOCK, num_warps=_WARPS)
