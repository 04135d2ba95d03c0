"""What a program finds outside of itself: globals, closures, defaults, arguments, attributes of these.

It may be read, and what was read is remembered, so that a trace is made again when that has changed. It is
never changed: tracing stops before. Behind a tool, which may change anything, what can change is not read;
nor is what the tool was given, wherever that was made. Constants of modules and classes can be read there.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import functools
import gc
import logging
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, Protocol

from sglc.errors import Loc
from sglc.frontend.tracing.reads import (
    ABSENT,
    MODULES,
    VIEWS,
    Reads,
    TooDeep,
    behind_function,
    can_change,
    fixed_arguments,
    imported,
    in_cell,
    in_function,
    in_module,
    of_object,
    of_pythons,
    special_methods,
)
from sglc.frontend.tracing.stores import VARIABLES, Stores
from sglc.frontend.values.graph_breaks import BEHIND_TOOL, GUARDED, OUTSIDE, GraphBreak
from sglc.frontend.values.symbolic import Symbolic, SymbolicJson, SymbolicList
from sglc.ir.core import Value

_NAMED = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type)
_FIXED = (*_NAMED, logging.Logger)
_PLAIN = (str, int, float, bool, bytes, complex, type(None))
_CONSTANT = (
    *_PLAIN, range, slice, re.Pattern, datetime.date, datetime.datetime, datetime.time, datetime.timedelta,
    Decimal, Fraction,
)  # fmt: skip
_SETTLED = (*_CONSTANT, *_FIXED, Enum, Symbolic)
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque, functools.partial)
_DEEPEST = 20


class Place(Protocol):
    """Where a trace stands."""

    called_tool: str  # the last tool before

    def place(self) -> Loc:
        """Where the program stands."""


class Frame(Protocol):
    """A call of a function that is interpreted, as far as its names matter here."""

    globals: dict[str, Any]
    values: dict[str, Any]

    @property
    def tracer(self) -> Place: ...

    @property
    def outer(self) -> Frame | None: ...


@dataclass(slots=True)
class OutsideState:
    """`seen`: by their ids, objects from outside that could be changed; they are kept alive.

    `given` are those of them that are an argument's or the program's, which a trace must not hold. `gave` is
    the data that tools gave, `handed` what they were given. `replaced` are values that Python changed in place
    where the plan made new ones, and containers by their ids, which `kept` keeps alive. `constants` were read
    before any tool: by their names in the globals of a module, among `VARIABLES` or (None) in a class, and by
    what code.
    """

    seen: dict[int, Any] = field(default_factory=dict)
    given: set[int] = field(default_factory=set)
    gave: set[Value] = field(default_factory=set)
    handed: set[Value] = field(default_factory=set)
    reads: Reads = field(default_factory=Reads)
    replaced: frozenset[Value | int] = frozenset()
    kept: list[Any] = field(default_factory=list)
    constants: list[tuple[str, Mapping[str, Any] | None, Mapping[str, Any]]] = field(default_factory=list)
    stores: Stores = field(default_factory=Stores)

    def note(self, value: Any) -> Any:
        """Enter something from outside, and what it holds."""
        if isinstance(value, BuiltinFunctionType | MethodType):
            self.note(value.__self__)  # what it may change
        if isinstance(value, _PLAIN + _FIXED) or id(value) in self.seen:
            return value
        self.seen[id(value)] = value
        for item in held_in(value):
            self.note(item)
        return value

    def note_given(self, value: Any) -> None:
        """`note` what is an argument's."""
        before = set(self.seen)
        self.note(value)
        new = self.seen.keys() - before
        self.given |= new
        for key in new:
            for item in in_fields_of(self.seen[key]):
                self.note_given(item)

    def give(self, tracer: Place, name: str, args: Iterable[Any]) -> None:
        """A tool is about to be given these.

        Raises:
            GraphBreak: it would get a copy of something outside, and may change that.
        """
        for arg in args:
            found = self._reached(arg, 0)
            if found is not None and not isinstance(found, Symbolic):
                reason = f"a `{type(found).__name__}` from outside is given to `{name}`, which may change it"
                raise GraphBreak(reason, tracer.place(), OUTSIDE)

    def called(self, name: str, args: Iterable[Any], gave: Any) -> None:
        """A tool was given these: it may change what can be changed, now or later."""
        for arg in args:
            if self._can_change(arg):
                self.reads.handed = self.reads.handed or name
                if isinstance(arg, SymbolicJson | SymbolicList):
                    self.handed.add(arg.value)
            self.note_given(arg)
        if isinstance(gave, SymbolicJson):
            self.gave.add(gave.value)
        for read, names, own in self.constants:
            if not self.reads.changeable and self.stores.may_store(read, names, own):
                self.reads.changeable = read
        self.constants.clear()

    def _can_change(self, arg: Any) -> bool:
        """Whether it is no text or number; parts of what a tool gave are taken for such."""
        if isinstance(arg, SymbolicJson) and arg.known is not None:
            return not isinstance(arg.known.real, _SETTLED)
        if isinstance(arg, SymbolicJson):
            return arg.kind in (list, dict, set) or arg.value in self.gave
        return isinstance(arg, SymbolicList) or not (isinstance(arg, _SETTLED) or _ours(arg))

    def is_outside(self, value: Any) -> bool:
        """Whether it was there before the program."""
        return id(value) in self.seen

    def read_cell(self, frame: Frame, name: str, cell: CellType) -> Any:
        """A variable of a function around the program."""
        self._keep(frame, in_cell, cell, name)
        value = in_cell(cell, name)
        if value is ABSENT:
            where = "where it is not associated with a value in enclosing scope"
            raise NameError(f"cannot access free variable '{name}' {where}")
        if not isinstance(value, _FIXED):
            self._check_named(frame, name, name, value, VARIABLES)
        return self.note(value)

    def read_global(self, frame: Frame, name: str) -> Any:
        """A global, or a builtin."""
        self._keep(frame, in_module, frame.globals, name)
        value = in_module(frame.globals, name)
        if value is ABSENT:
            raise NameError(f"name '{name}' is not defined")
        if name not in frame.globals:
            return value
        self._check_named(frame, name, name, value, frame.globals)
        return self.note(value)

    def read_attribute(self, frame: Frame, owner: Any, name: str, value: Any) -> Any:
        """An attribute of something outside."""
        if not self.is_outside(owner) and not isinstance(owner, (*_FIXED, Enum)):
            return value
        if is_sglc(owner):
            return self.note(value)  # no tool patches it in a run; before one, a guard sees it
        if isinstance(owner, ModuleType | type | Enum):
            names = vars(owner) if isinstance(owner, ModuleType) else None
            self._check_named(frame, f"{name_of(owner)}.{name}", name, value, names)
        elif type(owner) is tuple and _is_constant(value):
            return value
        elif not isinstance(value, _FIXED):
            self._check(frame, f"{name_of(owner)}.{name}", value)
        return self.note(value)

    def look_up(self, frame: Frame, owner: Any, name: str) -> None:
        """An attribute is about to be read: of an object, or of its class if the object is the program's."""
        if not self.is_outside(owner) and not isinstance(owner, (*_FIXED, Enum)):
            owner = type(owner)
        if is_sglc(owner):
            self._keep(frame, in_module, vars(owner), name)  # quick: every program reads some
        elif not _ours(owner):
            self._keep(frame, of_object, owner, name)
            if isinstance(owner, type) and can_change(type(owner)):  # a property there goes before
                self._keep(frame, of_object, type(owner), name)

    def look_up_class(self, kind: type) -> None:
        """Python is about to look up a special method of a class."""
        if can_change(kind) and not kind.__module__.startswith("sglc."):
            self.reads.add(special_methods, kind, "")

    def look_up_pythons(self, frame: Frame, owner: Any, name: str) -> None:
        """`look_up` of an object of Python's own, or of what Python stores in one."""
        if self.is_outside(owner) or isinstance(owner, (*_FIXED, Enum)):
            self._keep(frame, of_pythons, owner, name)

    def import_module(self, frame: Frame, name: str) -> None:
        """A module that is loaded is about to be read."""
        self._keep(frame, imported, MODULES, name)

    def enter(self, function: FunctionType) -> None:
        """A function is about to be interpreted."""
        self.reads.add(in_function, function, "")

    def call_as_it_is(self, function: FunctionType) -> None:
        """A function is about to be called, and not interpreted."""
        self.reads.add(behind_function, function, "")

    def call_program(self, program: Any) -> None:
        """A program is about to be called, whose parameters may be fixed."""
        self.reads.add(fixed_arguments, program, "")

    def _keep(self, frame: Frame, look: Callable[[Any, str], Hashable], owner: Any, name: str) -> None:
        if id(owner) in self.given:
            return
        try:
            self.reads.add(look, owner, name)
        except TooDeep:
            reason = f"`{name}` holds containers without an end"
            raise GraphBreak(reason, frame.tracer.place(), GUARDED) from None

    def _check(self, frame: Frame, name: str, value: Any) -> None:
        if _ours(value):
            return
        if frame.tracer.called_tool:
            raise behind_tool(frame.tracer, f"`{name}`")
        if not isinstance(value, _SETTLED):
            self.reads.changeable = self.reads.changeable or name

    def unchanged(self, tracer: Place, *values: Any, name: str = "") -> None:
        """What is used now, a variable if it has a name, may be or hold something that a tool may have changed:
        it was read outside before, or given to the tool.

        Raises:
            GraphBreak: the tool may have changed it, or it was changed in place by another name, where a plan
                made a new one.
        """
        if self.replaced and any(map(self._is_replaced, values)):
            what = f"`{name}`" if name else "a value"
            raise GraphBreak(f"{what} was changed in place, by another name", tracer.place(), OUTSIDE)
        if not tracer.called_tool:
            return
        for value in values:
            found = self._reached(value, 0)
            if found is not None:
                what = "what it was given" if isinstance(found, Symbolic) else f"a `{type(found).__name__}`"
                raise behind_tool(tracer, f"`{name}`" if name else what)

    def _is_replaced(self, value: Any, depth: int = 0) -> bool:
        """Whether it is or holds what was changed in place in Python, and not in the plan."""
        if isinstance(value, SymbolicJson | SymbolicList):
            return value.value in self.replaced
        if id(value) in self.replaced:
            return True
        return depth <= _DEEPEST and any(self._is_replaced(item, depth + 1) for item in held_in(value))

    def _reached(self, value: Any, depth: int) -> Any:
        """What is outside, and could be changed, of a value and what it holds."""
        if isinstance(value, MethodType | BuiltinFunctionType):
            return self._reached(value.__self__, depth + 1)
        if isinstance(value, SymbolicJson | SymbolicList) and value.value in self.handed:
            return value
        if isinstance(value, _SETTLED) or _ours(value) or depth > _DEEPEST:
            return None
        within = held_in(value)
        if hasattr(type(value), "__next__") or isinstance(value, VIEWS):
            within = gc.get_referents(value)
        elif dataclasses.is_dataclass(value):
            within = in_fields_of(value)
        elif not isinstance(value, _CONTAINERS) and not self.is_outside(value):
            return None
        if self.is_outside(value) and not isinstance(value, tuple | frozenset | functools.partial):
            return value
        for item in within:
            found = self._reached(item, depth + 1)
            if found is not None:
                return found
        return None

    def _check_named(
        self, frame: Frame, shown: str, name: str, value: Any, names: Mapping[str, Any] | None
    ) -> None:
        """What has a name in a module, class or function is a constant, if no code of the user's stores it."""
        if not _is_constant(value):
            self._check(frame, shown, value)
        elif not frame.tracer.called_tool:
            self.constants.append((name, names, frame.globals))
        elif self.stores.may_store(name, names, frame.globals):
            self._check(frame, shown, value)


def behind_tool(tracer: Place, what: str) -> GraphBreak:
    """Why tracing stops before a read behind a tool."""
    reason = f"{what} is read behind `{tracer.called_tool}`, which may have changed it"
    return GraphBreak(reason, tracer.place(), BEHIND_TOOL)


def is_sglc(owner: Any) -> bool:
    """Whether it is a module of this package."""
    return isinstance(owner, ModuleType) and owner.__name__.partition(".")[0] == "sglc"


def name_of(owner: Any) -> str:
    """What an object is called in a sentence; its own code is not asked."""
    return owner.__name__ if isinstance(owner, _NAMED) else type(owner).__name__


def held_in(value: Any) -> Iterable[Any]:
    """What can be had of a container without running any code of the user's."""
    match value:
        case functools.partial():
            return value.func, *value.args, *value.keywords.values()
        case dict() if type(value).__module__ in ("builtins", "collections"):
            return *value, *value.values()
        case list() | tuple() | set() | frozenset() | collections.deque() if (
            type(value).__module__ in ("builtins", "collections") or type(value).__iter__ is tuple.__iter__
        ):
            return tuple(value)
        case _:
            return ()


def in_fields_of(value: Any) -> Iterable[Any]:
    """What an object of a dataclass holds."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type) or not hasattr(value, "__dict__"):
        return ()
    return tuple(vars(value).values())


def _is_constant(value: Any) -> bool:
    """Whether a value cannot change itself."""
    if type(value) in (tuple, frozenset):
        return all(map(_is_constant, value))
    return type(value) in _CONSTANT or isinstance(value, (*_FIXED, Enum))


def _ours(value: Any) -> bool:
    return type(value).__module__.startswith("sglc.")
