"""`sglc explain`: what a program will do, and why."""

from __future__ import annotations

import argparse

from sglc.command.options import (
    Commands,
    Later,
    add_backend,
    add_passes,
    connect,
    passes_of,
    programs_of,
)


def add_explain(commands: Commands) -> None:
    """Add `explain` to the commands of `sglc`."""
    explain = commands.add_parser("explain", help="say what a program will do, and why")
    explain.add_argument("program", metavar="PROG[:FN] | IR.sglir")
    add_backend(explain, "--target")
    add_passes(explain)
    for name in ("--analyze", "--html"):
        explain.add_argument(name, action=Later, nargs="?", help=argparse.SUPPRESS)
    explain.set_defaults(command=_explain)


def _explain(options: argparse.Namespace) -> int:
    from sglc.compile import compile_program
    from sglc.explain import explanation
    from sglc.frontend.lint import findings
    from sglc.frontend.survey import survey

    passes = passes_of(options)
    for function, program in programs_of(options.program):
        compiled = compile_program(program, connect(options).target, passes)
        definition = function.definition if function else None
        found = survey(definition) if definition else None
        print(explanation(compiled, found, findings(definition, program)))
    return 0
