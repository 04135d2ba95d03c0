"""The journal beside the output of a batch: what rows did that are under way, so that they go on inside."""

from __future__ import annotations

import argparse
import os
import threading
from collections.abc import Container, Iterable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path

from sglc.errors import UsageError
from sglc.observe.replay.recorder import header_of
from sglc.observe.replay.tape import FILE, Json, Tape, read_tape
from sglc.observe.replay.writer import Writer


def journal_of(options: argparse.Namespace) -> str | None:
    """The folder of the batch's journal; None if it needs none, or has a recording."""
    if not (options.batch and options.output) or options.record or options.replay:
        return None
    if Path(options.output).exists() and not Path(options.output).is_file():
        return None
    return os.path.abspath(f"{options.output}.journal")  # a program may change the folder


def begin_journal(folder: str | None, options: argparse.Namespace) -> None:
    """Refuse to begin beside what rows did that were cut, or forget it.

    Raises:
        UsageError: SGLC050.
    """
    if folder is None or options.resume:
        return
    if options.force:
        remove_journal(folder)
    elif Path(folder, FILE).exists():
        raise UsageError(
            "SGLC050", f"`{folder}` holds the calls of a batch that was cut",
            hint="go on with it: `--resume`, or drop it: `--force`",
        )  # fmt: skip


def remove_journal(folder: str) -> None:
    """What it holds is over."""
    Path(folder, FILE).unlink(missing_ok=True)
    with suppress(OSError):  # there is none, or something else in it
        os.rmdir(folder)


class SharedJournal:
    """The journal of rows that run elsewhere: one that is cut goes on wherever it runs next.

    Args:
        folder: None: it is kept as long as this process lives.
        name: of the program.
        rows: of the batch.
        skip: numbers of rows that do not run.
        resume: go on with what the folder holds.

    Raises:
        UsageError: as of `Writer` and `read_tape`.
    """

    def __init__(
        self, folder: str | None, name: str, seed: int, rows: int, skip: Container[int], *, resume: bool
    ) -> None:
        self._tape = Tape({"seed": seed}, {}, {})  # of rows that are not over
        self._writer: Writer | None = None
        if folder is not None:
            header = header_of(name, seed, rows, is_journal=True)
            self._writer = Writer(folder, header, resume=resume, is_journal=True)
            try:
                if self._writer.resumes:
                    self._tape = read_tape(folder, skip)
            except BaseException:
                self._writer.close()
                raise
        self._lines = 0
        self._lock = threading.Lock()

    def take(self, lines: Iterable[Json], live: Container[int], over: Iterable[int]) -> None:
        """Write what rows did; of those that are `live` it is known until they are `over`.

        A tool may end behind its row, which did not wait for it any more: that is written and not known.

        Raises:
            RunError: SGLC427, it cannot be written.
        """
        with self._lock:
            new = [
                line for line in lines if "described" not in line or line["target"] not in self._tape.targets
            ]
            for line in new:
                self._lines += 1
                if "described" in line or line["row"] in live:
                    self._tape.enter(self._lines, line)
                if self._writer is not None:
                    self._writer.write(line, "now" if line is new[-1] else "later")
            for row in over:
                self._tape.rows.pop(row, None)

    def of(self, rows: Iterable[int]) -> Tape:
        """What these rows have done, a copy."""
        with self._lock:
            known = {row: self._tape.rows[row] for row in rows if row in self._tape.rows}
            return deepcopy(Tape(self._tape.header, self._tape.targets if known else {}, known))

    def close(self) -> None:
        """Nothing more is written."""
        if self._writer is not None:
            self._writer.close()
