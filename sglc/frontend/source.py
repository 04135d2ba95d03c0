"""A function's source as a tree, and whether that is certainly what its code was compiled from."""

from __future__ import annotations
import __future__

import ast
import inspect
import itertools
import linecache
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from types import CodeType

Definition = ast.FunctionDef | ast.AsyncFunctionDef

_FUTURES = 0
for _name in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _name).compiler_flag
_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # as cells of notebooks may have it
_IMPORT = re.compile(r"^(?:import|from)\b[^\n(]*(?:\([^)]*\))?", re.MULTILINE)


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
    futures = code.co_flags & _FUTURES
    try:
        with warnings.catch_warnings(action="ignore"):  # they were given when it was compiled first
            return _of_its_lines(code, lines, futures) or _of_its_file(code, "".join(lines), futures)
    except (ValueError, RecursionError) as error:
        raise SyntaxError(str(error)) from None


def _of_its_lines(code: CodeType, lines: Sequence[str], futures: int) -> FunctionSource | None:
    """What a function at the top of its file is compiled from, by its own lines: reading a whole file takes
    longer. None if these do not give its code, which is so for what was changed, and for strange layouts."""
    first = code.co_firstlineno - 1
    if not lines[first : first + 1] or lines[first][0].isspace():
        return None
    parts = (code, *inner_codes(code))
    ends = [map(itemgetter(1), part.co_positions()) for part in parts]
    last = max(filter(None, itertools.chain.from_iterable(ends)), default=first + 1)
    idle = itertools.takewhile(lambda line: line[0].isspace(), lines[last:])  # `pass` and the like are no code
    own = "".join((*lines[first:last], *idle))
    used = {name for part in parts for name in (*part.co_names, *part.co_varnames, *part.co_freevars)}
    imports = [found for found, words in _imports(tuple(lines)) if not used.isdisjoint(words)]
    alone = "\n".join(["\n" * (first - 1)] * bool(first) + [own, *imports])
    try:
        tree = _tree(alone, code.co_filename, futures)
        found = any(code in _codes(part, code.co_filename, futures) for part in (tree.body, tree.body[:1]))
    except SyntaxError:
        return None
    (definition, *_) = tree.body
    return FunctionSource(definition, True) if found and isinstance(definition, Definition) else None


@lru_cache(maxsize=4)
def _imports(lines: tuple[str, ...]) -> tuple[tuple[str, frozenset[str]], ...]:
    """The imports at the top of a file, and the words in each: a call of what they bring is compiled in another
    way (from 3.11 on), which also goes for a variable of the same name."""
    found = [each for each in _IMPORT.findall("".join(lines)) if "__future__" not in each]
    return tuple([(each, frozenset(re.findall(r"\w+", each))) for each in found])


def _of_its_file(code: CodeType, text: str, futures: int) -> FunctionSource:
    tree, definitions = _parsed(text, code.co_filename, futures)
    definition, statement = definitions.get((code.co_name, code.co_firstlineno), (None, None))
    if definition is None or statement is None:
        if code.co_name.isidentifier():  # it had its definition there
            raise SyntaxError("it has changed since it was imported")
        raise SyntaxError("not a plain function definition")
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    known = [node for node in imports if getattr(node, "module", "") != "__future__"]
    # Its own statement takes less long than the file. A cell of a notebook compiles each statement by itself:
    # what another one imports is no import to it.
    parts = ([statement, *known], [statement], tree.body)
    matches = any(code in _codes(part, code.co_filename, futures) for part in parts)
    return FunctionSource(definition, matches)


@lru_cache(maxsize=4)
def _parsed(
    text: str, file: str, futures: int
) -> tuple[ast.Module, Mapping[tuple[str, int], tuple[Definition, ast.stmt]]]:
    """A file, and the functions in it by name and first line, each with the statement that it is part of."""
    tree = _tree(text, file, futures)
    found = (
        (node, outer) for outer in tree.body for node in _statements(outer) if isinstance(node, Definition)
    )
    return tree, {
        (node.name, min(each.lineno for each in (node, *node.decorator_list))): (node, outer)
        for node, outer in found
    }


def _tree(text: str, file: str, futures: int) -> ast.Module:
    tree: ast.Module = compile(text, file, "exec", futures | _FLAGS | ast.PyCF_ONLY_AST, dont_inherit=True)
    return tree


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """A statement, and all in it."""
    yield node
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, name, ()):
            yield from _statements(inner)


def _codes(statements: list[ast.stmt], file: str, futures: int) -> Iterator[CodeType]:
    """All code that compiling statements gives."""
    yield from inner_codes(
        compile(ast.Module(statements, []), file, "exec", futures | _FLAGS, dont_inherit=True)
    )


def inner_codes(code: CodeType) -> Iterator[CodeType]:
    """The code of what is defined in some code, and in that."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from inner_codes(constant)
