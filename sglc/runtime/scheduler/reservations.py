"""KV that a program will come back to soon, kept from those behind it in the queue.

While a program waits for a tool, its pages could serve somebody else, who would take them, and who loses them
when the program comes back and takes them again. To hold n tokens for g steps costs n * g tokens of memory and
steps. To compute them again takes n / b steps of b tokens, in which a pool of p tokens waits: n * p / b. So
what comes back within p / b steps is held, and for so long at most: then a hold costs no more than what it
saves, and who is wrong about the time pays at most twice of what knowing it would have cost.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglc.runtime.cache.page_tree import PageNode, RadixTree
from sglc.runtime.ids import Handle


@dataclass(frozen=True, slots=True)
class _Reservation:
    place: int
    until: int
    node: PageNode  # locked


class PrefixReservations:
    """The holds of one engine.

    Args:
        longest: steps for which something is held at most.
    """

    __slots__ = ("_tree", "held", "longest")

    def __init__(self, tree: RadixTree, longest: int) -> None:
        self.longest = longest
        self._tree = tree
        self.held: dict[Handle, _Reservation] = {}

    def add(self, handle: Handle, node: PageNode, place: int, step: int) -> None:
        """From `step` on hold the pages down to `node`, those of `handle`, for the program at `place`."""
        self._tree.lock(node)  # before its last hold ends: a node that nobody holds may go
        self.drop(handle)
        self.held[handle] = _Reservation(place, step + self.longest, node)

    def drop(self, handle: Handle) -> None:
        """The program is back, or will not come: its pages are anybody's. Nothing, if they are not held."""
        hold = self.held.pop(handle, None)
        if hold is not None:
            self._tree.unlock(hold.node)

    def expire(self, step: int) -> None:
        """End the holds that have lasted until `step`."""
        for handle in [handle for handle, hold in self.held.items() if hold.until <= step]:
            self.drop(handle)

    def give_up(self, place: int = -1) -> bool:
        """End the hold of the last program in the queue, if that is behind `place`; whether there was one."""
        last = max(self.held, key=lambda handle: self.held[handle].place, default=None)
        if last is None or self.held[last].place <= place:
            return False
        self.drop(last)
        return True

    def nodes(self) -> list[PageNode]:
        """What is locked."""
        return [hold.node for hold in self.held.values()]

    def reset(self) -> None:
        """The tree was cleared, its locks with it."""
        self.held.clear()
