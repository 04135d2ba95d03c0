"""The command line: results on stdout, everything else on stderr; exit 0 good, 1 failed, 2 wrong usage."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from sglc.bench.command import add_bench
from sglc.errors import SglcError, UsageError, render
from sglc.serve.command import add_serve

if TYPE_CHECKING:
    from sglc.api import Function
    from sglc.ir.core import Program
    from sglc.ir.target import Backend
    from sglc.result import Result

_EMITS = ("ir", "plan", "json", "dot", "mermaid")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code."""
    try:
        return _main(argv)
    finally:
        # A thread that is inside the model when Python ends would end the process by a signal.
        registry = sys.modules.get("sglc.backends.registry")
        if registry is not None:
            registry.disconnect()


def _main(argv: Sequence[str] | None) -> int:
    try:
        options = _parser().parse_args(argv)
        code: int = options.command(options)
        sys.stdout.flush()
        return code
    except SglcError as error:
        print(render(error), file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # once is enough; the process is ending
        print("sglc: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `sglc ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError("SGLC010", message, hint=f"`{self.prog} --help` lists what it takes")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="sglc", description="An optimizing compiler for LLM programs.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a program", description="Run a program, or a plan.")
    run.add_argument("program", metavar="PROG[:FN] | PLAN.json")
    _backend_options(run, "--backend")
    run.add_argument("--arg", action="append", default=[], metavar="K=V", help="a text argument")
    run.add_argument("--args", metavar="JSON", help="arguments as one JSON object")
    run.add_argument("--batch", metavar="ROWS.jsonl", help="one JSON object a line: arguments of a row")
    run.add_argument("-o", "--output", metavar="OUT.jsonl", help="where results go (default: stdout)")
    run.add_argument("--json", action="store_true", help="results as JSON, one object a row")
    run.add_argument("--seed", type=_seed, help="repeats the samples of the run that reported it")
    run.add_argument("--stream", action="store_true", help="show text while it is generated")
    for name in ("--record", "--replay", "--trace"):
        run.add_argument(name, action=_Later, help=argparse.SUPPRESS)
    run.set_defaults(command=_run)

    build = commands.add_parser("compile", help="show a program's IR and plan")
    build.add_argument("program", metavar="PROG[:FN] | IR.sglir")
    _backend_options(build, "--target")
    build.add_argument("--dump-ir", action="store_true", help="the IR as traced")
    build.add_argument(
        "--dump-ir-after-all", action="store_true", help="the IR as traced, and after every pass"
    )
    build.add_argument("--passes", metavar="A,B,C", help="run these passes instead of the target's")
    build.add_argument("--emit", choices=(*_EMITS, "html"), help="lowered IR, plan (default), JSON, or a graph")
    build.add_argument("-o", "--output", metavar="FILE")
    build.set_defaults(command=_compile)

    explain = commands.add_parser("explain", help="say what a program will do, and why")
    explain.add_argument("program", metavar="PROG[:FN] | IR.sglir")
    _backend_options(explain, "--target")
    for name in ("--analyze", "--html"):
        explain.add_argument(name, action=_Later, nargs="?", help=argparse.SUPPRESS)
    explain.set_defaults(command=_explain)

    models = commands.add_parser("models", help="list, fetch and find models")
    actions = models.add_subparsers(title="actions", required=True, metavar="ACTION")
    actions.add_parser("list", help="known models").set_defaults(command=_models_list)
    pull = actions.add_parser("pull", help="fetch a model")
    pull.add_argument("name")
    pull.set_defaults(command=_models_pull)
    path = actions.add_parser("path", help="where a model lies")
    path.add_argument("name")
    path.set_defaults(command=_models_path)

    add_bench(commands)
    add_serve(commands)
    later = commands.add_parser("shell")
    later.add_argument("rest", nargs=argparse.REMAINDER)
    later.set_defaults(command=_later_command, name="shell")
    return parser


def _backend_options(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument(
        name, dest="backend", metavar="B",
        help="local (default), local:MODEL, openai:MODEL, http://HOST:PORT or scripted:FILE",
    )  # fmt: skip
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto")


class _Later(argparse.Action):
    """An option of the design that this release does not have: refused, never ignored."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> NoReturn:
        raise UsageError("SGLC018", f"`{option_string}` is not in this release")


def _later_command(options: argparse.Namespace) -> NoReturn:
    raise UsageError("SGLC018", f"`sglc {options.name}` is not in this release")


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**64:
        raise argparse.ArgumentTypeError(f"`{text}` is no integer from 0 to 2**64 - 1")
    return int(text)


def _connect(options: argparse.Namespace) -> Backend:
    from sglc.backends.registry import connect

    return connect(options.backend, device=options.device, dtype=options.dtype)


# -- run -----------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    from sglc.program_file import open_function, open_rows

    if options.program.endswith(".json"):
        return _run_plan(options)
    if options.batch and options.stream:
        raise UsageError("SGLC019", "`--stream` shows one run, and `--batch` has many")
    backend = _connect(options)
    function = open_function(options.program)
    given = _arguments(options)
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
    with _output(options.output) as out:
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


def _arguments(options: argparse.Namespace) -> dict[str, Any]:
    from sglc.program_file import parse_json

    given: dict[str, Any] = {}
    if options.args:
        given = parse_json(options.args, "--args")
        if not isinstance(given, dict):
            raise UsageError("SGLC008", "`--args` takes a JSON object", hint='`--args \'{"question": "..."}\'`')
    for pair in options.arg:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError("SGLC007", f"`--arg {pair}` has no `=`", hint="write `--arg name=value`")
        given[name] = value
    return given


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
    backend = _connect(options)
    run = Run(backend, random_seed() if options.seed is None else options.seed)
    variables, value = run_plan(plan, {k: str(v) for k, v in _arguments(options).items()}, run)
    with _output(options.output) as out:
        shown = {"vars": variables, "value": value, "usage": asdict(total(run.calls)), "seed": run.seed}
        print(json.dumps(shown, ensure_ascii=False, indent=None if options.json else 2), file=out)
    return 0


# -- compile and explain -------------------------------------------------------------------------


def _programs(spec: str) -> list[tuple[Function | None, Program]]:
    """The programs of a file, and their functions where it is Python."""
    from sglc.program_file import open_functions, open_ir

    if spec.endswith(".sglir"):
        return [(None, open_ir(spec))]
    return [(function, function.trace()) for function in open_functions(spec)]


def _compile(options: argparse.Namespace) -> int:
    from sglc.compile import compile_program
    from sglc.frontend.lint import findings, render_finding
    from sglc.ir.text import to_text

    if options.emit == "html":
        raise UsageError("SGLC018", "`--emit html` is not in this release", note=f"now: {', '.join(_EMITS)}")
    programs = _programs(options.program)
    passes = [name for name in options.passes.split(",") if name] if options.passes is not None else None
    with _output(options.output) as out:
        for function, program in programs:
            for finding in findings(function.definition if function else None, program):
                print(render_finding(finding), file=sys.stderr)
            if options.dump_ir or options.dump_ir_after_all:
                print(to_text(program, locs=True), file=out, end="")
            if options.dump_ir and not options.dump_ir_after_all and options.emit is None:
                continue

            def after(name: str, made: Program) -> None:
                if options.dump_ir_after_all:
                    print(f"\n# after {name}\n{to_text(made, locs=True)}", file=out, end="")

            compiled = compile_program(program, _connect(options).target, passes, after)
            if options.emit is not None or not options.dump_ir_after_all:
                print(_emitted(compiled, options.emit or "plan"), file=out)
    return 0


def _emitted(compiled: Any, what: str) -> str:
    from sglc.ir.graph import to_dot, to_mermaid
    from sglc.ir.plan_json import plan_to_json
    from sglc.ir.plan_text import plan_text
    from sglc.ir.text import to_text

    match what:
        case "ir":
            return to_text(compiled.lowered, locs=True).rstrip("\n")
        case "plan":
            return plan_text(compiled.plan).rstrip("\n")
        case "json":
            return json.dumps(plan_to_json(compiled.plan), ensure_ascii=False, indent=1)
        case "dot":
            return to_dot(compiled.lowered).rstrip("\n")
        case "mermaid":
            return to_mermaid(compiled.lowered).rstrip("\n")
        case _:
            raise AssertionError(what)


def _explain(options: argparse.Namespace) -> int:
    from sglc.compile import compile_program
    from sglc.explain import explanation
    from sglc.frontend.lint import findings
    from sglc.frontend.survey import survey

    for function, program in _programs(options.program):
        compiled = compile_program(program, _connect(options).target)
        definition = function.definition if function else None
        found = survey(definition) if definition else None
        print(explanation(compiled, found, findings(definition, program)))
    return 0


# -- models --------------------------------------------------------------------------------------


def _models_list(options: argparse.Namespace) -> int:
    from sglc.runtime.models import list_models

    for model in list_models():
        print(model)
    return 0


def _models_pull(options: argparse.Namespace) -> int:
    from sglc.progress import show
    from sglc.runtime.models import pull

    print(pull(options.name, lambda done, total: show(done, total, options.name, " bytes")))
    return 0


def _models_path(options: argparse.Namespace) -> int:
    from sglc.runtime.models import path

    print(path(options.name))
    return 0


def _output(path: str | None) -> Any:
    from contextlib import nullcontext

    if path is None:
        return nullcontext(sys.stdout)
    if not Path(path).parent.is_dir():
        raise UsageError("SGLC009", f"there is no folder `{Path(path).parent}` for `{path}`")
    return open(path, "w", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
