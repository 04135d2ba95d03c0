"""Arguments spelled as text: plain values exactly, and facts about arguments that a run can check.

A value is spelled as Python would write it (`{'a': (1, 2.5)}`, `float('nan')`), a fact as an expression over
arguments: their names, literals, and functions of `ir.pure` (`operator.gt(len(xs), 2)`).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Any

from sglc.ir.depth import MAX_DEPTH
from sglc.ir.pure import PURE, Instance, function_of, type_name

_ATOMS = (type(None), bool, int, str, bytes)


def spell(value: Any, depth: int = 0) -> str | None:
    """A value as text: equal for equal values of equal types; None for what cannot be written."""
    kind = type(value)
    if depth > MAX_DEPTH:
        return None
    if kind in _ATOMS:
        return repr(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if kind is dict:
        pairs = [(spell(key, depth + 1), spell(item, depth + 1)) for key, item in value.items()]
        whole = not any(key is None or item is None for key, item in pairs)
        return "{" + ", ".join(f"{key}: {item}" for key, item in pairs) + "}" if whole else None
    if kind in (list, tuple, set, frozenset):
        parts = [spell(part, depth + 1) for part in value]
        spelled = [part for part in parts if part is not None]
        return _sequence(kind, spelled) if len(spelled) == len(parts) else None
    return _instance(value, depth)


def _sequence(kind: type, parts: list[str]) -> str:
    inner = ", ".join(parts if kind in (list, tuple) else sorted(parts))
    if kind is tuple:
        return f"({inner},)" if len(parts) == 1 else f"({inner})"
    return f"[{inner}]" if kind is list else f"{kind.__name__}([{inner}])"


def _instance(value: Any, depth: int) -> str | None:
    """A member of an enumeration, or an object with plain fields: by its class and what it holds."""
    if isinstance(value, Enum):
        held: Any = {"name": value._name_, "value": value._value_}
    elif isinstance(value, Instance):
        held = dict(value.fields)
    else:
        held = fields_of(value)
    spelled = None if held is None else spell(held, depth + 1)
    return None if spelled is None else f"sglc.instance({type_name(value)!r}, {spelled})"


def fields_of(value: Any) -> dict[str, Any] | None:
    """What an object of a dataclass, a named tuple or a pydantic model holds; None for any other."""
    kind = type(value)
    names = getattr(kind, "__dataclass_fields__", None) or getattr(kind, "_fields", None)
    names = names or getattr(kind, "__pydantic_fields__", None)
    if not isinstance(names, Mapping | tuple):
        return None
    read = function_of("sglc.attribute")
    return {name: read(value, name) for name in names}


def held_by(value: Any) -> str | None:
    """What objects of a value's class hold, as text: names of fields; of an enumeration the members' values."""
    if isinstance(value, Enum):
        members = {member._name_: member._value_ for member in type(value)}
        return spell({name: held for name, held in members.items() if spell(held) is not None})
    held = value.fields if isinstance(value, Instance) else fields_of(value)
    return None if held is None else spell([*held])


def holds(fact: str, given: Mapping[str, Any]) -> Any:
    """What a fact is for arguments.

    Raises:
        ValueError: it is no fact.
        Exception: whatever its functions raise.
    """
    return _value(_parsed(fact), given)


_SIGNS = {"eq": ast.Eq, "ne": ast.NotEq, "lt": ast.Lt, "le": ast.LtE, "gt": ast.Gt, "ge": ast.GtE}


class _Readable(ast.NodeTransformer):
    """Calls of functions of operators become the operators."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        match ast.unparse(node.func).split("."), node.args:
            case ["operator", "getitem"], [value, place]:
                return ast.Subscript(value, place)
            case ["operator", "contains"], [value, item]:
                return ast.Compare(item, [ast.In()], [value])
            case ["operator", name], [left, right] if sign := _SIGNS.get(name):
                return ast.Compare(left, [sign()], [right])
            case ["operator", "not_"], [value]:
                return ast.UnaryOp(ast.Not(), value)
            case ["sglc", "attribute"], [value, ast.Constant(value=str(name))]:
                return ast.Attribute(value, name)
            case ["sglc", "is_none"], [value]:
                return ast.Compare(value, [ast.Is()], [ast.Constant(None)])
            case ["sglc", name], _:
                node.func = ast.Name(name)
        return node


@lru_cache(1 << 10)  # calls without a plan come with the same one again and again
def readable(fact: str) -> str:
    """A fact as people write it, `xs[0] > 2` for `operator.gt(operator.getitem(xs, 0), 2)`; else the text."""
    try:
        return ast.unparse(_Readable().visit(ast.parse(fact, mode="eval")))
    except (SyntaxError, RecursionError, MemoryError):
        return fact


def value_of(spelled: str) -> Any:
    """The value that `spell` wrote."""
    return holds(spelled, {})


def names_in(fact: str) -> set[str]:
    """The arguments that a fact, which is checked here, is about.

    Raises:
        ValueError: it is no fact.
    """
    found: set[str] = set()
    _check(_parsed(fact), found)
    return found


@lru_cache(1 << 14)  # a plan asks the same of every row
def _parsed(fact: str) -> ast.expr:
    try:
        return ast.parse(fact, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"`{fact}` is no fact: {error}") from None


@lru_cache(1 << 14)  # of parsed facts, which are the same nodes again
def _name_of(function: ast.expr) -> str:
    return ast.unparse(function)


def _parts(node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.Constant():
            return []
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float()) as number):
            return [number]
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return parts
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return [*(key for key in keys if key is not None), *values]
        case ast.Call(func=func, args=args, keywords=keywords) if all(each.arg for each in keywords):
            if ast.unparse(func) in PURE:
                return [*args, *(each.value for each in keywords)]
    raise ValueError(f"`{ast.unparse(node)}` has no place in a fact")


def _check(node: ast.expr, found: set[str]) -> None:
    if isinstance(node, ast.Name):
        found.add(node.id)
        return
    for part in _parts(node):
        _check(part, found)


def _value(node: ast.expr, given: Mapping[str, Any]) -> Any:
    match node:
        case ast.Name(id=name):
            if name not in given:
                raise ValueError(f"`{name}` is no argument")
            return given[name]
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=parts):
            return [_value(part, given) for part in parts]
        case ast.Tuple(elts=parts):
            return tuple([_value(part, given) for part in parts])
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {_value(key, given): _value(item, given) for key, item in pairs if key is not None}
        case ast.Call(func=func, args=args, keywords=keywords):
            function = function_of(_name_of(func))
            named = {each.arg: _value(each.value, given) for each in keywords if each.arg}
            return function(*[_value(arg, given) for arg in args], **named)
        case _:
            raise ValueError(f"`{ast.unparse(node)}` has no place in a fact")
