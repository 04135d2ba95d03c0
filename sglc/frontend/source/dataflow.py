"""Where a function reads what generations make, and what it does with it: a pure analysis of its source.

A read may stay deferred where its value provably only flows into prompts or into the returned data;
everything else is an observation, with its reason in words. Invariant: whatever is not proved is an
observation.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

from sglc.errors import Loc
from sglc.frontend.language import expr
from sglc.frontend.locate import shown_path
from sglc.frontend.source.rewrite import FunctionSource
from sglc.frontend.source.scopes import NameKind, Names, Outside, Role
from sglc.frontend.source.text_types import TEXT_METHODS, Texts

Span = tuple[int, int, int, int]  # line, end line, column, end column, as an instruction's position
_TURNS: tuple[Callable[..., Any], ...] = (expr.user, expr.system, expr.assistant)
_ROLE_METHODS = ("user", "system", "assistant")
# What a followed value is: a text inside of so many lists, or one of these.
_TEXT = -1
_CHANGED = -2  # a text with `strip` or `lower` in it: it can be returned, and in a prompt it must be known
_SEE_LOCALS = ("locals", "vars", "eval", "exec", "dir", "globals", "breakpoint")
# What a place does with a value, by the kind of node that it is directly in.
_WHY: dict[type[ast.AST], str] = {
    **dict.fromkeys((ast.If, ast.While, ast.IfExp, ast.Assert, ast.BoolOp, ast.UnaryOp), "a condition"),
    **dict.fromkeys((ast.Match, ast.match_case), "`match`"),
    **dict.fromkeys((ast.For, ast.AsyncFor), "a loop over it"),
    ast.Assign: "assigned to several names",
    ast.AugAssign: "an augmented assignment",
    ast.Await: "awaited",
    ast.BinOp: "arithmetic",
    ast.Call: "called",
    ast.Compare: "a comparison",
    ast.Expr: "a statement of its own: it only waits",
    ast.NamedExpr: "an assignment inside an expression",
    ast.Raise: "raised",
    ast.Return: "returned by a helper",
    ast.Set: "a member of a set",
    ast.Slice: "a bound of a slice",
    ast.Starred: "unpacked",
    ast.Subscript: "an index",
}


@dataclass(frozen=True, slots=True)
class Read:
    """One place where a variable is read. `reason` is "" if the value may stay deferred.

    Attributes:
        used: the place that needs the value, where that is another one.
        root: the parameter that the state was made from.
        depth: levels of lists between what is read and texts; None: any, it is only returned.
        texts: parameters that must be texts for the value to stay deferred.
    """

    loc: Loc
    what: str
    reason: str
    root: str
    used: Loc | None = None
    depth: int | None = None
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dataflow:
    """What is known of a function.

    Attributes:
        reads: every read, in the order of the text.
        deferred: those that may stay deferred, by their span.
        fields: of f-strings, those whose values stay deferred.
        relied_on: names from outside, and what they were when this was found out.
    """

    reads: tuple[Read, ...]
    deferred: dict[Span, Read]
    fields: dict[ast.FormattedValue, Read]
    relied_on: dict[str, object]


def analysis_of(
    source: FunctionSource,
    function: FunctionType,
    states: tuple[str, ...],
    *,
    program: bool,
    formats: bool = True,
) -> DataflowAnalysis:
    """The analysis of `function`, whose parameters `states` are prompt states.

    Args:
        program: a program's own body, whose `return` goes to sglc; a helper's goes to any code.
        formats: f-strings can be kept from being formatted.
    """
    names = Names(source.definition, Outside(function), states)
    return DataflowAnalysis(names, shown_path(source.code.co_filename), program, formats)


@dataclass(slots=True)
class _Trail:
    """What is found out while a value is followed."""

    root: str
    reason: str = ""
    at: ast.AST | None = None
    depths: list[int] = field(default_factory=list)
    fields: list[ast.FormattedValue] = field(default_factory=list)
    texts: dict[str, None] = field(default_factory=dict)
    followed: list[ast.AST] = field(default_factory=list)

    def needs(self, reason: str, at: ast.AST) -> None:
        if not self.reason:
            self.reason, self.at = reason, at


class DataflowAnalysis:
    """The analysis of one definition."""

    def __init__(self, names: Names, file: str, program: bool, formats: bool) -> None:
        self.names = names
        self._file = file
        self._program = program
        self._formats = formats
        self._texts = Texts(names, program)

    def flow(self) -> Dataflow:
        """Every read, and what may stay deferred."""
        reads: list[Read] = []
        deferred: dict[Span, Read] = {}
        fields: dict[ast.FormattedValue, Read] = {}
        spoiled: dict[Span, None] = {}
        for node, kind in self.reads():
            trail = self._follow_read(node, kind)
            read = self._read(node, kind, trail)
            reads.append(read)
            span = _span(node)
            if read.reason or span in deferred:  # places that cannot be told apart share the worse fate
                spoiled[span] = None
            else:
                deferred[span] = read
                fields.update((place, read) for place in trail.fields)
        for span in spoiled:
            twin = deferred.pop(span, None)
            if twin is not None:
                reads[reads.index(twin)] = replace(twin, reason="not to be told apart from another read")
        return Dataflow(tuple(reads), deferred, fields, dict(self.names.relied_on))

    def reads(self) -> Iterator[tuple[ast.expr, NameKind]]:
        """Every expression that reads a variable of a state, or of what was gathered."""
        for node in self.names.parents:
            match node:
                case ast.Subscript(value=value, ctx=ast.Load()):
                    kind = self.names.kind_of(value)
                    if kind is not None and kind.role is not Role.FORKS:
                        yield node, kind
                case ast.AugAssign(target=ast.Subscript(value=value) as target):
                    kind = self.names.kind_of(value)
                    if kind is not None and kind.role is Role.STATE:
                        yield target, kind
                case ast.Call(func=ast.Attribute(value=value, attr="get_var")):
                    kind = self.names.kind_of(value)
                    if kind is not None and kind.role is Role.STATE:
                        yield node, kind

    def place(self, node: ast.AST) -> Loc:
        """A node's place as sglc shows places."""
        line, end_line, column, end = _span(node)
        return Loc(self._file, line, column + 1, end + 1 if end_line == line else 0)

    def _read(self, node: ast.expr, kind: NameKind, trail: _Trail) -> Read:
        depths = {depth for depth in trail.depths if depth >= 0}
        reason = trail.reason or self._texts.why_not(node, any(depths))
        if not reason and len(depths) > 1:
            reason = "used as a text and as a list"
        used = self.place(trail.at) if trail.at is not None else None
        here = self.place(node)
        return Read(
            here,
            ast.unparse(node),
            reason,
            kind.root,
            None if used is None or used.line == here.line else used,
            next(iter(depths), None),
            tuple(trail.texts),
        )

    # -- following a value -----------------------------------------------------------------------

    def _follow_read(self, node: ast.expr, kind: NameKind) -> _Trail:
        trail = _Trail(kind.root)
        watching = [name for name in _SEE_LOCALS if name in self.names.loads or name in self.names.nested]
        if self.names.is_nested(node):
            trail.needs("read in a nested function or comprehension", node)
        elif watching:
            trail.needs(f"`{watching[0]}` may see every value here", node)
        else:
            self._guarded(node, trail)
            self._follow(node, 0, trail)
        return trail

    def _guarded(self, node: ast.AST, trail: _Trail) -> None:
        """A generation that fails fails where it is read, which a block round it may catch."""
        for outer in self.names.up(node):
            if isinstance(outer, ast.Try | ast.TryStar):
                trail.needs("inside a `try`, which may catch its failure", node)
            elif isinstance(outer, ast.With | ast.AsyncWith) and not all(map(self._is_turn, outer.items)):
                trail.needs("inside a `with`, which may catch its failure", node)

    def _is_turn(self, item: ast.withitem) -> bool:
        match item.context_expr:
            case ast.Call(func=ast.Attribute(value=value, attr=method)):
                kind = self.names.kind_of(value)
                known = (*_ROLE_METHODS, "role", "copy", "var_scope")
                return kind is not None and kind.role is Role.STATE and method in known
            case _:
                return False

    def _follow(self, node: ast.AST, level: int, trail: _Trail) -> None:
        """Where the value of `node` goes. `level`: lists that were entered so far, or what it is."""
        if any(node is seen for seen in trail.followed):
            return
        trail.followed.append(node)
        parent = self.names.parents[node]
        match parent:
            case ast.AugAssign(op=ast.Add(), target=target, value=value) if value is node:
                kind = self.names.kind_of(target) if isinstance(target, ast.expr) else None
                if kind is None or kind.role is Role.GATHERED or kind.root != trail.root:
                    trail.needs(f"added to `{ast.unparse(target)}`", parent)
                self._in_prompt(node, level, trail)
            case ast.BinOp(op=ast.Add(), left=left):
                if left is not node and not self._texts.is_text(left, trail.texts):
                    trail.needs(f"added to `{ast.unparse(left)}`, which may be no text", parent)
                trail.depths.append(level)
                self._follow(parent, min(level, _TEXT), trail)
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None) if value is node:
                if not self._formats:
                    trail.needs("formatted in an f-string of a helper", parent)
                trail.fields.append(parent)
                trail.depths.append(level)
                self._follow(self.names.parents[parent], min(level, _TEXT), trail)
            case ast.FormattedValue(value=value) if value is node:
                trail.needs("formatted with a conversion or a width", node)
            case ast.keyword(arg=name):
                call = self.names.parents[parent]
                assert isinstance(call, ast.Call | ast.ClassDef)
                self._argument(call, name, node, level, trail)
            case ast.Call(func=function) if function is not node:
                self._argument(parent, None, node, level, trail)
            case ast.Attribute(attr=method):
                self._method(parent, method, level, trail)
            case ast.Return() if self._program:
                self._returned(node, level, trail)
            case ast.Dict() | ast.List() | ast.Tuple():
                self._contained(node, level, trail)
            case ast.Assign(targets=[target], value=value) if value is node:
                self._assigned(target, level, trail)
            case ast.AnnAssign(target=target, value=value) if value is node:
                self._assigned(target, level, trail)
            case ast.For(iter=iterated, target=target) if iterated is node:
                self._looped(target, None, node, level, trail)
            case ast.Subscript(value=value, slice=index) if value is node and level >= 0:
                if isinstance(index, ast.Slice):
                    trail.needs("sliced", parent)
                self._follow(parent, level + 1, trail)
            case ast.IfExp(test=test) if test is not node:
                self._follow(parent, level, trail)
            case _:
                trail.needs(_why(parent, node), node)

    def _in_prompt(self, node: ast.AST, level: int, trail: _Trail) -> None:
        """The value arrives in a prompt, where it may be deferred."""
        self._guarded(node, trail)
        trail.depths.append(level)
        if level == _CHANGED:
            trail.needs("changed by a method before it is appended", node)

    def _returned(self, node: ast.AST, level: int, trail: _Trail) -> None:
        """The value arrives in the data that is returned: a text and a list alike."""
        self._guarded(node, trail)
        trail.depths.append(level or _TEXT)

    def _argument(
        self, call: ast.Call | ast.ClassDef, name: str | None, node: ast.AST, level: int, trail: _Trail
    ) -> None:
        if not isinstance(call, ast.Call):
            trail.needs("an argument of a class", node)
            return
        function = self.names.resolve(call.func)
        content = name is None or name == "content"
        if any(function is turn for turn in _TURNS) and content:
            self._in_prompt(node, level, trail)
            return
        match call.func:
            case ast.Attribute(value=value, attr=method) if method in _ROLE_METHODS and content:
                kind = self.names.kind_of(value)
                if kind is not None and kind.role is Role.STATE and kind.root == trail.root:
                    self._in_prompt(node, level, trail)
                    return
            case ast.Name():
                loop = self.names.parents[call]
                if isinstance(loop, ast.For) and loop.iter is call and name is None:
                    self._looped(loop.target, call, node, level, trail)
                    return
            case _:
                pass
        trail.needs(f"passed to `{ast.unparse(call.func)}`", node)

    def _method(self, attribute: ast.Attribute, method: str, level: int, trail: _Trail) -> None:
        """`.strip()` and `.lower()` wait with the text; any other method needs it now."""
        call = self.names.parents[attribute]
        plain = isinstance(call, ast.Call) and call.func is attribute and not call.args and not call.keywords
        shown = f"`.{method}(...)`" if isinstance(call, ast.Call) and call.func is attribute else f"`.{method}`"
        if not plain or method not in TEXT_METHODS:
            trail.needs(shown, attribute)
            return
        trail.depths.append(level)
        self._follow(call, _CHANGED, trail)

    def _contained(self, node: ast.AST, level: int, trail: _Trail) -> None:
        """An item of a list, tuple or dict: of the returned data, or of the choices of a `select`."""
        container = self.names.parents[node]
        if isinstance(container, ast.Dict) and not any(value is node for value in container.values):
            trail.needs("a key of a dict", node)
            return
        outer = self.names.parents[container]
        match outer:
            case ast.Return() if self._program:
                self._returned(node, level, trail)
            case ast.Dict() | ast.List() | ast.Tuple():
                self._contained(container, level, trail)
            case ast.Call() | ast.keyword() if self._is_choices(container, outer) and level >= 0:
                self._in_prompt(node, level, trail)
            case _:
                trail.needs("put into a container", node)

    def _is_choices(self, container: ast.AST, outer: ast.AST) -> bool:
        """Whether a list is the choices of a `select` that the model decides by itself."""
        call = self.names.parents[outer] if isinstance(outer, ast.keyword) else outer
        if not isinstance(call, ast.Call) or isinstance(container, ast.Dict):
            return False
        alone = ("name", "choices", "temperature")
        if any(keyword.arg not in alone for keyword in call.keywords) or len(call.args) > 2:
            return False
        function = self.names.resolve(call.func)
        if isinstance(outer, ast.keyword):
            return outer.arg == "choices" and (function is expr.select or function is expr.gen)
        return function is expr.select and len(call.args) == 2 and call.args[1] is container

    def _assigned(self, target: ast.expr, level: int, trail: _Trail) -> None:
        match target:
            case ast.Name(id=name):
                self._named(name, level, target, trail)
            case ast.Tuple() | ast.List() if level >= 0:
                for part in target.elts:
                    if isinstance(part, ast.Name):
                        self._named(part.id, level + 1, target, trail)
                    else:
                        trail.needs("unpacked into more than names", target)
            case _:
                trail.needs(f"stored in `{ast.unparse(target)}`", target)

    def _looped(
        self, target: ast.expr, call: ast.Call | None, node: ast.AST, level: int, trail: _Trail
    ) -> None:
        """The items of a list, one after the other: directly, or through `zip` and `enumerate`."""
        parts = target.elts if isinstance(target, ast.Tuple) and call is not None else [target]
        found = False
        for index, part in enumerate(parts):
            if call is not None:
                source = self.names.item_source(call, index if isinstance(target, ast.Tuple) else None)
                if source is not node:
                    continue
            if isinstance(part, ast.Name) and level >= 0:
                found = True
                self._named(part.id, level + 1, part, trail)
        if not found:
            what = f"passed to `{ast.unparse(call.func)}`" if call is not None else "a loop over it"
            trail.needs(what, node)

    def _named(self, name: str, level: int, at: ast.AST, trail: _Trail) -> None:
        if not self.names.once(name):
            seen = "nested functions see" if name in self.names.nested else "more places bind"
            trail.needs(f"stored in `{name}`, which {seen}", at)
            return
        for load in self.names.loads.get(name, ()):
            self._follow(load, level, trail)


def _why(parent: ast.AST, node: ast.AST) -> str:
    """In words, what a place does with a value that cannot be deferred to it."""
    match parent:
        case ast.Compare(ops=[ast.In() | ast.NotIn(), *_]):
            return "`in`"
        case ast.Subscript(value=value) if value is not node:
            return "an index or key of something else"
        case ast.BinOp(op=ast.Mod()):
            return "`%`"
        case _:
            return _WHY.get(type(parent), f"used in `{type(parent).__name__}`")


def _span(node: ast.AST) -> Span:
    assert isinstance(node, ast.expr | ast.stmt | ast.arg)
    line, column = node.lineno, node.col_offset
    return line, node.end_lineno or line, column, node.end_col_offset or column
