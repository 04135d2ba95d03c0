"""Names of requests and of sequences in the cache; how far two sequences are the same."""

from __future__ import annotations

from collections.abc import Sequence
from operator import ne

Handle = int
RequestId = int

_FEW = 32


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading ids are equal."""
    a, b = tuple(a), tuple(b)
    low, high = 0, min(len(a), len(b))  # equal below the one, and at most below the other
    if high > _FEW:
        # Many are, which takes no time to see; where they differ is found by halves, not one by one.
        if a[:high] == b[:high]:
            return high
        while high - low > _FEW:
            middle = (low + high) // 2
            if a[low:middle] == b[low:middle]:
                low = middle
            else:
                high = middle
    return low + (*map(ne, a[low:high], b[low:high]), True).index(True)
