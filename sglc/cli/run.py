"""`sglc run`: a program, a batch of its rows, or a plan."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from sglc.cli.argument_types import Types, made, types_of
from sglc.cli.options import (
    Commands,
    add_arguments,
    add_backend,
    add_passes,
    arguments,
    check_apart,
    check_local,
    connect,
    input_files,
    named,
    number,
    output_file,
    passes_of,
    say,
    seed,
)
from sglc.errors import SglcError, UsageError

if TYPE_CHECKING:
    from sglc.api.function import Function
    from sglc.api.plan import LoadedPlan
    from sglc.cli.batch.budget import BatchBudget
    from sglc.ir.plan.backend import Backend


_SECONDS, _COUNT = number("number of seconds above 0"), number("number from 1", int)
_OF_BATCHES = (
    *("row_timeout", "concurrency", "progress", "ordered", "deadline"),
    *("max_calls_total", "max_tokens_total", "max_cost", "price"),
)


def add_run(commands: Commands) -> None:
    """Add `run` to the commands of `sglc`."""
    run = commands.add_parser("run", help="run a program", description="Run a program, or a plan.")
    run.add_argument("program", metavar="PROG[:FN] | IR.sglir | PLAN.json")
    add_backend(run, "--backend")
    add_passes(run)
    add_arguments(run)
    run.add_argument(
        "-o", "--output", type=output_file, metavar="OUT.jsonl", help="where results go (default: stdout)"
    )
    run.add_argument("--force", action="store_true", help="write over results that are in the output already")
    run.add_argument(
        "--json",
        action="store_true",
        help="results as JSON, one object a row; what programs print goes to stderr",
    )
    run.add_argument(
        "--mode", choices=("auto", "plan", "python"),
        help="run the program's plan where there is one (auto), always, or its code as Python",
    )  # fmt: skip
    run.add_argument("--seed", type=seed, help="repeats the samples of the run that reported it")
    run.add_argument("--stream", action="store_true", help="show text while it is generated")
    run.add_argument("--record", type=named, metavar="DIR", help="keep every answer in a new folder")
    run.add_argument(
        "--resume", action="store_true",
        help="go on with the results that the output of a batch has, and with what `--record` holds",
    )  # fmt: skip
    run.add_argument("--retry-failed", action="store_true", help="with `--resume`: what failed runs again")
    run.add_argument(
        "--redo", action="append", metavar="NAME|all",
        help="with `--resume`: a function that is called again where nobody knows how a call of it ended",
    )  # fmt: skip
    run.add_argument(
        "--answer", action="append", type=_answer, metavar="[ROW:]NAME=JSON",
        help="with `--resume`: what a run goes on with that waits for a person",
    )  # fmt: skip
    run.add_argument("--replay", type=named, metavar="DIR", help="answer from such a folder, without a model")
    run.add_argument(
        "--cache",
        type=named,
        metavar="DIR",
        help="ask only what was not asked before: answers are kept in a folder",
    )
    run.add_argument("--trace", type=output_file, metavar="OUT.json", help="a time line for Perfetto or Chrome")
    run.add_argument("--tools", type=named, metavar="FILE.py", help="declares the functions that a plan calls")
    run.add_argument("--timeout", type=_SECONDS, metavar="S", help="seconds of the run, or of the whole batch")
    run.add_argument("--max-calls", type=_COUNT, metavar="N", help="generations of the run, or of each row")
    run.add_argument(
        "--max-tokens", type=_COUNT, metavar="N", help="tokens that the run, or each row, may generate"
    )
    _add_batch(run)
    run.set_defaults(command=_run)


def _add_batch(run: argparse.ArgumentParser) -> None:
    """Add what only a batch has."""
    batch = run.add_argument_group("batches")
    batch.add_argument("--row-timeout", type=_SECONDS, metavar="S", help="seconds of each row")
    batch.add_argument("--concurrency", type=_COUNT, metavar="N", help="rows that are live at once")
    batch.add_argument(
        "--progress", choices=("bar", "json", "none"),
        help="how the batch goes on, on stderr: a bar on a terminal, or a JSON object each second",
    )  # fmt: skip
    batch.add_argument("--ordered", action="store_true", help="results of `-o` in the order of the rows")
    batch.add_argument("--deadline", type=_SECONDS, metavar="S", help="end after so many seconds")
    batch.add_argument("--max-calls-total", type=_COUNT, metavar="N", help="end after so many generations")
    batch.add_argument("--max-tokens-total", type=_COUNT, metavar="N", help="end after so many tokens")
    batch.add_argument(
        "--max-cost", type=number("number above 0"), metavar="USD", help="end when so much is spent"
    )
    batch.add_argument(
        "--price", type=_price, metavar="IN,OUT[,CACHED]", help="US dollars for a million tokens of the model"
    )

    batch.add_argument(
        "--cluster",
        metavar="ray[://HOST:PORT]",
        type=_cluster,
        help="run the rows on the machines of a Ray cluster",
    )
    batch.add_argument(
        "--replicas", type=_COUNT, metavar="N", help="of a cluster; default: one a GPU, or a node"
    )
    batch.add_argument(
        "--replica-command", metavar="CMD",
        help="what each replica runs before it asks `{port}`: 'sglc serve --port {port}'",
    )  # fmt: skip


def _cluster(text: str) -> str:
    """The argument of `--cluster`."""
    if text != "ray" and not text.startswith("ray://"):
        raise argparse.ArgumentTypeError(f"`{text}` is no cluster: write `ray`, or `ray://HOST:PORT`")
    return text


def _price(text: str) -> tuple[float, ...]:
    """The argument of `--price`."""
    try:
        prices = tuple([float(price) for price in text.split(",")])
    except ValueError:
        prices = ()
    if len(prices) not in (2, 3) or not all(0 <= price < math.inf for price in prices):
        raise argparse.ArgumentTypeError(f"`{text}` are no prices: write `0.15,0.60` or `0.15,0.60,0.075`")
    return prices


def _run(options: argparse.Namespace) -> int:
    """Run what is asked for. Where stdout has JSON, that is all that it has: programs print on stderr."""
    options.stdout = sys.stdout
    if not options.json or options.output:
        return _ran(options)
    sys.stdout = sys.stderr
    try:
        return _ran(options)
    except SglcError as error:
        if options.batch is None and not isinstance(error, UsageError):  # it is what came of the run
            from sglc.cli.report import failure_text

            print(failure_text(error, options), file=options.stdout, flush=True)
        raise
    finally:
        sys.stdout = options.stdout


def _ran(options: argparse.Namespace) -> int:
    from sglc.api.start import limits_of_run
    from sglc.cli.batch.journal import journal_of, remove_journal
    from sglc.cli.batch.loop import run_rows
    from sglc.cli.batch.output import OutputFile
    from sglc.cli.batch.rows import STDIN, RowFile, open_rows
    from sglc.cli.batch.spread import is_spread, run_spread
    from sglc.cli.program_file import open_function, open_program
    from sglc.cli.report import Totals, error_of, failures_of, text_of, texts_stay

    if options.batch is not None and options.stream:
        raise UsageError("SGLC019", "`--stream` shows one run, and `--batch` has many")
    if options.json and options.stream and not options.output:
        raise UsageError(
            "SGLC019", "`--stream` shows text where the object of `--json` is to be alone",
            hint="write the object to a file: `-o FILE`",
        )  # fmt: skip
    for name in _OF_BATCHES:
        if getattr(options, name) and options.batch is None:
            raise UsageError("SGLC043", f"`--{name.replace('_', '-')}` is for the rows of a `--batch`")
    if options.ordered and not options.output:
        raise UsageError("SGLC078", "`--ordered` is for `-o`: stdout is in the order of the rows anyway")
    if options.force and not options.output:
        raise UsageError("SGLC078", "`--force` is for `-o`: stdout is not written over")
    _check_resume(options)
    if options.trace is not None:
        check_apart(options.trace, input_files(options))
    if options.max_cost and not options.price:
        raise UsageError(
            "SGLC078", "`--max-cost` needs the price of the model's tokens", hint="add `--price IN,OUT`"
        )
    check_local(options)
    spread = is_spread(options)
    is_plan = options.program.endswith(".json")
    if options.tools and not is_plan:
        raise UsageError("SGLC044", "`--tools` is for a plan: a program has its functions")
    for name in ("passes", "passes_from", "outputs"):
        if is_plan and getattr(options, name) is not None:
            raise UsageError(
                "SGLC019", f"`--{name.replace('_', '-')}` is for programs, and a plan is none any more"
            )
    function: Function | LoadedPlan
    rows: RowFile | None = None
    if options.passes is not None or options.program.endswith(".sglir"):
        if options.batch == STDIN:
            raise UsageError(
                "SGLC019", "a program is compiled for its first row here, and stdin is read but once",
                hint="write the rows to a file",
            )  # fmt: skip
        source = None if options.program.endswith(".sglir") else open_function(options.program)
        types = {} if source is None else types_of(source)
        rows = open_rows(options.batch, types) if options.batch is not None else None
        backend = connect(options)
        function = _compiled(options, source, types, backend, [] if rows is None else list(islice(rows, 1)))
    else:
        passes_of(options)  # a file of passes is imported even where none is named
        function = open_program(options.program, options.tools)
        if (said := texts_stay(function)) is not None:
            say(f"sglc: {said}; `--tools FILE.py` makes classes known")
        types = types_of(function)
        rows = open_rows(options.batch, types) if options.batch is not None else None
        if not spread:
            backend = connect(options)
    given = arguments(options, types or types_of(function))
    journal = journal_of(options)
    watches = _watches(options, journal)
    how: dict[str, Any] = {} if options.mode is None else {"mode": options.mode}
    if how and hasattr(function, "plan"):
        raise UsageError("SGLC044", "`--mode` is for a program, and this is a plan already")
    if options.outputs is not None and not hasattr(function, "plan"):
        how["outputs"] = options.outputs
    if rows is not None:
        asked, budget = {**watches, **how}, _budget(options)
        if spread:
            code = run_spread(function, options, rows, given, budget, asked, journal)
        else:
            code = run_rows(function, options, rows, given, backend, budget, asked, journal)
        if journal is not None and code == 0:
            remove_journal(journal)
        return code
    streamer = _Streamer() if options.stream else None
    on_text = None if streamer is None else streamer.write
    limits = limits_of_run(options.max_calls, options.max_tokens, options.timeout)
    others = [*input_files(options), *([options.trace] if options.trace else [])]
    out = None if options.output is None else OutputFile(options.output, others, force=options.force)
    began = time.perf_counter()
    result = function.start(made(given, types), backend, options.seed, on_text, limits, watches, **how).sync()
    if streamer is not None and streamer.lost is not None:
        result.error()  # is read: it says that the back end failed, which was stopped
        raise streamer.lost
    text = text_of(result, options)
    if out is None:
        print(text, end="", file=options.stdout)
    else:
        out.begin()
        out.write(text.encode())
        out.close()
    error = error_of(result, options)
    for line in failures_of(function, result, error):
        say(line)
    totals = Totals()
    totals.add(result)
    totals.print("1 run", time.perf_counter() - began)
    return 0 if error is None else 1


def _check_resume(options: argparse.Namespace) -> None:
    if options.resume and not options.record and not (options.batch and options.output):
        raise UsageError(
            "SGLC078", "`--resume` goes on with the results of a batch, or with a recording",
            hint="name the results with `-o`, or the recording with `--record`",
        )  # fmt: skip
    if options.retry_failed and not options.resume:
        raise UsageError("SGLC078", "`--retry-failed` is for `--resume`")
    for name in ("redo", "answer"):
        if getattr(options, name) and not options.resume:
            raise UsageError("SGLC078", f"`--{name}` is for `--resume`")


def _answer(text: str) -> tuple[int | None, str, Any]:
    """The argument of `--answer`."""
    name, sign, value = text.partition("=")
    row, colon, own = name.partition(":")
    try:
        number = int(row) if colon and row.isdecimal() else None
        if not sign or not name:
            raise ValueError
        return number, name if number is None else own, json.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"`{text}` is no answer: write `NAME=JSON`, such as `approve=true`"
        ) from None


def _budget(options: argparse.Namespace) -> BatchBudget:
    """What the whole batch may cost."""
    from sglc.cli.batch.budget import BatchBudget, Price

    price = None
    if options.price is not None:
        prompt, completion, *cached = options.price
        price = Price(prompt, completion, cached[0] if cached else prompt)
    return BatchBudget(options.max_calls_total, options.max_tokens_total, options.max_cost, price)


def _watches(options: argparse.Namespace, journal: str | None) -> dict[str, Any]:
    from sglc.execution.options import watches_of

    asked = {name: getattr(options, name) for name in ("record", "replay", "trace", "cache")}
    watches = watches_of(**asked, journal=journal)
    if not (options.resume and (options.record or journal)):
        return watches
    answers: dict[Any, Any] = {}
    for row, name, value in options.answer or ():
        (answers if row is None else answers.setdefault(row, {}))[name] = value
    return watches | watches_of(
        resume=True, retry_failed=options.retry_failed, redo=options.redo, answers=answers or None
    )


class _Streamer:
    """Prints generated text as it comes, one generation after the other: those that run beside the
    one being shown wait for their turn."""

    def __init__(self) -> None:
        self._waiting: dict[Any, list[str | None]] = {}  # the first one is being shown
        self.lost: OSError | None = None  # why nothing more can be shown

    def write(self, site: Any, text: str | None) -> None:
        try:
            self._write(site, text)
        except OSError as error:
            self.lost = error
            raise

    def _write(self, site: Any, text: str | None) -> None:
        if site not in self._waiting:
            self._waiting[site] = []
            if next(iter(self._waiting)) == site:
                print(f"[{site.name}] ", end="")
        self._waiting[site].append(text)
        self._show()

    def _show(self) -> None:
        while self._waiting:
            site = next(iter(self._waiting))
            texts = self._waiting[site]
            print("".join(text for text in texts if text), end="", flush=True)
            if not texts or texts[-1] is not None:
                texts.clear()
                return
            print()
            del self._waiting[site]
            if self._waiting:
                print(f"[{next(iter(self._waiting)).name}] ", end="")


def _compiled(
    options: argparse.Namespace, function: Function | None, types: Types, backend: Backend,
    rows: Sequence[Mapping[str, Any]],
) -> LoadedPlan:  # fmt: skip
    """The plan of a program with `--passes` or in IR form, compiled ahead for such arguments as it gets."""
    from sglc.api.ahead import with_outputs
    from sglc.api.plan import LoadedPlan
    from sglc.cli.program_file import open_ir
    from sglc.frontend.tracing.tools import tools_of
    from sglc.ir.core import walk
    from sglc.ir.ops import HostCall
    from sglc.passes.compile import compile_program

    passes = passes_of(options)
    if function is None:
        program = open_ir(options.program)
    else:
        given = made(arguments(options, types) | dict(rows[0] if rows else {}), types)
        names = {parameter.name for parameter in function.definition.parameters}
        known = {name: value for name, value in given.items() if name in names}
        program = function.trace(args={k: value for k, value in known.items() if not isinstance(value, str)})
        if not rows and any(isinstance(op, HostCall) and not op.error for op in walk(program.ops)):
            program = function.trace(args=known)  # some text has to be known too
    program = with_outputs(program, options.outputs)
    return LoadedPlan(compile_program(program, backend.target, passes).plan, tools_of(program))
