"""Tools in the requests and answers of chats: OpenAI's objects, what the text is held to, and calls in it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from sglc.ir.grammar.call_format import NAME, CallFormat
from sglc.ir.grammar.call_parser import CallParser, CallPiece, ToolCall
from sglc.serve.fields import Body, wrong

_RANDOM = random.Random()
_DEEPEST = 100


def _parameters(value: Any) -> Any:
    if not isinstance(value, dict):
        raise wrong("parameters_type", "the schema of a function's arguments is an object")
    if value.get("type", "object") != "object":
        raise wrong(
            "parameters_value", "arguments are an object: the schema's `type` is `object`, if it has one"
        )
    return _flat(value, "parameters_value")


def _arguments(value: Any) -> Any:
    """Of a call in the history; templates write them as the object that they are."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value or "{}")
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            value = None
    if not isinstance(value, dict):
        raise wrong("arguments_value", "the arguments of a call are a JSON object, as text")
    return _flat(value, "arguments_value")


def _flat(value: Any, code: str) -> Any:
    """`value`, which templates and grammars read by going down into it."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return value
    raise wrong(code, f"it is nested deeper than {_DEEPEST} levels")


Name = Annotated[str, Field(pattern=rf"^{NAME}$")]


class Function(Body):
    """What may be called. Arguments are always held to the schema, whatever `strict` is."""

    name: Name
    description: str | None = None
    parameters: Annotated[dict[str, Any], BeforeValidator(_parameters)] | None = None
    strict: bool = False

    @property
    def told(self) -> dict[str, Any]:
        """As a template is told of it."""
        given = {name: getattr(self, name) for name in ("name", "description", "parameters")}
        return {name: value for name, value in given.items() if value is not None}


class Tool(Body):
    """One of `tools`."""

    type: Literal["function"]
    function: Function


def _different(tools: list[Tool]) -> list[Tool]:
    names = Counter(tool.function.name for tool in tools)
    if twice := next((name for name, times in names.items() if times > 1), None):
        raise wrong("tools_value", f"two of them are called `{twice}`")
    return tools


Tools = Annotated[list[Tool], AfterValidator(_different)]


def _choice(value: Any) -> Any:
    match value:
        case "auto" | "none" | "required":
            return value
        case {"type": "function", "function": {"name": str() as name}} if (
            len(value) == len(value["function"]) + 1
        ):
            return Named(name)
    raise wrong(
        "choice_value", 'it is "auto", "none", "required" or {"type": "function", "function": {"name": ...}}'
    )


@dataclass(frozen=True, slots=True)
class Named:
    """The one tool that is to be called."""

    name: str


ToolChoice = Annotated[
    Any,
    BeforeValidator(_choice),
    WithJsonSchema({"anyOf": [{"enum": ["auto", "none", "required"]}, {"type": "object"}]}),
]


class CalledFunction(Body):
    """The `function` of a call. `parsed_arguments` are OpenAI's client's, which sends back what it made."""

    ignored = frozenset({"parsed_arguments"})

    name: Name
    arguments: Annotated[Any, BeforeValidator(_arguments)]


class Called(Body):
    """A call in the history."""

    ignored = frozenset({"index"})

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


@dataclass(frozen=True, slots=True)
class Calling:
    """How calls of a chat's tools are written, and read; `alone`: whether an answer is nothing but calls."""

    how: CallFormat
    names: frozenset[str]
    held: bool
    alone: bool = False

    def parser(self) -> CallParser:
        """For one text."""
        return CallParser(self.how, self.names, held=self.held, alone=self.alone)


def call_of(call: ToolCall) -> dict[str, Any]:
    """A call, as a whole answer has it."""
    return _shown({"name": call.name, "arguments": call.arguments})


def delta_of(piece: CallPiece) -> dict[str, Any]:
    """More of a call, as a stream has it."""
    if piece.name is None:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    return {"index": piece.index, **_shown({"name": piece.name, "arguments": piece.arguments})}


def _shown(function: dict[str, str]) -> dict[str, Any]:
    return {"id": f"call_{_RANDOM.getrandbits(96):024x}", "type": "function", "function": function}
