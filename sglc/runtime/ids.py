"""Names of requests and of sequences in the cache; how far two sequences are the same."""

from __future__ import annotations

from collections.abc import Sequence

Handle = int
RequestId = int


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading ids are equal."""
    shorter = min(len(a), len(b))
    # Many are, which takes no time to see. A list is no tuple, and is looked through.
    if a[:shorter] == b[:shorter]:
        return shorter
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return shorter
