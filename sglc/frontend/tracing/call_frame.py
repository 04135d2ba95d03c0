"""One call of a function that is interpreted: its names, where it stands, and how functions are called.

Names are looked up as Python does: those that the function binds are its own, then those of the functions
around it, the closure that it was made with, its module and the builtins.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import attrgetter
from types import CellType, CodeType, FunctionType
from typing import Any

from sglc.errors import Loc
from sglc.frontend.source import source_of
from sglc.frontend.tracing.evaluation import Holder
from sglc.frontend.tracing.tracer import Tracer
from sglc.frontend.values.graph_breaks import ASSIGNED, NO_SOURCE, OTHER, OUTSIDE, GraphBreak
from sglc.frontend.values.no_text import NotAwaited

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = frozenset((ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, *_COMPREHENSIONS))
# Nodes that bind a name of their own, if they have one.
_BINDING: Mapping[type[ast.AST], Callable[[Any], str | None]] = {
    **dict.fromkeys((ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef), attrgetter("name")),
    **dict.fromkeys((ast.ExceptHandler, ast.MatchAs, ast.MatchStar), attrgetter("name")),
    ast.MatchMapping: attrgetter("rest"),
    ast.alias: lambda node: node.asname or node.name.partition(".")[0],
}
_NEVER = frozenset([""])  # no function binds that
_DEEPEST = 64  # calls of the user's own functions in each other

_MOST_SOURCES = 1024  # functions that are known: in a notebook the same ones come again and again, as others


@dataclass(frozen=True, slots=True)
class Bindings:
    """The names that a function binds itself, and those that it declares to be elsewhere."""

    own: frozenset[str]
    outer: frozenset[str]  # `nonlocal`
    module: frozenset[str]  # `global`


@lru_cache(_MOST_SOURCES)
def definition_of(code: CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef:
    """The source that the code was certainly compiled from.

    Raises:
        OSError, SyntaxError: it is not there, or has changed.
    """
    source = source_of(code)
    if not source.matches and not any(name.startswith("@py_") for name in code.co_varnames):
        raise SyntaxError("it has changed since it was imported")  # or a tool changed more than asserts
    return source.definition


def has_source(code: CodeType) -> bool:
    """Whether what stands in its file now is what the code was compiled from."""
    try:
        definition_of(code)
    except (OSError, SyntaxError):
        return False
    return True


@lru_cache(_MOST_SOURCES)
def bindings_of(node: ast.AST, enough: frozenset[str] = _NEVER) -> Bindings:
    """The names that a function or comprehension binds; where `enough` are its own, no more are looked for.

    Then all that it has are: a name that it binds beside them is declared `global` or `nonlocal` further on.
    """
    own, outer, module = set[str](), set[str](), set[str]()
    elsewhere: dict[type, set[str]] = {ast.Global: module, ast.Nonlocal: outer}
    left: list[Any]  # nodes of its scope, and what else is in their lists
    if isinstance(node, FunctionNode):
        spec = node.args
        arguments = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg]
        own.update(argument.arg for argument in arguments if argument is not None)
        left = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
    else:
        assert isinstance(node, _COMPREHENSIONS)
        left = [generator.target for generator in node.generators]
    for part in left:  # which grows
        if enough <= own:
            own &= enough
            break
        kind = type(part)
        if kind is ast.Constant:
            continue
        if kind is ast.Name:
            if type(part.ctx) is not ast.Load:
                own.add(part.id)
            continue
        if kind in _BINDING:
            bound = _BINDING[kind](part)
            if bound is not None:
                own.add(bound)
        elif kind in elsewhere:
            elsewhere[kind].update(part.names)
        if kind not in _SCOPES:
            for name in getattr(kind, "_fields", ()):
                held = getattr(part, name)
                if type(held) is list:
                    left += held
                elif isinstance(held, ast.AST) and held._fields:  # not `Load()` and its like
                    left.append(held)
        elif kind in _COMPREHENSIONS:  # outside of itself it binds only by `:=`
            left += [inner.target for inner in ast.walk(part) if isinstance(inner, ast.NamedExpr)]
    return Bindings(frozenset(own - outer - module), frozenset(outer), frozenset(module))


@dataclass(slots=True, eq=False)
class CallFrame:
    """`block` counts the blocks of structured ops around it, when it began."""

    tracer: Tracer
    scope: ast.AST  # the function or comprehension
    file: str
    globals: dict[str, Any]
    cells: Mapping[str, CellType]
    outer: CallFrame | None = None  # the one whose names it sees
    values: dict[str, Any] = field(default_factory=dict)
    variables: frozenset[str] = _NEVER  # all that its code has, if no function is around it
    block: int = field(init=False)
    bindings: Bindings = field(init=False)

    def __post_init__(self) -> None:
        self.block, self.bindings = len(self.tracer.bodies), bindings_of(self.scope, self.variables)

    @property
    def node(self) -> ast.AST | None:
        """What is evaluated now."""
        return self.tracer.node

    @node.setter
    def node(self, node: ast.AST | None) -> None:
        self.tracer.node, self.tracer.node_file = node, self.file

    def loc(self) -> Loc:
        """Its place."""
        return self.tracer.place()

    def load(self, name: str) -> Any:
        """What a name stands for.

        Raises:
            NameError: for nothing.
            GraphBreak: for something outside that may not be read any more.
        """
        frame: CallFrame | None = self
        while frame is not None:
            if name in frame.values:
                found = frame.values[name]
                self.tracer.outside.unchanged(self.tracer, found, name=name)
                return found
            if name in frame.bindings.own:
                what = "cannot access local variable" if frame is self else "cannot access free variable"
                raise UnboundLocalError(f"{what} '{name}' where it is not associated with a value")
            if name in frame.bindings.module:
                break
            frame = frame.outer
        else:
            if name in self.cells:
                return self.tracer.outside.read_cell(self, name, self.cells[name])
        return self.tracer.outside.read_global(self, name)

    def binds(self, name: str) -> bool:
        """Whether it is a name of this function, or of one around it: it may stand for something else later."""
        return name in self.bindings.own or (self.outer is not None and self.outer.binds(name))

    def store(self, name: str, value: Any) -> None:
        """Bind a name.

        Raises:
            GraphBreak: it belongs to something outside of the program, or of the block that is recorded.
        """
        holder = self._holder(name, f"`{name} = ...`")
        if holder.block < len(self.tracer.bodies) and holder.block < self.block:
            raise GraphBreak(f"a block assigns `{name}`, a variable outside of it", self.loc(), ASSIGNED)
        if holder is not self:
            self.tracer.about_to_change()
        holder.values[name] = value

    def delete(self, name: str) -> None:
        """`del name`."""
        holder = self._holder(name, f"`del {name}`")
        if name not in holder.values:
            raise NameError(f"name '{name}' is not defined")
        if holder is not self:
            self.tracer.about_to_change()
        del holder.values[name]

    def _holder(self, name: str, what: str) -> CallFrame:
        if isinstance(self.scope, _COMPREHENSIONS) and name not in self.bindings.own:
            assert self.outer is not None
            return self.outer._holder(name, what)
        if name in self.bindings.own:
            return self
        frame = self.outer if name in self.bindings.outer else None
        while frame is not None:
            if name in frame.bindings.own:
                return frame
            frame = frame.outer
        raise GraphBreak(f"{what} changes what outlives the program", self.loc(), OUTSIDE)


class Closure(Holder):
    """A function whose calls are interpreted: one that the program defines, or a helper of the user's.

    Args:
        frame: of a call, as far as that is the same for all.
        signature: makes it.
        plain: the names of its parameters, if each can be given by its place: most calls need no more.
    """

    def __init__(
        self, frame: CallFrame, signature: Callable[[], inspect.Signature], name: str, defaults: Sequence[Any],
        plain: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        self._frame, self._signature, self._defaults, self._plain = frame, signature, defaults, plain
        self.__name__ = self.__qualname__ = name

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self._plain is not None and len(args) == len(self._plain) and not kwargs:
            values = dict(zip(self._plain, args, strict=True))
        else:
            try:
                given = self._signature().bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{self.__name__}() {error}") from None
            given.apply_defaults()
            values = dict(given.arguments)
        of = self._frame
        frame = CallFrame(of.tracer, of.scope, of.file, of.globals, of.cells, of.outer, values, of.variables)
        if isinstance(frame.scope, ast.AsyncFunctionDef):
            return Coroutine(lambda: self._run(frame), self.__name__.rpartition(".")[2])
        return self._run(frame)

    def held(self) -> Iterator[Any]:
        """Its defaults, and what the names around it stand for."""
        yield from self._defaults
        frame = self._frame.outer
        while frame is not None:
            yield from frame.values.values()
            frame = frame.outer

    def _run(self, frame: CallFrame) -> Any:
        frames = frame.tracer.calling
        if len(frames) >= _DEEPEST:
            raise GraphBreak(f"functions call each other more than {_DEEPEST} deep", frame.loc(), OTHER)
        frames.append(frame)
        try:
            return frame.tracer.run_body(frame)
        finally:
            frames.pop()


class Coroutine(NotAwaited):
    """What calling an `async def` gives while it is interpreted. It is awaited once."""

    def __init__(self, run: Callable[[], Any], name: str) -> None:
        self._run: Callable[[], Any] | None = run
        self.name = name

    def awaited(self) -> Any:
        """What it returns.

        Raises:
            RuntimeError: it was awaited before.
        """
        run, self._run = self._run, None
        if run is None:
            raise RuntimeError("cannot reuse already awaited coroutine")
        return run()


def closure_of(tracer: Tracer, function: FunctionType, loc: Loc) -> Closure:
    """A program's body, or a helper of the user's that is called at `loc`, interpreted from its source.

    Raises:
        GraphBreak: it has none.
    """
    tracer.outside.enter(function)
    code = function.__code__
    try:
        node = definition_of(code)
    except (OSError, SyntaxError) as error:
        reason = f"the source of `{function.__name__}` is not available ({error})"
        raise GraphBreak(reason, loc, NO_SOURCE) from None
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    for default in defaults:
        tracer.outside.note(default)
    # `nonlocal` and `global` decide nothing here: what is not its own is not stored, and looked up outside.
    # What a comprehension binds inside is among these in 3.12: then none are enough.
    own = frozenset((*code.co_varnames, *code.co_cellvars))
    frame = CallFrame(tracer, node, code.co_filename, function.__globals__, cells, variables=own)
    signature = partial(inspect.signature, function, follow_wrapped=False)
    more = code.co_kwonlyargcount or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    plain = None if more else code.co_varnames[: code.co_argcount]
    return Closure(frame, signature, function.__qualname__, defaults, plain)
