"""A recording on disk: `recording.jsonl` in a folder of its own, one JSON object a line, only ever appended.

The first line says what was run. Every other line is of one row: that it began (its arguments), one answer of a
model with everything that was asked, that a declared function is called, what it gave, or that the row ended.
An answer is written as soon as it is known (in a batch with those that come meanwhile), and that a function is
called before it is (that a row begins or ends, together with the next of these), so whatever ends the process,
what was done before can be read; a last line that was cut short is left out. Of two lines that say the same of
one row, the later one holds: a run that goes on appends to what there is. No keys are in it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from sglc import errors
from sglc.errors import BackendError, Loc, Paused, RunError, SglcError, UsageError
from sglc.ir.plan.events import GenDone, Sample, SelectDone, Usage

FILE = "recording.jsonl"
RECORDING_VERSION = 3

Json = dict[str, Any]
NOTHING_AGAIN: Json = {"answers": [], "calls": []}
_OF_ROW = re.compile(rb'\{"is": "\w+", "row": (\d+),')  # how the line of a row begins
# The task of an async body that calls, and how often it did before; of a pure function a digest of what it is
# given.
Occurrence = tuple[str, int | str]

# Stops, budgets, deadlines, and what a person is waited for.
STOPS = {"SGLC407", "SGLC408", *(f"SGLC{code}" for code in range(411, 420))}


@dataclass(slots=True)
class Answered:
    """A line with an answer; `number` is its place among all lines, `used` whether a replay asked for it."""

    number: int
    line: Json
    used: bool = False

    @property
    def stopped(self) -> bool:
        """Whether the run was stopped, and not the generation: it had no answer."""
        return self.line.get("error", {}).get("code") in STOPS


@dataclass(slots=True)
class TapeRow:
    """What was recorded of one row: by (path of the program that it calls, site or function)."""

    begins: dict[str, Json] = field(default_factory=dict)  # by path; "" is the row's own program
    answers: dict[tuple[str, str], Answered] = field(default_factory=dict)
    calls: dict[tuple[str, str], dict[Occurrence, Answered]] = field(default_factory=dict)
    ends: dict[str, Json] = field(default_factory=dict)  # by path
    left: set[str] = field(default_factory=set)  # how paths begin of rows whose results a replay left unread
    _by_site: dict[str, Answered] | None = None  # outside of batches that the row calls

    def answer(self, path: str, site: str) -> Answered | None:
        """What a generation was answered. A plan has what programs that it calls generate as its own, Python
        has it at their paths: the site tells it apart in both."""
        exact = self.answers.get((path, site))
        if exact is not None or "[" in path:
            return exact
        if self._by_site is None:
            self._by_site = {name: one for (at, name), one in self.answers.items() if "[" not in at}
        return self._by_site.get(site)

    def forget(self, path: str, again: Json) -> None:
        """What failed there is to be done again: `again` are sites of generations, and calls of functions."""
        for site in again["answers"]:
            self.answers.pop((path, site), None)
        for call in again["calls"]:
            self.calls.get((path, call["function"]), {}).pop(occurrence_of(call), None)

    def lacks_value(self) -> bool:
        """Whether a function returned what is not kept."""
        return any("lost" in one.line for calls in self.calls.values() for one in calls.values())

    def unused(self) -> Answered | None:
        """The first answer that nobody asked for, and that somebody did before.

        A generation that was stopped is not looked up behind one that was stopped, too.
        """
        left = tuple(self.left)
        answers = [one for (path, _), one in self.answers.items() if not (one.stopped or path.startswith(left))]
        asked = [one for one in answers if one.line["target"] or "answer" in one.line]
        calls = [calls for (path, _), calls in self.calls.items() if not path.startswith(left)]
        every = [*asked, *(one for made in calls for one in made.values())]
        return min((one for one in every if not one.used), key=lambda one: one.number, default=None)


@dataclass(frozen=True, slots=True)
class Tape:
    """A recording that was read."""

    header: Json
    targets: dict[str, Json]
    rows: dict[int, TapeRow]

    def enter(self, number: int, line: Json) -> None:
        """Line `number` is the next one.

        Raises:
            KeyError, ValueError, TypeError: it is none of a recording.
        """
        if "described" in line:
            self.targets[line["target"]] = line["described"]
        else:
            _enter(self.rows.setdefault(line["row"], TapeRow()), number, line)


def recorded_seed(folder: str | os.PathLike[str]) -> int | None:
    """The seed of the recording in `folder`; None if there is none that anybody could read."""
    try:
        with open(Path(folder) / FILE, encoding="utf-8") as file:
            return int(json.loads(file.readline())["seed"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_tape(folder: str | os.PathLike[str], skip: Container[int] = ()) -> Tape:
    """The recording in `folder`, without the rows whose numbers are in `skip`.

    Raises:
        UsageError: SGLC052 no recording there, or a damaged one; SGLC053 one of another version.
    """
    path = Path(folder) / FILE
    tape: Tape | None = None
    number = 0
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                of_row = _OF_ROW.match(text)
                if not text.endswith(b"\n") or (of_row is not None and int(of_row[1]) in skip):
                    continue  # the last line, which was cut short, or nothing that anybody needs
                line = json.loads(text.decode("utf-8", "surrogatepass"))
                if tape is not None:
                    tape.enter(number, line)
                elif line.get("recording") == RECORDING_VERSION:
                    tape = Tape(line, {}, {})
                else:
                    found = line.get("recording")
                    raise UsageError(
                        "SGLC053",
                        f"this recording has version `{found}`, and this sglc reads `{RECORDING_VERSION}`",
                        Loc(str(path), 1), hint="record it again",
                    )  # fmt: skip
    except OSError as error:
        raise UsageError(
            "SGLC052", f"there is no recording in `{folder}`: {error.strerror or error}",
            hint="record one: `sglc run PROG --record DIR`",
        ) from None  # fmt: skip
    except KeyError as error:
        raise _damaged(path, number, f"this line has no `{error.args[0]}`") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise _damaged(path, number, f"{type(error).__name__}: {error}") from None
    if tape is None:
        raise _damaged(path, 1, "nothing in it is whole")
    return tape


def _enter(row: TapeRow, number: int, line: Json) -> None:
    path = line["within"]
    match line["is"]:
        case "begin":
            row.begins[path] = line
            row.ends.pop(path, None)
            row.forget(path, line.get("again", NOTHING_AGAIN))
        case "end":
            row.ends[path] = line
        case "answer":
            row.answers[path, line["site"]] = Answered(number, line)
        case "call":
            row.calls.setdefault((path, line["function"]), {})[occurrence_of(line)] = Answered(number, line)
        case "called":
            begun = row.calls[path, line["function"]][occurrence_of(line)]
            begun.line = {**begun.line, **line}
        case other:
            raise ValueError(f"`{other}`")


def alike(one: Any, other: Any) -> bool:
    """Whether two pieces of data are the same; a NaN is one."""
    return bool(one == other) or json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def occurrence_of(line: Json) -> Occurrence:
    """Which call of its function a line is of."""
    return line.get("task", ""), line["occurrence"]


def _damaged(path: Path, number: int, reason: str) -> UsageError:
    return UsageError(
        "SGLC052", f"this is no recording: {reason}", Loc(str(path), number), hint="record it again"
    )


# -- answers as JSON ---------------------------------------------------------------------------------


def answer_json(event: GenDone | SelectDone) -> Json:
    """An event as plain data, without what has its default; `answer_of` reads it."""
    made = {key: value for key, value in _shallow(event).items() if key != "node" and value != ()}
    if "prompt_ids" in made:
        made["prompt_ids"] = tuple(event.prompt_ids)
    made["usage"] = {key: value for key, value in _shallow(event.usage).items() if value}
    if isinstance(event, GenDone):
        made["samples"] = [
            {key: value for key, value in _shallow(one).items() if value not in ((), None)}
            for one in event.samples
        ]
    return made


def _shallow(data: Any) -> Json:
    return {name: getattr(data, name) for name in _names(type(data))}  # type: ignore[arg-type]  # a class can be hashed


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple([one.name for one in fields(kind)])


def answer_of(data: Json, node: int) -> GenDone | SelectDone:
    """The event of node `node` that `answer_json` wrote."""
    given = {name: _tuples(value) for name, value in data.items() if name not in ("samples", "usage")}
    usage = Usage(**data["usage"])
    empty: Json
    if "choice" in data:
        empty = dict.fromkeys(("prompt_ids", "scores", "choice_ids", "logprobs"), ())
        return SelectDone(node=node, usage=usage, **{**empty, **given})
    samples = tuple(
        [
            Sample(**{"ids": (), **{name: _tuples(value) for name, value in one.items()}})
            for one in data["samples"]
        ]
    )
    return GenDone(node=node, usage=usage, samples=samples, **{"prompt_ids": (), **given})


def _tuples(value: Any) -> Any:
    return tuple([_tuples(item) for item in value]) if isinstance(value, list) else value


def error_json(error: BaseException) -> Json:
    """An error as plain data; `error_of` reads it."""
    if not isinstance(error, SglcError):
        return {"class": type(error).__name__, "message": str(error)}
    loc = None if error.loc is None else [getattr(error.loc, one.name) for one in fields(error.loc)]
    data: Json = {
        "class": type(error).__name__, "code": error.code, "message": error.message, "loc": loc,
        "note": error.note, "hint": error.hint,
    }  # fmt: skip
    if isinstance(error, BackendError) and error.usage:
        data["usage"] = {key: value for key, value in _shallow(error.usage).items() if value}
    if isinstance(error, Paused):
        (asked,), _ = given_json([error.data], {})
        data["paused"] = {"name": error.name, "question": error.question, "data": asked}
    return data


def error_of(data: Json) -> SglcError:
    """The error that `error_json` wrote; one of another package is a `BackendError` of its name."""
    if "code" not in data:
        return BackendError("SGLC502", f"`{data['class']}`: {data['message']}")
    made = getattr(errors, data["class"], None)
    known: type[SglcError] = made if isinstance(made, type) and issubclass(made, SglcError) else RunError
    loc = None if data["loc"] is None else Loc(*data["loc"])
    more = data.get("paused", {})
    error = known(data["code"], data["message"], loc, note=data["note"], hint=data["hint"], **more)
    if isinstance(error, BackendError) and "usage" in data:
        error.usage = Usage(**data["usage"])
    return error


# -- what declared functions are given and return ------------------------------------------------------


def given_json(args: Sequence[Any], named: Mapping[str, Any]) -> tuple[list[Any], Json]:
    """Arguments of a declared function as data that can be compared; what is no data as its type's name."""
    return [_given(one) for one in args], {key: _given(one) for key, one in named.items()}


def _given(value: Any) -> Any:
    match value:
        case None | str() | bool() | int() | float():
            return value
        case Mapping():
            return {str(key): _given(item) for key, item in value.items()}
        case list() | tuple():
            return [_given(item) for item in value]
        case _:
            return f"<{type(value).__qualname__}>"


def value_json(value: Any) -> Any:
    """A value that comes back from JSON as it is; tuples are marked.

    Raises:
        TypeError: it would not.
    """
    match value:
        case None:
            return value
        case _ if type(value) in (str, bool, int, float):
            return value
        case list() if type(value) is list:
            return [value_json(item) for item in value]
        case tuple() if type(value) is tuple:
            return {"is": "tuple", "items": [value_json(item) for item in value]}
        case dict() if type(value) is dict and all(type(key) is str for key in value):
            items = {key: value_json(item) for key, item in value.items()}
            return {"is": "dict", "items": items} if "is" in value else items
    raise TypeError(type(value).__name__)


def value_of(data: Any) -> Any:
    """The value that `value_json` wrote."""
    match data:
        case list():
            return [value_of(item) for item in data]
        case {"is": "tuple", "items": items}:
            return tuple([value_of(item) for item in items])
        case {"is": "dict", "items": items}:
            return {key: value_of(item) for key, item in items.items()}
        case dict():
            return {key: value_of(item) for key, item in data.items()}
        case _:
            return data
