"""What a program finds outside of itself: globals, closures, defaults, arguments, attributes of these.

It may be read, and what was read is remembered, so that a trace is made again when that has changed. It is
never changed: tracing stops before. Behind a tool, which may change anything, what can change is not read;
nor is what the tool was given, wherever that was made. Constants of modules and classes can be read there.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

from sglc.errors import Loc
from sglc.frontend.tracing.call_frame import CallFrame, builtin_of
from sglc.frontend.tracing.stores import Stores
from sglc.frontend.values.graph_breaks import BEHIND_TOOL, NO_DATA, GraphBreak
from sglc.frontend.values.symbolic import SymbolicJson, SymbolicList

_NAMED = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type)
_FIXED = (*_NAMED, logging.Logger)
_PLAIN = (str, int, float, bool, bytes, complex, type(None))
_CONSTANT = (*_PLAIN, range, re.Pattern, date, datetime, time, timedelta, Decimal, Fraction)


@dataclass(slots=True)
class OutsideState:
    """`seen`: by their ids, objects from outside that could be changed; they are kept alive.

    `given`: what else tools were given and could change, with the tool. `early`: what was read before any tool,
    by its name in the globals of a module, or (None) of something else.
    """

    seen: dict[int, Any] = field(default_factory=dict)
    given: dict[int, tuple[Any, str]] = field(default_factory=dict)
    stores: Stores = field(default_factory=Stores)
    early: list[tuple[str, Any, Mapping[str, Any] | None]] = field(default_factory=list)

    def note(self, value: Any) -> Any:
        """Enter something from outside, and what it holds."""
        if isinstance(value, BuiltinFunctionType | MethodType):
            self.note(value.__self__)  # what it may change
        if isinstance(value, _PLAIN + _FIXED) or id(value) in self.seen:
            return value
        self.seen[id(value)] = value
        for item in _held_in(value):
            self.note(item)
        return value

    def is_outside(self, value: Any) -> bool:
        """Whether it was there before the program."""
        return id(value) in self.seen

    def give(self, frame: CallFrame, value: Any, tool: str) -> None:
        """A tool is given `value`.

        Raises:
            GraphBreak: it outlives the program, and a plan would hand over a copy.
        """
        for item in _changeable_in(value).values():
            if self.is_outside(item):
                kind = type(item).__name__
                raise GraphBreak(f"a `{kind}` from outside is given to `{tool}`", frame.loc(), NO_DATA)
            self.given[id(item)] = item, tool

    def read_local(self, name: str, value: Any, place: Callable[[], Loc]) -> Any:
        """A variable of the program, or of its state.

        Raises:
            GraphBreak: a tool that was given what it holds may have changed that.
        """
        if self.given and not isinstance(value, _PLAIN):
            for key in _changeable_in(value):
                if key in self.given:
                    raise GraphBreak(
                        f"`{name}` is read behind `{self.given[key][1]}`, which may have changed it",
                        place(), BEHIND_TOOL,
                    )  # fmt: skip
        return value

    def read_cell(self, frame: CallFrame, name: str, cell: CellType) -> Any:
        """A variable of a function around the program."""
        try:
            value = cell.cell_contents
        except ValueError:
            raise NameError(
                f"cannot access free variable '{name}' where it is not associated with a value"
                " in enclosing scope"
            ) from None
        if not isinstance(value, _FIXED):
            self.early.append(("", value, None))
            self._check(frame, name, value)
        return self.note(value)

    def read_global(self, frame: CallFrame, name: str) -> Any:
        """A global, or a builtin."""
        if name not in frame.globals:
            return builtin_of(name)
        value = frame.globals[name]
        self._check_named(frame, name, name, value, frame.globals)
        return self.note(value)

    def read_attribute(self, frame: CallFrame, owner: Any, name: str, value: Any) -> Any:
        """An attribute of something outside."""
        if not self.is_outside(owner) and not isinstance(owner, _FIXED):
            return value
        if isinstance(owner, ModuleType | type):
            names = vars(owner) if isinstance(owner, ModuleType) else None
            self._check_named(frame, f"{name_of(owner)}.{name}", name, value, names)
        elif not isinstance(value, _FIXED):
            self.early.append(("", value, None))
            self._check(frame, f"{name_of(owner)}.{name}", value)
        return self.note(value)

    def may_differ(self, arguments: Iterable[Any]) -> bool:
        """Whether what was read before any tool could be read as something else behind it."""
        return not all(map(_is_constant, arguments)) or any(
            not name or not _is_constant(value) or self.stores.may_store(name, names)
            for name, value, names in self.early
        )

    def _check(self, frame: CallFrame, name: str, value: Any) -> None:
        if frame.tracer.called_tool and not _ours(value):
            raise GraphBreak(
                f"`{name}` is read behind `{frame.tracer.called_tool}`, which may have changed it",
                frame.loc(), BEHIND_TOOL,
            )  # fmt: skip

    def _check_named(
        self, frame: CallFrame, shown: str, name: str, value: Any, names: Mapping[str, Any] | None
    ) -> None:
        """What stands under a name of a module or class is a constant, if no code of the user's stores it."""
        if not frame.tracer.called_tool and not _ours(value):
            self.early.append((name, value, names))
        if frame.tracer.called_tool and (not _is_constant(value) or self.stores.may_store(name, names)):
            self._check(frame, shown, value)


def _changeable_in(value: Any) -> dict[int, Any]:
    """What a tool could change in a value that it is given, by id: containers, and those in them.

    Data that is an argument is handed over as it is, so there is no copy that could differ.
    """
    found: dict[int, Any] = {}
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if id(item) in found:
            continue
        match item:
            case list() | set() | collections.deque():
                waiting += item
            case dict():
                waiting += item.values()
            case tuple():
                waiting += item
                continue
            case SymbolicList(known=None):
                pass
            case SymbolicJson(known=None) if item.kind in (list, dict, set):
                pass
            case _ if dataclasses.is_dataclass(item) and hasattr(item, "__dict__"):
                waiting += vars(item).values()
            case _:
                continue
        found[id(item)] = item
    return found


def name_of(owner: Any) -> str:
    """What an object is called in a sentence; its own code is not asked."""
    return owner.__name__ if isinstance(owner, _NAMED) else type(owner).__name__


def _held_in(value: Any) -> Iterable[Any]:
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


def _is_constant(value: Any) -> bool:
    """Whether a value cannot change itself."""
    if type(value) in (tuple, frozenset):
        return all(map(_is_constant, value))
    return type(value) in _CONSTANT or isinstance(value, (*_FIXED, Enum))


def _ours(value: Any) -> bool:
    return type(value).__module__.startswith("sglc.")
