"""What a run gives: texts by name, counts, times, and the error if there was one.

A result is there at once; reading waits for what it needs. A failure keeps what was computed.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sglc.errors import Loc, SglcError, render
from sglc.ir.core import Site
from sglc.ir.plan import Sample, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One generation or choice as it went. Times are seconds since the run began."""

    site: Site
    loc: Loc
    kind: str  # "gen" or "select"
    prompt_ids: tuple[int, ...]
    samples: tuple[Sample, ...] = ()
    choice: int = -1
    scores: tuple[float, ...] = ()
    choice_ids: tuple[tuple[int, ...], ...] = ()
    logprobs: tuple[tuple[float, ...], ...] = ()
    usage: Usage
    started_s: float
    first_s: float  # first text, or the end where none came before
    ended_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run."""

    value: Any
    error: BaseException | None
    variables: Mapping[str, Any]
    errors: Mapping[str, BaseException]  # variables that could not be made, and why
    text: str
    messages: list[dict[str, str]]
    calls: tuple[Call, ...]
    total_s: float


class Result:
    """A run of a program, finished or not.

    `seed` is the run's seed and `row` its place in a batch: both together repeat the run.
    """

    def __init__(self, name: str, seed: int, row: int = 0) -> None:
        self.seed = seed
        self.row = row
        self._name = name
        self._ended = threading.Event()
        self._outcome: Outcome | None = None
        self._seen = False
        _UNREAD.add(self)

    # -- reading ---------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """The variable `name`; waits for the run.

        Raises:
            the run's error, if that is why the variable is missing.
            KeyError: the run went well and stored nothing under `name`.
        """
        outcome = self._wait()
        if name in outcome.variables:
            return outcome.variables[name]
        if name in outcome.errors:
            self._seen = True
            raise outcome.errors[name]
        self._raise(outcome)
        raise KeyError(name)

    def __contains__(self, name: str) -> bool:
        return name in self._wait().variables

    def get_var(self, name: str) -> Any:
        """`result[name]` under its older name."""
        return self[name]

    def text(self) -> str:
        """The whole prompt with everything generated.

        Raises:
            the run's error, if it failed.
        """
        return self._good().text

    def messages(self) -> list[dict[str, str]]:
        """The chat turns as `{"role", "content"}`.

        Raises:
            the run's error, if it failed.
        """
        return self._good().messages

    @property
    def ret_value(self) -> Any:
        """What the function returned.

        Raises:
            the run's error, if it failed.
        """
        return self._good().value

    def error(self) -> BaseException | None:
        """The error that ended the run, or None. Waits; never raises."""
        self._seen = True
        return self._wait().error

    def sync(self) -> Result:
        """Wait until the run has ended, well or not."""
        self._wait()
        return self

    @property
    def variables(self) -> Mapping[str, Any]:
        """Everything that was stored, of a failed run too."""
        return self._wait().variables

    @property
    def partial_text(self) -> str:
        """The prompt as far as it came, of a failed run too."""
        return self._wait().text

    @property
    def calls(self) -> tuple[Call, ...]:
        """The generations and choices that were completed, in order of completion."""
        return self._wait().calls

    @property
    def usage(self) -> Usage:
        """Token counts of the run."""
        return total(self.calls)

    def get_meta_info(self, name: str) -> dict[str, Any] | None:
        """Counts, finish reason, scores and ids of the newest call that stored `name`."""
        for call in reversed(self.calls):
            if call.site.name == name:
                return asdict(call)
        return None

    def as_json(self) -> dict[str, Any]:
        """`text`, `vars`, `value`, `usage`, `error` and `timing` as plain data."""
        outcome = self._wait()
        self._seen = True
        return {
            "row": self.row,
            "text": outcome.text,
            "vars": dict(outcome.variables),
            "value": outcome.value,
            "usage": asdict(self.usage),
            "error": None if outcome.error is None else error_json(outcome.error),
            "timing": timing(outcome),
            "seed": self.seed,
        }

    # -- writing (the executor) ------------------------------------------------------------------

    def finish(self, outcome: Outcome) -> None:
        """The run has ended; called once."""
        assert self._outcome is None
        self._outcome = outcome
        self._ended.set()

    # -- inside ----------------------------------------------------------------------------------

    def _wait(self) -> Outcome:
        self._ended.wait()
        assert self._outcome is not None
        return self._outcome

    def _good(self) -> Outcome:
        outcome = self._wait()
        self._raise(outcome)
        return outcome

    def _raise(self, outcome: Outcome) -> None:
        if outcome.error is not None:
            self._seen = True
            raise outcome.error

    def _unread_error(self) -> BaseException | None:
        ended = self._outcome is not None and not self._seen
        return self._outcome.error if ended and self._outcome is not None else None


def total(calls: tuple[Call, ...]) -> Usage:
    """The sum of the calls' counts."""
    return sum((call.usage for call in calls), Usage())


def timing(outcome: Outcome) -> dict[str, float]:
    """Seconds: the whole run, and until the first generated text."""
    first = min((call.first_s for call in outcome.calls), default=outcome.total_s)
    return {"total_s": round(outcome.total_s, 4), "first_text_s": round(first, 4)}


def error_json(error: BaseException) -> dict[str, Any]:
    """An error as plain data."""
    if isinstance(error, SglcError):
        return {
            "code": error.code,
            "message": error.message,
            "loc": str(error.loc) if error.loc else None,
            "note": error.note,
            "hint": error.hint,
        }
    return {"code": type(error).__name__, "message": str(error), "loc": None, "note": "", "hint": ""}


_UNREAD: weakref.WeakSet[Result] = weakref.WeakSet()


def report_unread() -> None:
    """Print the failures that nobody looked at; called when the process ends."""
    failed = [(r.row, r._name, error) for r in _UNREAD if (error := r._unread_error()) is not None]
    for row, name, error in sorted(failed, key=lambda item: item[:2]):
        shown = render(error) if isinstance(error, SglcError) else f"{type(error).__name__}: {error}"
        print(f"sglc: row {row} of `{name}` failed, and its error was never read:\n{shown}", file=sys.stderr)
