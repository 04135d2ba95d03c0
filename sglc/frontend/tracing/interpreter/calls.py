"""Calls: each is classified before it is made, and what is not known to be harmless stops the tracing."""

from __future__ import annotations

import ast
import builtins
import collections
import contextlib
import dataclasses
import inspect
import logging
import re
import string
import sys
import types
import warnings
from collections.abc import Callable
from enum import EnumMeta
from functools import partial
from typing import Any

from sglc.errors import Loc
from sglc.frontend.language.expr import SymbolicLimit
from sglc.frontend.language.function import Definition
from sglc.frontend.program.state import State
from sglc.frontend.tracing.call_frame import CallFrame, Closure, Coroutine, FunctionNode, closure_of
from sglc.frontend.tracing.interpreter.data import (
    asked,
    holds_symbols,
    is_known,
    is_ours,
    is_plain,
    kind_of,
    operand,
    pure_call,
    refuse_foreign,
    undeclared,
    unrolled,
)
from sglc.frontend.tracing.interpreter.methods import data_method, method
from sglc.frontend.tracing.interpreter.operations import DataMethod, as_text, attribute
from sglc.frontend.tracing.interpreter.python_calls import python_call
from sglc.frontend.tracing.makers import only_holds
from sglc.frontend.tracing.stores import is_users_file
from sglc.frontend.tracing.tools import Declared
from sglc.frontend.tracing.tracer import Tracer
from sglc.frontend.values.graph_breaks import CALLBACK, SETTING, UNDECLARED, GraphBreak, generator
from sglc.frontend.values.symbolic import (
    Failed,
    Symbolic,
    SymbolicBool,
    SymbolicJson,
    SymbolicList,
    SymbolicText,
)
from sglc.ir.core import Type
from sglc.ir.effects import LOG_LEVELS
from sglc.ir.ops import Tool
from sglc.ir.pure import name_of, sets_up_itself
from sglc.ir.values import MOST_COUNT

_CONTROL = ("cond", "switch", "loop", "map", "call", "eq", "contains", "not_", "parse_json")


def call(frame: CallFrame, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
    """Make a call.

    Raises:
        GraphBreak: before a call that is not known to be harmless.
    """
    if not isinstance(function, _CALLABLE) and not is_ours(function):
        raise undeclared(frame, function)
    bound = isinstance(function, types.BuiltinFunctionType | types.MethodType | types.MethodWrapperType)
    owner = function.__self__ if bound else None
    match function:
        case DataMethod():
            return data_method(frame, function.value, function.name, args, named)
        case Closure():
            return function(*args, **named)
        case Declared() if inspect.iscoroutinefunction(function.function):
            return Coroutine(lambda: _declared(frame, function, args, named), function.function.__name__)
        case Declared():
            return _declared(frame, function, args, named)
        case types.MethodType() if _is_program(owner) and function.__name__ == "arun":
            return Coroutine(lambda: call(frame, owner, args, named), f"{getattr(owner, '__name__', '')}.arun")
        case partial():
            return call(frame, function.func, [*function.args, *args], {**function.keywords, **named})
        case _ if _is_program(function) or (_is_program(owner) and function.__name__ == "run"):
            frame.tracer.may_fail(f"`{getattr(function, '__name__', 'run')}(...)`")
            return function(*args, **named)
        case _ if is_ours(owner) or is_ours(function) or _is_language(function):
            return _language(frame, function, args, named)
        case types.MethodType() if isinstance(owner, logging.Logger):
            return _logged(frame, owner, function.__name__, args, named)
        case types.MethodType() if isinstance(owner, string.Template):
            values = {**(args[0] if args else {}), **named}
            if not holds_symbols(values):
                return function(values)
            safe = function.__name__ != "substitute"
            return pure_call(frame.tracer, "sglc.template", owner.template, safe, values)
        case types.MethodType() if isinstance(function.__func__, types.FunctionType):
            return call(frame, function.__func__, [owner, *args], named)
        case _ if function is print:
            return _printed(frame, args, named)
        case _ if function is warnings.warn and (args or "message" in named):
            return _warned(frame, *args, **named)
        case types.FunctionType() if not name_of(function) and function is not re.compile:
            return interpreted(frame, function)(*args, **named)
        case type():
            made = _constructed(frame, function, args, named)
            if made is not _UNKNOWN:
                return made
        case types.MethodDescriptorType() if args and not (isinstance(args[0], Symbolic) and name_of(function)):
            return call(frame, attribute(frame, args[0], function.__name__), args[1:], named)
        case types.BuiltinFunctionType() | types.MethodWrapperType() if not isinstance(owner, _NO_OBJECT):
            return method(frame, owner, function, args, named)
        case _:
            pass
    return python_call(frame, function, args, named)


_CALLABLE = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodDescriptorType,
    types.MethodWrapperType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
    type, partial, Closure, DataMethod, Declared,
)  # fmt: skip
_NO_OBJECT = (types.NoneType, types.ModuleType)  # what the owner of a plain function is
_UNKNOWN = object()


def interpreted(frame: CallFrame, function: types.FunctionType) -> Callable[..., Any]:
    """A helper of the user's, so that calling it is interpreted.

    Raises:
        GraphBreak: it is not the user's, or has no source.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise generator(function.__name__, frame.loc())
    if not is_users_file(function.__code__.co_filename):
        raise undeclared(frame, function)
    copies = frame.tracer.copies
    if function not in copies:
        copies[function] = closure_of(frame.tracer, function, frame.loc())
    return copies[function]


def entered(tracer: Tracer, function: Callable[..., Any], loc: Loc) -> Callable[..., Any]:
    """A callable that the language, or Python, will call back: each of its calls is classified.

    Raises:
        GraphBreak: it is none that can be interpreted.
    """
    module = str(getattr(function, "__module__", ""))
    if isinstance(function, Closure) or module.startswith("sglc.frontend.tracing."):
        return function
    if not callable(function):
        raise GraphBreak(f"`{type(function).__name__}` is called back", loc, CALLBACK)

    def made(*args: Any, **named: Any) -> Any:
        frame = tracer.calling[-1]
        assert isinstance(frame, CallFrame)
        return call(frame, function, list(args), named)

    return made


def _is_program(item: Any) -> bool:
    return is_ours(item) and isinstance(getattr(item, "definition", None), Definition)


def _is_language(function: Any) -> bool:
    """Whether it is a function of the language; their modules are this package's."""
    return str(getattr(function, "__module__", "")).startswith("sglc.") and not isinstance(function, Closure)


def _language(frame: CallFrame, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
    """A function of the language, given texts where it wants texts."""
    name = getattr(function, "__name__", "")
    module = str(getattr(function, "__module__", ""))
    owner = getattr(function, "__self__", None)
    harmless = type(owner).__module__.startswith("sglc.frontend.") or (_is_program(owner) and name == "bind")
    if not module.startswith("sglc.frontend.") and not harmless:  # it runs something, such as `run_batch`
        raise undeclared(frame, function)
    whole = name == "text" and isinstance(owner, State)
    if whole or name in ("parse_json", "get_var", "set_var") or name in _CONTROL:
        if whole or name in ("parse_json", "get_var"):
            frame.tracer.may_fail("`text()`" if whole else f"`{name}(...)`")
        made = function(*args, **named)
        if whole or name == "get_var":
            frame.tracer.was_read(made)
        return made
    return function(
        *(_for_language(frame, name, place, arg) for place, arg in enumerate(args)),
        **{key: _for_language(frame, name, key, item) for key, item in named.items()},
    )


def _for_language(frame: CallFrame, name: str, place: int | str, item: Any) -> Any:
    """An argument of a function of the language: a text, texts to choose from, or what Python needs itself."""
    if type(item) in (str, int, float, bool):
        return item
    choices = place == "choices" or (name, place) == ("select", 1)
    shown = f"`{name}({place}=...)`" if isinstance(place, str) else f"`{name}(...)`"
    known_text = isinstance(item, SymbolicText | SymbolicJson) and is_known(item) and kind_of(item) is str
    if choices and known_text and not asked(frame.tracer, item, "bool"):
        return ""  # which is refused
    if name in _LIMITED and place in (1, "max_tokens") and isinstance(item, SymbolicJson) and item.kind is int:
        return _limit(frame, item, shown)
    if isinstance(item, SymbolicJson | SymbolicList | SymbolicBool):
        if choices and is_known(item) and kind_of(item) in (list, tuple):
            return _for_language(frame, name, place, unrolled(frame.tracer, item))
        if not choices and isinstance(item, SymbolicJson) and item.kind in (str, object):
            return as_text(frame, item)
        return item.observe(SETTING, shown)
    settings = name in _GENERATIONS and not choices
    if isinstance(item, SymbolicText) and (settings or (name, place) in _NAMES):
        return item.observe(SETTING, shown)
    if type(item) in (list, tuple):
        return type(item)(_for_language(frame, name, place, part) for part in item)
    return item


def _limit(frame: CallFrame, item: SymbolicJson, shown: str) -> SymbolicLimit | int:
    """The most tokens of a generation: a number of an argument is data, as a text is, if it allows for any."""

    def number() -> int:
        return int(item.observe(SETTING, shown))

    def text() -> SymbolicText:
        if known is not None:
            frame.tracer.guard(f"operator.ge({known.fact}, 1)", True, frame.loc())
            frame.tracer.guard(f"operator.le({known.fact}, {MOST_COUNT})", True, frame.loc())
        made = pure_call(frame.tracer, "str", item)
        assert isinstance(made, SymbolicText)
        return made

    known, counts = item.known, frame.tracer.counts
    if known is not None and counts is not None:
        counts.add(known.fact)
        return number()
    # What is compiled without arguments says when it runs what it is not for.
    fits = frame.tracer.is_argument(item.value) if known is None else 1 <= known.real <= MOST_COUNT
    return SymbolicLimit(text, number) if fits else number()


# What Python needs itself: the settings of a generation, and the name of what is stored.
_GENERATIONS = ("gen", "gen_int", "gen_string", "select")
_LIMITED = _GENERATIONS[:3]
_NAMES = frozenset([("var_scope", 0), ("var_scope", "name"), ("section", 1), ("section", "name")])


def _declared(frame: CallFrame, function: Declared, args: list[Any], named: dict[str, Any]) -> Any:
    outside, name, given = frame.tracer.outside, function.function.__name__, (*args, *named.values())
    if function.effects:
        outside.give(frame.tracer, name, given)
        frame.tracer.hand(given, name)
        frame.tracer.may_fail(f"`{name}(...)`")
        frame.tracer.before_tool(name)
    elif any(map(holds_symbols, given)):
        frame.tracer.may_fail(f"`{name}(...)`")
    made = function(*args, **named)
    if function.effects:
        outside.called(name, given, made)
    return made


# -- effects that everybody knows ------------------------------------------------------------------


def _printed(frame: CallFrame, args: list[Any], named: dict[str, Any]) -> None:
    stream = named.pop("file", None)
    if stream is not None and stream is not sys.stdout and stream is not sys.stderr:
        raise GraphBreak("`print(file=...)` writes somewhere else", frame.loc(), UNDECLARED)
    where = {"error": True} if stream is not None and stream is sys.stderr else {}
    refuse_foreign(frame.tracer, "`print`", *args)
    _effect(frame, "print", [arg if is_plain(arg) else str(arg) for arg in args], {**named, **where})


def _logged(
    frame: CallFrame, logger: logging.Logger, name: str, args: list[Any], named: dict[str, Any]
) -> None:
    kind, registered = type(logger), logger.manager.loggerDict.get(logger.name, logger.root)
    methods = (name, "_log", "findCaller")
    own = any(getattr(kind, method, None) is not getattr(logging.Logger, method, None) for method in methods)
    if name not in LOG_LEVELS or named or not args or own or registered is not logger:
        raise undeclared(frame, getattr(logger, name))
    _effect(frame, "logging", [logger.name, name, *args], {"at": _at(frame)})


def _warned(
    frame: CallFrame, message: Any, category: Any = None, stacklevel: Any = 1, *more: Any, **others: Any
) -> None:
    """A plan names the classes of Python's own, and knows no place but the call's."""
    kind = UserWarning if category is None else category
    name = str(getattr(kind, "__name__", ""))
    known = isinstance(kind, type) and issubclass(kind, Warning) and getattr(builtins, name, None) is kind
    if not known or more or others or stacklevel != 1 or isinstance(message, Warning):
        raise undeclared(frame, warnings.warn)
    _effect(frame, "warnings.warn", [message, name], {"at": _at(frame)})


def _at(frame: CallFrame) -> list[Any]:
    """Where a log record or a warning comes from: its module, the file, the line, the function."""
    inner = frame
    while inner.outer is not None and not isinstance(inner.scope, FunctionNode):
        inner = inner.outer
    loc = frame.loc()
    node = getattr(frame.node, "func", None)
    line = node.end_lineno if isinstance(node, ast.Attribute) else loc.line  # Python takes the method's
    module, function = frame.globals.get("__name__", "<string>"), getattr(inner.scope, "name", "<lambda>")
    return [module, loc.file, line, function]


def _effect(frame: CallFrame, name: str, args: list[Any], named: dict[str, Any]) -> None:
    called = frame.tracer.called_tool
    frame.tracer.before_tool(name)
    frame.tracer.called_tool = called  # it changes nothing that a program reads
    trees = tuple(operand(frame.tracer, arg, name) for arg in args)
    keywords = {key: operand(frame.tracer, item, name) for key, item in named.items()}
    frame.tracer.recorder.emit(Type.JSON, Tool, name, trees, keywords, str(Type.JSON), loc=frame.loc())


# -- objects ---------------------------------------------------------------------------------------


def _constructed(frame: CallFrame, kind: type, args: list[Any], named: dict[str, Any]) -> Any:
    """An object of a class that only holds what it is given; `_UNKNOWN` for a class of Python's own."""
    if kind is string.Template or kind is type:
        return _UNKNOWN
    if kind is str and len(args) == 1 and isinstance(args[0], Failed):
        return args[0].text()
    frame.tracer.outside.look_up_class(kind)
    frame.tracer.outside.look_up_class(type(kind))
    if not dataclasses.is_dataclass(kind) and not hasattr(kind, "_fields"):
        # A class of Python's own goes through what it is given, one of the user's keeps it.
        refuse_foreign(frame.tracer, f"`{kind.__name__}`", *args)
    if issubclass(kind, BaseException):
        if kind.__module__ == "builtins" or not sets_up_itself(kind):
            return kind(*args, **named)
    elif isinstance(kind, EnumMeta) and len(args) == 1 and only_holds(kind):
        if isinstance(args[0], Symbolic):
            args = [args[0].observe(UNDECLARED, f"`{kind.__name__}(...)`")]
        return kind(*args)
    elif not isinstance(kind, EnumMeta) and only_holds(kind):
        for made in (getattr(kind, "__new__"), getattr(kind, "__init__")):  # noqa: B009  # of the class itself
            if isinstance(made, types.FunctionType):  # its defaults may change
                frame.tracer.outside.enter(made)
        return kind(*args, **named)
    elif (
        kind is contextlib.nullcontext
        or kind is collections.deque
        or (kind is collections.defaultdict and args and args[0] in (list, dict, set, int, str, float))
    ):
        return kind(*args, **named)
    elif kind.__module__ not in ("builtins", "collections", "datetime", "itertools", "fractions", "decimal"):
        raise undeclared(frame, kind)
    return _UNKNOWN
