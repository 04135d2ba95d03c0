"""Which byte has to come next, and whose turn it is to ask for more than one.

To ask for one after the other is many short calls: each lets go of Python's lock and takes it again, and the
more threads do that side by side, the longer a step waits for it each time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 2
_TURN_S = 0.1  # who has had one for longer may not come back, and counts no more

_CHANGED = threading.Condition()
_BEGAN: list[float] = []  # when the turns began that have not ended


@contextmanager
def turn() -> Iterator[None]:
    """Wait until few others have a turn, though never for long."""
    with _CHANGED:
        _CHANGED.wait_for(_is_free, _TURN_S)
        began_s = monotonic()
        _BEGAN.append(began_s)
    try:
        yield
    finally:
        with _CHANGED:
            _BEGAN.remove(began_s)
            _CHANGED.notify()


def _is_free() -> bool:
    least_s = monotonic() - _TURN_S
    return sum(began_s > least_s for began_s in _BEGAN) < _AT_ONCE


class NextBytes:
    """Which byte a mask wants next, told by few ids where every byte is one."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        begins = np.array([data[0] if data else -1 for data in token_bytes], np.int32)
        single = np.array([len(data) == 1 for data in token_bytes], np.bool_)
        everywhere = set(b"".join(token_bytes)) <= set(begins[single].tolist())
        ids = np.flatnonzero(single if everywhere else begins >= 0)
        self._bytes, self._places = begins[ids].astype(np.uint8), ids // 8
        self._bits = np.uint8(1) << ids.astype(np.uint8) % 8

    def only(self, packed: NDArray[np.uint8], may_end: bool) -> int | None:
        """The byte that all ids begin with that are allowed; None if there are several, or the text may end."""
        if may_end:
            return None
        found = self._bytes[(packed[self._places] & self._bits).nonzero()[0]].tobytes()
        return found[0] if found and found.count(found[0]) == len(found) else None
