"""Streams that segments keep for later ones, by their handles.

A handle is promised from the moment at which the segment that will keep it begins. What opens it before
that waits, and what releases it before that is done as soon as it is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from sglc.errors import RunError

S = TypeVar("S")  # a stream, as its back end has it
W = TypeVar("W")  # who waits for one


class Kept(Generic[S, W]):
    """The kept streams of one back end.

    Args:
        drop: gives back what a stream holds.
    """

    def __init__(self, drop: Callable[[S], object]) -> None:
        self._drop = drop
        self._streams: dict[int, S] = {}
        self._promised: dict[int, list[W]] = {}
        self._unwanted: set[int] = set()  # promised handles that were released already

    @property
    def empty(self) -> bool:
        """Whether nothing is kept, or promised."""
        return not (self._streams or self._promised or self._unwanted)

    def promise(self, handle: int | str) -> None:
        """`handle` will be kept, or `give_up` be called."""
        self._promised[_bound(handle)] = []

    def open(self, handle: int | str | None, waiter: W) -> S | None:
        """The stream; None if it is only promised: `keep` or `give_up` then name `waiter`.

        Raises:
            RunError: SGLC403, it is not kept any more.
        """
        number = _bound(handle)
        if number in self._promised:
            self._promised[number].append(waiter)
            return None
        if number not in self._streams:
            raise RunError("SGLC403", "a stream is continued that is not kept any more")
        return self._streams[number]

    def keep(self, handle: int | str, stream: S, go_on: Callable[[W], None]) -> None:
        """Keep `stream`, as was promised; `go_on` is called for all that wait for it."""
        number = _bound(handle)
        self._streams[number] = stream
        for waiter in self._promised.pop(number):
            go_on(waiter)
        if number in self._unwanted:
            self._unwanted.discard(number)
            self.release(number)

    def release(self, handle: int) -> None:
        """Forget a stream. Nothing, if what would have kept it failed."""
        if handle in self._promised:
            self._unwanted.add(handle)
        elif handle in self._streams:
            self._drop(self._streams.pop(handle))

    def give_up(self, handle: int | str) -> list[W]:
        """What was promised will not be kept; gives those that wait for it."""
        number = _bound(handle)
        self._unwanted.discard(number)
        return self._promised.pop(number, [])


def _bound(handle: int | str | None) -> int:
    assert isinstance(handle, int), f"handle {handle!r} is not bound"
    return handle
