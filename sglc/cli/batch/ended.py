"""A row of a batch that has ended: what is shown and counted of it, as plain data that machines hand over."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sglc.cli.report import error_of, failures_of, text_of
from sglc.errors import RunError
from sglc.ir.plan.events import Usage

if TYPE_CHECKING:
    from sglc.api.function import Function
    from sglc.api.plan import LoadedPlan
    from sglc.execution.result import Result


@dataclass(frozen=True, slots=True)
class Ended:
    """One row. `text` goes to where results go, `said` are lines for people, `why_python` as of `Result`."""

    row: int
    text: bytes
    usage: Usage
    failed: bool
    said: tuple[str, ...]
    seed: int
    why_python: str


def ended(function: Function | LoadedPlan, result: Result, options: argparse.Namespace) -> Ended:
    """What is kept of a result.

    Raises:
        RunError: SGLC423, SGLC427 or SGLC080, which no other row could escape either.
    """
    error = error_of(result, options)
    if isinstance(error, RunError) and error.code in ("SGLC423", "SGLC427", "SGLC080"):
        raise error
    text = text_of(result, options).encode(errors="backslashreplace")
    said = tuple(failures_of(function, result, error, f"row {result.row}: "))
    return Ended(result.row, text, result.usage, error is not None, said, result.seed, result.why_python)
