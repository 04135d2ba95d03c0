"""`sglc compile`: a program's IR and plan."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglc.cli.argument_types import made, types_of
from sglc.cli.options import (
    Commands,
    add_backend,
    add_examples,
    add_passes,
    arguments,
    check_output,
    connect,
    input_files,
    output_file,
    passes_of,
    say,
    write_output,
)
from sglc.errors import UsageError

if TYPE_CHECKING:
    from sglc.api.function import Function
    from sglc.ir.core import Program

_EMITS = ("ir", "plan", "json", "dot", "mermaid", "fsm", "html")
_EMIT_OF = {".sglir": "ir", ".json": "json", ".dot": "dot", ".mmd": "mermaid", ".html": "html"}  # by `-o`


def add_compile(commands: Commands) -> None:
    """Add `compile` to the commands of `sglc`."""
    build = commands.add_parser("compile", help="show a program's IR and plan")
    build.add_argument("program", metavar="PROG[:FN] | IR.sglir")
    add_backend(build, "--target", "--backend")
    build.add_argument("--dump-ir", action="store_true", help="the IR as traced")
    build.add_argument(
        "--dump-ir-after-all", action="store_true", help="the IR as traced, and after every pass"
    )
    add_passes(build)
    add_examples(build)
    build.add_argument(
        "--emit",
        choices=_EMITS,
        help="lowered IR, plan, JSON that runs, a graph, automata of constraints, or a page; default: what "
        "the ending of FILE says, else the plan",
    )
    build.add_argument("-o", "--output", type=output_file, metavar="FILE")
    build.set_defaults(command=_compile)


def _programs(options: argparse.Namespace, *, single: bool) -> list[tuple[Function | None, Program]]:
    """The programs of a file, or the `single` one, and their functions where it is Python."""
    from sglc.cli.program_file import open_function, open_functions, open_ir

    spec: str = options.program
    examples = options.arg or options.args
    if spec.endswith(".sglir"):
        if examples:
            raise UsageError(
                "SGLC061", "a program in IR form is compiled without arguments",
                hint="give the Python file of the program",
            )  # fmt: skip
        return [(None, open_ir(spec))]
    if examples:  # they are those of one program
        function = open_function(spec)
        types = types_of(function)
        return [(function, function.trace(args=made(arguments(options, types), types)))]
    functions = [open_function(spec)] if single else open_functions(spec)
    return [(function, function.trace()) for function in functions]


def _compile(options: argparse.Namespace) -> int:
    from sglc.api.ahead import with_outputs
    from sglc.frontend.analysis.lint import findings, render_finding
    from sglc.ir.text.printer import to_text
    from sglc.passes.compile import compile_program

    check_output(options.output, input_files(options))
    emit: str | None = options.emit
    ending = Path(options.output or "").suffix
    asked = emit or _EMIT_OF.get(ending)
    if not (options.dump_ir or options.dump_ir_after_all):
        emit = asked
    elif options.output is None and asked not in (None, "ir", "plan"):
        raise UsageError(
            "SGLC019", f"stdout is to hold one thing, and `--dump-ir` writes IR beside `--emit {asked}`",
            hint="compile twice",
        )  # fmt: skip
    elif (
        options.output
        and asked not in (None, "plan")
        and (emit, asked, options.dump_ir_after_all) != (None, "ir", False)
    ):
        raise UsageError(
            "SGLC019", f"`{options.output}` is to hold one thing, and `--dump-ir` writes IR besides",
            hint="compile twice, or leave `-o` out",
        )  # fmt: skip
    programs = _programs(options, single=emit == "json" or ending == ".sglir")  # a file that runs has one
    passes = passes_of(options)
    pages: list[dict[str, Any]] = []
    whole = io.StringIO()
    out = sys.stdout if options.output is None else whole  # there, a pass that fails leaves those before it
    for function, program in programs:
        for finding in findings(function.definition if function else None, program):
            say(render_finding(finding))
        if options.dump_ir or options.dump_ir_after_all:
            print(to_text(program, locs=True), file=out, end="")
        if options.dump_ir and not options.dump_ir_after_all and emit is None:
            continue

        def after(name: str, made: Program) -> None:
            if options.dump_ir_after_all:
                print(f"\n# after {name}\n{to_text(made, locs=True)}", file=out, end="")

        program = with_outputs(program, options.outputs, function.definition.loc if function else None)
        compiled = compile_program(program, connect(options).target, passes, after)
        if emit == "html":
            from sglc.explain.explanation import explained_compiled

            pages.append(explained_compiled(compiled, connect(options).target).to_json())
        elif emit is not None or not options.dump_ir_after_all:
            print(_emitted(compiled, emit or "plan"), file=out)
    if pages:
        from sglc.explain.render.page import page

        print(page(pages), file=out)
    if options.output is not None:
        write_output(options.output, whole.getvalue())
    return 0


def _emitted(compiled: Any, what: str) -> str:
    match what:
        case "ir":
            from sglc.ir.text.printer import to_text

            return to_text(compiled.lowered, locs=True).rstrip("\n")
        case "plan":
            from sglc.ir.plan.plan_text import plan_text

            return plan_text(compiled.plan).rstrip("\n")
        case "json":
            from sglc.execution.plan.prepare import check_no_break
            from sglc.ir.plan.plan_file import plan_to_text

            check_no_break(compiled.plan)
            return plan_to_text(compiled.plan)
        case "dot":
            from sglc.ir.text.graph import to_dot

            return to_dot(compiled.lowered).rstrip("\n")
        case "fsm":
            from sglc.ir.text.fsm_graph import to_fsm_dot

            return to_fsm_dot(compiled.lowered).rstrip("\n")
        case "mermaid":
            from sglc.ir.text.graph import to_mermaid

            return to_mermaid(compiled.lowered).rstrip("\n")
        case _:
            raise AssertionError(what)
