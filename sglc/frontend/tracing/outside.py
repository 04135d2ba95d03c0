"""What a program finds outside of itself: globals, closures, defaults, arguments, attributes of these.

It may be read, and what was read is remembered, so that a trace is made again when that has changed. It is
never changed: tracing stops before. Behind a tool, which may change anything, what can change is not read.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from sglc.frontend.tracing.call_frame import CallFrame, builtin_of
from sglc.frontend.tracing.reads import (
    MODULES,
    Reads,
    TooDeep,
    behind_function,
    fixed_arguments,
    imported,
    in_cell,
    in_function,
    in_module,
    of_object,
    of_pythons,
)
from sglc.frontend.values.graph_breaks import BEHIND_TOOL, GUARDED, GraphBreak

_FIXED = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type)
_PLAIN = (str, int, float, bool, bytes, complex, type(None))


@dataclass(slots=True)
class OutsideState:
    """`seen`: by their ids, objects from outside that could be changed; they are kept alive. `given` are those
    of them that are an argument's, which a trace must not hold."""

    seen: dict[int, Any] = field(default_factory=dict)
    given: set[int] = field(default_factory=set)
    reads: Reads = field(default_factory=Reads)
    stored: dict[int, tuple[Mapping[str, Any], frozenset[str]]] = field(default_factory=dict)

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

    def note_given(self, value: Any) -> None:
        """`note` what is an argument's."""
        before = set(self.seen)
        self.note(value)
        self.given |= self.seen.keys() - before

    def is_outside(self, value: Any) -> bool:
        """Whether it was there before the program."""
        return id(value) in self.seen

    def read_cell(self, frame: CallFrame, name: str, cell: CellType) -> Any:
        """A variable of a function around the program."""
        self._keep(frame, in_cell, cell, name)
        try:
            value = cell.cell_contents
        except ValueError:
            raise NameError(
                f"cannot access free variable '{name}' where it is not associated with a value"
                " in enclosing scope"
            ) from None
        if not isinstance(value, _FIXED):
            self._check(frame, name, value)
        return self.note(value)

    def read_global(self, frame: CallFrame, name: str) -> Any:
        """A global, or a builtin."""
        self._keep(frame, in_module, frame.globals, name)
        if name not in frame.globals:
            return builtin_of(name)
        value = frame.globals[name]
        fixed = isinstance(value, _FIXED) or not frame.tracer.called_tool
        if not fixed and (not isinstance(value, _PLAIN) or name in self._stored_in(frame.globals)):
            self._check(frame, name, value)
        return self.note(value)

    def read_attribute(self, frame: CallFrame, owner: Any, name: str, value: Any) -> Any:
        """An attribute of something outside."""
        if not self.is_outside(owner) and not isinstance(owner, _FIXED):
            return value
        if not isinstance(value, _FIXED):
            self._check(frame, f"{name_of(owner)}.{name}", value)
        return self.note(value)

    def look_up(self, frame: CallFrame, owner: Any, name: str) -> None:
        """An attribute is about to be read: of an object, or of its class if the object is the program's."""
        if not self.is_outside(owner) and not isinstance(owner, _FIXED):
            owner = type(owner)
        if not _ours(owner):
            self._keep(frame, of_object, owner, name)

    def look_up_pythons(self, frame: CallFrame, owner: Any, name: str) -> None:
        """`look_up` of an object of Python's own."""
        if self.is_outside(owner) or isinstance(owner, _FIXED):
            self._keep(frame, of_pythons, owner, name)

    def import_module(self, frame: CallFrame, name: str) -> None:
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

    def _keep(self, frame: CallFrame, look: Callable[[Any, str], Hashable], owner: Any, name: str) -> None:
        if id(owner) in self.given:
            return
        try:
            self.reads.add(look, owner, name)
        except TooDeep:
            raise GraphBreak(f"`{name}` holds containers without an end", frame.loc(), GUARDED) from None

    def _check(self, frame: CallFrame, name: str, value: Any) -> None:
        if frame.tracer.called_tool and not _ours(value):
            raise GraphBreak(
                f"`{name}` is read behind `{frame.tracer.called_tool}`, which may have changed it",
                frame.loc(), BEHIND_TOOL,
            )  # fmt: skip

    def _stored_in(self, names: Mapping[str, Any]) -> frozenset[str]:
        """The globals that some function of the module assigns: constants are the others."""
        if id(names) not in self.stored:
            found: set[str] = set()
            for value in list(names.values()):
                for function in _functions(value):
                    _stores(function.__code__, found)
            self.stored[id(names)] = names, frozenset(found)
        return self.stored[id(names)][1]


def name_of(owner: Any) -> str:
    """What an object is called in a sentence; its own code is not asked."""
    return owner.__name__ if isinstance(owner, _FIXED) else type(owner).__name__


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


def _functions(value: Any) -> list[FunctionType]:
    if _ours(value):  # a declared function, or a program
        value = getattr(value, "__wrapped__", None)
    if isinstance(value, type):
        return [part for part in vars(value).values() if isinstance(part, FunctionType)]
    return [value] if isinstance(value, FunctionType) else []


def _stores(code: CodeType, found: set[str]) -> None:
    import dis

    for instruction in dis.get_instructions(code):
        if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            found.add(instruction.argval)
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            _stores(constant, found)


def _ours(value: Any) -> bool:
    return type(value).__module__.startswith("sglc.")
