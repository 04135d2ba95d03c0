"""Runs whose results nobody reads: they are finished before the process ends, and their failures are printed.

A process that ends by Ctrl-C stops them instead, and so does Ctrl-C while it waits for them.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from typing import Protocol

from sglc.errors import Loc, RunError, SglcError, render
from sglc.frontend.locate import of_error


class Unread(Protocol):
    """What a run gives, as far as its end needs it."""

    row: int
    in_batch: bool
    raised_at: Loc | None

    @property
    def name(self) -> str: ...

    def sync(self) -> object: ...

    def stop(self) -> None: ...

    def left_behind(self, error: BaseException) -> None:
        """It goes on in the process that this one was forked from, and is over here."""

    def unread_error(self) -> BaseException | None:
        """Its error, if it has one that nobody has looked at; asked once more, there is none."""


RUNNING: set[Unread] = set()  # runs that have begun and have not ended
UNREAD: weakref.WeakSet[Unread] = weakref.WeakSet()  # runs that have failed


def report(result: Unread) -> None:
    """Print the failure of a run if nobody looked at it."""
    error = result.unread_error()
    if error is not None:
        shown = render(with_place(error, result.name, result.raised_at))
        which = f"row {result.row} of `{result.name}`" if result.in_batch else f"`{result.name}`"
        message = f"sglc: {which} failed, and its error was never read:\n{shown}"
        print(message, file=sys.stderr)


def with_place(error: BaseException, name: str, raised_at: Loc | None = None) -> SglcError:
    """An error of the user's code with its place in the first file outside of sglc that it went through."""
    if isinstance(error, SglcError):
        return error
    message = f"`{type(error).__name__}` in `{name}`: {str(error) or 'no message'}"
    return RunError("SGLC401", message, raised_at or of_error(error))


def finish_all() -> None:
    """Wait for the runs that go on: when the main thread has ended, and before anything is taken down."""
    interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt
    while running := sorted(RUNNING.copy(), key=lambda one: (one.row, one.name)):
        try:
            if interrupted:
                raise KeyboardInterrupt
            running[0].sync()
        except KeyboardInterrupt:
            for result in running:
                result.stop()
            what = "1 run was" if len(running) == 1 else f"{len(running)} runs were"
            print(f"sglc: {what} stopped before the end", file=sys.stderr)
            return


def report_all() -> None:
    """Print the failures that nobody looked at."""
    for result in sorted(UNREAD, key=lambda one: (one.row, one.name)):
        report(result)


def _watch_end() -> None:
    """The runs are finished while threads can still be begun: `atexit` comes later."""
    atexit.register(report_all)
    at_end = getattr(threading, "_register_atexit", atexit.register)
    try:
        at_end(finish_all)
    except RuntimeError:  # the process is ending already
        return
    os.register_at_fork(after_in_child=_forget)  # the threads of these runs are not in the child


def _forget() -> None:
    for result in tuple(RUNNING):
        result.left_behind(
            RunError("SGLC523", "the run was begun by a process of which this one is a fork, and goes on there")
        )
    RUNNING.clear()
    UNREAD.clear()


_watch_end()
