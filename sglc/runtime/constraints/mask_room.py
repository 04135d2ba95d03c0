"""How much memory the masks of all automata over one vocabulary may take together.

There are as many as automata have states, and each may take a bit for every id.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

_BESIDE = 400  # bytes of what is kept with a mask: objects, keys, and its place here


class MaskRoom:
    """Bounds what automata keep in dictionaries of their own: what was made first goes first.

    Safe to use from several threads. Who looks a mask up asks the dictionary alone, which says nothing of its
    automaton: that goes when nobody uses it, before its masks.
    """

    def __init__(self, most_bytes: int) -> None:
        self.bytes = 0
        self._most_bytes = most_bytes
        self._kept: deque[tuple[dict[Any, Any], Any, int]] = deque()
        self._lock = threading.Lock()

    def take(self, masks: dict[Any, Any], key: object, size_bytes: int) -> None:
        """Make room for the mask of so many bytes that `masks` has under `key` now."""
        size_bytes += _BESIDE
        with self._lock:
            self._kept.append((masks, key, size_bytes))
            self.bytes += size_bytes
            while self.bytes > self._most_bytes:
                first, key, size_bytes = self._kept.popleft()
                first.pop(key, None)
                self.bytes -= size_bytes
