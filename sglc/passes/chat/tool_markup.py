"""How tools, calls of them and their results are told to a model: as its chat template does, or as text.

A template is asked what it knows by rendering a tool that occurs nowhere else. One that knows none gets
system text, and calls in the format of Hermes: results then stand in the user's turns.
"""

from __future__ import annotations

from typing import Any

from sglc.errors import BackendError
from sglc.ir.grammar.call_format import FORMATS, HERMES, CallFormat, result_text, tools_text
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
