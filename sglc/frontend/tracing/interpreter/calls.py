"""Calls: each is classified before it is made, and what is not known to be harmless stops the tracing."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import inspect
import logging
import re
import site
import string
import sys
import sysconfig
import warnings
from collections.abc import Callable, Mapping
from enum import EnumMeta
from functools import partial, reduce
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, MethodWrapperType
from typing import Any

from sglc.frontend.language.function import Definition
from sglc.frontend.tracing import control
from sglc.frontend.tracing.call_frame import CallFrame, Closure, closure_of
from sglc.frontend.tracing.interpreter.data import (
    entries,
    holds_symbols,
    is_known,
    is_ours,
    is_plain,
    kind_of,
    listed,
    operand,
    pure_call,
    refuse_foreign,
    unrolled,
    whole,
)
from sglc.frontend.tracing.interpreter.each import over
from sglc.frontend.tracing.interpreter.operations import DataMethod, as_text, attribute, truth
from sglc.frontend.tracing.tools import Declared
from sglc.frontend.values.graph_breaks import (
    ASYNC,
    CALLBACK,
    ITERATION,
    METHOD,
    NO_DATA,
    NO_SOURCE,
    OUTSIDE,
    UNDECLARED,
    GraphBreak,
)
from sglc.frontend.values.symbolic import (
    Symbolic,
    SymbolicBool,
    SymbolicJson,
    SymbolicList,
    SymbolicText,
    joined,
)
from sglc.ir.core import Type
from sglc.ir.ops import Tool
from sglc.ir.pure import METHODS, TEXTS, name_of

_CHANGING: Mapping[type, frozenset[str]] = {
    list: frozenset(["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"]),
    dict: frozenset(["clear", "pop", "popitem", "setdefault", "update"]),
    set: frozenset(
        [
            "add",
            "clear",
            "difference_update",
            "discard",
            "intersection_update",
            "pop",
            "remove",
            "symmetric_difference_update",
            "update",
        ]
    ),
}
# These see all items of an iterator, one after another: they may be had beforehand.
_WHOLE = (list, tuple, set, frozenset, dict, sorted, sum, max, min)
_MODULE_PATHS = tuple({path for path in (*site.getsitepackages(), *sysconfig.get_paths().values()) if path})
_CONTROL = frozenset(vars(control).get("__all__", ())) | {
    "cond", "switch", "loop", "map", "call", "eq", "contains", "not_", "parse_json",
}  # fmt: skip


def call(frame: CallFrame, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
    """Make a call.

    Raises:
        GraphBreak: before a call that is not known to be harmless.
    """
    owner = getattr(function, "__self__", None) if not isinstance(function, DataMethod) else None
    match function:
        case DataMethod():
            return _data_method(frame, function.value, function.name, args, named)
        case Closure():
            return function(*args, **named)
        case Declared():
            return _declared(frame, function, args, named)
        case partial():
            return call(frame, function.func, [*function.args, *args], {**function.keywords, **named})
        case _ if _is_program(function) or (_is_program(owner) and function.__name__ == "run"):
            frame.tracer.may_fail(f"`{getattr(function, '__name__', 'run')}(...)`")
            return function(*args, **named)
        case _ if is_ours(owner) or is_ours(function) or _is_language(function):
            return _language(frame, function, args, named)
        case MethodType() if isinstance(owner, logging.Logger):
            return _logged(frame, owner, function.__name__, args, named)
        case MethodType() if isinstance(owner, string.Template):
            values = {**(args[0] if args else {}), **named}
            if not holds_symbols(values):
                return function(values)
            return pure_call(
                frame.tracer, "sglc.template", owner.template, function.__name__ != "substitute", values
            )
        case MethodType() if isinstance(function.__func__, FunctionType):
            return call(frame, function.__func__, [owner, *args], named)
        case _ if function is print:
            return _printed(frame, args, named)
        case _ if function is warnings.warn:
            return _effect(frame, "warnings.warn", args[:1], {})
        case FunctionType() if not name_of(function):
            return interpreted(frame, function)(*args, **named)
        case type():
            made = _constructed(frame, function, args, named)
            if made is not _UNKNOWN:
                return made
        case MethodDescriptorType() if args:
            return call(frame, attribute(frame, args[0], function.__name__), args[1:], named)
        case BuiltinFunctionType() | MethodWrapperType() if owner is not None and not inspect.ismodule(owner):
            return _method(frame, owner, function, args, named)
        case _:
            pass
    return _python(frame, function, args, named)


_UNKNOWN = object()


def interpreted(frame: CallFrame, function: FunctionType) -> Callable[..., Any]:
    """A helper of the user's, so that calling it is interpreted.

    Raises:
        GraphBreak: it is not the user's, or has no source.
    """
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        kind = "async def" if inspect.iscoroutinefunction(function) else "generator"
        raise GraphBreak(f"`{function.__name__}` is a {kind} function", frame.loc(), ASYNC)
    file = function.__code__.co_filename
    if file.startswith(_MODULE_PATHS) or not file or file.startswith("<frozen"):
        raise _undeclared(frame, function)
    tracer = frame.tracer
    if function not in tracer.copies:
        try:
            tracer.copies[function] = closure_of(tracer, function)
        except (OSError, SyntaxError) as error:
            reason = f"the source of `{function.__name__}` is not available ({error})"
            raise GraphBreak(reason, frame.loc(), NO_SOURCE) from None
    return tracer.copies[function]


def _undeclared(frame: CallFrame, function: Any) -> GraphBreak:
    name = getattr(function, "__qualname__", type(function).__name__)
    return GraphBreak(f"`{name}(...)` is ordinary Python", frame.loc(), UNDECLARED)


def _is_program(item: Any) -> bool:
    return is_ours(item) and isinstance(getattr(item, "definition", None), Definition)


def _is_language(function: Any) -> bool:
    """Whether it is a function of the language; their modules are this package's."""
    return str(getattr(function, "__module__", "")).startswith("sglc.") and not isinstance(function, Closure)


def _language(frame: CallFrame, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
    """A function of the language, given texts where it wants texts."""
    name = getattr(function, "__name__", "")
    module = str(getattr(function, "__module__", ""))
    if not module.startswith("sglc.frontend.") and not is_ours(getattr(function, "__self__", None)):
        raise _undeclared(frame, function)
    if name in ("parse_json", "get_var", "set_var") or name in _CONTROL:
        if name in ("parse_json", "get_var"):
            frame.tracer.may_fail(f"`{name}(...)`")
        return function(*args, **named)
    return function(
        *(_for_language(frame, name, place, arg) for place, arg in enumerate(args)),
        **{key: _for_language(frame, name, key, item) for key, item in named.items()},
    )


def _for_language(frame: CallFrame, name: str, place: int | str, item: Any) -> Any:
    """An argument of a function of the language: a text, texts to choose from, or what Python needs itself."""
    choices = place == "choices" or (name, place) == ("select", 1)
    if isinstance(item, SymbolicJson | SymbolicList | SymbolicBool):
        if choices and is_known(item) and kind_of(item) in (list, tuple):
            item = unrolled(frame.tracer, item)
        elif not choices and isinstance(item, SymbolicJson) and item.kind in (str, object):
            return as_text(frame, item)
        else:
            return item.observe(NO_DATA, f"`{name}(...)`")
    if isinstance(item, SymbolicText) and is_known(item) and (place == "name" or (name, place) in _NAMES):
        return item.observe(NO_DATA, f"`{name}(...)`")
    if type(item) in (list, tuple):
        return type(item)(_for_language(frame, name, place, part) for part in item)
    return item


# Where the name of a variable is given.
_NAMES = frozenset([(name, 0) for name in ("gen", "gen_int", "gen_string", "select", "var_scope", "section")])


def _declared(frame: CallFrame, function: Declared, args: list[Any], named: dict[str, Any]) -> Any:
    if function.effects:
        frame.tracer.may_fail(f"`{function.function.__name__}(...)`")
    made = function(*args, **named)
    if function.effects:
        frame.tracer.called_tool = function.function.__name__
    return made


# -- effects that everybody knows ------------------------------------------------------------------


def _printed(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> None:
    stream = named.pop("file", None)
    if stream is not None and stream is not sys.stdout and stream is not sys.stderr:
        raise GraphBreak("`print(file=...)` writes somewhere else", frame.loc(), UNDECLARED)
    where = {"error": True} if stream is not None and stream is sys.stderr else {}
    for arg in args:
        refuse_foreign(frame.tracer, arg, "`print`")
    _effect(frame, "print", [arg if is_plain(arg) else str(arg) for arg in args], {**named, **where})


def _logged(
    frame: CallFrame, logger: logging.Logger, name: str, args: list[Any], named: dict[str, Any]
) -> None:
    if name not in ("debug", "info", "warning", "error", "critical") or named:
        raise _undeclared(frame, getattr(logger, name))
    _effect(frame, "logging", [logger.name, name, *args], {})


def _effect(frame: CallFrame, name: str, args: list[Any], named: dict[str, Any]) -> None:
    trees = tuple(operand(frame.tracer, arg, name) for arg in args)
    keywords = {key: operand(frame.tracer, item, name) for key, item in named.items()}
    frame.tracer.emit(Tool(name, trees, keywords, str(Type.JSON), loc=frame.loc()), Type.JSON)


# -- objects ---------------------------------------------------------------------------------------


def _constructed(frame: CallFrame, kind: type, args: list[Any], named: dict[str, Any]) -> Any:
    """An object of a class that only holds what it is given; `_UNKNOWN` for a class of Python's own."""
    if kind is string.Template or kind is type:
        return _UNKNOWN
    if issubclass(kind, BaseException):
        if kind.__module__ == "builtins" or not _own_init(kind):
            return kind(*args, **named)
    elif isinstance(kind, EnumMeta) and len(args) == 1 and "_missing_" not in vars(kind):
        value = (
            args[0].observe(UNDECLARED, f"`{kind.__name__}(...)`") if isinstance(args[0], Symbolic) else args[0]
        )
        return kind(value)
    elif dataclasses.is_dataclass(kind) and not _own_init(kind) and not hasattr(kind, "__post_init__"):
        for field in dataclasses.fields(kind):
            factory = field.default_factory
            if factory is not dataclasses.MISSING and factory not in (list, dict, set, tuple, str, int):
                raise _undeclared(frame, kind)
        return kind(*args, **named)
    elif issubclass(kind, tuple) and hasattr(kind, "_fields") and "__new__" not in _written_in(kind):
        return kind(*args, **named)
    elif kind is contextlib.nullcontext or kind is collections.deque:
        return kind(*args)
    elif kind is collections.defaultdict and args and args[0] in (list, dict, set, int, str, float):
        return kind(*args, **named)
    elif kind.__module__ not in ("builtins", "collections", "datetime", "itertools", "fractions", "decimal"):
        raise _undeclared(frame, kind)
    return _UNKNOWN


def _own_init(kind: type) -> bool:
    made = kind.__init__
    return isinstance(made, FunctionType) and made.__code__.co_filename != "<string>" and (
        "__create_fn__" not in made.__qualname__
    )  # fmt: skip


def _written_in(kind: type) -> set[str]:
    return {name for name, item in vars(kind).items() if isinstance(item, FunctionType) and name != "__new__"}


# -- methods ---------------------------------------------------------------------------------------


def _method(frame: CallFrame, owner: Any, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
    """A method of an object of Python's own."""
    name = function.__name__
    kind = type(owner)
    if name in _CHANGING.get(kind, ()) or (kind.__module__ == "collections" and name in _ANY_CHANGE):
        frame.tracer.change(owner, f"`.{name}(...)`")
        if name == "sort" and holds_symbols(owner):
            owner[:] = listed(frame.tracer, _arranged(frame, "sorted", list(owner), named))
            return None
        for arg in args:
            refuse_foreign(frame.tracer, arg, f"`.{name}`")
        return function(*args, **_callable_keys(frame, named))
    if name_of(function):  # `date.fromisoformat`, of a class
        return _python(frame, function, args, named)
    if isinstance(owner, re.Pattern):
        return _pattern(frame, owner, name, args, named)
    if isinstance(owner, type) and owner in METHODS and name in ("fromkeys", "maketrans", "fromhex"):
        return function(*args, **named)
    symbolic = any(map(holds_symbols, args)) or any(map(holds_symbols, named.values()))
    if isinstance(owner, str) and name == "join" and args:
        return _joined(frame, owner, args[0])
    held = holds_symbols(owner) and (name in ("index", "count") or symbolic)
    if (symbolic and isinstance(owner, str | bytes | int | float)) or held:
        kinds = f"{kind.__name__}.{name}"
        if name not in METHODS.get(kind, {}):
            raise GraphBreak(
                f"`.{name}` needs a text that only exists when the program runs", frame.loc(), METHOD
            )
        return pure_call(frame.tracer, kinds, owner, *args, **named)
    if isinstance(owner, dict) and args and isinstance(args[0], Symbolic) and name == "get" and is_plain(owner):
        return pure_call(frame.tracer, "dict.get", owner, *args)
    known = kind in METHODS or kind.__module__ in ("collections", "datetime", "re", "decimal", "fractions")
    if not known and not isinstance(owner, tuple | range):
        raise _undeclared(frame, function)
    for arg in (*args, *named.values()):
        refuse_foreign(frame.tracer, arg, f"`.{name}`")
        if isinstance(arg, Symbolic):
            arg.observe(METHOD, f"`.{name}`")
    return function(*args, **named)


_ANY_CHANGE = frozenset().union(*_CHANGING.values()) | {"appendleft", "popleft", "subtract", "move_to_end"}


def _callable_keys(frame: CallFrame, named: dict[str, Any]) -> dict[str, Any]:
    return {key: callback(frame, item) if key == "key" else item for key, item in named.items()}


def callback(frame: CallFrame, function: Any) -> Any:
    """A function that Python's own code will call, so that each call is classified."""
    if function is None or isinstance(function, Closure):
        return function
    return lambda *args, **named: call(frame, function, list(args), named)


def _pattern(
    frame: CallFrame, pattern: re.Pattern[Any], name: str, args: list[Any], named: dict[str, Any]
) -> Any:
    """A method of a compiled pattern as the function of `re`."""
    if not any(map(holds_symbols, args)):
        return getattr(pattern, name)(*args, **named)
    function = getattr(re, name, None)
    if function is None:
        raise _undeclared(frame, getattr(pattern, name))
    return _python(frame, function, [pattern, *args], named)


def _joined(frame: CallFrame, separator: str, items: Any) -> Any:
    """`separator.join(items)`."""
    if isinstance(items, Symbolic):
        return pure_call(frame.tracer, "str.join", separator, items)
    texts = list(listed(frame.tracer, items))
    if not any(isinstance(item, Symbolic) for item in texts):
        return separator.join(texts)
    if all(isinstance(item, str | SymbolicText) for item in texts):
        pieces: list[str | SymbolicText] = []
        for i, item in enumerate(texts):
            pieces += [separator, item] if i else [item]
        return joined(tuple(pieces))
    return pure_call(frame.tracer, "str.join", separator, texts)


def _data_method(frame: CallFrame, value: Symbolic, name: str, args: list[Any], named: dict[str, Any]) -> Any:
    """A method of something that only a run knows."""
    if is_known(value) and kind_of(value) is dict and name in ("items", "keys", "values") and not args:
        keys = unrolled(frame.tracer, value)
        if name == "keys":
            return keys
        held = [pure_call(frame.tracer, "operator.getitem", value, key) for key in keys]
        return held if name == "values" else list(zip(keys, held, strict=True))
    if isinstance(value, SymbolicText):
        settled = value.settled()
        if settled is not None:
            return call(frame, getattr(settled, name), args, named)
        if name in ("strip", "lower") and not args and not named:
            return getattr(value, name)()
    kind = kind_of(value)
    if kind in METHODS and name in METHODS[kind]:
        gives = METHODS[kind][name].gives
        return pure_call(frame.tracer, f"{kind.__name__}.{name}", value, *args, kind=gives, **named)
    if kind in METHODS and name in _CHANGING.get(kind, ()):
        raise GraphBreak(
            f"`.{name}(...)` changes a value that only exists when the program runs", frame.loc(), OUTSIDE
        )
    if kind in METHODS and hasattr(kind, name):
        raise GraphBreak(f"`.{name}` needs a value that only exists when the program runs", frame.loc(), METHOD)
    if kind in METHODS:
        raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'")
    if name in _ANY_CHANGE:
        raise GraphBreak(
            f"`.{name}(...)` changes a value that only exists when the program runs", frame.loc(), OUTSIDE
        )
    return pure_call(frame.tracer, "sglc.method", value, name, *args, kind=object, **named)


# -- functions of Python's own ---------------------------------------------------------------------


def _python(frame: CallFrame, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
    special = _SPECIAL.get(function) if _hashable(function) else None
    if special is not None:
        return special(frame, args, named)
    name = name_of(function)
    if not name and function not in _ON_KNOWN:
        raise _undeclared(frame, function)
    for arg in (*args, *named.values()):
        refuse_foreign(frame.tracer, arg, f"`{name or function.__name__}`")
    if "key" in named and args and is_known(args[0]):
        args = [unrolled(frame.tracer, args[0]), *args[1:]]
    if function in (list, tuple, dict, iter) and len(args) == 1 and is_known(args[0]):
        return function(
            entries(frame.tracer, args[0])
            if function is dict and kind_of(args[0]) is dict
            else unrolled(frame.tracer, args[0])
        )
    if function in _WHOLE and args and hasattr(type(args[0]), "__next__"):
        args = [list(args[0]), *args[1:]]
    if function in (sorted, max, min) and ("key" in named or holds_symbols(args)):
        return _arranged(frame, function.__name__, args[0] if len(args) == 1 else args, named)
    if not (any(map(holds_symbols, args)) or any(map(holds_symbols, named.values()))):
        return function(*args, **named)
    if not name or any(callable(item) for item in (*args, *named.values()) if not isinstance(item, type)):
        raise GraphBreak(f"`{name or function.__name__}` calls back", frame.loc(), CALLBACK)
    if function is str and isinstance(args[0], SymbolicText):
        return args[0]
    if function in (list, tuple, set, frozenset) and isinstance(args[0], list | tuple):
        return _container(frame, function, args[0])
    if function is bool:
        return (
            truth(frame, args[0])
            if not isinstance(args[0], Symbolic)
            else pure_call(frame.tracer, "bool", *args)
        )
    kind = None
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
    return pure_call(frame.tracer, name, *args, kind=kind, **named)


def _container(frame: CallFrame, kind: Any, items: Any) -> Any:
    if kind in (list, tuple):
        return kind(items)
    return pure_call(frame.tracer, kind.__name__, list(items))


def _arranged(frame: CallFrame, how: str, items: Any, named: dict[str, Any]) -> Any:
    """`sorted`, `max` or `min`, by keys that are worked out beforehand."""
    key = named.get("key")
    if isinstance(items, Symbolic):
        if key is not None:
            keys = over(frame, items, callback(frame, key))
            given = (named["reverse"],) if "reverse" in named else ()
            one = str if isinstance(items, SymbolicList) else object
            made = list if how == "sorted" else one
            return pure_call(frame.tracer, "sglc.arrange", how, items, keys, *given, kind=made)
        return pure_call(frame.tracer, how, items, **named)
    rows = list(listed(frame.tracer, items))
    keys = rows if key is None else [call(frame, key, [row], {}) for row in rows]
    others = {name: item for name, item in named.items() if name != "key"}
    if not holds_symbols(keys):
        for each in keys:
            refuse_foreign(frame.tracer, each, f"`{how}`")
        order: Any = range(len(rows))
        if how == "sorted":
            return [rows[at] for at in sorted(order, key=lambda at: keys[at], **others)]
        if not rows:
            return {"max": max, "min": min}[how](rows, **others)
        return rows[{"max": max, "min": min}[how](order, key=lambda at: keys[at])]
    if key is None:
        kinds = {kind_of(row) for row in rows}
        if how == "sorted":
            texts = kinds == {str} and not others
            return pure_call(frame.tracer, how, rows, kind=list[str] if texts else None, **others)
        return pure_call(frame.tracer, how, rows, kind=kinds.pop() if len(kinds) == 1 else object, **others)
    if others.keys() - {"reverse"} or not is_plain(rows):
        raise GraphBreak(f"`{how}` of objects by values that only a run knows", frame.loc(), CALLBACK)
    kinds = {kind_of(row) for row in rows}
    one = kinds.pop() if len(kinds) == 1 else object
    given = (others["reverse"],) if "reverse" in others else ()
    return pure_call(
        frame.tracer, "sglc.arrange", how, rows, keys, *given, kind=list if how == "sorted" else one
    )


def _isinstance(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> Any:
    value, kinds = args
    if is_known(value):
        whole(frame.tracer, value)
    every = kinds if isinstance(kinds, tuple) else (kinds,)
    if any(type(kind).__instancecheck__ is not type.__instancecheck__ for kind in every):
        refuse_foreign(frame.tracer, value, "`isinstance`")
    if not isinstance(value, Symbolic):
        return isinstance(value, kinds)
    kind = kind_of(value)
    if kind is not object:
        return issubclass(kind, kinds)
    names = [each.__name__ for each in every]
    if any(each.__module__ != "builtins" for each in every):
        value.observe(METHOD, "`isinstance`")
    return pure_call(frame.tracer, "sglc.isinstance", value, names)


def _type(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> Any:
    (value,) = args
    kind = kind_of(value)
    if is_known(value):
        whole(frame.tracer, value)
    if kind is object and isinstance(value, Symbolic):
        value.observe(METHOD, "`type(...)`")
    return kind


def _any(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> Any:
    return _quantified(frame, args, "any", True)


def _all(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> Any:
    return _quantified(frame, args, "all", False)


def _quantified(frame: CallFrame, args: list[Any], name: str, ends: bool) -> Any:
    if isinstance(args[0], Symbolic) and not is_known(args[0]):
        return pure_call(frame.tracer, name, args[0])
    return next((ends for item in listed(frame.tracer, args[0]) if truth(frame, item) is ends), not ends)


def _reduce(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> Any:
    items = listed(frame.tracer, args[1])
    return reduce(callback(frame, args[0]), items, *args[2:])


def _each(function: Callable[..., Any]) -> Callable[[CallFrame, list[Any], dict[str, Any]], Any]:
    def made(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> Any:
        if any(isinstance(arg, SymbolicList) for arg in args[1:]) and function is map and len(args) == 2:
            return over(frame, args[1], callback(frame, args[0]))
        called = args[0] if args[0] is None else callback(frame, args[0])
        if function is filter:
            test = called
            called = (lambda x: truth(frame, x)) if test is None else (lambda x: truth(frame, test(x)))
        return function(called, *(listed(frame.tracer, arg) for arg in args[1:]))

    return made


def _gone_through(
    function: Callable[..., Any], name: str
) -> Callable[[CallFrame, list[Any], dict[str, Any]], Any]:
    """`zip`, `enumerate`, `reversed`: of lists that only a run knows, a list that only a run knows."""

    def made(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> Any:
        for arg in (*args, *named.values()):
            refuse_foreign(frame.tracer, arg, f"`{function.__name__}`")
        if function is range:
            args = [arg.observe(ITERATION, "`range(...)`") if is_known(arg) else arg for arg in args]
        elif all(is_known(arg) for arg in args if isinstance(arg, Symbolic)):
            args = [unrolled(frame.tracer, arg) if is_known(arg) else arg for arg in args]
            if function is enumerate and is_known(named.get("start")):
                named = {"start": named["start"].observe(ITERATION, "`enumerate(...)`")}
        if any(isinstance(arg, Symbolic) for arg in args):
            if named.pop("strict", False):
                raise GraphBreak("`zip(strict=True)` needs lengths that only a run knows", frame.loc(), METHOD)
            return pure_call(frame.tracer, name, *args, **named)
        return function(*args, **named)

    return made


def _template(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> Any:
    return string.Template(*args)


def _attribute_named(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> Any:
    value, name, *default = args
    try:
        return attribute(frame, value, name)
    except AttributeError:
        if default:
            return default[0]
        raise


def _has_attribute(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> Any:
    try:
        attribute(frame, args[0], args[1])
    except AttributeError:
        return False
    return True


def _next(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> Any:
    refuse_foreign(frame.tracer, args[0], "`next`")
    return next(*args)


_SPECIAL: Mapping[Any, Callable[[CallFrame, list[Any], dict[str, Any]], Any]] = {
    isinstance: _isinstance,
    type: _type,
    any: _any,
    all: _all,
    map: _each(map),
    filter: _each(filter),
    reduce: _reduce,
    zip: _gone_through(zip, "sglc.zip"),
    enumerate: _gone_through(enumerate, "sglc.enumerate"),
    reversed: _gone_through(reversed, "sglc.reversed"),
    range: _gone_through(range, "sglc.range"),
    string.Template: _template,
    getattr: _attribute_named,
    hasattr: _has_attribute,
    next: _next,
}
# What is made of known values only.
_ON_KNOWN = frozenset((iter, slice, bytes, issubclass, callable, complex, object, re.compile))


def _hashable(function: Any) -> bool:
    try:
        hash(function)
    except TypeError:
        return False
    return True
