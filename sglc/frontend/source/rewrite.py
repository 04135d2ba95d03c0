"""A function's source as a tree, and copies of the function whose code is compiled from a changed tree.

A copy shares everything with its original but the code: globals, defaults, and the very closure cells,
so that what is bound later is seen by both. Source positions are those of the original. Nothing of the
source is executed to make a copy.
"""

from __future__ import annotations
import __future__

import ast
import dis
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import CellType, CodeType, FunctionType
from typing import Any

CALL = "__sglc_call__"
FORMAT = "__sglc_format__"
PIECE = "__sglc_piece__"
JOIN = "__sglc_join__"

_OUTER = "__sglc_outer__"
_FUTURES = 0
for _name in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _name).compiler_flag


# What `rewrite` made of a code object, by its id, with the object itself, so that it stays alive.
_HOOKED: dict[int, tuple[CodeType, CodeType]] = {}


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """The definition that a code object was compiled from. `code_of` compiles it as it is then."""

    code: CodeType
    definition: ast.FunctionDef | ast.AsyncFunctionDef


def source_of(code: CodeType) -> FunctionSource:
    """The source of a function, found by its code object.

    Raises:
        OSError: the source is not available.
        SyntaxError: the source is not a plain `def` of that name (a lambda, generated code).
    """
    lines, first = inspect.getsourcelines(code)
    text = "".join(lines)
    # A nested definition is indented; `if 1:` in front keeps its columns as they are.
    indented = text[:1] in " \t"
    tree = ast.parse(f"if 1:\n{text}" if indented else text)
    ast.increment_lineno(tree, first - (2 if indented else 1))
    definitions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    definition = next(definitions, None)
    if definition is None or definition.name != code.co_name:
        raise SyntaxError("not a plain function definition")
    return FunctionSource(code, definition)


def code_of(source: FunctionSource, hooks: tuple[str, ...] = ()) -> CodeType:
    """The definition's code, in which `hooks` are free variables besides those of the original.

    Raises:
        SyntaxError: it does not compile, or not to a function of that name.
    """
    original = source.code
    body: list[ast.stmt] = [source.definition]
    owner = original.co_qualname.split(".")[-2:-1]
    if owner and owner != ["<locals>"]:  # a method: the names of private attributes depend on the class
        body = [ast.ClassDef(name=owner[0], bases=[], keywords=[], body=body, decorator_list=[])]
    names = (*hooks, *original.co_freevars)
    # The definition binds its name here, which is none of this place's names to its body.
    bound = [name for name in (original.co_name, *owner) if name.isidentifier() and name not in names]
    outer = ast.FunctionDef(
        name=_OUTER,
        args=ast.arguments(
            posonlyargs=[],
            args=[ast.arg(arg=name) for name in names],
            kwonlyargs=[],
            kw_defaults=[],
            defaults=[],
        ),
        body=[ast.Global(bound), *body] if bound else body,
        decorator_list=[],
    )
    imports = [ast.Import([ast.alias(name)]) for name in _imported(original)]
    module = ast.fix_missing_locations(ast.Module([*imports, outer], []))
    flags = original.co_flags & _FUTURES
    whole = compile(module, original.co_filename, "exec", flags=flags, dont_inherit=True)
    found = [
        code
        for code in _inner(whole)
        if code.co_name == original.co_name and code.co_firstlineno == original.co_firstlineno
    ]
    if not found:
        raise SyntaxError("not a plain function definition")
    renamed = _requalified(found[0], found[0].co_qualname, original.co_qualname)
    return renamed.replace(co_flags=original.co_flags)


def matches(source: FunctionSource) -> bool:
    """Whether the source is certainly that of the code: compiling it gives the same code again.

    It does not where a file was changed after it was imported, or where a tool rewrote the code.
    """
    try:
        return _same(code_of(source), source.code)
    except (SyntaxError, ValueError, RecursionError):
        return False


def with_code(function: FunctionType, code: CodeType, hooks: Mapping[str, Any]) -> FunctionType:
    """A copy of `function` that runs `code`, whose free variables are the function's own and `hooks`."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(cells[name] if name in cells else CellType(hooks.get(name)) for name in code.co_freevars)
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    return made


def rewrite(function: FunctionType, call: Callable[..., Any], format_parts: Callable[..., Any]) -> FunctionType:
    """`function` with calls routed to `call(f, *args, **kwargs)` and f-strings to `format_parts`.

    Used for ahead-of-time tracing.

    Raises:
        OSError: the source is not available.
        SyntaxError: the source is not a plain `def` (a lambda, generated code).
    """
    original = function.__code__
    if id(original) not in _HOOKED:
        source = source_of(original)
        body = _Hooks()
        source.definition.body = [body.visit(statement) for statement in source.definition.body]
        _HOOKED[id(original)] = original, code_of(source, (CALL, FORMAT))
    return with_code(function, _HOOKED[id(original)][1], {CALL: call, FORMAT: format_parts})


def keep_fields(source: FunctionSource, fields: Mapping[ast.FormattedValue, object]) -> None:
    """Change f-strings with `fields` in them, so that these values are not formatted where they stand.

        f"a{x}b{y}"  ->  __sglc_join__(f"a{x}b", __sglc_piece__(y))     with {y} in `fields`

    Everything is still evaluated and formatted in the order of the text.
    """
    change = _Fields(fields)
    source.definition.body = [change.visit(statement) for statement in source.definition.body]


class _Hooks(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return node
        hook = ast.copy_location(ast.Name(CALL, ast.Load()), node.func)
        return ast.copy_location(ast.Call(hook, [node.func, *node.args], node.keywords), node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        parts: list[ast.expr] = []
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                spec = self.visit(value.format_spec) if value.format_spec else ast.Constant("")
                parts.append(
                    ast.Tuple([self.visit(value.value), ast.Constant(value.conversion), spec], ast.Load())
                )
            else:
                parts.append(value)
        hook = ast.copy_location(ast.Name(FORMAT, ast.Load()), node)
        return ast.copy_location(ast.Call(hook, parts, []), node)


class _Fields(ast.NodeTransformer):
    def __init__(self, fields: Mapping[ast.FormattedValue, object]) -> None:
        self._fields = fields

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        self.generic_visit(node)
        if not any(value in self._fields for value in node.values):
            return node
        pieces: list[ast.expr] = []
        plain: list[ast.expr] = []
        for value in node.values:
            if isinstance(value, ast.FormattedValue) and value in self._fields:
                if plain:
                    pieces.append(ast.copy_location(ast.JoinedStr(plain), node))
                    plain = []
                pieces.append(self._hook(PIECE, [value.value], node))
            else:
                plain.append(value)
        if plain:
            pieces.append(ast.copy_location(ast.JoinedStr(plain), node))
        return self._hook(JOIN, pieces, node)

    @staticmethod
    def _hook(name: str, args: list[ast.expr], at: ast.expr) -> ast.expr:
        function = ast.copy_location(ast.Name(name, ast.Load()), at)
        return ast.copy_location(ast.Call(function, args, []), at)


def _inner(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inner(constant)


def _imported(code: CodeType) -> dict[str, None]:
    """The global names that the compiler knew to be imported: it calls their attributes differently."""
    names: dict[str, None] = {}
    for part in (code, *_inner(code)):
        for load, attribute in pairwise(dis.get_instructions(part)):
            called = (load.opname, attribute.opname) == ("LOAD_GLOBAL", "LOAD_ATTR")
            if called and load.argrepr.startswith("NULL + "):
                names[load.argval] = None
    return names


def _requalified(code: CodeType, prefix: str, wanted: str) -> CodeType:
    """The code, and what is defined in it, under the name `wanted` instead of `prefix`."""
    constants = tuple(
        _requalified(constant, prefix, wanted) if isinstance(constant, CodeType) else constant
        for constant in code.co_consts
    )
    return code.replace(co_consts=constants, co_qualname=wanted + code.co_qualname.removeprefix(prefix))


def _same(made: CodeType, original: CodeType) -> bool:
    if len(made.co_consts) != len(original.co_consts):
        return False
    for mine, other in zip(made.co_consts, original.co_consts, strict=True):
        if type(mine) is not type(other):
            return False
        if not (_same(mine, other) if isinstance(mine, CodeType) else mine == other):
            return False
    return all(
        getattr(made, field) == getattr(original, field)
        for field in (
            *("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_qualname"),
            *("co_linetable", "co_exceptiontable", "co_argcount", "co_kwonlyargcount"),
        )
    )
