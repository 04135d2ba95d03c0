"""Chat templates by prefixes and suffixes, as SGLang's programs register them, and what they are as Jinja.

Models bring templates of their own, so one of these counts only where it is asked for by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from sglc.errors import UsageError
from sglc.frontend.locate import here


class ChatTemplateStyle(Enum):
    PLAIN = auto()
    LLAMA2 = auto()  # the system turn stands inside the first user turn


@dataclass
class ChatTemplate:
    """What stands before and behind a turn's text, by role.

    A conversation without a system turn begins with `default_system_prompt`, if there is one. Every
    generation stops at `stop_str` too. `image_token` is where a picture stands on SGLang's
    servers; `audio_token` is SGLang's and has no effect.
    """

    name: str
    default_system_prompt: str | None
    role_prefix_and_suffix: Mapping[str, tuple[str, str]]
    stop_str: str | Sequence[str] = ()
    image_token: str = "<image>"
    audio_token: str = "<audio>"
    style: ChatTemplateStyle = ChatTemplateStyle.PLAIN

    def get_prefix_and_suffix(self, role: str, hist_messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        """What stands round a turn of `role` behind `hist_messages`."""
        prefix, suffix = self.role_prefix_and_suffix.get(role, ("", ""))
        if self.style is ChatTemplateStyle.LLAMA2:
            if role == "system" and not hist_messages:
                return self.role_prefix_and_suffix.get("user", ("", ""))[0] + prefix, suffix
            if role == "user" and len(hist_messages) == 1 and hist_messages[0]["content"] is not None:
                return "", suffix
        return prefix, suffix

    def get_prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text of a conversation; a system turn whose content is None gets the default prompt."""
        text = ""
        for number, message in enumerate(messages):
            role, content = message["role"], message["content"]
            if role == "system" and content is None:
                content = self.default_system_prompt
                if content is None:
                    continue
            prefix, suffix = self.get_prefix_and_suffix(role, messages[:number])
            text += f"{prefix}{content}{suffix}"
        return text

    @property
    def stops(self) -> tuple[str, ...]:
        """`stop_str` as a tuple."""
        return (self.stop_str,) if isinstance(self.stop_str, str) else tuple(self.stop_str)


def jinja_of(template: ChatTemplate) -> str:
    """The same template as a model's tokenizer brings it: `messages` and `add_generation_prompt`."""
    roles = dict(template.role_prefix_and_suffix)
    lines = [
        f"{{%- set around = {json.dumps({role: list(pair) for role, pair in roles.items()})} -%}}",
        "{%- set begun = namespace(turns=0) -%}",
    ]
    if template.default_system_prompt is not None:
        text = template.default_system_prompt.join(template.get_prefix_and_suffix("system", []))
        lines.append(
            "{%- if not messages or messages[0]['role'] != 'system' -%}"
            f"{{{{- {json.dumps(text)} -}}}}{{%- set begun.turns = 1 -%}}{{%- endif -%}}"
        )
    before = "{%- set before = around.get(m['role'], ['', ''])[0] -%}"
    if template.style is ChatTemplateStyle.LLAMA2:
        user = json.dumps(roles.get("user", ("", ""))[0])
        before += (
            "{%- if begun.turns == 0 and m['role'] == 'system' -%}"
            f"{{%- set before = {user} + before -%}}"
            "{%- elif begun.turns == 1 and m['role'] == 'user' -%}{%- set before = '' -%}{%- endif -%}"
        )
    lines.append(
        "{%- for m in messages -%}" + before + "{{- before -}}{{- m['content'] -}}"
        "{{- around.get(m['role'], ['', ''])[1] -}}"
        "{%- set begun.turns = begun.turns + 1 -%}{%- endfor -%}"
    )
    answer = json.dumps(roles.get("assistant", ("", ""))[0])
    lines.append(f"{{%- if add_generation_prompt -%}}{{{{- {answer} -}}}}{{%- endif -%}}")
    return "".join(lines)


Matching = Callable[[str], "ChatTemplate | None"]

_TEMPLATES: dict[str, ChatTemplate] = {}
_MATCHING: list[Matching] = []


def register_chat_template(template: ChatTemplate) -> None:
    """Make a template known by its name; a later one of that name takes its place."""
    _TEMPLATES[template.name] = template


def register_chat_template_matching_function(function: Matching) -> Matching:
    """Have `function` say which template a model path has; None: it does not know. Usable as a decorator."""
    _MATCHING.append(function)
    return function


def get_chat_template(name: str) -> ChatTemplate:
    """The template of that name.

    Raises:
        UsageError: SGLC029, there is none.
    """
    if name not in _TEMPLATES:
        raise UsageError(
            "SGLC029", f"no chat template is called `{name}`", here(),
            note=f"known: {', '.join(_TEMPLATES)}", hint="make it known with `register_chat_template(...)`",
        )  # fmt: skip
    return _TEMPLATES[name]


def get_chat_template_by_model_path(model_path: str) -> ChatTemplate:
    """The template that the first matching function with an answer gives, else `default`."""
    found = (function(model_path) for function in _MATCHING)
    return next((template for template in found if template is not None), get_chat_template("default"))


def _turns(begin: str, end: str) -> dict[str, tuple[str, str]]:
    """The same frame round every role, with the role's name in `begin`."""
    return {role: (begin.format(role), end) for role in ("system", "user", "assistant")}


def _framed_by(
    system: tuple[str, str], user: tuple[str, str], assistant: tuple[str, str]
) -> dict[str, tuple[str, str]]:
    return {"system": system, "user": user, "assistant": assistant}


_CHATML, _END = ("<|im_start|>{}\n", "<|im_end|>\n"), ("<|im_end|>",)
_ASSISTANT = "You are a helpful assistant."

for _template in (
    ChatTemplate("default", None, _framed_by(("SYSTEM:", "\n"), ("USER:", "\n"), ("ASSISTANT:", "\n"))),
    ChatTemplate("claude", None, _framed_by(("", ""), ("\n\nHuman: ", ""), ("\n\nAssistant:", ""))),
    ChatTemplate("chatml", None, _turns(*_CHATML), _END),
    ChatTemplate("qwen", _ASSISTANT, _turns(*_CHATML), _END),
    ChatTemplate(
        "qwen2-vl", _ASSISTANT, _turns(*_CHATML), _END,
        image_token="<|vision_start|><|image_pad|><|vision_end|>",
    ),
    ChatTemplate(
        "llama-2-chat", None,
        _framed_by(("<<SYS>>\n", "\n<</SYS>>\n\n"), ("[INST] ", " [/INST]"), ("", " </s><s>")),
        style=ChatTemplateStyle.LLAMA2,
    ),
    ChatTemplate(
        "llama-3-instruct", None, _turns("<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>"),
        ("<|eot_id|>",),
    ),
    ChatTemplate(
        "gemma-it", None,
        _framed_by(("", ""), *((f"<start_of_turn>{role}\n", "<end_of_turn>\n") for role in ("user", "model"))),
    ),
    ChatTemplate(
        "vicuna_v1.1",
        "A chat between a curious user and an artificial intelligence assistant. "
        "The assistant gives helpful, detailed, and polite answers to the user's questions.",
        _framed_by(("", " "), ("USER:", " "), ("ASSISTANT:", "</s>")),
    ),
):  # fmt: skip
    register_chat_template(_template)
