"""Tools in prompts: as the model's template writes them, or as text where it knows none."""

from __future__ import annotations

from typing import Any

import pytest

from sglc.errors import BackendError
from sglc.ir.grammar.call_format import HERMES, LLAMA
from sglc.passes.chat.tool_markup import rendered, template_format, template_with_tools
from tests.templates import CHATML, TOOL_TEMPLATES, ByteTokenizer

TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "Does.", "parameters": {"type": "object"}}}
]
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Do it."},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "done", "tool_call_id": "a"},
]


def tokenizer(template: str) -> ByteTokenizer:
    made = ByteTokenizer(template)
    made.hash = template
    return made


@pytest.mark.parametrize(("name", "how"), [("hermes", HERMES), ("llama", LLAMA)])
def test_a_template_that_knows_tools_writes_them(name: str, how: Any) -> None:
    own = tokenizer(TOOL_TEMPLATES[name])
    assert template_format(own) is how
    text = rendered(own, TALK, generate=True, tools=TOOLS)
    assert text == own.render(TALK, generate=True, tools=TOOLS)
    assert how.written("f", {"x": 1}) in text
    assert "done" in text.split(how.end)[-1]


def test_one_that_does_not_gets_system_text() -> None:
    own = tokenizer(CHATML)
    assert template_format(own) is None
    turns = rendered(own, [*TALK, {**TALK[3], "content": "again"}], generate=True, tools=TOOLS).split(
        "<|im_start|>"
    )
    _, system, user, call, results, answer = (turn.removesuffix("<|im_end|>\n") for turn in turns)
    assert system.startswith("system\nBe brief.\n\n# Tools\n")
    assert '\n{"type": "function", "function": {"name": "f", "description": "Does.",' in system
    assert (user, call) == ("user\nDo it.", f"assistant\n{HERMES.written('f', {'x': 1})}")
    one, other = "<tool_response>\ndone\n</tool_response>", "<tool_response>\nagain\n</tool_response>"
    assert (results, answer) == (f"user\n{one}\n{other}", "assistant\n")
    # Without a system turn there is one; a history may have calls where nothing more is offered.
    assert rendered(own, TALK[1:], generate=True, tools=TOOLS).startswith("<|im_start|>system\n# Tools\n")
    assert "# Tools" not in rendered(own, TALK, generate=True, tools=[])


ODD = {
    "type": "function",
    "function": {"name": "g", "description": "", "parameters": {}},
}
QUOTED = {"id": "b", "type": "function", "function": {"name": "g", "arguments": {"é": ["<'\"\\n>", {}]}}}


@pytest.mark.parametrize("tools", [[], TOOLS, [*TOOLS, ODD]], ids=len)
@pytest.mark.parametrize(
    "messages",
    [
        TALK[:2],
        TALK[1:],
        [*TALK, {**TALK[3], "content": "again"}, TALK[1]],
        [TALK[1], {"role": "assistant", "content": "So:", "tool_calls": [CALL, QUOTED]}, TALK[3], TALK[2]],
    ],
    ids=len,
)
def test_a_template_can_do_the_same_by_itself(messages: Any, tools: Any) -> None:
    """As one who fills it in writes them: a null beside calls, arguments as text, a field of tools more."""
    template = "\n  {% if messages %}[{% endif %}" + CHATML
    other = tokenizer(template_with_tools(template))
    here = rendered(tokenizer(template), messages, generate=True, tools=tools)
    assert other.render(messages, generate=True, tools=tools or None) == here
    nulls = [{**message, "content": message["content"] or None} for message in messages]
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in tools]
    assert other.render(nulls, generate=True, tools=strict) == here


def test_a_format_that_is_not_known_is_refused() -> None:
    own = tokenizer(TOOL_TEMPLATES["other"])
    with pytest.raises(BackendError, match="a format that is not known") as refused:
        template_format(own)
    assert refused.value.code == "SGLC513"
