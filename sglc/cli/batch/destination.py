"""Where the results of a batch go, and the rows that have theirs there already."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from sglc.cli.batch.output import OutputFile
from sglc.cli.batch.reorder_buffer import ReorderBuffer
from sglc.errors import Loc, UsageError

_T = TypeVar("_T")
# Errors of rows that have not ended: a person is to answer, or something about the recording is to be mended.
_WAITING = {"SGLC413", "SGLC420", "SGLC421", "SGLC422", "SGLC424", "SGLC425", "SGLC426", "SGLC432", "SGLC433"}


class Numbers:
    """A set of row numbers: a byte each."""

    def __init__(self) -> None:
        self._has = bytearray()
        self._count = 0

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and number < len(self._has) and self._has[number] == 1

    def __len__(self) -> int:
        return self._count

    def add(self, number: int) -> None:
        """Put a number in."""
        if number >= len(self._has):
            self._has.extend(bytes(number + 1024 - len(self._has)))
        self._count += not self._has[number]
        self._has[number] = 1


class Destination:
    """Where the results of a batch go. It contains the numbers of rows whose results are there already.

    Args:
        path: a file; None: stdout, where results are in the order of their rows.
        source: the file that rows come from.
        ordered: whether those of a file are, too.
        resume, force: as of `OutputFile`.
        retry_failed: rows that failed have no results: they run again.
        recorded: a recording goes on, too, and with it the rows that wait for something in it.

    Attributes:
        begun: whether there were any, those that run again among them.
        failed: how many of these rows failed.
        resumable: whether a later run can go on with what is there.

    Raises:
        UsageError: as of `OutputFile`; SGLC077 nothing there is to go on with.
    """

    def __init__(
        self,
        path: str | None,
        source: Path | None,
        *,
        ordered: bool,
        resume: bool,
        retry_failed: bool,
        force: bool,
        recorded: bool,
    ) -> None:
        self.begun, self.failed, self.resumable = False, 0, False
        self.file: OutputFile | None = None
        self._there, self._waiting = Numbers(), Numbers()
        if path is None:
            self._ordered: ReorderBuffer | None = ReorderBuffer(_to_stdout, None)
            return
        self.file = OutputFile(path, source, resume=resume, force=force)
        self.resumable = self.file.resumable

        def again(code: str) -> bool:
            return bool(code) and (retry_failed or (recorded and code in _WAITING))

        if resume:
            if not self.file.resumable:
                raise UsageError("SGLC077", f"`{path}` is no file that a run could go on with")
            self._read(self.file, again)
        waiting = f"{path}.waiting"
        if self.file.resumable and not (ordered and resume):
            Path(waiting).unlink(missing_ok=True)
        self._ordered = None
        if ordered:
            self._ordered = ReorderBuffer(
                self.file.write, waiting if self.file.resumable else None, self._there
            )
            if resume:
                for number in self._ordered.restore(lambda line: _number_of(line, Loc(waiting, 1), again)):
                    self._waiting.add(number)

    def _read(self, file: OutputFile, again: Callable[[str], bool]) -> None:
        """Take the rows that are there; those whose error is to be had `again` are not any more."""
        dropped = False
        for place, line in enumerate(file.lines(), 1):
            self.begun = True
            number, code = _read_line(line, Loc(file.path, place))
            if again(code):
                dropped = True
                continue
            self.failed += bool(code)
            self._there.add(number)
        if dropped:
            here = Loc(file.path, 1)
            file.keep(line for line in file.lines() if _number_of(line, here, again) is not None)

    def __contains__(self, number: object) -> bool:
        return number in self._there or number in self._waiting

    def __len__(self) -> int:
        return len(self._there) + len(self._waiting)

    def put(self, number: int, text: bytes) -> None:
        """The row `number` has ended.

        Raises:
            RunError: SGLC427, this cannot be written.
            BrokenPipeError: nobody reads stdout any more.
        """
        if self._ordered is not None:
            self._ordered.put(number, text)
        else:
            assert self.file is not None
            self.file.write(text)

    def bounded(self, rows: Iterable[_T]) -> Iterable[_T]:
        """`rows`, none of which comes too long before one whose result is awaited."""
        return rows if self._ordered is None else self._ordered.bounded(rows)

    def close(self) -> None:
        """Nothing more comes. Idempotent.

        Raises: as of `put`.
        """
        ordered, self._ordered = self._ordered, None
        file, self.file = self.file, None
        try:
            if ordered is not None:
                if not self.resumable:
                    ordered.flush()
                ordered.close()
        finally:
            if file is not None:
                file.close()


def _number_of(line: bytes, loc: Loc, again: Callable[[str], bool]) -> int | None:
    """Which row a line is the result of; None if its error is to be had `again`."""
    number, code = _read_line(line, loc)
    return None if again(code) else number


def _read_line(line: bytes, loc: Loc) -> tuple[int, str]:
    """Which row a line is the result of, and the code of its error; "" if it has none."""
    try:
        data = json.loads(line)
        return int(data["index"]), "" if data["error"] is None else str(data["error"]["code"])
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            "SGLC077", "this is no result of a batch", loc, hint="run it anew with `--force`"
        ) from None


def _to_stdout(text: bytes) -> None:
    sys.stdout.write(text.decode())
    sys.stdout.flush()
