"""The command line: results on stdout, everything else on stderr; exit 0 good, 1 failed, 2 wrong usage."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from sglc.cli.backends import add_backends
from sglc.cli.bench import add_bench
from sglc.cli.cache import add_cache
from sglc.cli.compile import add_compile
from sglc.cli.explain import add_explain
from sglc.cli.models import add_models
from sglc.cli.options import say, with_values
from sglc.cli.run import add_run
from sglc.cli.serve import add_serve
from sglc.errors import SglcError, UsageError, render


def run_command(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code."""
    try:
        return _main(argv)
    finally:
        # A thread that is inside the model when Python ends would end the process by a signal.
        registry = sys.modules.get("sglc.backends.registry")
        if registry is not None:
            registry.disconnect()


def _main(argv: Sequence[str] | None) -> int:
    for name in ("stdin", "stdout", "stderr"):  # in this order: a file takes the lowest number that is free
        if getattr(sys, name) is None:  # it is closed, and results would get its number
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that knows few characters
    try:
        options = _parser().parse_args(with_values(sys.argv[1:] if argv is None else argv))
        code: int = options.command(options)
        sys.stdout.flush()
        return code
    except SglcError as error:
        say(render(error))
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt as stop:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # once is enough; the process is ending
        say("sglc: interrupted")
        number = stop.args[0] if stop.args and isinstance(stop.args[0], int) else signal.SIGINT
        return 128 + number
    except BrokenPipeError:  # `sglc ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError("SGLC010", message, hint=f"`{self.prog} --help` lists what it takes")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="sglc", description="An optimizing compiler for LLM programs.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in (add_run, add_compile, add_explain, add_models, add_backends, add_cache, add_bench, add_serve):
        add(commands)
    later = commands.add_parser("shell")
    later.add_argument("rest", nargs=argparse.REMAINDER)
    later.set_defaults(command=_later_command, name="shell")
    return parser


def _later_command(options: argparse.Namespace) -> NoReturn:
    raise UsageError("SGLC018", f"`sglc {options.name}` is not in this release")
