"""The journal beside the output of a batch: what rows did that are under way, so that they go on inside."""

from __future__ import annotations

import argparse
import os
from contextlib import suppress
from pathlib import Path

from sglc.errors import UsageError
from sglc.observe.replay.tape import FILE


def journal_of(options: argparse.Namespace) -> str | None:
    """The folder of the batch's journal; None if it needs none, or has a recording."""
    if not (options.batch and options.output) or options.record or options.replay:
        return None
    if Path(options.output).exists() and not Path(options.output).is_file():
        return None
    return os.path.abspath(f"{options.output}.journal")  # a program may change the folder


def check_journal(folder: str) -> None:
    """Refuse to begin beside what rows did that were cut.

    Raises:
        UsageError: SGLC050.
    """
    if Path(folder, FILE).exists():
        raise UsageError(
            "SGLC050", f"`{folder}` holds the calls of a batch that was cut",
            hint="go on with it: `--resume`, or drop it: `--force`",
        )  # fmt: skip


def remove_journal(folder: str) -> None:
    """What it holds is over."""
    Path(folder, FILE).unlink(missing_ok=True)
    with suppress(OSError):  # there is none, or something else in it
        os.rmdir(folder)
