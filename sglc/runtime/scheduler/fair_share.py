"""Whose turn it is of those who share a runtime: start-time fair queueing (Goyal, Vin and Cheng 1996).

Every text has a tag: where it would begin if all who wait had equal shares, counted in texts of each. Who has
asked for a thousand has them behind each other, and another's first one comes right behind what has begun by
then. Who has not asked for a while has saved nothing up.
"""

from __future__ import annotations


class FairShare:
    """The tags of one engine. The lower goes first; what is of no share has 0."""

    __slots__ = ("_ends", "_now")

    def __init__(self) -> None:
        self._now = 0  # the highest tag of those that have begun
        self._ends: dict[str, int] = {}  # of each share, behind all that it has asked for

    def tag(self, share: str, texts: int) -> int:
        """The tag of the next `texts` of a `share`."""
        start = max(self._now, self._ends.get(share, 0))
        self._ends[share] = start + texts
        return start

    def began(self, tag: int) -> None:
        """Texts of this tag have begun."""
        self._now = max(self._now, tag)
