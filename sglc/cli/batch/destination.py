"""Where the results of a batch go, and the rows that have theirs there already."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, TextIO, TypeVar

from sglc.cli.batch.manifest import manifest_of
from sglc.cli.batch.output import OutputFile, cannot_write, no_result, write_lines
from sglc.cli.batch.reorder_buffer import ReorderBuffer
from sglc.cli.options import check_apart, leave_stdout
from sglc.errors import Loc, UsageError

_T = TypeVar("_T")
_MOST_ROWS = 1_000_000_000
# Errors of rows that have not ended: a person is to answer, or something about the recording is to be mended.
_WAITING = {"SGLC413", *(f"SGLC{code}" for code in (420, 421, 422, 424, 425, 426, 432, 433, 434))}


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

    What is there stays as it is until `begin`.

    Args:
        path: a file; None: stdout, where results are in the order of their rows.
        others: the other files of the run.
        stdout: which that is.
        ordered: whether those of a file are, too.
        resume, force: as of `OutputFile`.
        retry_failed: rows that failed have no results: they run again.
        recorded: a recording goes on, too, and with it the rows that wait for something in it.

    Attributes:
        failed: how many of these rows failed.
        resumable: whether a later run can go on with what is there.
        known: whether an earlier run has left results, if only failed ones.

    Raises:
        UsageError: as of `OutputFile`; SGLC077 nothing there is to go on with.
    """

    def __init__(
        self,
        path: str | None,
        others: Iterable[str],
        *,
        stdout: TextIO,
        ordered: bool,
        resume: bool,
        retry_failed: bool,
        force: bool,
        recorded: bool,
    ) -> None:
        self.failed, self.resumable, self.known = 0, False, False
        self._there, self._waiting = Numbers(), Numbers()
        self._resume, self._retry_failed, self._recorded = resume, retry_failed, recorded
        self._ordered = ordered or path is None
        self._stdout = stdout
        self._buffer: ReorderBuffer | None = None
        self._rewritten = False  # whether some of what is there does not stay where it is
        self.file: OutputFile | None = None
        if path is None:
            return
        self._wait_file = f"{path}.waiting"
        others = [*others]
        for beside in (manifest_of(path), self._wait_file):
            check_apart(beside, others)
        self.file = OutputFile(path, others, resume=resume, force=force)
        self.resumable = self.file.resumable
        if resume:
            try:
                if not self.resumable:
                    raise UsageError("SGLC077", f"`{path}` is no file that a run could go on with")
                self._read(self.file)
            except BaseException:
                self.file.close()
                raise

    def _read(self, file: OutputFile) -> None:
        for place, line in enumerate(file.lines(), 1):
            self.known = True
            number, code = _read_line(line, Loc(file.path, place))
            if self._again(code):
                self._rewritten = True
                continue
            # In order only what has no gap before it can stay; the rest waits.
            stays = not self._ordered or number == len(self._there)
            self._rewritten |= not stays
            self._count(number, bool(code), self._there if stays else self._waiting)
        for place, line in enumerate(self._waiting_lines(), 1):
            self.known = True
            number, code = _read_line(line, Loc(self._wait_file, place))
            if not self._again(code):
                self._count(number, bool(code), self._waiting)

    def _again(self, code: str) -> bool:
        """Whether a row with an error of this code, "" for none, runs again."""
        return bool(code) and (self._retry_failed or (self._recorded and code in _WAITING))

    def _count(self, number: int, failed: bool, where: Numbers) -> None:
        self.failed += failed and number not in self
        if number not in self:
            where.add(number)

    def _waiting_lines(self) -> Iterator[bytes]:
        """Those of results that wait since an earlier run, but for one that was cut short."""
        try:
            with open(self._wait_file, "rb") as file:
                yield from (line[:-1] for line in file if line.endswith(b"\n"))
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError("SGLC009", f"`{self._wait_file}` cannot be read: {error.strerror}") from None

    def begin(self) -> None:
        """Results come now; what an earlier run has left and is not to stay goes.

        Raises:
            RunError: SGLC427, this cannot be written.
        """
        if self.file is None:
            self._buffer = ReorderBuffer(partial(_to_stdout, self._stdout), None)
            return
        kept = self._resume and self.resumable
        try:
            if not kept and self.resumable:
                Path(self._wait_file).unlink(missing_ok=True)
            if self._rewritten and self._ordered:
                write_lines(f"{self._wait_file}.new", self._what_waits(self.file))
                os.replace(f"{self._wait_file}.new", self._wait_file)
            self.file.begin(self._what_stays(self.file) if self._rewritten else None)
            if self._ordered or (kept and os.path.exists(self._wait_file)):
                self._buffer = ReorderBuffer(
                    self.file.write, self._wait_file if self.resumable else None, self._there
                )
            if self._buffer is not None and kept:
                self._buffer.restore(self._number_of)
        except OSError as error:
            raise cannot_write(self._wait_file, error) from None
        if self._buffer is not None and not self._ordered:  # an earlier run was
            self._buffer.flush()
            self._buffer.close()
            self._buffer = None

    def _what_stays(self, file: OutputFile) -> Iterator[bytes]:
        """The lines of the file that do, each row once."""
        given = Numbers()
        for line in file.lines():
            number = self._number_of(line)
            if number is not None and number in self._there and number not in given:
                given.add(number)
                yield line

    def _what_waits(self, file: OutputFile) -> Iterator[bytes]:
        """The lines that are to wait: those that do, and those that cannot stay in the file."""
        yield from self._waiting_lines()
        for line in file.lines():
            number = self._number_of(line)
            if number is not None and number not in self._there:
                yield line

    def _number_of(self, line: bytes) -> int | None:
        """The row of a result that is kept."""
        number, code = _read_line(line, None)
        return None if self._again(code) else number

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
        if self._buffer is not None:
            self._buffer.put(number, text)
        else:
            assert self.file is not None
            self.file.write(text)

    def bounded(self, rows: Iterable[_T]) -> Iterator[_T]:
        """`rows`, none of which comes too long before one whose result is awaited."""
        yield from rows if self._buffer is None else self._buffer.bounded(rows)

    def close(self) -> None:
        """Nothing more comes. Idempotent.

        Raises: as of `put`.
        """
        buffer, self._buffer = self._buffer, None
        file, self.file = self.file, None
        try:
            if buffer is not None:
                if not self.resumable:
                    buffer.flush()
                buffer.close()
        finally:
            if file is not None:
                file.close()


def put_in_order(path: str) -> None:
    """Have the results in a file in the order of their rows. Memory holds a number and a place of each.

    Raises:
        RunError: SGLC427, this cannot be written; they are as they were.
    """
    places: list[tuple[int, int]] = []
    try:
        with open(path, "rb") as file:
            begin = 0
            for line in file:
                places.append((_read_line(line, None)[0], begin))
                begin += len(line)
            write_lines(f"{path}.new", (_line_at(file, begin) for _, begin in sorted(places)))
        shutil.copymode(path, f"{path}.new")
        os.replace(f"{path}.new", path)
    except OSError as error:
        raise cannot_write(path, error) from None


def _line_at(file: BinaryIO, begin: int) -> bytes:
    file.seek(begin)
    return file.readline()[:-1]


def _read_line(line: bytes, loc: Loc | None) -> tuple[int, str]:
    """Which row a line is the result of, and the code of its error; "" if it has none."""
    try:
        data = json.loads(line)
        number, code = data["index"], "" if data["error"] is None else str(data["error"]["code"])
    except (ValueError, KeyError, TypeError, RecursionError):
        number, code = None, ""
    if type(number) is not int or not 0 <= number < _MOST_ROWS:
        raise no_result(loc)
    return number, code


def _to_stdout(stdout: TextIO, text: bytes) -> None:
    try:
        stdout.write(text.decode())
        stdout.flush()
    except OSError as error:
        leave_stdout(stdout)
        if isinstance(error, BrokenPipeError):
            raise
        raise cannot_write("stdout", error) from None
