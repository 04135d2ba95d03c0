"""Errors of the user's code as Python would have raised them: for a run whose plan met them."""

from __future__ import annotations

import ast
import builtins
import linecache
from contextlib import suppress

from sglc.errors import Loc, RunError, SglcError


def is_builtin(name: str) -> bool:
    """Whether an exception is Python's own."""
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, Exception)


def builtin_error(name: str, said: str, *, whole: bool) -> Exception | None:
    """The exception of Python's own that a program raises; None if it is another one.

    Args:
        said: what it was raised with, if that is a text; else what it says.
        whole: it is what it says.
    """
    if not is_builtin(name):
        return None
    kind = getattr(builtins, name)
    if not whole:
        return kind(said)  # type: ignore[no-any-return]
    with suppress(Exception):  # it may want more, or something else
        for made in (kind(said) if said else kind(), kind(ast.literal_eval(said))):  # a `KeyError` is shown so
            if str(made) == said:
                return made  # type: ignore[no-any-return]
    return None


def as_raised(error: BaseException) -> BaseException:
    """What the user's code raised, at its place in the program; any other error as it is."""
    cause = error.__cause__
    if not isinstance(error, RunError) or error.loc is None or cause is None or isinstance(cause, SglcError):
        return error
    _raise_at(error.loc, cause)
    return cause


def _raise_at(loc: Loc, error: BaseException) -> None:
    """Give an error a trace that begins where the program made it."""
    source = linecache.getline(loc.file, loc.line)
    tree = ast.parse("raise error")
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt | ast.expr):
            node.lineno = node.end_lineno = loc.line
            node.col_offset = _bytes_before(loc.column, source)
            node.end_col_offset = max(_bytes_before(loc.end_column, source), node.col_offset)
    with suppress(type(error)):
        exec(compile(tree, loc.file, "exec"), {"error": error})


def _bytes_before(column: int, source: str) -> int:
    before = max(column - 1, 0)
    return before + len(source[:before].encode("utf-8", "replace")) - len(source[:before])
