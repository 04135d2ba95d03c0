"""What has happened on the way to a place in a program, when only one of several arms runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from sglc.ir.core import Op

_K = TypeVar("_K")


class Paths(Generic[_K]):
    """The first op that did something to each key, on any path that leads to this place.

    For exclusive arms: take a `mark`, walk an arm, `rewind` to the mark, and behind all arms
    `restore` what those did that come back. An arm thus sees what came before, not its siblings.
    """

    def __init__(self) -> None:
        self._first: dict[_K, Op] = {}
        self._order: list[_K] = []

    def add(self, key: _K, op: Op) -> Op | None:
        """Enter `op` for `key`; the earlier op if there is one, which then stays."""
        earlier = self._first.get(key)
        if earlier is None:
            self._first[key] = op
            self._order.append(key)
        return earlier

    def mark(self) -> int:
        """This place, for `rewind`."""
        return len(self._order)

    def rewind(self, mark: int) -> Mapping[_K, Op]:
        """Forget what was entered since `mark`; returns it."""
        since = self._order[mark:]
        del self._order[mark:]
        return {key: self._first.pop(key) for key in since}

    def restore(self, arms: Iterable[Mapping[_K, Op]]) -> None:
        """Enter again what the arms did that lead to this place."""
        for arm in arms:
            for key, op in arm.items():
                self.add(key, op)
