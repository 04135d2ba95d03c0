"""`sglc run`: a program, a batch of its rows, or a plan."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from sglc.command.options import Commands, Later, add_arguments, add_backend, arguments, connect, output, seed
from sglc.errors import SglcError, UsageError, render

if TYPE_CHECKING:
    from sglc.result import Result


def add_run(commands: Commands) -> None:
    """Add `run` to the commands of `sglc`."""
    run = commands.add_parser("run", help="run a program", description="Run a program, or a plan.")
    run.add_argument("program", metavar="PROG[:FN] | PLAN.json")
    add_backend(run, "--backend")
    add_arguments(run)
    run.add_argument("-o", "--output", metavar="OUT.jsonl", help="where results go (default: stdout)")
    run.add_argument("--json", action="store_true", help="results as JSON, one object a row")
    run.add_argument("--seed", type=seed, help="repeats the samples of the run that reported it")
    run.add_argument("--stream", action="store_true", help="show text while it is generated")
    for name in ("--record", "--replay", "--trace"):
        run.add_argument(name, action=Later, help=argparse.SUPPRESS)
    run.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    from sglc.program_file import open_function, open_rows

    if options.program.endswith(".json"):
        return _run_plan(options)
    if options.batch and options.stream:
        raise UsageError("SGLC019", "`--stream` shows one run, and `--batch` has many")
    backend = connect(options)
    function = open_function(options.program)
    given = arguments(options)
    began = time.perf_counter()
    if options.batch:
        rows = [{**given, **row} for row in open_rows(options.batch)]
        stream = function.stream_batch(rows, backend=backend, seed=options.seed)
        from sglc.progress import bar

        results = bar(stream, total=len(rows), label=function.__name__)
    else:
        on_text = _Streamer().write if options.stream else None
        results = iter([function.start(given, backend, options.seed, on_text)])
    done: list[Result] = []
    with output(options.output) as out:
        for result in results:
            result.sync()
            _show(result, options, out)
            error = result.error()
            if error is not None:
                row = f"row {result.row}: " if options.batch else ""
                print(row + render(_as_sglc(function, error)), file=sys.stderr)
            done.append(result)
    _summary(done, time.perf_counter() - began)
    return 1 if any(result.error() is not None for result in done) else 0


def _show(result: Result, options: argparse.Namespace, out: TextIO) -> None:
    if options.json or options.output:
        print(json.dumps(result.as_json(), ensure_ascii=False, default=str), file=out)
        return
    if options.stream:
        return
    shown = _shown(result)
    if shown or options.batch:
        print((f"[{result.row}] " if options.batch else "") + shown, file=out)


def _shown(result: Result) -> str:
    """What a person wants to see first: the return value, else the chat, else the text."""
    if result.error() is not None:
        return result.partial_text if result.calls else ""  # a prompt alone is no result
    if result.ret_value is not None:
        value = result.ret_value
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=str)
    turns = result.messages()
    lines = [f"{turn['role']}: {turn['content']}" for turn in turns] if turns else [result.text()]
    # What branches stored stands in no text of the prompt itself.
    lists = {name: value for name, value in result.variables.items() if isinstance(value, list)}
    lines += [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in lists.items()]
    return "\n".join(lines)


class _Streamer:
    """Prints generated text as it comes, one generation after the other: those that run beside the
    one being shown wait for their turn."""

    def __init__(self) -> None:
        self._waiting: dict[Any, list[str | None]] = {}  # the first one is being shown

    def write(self, site: Any, text: str | None) -> None:
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


def _summary(results: list[Result], seconds: float) -> None:
    from sglc.ir.plan import Usage

    used = sum((result.usage for result in results), Usage())
    what = "1 run" if len(results) == 1 else f"{len(results)} rows"
    tokens = f"{used.prompt} in ({used.cached} cached), {used.completion} out"
    scored = f", {used.scored} scored" if used.scored else ""
    seed = f"; seed {results[0].seed}" if results else ""
    saved = f" ({used.saved_calls} saved)" if used.saved_calls else ""
    line = f"sglc: {what}, {used.calls} calls{saved}; tokens: {tokens}{scored}; {seconds:.2f} s{seed}"
    print(line, file=sys.stderr)


def _as_sglc(function: Any, error: BaseException) -> SglcError:
    from sglc.frontend.ahead import failed

    return error if isinstance(error, SglcError) else failed(function.definition, error)


def _run_plan(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from sglc.api import random_seed
    from sglc.calls import total
    from sglc.executor import Run
    from sglc.plan_run import run_plan
    from sglc.program_file import open_plan

    if options.batch or options.stream:
        raise UsageError("SGLC018", "`--batch` and `--stream` of a plan are not in this release")
    plan = open_plan(options.program)
    backend = connect(options)
    run = Run(backend, random_seed() if options.seed is None else options.seed)
    variables, value = run_plan(plan, {k: str(v) for k, v in arguments(options).items()}, run)
    with output(options.output) as out:
        shown = {"vars": variables, "value": value, "usage": asdict(total(run.calls)), "seed": run.seed}
        print(json.dumps(shown, ensure_ascii=False, indent=None if options.json else 2), file=out)
    return 0
