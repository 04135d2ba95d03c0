"""Opens what the command line names: a Python file with programs, an IR file, or a plan."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sglc.api.function import Function
from sglc.errors import Loc, RunError, SglcError, TraceError, UsageError, shown
from sglc.frontend.locate import of_exception, shown_path
from sglc.ir.core import Program
from sglc.ir.text.printer import from_text

if TYPE_CHECKING:
    from sglc.api.plan import LoadedPlan
    from sglc.frontend.tracing.tools import Declared

PROGRAM = "`.py` or `.sglir`"
PROGRAM_OR_PLAN = "`.py`, `.sglir` or `.json`"


def open_functions(spec: str) -> list[Function]:
    """The programs of `FILE.py` in their order in the file, or the one that `FILE.py:NAME` names.

    Raises:
        UsageError: no such file or function, or no program in the file.
        TraceError: a syntax error (SGLC111).
        RunError: the file raised while it was imported (SGLC401).
    """
    return list(_named(spec, PROGRAM).values())


def _named(spec: str, takes: str) -> dict[str, Function]:
    """The programs of `open_functions` by their names in the file.

    What the file imports is named, or all that there is.
    """
    path, name = _split(spec)
    module = _import(path, takes)
    there = {known: item for known, item in vars(module).items() if isinstance(item, Function)}
    if name in there:
        return {name: there[name]}
    own = {n: item for n, item in there.items() if item.definition.call.__module__ == module.__name__} or there
    found = {n: item for n, item in own.items() if next(k for k in own if own[k] is item) == n}
    if not found:
        raise UsageError(
            "SGLC004", f"`{path}` has no program", Loc(str(path), 1),
            hint="decorate a function with `@sglc.function`",
        )  # fmt: skip
    if name:
        raise UsageError("SGLC005", f"`{path}` has no program `{name}`", note=f"it has: {', '.join(found)}")
    return found


def open_function(spec: str, takes: str = PROGRAM) -> Function:
    """The one program that `spec` names; `takes` are the kinds of files that the command does, for an error.

    Raises:
        UsageError: SGLC006 if there are several and no name; else as `open_functions`.
    """
    found = _named(spec, takes)
    names, functions = list(found), list(found.values())
    if len(functions) > 1:
        raise UsageError(
            "SGLC006", f"`{spec}` has {len(names)} programs: which one?", functions[1].definition.loc,
            note=f"it has: {', '.join(names)}", hint=f"name one: `{spec}:{names[0]}`",
        )  # fmt: skip
    return functions[0]


def open_module(path: str) -> ModuleType:
    """A Python file, imported for what it registers.

    Raises:
        SglcError: as of `open_functions`.
    """
    return _import(Path(path))


def open_ir(path: str) -> Program:
    """The program of an `.sglir` file.

    Raises:
        UsageError: no such file. VerifyError: it does not parse.
    """
    return from_text(_read(Path(path)), path)


def open_plan(path: str, tools: str | None = None) -> LoadedPlan:
    """The plan of a `.json` file, with the functions that the Python file `tools` declares, and its classes.

    Raises:
        UsageError: no such file, no JSON, or changed since it was written; no functions in `tools`.
        VerifyError: no plan of this version.
        TraceError, RunError: as of `open_functions`.
    """
    from sglc.api.plan import LoadedPlan
    from sglc.frontend.tracing.makers import class_named
    from sglc.ir.plan.plan_file import plan_from_text

    made = plan_from_text(_read(Path(path)), path)
    before = LoadedPlan(made).left_texts if tools else []
    declared = _declared(tools) if tools else {}
    plan = LoadedPlan(made, declared)
    takes_class = any(class_named(param.kind) for param in made.params)
    if tools and not (declared or takes_class) and plan.left_texts == before:
        raise UsageError(
            "SGLC045", f"`{tools}` declares no function", Loc(shown_path(tools), 1),
            hint="write `@sglc.tool` above each function that the plan calls",
        )  # fmt: skip
    return plan


def open_program(spec: str, tools: str | None = None) -> Function | LoadedPlan:
    """The program that `spec` names, or the plan, with its functions of `tools`.

    Raises:
        SglcError: as of `open_function` and `open_plan`.
    """
    return open_plan(spec, tools) if spec.endswith(".json") else open_function(spec, PROGRAM_OR_PLAN)


def _declared(path: str) -> dict[str, Declared]:
    """The functions that a Python file declares, or imports from where they are declared, by their names."""
    from sglc.frontend.tracing.tools import Declared

    module = _import(Path(path))
    return {item.name: item for item in vars(module).values() if isinstance(item, Declared)}


def program_path(spec: str) -> Path:
    """The file of `FILE` or `FILE:NAME`."""
    return _split(spec)[0]


class _EqualNames(Exception):
    """Two values of an object have the same name."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise _EqualNames(Counter(name for name, _ in pairs).most_common(1)[0][0])
    return made


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def parse_json(text: str, name: str, line: int = 1) -> Any:
    """JSON that starts at `line` of what `name` calls it.

    Raises:
        UsageError: SGLC008, with the place; for two equal names in one object, too, of which Python drops one.
    """
    try:
        return _DECODER.decode(text)
    except _EqualNames as error:
        message = f"two values of an object are called `{shown(error.args[0])}`"
        raise UsageError("SGLC008", message, Loc(name, line)) from None
    except json.JSONDecodeError as error:
        loc = Loc(name, line + error.lineno - 1, error.colno)
        raise UsageError("SGLC008", f"this is no JSON: {error.msg}", loc) from None
    except ValueError:  # Python reads numbers up to 4,300 digits
        raise UsageError("SGLC008", "this is no JSON: a number is too long", Loc(name, line)) from None
    except RecursionError:
        raise UsageError("SGLC008", "this is no JSON: it is nested too deeply", Loc(name, line)) from None


def _split(spec: str) -> tuple[Path, str]:
    path, colon, name = spec.rpartition(":")
    if colon and re.fullmatch(r"[^\W\d]\w*", name) and not Path(spec).exists():
        return Path(path), name
    return Path(spec), ""


def _read(path: Path) -> str:
    if not path.exists():
        raise UsageError("SGLC002", f"there is no file `{path}`")
    if path.is_dir():
        raise UsageError("SGLC002", f"`{path}` is a folder", hint="name a file in it")
    try:
        if path.suffix == ".py":
            return importlib.util.decode_source(path.read_bytes())  # it may name its encoding
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        raise UsageError("SGLC002", f"`{path}` cannot be read: {error}") from None


def _import(path: Path, takes: str = "`.py`") -> ModuleType:
    source = _read(path)
    if path.suffix != ".py":
        raise UsageError("SGLC003", f"`{path}` is no Python file", hint=f"give a {takes} file")
    shown = shown_path(str(path))
    try:
        compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        loc = Loc(shown, error.lineno or 1, error.offset or 0, error.end_offset or 0)
        raise TraceError("SGLC111", f"syntax error: {error.msg}", loc) from None
    except ValueError as error:  # a null byte
        raise TraceError("SGLC111", f"syntax error: {error}", Loc(shown, 1)) from None
    name = f"sglc_program_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles of the program look here
    sys.path.insert(0, str(path.resolve().parent))  # its own imports work as under `python FILE`
    try:
        spec.loader.exec_module(module)
    except SglcError:
        raise
    except (Exception, SystemExit) as error:
        loc = of_exception(error, str(path.resolve())) or Loc(shown, 1)
        hint = ""
        if isinstance(error, ImportError) and "relative import" in str(error):
            hint = (
                "it is imported as under `python FILE`: name modules in full, with their folder in `PYTHONPATH`"
            )
        raise RunError(
            "SGLC401", f"`{type(error).__name__}` while `{shown}` was imported: {error}", loc, hint=hint
        ) from None
    return module
