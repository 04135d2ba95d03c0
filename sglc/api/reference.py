"""Programs as references: what a pickled one is, `module:name` with a hash of its source."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import pickle
import re
import sys
from collections.abc import Mapping
from functools import reduce
from typing import Any, Protocol

from sglc.errors import UsageError
from sglc.execution.plan.prepare import is_declared
from sglc.execution.tool_calls import Tools
from sglc.frontend.language.function import Definition
from sglc.frontend.tracing.makers import maker_named, type_named
from sglc.frontend.tracing.tools import tools_of
from sglc.ir.plan.plan import Plan
from sglc.ir.plan.plan_file import plan_to_text

_MODULE = re.compile(r"([\w.]+)\.\w")  # that stands before the name of a type


class Referred(Protocol):
    """A program, or a bound one."""

    definition: Definition

    def bind(self, **kwargs: Any) -> Any:
        """As `Function.bind`."""


def reference(function: Referred) -> tuple[str, str, str]:
    """Module, name and hash of a program that its module has under its name.

    Raises:
        pickle.PicklingError: it has none, as one that was defined inside of a function.
    """
    call = function.definition.call
    module, name = call.__module__, call.__qualname__
    found = _found(module, name)
    if getattr(found, "definition", None) is not function.definition:
        raise pickle.PicklingError(
            f"`{name}` is not what `{module}` has under that name; define it at the top of a module, "
            "or pickle its plan: `compile(...)`"
        )
    return module, name, _hash(function)


def function_at(module: str, name: str, known: str, bound: Mapping[str, Any]) -> Any:
    """The program that `reference` named.

    Raises:
        UsageError: SGLC059, there is none now, or its source is another one.
        ImportError: its module cannot be imported.
    """
    importlib.import_module(module)
    found: Any = _found(module, name)
    if getattr(found, "definition", None) is None:
        raise UsageError("SGLC059", f"`{module}` has no program `{name}`")
    if _hash(found) != known:
        raise UsageError(
            "SGLC059", f"`{module}:{name}` is another program here than where it was pickled",
            found.definition.loc, hint="pickle it again, or use the same version of its file",
        )  # fmt: skip
    return found.bind(**bound) if bound else found


def pickled_plan(plan: Plan, tools: Tools) -> tuple[str, tuple[str, ...]]:
    """A plan for `pickle`: its text, and the modules of the functions that it calls, and of its types.

    Raises:
        pickle.PicklingError: one of them is not what is declared under its name in the plan.
    """
    declared = tools_of()
    modules: dict[str, None] = {}
    for name, tool in tools.items():
        if spelled := type_named(name):  # what reads its values is found by this name again
            modules.update((module, None) for module in _MODULE.findall(spelled) if module in sys.modules)
            continue
        if is_declared(name) and tool not in (declared.get(name), maker_named(name)):
            raise pickle.PicklingError(f"the plan calls a `{name}` that is no declared function of that name")
        modules[tool.__module__] = None
    return plan_to_text(plan), tuple(modules)


def _found(module: str, name: str) -> Any:
    return reduce(lambda owner, part: getattr(owner, part, None), name.split("."), sys.modules.get(module))


def _hash(function: Referred) -> str:
    try:
        source = inspect.getsource(function.definition.code)
    except OSError:
        source = ""
    return hashlib.sha256(source.encode()).hexdigest()[:16]
