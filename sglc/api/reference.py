"""Programs as references: what a pickled one is, `module:name` with a hash of its source."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import pickle
import sys
from collections.abc import Mapping
from functools import reduce
from typing import Any

from sglc.errors import UsageError
from sglc.frontend.language.function import Definition


def reference(definition: Definition) -> tuple[str, str, str]:
    """Module, name and hash of a program that its module has under its name.

    Raises:
        pickle.PicklingError: it has none, as one that was defined inside of a function.
    """
    module, name = definition.call.__module__, definition.call.__qualname__
    if getattr(_found(module, name), "definition", None) is not definition:
        raise pickle.PicklingError(
            f"`{name}` is not what `{module}` has under that name; define it at the top of a module, "
            "or pickle its plan: `compile(...)`"
        )
    return module, name, _hash(definition)


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
    if _hash(found.definition) != known:
        raise UsageError(
            "SGLC059", f"`{module}:{name}` is another program here than where it was pickled",
            found.definition.loc, hint="pickle it again, or use the same version of its file",
        )  # fmt: skip
    return found.bind(**bound) if bound else found


def _found(module: str, name: str) -> Any:
    return reduce(lambda owner, part: getattr(owner, part, None), name.split("."), sys.modules.get(module))


def _hash(definition: Definition) -> str:
    try:
        source = inspect.getsource(definition.code)
    except OSError:
        source = ""
    return hashlib.sha256(source.encode()).hexdigest()[:16]
