"""What a recorded body does instead of calling and formatting: every call is classified before it is made.

sglc's own operations, declared functions, pure builtins and plain helper functions that are given a
prompt state are executed; before anything else the tracer stops, so that it never has effects.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

from sglc.errors import Loc
from sglc.frontend.language.function import Definition
from sglc.frontend.locate import here
from sglc.frontend.program.instance import GatheredVariables
from sglc.frontend.program.state import Forks, State
from sglc.frontend.source.rewrite import rewrite
from sglc.frontend.tracing.effects import refuse_effects
from sglc.frontend.tracing.subprogram import CallResult
from sglc.frontend.tracing.tools import Declared
from sglc.frontend.tracing.tracer import Tracer
from sglc.frontend.values.graph_breaks import (
    ASYNC,
    CALLBACK,
    METHOD,
    NO_SOURCE,
    OUTSIDE,
    UNDECLARED,
    GraphBreak,
)
from sglc.frontend.values.symbolic import Symbolic, SymbolicBool, SymbolicList, SymbolicText, joined

# fmt: off
_PURE_BUILTINS: frozenset[Any] = frozenset((
    abs, all, any, bool, bytes, chr, dict, divmod, enumerate, filter, float, frozenset, int, isinstance,
    issubclass, iter, len, list, map, max, min, next, ord, pow, range, repr, reversed, round, set, slice,
    sorted, str, sum, tuple, type, zip,
))
# fmt: on
_CHANGING = frozenset(
    (
        *("add", "append", "clear", "difference_update", "discard", "extend", "insert", "intersection_update"),
        *("pop", "popitem", "remove", "reverse", "setdefault", "sort", "symmetric_difference_update", "update"),
    )
)
# Methods of these are pure, or change only what the program itself made.
_PLAIN_DATA = (str, int, float, bool, list, tuple, dict, set, frozenset, bytes, range, type(None))
_OURS = (State, Forks, GatheredVariables, CallResult)
# By the id of a code object that stays alive: whether it `_asks_identity`.
_ASKING: dict[int, tuple[CodeType, bool]] = {}
_STANDS_FOR = {SymbolicText: str, SymbolicBool: bool, SymbolicList: list}


def copied(tracer: Tracer, function: Any, loc: Loc) -> FunctionType:
    """A copy of a function of the user's whose calls and f-strings are recorded.

    Raises:
        GraphBreak: it has no source, or waits for more than the model; of a careful tracer also where its
            own statements could have effects.
    """
    if function not in tracer.copies:
        if inspect.iscoroutinefunction(function):
            raise GraphBreak(f"`async def {function.__name__}` waits for more than the model", loc, ASYNC)
        try:
            if tracer.careful:
                refuse_effects(function, program=function is tracer.calls[-1])
            copy = rewrite(function, partial(_call, tracer, function), _format)
        except (OSError, SyntaxError) as error:
            reason = f"the source of `{function.__name__}` is not available ({error})"
            raise GraphBreak(reason, loc, NO_SOURCE) from None
        tracer.copies[function] = copy
        codes = tuple(_codes(copy.__code__))
        tracer.codes.update(codes)
        tracer.asks_identity |= any(map(_asks_identity, codes))
    return tracer.copies[function]


def entered(tracer: Tracer, function: Callable[..., Any], loc: Loc) -> Callable[..., Any]:
    """A callable of the user's that sglc will call: part of the program, or a copy that is recorded.

    Raises:
        GraphBreak: it cannot be recorded.
    """
    owner = getattr(function, "__self__", None)
    match function:
        case FunctionType() if function.__code__ in tracer.codes:
            return function
        case _ if isinstance(owner, _OURS) or isinstance(function, Declared) or _is_ours(function):
            return function
        case functools.partial():
            return partial(entered(tracer, function.func, loc), *function.args, **function.keywords)
        case MethodType():
            return partial(copied(tracer, function.__func__, loc), owner)
        case FunctionType():
            return copied(tracer, function, loc)
        case _:
            raise GraphBreak(f"`{_name(function)}` is called back", loc, CALLBACK)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _asks_identity(code: CodeType) -> bool:
    """Whether the code compares something with `is True` or `is not False`."""
    if id(code) not in _ASKING:
        _ASKING[id(code)] = code, _compares(code)
    return _ASKING[id(code)][1]


def _compares(code: CodeType) -> bool:
    for load, compare in pairwise(dis.get_instructions(code)):
        if (load.opname, compare.opname) == ("LOAD_CONST", "IS_OP") and isinstance(load.argval, bool):
            return True
    return False


def _call(tracer: Tracer, caller: FunctionType, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Make a call that is known to be harmless; stop before any other."""
    symbolic = any(_is_symbolic(arg) for arg in (*args, *kwargs.values()))
    owner = getattr(function, "__self__", None)
    match function:
        case _ if isinstance(owner, _OURS) or isinstance(function, Declared) or _is_ours(function):
            return function(*args, **kwargs)
        case _ if _is_program(function) or (_is_program(owner) and function.__name__ == "run"):
            return function(*args, **kwargs)
        case type() if function is str and len(args) == 1 and isinstance(args[0], SymbolicText):
            return args[0]
        case type() if function is type and len(args) == 1 and type(args[0]) in _STANDS_FOR:
            return _STANDS_FOR[type(args[0])]
        case BuiltinFunctionType() if function is isinstance and type(args[0]) in _STANDS_FOR:
            return issubclass(_STANDS_FOR[type(args[0])], args[1])
        case _ if isinstance(owner, Symbolic):
            return function(*args, **kwargs)  # recorded, or it observes
        case BuiltinFunctionType() if isinstance(owner, str) and owner.__class__ is str and symbolic:
            return _text_method(owner, function.__name__, args, kwargs)
        case BuiltinFunctionType() if function.__name__ in _CHANGING and _from_outside(tracer, owner, caller):
            raise GraphBreak(f"`.{function.__name__}(...)` changes what outlives the program", here(), OUTSIDE)
        case BuiltinFunctionType() if type(owner) in _PLAIN_DATA and owner is not None:
            _refuse_call_back(tracer, args, kwargs)
            return function(*args, **kwargs)
        case type() if issubclass(function, BaseException) and function.__module__ == "builtins":
            return function(*args, **kwargs)
        case _ if _hashable(function) and function in _PURE_BUILTINS:
            _refuse_call_back(tracer, args, kwargs)
            return function(*args, **kwargs)
        case FunctionType() if function.__code__ in tracer.codes:
            return function(*args, **kwargs)  # defined in the program itself
        case FunctionType() | MethodType() if any(isinstance(arg, State | Forks) for arg in args):
            return entered(tracer, function, here())(*args, **kwargs)
        case _:
            raise GraphBreak(f"`{_name(function)}(...)` is ordinary Python", here(), UNDECLARED)


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))


def _from_outside(tracer: Tracer, owner: Any, caller: FunctionType) -> bool:
    """Whether a container is a global, a closure's or a default, or lies directly in one of these.

    In a block of a structured op everything that was made before the block is outside of it.
    """
    seen = [value for function in (caller, *tracer.bodies) for value in _reach(function)]
    for value in seen:
        inner = value if isinstance(value, list | tuple) else getattr(value, "__dict__", value)
        items = (
            inner.values() if isinstance(inner, Mapping) else inner if isinstance(inner, list | tuple) else ()
        )
        if value is owner or any(item is owner for item in items):
            return True
    return False


def _reach(function: Any) -> Iterator[Any]:
    """What a function can get at besides its arguments."""
    yield from getattr(function, "__globals__", {}).values()
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # nothing was assigned yet
            continue
    yield from getattr(function, "__defaults__", None) or ()
    yield from (getattr(function, "__kwdefaults__", None) or {}).values()


def _is_ours(function: Any) -> bool:
    """Whether it is a function of the language; their modules are this package's."""
    return str(getattr(function, "__module__", "")).startswith("sglc.frontend.") and not isinstance(
        function, Definition
    )


def _is_program(item: Any) -> bool:
    return isinstance(getattr(item, "definition", None), Definition)


def _hashable(function: Any) -> bool:
    try:
        hash(function)
    except TypeError:
        return False
    return True


def _refuse_call_back(tracer: Tracer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A function that is handed over must be written inside the recorded body."""
    for arg in (*args, *kwargs.values()):
        if isinstance(arg, MethodType) or (isinstance(arg, FunctionType) and arg.__code__ not in tracer.codes):
            raise GraphBreak(f"`{_name(arg)}` is called back", here(), CALLBACK)


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, Symbolic):
        return True
    return isinstance(value, list | tuple) and any(isinstance(item, Symbolic) for item in value)


def _text_method(owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A method of a literal with recorded arguments: two of texts that are only put together."""
    items = args[0] if name == "join" and len(args) == 1 else None
    if isinstance(items, list | tuple) and all(isinstance(item, str | SymbolicText) for item in items):
        pieces: list[str | SymbolicText] = []
        for i, item in enumerate(items):
            pieces += [owner, item] if i else [item]
        return joined(tuple(pieces))
    what = f"`str.{name}`"
    known = [arg.observe(METHOD, what) if isinstance(arg, Symbolic) else arg for arg in args]
    named = {
        key: arg.observe(METHOD, what) if isinstance(arg, Symbolic) else arg for key, arg in kwargs.items()
    }
    return getattr(owner, name)(*known, **named)


def _format(*parts: Any) -> str | SymbolicText:
    """An f-string: constants, and (value, conversion, spec) for every replacement field."""
    pieces: list[str | SymbolicText] = []
    for part in parts:
        if isinstance(part, str):
            pieces.append(part)
            continue
        value, conversion, spec = part
        if isinstance(value, SymbolicText) and conversion in (-1, ord("s")) and spec == "":
            pieces.append(value)
            continue
        match chr(conversion) if conversion > 0 else "":
            case "r":
                shown = repr(value)
            case "s":
                shown = str(value)
            case "a":
                shown = ascii(value)
            case _:
                shown = value
        pieces.append(format(shown, spec))
    if any(isinstance(piece, SymbolicText) for piece in pieces):
        return joined(tuple(pieces))
    return "".join(str(piece) for piece in pieces)
