"""The command line: results on stdout, everything else on stderr; exit 0 good, 1 failed, 2 wrong usage."""

from __future__ import annotations

import argparse
import codecs
import errno
import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from sglc.cli.options import leave_stdout, say, with_values
from sglc.errors import RunError, SglcError, UsageError, render
from sglc.knobs import debug_level

_COMMANDS = (
    "run",
    "compile",
    "explain",
    "models",
    "backends",
    "cache",
    "bench",
    "serve",
    "doctor",
)  # a file each
# Why stdout takes no more; what else commands write to says so itself.
_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


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
        codecs.register_error("as-in-json", _as_in_json)
        sys.stdout.reconfigure(errors="as-in-json")  # a terminal that knows few characters
    try:
        words = with_values(sys.argv[1:] if argv is None else argv)
        options, unknown = _parser(words[:1]).parse_known_args(words)
        if unknown:
            command = f"sglc {words[0]}" if words[0] in _COMMANDS else "sglc"
            raise _wrong(f"unrecognized arguments: {' '.join(unknown)}", command)
        debug_level()  # a bad one is wrong usage of any command
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
        leave_stdout(sys.stdout)
        return 0
    except OSError as error:
        if error.filename is not None or error.errno not in _LOST:
            raise
        leave_stdout(sys.stdout)
        say(render(RunError("SGLC427", f"`stdout` cannot be written: {error.strerror or error}")))
        return 1


def _as_in_json(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that cannot be written: JSON that has them so is still JSON, and the same."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _wrong(message: str, command: str) -> UsageError:
    return UsageError("SGLC010", message, hint=f"`{command} --help` lists what it takes")


class _Parser(argparse.ArgumentParser):
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **{**more, "allow_abbrev": False})  # a later option would change what one means

    def error(self, message: str) -> NoReturn:
        raise _wrong(message, self.prog)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version  # takes longer to import than most commands need

        print(f"sglc {version('sglc')}", flush=True)
        parser.exit()


def _parser(asked: Sequence[str]) -> argparse.ArgumentParser:
    """What reads the command line. A command that is `asked` for is there alone: others' files stay unread."""
    parser = _Parser(prog="sglc", description="An optimizing compiler for LLM programs.")
    parser.add_argument("--version", action=_Version, nargs=0, help="say which release this is")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name in [name for name in _COMMANDS if name in asked] or _COMMANDS:
        getattr(import_module(f"sglc.cli.{name}"), f"add_{name}")(commands)
    later = commands.add_parser("shell")
    later.add_argument("rest", nargs=argparse.REMAINDER)
    later.set_defaults(command=_later_command, name="shell")
    return parser


def _later_command(options: argparse.Namespace) -> NoReturn:
    raise UsageError("SGLC018", f"`sglc {options.name}` is not in this release")
