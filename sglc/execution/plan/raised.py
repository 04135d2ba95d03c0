"""Errors of the user's code as Python would have raised them: for a run whose plan met them."""

from __future__ import annotations

import ast
import builtins
from contextlib import suppress

from sglc.errors import Loc, RunError, SglcError


def builtin_error(name: str, said: str) -> Exception | None:
    """The exception of Python's own that a program raises with one text; None if it is another one."""
    kind = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return None
    try:
        made = kind(said) if said else kind()
    except Exception:  # it wants more than a text
        return None
    return made if str(made) == said else None


def as_raised(error: Exception) -> BaseException:
    """What the user's code raised, at its place in the program; any other error as it is."""
    cause = error.__cause__
    if not isinstance(error, RunError) or error.loc is None or cause is None or isinstance(cause, SglcError):
        return error
    _raise_at(error.loc, cause)
    return cause


def _raise_at(loc: Loc, error: BaseException) -> None:
    """Give an error a trace that begins where the program made it."""
    tree = ast.parse("raise error")
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt | ast.expr):
            node.lineno = node.end_lineno = loc.line
            node.col_offset = max(loc.column - 1, 0)
            node.end_col_offset = max(loc.end_column - 1, node.col_offset)
    with suppress(type(error)):
        exec(compile(tree, loc.file, "exec"), {"error": error})
