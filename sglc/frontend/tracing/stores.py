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
from types import CodeType, FunctionType, ModuleType
from typing import Any

INSTALLED = tuple({path for path in (*site.getsitepackages(), *sysconfig.get_paths().values()) if path})

# With one of these a function stores by a name that is a text.
_BY_TEXT = frozenset(
    ("setattr", "delattr", "__setattr__", "__delattr__", "__dict__", "vars", "globals", "setitem")
)


@dataclass(slots=True)
class Stores:
    """The user's code with its globals, looked up when it is first asked about, and what was answered."""

    codes: dict[int, tuple[CodeType, Mapping[str, Any]]] = field(default_factory=dict)
    known: dict[tuple[str, int], bool] = field(default_factory=dict)

    def may_store(self, name: str, names: Mapping[str, Any] | None) -> bool:
        """Whether some code may store `name` in `names`, the globals of a module, or (None) as an attribute."""
        if not self.codes:
            self._look(names or {})
        key = name, id(names)
        if key not in self.known:
            codes = self.codes.values()
            self.known[key] = any(_stores(code, name, here=around is names) for code, around in codes)
        return self.known[key]

    def _look(self, names: Mapping[str, Any]) -> None:
        users = [vars(module) for module in list(sys.modules.values()) if _is_users(module)]
        for function in [found for module in (names, *users) for found in _functions(module)]:
            for code in _nested(function.__code__):
                self.codes[id(code)] = code, function.__globals__


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


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _stores(code: CodeType, name: str, *, here: bool) -> bool:
    """Whether code stores a name as a global (`here`: it is one of these globals) or as an attribute."""
    if not _BY_TEXT.isdisjoint(code.co_names) and name in _texts(code.co_consts):
        return True
    if name not in code.co_names:
        return False
    before = None
    for instruction in dis.get_instructions(code):
        if instruction.argval == name:
            if here and instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                return True
            # An attribute of `self` is that of an object, and not of a module or class.
            if instruction.opname in ("STORE_ATTR", "DELETE_ATTR") and before != "self":
                return True
        before = instruction.argval
    return False


def _texts(constants: tuple[Any, ...]) -> Iterator[str]:
    """The texts among constants, of those with dots also the last part, as patches are written."""
    for constant in constants:
        if isinstance(constant, str):
            yield constant
            yield constant.rpartition(".")[2]
        elif isinstance(constant, tuple):
            yield from _texts(constant)
