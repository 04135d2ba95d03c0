"""Lines for standard error, written by a thread: whoever reads them may stall, and requests go on."""

from __future__ import annotations

import atexit
import os
import select
import threading
import time
from queue import Full, Queue

_STDERR = 2  # not Python's: to end while a thread waits in that would be fatal
_MOST = 4096  # lines that wait
_FLUSH_S = 1.0  # for what waits when the process ends


class LogLines:
    """Writes lines in their order; those for which there is no room are left out, and it says how many."""

    def __init__(self, most: int = _MOST) -> None:
        self._waiting: Queue[bytes] = Queue(most)
        self._left_out = 0  # counted by who puts, and told by who writes
        self._told = 0
        threading.Thread(target=self._write_all, name="sglc-log", daemon=True).start()
        atexit.register(self.flush)

    def put(self, line: str) -> None:
        """Have a line written; never waits."""
        try:
            self._waiting.put_nowait(line.encode() + b"\n")
        except Full:
            self._left_out += 1

    def flush(self) -> None:
        """Wait until all is written, but not for long."""
        until_s = time.monotonic() + _FLUSH_S
        while self._waiting.unfinished_tasks and time.monotonic() < until_s:
            time.sleep(0.001)

    def _write_all(self) -> None:
        while True:
            line = self._waiting.get()
            _write(line)
            if left_out := self._left_out - self._told:
                self._told += left_out
                _write(b"sglc: %d lines of the access log were dropped\n" % left_out)
            self._waiting.task_done()


def _write(line: bytes) -> None:
    while line:
        try:
            line = line[os.write(_STDERR, line) :]
        except BlockingIOError:  # a pipe that whoever began this process does not want to wait for
            select.select([], [_STDERR], [])
        except OSError:  # nobody reads it any more
            return
