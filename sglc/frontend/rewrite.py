"""A copy of a function in which f-strings stay symbolic and every call passes through a hook.

Used only for ahead-of-time compilation: running a program never rewrites it. Source positions
are kept, so locations and tracebacks are those of the original.
"""

from __future__ import annotations
import __future__

import ast
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

CALL = "__sglc_call__"
FORMAT = "__sglc_format__"


def rewrite(function: FunctionType, call: Callable[..., Any], format_parts: Callable[..., Any]) -> FunctionType:
    """`function` with calls routed to `call(f, *args, **kwargs)` and f-strings to `format_parts`.

    Raises:
        OSError: the source is not available.
        SyntaxError: the source is not a plain `def` (a lambda, generated code).
    """
    lines, first = inspect.getsourcelines(function)
    source = "".join(lines)
    # A nested definition is indented; `if 1:` in front keeps its columns as they are.
    indented = source[:1] in " \t"
    tree = ast.parse(f"if 1:\n{source}" if indented else source)
    ast.increment_lineno(tree, first - (2 if indented else 1))
    definition = next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)), None)
    if definition is None or definition.name != function.__name__:
        raise SyntaxError("not a plain function definition")
    definition.decorator_list = []
    # Defaults were evaluated where the function was defined, and annotations may be anything.
    definition.args.defaults = []
    definition.args.kw_defaults = [None] * len(definition.args.kwonlyargs)
    body = _Rewriter()
    definition.body = [body.visit(statement) for statement in definition.body]
    free = function.__code__.co_freevars
    outer = ast.FunctionDef(
        name="__sglc_outer__",
        args=ast.arguments(
            posonlyargs=[],
            args=[ast.arg(arg=name) for name in (CALL, FORMAT, *free)],
            kwonlyargs=[],
            kw_defaults=[],
            defaults=[],
        ),
        body=[definition, ast.Return(ast.Name(definition.name, ast.Load()))],
        decorator_list=[],
    )
    module = ast.fix_missing_locations(ast.Module([outer], []))
    # Annotations stay text: evaluating them could call user code.
    code = compile(
        module, function.__code__.co_filename, "exec",
        flags=__future__.annotations.compiler_flag, dont_inherit=True,
    )  # fmt: skip
    names: dict[str, Any] = {}
    exec(code, function.__globals__, names)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    made: FunctionType = names["__sglc_outer__"](call, format_parts, *cells)
    made.__defaults__ = function.__defaults__
    made.__kwdefaults__ = function.__kwdefaults__
    return made


class _Rewriter(ast.NodeTransformer):
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
