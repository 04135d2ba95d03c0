"""What is done for each item of a list that only a run knows: a `map` op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglc.frontend.tracing.call_frame import CallFrame, Closure
from sglc.frontend.tracing.control_blocks import record_map
from sglc.frontend.tracing.interpreter.data import operand, pure_call
from sglc.frontend.values.symbolic import Symbolic, SymbolicList, symbol
from sglc.ir.core import Value


def over(frame: CallFrame, source: Any, body: Callable[[Any], Any]) -> Any:
    """The list of what `body` gives for each item of `source`.

    Raises:
        GraphBreak: `body` changes what is outside of it, or gives no data.
    """
    if not isinstance(source, SymbolicList):
        source = pure_call(frame.tracer, "list", source)

    def data(item: Any) -> Any:
        made = body(item)
        if isinstance(made, str | Symbolic):
            return made
        tree = operand(frame.tracer, made, "map")
        return symbol(tree) if isinstance(tree, Value) else made

    return record_map(frame.tracer, source, data, frame.loc())


def callback(frame: CallFrame, function: Any) -> Any:
    """A function that Python's own code will call, so that each call is classified."""
    if function is None or isinstance(function, Closure):
        return function
    return frame.tracer.enter(function, frame.loc())
