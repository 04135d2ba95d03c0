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
        definition = _compiled(*file)[0].get((code.co_name, code.co_firstlineno))
        # A notebook compiles each statement by itself: what another one imports is no import to it.
        matches = code in _compiled(*file)[1] or code in _compiled(*file, apart=True)[1]
    except (ValueError, RecursionError) as error:
        raise SyntaxError(str(error)) from None
    if definition is None:
        raise SyntaxError("not a plain function definition")
    return FunctionSource(definition, matches)


@lru_cache(maxsize=4)
def _compiled(
    text: str, file: str, futures: int, *, apart: bool = False
) -> tuple[Mapping[tuple[str, int], Definition], frozenset[CodeType]]:
    """The functions that a file defines, by name and first line, and all code that compiling it gives."""
    flags = futures | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # as cells of notebooks may have it
    with warnings.catch_warnings(action="ignore"):  # they were given when it was compiled first
        tree = compile(text, file, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        parts = [ast.Module([node], []) for node in tree.body] if apart else [tree]
        codes = [compile(part, file, "exec", flags, dont_inherit=True) for part in parts]
    found = (node for node in ast.walk(tree) if isinstance(node, Definition))
    first = {(node.name, min(each.lineno for each in (node, *node.decorator_list))): node for node in found}
    return first, frozenset(inner for code in codes for inner in _inner(code))


def _inner(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inner(constant)
