"""Results in the order of their rows: those that come early wait in a file, not in memory."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Container, Iterable, Iterator
from typing import BinaryIO, TypeVar

from sglc.cli.batch.output import cannot_write

_T = TypeVar("_T")
MOST_WAITING = 100_000  # rows that may have results before the one that is awaited
_COMPACTED = 1 << 26  # bytes of a file in which most has been given


class ReorderBuffer:
    """Gives texts in the order of their numbers to `write`.

    Args:
        path: the file in which they wait, as lines, which outlives the process; None: one that nobody sees.
        skip: numbers that do not come.
    """

    def __init__(self, write: Callable[[bytes], None], path: str | None, skip: Container[int] = ()) -> None:
        self._write = write
        self._path = None if path is None else os.path.abspath(path)  # a program may change the folder
        self._skip = skip
        self._file = _opened(path)
        self._waiting: dict[int, tuple[int, int]] = {}  # where each text is in the file
        self._end = self._held = 0
        self._moved = threading.Condition()
        self._over = False
        self.next = 0  # the number that is awaited
        self._pass_by()

    def put(self, number: int, text: bytes) -> None:
        """A text is there. What can be given now is given.

        Raises:
            RunError: SGLC427, it cannot wait, as there is no writing.
        """
        if number != self.next:
            begin = self._end
            self._append(text)
            self._waiting[number] = begin, len(text)
            return
        self._give(text)
        self._give_what_follows()

    def restore(self, number_of: Callable[[bytes], int | None]) -> None:
        """Take what waits since an earlier process, but for what is to be skipped, or has no number."""
        assert self._path is not None
        with open(self._path, "rb") as file:
            for line in file:
                if line.endswith(b"\n"):  # else it was cut short
                    number = number_of(line)
                    if number is not None and number not in self._skip:
                        self._waiting[number] = self._end, len(line)
                        self._held += len(line)
                    self._end += len(line)
        self._file.truncate(self._end)
        self._give_what_follows()

    def _give_what_follows(self) -> None:
        while (number := self.next) in self._waiting:
            begin, length = self._waiting[number]
            self._file.seek(begin)
            self._give(self._file.read(length))
            del self._waiting[number]  # not before: what could not be given waits on
            self._held -= length
        if not self._waiting and self._end:
            self._file.truncate(0)
            self._end = 0
        elif self._end > _COMPACTED and 2 * self._held < self._end:
            self._compact()

    def _append(self, text: bytes) -> None:
        try:
            self._file.seek(self._end)
            written = 0
            while written < len(text):  # a disk that is full takes what it can
                written += self._file.write(text[written:])
        except OSError as error:
            self._file.truncate(self._end)
            raise cannot_write(self._path or tempfile.gettempdir(), error) from None
        self._end += len(text)
        self._held += len(text)

    def _give(self, text: bytes) -> None:
        self._write(text)
        with self._moved:
            self.next += 1
            self._pass_by()
            self._moved.notify_all()

    def _pass_by(self) -> None:
        while self.next in self._skip:
            self.next += 1

    def _compact(self) -> None:
        waiting = sorted(self._waiting.items())
        old = self._file
        self._file = _opened(None if self._path is None else f"{self._path}.new")
        self._file.truncate(0)
        self._end = self._held = 0
        for number, (begin, length) in waiting:
            old.seek(begin)
            self._waiting[number] = self._end, length
            self._append(old.read(length))
        if self._path is not None:
            os.replace(f"{self._path}.new", self._path)
        old.close()

    def bounded(self, rows: Iterable[_T]) -> Iterator[_T]:
        """`rows`, none of which comes long before what is awaited is given."""
        for number, row in enumerate(rows):
            if number > self.next + MOST_WAITING:
                with self._moved:
                    self._moved.wait_for(lambda: self._over or number <= self.next + MOST_WAITING)  # noqa: B023
            yield row

    def flush(self) -> None:
        """Give what waits for rows that will not come, in order."""
        for number in sorted(self._waiting):
            begin, length = self._waiting[number]
            self._file.seek(begin)
            self._write(self._file.read(length))
            del self._waiting[number]

    def close(self) -> None:
        """Nothing more comes. The file goes, unless something waits in it that only a later run can give."""
        with self._moved:
            self._over = True
            self._moved.notify_all()
        self._file.close()
        if self._path is not None and not self._waiting:
            os.unlink(self._path)


def _opened(path: str | None) -> BinaryIO:
    if path is None:
        return tempfile.TemporaryFile(buffering=0)
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
