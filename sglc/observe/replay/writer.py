"""Appending to a recording: whole lines, by one process at a time, on the disk within a second."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from sglc.errors import RunError, UsageError
from sglc.execution.event_loop import soon
from sglc.observe.replay.tape import FILE, RECORDING_VERSION

When = Literal["now", "soon", "later"]
NO_HEADER: Mapping[str, Any] = {}
_SYNC_S = 1.0
_BLOCK = 1 << 16
_TRIES_S, _PATIENCE = 0.01, 100  # between two looks whether another run is over, and how many of them


class Writer:
    """Appends lines; from any thread. The file is begun with the first one: what never began leaves none.

    Args:
        resume: go on behind what the folder holds; a last line that was cut short is cut off.
        is_journal: nobody has asked for it by name: it lies beside the results of a batch.

    Attributes:
        header: what the first line says, if it is yet to be written.
        resumes: whether there is anything to go on behind.

    Raises:
        UsageError: SGLC050 the folder holds a recording already, SGLC051 it cannot be written, SGLC080 another
            run writes to it.
    """

    def __init__(
        self, folder: str | os.PathLike[str], header: Mapping[str, Any] = NO_HEADER, *, resume: bool = False,
        is_journal: bool = False,
    ) -> None:  # fmt: skip
        self._path = Path(folder) / FILE
        self._is_journal = is_journal
        self.header = header
        self._file = -1
        self._length = 0  # bytes in whole lines
        self._waiting: list[str] = []
        self._soon = False  # whether the loop is going to write what waits
        self._lock = threading.Lock()
        self._problem: OSError | None = None
        self._told = False  # whether a problem would have been raised already
        self._synced = 0
        self._closed = threading.Event()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if resume:
                self._open_again()
        except OSError as error:
            raise UsageError(
                "SGLC051", f"nothing can be recorded in `{folder}`: {error.strerror or error}"
            ) from None
        if not resume and self._path.exists():
            raise UsageError(
                "SGLC050", f"`{folder}` holds a recording already",
                hint="record into a new folder, or go on with it: `resume`",
            )  # fmt: skip
        if not os.access(self._path.parent, os.W_OK):
            raise UsageError("SGLC051", f"nothing can be recorded in `{folder}`: it cannot be written")
        self.resumes = self._length > 0

    def _open_again(self) -> None:
        self._open(0)
        try:
            size = os.fstat(self._file).st_size
            self._length = self._synced = _whole_lines(self._file, size)
            if self._length < size:
                os.ftruncate(self._file, self._length)
        except OSError:
            os.close(self._file)
            raise

    def _open(self, new: int) -> None:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | new, 0o644)
        for _ in range(_PATIENCE):  # rows that were stopped may still be ending
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_TRIES_S)
        else:
            os.close(self._file)
            self._file = -1
            raise UsageError(
                "SGLC080", f"another run records in `{self._path.parent}`", hint="wait for its end, or stop it"
            )
        threading.Thread(target=self._sync_often, name="sglc-recording", daemon=True).start()

    def write(self, line: Mapping[str, Any], when: When = "now") -> bool:
        """Append one line, whole; gives whether it is kept.

        What comes behind the end is not, such as the value of a function that nobody waited for any more.

        Args:
            when: it is written when this returns; or from the executor's loop, with all that came there
                meanwhile; or with the next one that is written.

        Raises:
            RunError: SGLC423, of a journal SGLC427, it cannot be written, or one before it could not; SGLC080,
                another run began.
        """
        text = json.dumps(line, ensure_ascii=False) + "\n"
        with self._lock:
            if self._closed.is_set():
                return False
            if self._problem is not None:
                self._told = True
                raise self._not_written(self._problem)
            self._waiting.append(text)
            if when == "now":
                self._told = True
                self._flush()
            elif when == "soon" and not self._soon:
                self._soon = True
                soon(self._flush_soon)
            return True

    def _flush_soon(self) -> None:
        with self._lock:
            self._soon = False
            if self._waiting and not self._closed.is_set():
                with suppress(RunError):  # the next line tells, or the end
                    self._flush()

    def _flush(self) -> None:
        if self._problem is not None:
            raise self._not_written(self._problem)
        try:
            if self._file < 0:
                self._open(os.O_EXCL)
            if not self._length:
                head = json.dumps({"recording": RECORDING_VERSION, **self.header}) + "\n"
                self._waiting.insert(0, head)
            whole = "".join(self._waiting).encode("utf-8", "surrogatepass")
            self._waiting.clear()
            rest = memoryview(whole)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            self._length += len(whole)
        except OSError as error:
            self._problem = error
            raise self._not_written(error) from None

    def _sync_often(self) -> None:
        while not self._closed.wait(_SYNC_S):
            self._sync()

    def _sync(self) -> None:
        """Have all that was written on the disk. The lock is not held meanwhile."""
        with self._lock:
            file = -1 if self._synced == self._length or self._file < 0 else os.dup(self._file)
            length = self._length
        if file < 0:
            return
        try:
            os.fsync(file)
        except OSError as error:
            if error.errno != errno.EINVAL:  # it is nothing that has a disk
                self._problem = error
        finally:
            os.close(file)
        self._synced = length

    def close(self) -> None:
        """Nothing more is written. Idempotent.

        Raises:
            RunError: SGLC423 or SGLC427, what waited cannot be written, or could not, and nobody was told.
        """
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        try:
            with self._lock:
                if self._problem is not None and not self._told:
                    raise self._not_written(self._problem)
                if self._waiting and self._problem is None:
                    self._flush()
            self._sync()
        finally:
            with self._lock:
                file, self._file = self._file, -1
                if file >= 0:
                    os.close(file)

    def _not_written(self, error: OSError) -> RunError:
        folder, why = self._path.parent, error.strerror or error
        if isinstance(error, FileExistsError):  # it was not there when the run began
            message = f"another run has begun to record in `{folder}`"
            return RunError("SGLC080", message, hint="take another folder")
        kept = "what was recorded before is kept"
        if self._is_journal:
            return RunError("SGLC427", f"`{folder.name}` cannot be written: {why}", note=kept)
        return RunError("SGLC423", f"the recording cannot be written: {why}", note=kept)


def _whole_lines(file: int, size: int) -> int:
    """How many bytes of a file are whole lines."""
    while size:
        start = max(0, size - _BLOCK)
        at = os.pread(file, size - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        size = start
    return 0
