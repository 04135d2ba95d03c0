"""Functions that a generated text may call: what a model is told of them, and the calls that it wrote."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sglc.errors import Loc, TraceError
from sglc.frontend.locate import here
from sglc.frontend.outputs.output_form import OutputForm, whole_json
from sglc.frontend.outputs.typed import arguments_of, plain
from sglc.ir.grammar.call_format import HERMES, NAME, arguments_schema, result_text, tools_text
from sglc.ir.grammar.call_parser import CallParser
from sglc.ir.grammar.schema_check import check_value

_CHOICES = ("auto", "required")


@dataclass(frozen=True)
class ToolCall:
    """A call that a model wrote: `arguments` are what the function takes, by name."""

    name: str
    arguments: Mapping[str, Any]
    function: ClassVar[Callable[..., Any] | None] = None  # of each call its own, and no data

    def run(self) -> Any:
        """Call the function; a declared one as the program would.

        Raises:
            TraceError: SGLC103, the tool was given as a schema.
        """
        if self.function is None:
            raise TraceError(
                "SGLC103", f"`{self.name}` was given as a schema, so there is no function to call", here(),
                hint="call what answers it with `call.arguments`, or give a function in `tools`",
            )  # fmt: skip
        return self.function(**self.arguments)

    def result(self, value: Any) -> str:
        """`value`, which the call gave, as the model is told of it in a turn of the user's.

        Raises:
            TraceError: SGLC103, it is a coroutine, which nobody has awaited.
        """
        if isinstance(value, Coroutine):
            value.close()
            raise TraceError(
                "SGLC103", f"`{self.name}` is a coroutine function, which nobody has awaited", here(),
                hint="`call.result(await call.run())` in an `async def`, or `run_tools`",
            )  # fmt: skip
        return result_text(value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """A text that may call tools: what is no call, and the calls in their order."""

    content: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class _Tool:
    """`told` is OpenAI's function, `read` makes of a call's arguments what `function` is called with."""

    told: Mapping[str, Any]
    read: Callable[[Any], Any]
    function: Callable[..., Any] | None = None


def callable_tools(tools: Sequence[Any], choice: str, loc: Loc) -> tuple[str, OutputForm]:
    """What `gen(tools=..., tool_choice=...)` asks for: `Sampling.tools`, and the form of what is generated.

    Raises:
        TraceError: SGLC103, something that is no tool, two of one name, or an unknown choice; SGLC115, a
            function with a parameter that has no form.
    """
    known = {tool.told["name"]: tool for tool in _tools_of(tools, loc)}
    if choice not in (*_CHOICES, *known):
        raise TraceError(
            "SGLC103", f"`tool_choice` is `{choice!r}`: it must be `auto`, `required` or a tool's name", loc,
            note=f"tools: {', '.join(known)}",
        )  # fmt: skip

    def value(text: str) -> ToolAnswer:
        parser = CallParser(HERMES, known, held=False)
        content = parser.feed(text)[0] + parser.end()[0]
        if choice != "auto" and not parser.calls:
            raise ValueError("there is no call in it")
        return ToolAnswer(content, tuple(_call(known[call.name], call.arguments) for call in parser.calls))

    told = [tool.told for tool in known.values()]
    text = json.dumps({"tools": told, "choice": choice}, ensure_ascii=False)
    return text, OutputForm(f"answer with calls of {', '.join(known)}", value=value)


def describe_tools(tools: Sequence[Any]) -> str:
    """Text for the system turn that tells a local model, or one of a server, of `tools`, as `gen` takes them.

    Raises:
        TraceError: as of `gen`.
    """
    return tools_text([{"type": "function", "function": tool.told} for tool in _tools_of(tools, here())])


def _call(tool: _Tool, arguments: str) -> ToolCall:
    try:
        given = tool.read(whole_json(arguments))
    except ValueError as problem:
        raise ValueError(f"the arguments of `{tool.told['name']}` are none: {problem}") from None
    call = ToolCall(tool.told["name"], given)
    object.__setattr__(call, "function", tool.function)
    return call


def _tools_of(tools: Sequence[Any], loc: Loc) -> list[_Tool]:
    made = [_tool(given, loc) for given in tools]
    names = [tool.told["name"] for tool in made]
    if not made or len({*names}) < len(names):
        what = "two of one name" if made else "none"
        raise TraceError("SGLC103", f"`tools` has {what}", loc)
    return made


def _tool(given: Any, loc: Loc) -> _Tool:
    if isinstance(given, Mapping):
        told = given.get("function", given)
        schema = arguments_schema(told)
        tool = _Tool(told, lambda data: _checked(schema, data))
    else:
        function = inspect.unwrap(given)
        if not inspect.isfunction(function):
            what = f"`tools` has `{given!r}`: it is a function, or an object of OpenAI's"
            raise TraceError("SGLC103", what, loc)
        parameters, read = arguments_of(function, loc)
        about = inspect.getdoc(function)
        about_it = {"description": about} if about else {}
        tool = _Tool({"name": function.__name__, **about_it, "parameters": parameters}, read, given)
    if not re.fullmatch(NAME, str(tool.told.get("name"))):
        raise TraceError("SGLC103", f"`tools` has one called `{tool.told.get('name')}`, which is no name", loc)
    return tool


def _checked(schema: Any, data: Any) -> Any:
    check_value(schema, data)
    return data
