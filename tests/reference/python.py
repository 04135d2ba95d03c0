"""Python's own functions, which programs name, in the reference: they give objects of any type.

The names are those of `sglc.ir.pure`; nothing else is shared with what runs plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglc.errors import Loc, RunError
from sglc.ir.pure import PURE, function_of
from sglc.ir.values import Plain, item_texts

# Tools that everybody has: they are noted as calls of tools are, and give nothing.
EFFECTS = ("print", "logging", "warnings.warn")


@dataclass(frozen=True, slots=True)
class Object:
    """What such a function gave, where the program knows no more of it than that it is data."""

    item: Any


def is_python(name: str) -> bool:
    """Whether a function is Python's own."""
    return name in PURE or name in EFFECTS


def python_value(name: str, args: Any, named: Any, gives: str, loc: Loc) -> Any:
    """What the function gives.

    Raises:
        RunError: SGLC401, what it raises.
    """
    if name in EFFECTS:
        return None
    try:
        made = function_of(name)(*map(as_python, args), **{key: as_python(item) for key, item in named.items()})
    except Exception as error:
        raise RunError("SGLC401", f"`{type(error).__name__}`: {error}", loc) from error
    match gives:
        case "text" | "bool":
            assert isinstance(made, str if gives == "text" else bool), (name, made)
            return made
        case "list":
            assert all(isinstance(item, str) for item in made), (name, made)
            return tuple(made)
        case _:
            return Object(made)


def as_python(value: Any) -> Any:
    """A value as Python's functions take it: JSON with lists."""
    match value:
        case Object():
            return value.item
        case tuple():
            return [as_python(part) for part in value]
        case Mapping():
            return {key: as_python(part) for key, part in value.items()}
        case _:
            return value


def as_plain(value: Any) -> Any:
    """A value as results are compared: lists are tuples, whatever made them."""
    match value:
        case Object():
            return as_plain(value.item)
        case list() | tuple():
            return tuple(map(as_plain, value))
        case Mapping():
            return {key: as_plain(part) for key, part in value.items()}
        case _:
            return value


def items_of(whole: Any, loc: Loc) -> Sequence[Plain | Object]:
    """What a `map` runs over: the texts of a list, or the items of an object."""
    return [Object(item) for item in whole.item] if isinstance(whole, Object) else item_texts(whole, loc)
