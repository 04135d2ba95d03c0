"""A decorated function as data: its parameters, its place, and how a call's arguments fit it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, KeysView, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from sglc.errors import Loc, TraceError, UsageError
from sglc.frontend.locate import of_code

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Definition:
    """What `@function` knows: `parameters` are those behind the first one, which is the state."""

    call: Callable[..., Any]
    name: str
    loc: Loc
    parameters: tuple[inspect.Parameter, ...]
    fullgraph: bool = False  # compiling it refuses what is left to ordinary Python
    num_api_spec_tokens: int | None = None  # tokens that one request of an API may guess ahead

    @property
    def code(self) -> CodeType:
        return self.call.__code__

    @property
    def ahead(self) -> int:
        """`num_api_spec_tokens`; 0 where the author asks for nothing."""
        return self.num_api_spec_tokens or 0


def define(call: Callable[..., Any]) -> Definition:
    """Check a function that is to be a program.

    Raises:
        TraceError: not a plain function, or one without a parameter for the state (SGLC101).
    """
    code = getattr(call, "__code__", None)
    if code is None:
        raise TraceError("SGLC101", f"`@function` wants a function, not `{type(call).__name__}`")
    loc = of_code(code)
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise TraceError(
            "SGLC101", f"`{call.__name__}` is a generator function", loc,
            hint="a program is a `def` or `async def` that does not `yield`; `stream` gives texts as they come",
        )  # fmt: skip
    parameters = tuple(inspect.signature(call).parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in positional:
        raise TraceError(
            "SGLC101", f"`{call.__name__}` has no parameter for the prompt state", loc,
            hint=f"write `def {call.__name__}(s, ...)`: the first parameter is the state",
        )  # fmt: skip
    return Definition(call, call.__name__, loc, parameters[1:])


def bind(definition: Definition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The call's arguments by parameter name, defaults filled in.

    Raises:
        UsageError: SGLC011, naming what is missing, unknown or given twice.
    """
    names = None if args else by_name(definition)
    if names is not None and kwargs.keys() == names:
        return {name: kwargs[name] for name in names}  # as most come, and ten times as fast
    signature = inspect.Signature(definition.parameters)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        problem = re.sub("'([^']*)'", r"`\1`", str(error))
        bound_by_nobody = any(parameter.name == "self" for parameter in definition.parameters[:1])
        named = f"`{definition.call.__qualname__}.run(obj, ...)`"
        raise UsageError(
            "SGLC011", f"`{definition.name}`: {problem}", definition.loc,
            note=f"its arguments are: {describe(definition) or 'none'}",
            hint=f"nothing binds the `self` of a program: {named}" if bound_by_nobody else "",
        ) from None  # fmt: skip
    bound.apply_defaults()
    return dict(bound.arguments)


def check_names(definition: Definition, names: Collection[str]) -> None:
    """Raises UsageError: SGLC011, one of the names is that of no argument."""
    known = {parameter.name for parameter in definition.parameters}
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in definition.parameters)
    if not open_ended and (unknown := sorted({*names} - known)):
        raise UsageError(
            "SGLC011", f"`{definition.name}`: got an unexpected keyword argument `{unknown[0]}`",
            definition.loc, note=f"its arguments are: {describe(definition) or 'none'}",
        )  # fmt: skip


def by_name(definition: Definition) -> KeysView[str] | None:
    """The names of the parameters, in order, if each takes one argument, by its name."""
    names = {p.name: None for p in definition.parameters if p.kind in _BY_NAME}
    return names.keys() if len(names) == len(definition.parameters) else None


def describe(definition: Definition) -> str:
    """The parameters as a user would write them."""
    return ", ".join(str(parameter) for parameter in definition.parameters)
