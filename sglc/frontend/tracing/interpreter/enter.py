"""Where the interpreter begins: a program's body, and functions that the language calls back."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from sglc.errors import Loc
from sglc.frontend.language.function import Definition
from sglc.frontend.program.state import State
from sglc.frontend.tracing.call_frame import CallFrame, Closure, closure_of
from sglc.frontend.tracing.interpreter.calls import call
from sglc.frontend.tracing.interpreter.data import operand
from sglc.frontend.tracing.pytree import tree_of
from sglc.frontend.tracing.tracer import Tracer
from sglc.frontend.values.graph_breaks import CALLBACK, GraphBreak
from sglc.ir.core import Tree


def body_of(tracer: Tracer, definition: Definition) -> Callable[..., Any]:
    """The body of a program, interpreted.

    Raises:
        GraphBreak: it has no source.
    """
    function = definition.call
    assert isinstance(function, FunctionType)
    body = closure_of(tracer, function, definition.loc)
    if inspect.iscoroutinefunction(function):
        return lambda *args, **named: body(*args, **named).awaited()
    return body


def entered(tracer: Tracer, function: Callable[..., Any], loc: Loc) -> Callable[..., Any]:
    """A callable that the language will call: each of its calls is classified.

    Raises:
        GraphBreak: it is none that can be interpreted.
    """
    if isinstance(function, Closure) or str(getattr(function, "__module__", "")).startswith(
        "sglc.frontend.tracing."
    ):
        return function
    if not callable(function):
        raise GraphBreak(f"`{type(function).__name__}` is called back", loc, CALLBACK)

    def made(*args: Any, **named: Any) -> Any:
        frame = tracer.calling[-1]
        assert isinstance(frame, CallFrame)
        return call(frame, function, list(args), named)

    return made


def returned_tree(tracer: Tracer, value: Any) -> Tree:
    """What a program returns, as data.

    Raises:
        GraphBreak: it is none.
    """
    if isinstance(value, State):
        return tree_of(tracer, value, tracer.at, "returned")
    tracer.outside.unchanged(tracer, value)
    return operand(tracer, value, "returned")
