"""What arguments are to be, and what the command line makes of texts and JSON for that.

Until a program is called its arguments are JSON's own data: they go to other processes, and into manifests.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import EnumMeta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from sglc.errors import UsageError, shown

if TYPE_CHECKING:
    from sglc.api.function import Function
    from sglc.api.plan import LoadedPlan
    from sglc.ir.plan.plan import Param

_NOT_EVALUATED = (NameError, AttributeError, TypeError, SyntaxError)


@dataclass(frozen=True, slots=True)
class ArgumentType:
    """A type that an argument has: `name` is what people call it.

    `read` gives the value that data stand for, and raises ValueError; without it they are the value.
    """

    name: str
    read: Callable[[Any], Any] | None = None

    def of_text(self, text: str) -> Any:
        """The data that a text stands for: of a class, or where several types fit, the text itself or JSON.

        Raises:
            ValueError, KeyError: it stands for nothing of this type.
        """
        match self.name:
            case "int":
                return int(text)
            case "float":
                return float(text)
            case "bool":
                return _TRUTH[text.lower()]
        if self.read is None:
            return text
        try:
            self.read(text)
            return text
        except ValueError as error:
            no_text = error
        data = _TRUTH.get(text.lower())
        try:
            data = _json(text) if data is None else data
        except ValueError:
            raise no_text from None
        self.read(data)
        return data


Types = Mapping[str, ArgumentType]
TEXT = ArgumentType("str")
_TRUTH = {"true": True, "false": False}


def _json(text: str) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"`{constant}` is no JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def types_of(function: Function | LoadedPlan) -> dict[str, ArgumentType]:
    """The types of its arguments, as far as they are known."""
    from sglc.api.plan import LoadedPlan
    from sglc.frontend.outputs.typed import reader_of
    from sglc.frontend.tracing.arguments import promised

    if isinstance(function, LoadedPlan):
        return {param.name: _of_plan(param) for param in function.plan.params}
    definition = function.definition
    plain = promised(definition)
    found = {}
    for parameter in definition.parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        read = reader_of(_annotation(parameter, definition.call), definition.loc)
        found[parameter.name] = ArgumentType(plain[parameter.name]) if read is None else ArgumentType(*read)
    return found


def _of_plan(param: Param) -> ArgumentType:
    """A plan reads what it is given itself, but for objects of a class, which has to be loaded here."""
    from sglc.frontend.outputs.typed import reader_of
    from sglc.frontend.tracing.makers import class_named

    kind = class_named(param.kind)
    read = None if kind is None or isinstance(kind, EnumMeta) else reader_of(kind, param.loc)
    return ArgumentType(param.kind) if read is None else ArgumentType(*read)


def _annotation(parameter: inspect.Parameter, call: Callable[..., Any]) -> Any:
    """What is written, or the type of the default; None where that cannot be evaluated."""
    if parameter.annotation is parameter.empty:
        return type(parameter.default)
    annotated: Any = SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        return typing.get_type_hints(annotated, call.__globals__, include_extras=True)["it"]
    except _NOT_EVALUATED:
        return None


def made(given: Mapping[str, Any], types: Types) -> dict[str, Any]:
    """Arguments as a program is called with them.

    Raises:
        UsageError: SGLC011, data stand for no value of the type.
    """
    values = dict(given)
    for name, value in given.items():
        kind = types.get(name, TEXT)
        if kind.read is None:
            continue
        try:
            values[name] = kind.read(value)
        except Exception as error:  # a class's own code runs
            raise UsageError(
                "SGLC011", f"`{name}` is of type `{kind.name}`, and this is none",
                note=shown(str(error) if isinstance(error, ValueError) else repr(error)),
            ) from None  # fmt: skip
    return values


def made_row(number: int, given: Mapping[str, Any], types: Types) -> dict[str, Any]:
    """`made` of a row of a batch.

    Raises:
        UsageError: as of `made`, with the row.
    """
    from sglc.execution.bind import in_row

    try:
        return made(given, types)
    except UsageError as error:
        raise in_row(number, error) from None
