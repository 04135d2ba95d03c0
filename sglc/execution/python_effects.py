"""What a program may do without declaring it: a plan prints, logs, warns, reads pictures as its Python would.

A log record and a warning have the place in the program, not the one here: filters look at it.
"""

from __future__ import annotations

import builtins
import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sglc.frontend.language.image import data_of
from sglc.ir.effects import LOG_LEVELS
from sglc.ir.pure import READ_PICTURE

WARNINGS = {
    name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Warning)
}
_METHODS = {method: getattr(logging.Logger, method) for method in (*LOG_LEVELS, "_log")}
# What has been warned of once, of modules that are not here: a plan runs without them.
_REGISTRIES: dict[str, dict[Any, Any]] = {}


def _print(*args: Any, error: bool = False, **named: Any) -> None:
    print(*args, file=sys.stderr if error else sys.stdout, **named)


def _log(name: str, level: str, *args: Any, at: Sequence[Any]) -> None:
    """Log as `Logger.info` and the like do. `at`: the module, its file, the line and the function."""
    module, file, line, function = at
    logger, number = logging.getLogger(name), getattr(logging, level.upper())
    if any(getattr(getattr(logger, own), "__func__", None) is not _METHODS[own] for own in (level, "_log")):
        getattr(logger, level)(*args)  # it was patched since the program was compiled
    elif logger.isEnabledFor(number):
        message, *values = args
        where = _path(module, file), line
        logger.handle(logger.makeRecord(name, number, *where, message, tuple(values), None, function))


def _warn(message: Any, category: str, *, at: Sequence[Any]) -> None:
    """Warn as `warnings.warn` does; `category` is one of `WARNINGS`, `at` as of `_log`."""
    module, file, line, _ = at
    names = vars(sys.modules[module]) if module in sys.modules else _REGISTRIES.setdefault(module, {})
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, WARNINGS[category], _path(module, file), line, module, registry)


def _path(module: str, file: str) -> str:
    """The path of a file that is shown as `file`, as the module has it."""
    path = getattr(sys.modules.get(module), "__file__", None) or ""
    return path if path.endswith(file) else os.path.abspath(file) if os.path.exists(file) else file


# What a plan reads, as its Python would: no effect, and no declared function either.
READS: Mapping[str, Callable[..., Any]] = MappingProxyType({READ_PICTURE: data_of})
EFFECTS: Mapping[str, Callable[..., Any]] = MappingProxyType(  # by their names in a plan
    {"print": _print, "logging": _log, "warnings.warn": _warn}
)
