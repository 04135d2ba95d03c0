"""How tools, calls of them and their results are told to a model: as its chat template does, or as text.

A template is asked what it knows by rendering a tool that occurs nowhere else. One that knows none gets
system text, and calls in the format of Hermes: results then stand in the user's turns.
"""

from __future__ import annotations

import json
from typing import Any

from sglc.errors import BackendError
from sglc.ir.grammar.call_format import FORMATS, HERMES, TOLD, CallFormat, result_text, tools_text
from sglc.ir.target import Objects, Tokenizer

_PROBE = "sglc_probe"
_FUNCTION = {"name": _PROBE, "description": "?", "parameters": {"type": "object", "properties": {}}}
_CALL = {"id": "call00000", "type": "function", "function": {"name": _PROBE, "arguments": {}}}
_ASK = {"role": "user", "content": "?"}

_KNOWN: dict[str, CallFormat | None] = {}  # by the tokenizer's hash, which the template is a part of


def template_format(tokenizer: Tokenizer) -> CallFormat | None:
    """The format in which the model's template writes calls; None: it knows no tools.

    Raises:
        BackendError: SGLC513, there is no template, it refuses such a conversation, or the format is none
            that is known here.
    """
    if tokenizer.hash not in _KNOWN:
        _KNOWN[tokenizer.hash] = _format(tokenizer)
    return _KNOWN[tokenizer.hash]


def _format(tokenizer: Tokenizer) -> CallFormat | None:
    tools = [{"type": "function", "function": _FUNCTION}]
    if _PROBE not in tokenizer.render([_ASK], generate=True, tools=tools):
        return None
    called = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    shown = tokenizer.render([_ASK, called], generate=False, tools=tools)
    found = next((how for how in FORMATS if how.written(_PROBE, {}) in shown), None)
    if found is None:
        raise BackendError(
            "SGLC513", "the model's chat template writes calls of tools in a format that is not known here",
            note=f"known: {', '.join(how.name for how in FORMATS)}",
        )  # fmt: skip
    return found


def rendered(tokenizer: Tokenizer, messages: Objects, *, generate: bool, tools: Objects) -> str:
    """The conversation as the model's template writes it, `tools` and `tool_calls` (with objects) included.

    Raises:
        BackendError: as `template_format`.
    """
    if not tools and not any("tool_calls" in message or message["role"] == "tool" for message in messages):
        return tokenizer.render(messages, generate=generate)
    if template_format(tokenizer) is None:
        return tokenizer.render(_as_text(messages, tools), generate=generate)
    return tokenizer.render(messages, generate=generate, tools=tools or None)


def _as_text(messages: Objects, tools: Objects) -> list[dict[str, Any]]:
    """The same without anything but texts of the system, the user and the assistant."""
    made: list[dict[str, Any]] = []
    if tools:
        told = tools_text(tools)
        if messages[0]["role"] == "system":
            told = f"{messages[0]['content']}\n\n{told}"
            messages = messages[1:]
        made.append({"role": "system", "content": told})
    results = False  # whether the last turn has results
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "tool":
            content = result_text(content)
            if results:
                made[-1]["content"] += "\n" + content
                continue
            role = "user"
        for call in message.get("tool_calls", ()):
            function = call["function"]
            content += ("\n" if content else "") + HERMES.written(function["name"], function["arguments"])
        results = message["role"] == "tool"
        made.append({"role": role, "content": content})
    return made


def template_with_tools(template: str) -> str:
    """`template`, which knows no tools, behind what makes texts of them: for peers that fill it in themselves.

    It writes what `rendered` does, and a conversation without tools as `template` alone.
    """
    begin, behind_name = HERMES.begin.split("{}")
    before_tools, behind_tools = TOLD.format("\0").split("\0")
    before_result, behind_result = result_text("\0").split("\0")
    texts = {
        "before_tools": before_tools, "behind_tools": behind_tools,
        "begin": begin, "behind_name": behind_name, "end": HERMES.end,
        "before_result": before_result, "behind_result": behind_result,
    }  # fmt: skip
    # JSON's texts are also jinja's. The template begins on a line of its own, as it was written to.
    named = "".join(f"{{%- set sglc_{name} = {json.dumps(text)} -%}}" for name, text in texts.items())
    return named + _AS_TEXT + template


# `_as_text`, in what jinja2 and minijinja share. Peers write nulls beside calls, and fields that we leave out.
_AS_TEXT = """\
{%- set sglc = namespace(asked=false, turns=[], told="", text="", results=false) -%}
{%- for message in messages -%}
{%- if message.tool_calls or message.role == "tool" -%}{%- set sglc.asked = true -%}{%- endif -%}
{%- endfor -%}
{%- if tools or sglc.asked -%}
{%- for tool in tools or [] -%}
{%- set function = tool.function -%}
{%- set sglc.text = '{"type": "function", "function": {"name": ' + (function.name | tojson) -%}
{%- if function.description is defined and function.description is not none -%}
{%- set sglc.text = sglc.text + ', "description": ' + (function.description | tojson) -%}
{%- endif -%}
{%- if function.parameters is defined and function.parameters is not none -%}
{%- set sglc.text = sglc.text + ', "parameters": ' + (function.parameters | tojson) -%}
{%- endif -%}
{%- set sglc.told = sglc.told + ("\\n" if sglc.told else "") + sglc.text + "}}" -%}
{%- endfor -%}
{%- if sglc.told -%}
{%- set sglc.told = sglc_before_tools + sglc.told + sglc_behind_tools -%}
{%- if messages[0].role != "system" -%}
{%- set sglc.turns = [{"role": "system", "content": sglc.told}] -%}
{%- endif -%}
{%- endif -%}
{%- for message in messages -%}
{%- set sglc.text = message.content or "" -%}
{%- if message.role == "tool" -%}
{%- set sglc.text = sglc_before_result + sglc.text + sglc_behind_result -%}
{%- if sglc.results -%}
{%- set sglc.text = sglc.turns[-1].content + "\\n" + sglc.text -%}
{%- set sglc.turns = sglc.turns[:-1] -%}
{%- endif -%}
{%- elif loop.first and message.role == "system" and sglc.told -%}
{%- set sglc.text = sglc.text + "\\n\\n" + sglc.told -%}
{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{%- set given = call.function.arguments -%}
{%- set given = given if given is string else given | tojson -%}
{%- set sglc.text = sglc.text + ("\\n" if sglc.text else "") + sglc_begin -%}
{%- set sglc.text = sglc.text + call.function.name + sglc_behind_name + given + sglc_end -%}
{%- endfor -%}
{%- set sglc.results = message.role == "tool" -%}
{%- set role = "user" if sglc.results else message.role -%}
{%- set sglc.turns = sglc.turns + [{"role": role, "content": sglc.text}] -%}
{%- endfor -%}
{%- set messages = sglc.turns -%}
{%- set tools = none -%}
{%- endif %}
"""
