"""A batch of the command line: rows in, results out as they end, and how to go on if not all of them did."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from sglc.cli.batch.budget import BatchBudget
from sglc.cli.batch.destination import Destination
from sglc.cli.batch.manifest import Manifest, digest, keep_manifest, read_manifest
from sglc.cli.batch.rows import LOOKED_AT, RowFile
from sglc.cli.program_file import program_path
from sglc.cli.report import Totals, print_failures, text_of
from sglc.errors import RunError, SglcError, UsageError, render
from sglc.execution.batch.runner import BatchControl
from sglc.execution.options import random_seed
from sglc.execution.progress import watched
from sglc.observe.replay.tape import recorded_seed

if TYPE_CHECKING:
    from sglc.api.function import Function
    from sglc.api.plan import LoadedPlan
    from sglc.execution.result import Result
    from sglc.ir.plan.backend import Backend

# The options that decide what a row gives; in a run that goes on the others may be other ones.
_DECIDING = ("mode", "passes", "max_calls", "max_tokens", "device", "dtype")


def run_rows(
    function: Function | LoadedPlan, options: argparse.Namespace, rows: RowFile, given: Mapping[str, Any],
    backend: Backend, budget: BatchBudget, asked: Mapping[str, Any],
) -> int:  # fmt: skip
    """Run every row of `rows` and show its result; gives the exit code.

    Args:
        given: arguments of all rows.
        asked: further keywords of `stream_batch`.

    Raises:
        UsageError: as of `Destination`, and SGLC075, SGLC076: it is not the batch that is to go on. Nothing has
            run then.
    """
    to = Destination(
        options.output, rows.path, ordered=options.ordered, resume=options.resume,
        retry_failed=options.retry_failed, force=options.force, recorded=options.record is not None,
    )  # fmt: skip
    try:
        seed = options.seed
        if to.resumable and options.replay is None:
            known = read_manifest(options.output) if options.resume and to.begun else None
            if seed is None and options.resume and options.record:
                seed = recorded_seed(options.record)
            if seed is None:
                seed = random_seed() if known is None else known.seed
            decided = {name: getattr(options, name) for name in _DECIDING}
            source = digest(program_path(options.program))
            model = backend.target.name
            asked_for = Manifest(function.__name__, source, given, rows.digest, model, seed, decided)
            keep_manifest(asked_for, known, options.output, force=options.force)
        control = BatchControl(budget.admits if budget.limited else None)
        each = ({**given, **row} for row in rows)
        stream = function.stream_batch(
            # Those of a list are looked at before one runs.
            list(each) if 0 <= rows.count <= LOOKED_AT else to.bounded(each), backend=backend, seed=seed,
            num_threads=options.concurrency or "auto", timeout=options.timeout, row_timeout=options.row_timeout,
            max_calls=options.max_calls, max_tokens=options.max_tokens,
            ordered=False, skip=to, control=control, **asked,
        )  # fmt: skip
        return _run(function, stream, control, to, rows.count, options, budget)
    finally:
        to.close()


def _run(
    function: Function | LoadedPlan, stream: Iterator[Result], control: BatchControl, to: Destination,
    count: int, options: argparse.Namespace, budget: BatchBudget,
) -> int:  # fmt: skip
    totals = Totals(kept=len(to), failed=to.failed)
    problem: SglcError | None = None
    began = time.perf_counter()
    with _ending(control, options.deadline) as ended_by:
        try:
            cost = None if budget.price is None else budget.price.of
            for result in watched(
                stream, total=count - len(to), label=function.__name__, style=options.progress, cost=cost
            ):
                to.put(result.row, text_of(result, options).encode())
                totals.add(result)
                print_failures(function, result, f"row {result.row}: ")
                _spend(budget, result.usage, control)
            to.close()
        except (SglcError, BrokenPipeError) as error:  # a row that is none, or there is no writing any more
            problem = _told(error)
        finally:
            stream.close()  # type: ignore[attr-defined]
    left = totals.left(count)
    spent = "" if budget.price is None else f"; ${budget.price.of(totals.used):.4f}"
    totals.print(totals.rows(count), time.perf_counter() - began, spent)
    if problem is not None:
        print(render(problem), file=sys.stderr)
    early = bool(ended_by or problem or (control.draining and (left or count < 0)))
    if (to.resumable or options.record) and (early or totals.failed):
        print(f"sglc: go on with: {_again(retry_failed=not early)}", file=sys.stderr)
    if ended_by and ended_by[0]:
        return 128 + ended_by[0]
    if isinstance(problem, UsageError):
        return 2
    return 1 if early or totals.failed else 0


def _spend(budget: BatchBudget, usage: Any, control: BatchControl) -> None:
    if budget.limited:
        budget.spend(usage)
        if control.begun == budget.rows and not budget.admits(budget.rows):
            control.drain()
        control.reconsider()


def _told(error: SglcError | BrokenPipeError) -> SglcError:
    if isinstance(error, SglcError):
        return error
    sys.stdout = open("/dev/null", "w")  # noqa: SIM115  # what Python writes there at its end goes nowhere
    return RunError("SGLC428", "nobody reads stdout any more", note="rows that ran were stopped")


@contextmanager
def _ending(control: BatchControl, deadline: float | None) -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM stop the batch in good order, a second one ends the process at once.

    Gives a list that then holds the signal's number, or 0 if the deadline came first.
    """
    came: list[int] = []

    def come(number: int, frame: FrameType | None) -> None:
        if came or control.batch is None:
            raise KeyboardInterrupt(number)
        came.append(number)
        # Not here: this thread may hold the lock that stopping takes.
        threading.Thread(target=control.stop, name="sglc-stop", daemon=True).start()

    def late() -> None:
        came.append(0)
        control.stop()

    timer = None if deadline is None else threading.Timer(deadline, late)
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, come) for number in (signal.SIGINT, signal.SIGTERM)}
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield came
    finally:
        if timer is not None:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def _again(*, retry_failed: bool) -> str:
    """The command that goes on."""
    words = ["sglc", *(word for word in sys.argv[1:] if word not in ("--force", "--resume", "--retry-failed"))]
    return shlex.join([*words, "--resume", *(["--retry-failed"] if retry_failed else [])])
