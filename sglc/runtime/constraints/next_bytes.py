"""Which byte has to come next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


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
