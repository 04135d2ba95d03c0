"""Every error sglc raises: one tree, stable codes, and how an error looks on a terminal.

SglcError
  UsageError     SGLC0xx   a wrong command line, file, argument or environment
  TraceError     SGLC1xx   a program that cannot be recorded
  VerifyError    SGLC2xx   an IR that breaks an invariant (text form, or a pass)
  LegalizeError  SGLC3xx   an operation the target cannot do
  RunError       SGLC4xx   a program that failed while it ran
  BackendError   SGLC5xx   a back end or a model that failed

Warnings (SGLC6xx, `sglc.frontend.analysis.lint`) look the same and stop nothing.
"""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar

_Error = TypeVar("_Error", bound="SglcError")

_LONGEST = 400  # characters of a source line that an error shows


@dataclass(frozen=True, slots=True)
class Loc:
    """A span of source text. Lines and columns count from 1; `end_column` is exclusive, 0 if unknown."""

    file: str
    line: int
    column: int = 0
    end_column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.column else f"{self.file}:{self.line}"


class SglcError(Exception):
    """An error of the user's program, input or environment: what, where, and what to do about it.

    Args:
        code: stable code such as `SGLC101`; tests/golden/errors.md shows each one.
        message: lowercase, one line, back quotes round code.
        loc: where in the user's source, if it has a place.
        note: facts that explain the message.
        hint: an action that mends it.
    """

    certain = True  # of one met while recording or compiling: every run comes to its place

    def __init__(
        self, code: str, message: str, loc: Loc | None = None, *, note: str = "", hint: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.loc = loc
        self.note = note
        self.hint = hint

    def __str__(self) -> str:
        return render(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), self.args, self.__dict__)


def _unpickled(kind: type[_Error], args: tuple[Any, ...], has: Mapping[str, Any]) -> _Error:
    made = kind.__new__(kind, *args)
    made.__dict__.update(has)
    return made


class UsageError(SglcError):
    """The command line, a file or an argument is wrong."""


class TraceError(SglcError):
    """The program cannot be recorded as it is written."""


class MissingVariable(TraceError, KeyError):
    """A variable is read that nothing was stored under; a `KeyError` to programs that expect one."""


class VerifyError(SglcError):
    """A program in IR form breaks an invariant."""


class LegalizeError(SglcError):
    """The target cannot do what the program asks, and no exact rewrite exists.

    `at` is the character of a pattern or grammar of the program that it is about, if one is known.
    """

    def __init__(
        self, code: str, message: str, loc: Loc | None = None, *, note: str = "", hint: str = "",
        at: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(code, message, loc, note=note, hint=hint)
        self.at = at


class RunError(SglcError):
    """The program failed while it ran; what it computed before is kept."""


class RecordingError(RunError):
    """A run and its recording do not go together."""


class Paused(RunError):
    """A run has stopped for a person, and goes on with an answer under `name`.

    `question` and `data` are what the program says about it.
    """

    def __init__(
        self, code: str, message: str, loc: Loc | None = None, *, note: str = "", hint: str = "",
        name: str = "", question: str | None = None, data: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(code, message, loc, note=note, hint=hint)
        self.name = name
        self.question = question
        self.data = dict(data or {})


class BackendError(SglcError):
    """A back end, or the model behind it, failed. `usage` has what that took, as of `Usage`, if it took any."""

    usage: Any = None


def shown(text: str, most: int = 300) -> str:
    """A text of the user's on one line of a message: in part if it is long, what cannot be printed escaped."""
    if len(text) > most:
        text = f"{text[: most - 3]}..."
    return printable(text)


def printable(text: str) -> str:
    """A text with what cannot be printed escaped."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def located(error: _Error, loc: Loc | None) -> _Error:
    """`error` with a place, if it has none."""
    if error.loc is not None or loc is None:
        return error
    made = _unpickled(type(error), error.args, error.__dict__)
    made.loc = loc
    return made


def ends_run(error: BaseException | None) -> TypeGuard[RunError]:
    """Whether a run ends with an error even if its program catches it: it has no more to go on with."""
    return isinstance(error, Paused | RecordingError)


def render(error: SglcError) -> str:
    """The error as text: a head line, the source line with a caret under the span, note and hint."""
    return diagnostic("error", error.code, error.message, error.loc, error.note, error.hint)


def diagnostic(kind: str, code: str, message: str, loc: Loc | None, note: str, hint: str) -> str:
    """What `render` shows of an error, for anything else that has a code and a place: `kind` is its name."""
    lines = [f"{kind}[{code}]: {message}"]
    if loc is not None and loc.line:  # else nothing stands in the user's source
        lines += _excerpt(loc)
    if note:
        lines.append(f"note: {note}")
    if hint:
        lines.append(f"hint: {hint}")
    return "\n".join(lines)


def _excerpt(loc: Loc) -> list[str]:
    head = [f" --> {loc}"]
    linecache.checkcache(loc.file)  # an editor may have changed it since another error was shown
    source = linecache.getline(loc.file, loc.line).rstrip("\n")
    if not source:
        return head
    gutter = " " * len(str(loc.line))
    body = [f"{gutter} |", f"{loc.line} | {source}"]
    if len(source) > _LONGEST:  # a row with a document, or code that a program has written
        return head
    if loc.column:
        end = loc.end_column if loc.end_column > loc.column else loc.column + 1
        width = max(1, min(end, len(source) + 1) - loc.column)
        # A tab before the span stays a tab, so that the caret lines up in any terminal.
        pad = "".join("\t" if c == "\t" else " " for c in source[: loc.column - 1])
        body.append(f"{gutter} | {pad}{'^' * width}")
    return head + body
