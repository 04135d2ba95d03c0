"""When a runtime that broke down is begun again: at once, and later if the next ones do no better."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass

from sglc.errors import BackendError, SglcError

_SHORT_S = 5.0  # what lived less than this with its model has done no better than the one before
_AT_ONCE = 3  # short lives in a row before anybody has to wait
_LONGEST_S = 30.0


@dataclass(frozen=True, slots=True, eq=False)
class Breakdown:
    """The end of a runtime that nobody asked for.

    Fields:
        loaded_s: when its model was loaded, and `ended_s`, when it ended, both of the monotonic clock; None
            where it was not loaded.
    """

    error: SglcError
    loaded_s: float | None
    ended_s: float

    @staticmethod
    def now(error: SglcError, loaded_s: float | None) -> Breakdown:
        """What has just happened."""
        return Breakdown(error, loaded_s, time.monotonic())


class Restarts:
    """Counts the breakdowns of a back end's runtimes, one after the other."""

    def __init__(self) -> None:
        self._last: Breakdown | None = None
        self._in_a_row = 0
        self._was_loaded = False

    def allow(self, breakdown: Breakdown) -> None:
        """Return if another runtime may be begun after this one.

        Raises:
            SglcError: not yet, or never, because no runtime ever had its model: it is what ended this one.
        """
        if breakdown is not self._last:
            self._last = breakdown
            self._was_loaded |= breakdown.loaded_s is not None
            lived_s = breakdown.ended_s - (breakdown.loaded_s or breakdown.ended_s)
            self._in_a_row = self._in_a_row + 1 if lived_s < _SHORT_S else 1
        error = breakdown.error
        if not self._was_loaded:
            raise error
        over = self._in_a_row - _AT_ONCE
        delay_s = min(2.0 ** (over - 1), _LONGEST_S) if over > 0 else 0.0
        left_s = breakdown.ended_s + delay_s - time.monotonic()
        if left_s > 0:
            raise BackendError(
                error.code, f"{error.message}; this was the breakdown number {self._in_a_row} in a row",
                hint=f"the runtime is begun again in {math.ceil(left_s)} s",
            )  # fmt: skip
        print(f"sglc: {error.message}; the runtime is begun again", file=sys.stderr, flush=True)
