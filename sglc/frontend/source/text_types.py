"""What a function's expressions certainly are: texts, or variables that its own generations make otherwise."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from sglc.frontend.language import expr
from sglc.frontend.source.scopes import Names, Role

TEXT_METHODS = ("strip", "lower")  # those that wait with a lazy text
MAKERS: tuple[Callable[..., Any], ...] = (expr.gen, expr.gen_int, expr.gen_string, expr.select)


class Texts:
    """The texts of one definition. `program`: it is a program's body, whose arguments are known to the run."""

    def __init__(self, names: Names, program: bool) -> None:
        self._names = names
        self._program = program
        self._stores = any(self._is_store(node) for node in names.parents)
        self._made = self._generations()

    def is_text(self, node: ast.expr, arguments: dict[str, None], seen: tuple[str, ...] = ()) -> bool:
        """Whether an expression certainly is a `str`, lazy text, or something else that knows it.

        Args:
            arguments: gets the program's arguments of which this is only true if they are texts.
            seen: names that are being looked at.
        """
        match node:
            case ast.Constant(value=str()) | ast.JoinedStr():
                return True
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                return self.is_text(left, arguments, seen) and self.is_text(right, arguments, seen)
            case ast.Subscript(value=value) if not self._stores:
                kind = self._names.kind_of(value)
                if kind is None:
                    return isinstance(value, ast.Subscript) and self.is_text(value, arguments, seen)
                return kind.role is not Role.FORKS
            case ast.Call(func=ast.Attribute(value=value, attr=method), args=[], keywords=[]) if (
                method in TEXT_METHODS
            ):
                return self.is_text(value, arguments, seen)
            case ast.Call():  # an expression of sglc's own knows lazy text
                return getattr(self._names.resolve(node.func), "__module__", "") == expr.__name__
            case ast.Name(id=name) if name not in seen and self._names.once(name):
                if self._program and name in self._names.parameters:
                    arguments[name] = None
                    return name not in self._names.kinds
                made_of = self._made_of(self._names.bindings[name][0])
                return made_of is not None and self.is_text(made_of, arguments, (*seen, name))
            case _:
                return False

    def why_not(self, node: ast.expr, as_list: bool) -> str:
        """Why what a read gives cannot be deferred as it is used, where the program itself shows that."""
        match node:
            case ast.Subscript(value=ast.Name(id=state), slice=ast.Constant(value=str(name))):
                call = self._made.get((state, name))
            case _:
                return ""
        if call is None:
            return ""
        if as_list:
            return "an index or a loop"
        for keyword in call.keywords:
            match keyword:
                case ast.keyword(arg="n", value=ast.Constant(value=1)):
                    continue
                case ast.keyword(arg="n"):
                    return "a list of samples"
                case ast.keyword(arg="dtype", value=value):
                    if not any(self._names.resolve(value) is plain for plain in (int, float, str, bool)):
                        return "a value of another type than text"
        return ""

    def _generations(self) -> dict[tuple[str, str], ast.Call]:
        """By the state's name and the variable's: the call that stores it, where that is written out."""
        made: dict[tuple[str, str], ast.Call] = {}
        for node in self._names.parents:
            match node:
                case ast.Call(args=[ast.Constant(value=str(name)), *_]):
                    function = self._names.resolve(node.func)
                    state = self._appended_to(node) if any(function is maker for maker in MAKERS) else None
                    if state is not None:
                        made[state, name] = node
        return made

    def _appended_to(self, node: ast.AST) -> str | None:
        """The name of the state that an expression is appended to."""
        for outer in self._names.up(node):
            match outer:
                case ast.AugAssign(target=ast.Name(id=state)):
                    return state
                case ast.Call(func=ast.Attribute(value=ast.Name(id=state))) if state in self._names.kinds:
                    return state
        return None

    def _is_store(self, node: ast.AST) -> bool:
        """Whether the function stores values of its own, or typed ones, under a state's names."""
        match node:
            case ast.keyword(arg="dtype"):
                return True
            case ast.Subscript(value=value, ctx=ast.Store()):
                kind = self._names.kind_of(value)
                return kind is not None and kind.role is Role.STATE
            case ast.Attribute(value=value, attr="set_var"):
                return self._names.kind_of(value) is not None
            case _:
                return False

    def _made_of(self, place: ast.AST) -> ast.expr | None:
        """The expression that a name is bound to, or of whose items."""
        parents = self._names.parents
        target: ast.AST = place
        index = None
        match parents.get(place):
            case (ast.Tuple() | ast.List()) as several if isinstance(place, ast.expr):
                target, index = several, several.elts.index(place)
        match parents.get(target):
            case ast.Assign(targets=[_], value=value) if index is None or isinstance(value, ast.Subscript):
                return value
            case ast.For(target=looped, iter=iterated) if looped is target:
                source = self._names.item_source(iterated, index)
                return source if isinstance(source, ast.Subscript) else None
            case _:
                return None
