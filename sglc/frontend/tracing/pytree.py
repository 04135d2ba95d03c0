"""Python values as trees of the IR, and back: what a block stores, returns, or gives to a tool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from sglc.errors import Loc
from sglc.frontend.outputs.output_form import OutputParser
from sglc.frontend.program.instance import Gathered, GatheredVariables, Scoped, Variable, first, is_typed
from sglc.frontend.values.block_exit import Opaque, Stored, Unsettled
from sglc.frontend.values.graph_breaks import NO_DATA, GraphBreak
from sglc.frontend.values.recorded import Generated
from sglc.frontend.values.symbolic import (
    SymbolicBool,
    SymbolicJson,
    SymbolicList,
    SymbolicText,
    Tracing,
    joined,
    symbol,
)
from sglc.ir.core import NOWHERE, Tree, Value


def tree_of(tracing: Tracing, item: Any, loc: Loc, what: str) -> Tree:
    """`item` as plain data with recorded values in it.

    Args:
        what: what is done with it, for the graph break: "returned", "given to a tool".

    Raises:
        GraphBreak: it holds something that is no data.
    """
    try:
        return _tree(tracing, item, loc)
    except _NoData as error:
        raise GraphBreak(f"a `{type(error.args[0]).__name__}` is {what}", loc, NO_DATA) from None


def leaf_of(tracing: Tracing, variable: Variable, name: str) -> Tree | Opaque | Unsettled:
    """A variable of a state as plain data; what is none stays the object that it is."""
    if isinstance(variable, Unsettled):
        return replace(variable, name=name)
    try:
        return _tree(tracing, variable, NOWHERE)
    except _NoData:
        return Opaque(variable, tuple(_recorded(variable)))


def items_of(stored: Stored) -> Variable:
    """A variable as a state keeps it."""
    if stored.kept:
        return stored.item
    return stored.leaf.item if isinstance(stored.leaf, Opaque) else unwrapped(stored.leaf)


def unwrapped(tree: Any) -> Any:
    """A tree as the program's code sees it."""
    match tree:
        case Value():
            return symbol(tree)
        case tuple():
            return [unwrapped(part) for part in tree]
        case dict():
            return {key: unwrapped(part) for key, part in tree.items()}
        case _:
            return tree


class _NoData(Exception):
    """An object is no data, such as one of a class of its own: a copy would be something else."""


def _tree(tracing: Tracing, item: Any, loc: Loc) -> Tree:
    match item:
        case Generated(parser=None, many=False):
            return item.value
        case None | str() | bool() | int() | float() if type(item) in (type(None), str, bool, int, float):
            return item
        case SymbolicText():
            return tracing.operand(item, loc)
        case SymbolicBool() | SymbolicList() | SymbolicJson():
            return item.value
        case Generated(parser=OutputParser() as parser, many=False):
            return _tree(tracing, tracing.parsed(parser, SymbolicText((item.value,)), loc), loc)
        case Gathered(value=Value() as value) if not is_typed(item):
            return value
        case Gathered():
            return tuple([_tree(tracing, entry, loc) for entry in item.entries])
        case GatheredVariables():
            return {key: _tree(tracing, part, loc) for key, part in item.variables.items()}
        case Scoped() if all(part.kind in ("text", "generated") for part in item.parts):
            pieces: list[Any] = []
            for part in item.parts:
                made = part.item
                pieces.append(SymbolicText((made.value,)) if isinstance(made, Generated) else first(made))
            return tracing.operand(joined(tuple(pieces)), loc)
        case Scoped():
            return tracing.operand(tracing.text_of(item.end.value, item.begin.value, loc), loc)
        case dict() if type(item) is dict and all(type(key) is str for key in item):
            return {key: _tree(tracing, part, loc) for key, part in item.items()}
        case list() | tuple() if type(item) in (list, tuple):
            return tuple([_tree(tracing, part, loc) for part in item])
        case _:
            raise _NoData(item)


def _recorded(variable: Variable) -> Iterator[Value]:
    """The recorded values that a variable holds."""
    held: Iterable[Any] = ()
    match variable:
        case Value():
            yield variable
        case Generated() | SymbolicBool() | SymbolicList() | SymbolicJson():
            yield variable.value
        case SymbolicText():
            held = variable.parts
        case Gathered():
            held = variable.entries
        case Scoped():
            held = [part.item for part in variable.parts]
        case list() | tuple():
            held = variable
        case dict():
            held = variable.values()
    for item in held:
        yield from _recorded(item)
