"""Which names the user's code may store anew, as its byte code shows: what no code stores is a constant.

It is looked for in every module that is the user's, since a tool may call any of them. Not seen are names that
are put together when they are stored, and code that is loaded later.
"""

from __future__ import annotations

import dis
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

INSTALLED = tuple({path for path in (*site.getsitepackages(), *sysconfig.get_paths().values()) if path})
_OTHERS = (*INSTALLED, f"{Path(__file__).parents[2]}/")

# With one of these a function stores by a name that is a text.
_BY_TEXT = frozenset(
    ("setattr", "delattr", "__setattr__", "__delattr__", "__dict__", "vars", "globals", "setitem")
)


VARIABLES: Mapping[str, Any] = {}  # stands for the variables of functions around others


@dataclass(frozen=True, slots=True)
class _Stored:
    """What code stores: as globals of its own module, as attributes of anything, as variables around it."""

    as_globals: frozenset[str]
    as_attributes: frozenset[str]
    as_variables: frozenset[str]


# By the id of the code, which is kept alive: looking into byte code takes long, and code does not change.
_KNOWN: dict[int, tuple[CodeType, _Stored]] = {}
_MOST = 1 << 16


@dataclass(slots=True)
class Stores:
    """What the user's code stores, looked up when it is first asked about."""

    as_globals: dict[int, set[str]] = field(default_factory=dict)  # by the id of the globals
    as_attributes: set[str] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)  # the ids of what was looked into

    def may_store(self, name: str, names: Mapping[str, Any] | None, own: Mapping[str, Any]) -> bool:
        """Whether some code may store `name`.

        Args:
            names: the globals of a module, `VARIABLES`, or None: an attribute.
            own: the globals of the code that reads it, which may be those of no module.
        """
        if not self.seen:
            for module in list(sys.modules.values()):
                if _is_users(module):
                    self._look(vars(module))
        self._look(own)
        attribute = "cell_contents" if names is VARIABLES else name
        return attribute in self.as_attributes or name in self.as_globals.get(id(names), ())

    def _look(self, names: Mapping[str, Any]) -> None:
        if id(names) in self.seen:
            return
        self.seen.add(id(names))
        for function in _functions(names):
            if function.__code__.co_filename.startswith(_OTHERS):  # it is only imported here
                continue
            stored = _stored_by(function.__code__)
            self.as_attributes |= stored.as_attributes
            self.as_globals.setdefault(id(function.__globals__), set()).update(stored.as_globals)
            self.as_globals.setdefault(id(VARIABLES), set()).update(stored.as_variables)


def _is_users(module: object) -> bool:
    if not isinstance(module, ModuleType) or module.__name__.partition(".")[0] == "sglc":
        return False
    file = vars(module).get("__file__") or ""
    return module.__name__ == "__main__" or bool(file and not file.startswith((*INSTALLED, "<frozen")))


def _functions(names: Mapping[str, Any]) -> Iterator[FunctionType]:
    """The functions of a module or class, what is declared and methods among them; no code of theirs is run."""
    for value in list(names.values()):
        match value:
            case type():
                yield from _functions(
                    {key: each for key, each in vars(value).items() if type(each) is not type}
                )
            case staticmethod() | classmethod():
                yield from _functions({"": value.__func__})
            case property():
                yield from _functions({"get": value.fget, "set": value.fset})
            case FunctionType():
                yield value
                yield from _functions({"": vars(value).get("__wrapped__")})
            case _ if type(value).__module__.startswith("sglc."):
                yield from _functions({"": getattr(value, "__wrapped__", None)})


def _stored_by(code: CodeType) -> _Stored:
    """What code stores, that of functions inside too."""
    known = _KNOWN.get(id(code))
    if known is None:
        if len(_KNOWN) >= _MOST:
            del _KNOWN[next(iter(_KNOWN))]  # the oldest
        known = _KNOWN[id(code)] = code, _looked_up(code)
    return known[1]


def _looked_up(code: CodeType) -> _Stored:
    as_globals: set[str] = set()
    as_attributes: set[str] = set()
    as_variables: set[str] = set()
    if not _BY_TEXT.isdisjoint(code.co_names):
        as_attributes.update(_texts(code.co_consts))
    before = None
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            as_globals.add(instruction.argval)
        if instruction.opname in ("STORE_DEREF", "DELETE_DEREF") and instruction.argval in code.co_freevars:
            as_variables.add(instruction.argval)
        # An attribute of `self` is that of an object, and not of a module or class.
        if instruction.opname in ("STORE_ATTR", "DELETE_ATTR") and before != "self":
            as_attributes.add(instruction.argval)
        before = instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = _stored_by(constant)
            as_globals |= inner.as_globals
            as_attributes |= inner.as_attributes
            as_variables |= inner.as_variables
    return _Stored(frozenset(as_globals), frozenset(as_attributes), frozenset(as_variables))


def _texts(constants: tuple[Any, ...]) -> Iterator[str]:
    """The texts among constants, of those with dots also the last part, as patches are written."""
    for constant in constants:
        if isinstance(constant, str):
            yield constant
            yield constant.rpartition(".")[2]
        elif isinstance(constant, tuple):
            yield from _texts(constant)
