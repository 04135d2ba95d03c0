"""Methods of Python's own objects, and of values that only a run knows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from sglc.frontend.tracing.call_frame import CallFrame
from sglc.frontend.tracing.interpreter.data import (
    OnceOver,
    holds_symbols,
    is_known,
    is_plain,
    kind_of,
    listed,
    pure_call,
    refuse_foreign,
    settled,
    undeclared,
    unrolled,
)
from sglc.frontend.tracing.interpreter.python_calls import arranged, python_call
from sglc.frontend.values.graph_breaks import METHOD, OUTSIDE, GraphBreak
from sglc.frontend.values.known import computed
from sglc.frontend.values.symbolic import Symbolic, SymbolicText, joined
from sglc.ir.core import Type
from sglc.ir.ops import Lower, Strip
from sglc.ir.pure import CALLABLE, METHODS, name_of

_CHANGING: Mapping[type, frozenset[str]] = {
    list: frozenset(["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"]),
    dict: frozenset(["clear", "pop", "popitem", "setdefault", "update"]),
    set: frozenset([
        "add", "clear", "difference_update", "discard", "intersection_update", "pop", "remove",
        "symmetric_difference_update", "update",
    ]),
}  # fmt: skip
_COMPARING = ("count", "index", "remove", "sort")  # what a list holds with what they are given, or each other
_ANY_CHANGE = frozenset().union(*_CHANGING.values()) | {"appendleft", "popleft", "subtract", "move_to_end"}


def method(frame: CallFrame, owner: Any, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
    """A method of an object of Python's own."""
    name = function.__name__
    kind = type(owner)
    if name in _COMPARING and not isinstance(owner, str | bytes):
        refuse_foreign(frame.tracer, f"`.{name}`", owner)
    if name in _CHANGING.get(kind, ()) or (kind.__module__ == "collections" and name in _ANY_CHANGE):
        frame.tracer.change(owner, f"`.{name}(...)`")
        if name == "sort" and holds_symbols(owner):
            owner[:] = arranged(frame, "sorted", list(owner), named)
            return None
        refuse_foreign(frame.tracer, f"`.{name}`", *args)
        if args and _looks_into(owner, name, args[0]):
            frame.tracer.may_fail(f"`.{name}(...)`")
        if named.get("key") is not None:
            named = {**named, "key": frame.tracer.enter(named["key"], frame.loc())}
        return function(*args, **named)
    if name_of(function):  # `date.fromisoformat`, of a class
        return python_call(frame, function, args, named)
    if isinstance(owner, re.Pattern):
        return _pattern(frame, owner, name, args, named)
    if isinstance(owner, type) and owner in METHODS and name in ("fromkeys", "maketrans", "fromhex"):
        return function(*args, **named)
    others = args[1:] if name == "get" else map(settled, args[1:])  # a default is given as it is
    owner, args = settled(owner), [*map(settled, args[:1]), *others]
    function = getattr(owner, name)
    symbolic = any(map(holds_symbols, args)) or any(map(holds_symbols, named.values()))
    if isinstance(owner, str) and name == "join" and args:
        return _joined(frame, owner, args[0])
    held = holds_symbols(owner) and (name in ("index", "count") or symbolic)
    if (symbolic and isinstance(owner, str | bytes | int | float)) or held:
        kinds = f"{kind.__name__}.{name}"
        if name not in METHODS.get(kind, {}):
            reason = f"`.{name}` needs a text that only exists when the program runs"
            raise GraphBreak(reason, frame.loc(), METHOD)
        return pure_call(frame.tracer, kinds, owner, *args, named=named)
    if isinstance(owner, dict) and args and isinstance(args[0], Symbolic) and name == "get" and is_plain(owner):
        return pure_call(frame.tracer, "dict.get", owner, *args)
    known = kind in METHODS or kind.__module__ in ("collections", "datetime", "re", "decimal", "fractions")
    if not known and not isinstance(owner, tuple | range):
        raise undeclared(frame, function)
    for arg in (*args, *named.values()):
        refuse_foreign(frame.tracer, f"`.{name}`", arg)
        if isinstance(arg, Symbolic):
            arg.observe(METHOD, f"`.{name}`")
    return function(*args, **named)


def _looks_into(owner: Any, name: str, given: Any) -> bool:
    """Whether a change depends on what only a run knows, and does not just keep it."""
    if name in ("append", "appendleft"):
        return False
    if name == "extend" or (name == "update" and type(owner) is dict and type(given) is dict):
        return isinstance(given, Symbolic)
    return holds_symbols(given)


def _pattern(
    frame: CallFrame, pattern: re.Pattern[Any], name: str, args: list[Any], named: dict[str, Any]
) -> Any:
    """A method of a compiled pattern as the function of `re`."""
    if not any(map(holds_symbols, args)):
        return getattr(pattern, name)(*args, **named)
    function = getattr(re, name, None)
    if function is None:
        raise undeclared(frame, getattr(pattern, name))
    return python_call(frame, function, [pattern, *args], named)


def _joined(frame: CallFrame, separator: str, items: Any) -> Any:
    """`separator.join(items)`."""
    if isinstance(items, Symbolic):
        return pure_call(frame.tracer, "str.join", separator, items)
    texts = list(listed(frame.tracer, items))
    if not any(isinstance(item, Symbolic) for item in texts):
        return separator.join(texts)
    if all(isinstance(item, str | SymbolicText) for item in texts):
        return joined(tuple([piece for item in texts for piece in (separator, item)][1:]))
    return pure_call(frame.tracer, "str.join", separator, texts)


def data_method(frame: CallFrame, value: Symbolic, name: str, args: list[Any], named: dict[str, Any]) -> Any:
    """A method of something that only a run knows."""
    if is_known(value) and kind_of(value) is dict and name in ("items", "keys", "values") and not args:
        kept = partial(pure_call, frame.tracer, f"dict.{name}", value)
        keys = unrolled(frame.tracer, value)
        if name == "keys":
            return OnceOver(keys, kept)
        held = [pure_call(frame.tracer, "operator.getitem", value, key) for key in keys]
        return OnceOver(held if name == "values" else list(zip(keys, held, strict=True)), kept)
    if isinstance(value, SymbolicText):
        known = value.settled()
        if known is not None:
            return method(frame, known, getattr(known, name), args, named)
        if name in ("strip", "lower") and not args and not named:
            kind, loc = Strip if name == "strip" else Lower, frame.loc()
            made = frame.tracer.recorder.emit(Type.TEXT, kind, frame.tracer.operand(value, loc), loc=loc)
            return SymbolicText((made,), computed(f"str.{name}", (value,), {}))
    kind = kind_of(value)
    if kind in METHODS and name in METHODS[kind]:
        gives = METHODS[kind][name].gives
        return pure_call(frame.tracer, f"{kind.__name__}.{name}", value, *args, kind=gives, named=named)
    if name in (_CHANGING.get(kind, ()) if kind in METHODS else _ANY_CHANGE):
        reason = f"`.{name}(...)` changes a value that only exists when the program runs"
        raise GraphBreak(reason, frame.loc(), OUTSIDE)
    if hasattr(kind, name) if kind in METHODS else name not in CALLABLE:
        raise GraphBreak(f"`.{name}` needs a value that only exists when the program runs", frame.loc(), METHOD)
    if kind in METHODS:
        if isinstance(value, SymbolicText):
            value.refuse_argument(METHOD, f"`.{name}`")
        raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'")
    return pure_call(frame.tracer, "sglc.method", value, name, *args, kind=object, named=named)
