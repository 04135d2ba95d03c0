"""The KV pages of a pool and who owns each of them.

A page is free, a node's, private to one row, or in quarantine until a step is drained. Ids live on
the host. Freeing what is not owned that way is a bug of ours and raises AssertionError.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from sglc.runtime.step import I32


class Owner(IntEnum):
    """Who may write or free a page."""

    FREE = 0
    NODE = 1  # the prefix tree: never written again
    PRIVATE = 2  # one row writes it
    QUARANTINE = 3  # nobody's, but a step that is not drained still touches it


# These run once for every page or row, and plain integers are faster.
_FREE, _NODE, _PRIVATE, _QUARANTINE = map(int, Owner)


class PagePool:
    """Hands out pages and takes them back. `free` counts the pages that can be had at once."""

    __slots__ = ("_drained", "_stack", "_waiting", "free", "owner")

    def __init__(self, pages: int) -> None:
        self.owner = np.full(pages, Owner.FREE, np.int8)
        self.free = pages
        # A stack, lowest id on top, so that equal runs use equal pages.
        self._stack = np.arange(pages - 1, -1, -1, dtype=np.int32)
        self._waiting: list[tuple[int, I32]] = []
        self._drained = -1

    @property
    def awaited(self) -> bool:
        """Whether pages become free when a step is drained."""
        return bool(self._waiting)

    def take(self, count: int) -> I32:
        """`count` free pages, now private: int32 [count]. The caller has made sure that they exist."""
        assert count <= self.free, f"{count} pages wanted, {self.free} free"
        self.free -= count
        pages = self._stack[self.free : self.free + count][::-1].copy()
        self._move(pages, _FREE, _PRIVATE)
        return pages

    def adopt(self, page: int) -> None:
        """A private page becomes a node's."""
        assert self.owner[page] == _PRIVATE, f"page {page} is not private"
        self.owner[page] = _NODE

    def adopt_all(self, pages: I32) -> None:
        """Private pages int32 [n] become nodes' each."""
        assert (self.owner[pages] == _PRIVATE).all(), f"pages {pages.tolist()} are not private"
        self.owner[pages] = _NODE

    def drop(self, page: int) -> None:
        """A node's page that no step in flight touches becomes free."""
        assert self.owner[page] == _NODE, f"pages [{page}] are not NODE"
        self.owner[page] = _FREE
        self._stack[self.free] = page
        self.free += 1

    def retire(self, pages: I32, step: int) -> None:
        """Private pages int32 [n] become free once `step`, the last that touches them, is drained."""
        if not pages.size:
            return
        if step <= self._drained:
            self._move(pages, _PRIVATE, _FREE)
            self._push(pages)
        else:
            self._move(pages, _PRIVATE, _QUARANTINE)
            self._waiting.append((step, pages))

    def drained(self, step: int) -> None:
        """`step` and all before it are over: what waited for them is free."""
        self._drained = step
        if not self._waiting:
            return
        due = [pages for until, pages in self._waiting if until <= step]
        self._waiting = [entry for entry in self._waiting if entry[0] > step]
        for pages in due:
            self._move(pages, _QUARANTINE, _FREE)
            self._push(pages)

    def _move(self, pages: I32, old: int, new: int) -> None:
        wrong = self.owner[pages] != old
        assert not wrong.any(), f"pages {pages[wrong].tolist()} are not {Owner(old).name}"
        self.owner[pages] = new
        assert len(set(pages.tolist())) == pages.size, f"pages twice in {pages.tolist()}"

    def _push(self, pages: I32) -> None:
        self._stack[self.free : self.free + pages.size] = pages[::-1]
        self.free += pages.size
