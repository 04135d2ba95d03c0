"""The file that results go to: whole lines, each written when its row ends, on the disk within a second."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress

from sglc.cli.options import check_apart
from sglc.errors import Loc, RunError, UsageError

_SYNC_S = 1.0
_BEGINS = b'{"index": '  # how the line of a result does


class OutputFile:
    """Appends lines to a file that no other run writes. What is there stays as it is until `begin`.

    What is no regular file (a pipe, `/dev/null`) has nothing that could be kept: `resumable` is false.

    Args:
        others: the other files of the run.
        resume, force: go on behind the results that are there already, or write over them.

    Raises:
        UsageError: SGLC009 it cannot be opened; SGLC072 there are results in it and neither `resume` nor
            `force`; SGLC073 it is one of `others`; SGLC074 another run writes it.
    """

    def __init__(
        self, path: str, others: Iterable[str] = (), *, resume: bool = False, force: bool = False
    ) -> None:
        self.path = path
        self._lost: OSError | None = None  # why what was written may not be on the disk
        self._dirty = False
        self._over = threading.Event()
        self._syncing: threading.Thread | None = None
        self._stays = 0  # bytes of what is there that do
        check_apart(path, others)
        try:
            # Not for reading, too: then a pipe that nobody reads would take results until it is full.
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            folder = os.path.dirname(path) or "."
            why = error.strerror if os.path.isdir(folder) else f"there is no folder `{folder}`"
            raise UsageError("SGLC009", f"`{path}` cannot be written: {why}") from None
        self.resumable = stat.S_ISREG(os.fstat(self._file).st_mode)
        if self.resumable:
            self._lock()
            if not resume and not force and os.fstat(self._file).st_size:
                os.close(self._file)
                raise UsageError(
                    "SGLC072", f"`{path}` holds results already",
                    hint="go on with `--resume`, write over it with `--force`, or name another file",
                )  # fmt: skip

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise UsageError("SGLC074", f"another run writes `{self.path}`") from None

    def lines(self) -> Iterator[bytes]:
        """The whole lines that are there, without their ends; `begin` lets them stay.

        Raises:
            UsageError: SGLC009, SGLC077, this cannot be read, or ends in what no run has written.
        """
        whole = 0
        try:
            with open(self.path, "rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.endswith(b"\n"):
                        _check_torn(line, Loc(self.path, number))
                        break
                    whole += len(line)
                    yield line[:-1]
        except OSError as error:
            raise UsageError("SGLC009", f"`{self.path}` cannot be read: {error.strerror}") from None
        self._stays = whole

    def begin(self, lines: Iterator[bytes] | None = None) -> None:
        """Have those lines in the file that stay, or these: whatever ends the process, old or new ones.

        Raises:
            RunError: SGLC427, this cannot be written.
        """
        if not self.resumable:
            return
        try:
            if lines is None:
                os.ftruncate(self._file, self._stays)
            else:
                self._replace(lines)
        except OSError as error:
            raise self._failed(error) from None
        self._syncing = threading.Thread(target=self._sync_each_second, name="sglc-fsync", daemon=True)
        self._syncing.start()

    def _replace(self, lines: Iterator[bytes]) -> None:
        path = os.path.realpath(self.path)  # a link stays one
        other = f"{path}.new"
        write_lines(other, lines)
        shutil.copymode(path, other)
        replaced, self._file = self._file, os.open(other, os.O_WRONLY | os.O_APPEND)
        self._lock()
        os.replace(other, path)
        os.close(replaced)

    def write(self, line: bytes) -> None:
        """Append one line, which has its end: whole, or not at all.

        Raises:
            RunError: SGLC427, it cannot be written; what was there before is whole.
        """
        if self._lost is not None:
            raise self._failed(self._lost)
        try:
            written = os.write(self._file, line)
            if written < len(line):  # a disk that is full takes what it can
                self._finish(line, written)
            self._dirty = True
        except OSError as error:
            raise self._failed(error) from None

    def _finish(self, line: bytes, written: int) -> None:
        try:
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError:
            if self.resumable:
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise

    def _failed(self, error: OSError) -> RunError:
        if not self.resumable:
            return cannot_write(self.path, error)
        return cannot_write(self.path, error, "the results in it are whole", "go on later with `--resume`")

    def _sync_each_second(self) -> None:
        while not self._over.wait(_SYNC_S):
            self._sync()

    def _sync(self) -> None:
        if self._dirty:
            self._dirty = False
            try:
                os.fsync(self._file)
            except OSError as error:
                self._lost = error

    def close(self) -> None:
        """Nothing more is written, and what was is on the disk.

        Raises:
            RunError: SGLC427, it is not.
        """
        self._over.set()
        if self._syncing is not None:
            self._syncing.join()
            self._sync()
        os.close(self._file)
        if self._lost is not None:
            raise self._failed(self._lost)


def cannot_write(path: str, error: OSError, note: str = "", hint: str = "") -> RunError:
    """What is said of a file that results cannot be written to."""
    return RunError("SGLC427", f"`{path}` cannot be written: {error.strerror or error}", note=note, hint=hint)


def write_lines(path: str, lines: Iterable[bytes]) -> None:
    """Have a file with these lines on the disk, or none."""
    try:
        with open(path, "wb") as file:
            file.writelines(line + b"\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise


def _check_torn(line: bytes, loc: Loc) -> None:
    """Whether a line without an end is the beginning of a result: a disk that lost its power may have zeros."""
    begins = line.rstrip(b"\0")
    if not (begins.startswith(_BEGINS) or _BEGINS.startswith(begins)):
        raise no_result(loc)


def no_result(loc: Loc | None) -> UsageError:
    """What is said of a line that no batch has written."""
    return UsageError(
        "SGLC077",
        "this is no result of a batch",
        loc,
        hint="name another file, or write over this one with `--force`",
    )
