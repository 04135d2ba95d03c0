"""Exceptions of declared functions in recordings: each comes back as what it was.

It is made without its `__init__`, which may want something else than it keeps, and is given what it had. Where
its class is not there, or says something else of what is kept, the exception is of a class of the same name
below the nearest one that is there, and says what was recorded.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import astuple
from types import BuiltinFunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any, NoReturn

from sglc.errors import Loc, RecordingError, SglcError
from sglc.frontend.locate import of_error
from sglc.frontend.values.symbolic import END_RUN
from sglc.observe.replay.tape import Json, value_json, value_of

_NOT_THERE = object()
_DEEPEST = 4


def raised_json(error: BaseException, depth: int = _DEEPEST) -> Json:
    """An exception as plain data; `raised_of` reads it. It may hold others, which may: `depth` times."""
    kind = type(error)
    blank = {} if (made := _blank(kind)) is None else _slots(made)
    slots = {name: value for name, value in _slots(error).items() if value is not blank.get(name, _NOT_THERE)}
    given = (error.message,) if isinstance(error, BaseExceptionGroup) else error.args
    data: Json = {
        "class": kind.__name__, "module": kind.__module__,
        "args": [_kept(one, depth) for one in given],
        "has": {name: _kept(value, depth) for name, value in {**slots, **vars(error)}.items()},
        "bases": [[one.__module__, one.__qualname__] for one in kind.__mro__ if issubclass(one, Exception)],
        "text": _text(error),
    }  # fmt: skip
    if isinstance(error, BaseExceptionGroup):
        data["group"] = [raised_json(one, depth) for one in error.exceptions]
    return data


def raised_of(data: Json, function: str) -> Exception:
    """The exception that `raised_json` wrote, and that `function` raised."""
    of = f"the `{data['class']}` that `{function}` raised"
    return _raised(data, of) if "bases" in data else _older(data, of)


def place_json(error: BaseException) -> list[Any] | None:
    """Where a function raised an exception, as plain data; `at_place` reads it."""
    loc = of_error(error)
    return None if loc is None else [loc.file, loc.line, loc.column]


def at_place(error: Exception, place: Sequence[Any] | None) -> Exception:
    """An exception whose trace begins where it was raised, for those who say where that was."""
    if place is None:
        return error
    file, line, column = place
    before = max(column - 1, 0)
    begin = len(linecache.getline(file, line)[:before].encode("utf-8", "replace")) or before  # in bytes
    where: Any = {"lineno": line, "end_lineno": line, "col_offset": begin, "end_col_offset": begin + 1}
    raising = ast.Raise(exc=ast.Name("error", ast.Load(), **where), **where)
    try:
        exec(compile(ast.Module([raising], []), file, "exec"), {"error": error})
    except Exception:
        if error.__traceback__ is not None:  # else that is no place in a file
            error.__traceback__ = error.__traceback__.tb_next  # without this function
    return error


def _raised(data: Json, what: str) -> Exception:
    known = ((place, _class(*place)) for place in data["bases"])
    group = "group" in data
    place, base = next(
        (place, one) for place, one in known
        if one is not None and group == issubclass(one, BaseExceptionGroup)
    )  # fmt: skip
    error, rest = _made(base, data, what)
    if place == data["bases"][0] and not rest and _text(error) == data["text"]:
        return error
    return _made(_alike(base, data, rest), data, what)[0]


def _older(data: Json, what: str) -> Exception:
    """One of a recording that has no more of it than its class and its arguments."""
    args = tuple(value_of(data["args"]))
    kind = _class(data["module"], data["class"])
    with suppress(Exception):  # it may want other arguments than those it keeps
        if kind is not None and (error := kind(*args)).args == args and str(error) is not None:
            return error
    # One of sglc's own is nothing without the rest.
    place = ["" if kind is None or issubclass(kind, SglcError) else data["module"], data["class"]]
    bases = [place, ["builtins", "Exception"]]
    return _raised({**data, "bases": bases, "has": {}, "text": str(Exception(*args))}, what)


def _made(kind: type[Exception], data: Json, what: str) -> tuple[Exception, Json]:
    """One of this class, and what it cannot be given."""
    args = [_given(one, f"an argument of {what}") for one in data["args"]]
    if "group" in data:
        error = _blank(kind, args[0], [_raised(one, f"an exception of {what}") for one in data["group"]])
    else:
        error = _blank(kind)
    assert isinstance(error, Exception)
    if "group" not in data:
        error.args = tuple(args)
    rest: Json = {}
    for name, kept in data["has"].items():
        value, slot = _given(kept, f"`{name}` of {what}"), _slot(kind, name)
        try:
            if slot is None:
                vars(error)[name] = value
            else:
                slot.__set__(error, value)
        except (AttributeError, TypeError):
            rest[name] = value
    return error, rest


def _alike(base: type[Exception], data: Json, has: Json) -> type[Exception]:
    """A class for what `base` itself is not: of the recorded name, with `has`."""
    (module, name), text = data["bases"][0], data["text"]
    says = {} if text is None else {"__str__": lambda self: text}
    return type(data["class"], (base,), {"__module__": module, "__qualname__": name, **says, **has})


def _class(module: str, name: str) -> type[Exception] | None:
    """The class of exceptions that is called so. What a recording names is not imported."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return None
    return found if issubclass(found, BaseExceptionGroup) or _blank(found) is not None else None


def _blank(kind: type[BaseException], *args: Any) -> BaseException | None:
    """An exception that nothing was done with; None: its class makes none."""
    makers = (vars(one).get("__new__") for one in kind.__mro__)
    make: Any = next(one for one in makers if type(one) is BuiltinFunctionType)
    try:
        made: BaseException = make(kind, *args)
    except TypeError:
        return None
    return made


def _slots(error: BaseException) -> Json:
    """What an exception has beside its arguments and its `__dict__`."""
    names = {name for one in type(error).__mro__ for name in vars(one)}
    slots: Json = {}
    for name in sorted(names - {"obj"}):  # of an `AttributeError`, for Python's own traces
        if (slot := _slot(type(error), name)) is not None:
            with suppress(AttributeError):  # it is not set
                slots[name] = slot.__get__(error)
    return slots


def _slot(kind: type[BaseException], name: str) -> Any:
    """The place of an attribute that is not in `__dict__`; None: it has no other."""
    found: Any = next((vars(one)[name] for one in kind.__mro__ if name in vars(one)), None)
    is_slot = isinstance(found, MemberDescriptorType | GetSetDescriptorType)
    of_all = (BaseException, BaseExceptionGroup)
    return found if is_slot and not name.startswith("__") and found.__objclass__ not in of_all else None


def _text(error: BaseException) -> str | None:
    """What an exception says; None: it cannot."""
    try:
        return Context().run(str, error)  # of no run that could end with what is not kept
    except Exception:
        return None


# -- what exceptions hold ------------------------------------------------------------------------------


def _kept(value: Any, depth: int) -> Any:
    """A value as plain data; of what is none its type."""
    try:
        return value_json(value)
    except (TypeError, RecursionError):
        match value:
            case Loc():
                return {"is": "loc", "at": astuple(value)}
            case bytes() if type(value) is bytes:
                return {"is": "bytes", "hex": value.hex()}
            case Exception() if depth:
                return {"is": "raised", "what": raised_json(value, depth - 1)}
            case _:
                return {"is": "lost", "type": type(value).__qualname__}


def _given(data: Any, what: str) -> Any:
    match data:
        case {"is": "raised", "what": raised}:
            return _raised(raised, what)
        case {"is": "loc", "at": at}:
            return Loc(*at)
        case {"is": "bytes", "hex": digits}:
            return bytes.fromhex(digits)
        case {"is": "lost", "type": kind}:
            return NotKept(what, kind)
        case _:
            return value_of(data)


class NotKept:
    """Stands where an exception had what is no plain data. Whoever looks into it is told, and nothing else."""

    __slots__ = ("_kind", "_what")

    def __init__(self, what: str, kind: str) -> None:
        self._what, self._kind = what, kind

    def __repr__(self) -> str:
        return f"<{self._kind}, not recorded>"

    def _told(self, *args: Any, **named: Any) -> NoReturn:
        """Whatever is asked of it.

        Raises:
            RecordingError: SGLC424, it was not recorded.
        """
        problem = RecordingError(
            "SGLC424", f"{self._what} is a `{self._kind}`, which is not in the recording",
            note="it has the texts, numbers, truth values, None, and lists, tuples and dicts of them",
            hint="have the function raise what holds all that the program looks at as plain data",
        )  # fmt: skip
        if (end := END_RUN.get()) is not None:
            end(problem)
        raise problem

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's own questions
            raise AttributeError(name)
        self._told()

    __class__ = property(_told)  # of `isinstance`
    __str__ = __format__ = __bool__ = __eq__ = __ne__ = __hash__ = __len__ = __iter__ = __next__ = _told
    __contains__ = __getitem__ = __setitem__ = __call__ = __int__ = __float__ = __index__ = _told
    __lt__ = __le__ = __gt__ = __ge__ = __enter__ = __exit__ = __await__ = __fspath__ = __bytes__ = _told
    __add__ = __radd__ = __sub__ = __mul__ = __or__ = __and__ = __reduce_ex__ = _told
