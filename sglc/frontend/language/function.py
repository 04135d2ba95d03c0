"""A decorated function as data: its parameters, and its place."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from sglc.errors import Loc, TraceError
from sglc.frontend.locate import of_code


@dataclass(frozen=True, slots=True)
class Definition:
    """What `@function` knows: `parameters` are those behind the first one, which is the state."""

    call: Callable[..., Any]
    name: str
    loc: Loc
    parameters: tuple[inspect.Parameter, ...]
    names: tuple[str, ...]  # of the parameters
    by_name: bool  # each of them takes one argument, by its name
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
    own = parameters[1:]
    by_name = all(one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) for one in own)
    return Definition(call, call.__name__, loc, own, tuple([one.name for one in own]), by_name)


def describe(definition: Definition) -> str:
    """The parameters as a user would write them."""
    return ", ".join(str(parameter) for parameter in definition.parameters)
