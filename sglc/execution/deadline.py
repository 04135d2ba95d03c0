"""Until when runs have to end: each one from its beginning, and all rows of a batch together."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglc.errors import Loc, RunError, UsageError
from sglc.execution.event_loop import executor_loop
from sglc.frontend.locate import here

_KEPT = "what was computed before is kept"


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a run has to end, on `time.monotonic`'s clock. `what` was given `given_s` seconds by `option`."""

    at_s: float
    what: str
    given_s: float
    option: str

    @property
    def passed(self) -> bool:
        """Whether it is too late already."""
        return time.monotonic() >= self.at_s

    def late(self, loc: Loc | None, waited: str) -> RunError:
        """The error of a run that has not ended; `loc` is where it was, and `waited` says what for."""
        return RunError(
            "SGLC411", f"the {self.what} did not end within {self.given_s:g} s", loc,
            note=f"it waited {waited}; {_KEPT}", hint=f"give it more time: `{self.option}`",
        )  # fmt: skip

    def not_begun(self, loc: Loc | None) -> RunError:
        """The error of a row whose turn did not come, or of a run that took all its time to begin."""
        if self.what == "run":
            return self.late(loc, "for the back end")
        return RunError(
            "SGLC412", f"the {self.what} ended before this row began: its {self.given_s:g} s were over", loc,
            hint=f"give it more time: `{self.option}`",
        )  # fmt: skip


class Clock:
    """The time of one run, or of a batch and each of its rows. Seconds; None: without an end."""

    def __init__(self, row_s: float | None, batch_s: float | None = None, *, what: str = "row") -> None:
        self._row_s = row_s
        self._batch_s = batch_s
        self._what = what
        self._run_ends_s: float | None = None
        self._batch_ends_s: float | None = None

    def begin(self) -> None:
        """The batch begins; or the one run, whose beginning takes of its time."""
        if self._what == "run" and self._row_s is not None:
            self._run_ends_s = time.monotonic() + self._row_s
        if self._batch_s is not None:
            self._batch_ends_s = time.monotonic() + self._batch_s

    def deadline(self) -> Deadline | None:
        """That of a row which begins now: whichever time is over first."""
        ends = []
        if self._row_s is not None:
            option = "timeout" if self._what == "run" else "row_timeout"
            at_s = time.monotonic() + self._row_s if self._run_ends_s is None else self._run_ends_s
            ends.append(Deadline(at_s, self._what, self._row_s, option))
        if self._batch_s is not None and self._batch_ends_s is not None:
            ends.append(Deadline(self._batch_ends_s, "batch", self._batch_s, "timeout"))
        return min(ends, key=lambda end: end.at_s) if ends else None


def clock_of_run(timeout: Any) -> Clock | None:
    """The clock of `run(timeout=...)`; None without a limit.

    Raises:
        UsageError: SGLC041, no number of seconds above 0.
    """
    limit = _seconds("timeout", timeout)
    return None if limit is None else Clock(limit, what="run")


def clock_of_batch(timeout: Any, row_timeout: Any) -> Clock | None:
    """The clock of `run_batch(timeout=..., row_timeout=...)`; None without a limit.

    Raises:
        UsageError: SGLC041, no number of seconds above 0.
    """
    batch_s, row_s = _seconds("timeout", timeout), _seconds("row_timeout", row_timeout)
    return None if batch_s is None and row_s is None else Clock(row_s, batch_s)


def _seconds(name: str, given: Any) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
        raise UsageError("SGLC041", f"`{name}` is `{given!r}`: it is a number of seconds above 0", here())
    return float(given)


class Alarm:
    """Calls `ring` in the executor's loop at a time of `time.monotonic`'s clock, unless it is turned off."""

    __slots__ = ("_ring",)

    def __init__(self, at_s: float, ring: Callable[[], None]) -> None:
        self._ring: Callable[[], None] | None = ring
        loop = executor_loop()
        loop.call_soon_threadsafe(loop.call_at, at_s, self._due)  # its clock is that one

    def off(self) -> None:
        """It will not ring; from any thread, at any time."""
        self._ring = None

    def _due(self) -> None:
        ring = self._ring
        if ring is not None:
            ring()
