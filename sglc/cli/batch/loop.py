"""A batch of the command line: rows in, results out as they end, and how to go on if not all of them did."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from sglc.cli.argument_types import made_row
from sglc.cli.batch.budget import BatchBudget
from sglc.cli.batch.destination import Destination
from sglc.cli.batch.ended import Ended, ended
from sglc.cli.batch.journal import begin_journal
from sglc.cli.batch.listening import await_server
from sglc.cli.batch.manifest import Manifest, check_manifest, digest, read_manifest, write_manifest
from sglc.cli.batch.rows import LOOKED_AT, RowFile
from sglc.cli.options import input_files, say
from sglc.cli.program_file import program_path
from sglc.cli.report import Totals
from sglc.errors import BackendError, RunError, SglcError, UsageError, render
from sglc.execution.batch.runner import BatchControl
from sglc.execution.bind import random_seed
from sglc.execution.progress import watched
from sglc.observe.replay.tape import recorded_seed

if TYPE_CHECKING:
    from sglc.api.function import Function
    from sglc.api.plan import LoadedPlan
    from sglc.cli.batch.fleet import Fleet
    from sglc.execution.result import Result
    from sglc.ir.plan.backend import Backend

# The options that decide what a row gives; in a run that goes on the others may be other ones.
_DECIDING = ("mode", "passes", "outputs", "max_calls", "max_tokens", "device", "dtype")


def run_rows(
    function: Function | LoadedPlan, options: argparse.Namespace, rows: RowFile, given: Mapping[str, Any],
    backend: Backend, budget: BatchBudget, asked: Mapping[str, Any], journal: str | None,
) -> int:  # fmt: skip
    """Run every row of `rows` and show its result; gives the exit code.

    Args:
        given: arguments of all rows, as JSON has them.
        asked: further keywords of `stream_batch`.
        journal: as of `journal_of`.

    Raises:
        UsageError: as of `Destination`, and SGLC075, SGLC076: it is not the batch that is to go on. Nothing has
            run then.
    """
    recording = options.record or journal
    to = destination(options, ordered=options.ordered, recorded=recording is not None)
    with closing(to):
        manifest: Manifest | None = None
        if to.resumable and options.replay is None:
            # A script of answers is no model: one that is mended goes on with what there is.
            identity = "" if getattr(backend, "answers_by_site", False) else getattr(backend, "identity", "")
            asked_now, known = asked_for(function, options, rows, given, to, recording)
            manifest = settled(asked_now, known, f"{backend.target.name} {identity}".strip(), options)
        begin_journal(journal, options)
        control = BatchControl(budget.admits if budget.limited else None)
        each = (made_row(number, {**given, **row}, rows.types) for number, row in enumerate(rows))
        try:
            stream = function.stream_batch(
                # Those of a list are looked at before one runs.
                list(each) if 0 <= rows.count <= LOOKED_AT else to.bounded(each), backend=backend,
                seed=options.seed if manifest is None else manifest.seed,
                num_threads=options.concurrency or "auto", ordered=False, skip=to, control=control,
                **limits_of_rows(options), **asked,
            )  # fmt: skip
        except UsageError as error:
            raise rows.placed(error) from None
        to.begin()
        if manifest is not None:
            write_manifest(manifest, options.output)
        return show(
            function.__name__, _ended(function, stream, options, control), control, to, rows, options, budget
        )


def limits_of_rows(options: argparse.Namespace) -> dict[str, Any]:
    """What rows may take, as keywords of `stream_batch`."""
    return {name: getattr(options, name) for name in ("timeout", "row_timeout", "max_calls", "max_tokens")}


def destination(options: argparse.Namespace, *, ordered: bool, recorded: bool) -> Destination:
    """Where results go. Arguments and errors are those of `Destination`."""
    others = [*input_files(options), *([options.trace] if options.trace else [])]
    return Destination(
        options.output, others, stdout=options.stdout, ordered=ordered, resume=options.resume,
        retry_failed=options.retry_failed, force=options.force, recorded=recorded,
    )  # fmt: skip


def asked_for(
    function: Function | LoadedPlan, options: argparse.Namespace, rows: RowFile, given: Mapping[str, Any],
    to: Destination, recording: str | None,
) -> tuple[Manifest, Manifest | None]:  # fmt: skip
    """The manifest of this batch, which has no model yet, and that of the run with which it goes on.

    Raises:
        UsageError: SGLC075, nobody knows which run that was.
    """
    known = None
    if to.known and to.resumable:
        try:
            known = read_manifest(options.output)
        except UsageError:
            if not options.force:
                raise
    seed = options.seed
    if seed is None and options.resume and recording is not None:
        seed = recorded_seed(recording)
    if seed is None:
        seed = random_seed() if known is None else known.seed
    decided = {name: getattr(options, name) for name in _DECIDING}
    source = digest(program_path(options.program))
    return Manifest(function.__name__, source, given, rows.digest, "", seed, decided), known


def settled(asked: Manifest, known: Manifest | None, model: str, options: argparse.Namespace) -> Manifest:
    """The manifest of a batch on `model`.

    Raises:
        UsageError: SGLC076, it is not the batch that is to go on.
    """
    asked = replace(asked, model=model)
    if known is not None and not options.force:
        check_manifest(asked, known, options.output)
    return asked


def _ended(
    function: Function | LoadedPlan, stream: Iterator[Result], options: argparse.Namespace,
    control: BatchControl,
) -> Generator[Ended]:  # fmt: skip
    with closing(stream):  # type: ignore[type-var]  # a generator
        for result in stream:
            one = ended(function, result, options)
            error = result.error() if one.failed and options.output else None
            if isinstance(error, BackendError) and error.code == "SGLC543":
                await_server(options.backend, lambda: control.stopped)
            yield one


def show(
    name: str, results: Generator[Ended], control: BatchControl | Fleet, to: Destination, rows: RowFile,
    options: argparse.Namespace, budget: BatchBudget,
) -> int:  # fmt: skip
    """Put the results of the batch `name` where they go, and say how it went; gives the exit code."""
    count = rows.count
    totals = Totals(kept=len(to), failed=to.failed)
    problem: SglcError | None = None
    began = time.perf_counter()
    with _ending(control, options.deadline) as ended_by:
        try:
            cost = None if budget.price is None else budget.price.of
            for result in watched(
                results, total=count - len(to), label=name, style=options.progress or "bar", cost=cost
            ):
                to.put(result.row, result.text)
                totals.add(result)
                for line in result.said:
                    say(line)
                _spend(budget, result.usage, control)
            to.close()
        except (SglcError, BrokenPipeError) as error:  # a row that is none, or there is no writing any more
            problem = _told(error, rows)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(*ended_by) from None  # its number
        finally:
            results.close()
    early = problem is not None or bool((ended_by or control.draining) and totals.left(count) != 0)
    spent = "" if budget.price is None else f"; ${budget.price.of(totals.used):.4f}"
    totals.print(totals.rows(count, early=early), time.perf_counter() - began, spent)
    if problem is not None:
        say(render(problem))
    if (to.resumable or options.record) and (early or totals.failed):
        changed = isinstance(problem, UsageError) and bool(rows.digest)
        mended = "mend the rows, and go on" if isinstance(problem, UsageError) else "go on"
        # What rows did that failed as their server was gone stands in the journal, that they failed, too.
        gone = isinstance(control, BatchControl) and problem is not None and problem.code == "SGLC435"
        say(f"sglc: {mended} with: {_again(retry_failed=gone or not early, force=changed)}")
    if ended_by and ended_by[0]:
        return 128 + ended_by[0]
    if isinstance(problem, UsageError):
        return 2
    return 1 if early or totals.failed else 0


def _spend(budget: BatchBudget, usage: Any, control: BatchControl | Fleet) -> None:
    if budget.limited:
        budget.spend(usage)
        if control.begun == budget.rows and not budget.admits(budget.rows):
            control.drain()
        control.reconsider()


def _told(error: SglcError | BrokenPipeError, rows: RowFile) -> SglcError:
    if isinstance(error, UsageError):
        return rows.placed(error)
    if isinstance(error, SglcError):
        return error
    return RunError("SGLC428", "nobody reads stdout any more", note="rows that ran were stopped")


@contextmanager
def _ending(control: BatchControl | Fleet, deadline: float | None) -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM stop the batch in good order, a second one ends the process at once.

    Gives a list that then holds the signal's number, or 0 if the deadline came first.
    """
    came: list[int] = []

    def come(number: int, frame: FrameType | None) -> None:
        if came:
            came[:] = [number]
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
        before = {
            number: signal.signal(number, come) for number in (signal.SIGINT, signal.SIGTERM)
            if signal.getsignal(number) != signal.SIG_IGN  # as of what runs behind a shell script
        }  # fmt: skip
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


def _again(*, retry_failed: bool, force: bool) -> str:
    """The command that goes on; `force`: although the rows are other ones then."""
    words = ["sglc", *(word for word in sys.argv[1:] if word not in ("--force", "--resume", "--retry-failed"))]
    more = ["--resume", *(["--retry-failed"] if retry_failed else []), *(["--force"] if force else [])]
    return shlex.join([*words, *more])
