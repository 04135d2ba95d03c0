"""What a prefix tree stores and removes, for whoever follows it from outside, such as a gateway that routes.

Only whole pages are told of. Each is named by its node's serial number, which no other node of the tree has.
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


class Page(Protocol):
    """A node of the tree."""

    serial: int
    key: Key
    namespace: str
    children: list[Any]


class CacheLog:
    """The changes since it was made; of these the last `most`."""

    __slots__ = ("_changes", "count")

    def __init__(self, most: int = MOST) -> None:
        self.count = 0  # changes in all
        self._changes: deque[Change] = deque(maxlen=most)

    def stored(self, page: Page, parent: int) -> None:
        """A whole page, which stands behind another one."""
        self._add((page.serial, parent, page.key, page.namespace))

    def removed(self, page: Page) -> None:
        """A whole page is gone."""
        self._add((page.serial,))

    def cleared(self) -> None:
        """All are gone."""
        self._add(())

    def since(self, count: int) -> list[Change] | None:
        """The changes behind the first `count`; None if not all of them are here any more."""
        new = self.count - count
        if not 0 <= new <= len(self._changes):
            return None
        return [self._changes[at] for at in range(len(self._changes) - new, len(self._changes))]

    def _add(self, change: Change) -> None:
        self.count += 1
        self._changes.append(change)


def whole(roots: Mapping[str, Page], page_size: int) -> Iterator[Change]:
    """What there is, as if it were stored now: all is gone, then each page behind the one before it."""
    yield ()
    waiting = [(child, 0) for root in roots.values() for child in root.children]
    while waiting:
        page, parent = waiting.pop()
        if len(page.key) == page_size:
            yield page.serial, parent, page.key, page.namespace
            waiting += [(child, page.serial) for child in page.children]
