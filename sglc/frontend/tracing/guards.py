"""What a function depends on that recording a program calls, so that it is recorded again when that changes.

Of a function that is called as it is, and not interpreted, a fingerprint holds all that it may read: globals,
closure cells, defaults, attributes of modules and objects, and the same of functions that it calls; by value
where it is plain data, else by identity. Two that are equal have nothing changed between; no user code runs.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Generic, TypeVar

from sglc.frontend.language.function import Definition

_V = TypeVar("_V")
_DEEPEST = 3  # attributes of attributes: more of a large graph would cost every hit
_MOST_ENTRIES = 64
_DEEPEST_DATA = 20  # containers in containers
_MOST_CODES = 1024  # whose names are known
_OF_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


class Same:
    """An object that is known by identity, and by its class, which can be assigned.

    It is kept alive, so that no other can take its place.
    """

    __slots__ = ("item", "kind")

    def __init__(self, item: Any) -> None:
        self.item, self.kind = item, type(item)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.item is other.item and self.kind is other.kind

    def __hash__(self) -> int:
        return hash(self.kind.__qualname__)


def frozen(item: Any, depth: int = 0) -> Hashable:
    """Plain data as it is now, equal to that of equal data of the same types; anything else by identity."""
    if depth > _DEEPEST_DATA:  # it may hold itself
        return Same(item)
    match item:
        case None | str() | bool() | int() | bytes() if type(item) in (type(None), str, bool, int, bytes):
            return (type(item).__name__, item)
        case float() if type(item) is float:
            return ("float", repr(item))
        case list() | tuple() if type(item) in (list, tuple):
            return (type(item).__name__, tuple([frozen(part, depth + 1) for part in item]))
        case dict() if type(item) is dict:
            pairs = [(frozen(key, depth + 1), frozen(value, depth + 1)) for key, value in item.items()]
            return ("dict", tuple(pairs))
        case set() | frozenset() if type(item) in (set, frozenset):
            return (type(item).__name__, tuple([frozen(part, depth + 1) for part in item]))
        case _:
            return Same(item)


def fingerprint(function: Callable[..., Any]) -> dict[str, object]:
    """What `function` may read, by a name for people."""
    found: dict[str, object] = {}
    _function(function, "", found, set())
    return found


def _function(function: Any, name: str, found: dict[str, object], seen: set[int]) -> None:
    """`seen`: the ids of functions that were gone through."""
    if id(function) in seen:
        return
    seen.add(id(function))
    code = function.__code__
    found[f"{name}code"] = Same(code)
    found[f"{name}defaults"] = (frozen(function.__defaults__), frozen(function.__kwdefaults__))
    names, globals_read = _names(code)
    for free, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            _value(cell.cell_contents, f"{name}closure {free}", names, found, seen, 0)
        except ValueError:  # nothing was assigned yet
            found[f"{name}closure {free}"] = None
    for read in globals_read:
        if read in function.__globals__:
            _value(function.__globals__[read], f"{name}global {read}", names, found, seen, 0)
        else:
            found[f"{name}global {read}"] = None  # a builtin, or not there yet


@lru_cache(_MOST_CODES)
def _names(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names that the code looks up, and those of them that are globals; of functions in it, too."""
    names = dict.fromkeys(code.co_names)
    steps = dis.get_instructions(code)
    globals_read = dict.fromkeys(step.argval for step in steps if step.opname in _OF_GLOBALS)
    if "getattr" in names:
        names |= dict.fromkeys(text for text in code.co_consts if isinstance(text, str) and text.isidentifier())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner, inner_globals = _names(constant)
            names |= dict.fromkeys(inner)
            globals_read |= dict.fromkeys(inner_globals)
    return tuple(names), tuple(globals_read)


def _value(
    item: Any, name: str, names: tuple[str, ...], found: dict[str, object], seen: set[int], depth: int
) -> None:
    kept = frozen(item)
    found[name] = kept
    inner = _behind(item)
    if inner is not None:
        found[name] = "a function"
        _function(inner, f"{name}: ", found, seen)
    elif isinstance(item, ModuleType) and item.__name__.partition(".")[0] == "sglc":
        return
    elif isinstance(kept, Same) and depth < _DEEPEST:
        for attribute in names:
            try:
                value = inspect.getattr_static(item, attribute)
            except AttributeError:
                continue
            _value(value, f"{name}.{attribute}", names, found, seen, depth + 1)


def _behind(item: Any) -> FunctionType | None:
    """The function whose body may be called."""
    match item:
        case FunctionType() if not of_a_library(item):
            return item
        case MethodType():
            return _behind(item.__func__)
        case _:
            ours = type(item).__module__.startswith("sglc.")
            definition = getattr(item, "definition", None) if ours else None
            if isinstance(definition, Definition):
                return _behind(definition.call)
            if ours and getattr(item, "effects", False):
                return None  # a tool is called when the plan runs, whatever it reads then
            declared = inspect.getattr_static(item, "__wrapped__", None)
            return declared if isinstance(declared, FunctionType) else None


def of_a_library(item: FunctionType | type) -> bool:
    """Whether it is Python's own, or sglc's: these are called, or not, by name, and never entered."""
    root = str(item.__module__).partition(".")[0]
    return root == "sglc" or root in sys.stdlib_module_names


@dataclass(slots=True)
class Memo(Generic[_V]):
    """What was made of a function, by key, as long as everything that was read for it is as it was.

    `made` counts how often something was made anew.
    """

    made: int = 0
    _entries: dict[Hashable, tuple[_V, Callable[[], str]]] = field(default_factory=dict)
    _adding: Lock = field(default_factory=Lock)

    def get(self, key: Hashable, make: Callable[[], tuple[_V, Callable[[], str]]]) -> _V:
        """What `make` gives, now or at an earlier call with the same key; beside it, what says what changed."""
        known = self._entries.get(key)
        if known is not None and not known[1]():
            return known[0]
        made = make()
        with self._adding:  # calls may come from several threads
            self.made += 1
            while key not in self._entries and len(self._entries) >= _MOST_ENTRIES:
                del self._entries[next(iter(self._entries))]  # the oldest
            self._entries[key] = made
        return made[0]
