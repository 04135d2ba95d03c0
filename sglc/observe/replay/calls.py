"""Declared functions in recordings: which call is which, and what one gave."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from sglc.errors import Paused, RecordingError
from sglc.execution.tasks import task_path
from sglc.frontend.tracing.tools import EQUAL_CALL
from sglc.observe.replay.raised import at_place, raised_of
from sglc.observe.replay.tape import Answered, Json, TapeRow, alike, given_json, occurrence_of, value_of

PAUSES = "sglc.pause/"  # stands before the name of a pause in a recording
AGAIN = "record it again"
_SHOWN = 160  # characters of a call's arguments


@dataclass(slots=True)
class Calls:
    """The functions that a row calls, or a program that it calls, in its order.

    A pure one is known by its arguments, one that needs no order by how often it was given them before, and any
    other by how often it was called before in the same task.
    """

    recorded: TapeRow
    number: int
    within: str
    # Of each function in each task, or with each arguments, how often.
    _called: dict[tuple[str, str], int] = field(default_factory=dict)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def next(
        self, name: str, args: Sequence[Any], named: Mapping[str, Any], *, pure: bool, free: bool = False
    ) -> Json:
        """How the next call of a function is written down; `free`: it needs no order."""
        given, by_name = given_json(args, named)
        call: Json = {"function": name, "args": given, "named": by_name}
        if not pure and not free:
            task = task_path()
            return {**call, "occurrence": self._count(task, name), **({"task": task} if task else {})}
        data = json.dumps([given, by_name], sort_keys=True).encode("utf-8", "surrogatepass")
        digest = sha256(data).hexdigest()[:16]
        if not free:
            return {**call, "occurrence": digest}
        return {**call, "occurrence": f"{digest}-{self._count(digest, name, EQUAL_CALL.get())}"}

    def _count(self, among: str, name: str, known: int | None = None) -> int:
        """How often a function was called before, in a task or with the same arguments; as `known` says."""
        with self._turn:  # those that need no order are called in threads
            place = self._called.get((among, name), 0) if known is None else known
            self._called[among, name] = max(place + 1, self._called.get((among, name), 0))
        return place

    def paused(self, pause: Paused) -> Json:
        """How a pause is written down: as a function of its own, which is given what it asks."""
        return self.next(PAUSES + pause.name, (pause.question,), pause.data, pure=False)

    def name_of(self, line: Json) -> str:
        """What a pause of the row is answered under: its name, and which one of that name it is."""
        again = f"#{line['occurrence']}" if line["occurrence"] else ""
        name = line["function"].removeprefix(PAUSES) + again
        return "/".join(part for part in (self.within, line.get("task", ""), name) if part)

    def recorded_of(self, call: Json) -> Answered | None:
        """What is recorded of a call.

        Raises:
            RecordingError: SGLC425, it was given something else.
        """
        answered = self.recorded.calls.get((self.within, call["function"]), {}).get(occurrence_of(call))
        if answered is None:
            return None
        answered.used = True
        line = answered.line
        if not alike([line["args"], line["named"]], [call["args"], call["named"]]):
            raise RecordingError(
                "SGLC425", f"`{call['function']}` is given something else than in the recording "
                f"(row {self.number})",
                note=f"recorded: {shown(line)}; now: {shown(call)}", hint=AGAIN,
            )  # fmt: skip
        return answered

    def in_doubt(self, call: Json) -> RecordingError:
        """The error of a call that was begun, and whose end is not in the recording."""
        name = call["function"]
        return RecordingError(
            "SGLC426", f"`{name}` was begun, and its end is not known (row {self.number})",
            note=f"it was {number_of(call)} of it, given {shown(call)}: what it does may be done or not",
            hint="look, and call it once more with `redo` (`--redo`); where that never harms, declare it with "
            "`@sglc.tool(idempotent=True)`",
        )  # fmt: skip


def waits_for(name: str, pause: Paused) -> Paused:
    """The error of a recorded run that waits for an answer under `name`."""
    return Paused(
        "SGLC413", f"the run waits for an answer to `{name}`", note=pause.question or "",
        hint=f"go on with it: `resume=True, answers={{{name!r}: ...}}`, or `--resume --answer {name}=JSON`",
        name=name, question=pause.question, data=pause.data,
    )  # fmt: skip


def number_of(call: Json) -> str:
    """Which call of its function it is, for an error."""
    occurrence = call["occurrence"]
    return f"call {occurrence + 1}" if isinstance(occurrence, int) else "a call"


def is_ended(line: Json) -> bool:
    """Whether it is recorded what a call gave."""
    return "value" in line or "raised" in line


def given_by(line: Json) -> Any:
    """What a call that has ended returned, or raised."""
    if "raised" in line:
        raise at_place(raised_of(line["raised"], line["function"]), line.get("at"))
    return value_of(line["value"])


def not_kept(name: str, kind: str, *, journal: bool = False) -> RecordingError:
    """The error of a call that returned what cannot be recorded."""
    return RecordingError(
        "SGLC424", f"`{name}` returned a `{kind}`, which cannot be recorded",
        note="it holds texts, numbers, truth values, None, and lists, tuples and dicts of them",
        hint=f"{'call it once more with `redo` (`--redo`), or ' if journal else ''}have it return plain data",
    )  # fmt: skip


def shown(call: Json) -> str:
    """The arguments of a call, for an error."""
    given = [json.dumps(one, ensure_ascii=False) for one in call["args"]]
    given += [f"{name}={json.dumps(one, ensure_ascii=False)}" for name, one in call["named"].items()]
    text = f"({', '.join(given)})"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
