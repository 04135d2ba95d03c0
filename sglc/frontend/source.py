"""A function's source as a tree, and whether that is certainly what its code was compiled from."""

from __future__ import annotations
import __future__

import ast
import dis
import inspect
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from types import CodeType

_OUTER = "__sglc_outer__"
_FUTURES = 0
for _name in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _name).compiler_flag


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """The definition that a code object was compiled from."""

    code: CodeType
    definition: ast.FunctionDef | ast.AsyncFunctionDef


def source_of(code: CodeType) -> FunctionSource:
    """The source of a function, found by its code object.

    Raises:
        OSError: the source is not available.
        SyntaxError: the source is not a plain `def` of that name (a lambda, generated code).
    """
    lines, first = _lines(code)
    text = "".join(lines)
    # A nested definition is indented; `if 1:` in front keeps its columns as they are.
    indented = text[:1] in " \t"
    tree = ast.parse(f"if 1:\n{text}" if indented else text)
    ast.increment_lineno(tree, first - (2 if indented else 1))
    definitions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    definition = next(definitions, None)
    if definition is None or definition.name != code.co_name:
        raise SyntaxError("not a plain function definition")
    return FunctionSource(code, definition)


def _lines(code: CodeType) -> tuple[list[str], int]:
    """The lines of a definition and the number of its first one.

    `inspect` looks for its module among all, so it is asked only for what is in no file.
    """
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename)
    if not lines:
        return inspect.getsourcelines(code)
    return inspect.getblock(lines[code.co_firstlineno - 1 :]), code.co_firstlineno


def matches(source: FunctionSource) -> bool:
    """Whether the source is certainly that of the code: compiling it gives the same code again.

    It does not where a file was changed after it was imported, or where a tool rewrote the code.
    """
    try:
        return _same(_compiled(source), source.code)
    except (SyntaxError, ValueError, RecursionError):
        return False


def _compiled(source: FunctionSource) -> CodeType:
    """The definition's code, with the free variables of the original. Nothing is executed for it.

    Raises:
        SyntaxError: it does not compile, or not to a function of that name.
    """
    original = source.code
    body: list[ast.stmt] = [source.definition]
    owner = original.co_qualname.split(".")[-2:-1]
    if owner and owner != ["<locals>"]:  # a method: the names of private attributes depend on the class
        body = [ast.ClassDef(name=owner[0], bases=[], keywords=[], body=body, decorator_list=[])]
    # The definition binds its name here, which is none of this place's names to its body.
    free = original.co_freevars
    bound = [name for name in (original.co_name, *owner) if name.isidentifier() and name not in free]
    outer = ast.FunctionDef(
        name=_OUTER,
        args=ast.arguments(
            posonlyargs=[],
            args=[ast.arg(arg=name) for name in free],
            kwonlyargs=[],
            kw_defaults=[],
            defaults=[],
        ),
        body=[ast.Global(bound), *body] if bound else body,
        decorator_list=[],
    )
    imports = [ast.Import([ast.alias(name)]) for name in _imported(original)]
    module = ast.fix_missing_locations(ast.Module([*imports, outer], []))
    flags = original.co_flags & _FUTURES
    whole = compile(module, original.co_filename, "exec", flags=flags, dont_inherit=True)
    found = [
        code
        for code in _inner(whole)
        if code.co_name == original.co_name and code.co_firstlineno == original.co_firstlineno
    ]
    if not found:
        raise SyntaxError("not a plain function definition")
    return _requalified(found[0], found[0].co_qualname, original.co_qualname)


def _inner(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inner(constant)


def _imported(code: CodeType) -> dict[str, None]:
    """The global names that the compiler knew to be imported: it calls their attributes differently."""
    names: dict[str, None] = {}
    for part in (code, *_inner(code)):
        for load, attribute in pairwise(dis.get_instructions(part)):
            called = (load.opname, attribute.opname) == ("LOAD_GLOBAL", "LOAD_ATTR")
            if called and load.argrepr.startswith("NULL + "):
                names[load.argval] = None
    return names


def _requalified(code: CodeType, prefix: str, wanted: str) -> CodeType:
    """The code, and what is defined in it, under the name `wanted` instead of `prefix`."""
    constants = tuple(
        _requalified(constant, prefix, wanted) if isinstance(constant, CodeType) else constant
        for constant in code.co_consts
    )
    return code.replace(co_consts=constants, co_qualname=wanted + code.co_qualname.removeprefix(prefix))


def _same(made: CodeType, original: CodeType) -> bool:
    if len(made.co_consts) != len(original.co_consts):
        return False
    for mine, other in zip(made.co_consts, original.co_consts, strict=True):
        if type(mine) is not type(other):
            return False
        if not (_same(mine, other) if isinstance(mine, CodeType) else mine == other):
            return False
    return all(
        getattr(made, field) == getattr(original, field)
        for field in (
            *("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_qualname"),
            *("co_linetable", "co_exceptiontable", "co_argcount", "co_kwonlyargcount"),
        )
    )
