"""What a trace has read outside of its program: each read can be done again, so that a change is seen.

A read is a place (a global, a cell, an attribute, what a function is made of) and what was found there: plain
data and containers by value, anything else by identity. No code of the user's runs when it is done again.
"""

from __future__ import annotations

import builtins
import collections
import functools
import inspect
import string
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from types import BuiltinFunctionType, CellType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

from sglc.frontend.tracing.guards import Same, fingerprint, frozen

_DEEPEST = 20  # containers in containers
_PLAIN = (str, int, float, bool, bytes, type(None))


class _Absent:
    """Stands for what is not there."""


ABSENT = _Absent()


class TooDeep(Exception):
    """A container holds containers without an end: it cannot be told whether it has changed."""


@dataclass(frozen=True, slots=True)
class Read:
    """`look(owner, name)` gave `found`."""

    look: Callable[[Any, str], Hashable]
    owner: Any
    name: str
    found: Hashable

    @property
    def shown(self) -> str:
        """The place, for people."""
        match self.owner:
            case dict():
                return f"global {self.name}"
            case CellType():
                return f"closure {self.name}"
            case type() | FunctionType():
                return f"{self.owner.__qualname__}.{self.name}"
            case _:
                name = getattr(self.owner, "__name__", None)
                return f"{name if isinstance(name, str) else type(self.owner).__name__}.{self.name}"


class Reads(dict[tuple[Any, int, str], Read]):
    """By what was looked at, and how: each once.

    Attributes:
        changeable: something that was read, and that a tool could change.
        handed: a tool that was given something which it could change.
    """

    def __init__(self) -> None:
        super().__init__()
        self.changeable = ""
        self.handed = ""

    def add(self, look: Callable[[Any, str], Hashable], owner: Any, name: str) -> None:
        """Note a read.

        Raises:
            TooDeep: what is found cannot be kept.
        """
        key = look, id(owner), name
        if key not in self:
            self[key] = Read(look, owner, name, look(owner, name))

    def changed(self, seen: dict[Any, Hashable] | None = None) -> str:
        """The first place where something else is now; "" if there is none. `seen` is what was looked at."""
        seen = {} if seen is None else seen
        for key, read in self.items():
            if key not in seen:
                try:
                    seen[key] = read.look(read.owner, read.name)
                except TooDeep:
                    seen[key] = Same(read)
            if seen[key] != read.found:
                return read.shown
        return ""


# -- what is found ---------------------------------------------------------------------------------


def kept(value: Any, depth: int = 0) -> Hashable:
    """What is compared of a value: plain data and containers as they are now, anything else by identity.

    An object that only holds data is compared by what it holds too: Python shows and compares it by that.

    Raises:
        TooDeep: it holds containers without an end.
    """
    kind = type(value)
    if kind in _PLAIN:
        return frozen(value)
    if depth > _DEEPEST:
        raise TooDeep
    if isinstance(value, tuple | list | collections.deque):
        # Not by a method of the user's.
        ordered = tuple.__iter__(value) if isinstance(value, tuple) else _listed(value)
        items = tuple([kept(item, depth + 1) for item in ordered])
        return _whose(value, kind), items
    if isinstance(value, dict):
        held = value.items() if _known(kind) else dict.items(value)
        pairs = tuple([(kept(key, depth + 1), kept(item, depth + 1)) for key, item in held])
        return _whose(value, kind), pairs
    if kind in (set, frozenset):
        return kind, frozenset([kept(item, depth + 1) for item in value])
    if kind is functools.partial:
        return kind, kept((value.func, value.args, value.keywords), depth + 1)
    if kind is string.Template:
        return Same(value), value.template
    if isinstance(value, BaseException):
        return Same(value), kept(value.args, depth + 1)
    if is_dataclass(kind):
        return Same(value), kept(_held(value), depth + 1)
    return Same(value)


def _listed(value: list[Any] | collections.deque[Any]) -> Iterator[Any]:
    return list.__iter__(value) if isinstance(value, list) else collections.deque.__iter__(value)


def _whose(value: Any, kind: type) -> Hashable:
    """What is compared of a container besides its items."""
    return (kind, getattr(value, "default_factory", None)) if _known(kind) else Same(value)


def _known(kind: type) -> bool:
    """Whether a container is Python's own, or a named tuple."""
    return kind.__module__ in ("builtins", "collections") or hasattr(kind, "_fields")


def _held(value: Any) -> Mapping[str, Any]:
    try:
        return object.__getattribute__(value, "__dict__")  # type: ignore[no-any-return]
    except AttributeError:
        return {name: static(value, name) for name in type(value).__dataclass_fields__}


# -- where it is found -----------------------------------------------------------------------------


def in_module(names: Mapping[str, Any], name: str) -> Hashable:
    """A global, or else a builtin."""
    return kept(names[name] if name in names else getattr(builtins, name, ABSENT))


def in_cell(cell: CellType, name: str) -> Hashable:
    """A variable of a function around."""
    try:
        return kept(cell.cell_contents)
    except ValueError:
        return kept(ABSENT)


def of_object(owner: Any, name: str) -> Hashable:
    """An attribute of an object, or of a class or module, as far as reading it runs no code."""
    return kept(static(owner, name))


def static(owner: Any, name: str) -> Any:
    """An attribute without running any code; a descriptor of the user's is itself."""
    found = inspect.getattr_static(owner, name, ABSENT)
    if isinstance(found, MemberDescriptorType | GetSetDescriptorType) and not isinstance(owner, type):
        try:
            return found.__get__(owner)
        except AttributeError:
            return ABSENT
    return found


def of_pythons(owner: Any, name: str) -> Hashable:
    """An attribute of an object of Python's own."""
    found = getattr(owner, name, ABSENT)
    return name if isinstance(found, BuiltinFunctionType) else kept(found)


def in_function(function: FunctionType, name: str) -> Hashable:
    """What a function of the user's is made of, besides what it reads."""
    del name
    return Same(function.__code__), kept(function.__defaults__), kept(function.__kwdefaults__)


def behind_function(function: FunctionType, name: str) -> Hashable:
    """All that a function may read which was called and not interpreted."""
    del name
    return tuple(fingerprint(function).items())


def imported(modules: Mapping[str, Any], name: str) -> Hashable:
    """A module that is loaded."""
    return Same(modules.get(name, ABSENT))


def fixed_arguments(program: Any, name: str) -> Hashable:
    """What a program that is called has for parameters that are not given."""
    del name
    defaults = [parameter.default for parameter in program.definition.parameters]
    return kept((dict(program.bound), defaults))


MODULES = sys.modules
