"""What a value is, down to its types, as plain JSON data: two states are equal if these are.

Invariants: no code of the user runs here (no property, no operator, no `__repr__`), nothing is moved (an
iterator stays where it is), and nothing of it depends on the process (no `id`, no hash of a text).
"""

from __future__ import annotations

import collections
import enum
import io
import itertools
import json
import logging
import random
import re
import types
import warnings
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

Plain = Any  # None, bool, int, float, str, or lists and dicts of these

_AS_THEY_ARE = (type(None), bool, int, str)
_SPELT = (float, complex, bytes, bytearray, range, slice, type(...), type(NotImplemented))
_SEQUENCES = (list, tuple, collections.deque)
_CONTAINERS = (dict, list, tuple, set, frozenset)  # exactly these have nothing but their items
_FLAT = {type(None), int, str}
_SETS = (set, frozenset)
_ITERATORS = tuple(
    {
        *map(type, (iter([]), iter(()), iter({}), iter(set()), iter(range(0)), iter("a"), iter("é"))),
        *map(type, (reversed([]), zip(), enumerate([]), map(str, []), filter(None, []))),
    }
)
_DEEPEST = 24


def canon(value: Any) -> Plain:
    """`value` as plain data. An object that is met again is said to be the same one."""
    return _Walk().of(value, 0)


def canon_alone(value: Any) -> Plain:
    """`canon` of something whose parts may be shared or copied: who is the same as whom is not said."""
    return _Walk(aliases=False).of(value, 0)


def globals_of(module: types.ModuleType) -> Plain:
    """All that the user's module holds: its data, what its functions close over, attributes of its classes."""
    names = [name for name in vars(module) if not name.startswith("__")]
    return _Walk(own=module.__name__).of({name: vars(module)[name] for name in sorted(names)}, 0)


class _Walk:
    def __init__(self, *, aliases: bool = True, own: str = "") -> None:
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no id is used twice
        self._aliases = aliases
        self._own = own

    def of(self, value: Any, depth: int) -> Plain:
        kind = type(value)
        if kind in _AS_THEY_ARE:
            # JSON has no int beside True, and 1 is not True.
            return value if kind is not bool else ["bool", int(value)]
        if kind in _SPELT:
            return [kind.__name__, repr(value)]
        if depth > _DEEPEST:
            return ["too deep"]
        if issubclass(kind, enum.Enum):
            return ["enum", _name(kind), object.__getattribute__(value, "_name_")]
        if kind in (tuple, frozenset):  # nobody can tell a copy of these
            return self._told(value, kind, depth)
        number = self._numbers.get(id(value))
        if number is not None:
            return ["same", number]
        self._numbers[id(value)] = len(self._numbers)
        self._kept.append(value)
        try:
            return self._told(value, kind, depth)
        finally:
            if not self._aliases:
                del self._numbers[id(value)]

    def _told(self, value: Any, kind: type, depth: int) -> Plain:
        def inner(part: Any) -> Plain:
            return self.of(part, depth + 1)

        if kind in _CONTAINERS:
            return self._contents(value, kind, inner)
        if issubclass(kind, types.ModuleType):
            return ["module", object.__getattribute__(value, "__name__")]
        if issubclass(kind, type):
            return self._class(value, inner)
        if issubclass(kind, types.FunctionType):
            return self._function(value, inner)
        if issubclass(kind, types.MethodType):
            return ["method", _name(value.__func__), inner(value.__self__)]
        if issubclass(kind, types.BuiltinFunctionType | types.MethodWrapperType):
            return ["builtin", value.__name__]
        if issubclass(kind, types.GeneratorType):
            frame = value.gi_frame
            local = {} if frame is None else dict(frame.f_locals)
            return ["generator", value.__name__, -1 if frame is None else frame.f_lasti, inner(local)]
        if kind in _ITERATORS:
            return ["iterator", kind.__name__, inner(_reduced(value))]
        if kind in (itertools.count, itertools.repeat):
            return ["iterator", repr(value)]
        if issubclass(kind, random.Random):
            return ["random", blake2b(repr(random.Random.getstate(value)).encode(), digest_size=8).hexdigest()]
        if issubclass(kind, io.StringIO):
            return ["text file", io.StringIO.getvalue(value), io.StringIO.tell(value)]
        if issubclass(kind, re.Pattern):
            return ["pattern", value.pattern, value.flags]
        if issubclass(kind, logging.Logger):
            return ["logger", value.name]
        if kind.__module__.partition(".")[0] in ("sglc", "threading", "_thread"):
            return ["of a library", _name(kind)]
        return [*self._contents(value, kind, inner), *self._fields(value, kind, inner)]

    def _contents(self, value: Any, kind: type, inner: Callable[[Any], Plain]) -> list[Plain]:
        """Its type, and its items if it is a container."""
        name = _name(kind)
        if issubclass(kind, dict):
            items = [[inner(key), inner(item)] for key, item in dict.items(value)]
            if not items and kind is dict:
                return [name]
            return [name, items]
        for container in _SEQUENCES:
            if issubclass(kind, container):
                if _FLAT.issuperset(map(type, container.__iter__(value))):
                    return [name, list(container.__iter__(value))]
                return [name, [inner(item) for item in container.__iter__(value)]]
        for unordered in _SETS:
            if issubclass(kind, unordered):
                return [name, sorted((inner(item) for item in unordered.__iter__(value)), key=json.dumps)]
        for plain in (int, float, str):
            if issubclass(kind, plain):
                return [name, plain.__repr__(value)]
        return [name]

    def _fields(self, value: Any, kind: type, inner: Callable[[Any], Plain]) -> list[Plain]:
        try:
            own: Mapping[str, Any] = object.__getattribute__(value, "__dict__")
        except AttributeError:
            own = {}
        fields = {**own}
        for base in kind.__mro__:
            slots = base.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                descriptor = base.__dict__.get(slot)
                if isinstance(descriptor, types.MemberDescriptorType):
                    try:
                        fields[slot] = descriptor.__get__(value, kind)
                    except AttributeError:  # never set
                        continue
        return [{str(name): inner(fields[name]) for name in sorted(fields)}] if fields else []

    def _class(self, value: type, inner: Callable[[Any], Plain]) -> Plain:
        if value.__module__ != self._own or issubclass(value, enum.Enum):
            return ["class", _name(value)]
        shown = {
            name: inner(item)
            for name, item in sorted(type.__getattribute__(value, "__dict__").items())
            if not name.startswith("_") and type(item) in (*_AS_THEY_ARE, float, list, dict, set)
        }
        return ["class", _name(value), shown]

    def _function(self, value: types.FunctionType, inner: Callable[[Any], Plain]) -> Plain:
        if value.__module__ != self._own:
            return ["function", _name(value)]
        cells = []
        for cell in value.__closure__ or ():
            try:
                cells.append(inner(cell.cell_contents))
            except ValueError:  # empty
                cells.append(["empty"])
        extra = [
            inner(list(value.__defaults__ or ())),
            inner(value.__kwdefaults__),
            inner(dict(value.__dict__)),
        ]
        return ["function", _name(value), cells, extra]


def _reduced(iterator: Any) -> Any:
    """Where an iterator stands, without moving it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = iterator.__reduce__()
    return [part for part in made if not isinstance(part, types.BuiltinFunctionType | type)]


def _name(value: Any) -> str:
    module = value.__module__
    return value.__qualname__ if module == "builtins" else f"{module}.{value.__qualname__}"
