"""What a prefix tree stores and removes, for whoever follows it from outside, such as a gateway that routes.

Only whole pages are told of. Each is named by its serial number, which no other page of the tree has.
While nobody follows, there is no log, and the tree looks no further than that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

Key = tuple[int, ...]

MOST = 1 << 16  # changes that wait for who follows; who comes later begins anew with what there is
# One change: a page stored, as its name, that of the page before it (0: none), its ids and its namespace; a
# page removed, as its name; or, without anything, all that was there before.
Change = tuple[int, int, Key, str] | tuple[int] | tuple[()]


class Run(Protocol):
    """A node of the tree: pages one behind the other, `serial` the last one's."""

    parent: Any
    serial: int
    key: Key
    pages: list[int]
    namespace: str
    children: list[Any]


class CacheLog:
    """The changes since it was made; of these the last `most`."""

    __slots__ = ("_changes", "count")

    def __init__(self, most: int = MOST) -> None:
        self.count = 0  # changes in all
        self._changes: deque[Change] = deque(maxlen=most)

    def cleared(self) -> None:
        """All are gone."""
        self.add(())

    def since(self, count: int) -> list[Change] | None:
        """The changes behind the first `count`; None if not all of them are here any more."""
        new = self.count - count
        if not 0 <= new <= len(self._changes):
            return None
        return [self._changes[at] for at in range(len(self._changes) - new, len(self._changes))]

    def add(self, change: Change) -> None:
        """One more."""
        self.count += 1
        self._changes.append(change)


def stored(run: Run, page_size: int) -> Iterator[Change]:
    """Whole pages of a node, each behind the one before it."""
    first, parent = run.serial - len(run.pages) + 1, run.parent.serial
    for number in range(len(run.key) // page_size):
        yield first + number, parent, run.key[number * page_size : (number + 1) * page_size], run.namespace
        parent = first + number


def whole(roots: Mapping[str, Run], page_size: int) -> Iterator[Change]:
    """What there is, as if it were stored now: all is gone, then each page behind the one before it."""
    yield ()
    waiting = [child for root in roots.values() for child in root.children]
    while waiting:
        run = waiting.pop()
        yield from stored(run, page_size)
        waiting += run.children
