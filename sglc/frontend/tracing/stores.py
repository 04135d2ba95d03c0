"""Which names the user's code may store anew, as its byte code shows: what no code stores is a constant.

It is looked for in every module that is the user's, since a tool may call any of them. Not seen are names that
are put together when they are stored, and code that is loaded later.
"""

from __future__ import annotations

import dis
import operator
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Lock
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeGuard

INSTALLED = tuple({path for path in (*site.getsitepackages(), *sysconfig.get_paths().values()) if path})
_OTHERS = (*INSTALLED, f"{Path(__file__).parents[2]}/")

# With one of these a function stores by a name that is a text.
_BY_TEXT = frozenset(
    ("setattr", "delattr", "__setattr__", "__delattr__", "__dict__", "vars", "globals", "setitem")
)

_KINDS = {"GLOBAL": "global", "ATTR": "attribute", "DEREF": "variable"}
_STORING = {f"{verb}_{what}": kind for verb in ("STORE", "DELETE") for what, kind in _KINDS.items()}
_STORING_OPS = frozenset(dis.opmap[name] for name, kind in _STORING.items() if kind != "variable")
_STORING_AROUND = frozenset(dis.opmap[name] for name, kind in _STORING.items() if kind == "variable")

VARIABLES: Mapping[str, Any] = {}  # stands for the variables of functions around others


# What code stores, by name: a "global" of its own module, an "attribute" of anything, a "variable" around it.
_Stored = frozenset[tuple[str, str]]

# By the id of the code, which is kept alive: looking into byte code takes long, and code does not change.
_KNOWN: dict[int, tuple[CodeType, _Stored]] = {}
_ADDING = Lock()
_MOST = 1 << 16


@dataclass(slots=True)
class Stores:
    """What the user's code stores, looked up when it is first asked about."""

    stored: set[tuple[str | int, str]] = field(default_factory=set)  # a global by the id of the globals
    seen: set[int] = field(default_factory=set)  # the ids of what was looked into

    def may_store(self, name: str, names: Mapping[str, Any] | None, own: Mapping[str, Any]) -> bool:
        """Whether some code may store `name`.

        Args:
            names: the globals of a module, `VARIABLES`, or None: an attribute.
            own: the globals of the code that reads it, which may be those of no module.
        """
        if not self.seen:
            for module in _users():
                self._look(vars(module))
        self._look(own)
        owner, attribute = ("variable", "cell_contents") if names is VARIABLES else (id(names), name)
        return ("attribute", attribute) in self.stored or (owner, name) in self.stored

    def _look(self, names: Mapping[str, Any]) -> None:
        if id(names) in self.seen:
            return
        self.seen.add(id(names))
        for function in self._functions(names.values()):
            for kind, name in _stored_by(function.__code__):
                self.stored.add((id(function.__globals__) if kind == "global" else kind, name))

    def _functions(self, values: Iterable[Any]) -> Iterator[FunctionType]:
        """The functions among the values of a module or class, declared ones and methods too; runs no code."""
        for value in list(values):
            kind = type(value)
            if kind is FunctionType:
                yield value
                if value.__dict__:
                    yield from self._functions([value.__dict__.get("__wrapped__")])
            elif issubclass(kind, type):
                if id(value) not in self.seen and not _installed(value):
                    self.seen.add(id(value))
                    yield from self._functions(each for each in vars(value).values() if type(each) is not type)
            elif issubclass(kind, staticmethod | classmethod):
                yield from self._functions([value.__func__])
            elif issubclass(kind, property):
                yield from self._functions([value.fget, value.fset])
            elif kind.__module__.startswith("sglc."):
                yield from self._functions([getattr(value, "__wrapped__", None)])


def _users() -> Sequence[ModuleType]:
    """The modules that are the user's. Libraries have thousands of others: they are told apart once."""
    global _LOADED
    now = list(sys.modules.values())
    before, found = _LOADED
    if len(now) != len(before) or not all(map(operator.is_, now, before)):
        found = tuple(module for module in now if _is_users(module))
        _LOADED = now, found
    return found


_LOADED: tuple[list[ModuleType], Sequence[ModuleType]] = [], ()  # at the last look


def _is_users(module: object) -> TypeGuard[ModuleType]:
    if not isinstance(module, ModuleType) or module.__name__.partition(".")[0] == "sglc":
        return False
    return module.__name__ == "__main__" or is_users_file(vars(module).get("__file__") or "")


@lru_cache(maxsize=1 << 14)
def is_users_file(file: str) -> bool:
    """Whether a module or a function is none of an installed one."""
    return bool(file) and not file.startswith((*INSTALLED, "<frozen"))


def _installed(class_: type) -> bool:
    """Whether it is a class of a library: what the user's code puts there is found where that code stands."""
    name = vars(class_).get("__module__")
    return isinstance(name, str) and name in sys.modules and not _is_users(sys.modules[name])


def _stored_by(code: CodeType) -> _Stored:
    """What code stores, that of functions inside too."""
    known = _KNOWN.get(id(code))
    if known is None:
        installed = code.co_filename.startswith(_OTHERS)  # it is only imported
        known = code, frozenset() if installed else _looked_up(code)
        with _ADDING:
            while id(code) not in _KNOWN and len(_KNOWN) >= _MOST:
                del _KNOWN[next(iter(_KNOWN))]  # the oldest
            _KNOWN[id(code)] = known
    return known[1]


def _looked_up(code: CodeType) -> _Stored:
    found: set[tuple[str, str]] = set()
    if not _BY_TEXT.isdisjoint(code.co_names):
        found.update(("attribute", text) for text in _texts(code.co_consts))
    before = None
    ops = code.co_code[::2]  # most code stores nothing, and to take it apart takes long
    stores = not _STORING_OPS.isdisjoint(ops) or (code.co_freevars and not _STORING_AROUND.isdisjoint(ops))
    for instruction in dis.get_instructions(code) if stores else ():
        kind, name = _STORING.get(instruction.opname, ""), instruction.argval
        outer = kind == "global" or (kind == "variable" and name in code.co_freevars)
        # An attribute of `self` is that of an object, and not of a module or class.
        if outer or (kind == "attribute" and before != "self"):
            found.add((kind, name))
        before = name
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _stored_by(constant)
    return frozenset(found)


def _texts(constants: tuple[Any, ...]) -> Iterator[str]:
    """The texts among constants, of those with dots also the last part, as patches are written."""
    for constant in constants:
        if isinstance(constant, str):
            yield constant
            yield constant.rpartition(".")[2]
        elif isinstance(constant, tuple):
            yield from _texts(constant)
