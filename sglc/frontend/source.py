"""A function's source as a tree, and whether that is certainly what its code was compiled from."""

from __future__ import annotations
import __future__

import ast
import inspect
import linecache
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

Definition = ast.FunctionDef | ast.AsyncFunctionDef

_FUTURES = 0
for _name in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _name).compiler_flag
_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # as cells of notebooks may have it
_MAY_IMPORT = (ast.Import, ast.ImportFrom, ast.If, ast.Try)


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """The definition of a function.

    `matches`: its code was certainly compiled from it, since compiling its file gives the same code again. It
    does not where a file was changed after it was imported, or where a tool rewrote the code.
    """

    definition: Definition
    matches: bool


def source_of(code: CodeType) -> FunctionSource:
    """The source of a function, found by its code object. Nothing is executed for it.

    Raises:
        OSError: the source is not available.
        SyntaxError: the source is not a plain `def` of that name (a lambda, generated code).
    """
    linecache.checkcache(code.co_filename)
    # `inspect` looks for its module among all, so it is asked only for what is in no file.
    lines = linecache.getlines(code.co_filename) or inspect.findsource(code)[0]
    file = "".join(lines), code.co_filename, code.co_flags & _FUTURES
    try:
        tree, definitions = _parsed(*file)
        definition, statement = definitions.get((code.co_name, code.co_firstlineno), (None, None))
        if definition is None or statement is None:
            raise SyntaxError("not a plain function definition")
        # Of its module only what is imported there matters to it; and not even that to a cell of a notebook,
        # which compiles each statement by itself. It can have been compiled in some other way still.
        near = [each for each in tree.body if each is statement or isinstance(each, _MAY_IMPORT)]
        matches = any(code in _codes(part, *file[1:]) for part in (near, [statement], tree.body))
    except (ValueError, RecursionError) as error:
        raise SyntaxError(str(error)) from None
    return FunctionSource(definition, matches)


@lru_cache(maxsize=4)
def _parsed(
    text: str, file: str, futures: int
) -> tuple[ast.Module, Mapping[tuple[str, int], tuple[Definition, ast.stmt]]]:
    """A file, and the functions in it by name and first line, each with the statement that it is part of."""
    with warnings.catch_warnings(action="ignore"):  # they were given when it was compiled first
        tree = compile(text, file, "exec", futures | _FLAGS | ast.PyCF_ONLY_AST, dont_inherit=True)
    found = (
        (node, outer) for outer in tree.body for node in _statements(outer) if isinstance(node, Definition)
    )
    return tree, {
        (node.name, min(each.lineno for each in (node, *node.decorator_list))): (node, outer)
        for node, outer in found
    }


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """A statement, and all in it."""
    yield node
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, name, ()):
            yield from _statements(inner)


def _codes(statements: list[ast.stmt], file: str, futures: int) -> Iterator[CodeType]:
    """All code that compiling statements gives."""
    with warnings.catch_warnings(action="ignore"):
        code = compile(ast.Module(statements, []), file, "exec", futures | _FLAGS, dont_inherit=True)
    yield from _inner(code)


def _inner(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inner(constant)
