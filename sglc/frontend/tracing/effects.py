"""Whether executing a function's own statements could change what outlives it. Calls are others' matter.

Recording a program stops before calls that could have effects. What is recorded without being asked for
must not have any by assignments either, so this looks for them in the source. It is conservative.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FunctionType

from sglc.errors import Loc
from sglc.frontend.locate import shown_path
from sglc.frontend.source.rewrite import source_of
from sglc.frontend.source.scopes import Names, Outside
from sglc.frontend.values.graph_breaks import OUTSIDE, GraphBreak

_FRESH = (
    *(ast.Constant, ast.JoinedStr, ast.List, ast.Dict, ast.Set, ast.Tuple, ast.BinOp, ast.Compare, ast.Call),
    *(ast.ListComp, ast.DictComp, ast.SetComp),
)


def refuse_effects(function: FunctionType, *, program: bool) -> None:
    """Stop before a function is executed whose statements could change what outlives it.

    Args:
        program: its arguments are the tracer's own.

    Raises:
        GraphBreak: there is such a statement.
        OSError, SyntaxError: the source is not available.
    """
    source = source_of(function.__code__)
    names = Names(source.definition, Outside(function), function.__code__.co_varnames[:1])
    own = names.parameters if program else names.parameters[:1]
    for node in ast.walk(source.definition):
        why = _effect(node, names, own, function)
        if why:
            file = shown_path(source.code.co_filename)
            line, column = getattr(node, "lineno", 0), getattr(node, "col_offset", -1) + 1
            raise GraphBreak(f"{why} could change what outlives the program", Loc(file, line, column), OUTSIDE)


def _effect(node: ast.AST, names: Names, own: list[str], function: FunctionType) -> str:
    match node:
        case ast.Global():
            return "`global`"
        case ast.Nonlocal(names=outer) if any(name in function.__code__.co_freevars for name in outer):
            return "`nonlocal`"
        case ast.With(items=items) | ast.AsyncWith(items=items):
            if not all(isinstance(item.context_expr, ast.Call) for item in items):
                return "`with`"
        case ast.FunctionDef(decorator_list=[_, *_]) if node is not names.definition:
            return "a decorator"
        case ast.Attribute(ctx=ast.Store() | ast.Del()):
            return f"`{ast.unparse(node)} = ...`"
        case ast.Subscript(ctx=ast.Store() | ast.Del(), value=value) if not _is_own(value, names, own):
            return f"`{ast.unparse(node)} = ...`"
        case ast.AugAssign(target=ast.Name() as target) if not _is_own(target, names, own):
            return f"`{ast.unparse(target)} += ...`"
        case ast.Name(ctx=ast.Load()) if isinstance(names.resolve(node), Iterator):
            return f"`{node.id}`, an iterator,"
        case _:
            pass
    return ""


def _is_own(node: ast.expr, names: Names, own: list[str]) -> bool:
    """Whether what is changed in place was made by the program, or cannot be changed in place."""
    match node:
        case ast.Subscript(value=value):
            return _is_own(value, names, own)
        case ast.Name(id=name) if name in names.kinds:
            return True
        case ast.Name(id=name):
            places = names.bindings.get(name, ())
            return bool(places) and all(_makes(place, names, own) for place in places)
        case _:
            return False


def _makes(place: ast.AST, names: Names, own: list[str]) -> bool:
    match names.parents.get(place), place:
        case _, ast.arguments():
            return all(name in own for name in names.parameters)
        case ast.AugAssign(), _:
            return True
        case ((ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value)), ast.Name()):
            return isinstance(value, _FRESH)
        case _:
            return False
