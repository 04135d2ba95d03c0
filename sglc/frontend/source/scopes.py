"""What the names in a function's body stand for: where each is bound and read, which are prompt states.

Everything here is conservative: a name that is bound in two ways stands for nothing that is known.
Names of nested functions, classes and comprehensions belong to these, and are only noted.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import CellType, FunctionType, ModuleType
from typing import Any

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_NESTED = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)

UNKNOWN = object()  # what cannot be resolved before the function runs


class Role(StrEnum):
    STATE = "state"
    FORKS = "forks"
    GATHERED = "gathered"  # what `join` gives


@dataclass(frozen=True, slots=True)
class NameKind:
    """A name's role, and the parameter that it was made from."""

    role: Role
    root: str


class Outside:
    """The names that a function finds outside of itself."""

    def __init__(self, function: FunctionType) -> None:
        self._globals: Mapping[str, Any] = function.__globals__
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._cells: dict[str, CellType] = dict(cells)

    def __getitem__(self, name: str) -> object:
        """What a name means now; UNKNOWN if it is not bound."""
        if name in self._cells:
            try:
                return self._cells[name].cell_contents
            except ValueError:  # not bound yet
                return UNKNOWN
        if name in self._globals:
            return self._globals[name]
        return getattr(builtins, name, UNKNOWN)


class Names:
    """The names of one definition.

    Args:
        states: parameters that are prompt states.
    """

    def __init__(self, definition: FunctionNode, outside: Outside, states: tuple[str, ...]) -> None:
        self.definition = definition
        self.parents: dict[ast.AST, ast.AST] = {}
        self.bindings: dict[str, list[ast.AST]] = {}
        self.loads: dict[str, list[ast.Name]] = {}
        self.nested: dict[str, None] = {}  # names that nested functions and comprehensions mention
        self.relied_on: dict[str, object] = {}  # outside names that were resolved, and to what
        self._outside = outside
        self._inside: dict[ast.AST, None] = {}  # nodes of nested scopes
        arguments = definition.args
        self.parameters = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        starred = [a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None]
        for name in (*self.parameters, *starred):
            self._bind(name, arguments)
        for statement in definition.body:
            self._enter(statement, definition, False)
        self.kinds = self._kinds(states)

    # -- scopes ----------------------------------------------------------------------------------

    def _enter(self, node: ast.AST, parent: ast.AST, nested: bool) -> None:
        self.parents[node] = parent
        if nested:
            self._inside[node] = None
        match node:
            case ast.Name(id=name) if nested:
                self.nested[name] = None
            case ast.Name(id=name, ctx=ast.Load()):
                self.loads.setdefault(name, []).append(node)
            case ast.Name(id=name):
                self._bind(name, node)
            case ast.NamedExpr(target=ast.Name(id=name)):
                self._bind(name, node)  # a comprehension binds it here, too
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                self._bind(name, node)
            case ast.ExceptHandler(name=str(name)):
                self._bind(name, node)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                self._bind(name, node)
            case ast.MatchMapping(rest=str(name)):
                self._bind(name, node)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                for alias in aliases:
                    self._bind((alias.asname or alias.name).partition(".")[0], node)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                for name in names:
                    self.nested[name] = None
                    self._bind(name, node)
                    self._bind(name, node)
        inner = nested or isinstance(node, _NESTED)
        for child in ast.iter_child_nodes(node):
            self._enter(child, node, inner)

    def _bind(self, name: str, node: ast.AST) -> None:
        self.bindings.setdefault(name, []).append(node)

    def is_nested(self, node: ast.AST) -> bool:
        """Whether a node stands in a nested function, class or comprehension."""
        return node in self._inside

    def up(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes round a node, from the inside to the definition's own body."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def once(self, name: str) -> bool:
        """Whether a name is bound at one place, and nothing nested can see it."""
        return len(self.bindings.get(name, ())) == 1 and name not in self.nested

    # -- outside ---------------------------------------------------------------------------------

    def resolve(self, node: ast.expr) -> object:
        """What an expression of names and attributes of modules stands for; UNKNOWN if that is not sure."""
        match node:
            case ast.Name(id=name) if name not in self.bindings:
                found = self._outside[name]
                self.relied_on[name] = found
                return found
            case ast.Attribute(value=value, attr=attribute):
                owner = self.resolve(value)
                return getattr(owner, attribute, UNKNOWN) if isinstance(owner, ModuleType) else UNKNOWN
            case _:
                return UNKNOWN

    # -- states ----------------------------------------------------------------------------------

    def _kinds(self, states: tuple[str, ...]) -> dict[str, NameKind]:
        """Kinds of names all of whose bindings agree; found from the states outward."""
        self.kinds = {}
        for name in states:
            if all(place is self.definition.args or self._is_added_to(place) for place in self.bindings[name]):
                self.kinds[name] = NameKind(Role.STATE, name)
        while True:
            more = dict(self.kinds)
            for name, places in self.bindings.items():
                if name not in more:
                    found = [self._kind_of_binding(place) for place in places if not self._is_added_to(place)]
                    if found and found[0] is not None and all(kind == found[0] for kind in found):
                        more[name] = found[0]
            if len(more) == len(self.kinds):
                return more
            self.kinds = more

    def _is_added_to(self, place: ast.AST) -> bool:
        """Whether a name is bound by `name += ...`, which leaves a state and forks what they are."""
        parent = self.parents.get(place)
        return isinstance(parent, ast.AugAssign) and isinstance(parent.op, ast.Add)

    def _kind_of_binding(self, place: ast.AST) -> NameKind | None:
        match self.parents.get(place), place:
            case ast.Assign(targets=[target], value=value), ast.Name() if target is place:
                return self.kind_of(value)
            case (ast.For() | ast.AsyncFor()) as loop, ast.Name() if loop.target is place:
                return self._item_of(self.kind_of(loop.iter))
            case ast.withitem(context_expr=ast.Call(func=ast.Attribute(value=value, attr=method))), ast.Name():
                kind = self.kind_of(value)
                entered = method in ("copy", "role", "system", "user", "assistant", "var_scope")
                return kind if kind is not None and kind.role is Role.STATE and entered else None
            case (ast.Tuple() | ast.List()) as target, ast.Name():
                return self._kind_in_tuple(target, target.elts.index(place))
            case _:
                return None

    def _kind_in_tuple(self, target: ast.Tuple | ast.List, index: int) -> NameKind | None:
        """Of `a, b = s.fork(2)`, and of `for fork, x in zip(forks, ...)`."""
        if any(isinstance(part, ast.Starred) for part in target.elts):
            return None
        match self.parents.get(target):
            case ast.Assign(targets=[_], value=ast.Tuple(elts=values)) if len(values) == len(target.elts):
                return self.kind_of(values[index])
            case ast.Assign(targets=[_], value=value):
                return self._item_of(self.kind_of(value))
            case ast.For(iter=iterated) as loop if loop.target is target:
                source = self.item_source(iterated, index)
                return self._item_of(self.kind_of(source)) if source is not None else None
            case _:
                return None

    def item_source(self, iterated: ast.expr, index: int | None) -> ast.expr | None:
        """Of what a loop's target, or part number `index` of it, is an item; None if it is of nothing known."""
        if index is None and not isinstance(iterated, ast.Call):
            return iterated
        if not (isinstance(iterated, ast.Call) and isinstance(iterated.func, ast.Name)):
            return None
        consumer = self.resolve(iterated.func)
        if any(isinstance(arg, ast.Starred) for arg in iterated.args) or not iterated.args:
            return None
        if consumer is enumerate and index == 1:
            return iterated.args[0]
        if consumer is zip and index is not None and index < len(iterated.args):
            return iterated.args[index]
        if consumer is reversed and index is None:
            return iterated.args[0]
        return None

    @staticmethod
    def _item_of(kind: NameKind | None) -> NameKind | None:
        return NameKind(Role.STATE, kind.root) if kind is not None and kind.role is Role.FORKS else None

    def kind_of(self, node: ast.expr) -> NameKind | None:
        """The kind of an expression; None if it is not known to be a state, forks or what was gathered."""
        match node:
            case ast.Name(id=name):
                return self.kinds.get(name)
            case ast.Subscript(value=value, slice=index) if not isinstance(index, ast.Slice):
                return self._item_of(self.kind_of(value))
            case ast.Call(func=ast.Attribute(value=value, attr=method)):
                kind = self.kind_of(value)
                match kind.role if kind else None, method:
                    case Role.STATE, "fork":
                        return NameKind(Role.FORKS, kind.root) if kind else None
                    case ((Role.STATE | Role.FORKS), "join"):
                        return NameKind(Role.GATHERED, kind.root) if kind else None
                    case _:
                        return None
            case _:
                return None
