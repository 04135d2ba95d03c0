"""`sglc run`: a program, a batch of its rows, or a plan."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from sglc.cli.options import (
    Commands,
    add_arguments,
    add_backend,
    add_passes,
    arguments,
    connect,
    output,
    passes_of,
    seed,
)
from sglc.errors import RunError, SglcError, UsageError, render

if TYPE_CHECKING:
    from sglc.api.function import Function
    from sglc.api.plan import LoadedPlan
    from sglc.execution.result import Result
    from sglc.ir.plan.backend import Backend


def add_run(commands: Commands) -> None:
    """Add `run` to the commands of `sglc`."""
    run = commands.add_parser("run", help="run a program", description="Run a program, or a plan.")
    run.add_argument("program", metavar="PROG[:FN] | IR.sglir | PLAN.json")
    add_backend(run, "--backend")
    add_passes(run)
    add_arguments(run)
    run.add_argument("-o", "--output", metavar="OUT.jsonl", help="where results go (default: stdout)")
    run.add_argument("--json", action="store_true", help="results as JSON, one object a row")
    run.add_argument(
        "--mode", choices=("auto", "plan", "python"),
        help="run the program's plan where there is one (auto), always, or its code as Python",
    )  # fmt: skip
    run.add_argument("--seed", type=seed, help="repeats the samples of the run that reported it")
    run.add_argument("--stream", action="store_true", help="show text while it is generated")
    run.add_argument("--record", metavar="DIR", help="keep every answer in a new folder")
    run.add_argument("--replay", metavar="DIR", help="answer from such a folder, without a model")
    run.add_argument("--trace", metavar="OUT.json", help="a time line for Perfetto or Chrome")
    run.add_argument("--tools", metavar="FILE.py", help="declares the functions that a plan calls")
    run.add_argument(
        "--timeout", type=_limit(float), metavar="S", help="seconds of the run, or of the whole batch"
    )
    run.add_argument("--row-timeout", type=_limit(float), metavar="S", help="seconds of each row of a batch")
    run.add_argument(
        "--concurrency", type=_limit(int), metavar="N", help="rows of a batch that are live at once"
    )
    run.add_argument(
        "--max-calls", type=_limit(int), metavar="N", help="generations of the run, or of each row"
    )
    run.add_argument(
        "--max-tokens", type=_limit(int), metavar="N", help="tokens that the run, or each row, may generate"
    )
    run.set_defaults(command=_run)


def _limit(kind: type[int] | type[float]) -> Callable[[str], float]:
    """The type of a limit: a number above 0."""

    def read(text: str) -> float:
        try:
            limit = kind(text)
        except ValueError:
            limit = 0
        if not 0 < limit < math.inf:
            what = "number from 1" if kind is int else "number of seconds above 0"
            raise argparse.ArgumentTypeError(f"`{text}` is no {what}")
        return limit

    return read


def _run(options: argparse.Namespace) -> int:
    from sglc.cli.program_file import PROGRAM_OR_PLAN, open_function, open_plan, open_rows
    from sglc.execution.start import limits_of_run

    if options.batch and options.stream:
        raise UsageError("SGLC019", "`--stream` shows one run, and `--batch` has many")
    for name in ("row_timeout", "concurrency"):
        if getattr(options, name) is not None and not options.batch:
            raise UsageError("SGLC043", f"`--{name.replace('_', '-')}` is for the rows of a `--batch`")
    is_plan = options.program.endswith(".json")
    if options.tools and not is_plan:
        raise UsageError("SGLC044", "`--tools` is for a plan: a program has its functions")
    if is_plan and options.passes is not None:
        raise UsageError("SGLC019", "`--passes` rewrites programs, and a plan is none any more")
    function: Function | LoadedPlan
    rows = [] if options.batch is None else open_rows(options.batch)
    if options.passes is not None or options.program.endswith(".sglir"):
        backend = connect(options)
        function = _compiled(options, backend, rows)
    else:
        function = (
            open_plan(options.program, options.tools) if is_plan
            else open_function(options.program, PROGRAM_OR_PLAN)
        )  # fmt: skip
        backend = connect(options)
    given = arguments(options, _kinds(function))
    watches = _watches(options)
    mode: dict[str, Any] = {} if options.mode is None else {"mode": options.mode}
    if mode and hasattr(function, "plan"):
        raise UsageError("SGLC044", "`--mode` is for a program, and this is a plan already")
    began = time.perf_counter()
    if options.batch:
        rows = [{**given, **row} for row in rows]
        stream = function.stream_batch(
            rows, backend=backend, seed=options.seed, num_threads=options.concurrency or "auto",
            max_calls=options.max_calls, max_tokens=options.max_tokens,
            timeout=options.timeout, row_timeout=options.row_timeout, **watches, **mode,
        )  # fmt: skip
        from sglc.execution.progress import bar

        results = bar(stream, total=len(rows), label=function.__name__)
    else:
        on_text = _Streamer().write if options.stream else None
        limits = limits_of_run(options.max_calls, options.max_tokens, options.timeout)
        results = iter([function.start(given, backend, options.seed, on_text, limits, watches, **mode)])
    done: list[Result] = []
    with output(options.output) as out:
        for result in results:
            result.sync()
            _show(result, options, out)
            error = result.error()
            if error is not None:
                row = f"row {result.row}: " if options.batch else ""
                print(row + render(_as_sglc(function, error)), file=sys.stderr)
            else:
                _caught(result, f"row {result.row}: " if options.batch else "")
            done.append(result)
    _summary(done, time.perf_counter() - began)
    return 1 if any(result.error() is not None for result in done) else 0


def _caught(result: Result, row: str) -> None:
    """The failures that the program has caught."""
    for failure in result.failures:
        shown = render(failure.error) if isinstance(failure.error, SglcError) else repr(failure.error)
        print(f"{row}sglc: `{failure.site}` failed, and the program went on:\n{shown}", file=sys.stderr)


def _kinds(function: Function | LoadedPlan) -> dict[str, str]:
    """The types of its arguments."""
    from sglc.api.plan import LoadedPlan
    from sglc.frontend.tracing.arguments import promised

    if isinstance(function, LoadedPlan):
        return {param.name: param.kind for param in function.plan.params}
    return promised(function.definition)


def _watches(options: argparse.Namespace) -> dict[str, Any]:
    asked = {name: getattr(options, name) for name in ("record", "replay", "trace")}
    return {name: path for name, path in asked.items() if path is not None}


def _show(result: Result, options: argparse.Namespace, out: TextIO) -> None:
    # What was compiled ahead has no prompt that a person would want to see.
    is_plan = options.program.endswith((".json", ".sglir"))
    if options.json or options.output or (is_plan and not options.stream):
        indent = None if options.json or options.output or options.batch else 2
        print(json.dumps(result.as_json(), ensure_ascii=False, default=str, indent=indent), file=out)
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
    from sglc.ir.plan.events import Usage

    used = sum((result.usage for result in results), Usage())
    what = "1 run" if len(results) == 1 else f"{len(results)} rows"
    tokens = f"{used.prompt} in ({used.cached} cached), {used.completion} out"
    scored = f", {used.scored} scored" if used.scored else ""
    seed = f"; seed {results[0].seed}" if results else ""
    saved = f" ({used.saved_calls} saved)" if used.saved_calls else ""
    python = [result for result in results if result.why_python]
    if python:
        rows = "" if len(results) == 1 else f" in {len(python)} rows"
        print(f"sglc: its code ran as Python{rows}: {python[0].why_python}", file=sys.stderr)
    line = f"sglc: {what}, {used.calls} calls{saved}; tokens: {tokens}{scored}; {seconds:.2f} s{seed}"
    print(line, file=sys.stderr)


def _as_sglc(function: Function | LoadedPlan, error: BaseException) -> SglcError:
    from sglc.api.function import Function
    from sglc.frontend.tracing.trace import failed

    if isinstance(error, SglcError):
        return error
    if isinstance(function, Function):
        return failed(function.definition, error)
    return RunError("SGLC401", f"`{type(error).__name__}` in `{function.__name__}`: {error}")


def _compiled(options: argparse.Namespace, backend: Backend, rows: Sequence[Mapping[str, Any]]) -> LoadedPlan:
    """The plan of a program with `--passes` or in IR form, compiled ahead for such arguments as it gets."""
    from sglc.api.plan import LoadedPlan
    from sglc.cli.program_file import open_function, open_ir
    from sglc.frontend.tracing.tools import tools_of
    from sglc.ir.core import walk
    from sglc.ir.ops import HostCall
    from sglc.passes.compile import compile_program

    passes = passes_of(options)
    if options.program.endswith(".sglir"):
        program = open_ir(options.program)
    else:
        function = open_function(options.program)
        given = arguments(options, _kinds(function)) | dict(rows[0] if rows else {})
        names = {parameter.name for parameter in function.definition.parameters}
        known = {name: value for name, value in given.items() if name in names}
        program = function.trace(args={k: value for k, value in known.items() if not isinstance(value, str)})
        if not rows and any(isinstance(op, HostCall) and not op.error for op in walk(program.ops)):
            program = function.trace(args=known)  # some text has to be known too
    return LoadedPlan(compile_program(program, backend.target, passes).plan, tools_of(program))
