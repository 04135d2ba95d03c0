"""Functions of Python's own: on what is known they are called, on data they are ops of the program."""

from __future__ import annotations

import re
import string
from collections import deque
from collections.abc import Callable, Mapping
from functools import reduce
from types import FunctionType
from typing import Any

from sglc.frontend.tracing.call_frame import CallFrame
from sglc.frontend.tracing.interpreter.data import (
    OnceOver,
    characters,
    common_kind,
    compressed,
    entries,
    holds_symbols,
    is_known,
    is_known_code,
    is_plain,
    kind_of,
    listed,
    over,
    pure_call,
    refuse_foreign,
    settled,
    undeclared,
    unrolled,
    whole,
)
from sglc.frontend.tracing.interpreter.operations import attribute, truth
from sglc.frontend.tracing.reads import VIEWS
from sglc.frontend.values.graph_breaks import CALLBACK, FOREIGN, ITERATION, KEY, METHOD, OTHER, GraphBreak
from sglc.frontend.values.symbolic import Symbolic, SymbolicJson, SymbolicList, SymbolicText, concrete
from sglc.ir.pure import TEXTS, gives_iterator, name_of


def python_call(frame: CallFrame, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
    """A call of a function, or a class, of Python's own.

    Raises:
        GraphBreak: it is none that is known to be harmless.
    """
    if (special := _SPECIAL.get(function)) is not None:
        return special(frame, args, named)
    name = name_of(function)
    if not name and function not in _ON_KNOWN:
        raise undeclared(frame, function)
    refuse_foreign(frame.tracer, f"`{name or function.__name__}`", *args, *named.values())
    if "key" in named and args and is_known(args[0]):
        args = [unrolled(frame.tracer, args[0]), *args[1:]]
    if function in (list, tuple, dict, iter) and len(args) == 1 and is_known(args[0]):
        if function is dict and kind_of(args[0]) is dict:
            return entries(frame.tracer, args[0])
        return function(unrolled(frame.tracer, args[0]))
    if name and goes_through(function):  # what is listed sees every item of an iterator
        args = [list(a) if isinstance(a, (*VIEWS, deque)) or hasattr(type(a), "__next__") else a for a in args]
    args = [settled(arg) for arg in args]
    if function in (sorted, max, min) and ("key" in named or holds_symbols(args)):
        return arranged(frame, function.__name__, args[0] if len(args) == 1 else args, named)
    if not (any(map(holds_symbols, args)) or any(map(holds_symbols, named.values()))):
        return function(*args, **named)
    if not name or any(callable(item) for item in (*args, *named.values()) if not isinstance(item, type)):
        raise GraphBreak(f"`{name or function.__name__}` calls back", frame.loc(), CALLBACK)
    if function is str and len(args) == 1 and isinstance(args[0], SymbolicText):
        return args[0]
    if function in (list, tuple) and isinstance(args[0], list | tuple):
        return function(args[0])
    if function in (set, frozenset) and isinstance(args[0], tuple):
        args = [list(args[0])]
    if function is bool and not isinstance(args[0], Symbolic):
        return truth(frame, args[0])
    kind: Any = None
    if function in (sum, abs) and not named:
        kinds = {kind_of(item) for item in (args[0] if isinstance(args[0], list | tuple) else args)}
        kind = float if kinds == {float} else int if kinds <= {int, bool} else object
    if function is round and len(args) > 1:
        kind = object
    if name == "re.findall":
        pattern = args[0] if isinstance(args[0], re.Pattern) else re.compile(args[0], *args[2:], **named)
        kind = TEXTS if pattern.groups < 2 else list
    if name.startswith("re.") and args and isinstance(args[0], re.Pattern):
        pattern, args = args[0], args[1:]
        named["flags"] = int(pattern.flags) & ~re.UNICODE.value
        args = [pattern.pattern, *args]
    if named.get("flags") is not None:
        named["flags"] = int(named["flags"])
    args = [int(arg) if isinstance(arg, re.RegexFlag) else arg for arg in args]
    made = pure_call(frame.tracer, name, *args, kind=kind, named=named)
    return OnceOver(made) if gives_iterator(name) else made


_THROUGH = (all, any, dict, enumerate, filter, list, map, max, min, set, frozenset, sorted, sum, tuple, zip)
_THROUGH_OF = ("collections.", "dict.fromkeys", "itertools.", "math.", "statistics.")


def goes_through(function: Any) -> bool:
    """Whether a function of Python's goes through what it is given."""
    return any(function is one for one in _THROUGH) or name_of(function).startswith(_THROUGH_OF)


def arranged(frame: CallFrame, how: str, items: Any, named: dict[str, Any]) -> Any:
    """`sorted`, `max` or `min`, by keys that are worked out beforehand."""
    key = named.get("key")
    given = (named["reverse"],) if "reverse" in named else ()
    if isinstance(items, Symbolic):
        if key is None:
            return pure_call(frame.tracer, how, items, named=named)
        keys = over(frame, items, frame.tracer.enter(key, frame.loc()))
        one = list if how == "sorted" else str if isinstance(items, SymbolicList) else object
        return pure_call(frame.tracer, "sglc.arrange", how, items, keys, *given, kind=one)
    rows = list(listed(frame.tracer, items))
    keys = rows if key is None else [frame.tracer.enter(key, frame.loc())(row) for row in rows]
    others = {name: item for name, item in named.items() if name != "key"}
    if not holds_symbols(keys):
        refuse_foreign(frame.tracer, f"`{how}`", *keys)
        order: Any = range(len(rows))
        if how == "sorted":
            return [rows[at] for at in sorted(order, key=lambda at: keys[at], **others)]
        chosen: Any = max if how == "max" else min
        return rows[chosen(order, key=lambda at: keys[at])] if rows else chosen(rows, **others)
    one = list if how == "sorted" else common_kind(rows)
    if key is None:
        made = pure_call(frame.tracer, how, rows, kind=None if how == "sorted" else one, named=others)
    elif others.keys() - {"reverse"} or not is_plain(rows):
        hint = "arrange texts, numbers or tuples of them instead of the objects"
        raise GraphBreak(f"`{how}` of objects by values that only a run knows", frame.loc(), CALLBACK, hint)
    else:
        made = pure_call(frame.tracer, "sglc.arrange", how, rows, keys, *given, kind=one)
    if how != "sorted":
        return made
    kind = common_kind(rows)  # how many items there are is known, so that the list is the program's own
    kind = kind if kind in (str, int, float, bool) else object
    return [pure_call(frame.tracer, "operator.getitem", made, at, kind=kind) for at in range(len(rows))]


def _isinstance(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> Any:
    value, kinds = args
    if is_known(value):
        whole(frame.tracer, value)
    every = kinds if isinstance(kinds, tuple) else (kinds,)
    _asked(frame, "isinstance", every)
    if any(getattr(type(kind), "__instancecheck__", None) is not type.__instancecheck__ for kind in every):
        refuse_foreign(frame.tracer, "`isinstance`", value)
    if not isinstance(value, Symbolic):
        return isinstance(value, kinds)
    kind = kind_of(value)
    if kind is not object:
        return issubclass(kind, kinds)
    names = [each.__name__ for each in every]
    if any(each.__module__ != "builtins" for each in every):
        value.observe(METHOD, "`isinstance`")
    return pure_call(frame.tracer, "sglc.isinstance", value, names)


def _issubclass(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> Any:
    kind, kinds = args
    _asked(frame, "issubclass", kinds if isinstance(kinds, tuple) else (kinds,))
    return issubclass(kind, kinds)


def _asked(frame: CallFrame, name: str, kinds: tuple[Any, ...]) -> None:
    """Stop before Python asks code of the user's what belongs to these classes."""
    for kind in kinds:
        frame.tracer.outside.look_up_class(type(kind))
        asks = getattr(type(kind), f"__{name.removeprefix('is')}check__", None)
        if isinstance(asks, FunctionType) and not is_known_code(asks):
            raise GraphBreak(f"`{name}` of `{kind.__name__}` could run code of its own", frame.loc(), FOREIGN)


def _type(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> Any:
    (value,) = args
    kind = kind_of(value)
    if is_known(value):
        whole(frame.tracer, value)
    if kind is object and isinstance(value, Symbolic):
        value.observe(METHOD, "`type(...)`")
    return kind


def _quantified(frame: CallFrame, args: list[Any], name: str, ends: bool) -> Any:
    if isinstance(args[0], Symbolic) and not is_known(args[0]):
        return pure_call(frame.tracer, name, args[0])
    return next((ends for item in listed(frame.tracer, args[0]) if truth(frame, item) is ends), not ends)


def _reduce(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> Any:
    items = listed(frame.tracer, args[1])
    return reduce(frame.tracer.enter(args[0], frame.loc()), items, *args[2:])


def _itself(item: Any) -> Any:
    return item


def _each(function: Callable[..., Any]) -> Callable[[CallFrame, list[Any], dict[str, Any]], Any]:
    def made(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> Any:
        plain = args[0] is None and function is filter
        called = _itself if plain else frame.tracer.enter(args[0], frame.loc())
        items = characters(frame.tracer, args[1]) if len(args) == 2 else None
        if isinstance(items, SymbolicList | SymbolicJson) and not is_known(items):
            made = over(frame, items, called)
            return OnceOver(made if function is map else compressed(frame.tracer, items, made))
        each = called if function is map else lambda item: truth(frame, called(item))
        return function(each, *(listed(frame.tracer, arg) for arg in args[1:]))

    return made


def _gone_through(
    function: Callable[..., Any], name: str
) -> Callable[[CallFrame, list[Any], dict[str, Any]], Any]:
    """`zip`, `enumerate`, `reversed`: of lists that only a run knows, a list that only a run knows."""

    def made(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> Any:
        refuse_foreign(frame.tracer, f"`{function.__name__}`", *args, *named.values())
        if function is range:
            args = [arg.observe(ITERATION, "`range(...)`") if is_known(arg) else arg for arg in args]
        elif all(is_known(arg) for arg in args if isinstance(arg, Symbolic)):
            args = [unrolled(frame.tracer, arg) if is_known(arg) else arg for arg in args]
            if function is enumerate and is_known(named.get("start")):
                named = {"start": named["start"].observe(ITERATION, "`enumerate(...)`")}
        if any(isinstance(arg, Symbolic) for arg in args):
            if named.pop("strict", False):
                raise GraphBreak("`zip(strict=True)` needs lengths that only a run knows", frame.loc(), METHOD)
            items = pure_call(frame.tracer, name, *args, named=named)
            return items if function is range else OnceOver(items)
        return function(*args, **named)

    return made


def _attribute_named(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> Any:
    value, name, *default = args
    try:
        return attribute(frame, value, concrete(name, OTHER))
    except AttributeError:
        if default:
            return default[0]
        raise


def _has_attribute(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> Any:
    try:
        attribute(frame, args[0], concrete(args[1], OTHER))
    except AttributeError:
        return False
    return True


def _next(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> Any:
    iterator, *default = args
    if isinstance(iterator, OnceOver):
        if iterator.kept is None:
            return pure_call(frame.tracer, "sglc.first", iterator.items, *default)
        iterator = iterator.kept()
    if isinstance(iterator, Symbolic):
        iterator = iterator.observe(ITERATION, "`next(...)`")
    refuse_foreign(frame.tracer, "`next`", iterator)
    frame.tracer.about_to_change()
    return next(iterator, *default)


def _decided(key: Any) -> Any:
    """A key as Python has it, where that is known or is one of finitely many texts."""
    finite = isinstance(key, SymbolicText) and key.is_decidable()
    return key.observe(KEY) if finite or is_known(key) else key


def _from_keys(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> Any:
    if not args:
        return dict.fromkeys(*args)
    keys, *value = _decided(args[0]), *args[1:]
    if not isinstance(keys, Symbolic):
        keys = list(map(_decided, listed(frame.tracer, keys)))
    if isinstance(keys, Symbolic) or any(isinstance(k, Symbolic | tuple) and holds_symbols(k) for k in keys):
        return pure_call(frame.tracer, "dict.fromkeys", keys, *value, named=named)
    refuse_foreign(frame.tracer, "`dict.fromkeys`", keys)
    return dict.fromkeys(keys, *value, **named)


_SPECIAL: Mapping[Any, Callable[[CallFrame, list[Any], dict[str, Any]], Any]] = {
    isinstance: _isinstance,
    issubclass: _issubclass,
    type: _type,
    any: lambda frame, args, named: _quantified(frame, args, "any", True),
    all: lambda frame, args, named: _quantified(frame, args, "all", False),
    map: _each(map),
    filter: _each(filter),
    reduce: _reduce,
    zip: _gone_through(zip, "sglc.zip"),
    enumerate: _gone_through(enumerate, "sglc.enumerate"),
    reversed: _gone_through(reversed, "sglc.reversed"),
    range: _gone_through(range, "sglc.range"),
    string.Template: lambda frame, args, named: string.Template(*args),
    getattr: _attribute_named,
    hasattr: _has_attribute,
    next: _next,
    dict.fromkeys: _from_keys,
}
# What is made of known values only.
_ON_KNOWN = frozenset((iter, slice, bytes, callable, complex, object, re.compile))
