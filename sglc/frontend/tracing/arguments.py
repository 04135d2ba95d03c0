"""A program's parameters while it is recorded: constants, or data, with or without real values."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import GenericAlias
from typing import Any

from sglc.errors import Loc
from sglc.frontend.language.function import Definition
from sglc.frontend.recorder.recorder import OpRecorder
from sglc.frontend.values.known import Known
from sglc.frontend.values.symbolic import Symbolic, SymbolicText, symbol
from sglc.ir.facts import held_by, spell
from sglc.ir.pure import type_name

_NOTHING = inspect.Parameter.empty
_ANNOTATED = {kind.__name__: kind for kind in (str, int, float, bool, list, dict, tuple)}
_VARIADIC: Mapping[Any, Any] = {inspect.Parameter.VAR_POSITIONAL: (), inspect.Parameter.VAR_KEYWORD: {}}


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """The default of a parameter that is a constant of the recording."""

    value: Any


def argument(
    recorder: OpRecorder, parameter: inspect.Parameter, args: Mapping[str, Any] | None, loc: Loc
) -> Any:
    """A parameter as the program's code sees it; None for any number of arguments of which nothing is known.

    Args:
        args: real values by name; a parameter without one has its default, if that is no text.
    """
    name, default = parameter.name, parameter.default
    if parameter.kind in _VARIADIC and default is _NOTHING:
        if args is None:
            return None
        default = _VARIADIC[parameter.kind]
    match default:
        case Bound(value):
            return SymbolicText((value,), Known(repr(value), value)) if type(value) is str else value
        case Symbolic():  # of a program that calls this one
            return _given(recorder, name, default, loc)
    real = (args or {}).get(name, _NOTHING if isinstance(default, str) else default)
    spelled = None if default is _NOTHING else spell(default)
    if real is _NOTHING:
        kind = _annotated(parameter.annotation)
        return symbol(recorder.argument(name, kind.__name__, spelled, loc), kind=kind)
    if spell(real) is None:  # no data: a function, a file
        return real
    made = recorder.argument(name, type_name(real), spelled, loc, held_by(real))
    return symbol(made, Known(name, real))


def promised(definition: Definition) -> dict[str, str]:
    """The types of parameters by name, as far as their annotations, or else defaults, say them."""
    found = {}
    for parameter in definition.parameters:
        kind = _annotated(parameter.annotation)
        if parameter.annotation is _NOTHING and parameter.default is not _NOTHING:
            kind = type(parameter.default)
        found[parameter.name] = kind.__name__
    return found


def _given(recorder: OpRecorder, name: str, value: Symbolic, loc: Loc) -> Symbolic:
    spelled = type_name(object) if value.kind is object else value.kind.__qualname__
    return symbol(recorder.argument(name, spelled, None, loc), value.known, value.kind)


def _annotated(annotation: Any) -> type:
    """The type that an annotation promises, if it is a plain one; else a text."""
    if isinstance(annotation, GenericAlias):
        annotation = annotation.__origin__
    name = annotation.partition("[")[0] if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return _ANNOTATED.get(name, str)
