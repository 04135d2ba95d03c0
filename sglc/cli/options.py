"""What several commands take, and where their results go."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TextIO

from sglc.cli.argument_types import TEXT, ArgumentType, Types
from sglc.errors import RunError, UsageError, shown
from sglc.ir.sampling import SEEDS, is_seed

if TYPE_CHECKING:
    from sglc.ir.plan.backend import Backend

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # but for tabs and line feeds
Commands = Any  # argparse's own type of what `add_subparsers` gives has no public name


def count(text: str, least: int = 1) -> int:
    """The type of an option that counts: a number of at most 15 digits, which JSON's numbers hold."""
    if not re.fullmatch("[0-9]{1,15}", text) or int(text) < least:
        raise argparse.ArgumentTypeError(f"`{text}` is no number from {least} to 10**15 - 1")
    return int(text)


def number(
    what: str, kind: type[int] | type[float] = float, *, zero: bool = False, below: float = math.inf
) -> Callable[[str], float]:
    """The type of an option that is a number above 0, or 0, too: else it "is no" `what`."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = -1
        if not 0 <= value < below or not (value or zero):
            raise argparse.ArgumentTypeError(f"`{text}` is no {what}")
        return value

    return read


def named(text: str) -> str:
    """The type of an option that names something."""
    if not text:
        raise argparse.ArgumentTypeError("nothing is named")
    return text


def output_file(text: str) -> str:
    """The type of an option that names a file to write."""
    if text == "-":
        raise argparse.ArgumentTypeError("`-` is no file (`./-` is one of that name)")
    return named(text)


def add_backend(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the option with these `names` (`--backend`, `--target`) and what goes with it."""
    parser.add_argument(
        *names, dest="backend", metavar="B", type=named,
        help="local (default), local:MODEL, openai:MODEL, openai-completions:MODEL, azure:DEPLOYMENT, "
        "anthropic:MODEL, gemini:MODEL, vertex:MODEL, mistral:MODEL, openrouter:MODEL, litellm:MODEL, "
        "http[s]://HOST:PORT, grpc[s]://HOST:PORT or scripted:FILE",
    )  # fmt: skip
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto")


def add_passes(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is compiled how."""
    parser.add_argument(
        "--passes",
        metavar="A,B{K=V},C",
        help="run these passes instead of the target's; `+A` adds one to the target's, `-A` takes one away",
    )
    parser.add_argument(
        "--outputs", metavar="A,B", type=lambda text: [name for name in text.split(",") if name],
        help="variables that are asked for: what neither they nor the return value need is not generated",
    )  # fmt: skip
    parser.add_argument(
        "--passes-from", type=named, metavar="FILE.py", help="a Python file that registers passes"
    )


def passes_of(options: argparse.Namespace) -> tuple[str, ...] | None:
    """The passes that are asked for, when those of `--passes-from` are registered; None: the target's.

    Raises:
        SglcError: the file cannot be imported.
    """
    if options.passes_from is not None:
        from sglc.cli.program_file import open_module

        open_module(options.passes_from)
    if options.passes is None:
        return None
    from sglc.passes.pass_options import split_specs

    return split_specs(options.passes)


def with_values(argv: Sequence[str]) -> list[str]:
    """The command line with `--passes=-A` for `--passes -A`, which `argparse` takes for two options."""
    joined: list[str] = []
    for word in argv:
        if joined and joined[-1] == "--passes" and word.startswith("-") and not word.startswith("--"):
            joined[-1] = f"--passes={word}"
        else:
            joined.append(word)
    return joined


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what a program is given: `--arg`, `--args` and `--batch`."""
    add_examples(parser)
    parser.add_argument(
        "--batch",
        type=named,
        metavar="ROWS",
        help="rows of arguments: JSON lines, .csv, .tsv or .parquet; - is stdin",
    )


def add_examples(parser: argparse.ArgumentParser) -> None:
    """Add `--arg` and `--args`."""
    parser.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="K=V",
        help="an argument: a text, or what the parameter says",
    )
    parser.add_argument("--args", type=named, metavar="JSON", help="arguments as one JSON object")


def arguments(options: argparse.Namespace, types: Types = MappingProxyType({})) -> dict[str, Any]:
    """What `--arg` and `--args` give, as JSON's data.

    Args:
        types: those that arguments have, as far as they are known. `--arg` gives what they say, else a text.

    Raises:
        UsageError: SGLC007, SGLC008, one of them is no argument.
    """
    from sglc.cli.program_file import parse_json

    given: dict[str, Any] = {}
    if options.args:
        _check_text("--args", options.args)
        given = parse_json(options.args, "--args")
        if not isinstance(given, dict):
            raise UsageError("SGLC008", "`--args` takes a JSON object", hint='`--args \'{"question": "..."}\'`')
    seen: set[str] = set()
    for pair in options.arg:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError("SGLC007", f"`--arg {pair}` has no `=`", hint="write `--arg name=value`")
        _check_text(f"--arg {name}", pair)
        if name in given:
            both = "`--args` and `--arg`" if name not in seen else "two `--arg`"
            raise UsageError("SGLC007", f"`{name}` is given by {both}")
        seen.add(name)
        given[name] = _argument(name, value, types.get(name, TEXT))
    return given


def _check_text(option: str, text: str) -> None:
    """Raises UsageError: SGLC007, the bytes of the command line are no UTF-8."""
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise UsageError("SGLC007", f"`{shown(option)}` is no UTF-8")


def _argument(name: str, text: str, kind: ArgumentType) -> Any:
    """What `--arg name=text` gives for an argument of a type."""
    try:
        return kind.of_text(text)
    except (ValueError, KeyError) as error:
        raise UsageError(
            "SGLC007", f"`--arg {name}={text}`: `{name}` is of type `{kind.name}`",
            note="" if kind.read is None else shown(str(error)),
            hint="true and false are truth values" if kind.name == "bool" else "",
        ) from None  # fmt: skip


def seed(text: str) -> int:
    """The argument of `--seed`."""
    if not text.isdecimal() or not is_seed(int(text)):
        raise argparse.ArgumentTypeError(f"`{text}` is no {SEEDS.removeprefix('an ')}")
    return int(text)


def connect(options: argparse.Namespace) -> Backend:
    """The back end that `add_backend`'s options name.

    Raises:
        UsageError: there is no such back end, or SGLC010, as of `check_local`.
    """
    from sglc.backends import registry

    check_local(options)
    return registry.connect(options.backend, device=options.device, dtype=options.dtype)


def check_local(options: argparse.Namespace) -> None:
    """Raises UsageError: SGLC010, an option of local models, and the back end is another one."""
    kind = (options.backend or "local").partition(":")[0]
    for name in ("device", "dtype"):
        if kind != "local" and getattr(options, name) != "auto":
            raise UsageError("SGLC010", f"argument --{name}: it is for `local` models, and this is `{kind}`")


def leave_stdout(stdout: TextIO) -> None:
    """Have what `stdout` still has, and all that follows, go nowhere: it takes no more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())


def say(text: str) -> None:
    """One more line on stderr. Where nobody reads that any more, or nothing fits, a run goes on without.

    What a terminal would obey, as a text of the user's may have it, is escaped.
    """
    try:
        print(_CONTROL.sub(lambda found: ascii(found[0])[1:-1], text), file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def input_files(options: argparse.Namespace) -> list[str]:
    """The files that a command reads, as its options name them."""
    from sglc.cli.program_file import program_path

    named = [getattr(options, name, None) for name in ("batch", "tools", "passes_from")]
    kind, _, path = (options.backend or "").partition(":")
    if kind in ("scripted", "local"):
        named.append(path)
    return [str(program_path(options.program)), *(name for name in named if name and name != "-")]


def check_apart(path: str, others: Iterable[str]) -> None:
    """Raises UsageError: SGLC073, a file to write is one of `others` of the same command."""
    from sglc.observe.whole_file import same_file

    if any(same_file(path, other) for other in others):
        raise UsageError("SGLC073", f"`{path}` is another file of this run", hint="name another one")


def check_output(path: str | None, others: Iterable[str] = ()) -> None:
    """Look at a file that `write_output` is to write, before the work.

    Raises:
        UsageError: SGLC009 it cannot be written; SGLC073, as of `check_apart`.
    """
    from sglc.observe.whole_file import check_writable

    if path is None:
        return
    check_apart(path, others)
    try:
        check_writable(path)
    except OSError as error:
        raise UsageError("SGLC009", f"`{path}` cannot be written: {error.strerror}") from None


def write_output(path: str, text: str) -> None:
    """Have a text in a file.

    Raises:
        RunError: SGLC427, it cannot be written; a file that was there is as it was.
    """
    from sglc.observe.whole_file import write_whole

    try:
        write_whole(path, text)
    except OSError as error:
        raise RunError("SGLC427", f"`{path}` cannot be written: {error.strerror or error}") from None
