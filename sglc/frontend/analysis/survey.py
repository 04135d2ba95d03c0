"""What a program does that ends a launch, or that compiling cannot follow: all of it, also behind the first.

A survey looks at the source of the program and of the user's functions that it calls. It runs nothing.
"""

from __future__ import annotations

import ast
import builtins
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import BuiltinFunctionType, FunctionType, MethodType

from sglc.errors import Loc
from sglc.frontend.language.choices import ChoicesSamplingMethod
from sglc.frontend.language.function import Definition
from sglc.frontend.source.dataflow import DataflowAnalysis, Read, analysis_of
from sglc.frontend.source.rewrite import matches, source_of
from sglc.frontend.source.scopes import UNKNOWN, Names, Role
from sglc.frontend.tracing.interpreter.calls import is_users
from sglc.frontend.tracing.tools import Declared
from sglc.ir.pure import name_of

_NESTED = 0x10  # of `co_flags`
_WAITING_METHODS = ("text", "messages", "get_meta_info", "error", "sync")
_MAPPING_METHODS = ("items", "values", "get")
# Of Python's own functions, those that do more than compute.
_EFFECTS = (
    *("open", "input", "exec", "eval", "compile", "__import__", "breakpoint"),
    *("setattr", "delattr", "vars", "locals", "globals"),
)

# Effects that compiling records.
_RECORDED = (print, warnings.warn)


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a program, and what it is in words."""

    loc: Loc
    what: str


@dataclass(frozen=True, slots=True)
class Survey:
    """Everything that was found, in the order of the text, helpers behind their callers.

    Attributes:
        reads: of variables; those without a reason stay deferred.
        waits: other observations.
        calls: of ordinary Python that compiling does not make.
        tools: declared functions that are called.
    """

    reads: tuple[Read, ...]
    waits: tuple[Point, ...]
    calls: tuple[Point, ...]
    tools: tuple[Point, ...]

    @property
    def observations(self) -> tuple[Point, ...]:
        """Where a run launches what is pending and waits, with the reason."""
        found = [*self.waits]
        for read in self.reads:
            if read.reason:
                where = f" (line {read.used.line})" if read.used else ""
                found.append(Point(read.loc, f"`{read.what}`: {read.reason}{where}"))
        return tuple(sorted(found, key=_order))

    @property
    def deferred(self) -> tuple[Point, ...]:
        """The reads that launch nothing."""
        return tuple(Point(read.loc, f"`{read.what}`") for read in self.reads if not read.reason)


def survey(definition: Definition) -> Survey | None:
    """What a program's source says; None if it is not available."""
    function = definition.call
    if type(function) is not FunctionType:
        return None
    found: list[_Found] = []
    seen: dict[tuple[FunctionType, tuple[str, ...]], None] = {}
    try:
        _look(function, function.__code__.co_varnames[:1], True, found, seen)
    except RecursionError:  # an expression of thousands of terms
        return None
    if not found:
        return None
    return Survey(
        tuple([read for each in found for read in each.reads]),
        tuple([point for each in found for point in each.waits]),
        tuple([point for each in found for point in each.calls]),
        tuple([point for each in found for point in each.tools]),
    )


def analysis(function: FunctionType, states: tuple[str, ...], *, program: bool) -> DataflowAnalysis | None:
    """The analysis of a function's source; None if that is not available."""
    try:
        return analysis_of(source_of(function.__code__), function, states, program=program, formats=program)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


@dataclass(slots=True)
class _Found:
    reads: tuple[Read, ...]
    waits: list[Point]
    calls: list[Point]
    tools: list[Point]


def _look(
    function: FunctionType,
    states: tuple[str, ...],
    program: bool,
    found: list[_Found],
    seen: dict[tuple[FunctionType, tuple[str, ...]], None],
) -> None:
    if (function, states) in seen:
        return
    seen[function, states] = None
    known = analysis(function, states, program=program)
    if known is None:
        return
    why = ""
    if not matches(source_of(function.__code__)):
        why = "the source is not certainly that of the code"
    elif not program and function.__code__.co_flags & _NESTED:
        why = "read in a nested function or comprehension"
    reads = [replace(read, reason=read.reason or why) for read in known.flow().reads]
    this = _Found(tuple(sorted(reads, key=_order)), [], [], [])
    found.append(this)
    helpers: list[tuple[FunctionType, tuple[str, ...]]] = []
    for call in known.names.parents:
        if isinstance(call, ast.Call):
            helper = _sort(call, known, this)
            if helper is not None:
                helpers.append(helper)
    for each in (this.waits, this.calls, this.tools):
        each.sort(key=_order)
    for inner, given in helpers:
        _look(inner, given, False, found, seen)


def _sort(
    call: ast.Call, known: DataflowAnalysis, found: _Found
) -> tuple[FunctionType, tuple[str, ...]] | None:
    """Enter a call where it belongs; gives a helper of the user's, and its parameters that are a prompt."""
    names, place = known.names, known.place(call)
    shown = f"`{ast.unparse(call.func)}(...)`"
    custom = _own_method(names, call)
    if custom:
        found.waits.append(Point(place, f"`choices_method={custom}`: Python decides"))
    function = names.resolve(call.func)
    if function is UNKNOWN:
        match call.func:
            case ast.Attribute(value=value, attr=method):
                kind = names.kind_of(value)
                role = kind.role if kind is not None else None
                if (role is Role.STATE and method in _WAITING_METHODS) or (
                    role is Role.GATHERED and method in _MAPPING_METHODS
                ):
                    found.waits.append(Point(place, shown))
                elif role is None and not _is_own(names, value):
                    found.calls.append(Point(place, f"{shown} is ordinary Python"))
            case _:
                pass
        return None
    if isinstance(function, Declared):
        found.tools.append(Point(place, shown))
        return None
    module = getattr(function, "__module__", "") or ""
    owner = type(function).__module__
    if module.split(".")[0] == "sglc" or owner.split(".")[0] == "sglc":
        return None
    if isinstance(function, FunctionType | MethodType):
        plain = function.__func__ if isinstance(function, MethodType) else function
        given = tuple(_given(names, call, plain, isinstance(function, MethodType)))
        if isinstance(plain, FunctionType) and (given or is_users(plain)):
            return plain, given
    if not _is_pure(function):
        found.calls.append(Point(place, f"{shown} is ordinary Python"))
    return None


def _given(names: Names, call: ast.Call, function: object, bound: bool) -> Iterator[str]:
    """The parameters of a helper that are handed a prompt state."""
    if not isinstance(function, FunctionType):
        return
    code = function.__code__
    parameters = code.co_varnames[bound : code.co_argcount]
    for parameter, argument in zip(parameters, call.args, strict=False):
        kind = names.kind_of(argument)
        if kind is not None and kind.role is Role.STATE:
            yield parameter
    for keyword in call.keywords:
        kind = names.kind_of(keyword.value)
        if keyword.arg is not None and kind is not None and kind.role is Role.STATE:
            yield keyword.arg


def _own_method(names: Names, call: ast.Call) -> str:
    """The `choices_method` of a call if Python decides there, else ""."""
    for keyword in call.keywords:
        if keyword.arg == "choices_method":
            method = names.resolve(keyword.value)
            if isinstance(method, ChoicesSamplingMethod) or isinstance(keyword.value, ast.Call):
                return ast.unparse(keyword.value)
    return ""


def _is_own(names: Names, node: ast.expr) -> bool:
    """Whether a method's object is plain data of the function's own, or a read that is listed anyway."""
    match node:
        case ast.Constant() | ast.JoinedStr() | ast.List() | ast.Dict() | ast.Set() | ast.Tuple():
            return True
        case ast.ListComp() | ast.DictComp() | ast.SetComp():
            return True
        case ast.Subscript(value=value):
            return names.kind_of(value) is not None or _is_own(names, value)
        case ast.Call(func=ast.Attribute(value=value)):
            return names.kind_of(value) is not None or _is_own(names, value)
        case ast.Name(id=name):
            places = [names.parents.get(place) for place in names.bindings.get(name, ())]
            values = [place.value for place in places if isinstance(place, ast.Assign)]
            return len(values) == len(places) > 0 and all(_is_own(names, value) for value in values)
        case _:
            return False


def _is_pure(function: object) -> bool:
    if isinstance(function, type) and issubclass(function, BaseException):
        return True
    if name_of(function) or any(function is each for each in _RECORDED):
        return True
    name = getattr(function, "__name__", "") if isinstance(function, type | BuiltinFunctionType) else ""
    return getattr(builtins, name, None) is function and name not in _EFFECTS


def _order(item: Point | Read) -> tuple[str, int, int]:
    return item.loc.file, item.loc.line, item.loc.column
