"""How a model writes calls of functions in its text, and what it is held to so that each is a whole one.

A tool is OpenAI's object: `name`, `description` and `parameters`, a schema of its arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = Any
NAME = "[a-zA-Z0-9_.-]{1,64}"  # of a tool
_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One way to write a call: `begin`, the arguments as JSON, `end`.

    Fields:
        marker: text that begins a call, and nothing else.
        before: a pattern of what is read of a call up to its arguments; its group is the name.
        behind: a pattern of what is read behind them.
        begin: what is written up to the arguments, `{}` being the name.
        between: what stands between two calls; None: an answer has one call at most.
    """

    name: str
    marker: str
    before: re.Pattern[str]
    behind: re.Pattern[str]
    begin: str
    end: str
    between: str | None

    def begun(self, name: str) -> str:
        """A call of `name` up to its arguments."""
        return self.begin.replace("{}", name)

    def written(self, name: str, arguments: Json) -> str:
        """A call."""
        return self.begun(name) + json.dumps(arguments, ensure_ascii=False) + self.end


_BEHIND_NAME = rf'"name"\s*:\s*"({NAME})"\s*,\s*'
HERMES = CallFormat(
    "hermes", "<tool_call>",
    re.compile(rf'<tool_call>\s*\{{\s*{_BEHIND_NAME}"arguments"\s*:\s*(?=\{{)'),
    re.compile(r"\s*\}\s*</tool_call>"),
    '<tool_call>\n{"name": "{}", "arguments": ', "}\n</tool_call>", "\n",
)  # fmt: skip
LLAMA = CallFormat(
    "llama", '{"name"',
    re.compile(rf'\{{{_BEHIND_NAME}"parameters"\s*:\s*(?=\{{)'),
    re.compile(r"\s*\}"),
    '{"name": "{}", "parameters": ', "}", None,
)  # fmt: skip
FORMATS = (HERMES, LLAMA)
TOLD = """\
# Tools

You may call one or more functions to answer the user. Each line between <tools> and </tools> describes one:
<tools>
{}
</tools>

Write a call as a JSON object with the function's name and its arguments between <tool_call> and </tool_call>:
<tool_call>
{{"name": <function-name>, "arguments": <arguments-as-json-object>}}
</tool_call>"""


def tools_text(tools: Sequence[Mapping[str, Json]]) -> str:
    """What a model is told of `tools` (OpenAI's objects, with their type) whose template knows none."""
    return TOLD.format("\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))


def result_text(content: str) -> str:
    """What a call gave, as such a model is told."""
    return f"<tool_response>\n{content}\n</tool_response>"


def arguments_schema(tool: Mapping[str, Json]) -> Json:
    """What the arguments of `tool` are held to: an object, empty where the tool lists none."""
    schema = tool.get("parameters") or _NOTHING
    more = {*schema} - {"type", "properties", "title", "description", "$schema"}
    if schema.get("properties") == {} and not more:
        schema = {**schema, "additionalProperties": False}
    return {**schema, "type": "object"}


def calls_form(
    how: CallFormat,
    tools: Sequence[Mapping[str, Json]],
    *,
    required: bool,
    parallel: bool,
    answer: Json = None,
) -> str:
    """The structural tag of an answer that may call `tools`.

    Args:
        required: it is calls alone; else it is free text with calls in it.
        parallel: there may be more than one, if the format has that.
        answer: a schema, or its text, that the answer is held to where it is no call.
    """
    tags = [
        {
            "type": "tag",
            "begin": how.begun(tool["name"]),
            "content": {"type": "json_schema", "json_schema": arguments_schema(tool)},
            "end": how.end,
        }
        for tool in tools
    ]
    one = not parallel or how.between is None
    form: Json = {"tags": tags, "stop_after_first": one}
    if required or answer is not None:
        form |= {"type": "tags_with_separator", "separator": how.between or "\n", "at_least_one": True}
    else:
        form |= {"type": "triggered_tags", "triggers": [how.marker]}
    if answer is not None and not required:
        form = {"type": "or", "elements": [{"type": "json_schema", "json_schema": answer}, form]}
    return json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False)
