"""How the rows of a batch are divided among replicas: in contiguous parts of the order of their beginnings.

What the rows of a shard share is computed once, where that shard runs. So shards end where neighbours have
least in common, and a replica gets them in their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator
from itertools import accumulate, pairwise

_SHARDS_EACH = 16  # of a replica, so that all end at about the same time
_FEWEST, _MOST = 64, 4096  # rows of a share, where there are so many for each replica


def share_of(rows: int, replicas: int) -> int:
    """How many rows a shard has at most."""
    return min(_MOST, max(rows // (_SHARDS_EACH * replicas), min(_FEWEST, -(-rows // replicas)), 1))


def cuts(shared: Iterable[int], share: int) -> Iterator[int]:
    """The sizes of the shards of rows that are in the order of their beginnings, as they come.

    A shard has at most `share` rows. Rows that begin alike and are no more than that are in one shard, whatever
    they have in common: a longer run of them is split.

    Args:
        shared: of each row, how much of its beginning is that of the row before.
    """
    ahead: list[int] = []
    for length in shared:
        ahead.append(length)
        if len(ahead) > share:
            end = min(range(1, share + 1), key=lambda place: (ahead[place], -place))
            yield end
            del ahead[:end]
    if ahead:
        yield len(ahead)


class Schedule:
    """Which shard a replica gets next: those of its own part of the rows in order, then what others have left.

    Args:
        sizes: of the shards, in order.
    """

    def __init__(self, sizes: Iterable[int], replicas: int) -> None:
        ends = [*accumulate(sizes, initial=0)]
        self._parts: list[deque[range]] = [deque() for _ in range(replicas)]
        for begin, end in pairwise(ends):
            self._parts[(begin + end) * replicas // (2 * ends[-1])].append(range(begin, end))

    def __bool__(self) -> bool:
        """Whether there are any left."""
        return any(self._parts)

    def next(self, replica: int, helped: Container[int]) -> range | None:
        """The places of its next rows; None: nothing is left for it.

        Args:
            helped: the replicas whose parts it may take of.
        """
        own = self._parts[replica]
        if own:
            return own.popleft()
        others = [part for number, part in enumerate(self._parts) if part and number in helped]
        if not others:
            return None
        return max(others, key=lambda part: part[-1].stop - part[0].start).pop()
