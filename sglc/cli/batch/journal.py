"""The journal beside the output of a batch: a recording, kept where a row must not be begun anew.

A row that calls tools or pauses for a person goes on inside, so what it did is written down as it does it.
What a model alone answers is not: that costs a multiple of writing results, and `--record` does it.
"""

from __future__ import annotations

import argparse
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sglc.execution.plan.prepare import function_steps
from sglc.execution.tool_calls import EFFECTS
from sglc.frontend.tracing.tools import PAUSE, declared_tools
from sglc.observe.replay.tape import FILE

if TYPE_CHECKING:
    from sglc.api.function import Function
    from sglc.api.plan import LoadedPlan


def journal_of(function: Function | LoadedPlan, options: argparse.Namespace) -> str | None:
    """The folder of the batch's journal; None if it needs none, or has a recording."""
    if not (options.batch and options.output) or options.record or options.replay or not _acts(function):
        return None
    if Path(options.output).exists() and not Path(options.output).is_file():
        return None
    return os.path.abspath(f"{options.output}.journal")  # a program may change the folder


def remove_journal(folder: str) -> None:
    """What it holds is over."""
    Path(folder, FILE).unlink(missing_ok=True)
    with suppress(OSError):  # there is none, or something else in it
        os.rmdir(folder)


def _acts(function: Function | LoadedPlan) -> bool:
    """Whether a row may do something to the world, or pause."""
    from sglc.api.function import Function

    if not isinstance(function, Function):
        steps = function_steps(function.plan)
        return any(step.effects and step.function not in EFFECTS for step in steps)
    return bool(declared_tools() - {PAUSE}) or PAUSE.rpartition(".")[2] in function.definition.code.co_names
