"""Ahead-of-time recording: the function's body with symbolic arguments, up to the first boundary.

Every call in the body is classified before it is made. sglc's own operations, pure builtins and
plain helper functions that are given a prompt state are executed; before anything else the
recording stops, so that compiling a program never has its effects.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from sglc.errors import Loc, RunError, SglcError
from sglc.frontend import expr
from sglc.frontend.function import Definition
from sglc.frontend.instance import Gathered, GatheredVariables, Instance, Variable
from sglc.frontend.locate import here, of_exception
from sglc.frontend.recorder import Generated, Recorder
from sglc.frontend.rewrite import rewrite
from sglc.frontend.state import Forks, State
from sglc.frontend.symbolic import Boundary, SymbolicText, joined
from sglc.ir.core import NOWHERE, Program, Tree, Value
from sglc.ir.ops import HostCall
from sglc.ir.sampling import Sampling

# fmt: off
_PURE_BUILTINS: frozenset[Any] = frozenset((
    abs, all, any, bool, bytes, chr, dict, divmod, enumerate, filter, float, frozenset, int, isinstance,
    issubclass, iter, len, list, map, max, min, next, ord, pow, range, repr, reversed, round, set, slice,
    sorted, str, sum, tuple, type, zip,
    Exception, AssertionError, KeyError, RuntimeError, TypeError, ValueError,
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


def record(definition: Definition, defaults: Sampling) -> Program:
    """The program of `definition` with an `arg` for every parameter whose default is no other constant.

    Raises:
        SglcError: the body misuses the language, with its place.
        RunError: the body raised (SGLC401).
    """
    recorder = Recorder(definition.name, defaults, symbolic=True)
    instance = Instance(recorder, None)
    arguments: dict[str, Any] = {}
    for parameter in definition.parameters:
        if parameter.default is inspect.Parameter.empty or isinstance(parameter.default, str):
            arguments[parameter.name] = recorder.argument(parameter.name, definition.loc)
        else:
            arguments[parameter.name] = parameter.default
    state = State(instance, recorder.new_stream(definition.loc))
    returned: Tree = None
    try:
        body = _copy(definition.call, definition.loc)
        positional, named = _split(definition, arguments)
        returned = _tree(recorder, body(state, *positional, **named), definition.loc)
    except Boundary as boundary:
        recorder.ops.append(HostCall(boundary.reason, loc=boundary.loc))
    except SglcError:
        raise
    except Exception as error:
        raise failed(definition, error) from error
    recorded = recorder.take(final=True)
    # Nothing resumes the streams of a whole program.
    return replace(recorded.program, returns=returned)


def failed(definition: Definition, error: BaseException) -> RunError:
    """An exception of the user's code as an error with a place."""
    text = str(error) or "no message"
    loc = of_exception(error, definition.code.co_filename) or definition.loc
    return RunError("SGLC401", f"`{type(error).__name__}` in `{definition.name}`: {text}", loc)


def _copy(function: Any, loc: Loc) -> FunctionType:
    if inspect.iscoroutinefunction(function):
        raise Boundary(f"`async def {function.__name__}` waits for more than the model", loc)
    try:
        return rewrite(function, partial(_call, function), _format)
    except (OSError, SyntaxError) as error:
        raise Boundary(f"the source of `{function.__name__}` is not available ({error})", loc) from None


def _split(definition: Definition, arguments: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in definition.parameters:
        value = arguments[parameter.name]
        match parameter.kind:
            case inspect.Parameter.KEYWORD_ONLY:
                named[parameter.name] = value
            case inspect.Parameter.VAR_POSITIONAL | inspect.Parameter.VAR_KEYWORD:
                raise Boundary(f"`{parameter}` has no fixed number of arguments", definition.loc)
            case _:
                positional.append(value)
    return positional, named


def _call(caller: FunctionType, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Make a call that is known to be harmless; stop before any other."""
    symbolic = any(_is_symbolic(arg) for arg in (*args, *kwargs.values()))
    owner = getattr(function, "__self__", None)
    match function:
        case _ if isinstance(owner, State | Forks | GatheredVariables) or _is_ours(function):
            return function(*args, **kwargs)
        case type() if function is str and len(args) == 1 and isinstance(args[0], SymbolicText):
            return args[0]
        case _ if isinstance(owner, SymbolicText):
            return function(*args, **kwargs)  # observes: a boundary with its own reason
        case BuiltinFunctionType() if isinstance(owner, str) and owner.__class__ is str and symbolic:
            return _text_method(owner, function.__name__, args, kwargs)
        case BuiltinFunctionType() if function.__name__ in _CHANGING and _from_outside(owner, caller):
            raise Boundary(f"`.{function.__name__}(...)` changes what outlives the program", here())
        case BuiltinFunctionType() if type(owner) in _PLAIN_DATA and owner is not None:
            return function(*args, **kwargs)
        case _ if _hashable(function) and function in _PURE_BUILTINS and not _calls_back(args, kwargs):
            return function(*args, **kwargs)
        case FunctionType() | MethodType() if any(isinstance(arg, State | Forks) for arg in args):
            inner = function.__func__ if isinstance(function, MethodType) else function
            head = (owner,) if isinstance(function, MethodType) else ()
            return _copy(inner, here())(*head, *args, **kwargs)
        case _:
            name = getattr(function, "__qualname__", type(function).__name__)
            raise Boundary(f"`{name}(...)` is ordinary Python", here())


def _from_outside(owner: Any, caller: FunctionType) -> bool:
    """Whether a container is a global, a closure's or a default, or lies directly in one of these."""
    seen = [*caller.__globals__.values(), *(cell.cell_contents for cell in caller.__closure__ or ())]
    seen += [*(caller.__defaults__ or ()), *(caller.__kwdefaults__ or {}).values()]
    for value in seen:
        inner = value if isinstance(value, list | tuple) else getattr(value, "__dict__", value)
        items = (
            inner.values() if isinstance(inner, Mapping) else inner if isinstance(inner, list | tuple) else ()
        )
        if value is owner or any(item is owner for item in items):
            return True
    return False


def _is_ours(function: Any) -> bool:
    return getattr(function, "__module__", "") == expr.__name__


def _hashable(function: Any) -> bool:
    try:
        hash(function)
    except TypeError:
        return False
    return True


def _calls_back(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function is handed over that was not written inside the recorded body."""
    functions = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, FunctionType | MethodType)]
    return any(function.__name__ != "<lambda>" for function in functions)


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, SymbolicText):
        return True
    return isinstance(value, list | tuple) and any(isinstance(item, SymbolicText) for item in value)


def _text_method(owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SymbolicText:
    """The two methods of a literal that only put texts together."""
    if name == "join" and len(args) == 1 and isinstance(args[0], list | tuple):
        pieces: list[str | SymbolicText] = []
        for i, item in enumerate(args[0]):
            pieces += [owner, item] if i else [item]
        return joined(tuple(pieces))
    raise Boundary(f"`str.{name}` needs a text that only exists when the program runs", here())


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


def _tree(recorder: Recorder, returned: Any, loc: Loc) -> Tree:
    """What the function returns, with recorded values in it."""
    match returned:
        case None | str() | bool() | int() | float():
            return returned
        case SymbolicText():
            return recorder.text(returned, loc)
        case GatheredVariables():
            return {name: _variable(variable) for name, variable in returned.variables.items()}
        case dict():
            return {str(key): _tree(recorder, value, loc) for key, value in returned.items()}
        case list() | tuple():
            return tuple(_tree(recorder, value, loc) for value in returned)
        case _:
            raise Boundary(f"a `{type(returned).__name__}` is returned", loc)


def _variable(variable: Variable) -> Tree:
    match variable:
        case Generated():
            return variable.value
        case Gathered(value=Value() as value):
            return value
        case Gathered():
            return tuple(_variable(entry) for entry in variable.entries)
        case None | str() | bool() | int() | float():
            return variable
        case _:
            raise Boundary(f"a `{type(variable).__name__}` is returned", NOWHERE)
