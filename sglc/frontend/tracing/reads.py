"""What a trace has read outside of its program: each read can be done again, so that a change is seen.

A read is a place (a global, a cell, an attribute, what a function is made of) and what was found there: plain
data and containers by value, anything else by identity. No code of the user's runs when it is done again.
"""

from __future__ import annotations

import builtins
import collections
import functools
import gc
import inspect
import operator
import string
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
)
from typing import Any

from sglc.frontend.tracing.guards import Same, fingerprint, frozen

_DEEPEST = 20  # containers in containers
_PLAIN = (str, int, float, bool, bytes, type(None))
_NONE: dict[Any, Any] = {}
VIEWS = (type(_NONE.keys()), type(_NONE.values()), type(_NONE.items()))


ABSENT = object()  # stands for what is not there

# What Python calls of an object that is compared, shown, asked, gone through or computed with.
RUN_BY_PYTHON = (
    "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__bool__", "__len__",
    "__str__", "__repr__", "__format__", "__iter__", "__next__", "__contains__", "__getitem__",
    "__reversed__", "__index__", "__int__", "__float__", "__abs__", "__round__", "__neg__", "__pos__",
    "__invert__", "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__", "__mul__",
    "__rmul__", "__imul__", "__truediv__", "__rtruediv__", "__itruediv__", "__floordiv__", "__rfloordiv__",
    "__ifloordiv__", "__mod__", "__rmod__", "__imod__", "__pow__", "__rpow__", "__ipow__", "__and__",
    "__rand__", "__iand__", "__or__", "__ror__", "__ior__", "__xor__", "__rxor__", "__ixor__", "__matmul__",
    "__rmatmul__", "__imatmul__", "__lshift__", "__rlshift__", "__ilshift__", "__rshift__", "__rrshift__",
    "__irshift__", "__divmod__", "__rdivmod__",
)  # fmt: skip
_SPECIAL = frozenset([
    *RUN_BY_PYTHON, "__new__", "__init__", "__post_init__", "__setattr__", "__getattr__", "__getattribute__",
    "__call__", "__instancecheck__", "__subclasscheck__", "_missing_",
])  # fmt: skip
_CAN_CHANGE = 1 << 9  # a flag of the classes that Python code makes


class Each(tuple[Any, ...]):
    """Objects that are known by identity."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is Each and len(self) == len(other) and all(map(operator.is_, self, other))

    def __hash__(self) -> int:
        return len(self)


class TooDeep(Exception):
    """A container holds containers without an end: it cannot be told whether it has changed."""


Look = Callable[[Any, str], Any]


@dataclass(frozen=True, slots=True)
class Read:
    """`look(owner, name)` gave what `found` was kept of; `shallow`: containers by identity alone."""

    look: Look
    owner: Any
    name: str
    found: Hashable
    shallow: bool = False

    def now(self) -> Hashable:
        """What is to be kept now; something new if that cannot be said."""
        made = self.look(self.owner, self.name)
        if self.shallow:
            return _whose_own(made)
        try:
            return kept(made)
        except TooDeep:
            return Same(object())

    @property
    def shown(self) -> str:
        """The place, for people."""
        match self.owner:
            case dict() if self.look is not of_pythons:
                return f"global {self.name}"
            case CellType():
                return f"closure {self.name}"
            case type() | FunctionType():
                return f"{self.owner.__qualname__}.{self.name}" if self.name else self.owner.__qualname__
            case _:
                name = getattr(self.owner, "__name__", None)
                return f"{name if isinstance(name, str) else type(self.owner).__name__}.{self.name}"


_Key = tuple[Look, int, str]


class Reads(dict[_Key, Read]):
    """By what was looked at, and how: each once.

    Attributes:
        changeable: something that was read, and that a tool could change.
        handed: a tool that was given something which it could change.
        at_breaks: what was only read where the trace ends; it decides nothing but that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.changeable = ""
        self.handed = ""
        self.at_breaks: dict[_Key, Read] = {}
        self._parted: _Parted | None = None

    def go_back(self, mark: tuple[int, str, str]) -> None:
        """What was noted since then was read at a graph break; `mark`: how many, `changeable`, `handed`."""
        count, self.changeable, self.handed = mark
        self._parted = None
        while len(self) > count:
            key, read = self.popitem()
            if read.look in _SHALLOW:
                read = replace(read, found=_whose_own(read.look(read.owner, read.name)), shallow=True)
            self.at_breaks[key] = read

    def add(self, look: Look, owner: Any, name: str) -> None:
        """Note a read.

        Raises:
            TooDeep: what is found cannot be kept.
        """
        key = look, id(owner), name
        if key not in self:
            self[key] = Read(look, owner, name, kept(look(owner, name)))
            self._parted = None

    def changed(self, seen: dict[_Key, Hashable] | None = None, *, whole: bool = True) -> str:
        """The first place where something else is now; "" if there is none.

        Args:
            seen: what was looked at, for several that are asked together.
            whole: the trace goes on somewhere; else what was read at its breaks is asked too.
        """
        seen = {} if seen is None else seen
        parted = self._parted = self._parted or _Parted(self)
        for key, read in parted.left.items() if parted.same() else self.items():
            found = read.found
            if type(found) is Same:  # known by identity: the quick way
                made = read.look(read.owner, read.name)
                if made is found.item and type(made) is found.kind:
                    continue
            if key not in seen:
                seen[key] = read.now()
            if seen[key] != read.found:
                return read.shown
        for read in () if whole else self.at_breaks.values():
            if read.now() != read.found:
                return read.shown
        return ""


class _Parted:
    """Reads by how they are compared: objects in modules all at once, what is `left` one by one."""

    def __init__(self, reads: Mapping[_Key, Read]) -> None:
        self.modules: list[dict[str, Any]] = []
        self.names: list[str] = []
        self.items: list[Any] = []
        self.kinds: list[type] = []
        self.left: dict[_Key, Read] = {}
        for key, read in reads.items():
            found, owner = read.found, read.owner
            # A builtin is in no module's dictionary; another class of dictionaries looks up in its own way.
            if (
                read.look is in_module
                and type(found) is Same
                and type(owner) is dict
                and owner.get(read.name, ABSENT) is found.item
            ):
                self.modules.append(owner)
                self.names.append(read.name)
                self.items.append(found.item)
                self.kinds.append(found.kind)
            else:
                self.left[key] = read

    def same(self) -> bool:
        """Whether each object is in its module, and of its class."""
        return all(map(operator.is_, map(dict.get, self.modules, self.names), self.items)) and all(
            map(operator.is_, map(type, self.items), self.kinds)
        )


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
    if kind is Same or kind is Each:
        return value  # type: ignore[no-any-return]
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
    if kind in (set, frozenset):  # two that are equal may have different orders
        return kind, tuple([kept(item, depth + 1) for item in value])
    if kind in (bytearray, memoryview):
        return Same(value), _bytes_of(value)
    if isinstance(value, (*VIEWS, MappingProxyType)):
        return Same(value), kept(gc.get_referents(value), depth + 1)
    if kind is functools.partial:
        return kind, kept((value.func, value.args, value.keywords), depth + 1)
    if kind is string.Template:
        return Same(value), value.template
    if isinstance(value, BaseException):
        return Same(value), kept(value.args, depth + 1)
    if is_dataclass(kind) or kind.__module__ == "collections":
        fields = own_fields(value)
        if fields is None:
            fields = {name: of_object(value, name) for name in getattr(kind, "__dataclass_fields__", ())}
        return Same(value), kept(fields, depth + 1)
    return Same(value)


def _bytes_of(value: bytearray | memoryview) -> bytes | None:
    try:
        return bytes(value)
    except ValueError:  # it was released
        return None


def _whose_own(value: Any) -> Hashable:
    """What is compared of a value alone, whatever it holds."""
    return frozen(value) if type(value) in _PLAIN else Same(value)


def _listed(value: list[Any] | collections.deque[Any]) -> Iterator[Any]:
    return list.__iter__(value) if isinstance(value, list) else collections.deque.__iter__(value)


def _whose(value: Any, kind: type) -> Hashable:
    """What is compared of a container besides its items."""
    return (kind, getattr(value, "default_factory", None)) if _known(kind) else Same(value)


def _known(kind: type) -> bool:
    """Whether a container is Python's own, or a named tuple."""
    return kind.__module__ in ("builtins", "collections") or hasattr(kind, "_fields")


def own_fields(value: Any) -> Mapping[str, Any] | None:
    """What an object of the user's holds, by name; its own code is not asked. None: it has slots."""
    try:
        return object.__getattribute__(value, "__dict__")  # type: ignore[no-any-return]
    except AttributeError:
        return None


# -- where it is found -----------------------------------------------------------------------------


def in_module(names: Mapping[str, Any], name: str) -> Any:
    """A global, or else a builtin."""
    return names[name] if name in names else getattr(builtins, name, ABSENT)


def in_cell(cell: CellType, name: str) -> Any:
    """A variable of a function around."""
    del name
    try:
        return cell.cell_contents
    except ValueError:
        return ABSENT


def of_object(owner: Any, name: str) -> Any:
    """An attribute without running any code; a descriptor of the user's is itself."""
    found = inspect.getattr_static(owner, name, ABSENT)
    if isinstance(found, MemberDescriptorType | GetSetDescriptorType) and not isinstance(owner, type):
        try:
            return found.__get__(owner)
        except AttributeError:
            return ABSENT
    return found


def of_pythons(owner: Any, name: str) -> Any:
    """An attribute of an object of Python's own."""
    found = getattr(owner, name, ABSENT)
    if isinstance(found, MethodType) and found.__self__ is owner:
        return found.__func__  # the method is made anew by each look
    return name if isinstance(found, BuiltinFunctionType) else found


def special_methods(kind: type, name: str) -> Any:
    """What Python itself looks up in a class: code of the user's may come there later."""
    del name
    found: list[Any] = []
    for base in kind.__mro__:
        if can_change(base):
            names = vars(base)
            for each in _SPECIAL.intersection(names):
                found += each, names[each]
    return Each(found)


def can_change(kind: type) -> bool:
    """Whether the user's code can store in a class."""
    return bool(kind.__flags__ & _CAN_CHANGE) and kind.__module__ != "enum"


def imported(modules: Mapping[str, Any], name: str) -> Any:
    """A module that is loaded."""
    return modules.get(name, ABSENT)


_SHALLOW = (in_module, in_cell, of_object, of_pythons, imported)


def in_function(function: FunctionType, name: str) -> Any:
    """What a function of the user's is made of, besides what it reads."""
    del name
    code, defaults, named = function.__code__, function.__defaults__, function.__kwdefaults__
    return code if defaults is None and named is None else (code, defaults, named)


def behind_function(function: FunctionType, name: str) -> Any:
    """All that a function may read which was called and not interpreted."""
    del name
    return fingerprint(function)


def fixed_arguments(program: Any, name: str) -> Any:
    """What a program that is called has for parameters that are not given."""
    del name
    return dict(program.bound), [parameter.default for parameter in program.definition.parameters]


MODULES = sys.modules
