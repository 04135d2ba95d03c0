"""Names of requests and of sequences in the cache; how far two sequences are the same."""

from __future__ import annotations

from collections.abc import Sequence
from operator import ne

Handle = int
RequestId = int

_FEW = 32


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading ids are equal."""
    high = min(len(a), len(b))
    if high <= _FEW:
        return (*map(ne, a, b), True).index(True)
    a, b = tuple(a), tuple(b)
    # Many are, which takes no time to see; where they differ is found by halves, not one by one.
    if a[:high] == b[:high]:
        return high
    low = 0  # equal below it, and at most below `high`
    while high - low > _FEW:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low + (*map(ne, a[low:high], b[low:high]), True).index(True)
