"""A program that another one runs: while that is recorded, an op with the called program in it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sglc.errors import Loc
from sglc.frontend.language.function import Definition
from sglc.frontend.locate import here
from sglc.frontend.program.forks import Forks
from sglc.frontend.program.state import State
from sglc.frontend.tracing.arguments import Bound
from sglc.frontend.tracing.pytree import tree_of, unwrapped
from sglc.frontend.tracing.reads import in_cell
from sglc.frontend.tracing.tracer import Tracer
from sglc.frontend.values.graph_breaks import META, NO_DATA, OTHER, WHOLE_TEXT, GraphBreak
from sglc.frontend.values.no_text import CallText
from sglc.frontend.values.symbolic import Symbolic, SymbolicBool, SymbolicJson, SymbolicText
from sglc.ir.core import Program, Tree, Value, substitute, values_in
from sglc.ir.ops import Arg, Call

_DEEPEST = 20  # programs in programs
_MOST_BROKEN = 64  # calls with graph breaks: each is recorded in several ways, and so is each around it


@dataclass(frozen=True, slots=True)
class CallResult(CallText):
    """What a recorded call gives: the program's variables and its return value; it may store `no_data`, too."""

    name: str
    variables: Mapping[str, Any]
    ret_value: Any
    no_data: frozenset[str]

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise GraphBreak(f"`{self.name}` stores nothing under `{name}`", here(), OTHER)
        return self.variables[name]

    def __setitem__(self, name: str, value: Any) -> None:
        raise GraphBreak(f"`{self.name}` is called, and `{name}` is stored in its result", here(), OTHER)

    def __contains__(self, name: str) -> bool:
        if name in self.no_data:
            raise GraphBreak(f"what `{self.name}` stores under `{name}` only a run knows", here(), OTHER)
        return name in self.variables

    def get_var(self, name: str) -> Any:
        return self[name]

    def sync(self) -> CallResult:
        return self

    def text(self) -> str:
        raise GraphBreak("`text()` needs the program to run", here(), WHOLE_TEXT)

    def messages(self) -> list[Any]:
        raise GraphBreak("`messages()` needs the program to run", here(), WHOLE_TEXT)

    def get_meta_info(self, name: str) -> Any:
        raise GraphBreak(f"`get_meta_info({name!r})` needs the program to run", here(), META)

    def __str__(self) -> str:
        raise GraphBreak("`str(...)` of it needs the program to run", here(), WHOLE_TEXT)

    def error(self) -> Any:
        raise GraphBreak("`error()` needs the program to run", here(), OTHER)


def arguments_of(
    tracer: Tracer, definition: Definition, given: Mapping[str, Any], loc: Loc
) -> tuple[Definition, dict[str, Value | str]]:
    """The called program's own definition for this call, and what its `arg`s are.

    Data that exists only when the program runs is an `arg`; everything else is a constant of it.
    """
    texts: dict[str, Value | str] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in definition.parameters:
        value = given.get(parameter.name, parameter.default)
        match value:
            case SymbolicText() if value.settled() is None:
                texts[parameter.name] = tracer.operand(value, loc)
                default: Any = value
            case SymbolicText():
                default = Bound(value.settled())
            case SymbolicJson() | SymbolicBool():
                texts[parameter.name] = value.value
                default = value
            case _:
                if not _is_constant(value):
                    tree = tree_of(tracer, value, loc, f"given to `{definition.name}`")
                    if any(True for _ in values_in(tree)):
                        what = f"a `{type(value).__name__}` with recorded values"
                        raise GraphBreak(f"{what} is given to `{definition.name}`", loc, NO_DATA)
                tracer.copy(value)
                default = Bound(value)
        parameters.append(parameter.replace(default=default, kind=inspect.Parameter.KEYWORD_ONLY))
    return replace(definition, parameters=tuple(parameters)), texts


def _is_constant(value: Any) -> bool:
    """Whether it holds plain values only, in containers of any class: the called program gets it as it is."""
    if isinstance(value, list | tuple | dict):
        items = [*value, *value.values()] if isinstance(value, dict) else value
        return all(map(_is_constant, items))
    return type(value) in (str, int, float, bool, type(None))


def record_call(
    tracer: Tracer, program: Program, name: str, args: Mapping[str, Value | str], no_data: frozenset[str],
    loc: Loc,
) -> CallResult:  # fmt: skip
    """The op, and its results. The program returns `{"value": ..., "variables": {...}}`."""
    own = tuple(values_in(program.returns))
    results = tuple(tracer.recorder.new_value(value.type) for value in own)
    site = tracer.recorder.reserve((), name)
    ordered = tuple(args[param.name] for param in program.params if isinstance(param, Arg))
    tracer.recorder.ops.append(Call(site, ordered, program, results=results, loc=loc))
    tree: Tree = substitute(program.returns, dict(zip(own, results, strict=True)))
    assert isinstance(tree, dict)
    return CallResult(name, unwrapped(tree["variables"]), unwrapped(tree["value"]), no_data)


def refuse_call(tracer: Tracer, definition: Definition, loc: Loc) -> None:
    """Whether the call can be recorded at all.

    Raises:
        GraphBreak: it uses values of the calling program, or programs call each other without an end.
    """
    for name, cell in zip(definition.code.co_freevars, definition.call.__closure__ or (), strict=True):
        if isinstance(in_cell(cell, name), Symbolic | State | Forks):
            reason = f"`{definition.name}` uses `{name}` of the program that calls it"
            raise GraphBreak(reason, loc, NO_DATA)
    if len(tracer.broken) >= _MOST_BROKEN:
        reason = f"{_MOST_BROKEN} calls of programs have a graph break, such as: {tracer.broken[0]}"
        raise GraphBreak(reason, loc, OTHER)
    if len(tracer.calls) >= _DEEPEST:
        raise GraphBreak(f"`{definition.name}` is called in more than {_DEEPEST} programs", loc, OTHER)
