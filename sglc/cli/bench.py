"""`sglc bench`: its options, and what it prints and writes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglc.bench.options import Options
from sglc.cli.options import check_output, count, named, output_file, write_output
from sglc.errors import UsageError

if TYPE_CHECKING:
    from sglc.bench.result import BenchResult

WORKLOADS = {
    "offline": "independent requests, all there at the start",
    "few-shot": "questions behind shared prefixes, one token out",
    "tree": "tree of thought: two levels of branches with samples",
    "bs1": "one request alone",
    "fork": "decode of rows behind one prefix, with and without the cascade",
    "chain": "gap between a generation and the next one of its program",
    "mixed": "gaps between the tokens of rows that decode while long prompts come",
    "constrained": "rows held to forms, or with options, beside free ones",
    "host": "host time of an engine's step, without a model",
    "programs": "whole programs, passes on and off",
}
_THROUGHPUT = ("offline", "few-shot", "tree", "bs1")  # of one file; others have one each
_HOST_TAKES = {"rounds"}
_RUNTIME_DECIDES = {"cascade", "profile"}  # a runtime of its own has no such options


def add_bench(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `bench` to the commands of `sglc`."""
    bench = commands.add_parser("bench", help="measure a workload", description="Measure a workload.")
    kinds = bench.add_subparsers(title="workloads", required=True, metavar="WORKLOAD")
    for name, text in WORKLOADS.items():
        parser = kinds.add_parser(name, help=text, description=f"Measure {text}.")
        if name == "programs":
            parser.add_argument("names", nargs="*", metavar="NAME", help="a program (default: all of them)")
        _add_workload(parser, name)
    report = kinds.add_parser("report", help="tables of stored results, in Markdown")
    report.add_argument("folder", metavar="DIR", help="where results lie, as `-o` writes them")
    report.add_argument(
        "-o", "--output", type=output_file, metavar="PAGE.md", help="bring the tables of this page up to date"
    )
    report.set_defaults(command=_report)


def _add_workload(parser: argparse.ArgumentParser, name: str) -> None:
    default = Options()
    parser.add_argument(
        "--model", type=named, metavar="M", help="a shape with random weights, or what `local:` takes"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default=default.device)
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default=default.dtype)
    parser.add_argument("--kv-dtype", choices=("auto", "fp8"), default=default.kv_dtype)
    parser.add_argument("--rounds", type=count, default=default.rounds, metavar="N")
    parser.add_argument("--rows", type=count, metavar="N", help="rows in flight at most")
    parser.add_argument("--token-budget", type=count, metavar="N", help="tokens of a step at most")
    parser.add_argument("--seed", type=_seed, default=default.seed, metavar="N", help="of the prompts")
    parser.add_argument(
        "--no-cascade", dest="cascade", action="store_false", help="rows read shared prefixes each for itself"
    )
    parser.add_argument("--profile", action="store_true", help="one more round: time by kind of kernel (CUDA)")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.add_argument(
        "-o", "--output", type=output_file, metavar="FILE", help="write the result as JSON, too"
    )
    parser.set_defaults(command=_bench, workload=name)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"`{text}` is no number from 0")
    return int(text)


def _bench(arguments: argparse.Namespace) -> int:
    options = Options(**{field.name: getattr(arguments, field.name) for field in fields(Options)})
    check_output(arguments.output, _model_files(options.model))
    _check(arguments.workload, options)
    result = _runner(arguments)(options)
    from sglc.bench.result import table, to_json

    try:
        print(to_json(result) if arguments.json else table(result))
    finally:  # also where nobody reads stdout any more
        if arguments.output is not None:
            write_output(arguments.output, to_json(result) + "\n")
    return 0


def _model_files(model: str | None) -> list[str]:
    """The files that a model is read from, as far as its name is their place."""
    if model is None:
        return []
    place = Path(model.removeprefix("local:").removeprefix("dummy:")).expanduser()
    return [str(path) for path in (place.iterdir() if place.is_dir() else [place])]


def _runner(arguments: argparse.Namespace) -> Callable[[Options], BenchResult]:
    """What measures the workload. Torch comes in with it, but for `host`."""
    name: str = arguments.workload
    module = "throughput" if name in _THROUGHPUT else "programs.run" if name == "programs" else name
    run: Any = getattr(import_module(f"sglc.bench.{module}"), name.replace("-", "_"))
    return partial(run, names=arguments.names) if name == "programs" else run


def _check(workload: str, options: Options) -> None:
    """Refuse options that mean nothing to the workload."""
    match workload:
        case "host":
            without, note = {field.name for field in fields(Options)} - _HOST_TAKES, "it runs no model"
        case "programs":
            without, note = _RUNTIME_DECIDES, "it runs the back end as users have it"
        case _:
            return
    default = Options()
    for field in fields(Options):
        if field.name in without and getattr(options, field.name) != getattr(default, field.name):
            name = "no-cascade" if field.name == "cascade" else field.name.replace("_", "-")
            raise UsageError("SGLC037", f"`--{name}` means nothing to `{workload}`", note=note)


def _report(arguments: argparse.Namespace) -> int:
    from sglc.bench.report import places, read_results, tables, updated

    results = read_results(Path(arguments.folder))
    if not results:
        raise UsageError(
            "SGLC002", f"`{arguments.folder}` holds no results", hint="`sglc bench WORKLOAD -o DIR/NAME.json`"
        )
    found = tables(results)
    if arguments.output is None:
        print("\n\n".join(f"## {name}\n\n{text}" for name, text in found.items()))
        return 0
    path = arguments.output
    page = _page(path)
    write_output(path, updated(page, results, path))
    shown = [name for name in found if name in places(page)]
    print(f"sglc: {path} has the stored results of: {', '.join(shown) or 'nothing'}", file=sys.stderr)
    if rest := [name for name in found if name not in shown]:
        print(f"sglc: {path} has no place for those of: {', '.join(rest)}", file=sys.stderr)
    return 0


def _page(path: str) -> str:
    """The text of a page, whose lines end as in the file."""
    try:
        return Path(path).read_bytes().decode()
    except FileNotFoundError:
        raise UsageError("SGLC002", f"there is no file `{path}`") from None
    except OSError as error:
        raise UsageError("SGLC002", f"`{path}` cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError("SGLC008", f"`{path}` is no UTF-8") from None
