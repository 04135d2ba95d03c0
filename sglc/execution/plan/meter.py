"""How much runs of a plan may make of texts and blocks, where nobody here wrote the plan.

What a plan may be is checked before it runs. This is for what shows only then: a text that is put together of
itself in each turn of a loop, a list of lists that are all the same one, loops in loops.
"""

from __future__ import annotations

from collections.abc import Mapping

from sglc.errors import RunError
from sglc.execution.plan.values import Exact, Samples

_ITEM = 32  # characters that are gone through in the time of an item


class Meter:
    """What some runs may still take together. Of the executor's thread.

    Args:
        size: characters of texts that steps are given and results have; an item of a list counts as 32.
        blocks: runs of blocks, such as turns of loops, and generations.
    """

    __slots__ = ("_blocks", "_size", "blocks", "size")

    def __init__(self, size: int, blocks: int) -> None:
        self.size, self.blocks = size, blocks
        self._size, self._blocks = size, blocks

    def take(self, value: object) -> None:
        """Somebody goes through all of a value, in which a part counts as often as it stands there.

        Raises:
            RunError: SGLC414, it is too much. Nothing of that size was made.
        """
        stack = [value]
        while stack:
            match stack.pop():
                case str() | bytes() as text:
                    self._size -= len(text)
                case list() | tuple() as items:
                    self._size -= _ITEM * len(items)
                    if self._size >= 0:
                        stack += items
                case Mapping() as items:
                    self._size -= _ITEM * len(items)
                    if self._size >= 0:
                        stack += items.keys()
                        stack += items.values()
                case Samples(texts):
                    stack.append(texts)
                case Exact(item):
                    stack.append(item)
            if self._size < 0:
                raise _too_much(f"{self.size} characters")

    def affords(self, value: object) -> bool:
        """`take`, and whether it was not too much."""
        try:
            self.take(value)
        except RunError:
            return False
        return True

    def begin(self, count: int = 1) -> RunError | None:
        """So many blocks or generations begin; gives why they must not."""
        self._blocks -= count
        return _too_much(f"{self.blocks} turns and generations") if self._blocks < 0 else None


def _too_much(what: str) -> RunError:
    return RunError("SGLC414", f"the runs of the plan take more than {what}")
