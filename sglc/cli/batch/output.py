"""The file that results go to: whole lines, each written when its row ends, on the disk within a second."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from sglc.errors import RunError, UsageError

_SYNC_S = 1.0


class OutputFile:
    """Appends lines to a file that no other run writes.

    What is no regular file (a pipe, `/dev/null`) has nothing that could be kept: `resumable` is false.

    Args:
        source: the file that rows come from.
        resume, force: go on behind the results that are there already, or write over them.

    Raises:
        UsageError: SGLC009 it cannot be opened; SGLC072 there are results in it and neither `resume` nor
            `force`; SGLC073 it is the file that rows come from; SGLC074 another run writes it.
    """

    def __init__(
        self, path: str, source: Path | None = None, *, resume: bool = False, force: bool = False
    ) -> None:
        self.path = path
        self._lost: OSError | None = None  # why what was written may not be on the disk
        self._dirty = False
        self._over = threading.Event()
        if source is not None and source.exists() and Path(path).exists() and os.path.samefile(path, source):
            raise UsageError(
                "SGLC073", f"`{path}` is the file that the rows come from", hint="name another one"
            )
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            folder = Path(path).parent
            why = str(error.strerror) if folder.is_dir() else f"there is no folder `{folder}`"
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
            if force and not resume:
                os.ftruncate(self._file, 0)
            threading.Thread(target=self._sync_each_second, name="sglc-fsync", daemon=True).start()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise UsageError("SGLC074", f"another run writes `{self.path}`") from None

    def lines(self) -> Iterator[bytes]:
        """The whole lines that are there, without their ends. A last one that was cut short is cut off."""
        whole = 0
        with open(self.path, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                yield line[:-1]
        os.ftruncate(self._file, whole)

    def keep(self, lines: Iterator[bytes]) -> None:
        """Have these lines and no others in the file, at once: whatever ends the process, old or new ones."""
        other = f"{self.path}.new"
        with open(other, "wb") as file:
            file.writelines(line + b"\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        replaced, self._file = self._file, os.open(other, os.O_RDWR | os.O_APPEND)
        self._lock()
        os.replace(other, self.path)
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
        return RunError(
            "SGLC427", f"`{self.path}` cannot be written: {error.strerror or error}",
            note="the results in it are whole", hint="go on later with `--resume`",
        )  # fmt: skip

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
        if self.resumable:
            self._sync()
        os.close(self._file)
        if self._lost is not None:
            raise self._failed(self._lost)
