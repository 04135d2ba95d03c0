"""`sglc explain`: what a program will do, and why; with `--analyze` also what it did then."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from sglc.cli.argument_types import made, made_row, types_of
from sglc.cli.options import (
    Commands,
    add_arguments,
    add_backend,
    add_passes,
    arguments,
    check_output,
    connect,
    input_files,
    output_file,
    passes_of,
    say,
    seed,
    write_output,
)
from sglc.errors import BackendError, SglcError, UsageError, render

if TYPE_CHECKING:
    from sglc.api.function import Function
    from sglc.explain.explanation import Explanation
    from sglc.ir.plan.backend import Backend

_EMITS = ("text", "json", "mermaid", "dot")


def add_explain(commands: Commands) -> None:
    """Add `explain` to the commands of `sglc`."""
    explain = commands.add_parser("explain", help="say what a program will do, and why")
    explain.add_argument("program", metavar="PROG[:FN] | IR.sglir")
    add_backend(explain, "--target", "--backend")
    add_passes(explain)
    add_arguments(explain)
    explain.add_argument("--emit", choices=_EMITS, default="text")
    explain.add_argument("--html", type=output_file, metavar="FILE", help="write a page to look at, too")
    explain.add_argument(
        "--analyze",
        action="store_true",
        help="run it, and compare: the estimate is written before the first call",
    )
    explain.add_argument("--seed", type=seed, help="of the samples of `--analyze`")
    explain.set_defaults(command=_explain)


def _explain(options: argparse.Namespace) -> int:
    from sglc.cli.program_file import open_function, open_functions, open_ir

    if options.seed is not None and not options.analyze:
        raise UsageError("SGLC062", "`--seed` is of a run, and nothing runs", hint="add `--analyze`")
    if options.program.endswith(".json"):
        raise UsageError(
            "SGLC063", f"`{options.program}` is a plan, and a program is explained",
            hint="give the file that the plan was made of",
        )  # fmt: skip
    check_output(options.html, input_files(options))
    backend = connect(options)
    passes = passes_of(options)
    if passes is not None:
        from sglc.backends.with_passes import WithPasses

        backend = WithPasses(backend, passes)
    given = arguments(options)
    if options.program.endswith(".sglir"):
        from sglc.explain.explanation import explained_program

        if given or options.batch or options.analyze:
            raise UsageError(
                "SGLC061", "a program in IR form is explained without arguments, and `explain` does not run it",
                hint="give the Python file of the program",
            )  # fmt: skip
        from sglc.api.ahead import with_outputs

        program = with_outputs(open_ir(options.program), options.outputs)
        explained = [explained_program(program, backend.target)]
        return _show(explained, options)
    if options.analyze or given or options.batch:  # they are those of one program
        function = open_function(options.program)
        types = types_of(function)
        given = made(arguments(options, types), types)
        if options.batch is None:
            return _explain_one(function, backend, given, None, options)
        from sglc.cli.batch.rows import open_rows

        file = open_rows(options.batch, types)
        try:
            rows = [made_row(number, row, types) for number, row in enumerate(file)]
            return _explain_one(function, backend, given, rows, options)
        except SglcError as error:
            raise file.placed(error) from None
    return _explain_all(open_functions(options.program), backend, options)


def _explain_all(functions: list[Function], backend: Backend, options: argparse.Namespace) -> int:
    """Each program of a file; those that cannot be explained hide no other."""
    explained: list[Explanation] = []
    failed: list[SglcError] = []
    for function in functions:
        try:
            explained.append(function.explain_for(backend, {}, None, options.outputs))
        except (UsageError, BackendError):  # they are not the program's alone
            raise
        except SglcError as error:
            failed.append(error)
    if explained:
        _show(explained, options)
    for one in failed[:-1]:
        say(render(one))
    if failed:
        raise failed[-1]
    return 0


def _explain_one(
    function: Function, backend: Backend, given: dict[str, Any], rows: list[dict[str, Any]] | None,
    options: argparse.Namespace,
) -> int:  # fmt: skip
    if options.analyze:
        return _analyze(function, backend, given, rows, options)
    return _show([function.explain_for(backend, given, rows, options.outputs)], options)


def _show(explained: list[Explanation], options: argparse.Namespace) -> int:
    try:
        for explanation in explained:
            match options.emit:
                case "json":
                    print(json.dumps(explanation.to_json(), ensure_ascii=False))
                case "mermaid":
                    print(explanation.to_mermaid())
                case "dot":
                    print(explanation.to_dot())
                case _:
                    print(explanation.text())
    finally:  # also where nobody reads stdout any more
        if options.html:
            _write(options.html, [explanation.to_json() for explanation in explained])
    return 0


def _write(path: str, data: list[dict[str, Any]]) -> None:
    from sglc.explain.render.page import page

    write_output(path, page(data))


def _analyze(
    function: Function, backend: Backend, given: dict[str, Any], rows: list[dict[str, Any]] | None,
    options: argparse.Namespace,
) -> int:  # fmt: skip
    """The estimate, written and flushed; then the run; then both side by side."""
    import sys

    from sglc.explain.estimate.analyze import analyzed
    from sglc.explain.render.analyze_text import analysis_text

    explanation = function.explain_for(backend, given, rows, options.outputs)
    _show([explanation], options)
    sys.stdout.flush()
    if rows is None:
        # With pieces as they come, so that it is known when the first one did.
        results = [
            function.start(given, backend, options.seed, lambda site, text: None, outputs=options.outputs)
        ]
    else:
        results = list(
            function.run_batch(
                [{**given, **row} for row in rows], backend=backend, seed=options.seed, outputs=options.outputs
            )
        )
    analysis = analyzed(explanation.forecast, results, backend.target.tokenizer)
    try:
        match options.emit:
            case "json":
                print(json.dumps(analysis.to_json(), ensure_ascii=False))
            case "text":
                print(f"\n{analysis_text(explanation.forecast, analysis)}")
            case _:
                pass  # the graph has been drawn
    finally:
        if options.html:
            _write(options.html, [{**explanation.to_json(), "analysis": analysis.to_json()}])
    return 1 if analysis.errors else 0
