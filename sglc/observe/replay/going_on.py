"""Going on with a recording: what of it holds, and what the call that goes on with it says besides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sglc.errors import SglcError, UsageError
from sglc.observe.replay.tape import NOTHING_AGAIN, STOPS, Json, TapeRow, value_json

ALL = "all"


@dataclass(frozen=True, slots=True)
class GoingOn:
    """How a run goes on.

    Args:
        retry_failed: what failed is asked again, in rows that ended with an error.
        redo: names of functions, or `all`: they are called again where it is not known how a call ended.
        answers: what a person said, by the names of pauses; or that by row.
    """

    retry_failed: bool = False
    redo: frozenset[str] = frozenset()
    answers: Mapping[Any, Any] = field(default_factory=dict)

    def is_over(self, row: TapeRow, path: str) -> bool:
        """Whether a row has ended, or a program that it calls: not if that came from outside.

        Nor if a value is not in its journal: whether its function is called again is found out when it goes on.
        """
        if row.lacks_value():
            return False
        if path and self.is_over(row, ""):
            return True
        end = row.ends.get(path)
        if end is None:
            return False
        return end["error"] is None or not (_from_outside(end["error"]) or self.retry_failed)

    def again(self, row: TapeRow, path: str) -> Json:
        """What is not taken from a row that goes on: what failed in it, if it ended with that."""
        end = row.ends.get(path)
        if end is None or end["error"] is None or _from_outside(end["error"]):
            return NOTHING_AGAIN
        again: Json = end.get("failed", NOTHING_AGAIN)
        return again

    def redoes(self, name: str) -> bool:
        """Whether a function may be called again."""
        return ALL in self.redo or name in self.redo or name.rpartition(".")[2] in self.redo

    def answer(self, number: int, name: str) -> tuple[Any] | None:
        """What was answered to a pause of a row."""
        for given in (self.answers.get(number), self.answers):
            if isinstance(given, Mapping) and name in given:
                return (given[name],)
        return None


FROM_ANEW = GoingOn()
_INTERRUPTIONS = ("KeyboardInterrupt", "SystemExit", "CancelledError")


def _from_outside(error: Json) -> bool:
    """Whether a row ended with an error that is no failure of its own."""
    return error.get("code") in STOPS or ("code" not in error and error["class"] in _INTERRUPTIONS)


def going_on(asked: Mapping[str, Any]) -> GoingOn | None:
    """What the keywords of a run say of going on; None: it does not.

    Raises:
        UsageError: SGLC081, they say so of a run that does not go on, or something else than can be said.
    """
    for name in ("retry_failed", "redo", "answers"):
        if asked.get(name) and not asked.get("resume"):
            raise _refused(f"`{name}` is for a run that goes on", "add `resume=True`")
    if not asked.get("resume"):
        return None
    if asked.get("record", asked.get("journal")) is None:
        raise _refused("`resume` is for a run that is recorded", 'say where: `record="dir"`')
    redo, answers = asked.get("redo") or (), asked.get("answers") or {}
    if not isinstance(answers, Mapping):
        raise _refused(f"`answers` is a dict by the names of pauses, not `{type(answers).__name__}`", "")
    redo = (redo,) if isinstance(redo, str) else redo
    if not isinstance(redo, Iterable) or not all(isinstance(name, str) for name in redo):
        raise _refused("`redo` is a name of a function, or a list of such names", "")
    try:
        value_json(list(answers.values()))
    except TypeError as error:
        raise _refused(f"an answer is plain data, not `{error}`", "") from None
    return GoingOn(bool(asked.get("retry_failed")), frozenset(redo), answers)


def failed_by(error: BaseException | None, other: BaseException | None) -> bool:
    """Whether `error` is `other`, or came of it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if error is other or _alike(error, other):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _alike(one: BaseException, other: BaseException | None) -> bool:
    return (
        isinstance(one, SglcError)
        and isinstance(other, SglcError)
        and (one.code, one.message) == (other.code, other.message)
    )


def _refused(message: str, hint: str) -> UsageError:
    return UsageError("SGLC081", message, hint=hint)
