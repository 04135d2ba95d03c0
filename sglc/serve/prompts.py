"""From what a request holds to the token ids that the model reads.

Invariants: control tokens come from a chat template, from token ids, or from a raw prompt, which is the
model's input as it is written; never from the contents of messages.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, Self, TypeVar

from sglc.errors import BackendError
from sglc.ir.grammar.call_format import HERMES
from sglc.ir.plan.events import PackedIds
from sglc.ir.target import ControlText, Tokenizer
from sglc.passes.chat.markup import ChatMarkup
from sglc.passes.chat.tool_markup import rendered, template_format
from sglc.runtime.tokenizer.chat_template import variables_of
from sglc.serve.bodies import ChatBody
from sglc.serve.limits import check_sizes
from sglc.serve.problems import Refusal, bad
from sglc.serve.tools import Calling

_AT_ONCE = 4_000  # characters, or ids, that are tokenized where nothing else is done meanwhile
_T = TypeVar("_T")
_STAND_IN = re.compile("\ue0a3([0-9]+)\ue0a4")  # private use, as in `passes.chat_markup`


class ServedTokenizer(Tokenizer, Protocol):
    """A tokenizer that also tells what a client needs to do the same."""

    @property
    def template(self) -> str | None:
        """The chat template, jinja2."""

    @property
    def named(self) -> Mapping[str, str]:
        """`bos_token`, `eos_token`, ... as the template may write them."""

    def with_variables(self, variables: Mapping[str, Any]) -> Self:
        """The same, whose template reads `variables`, too."""

    @property
    def control(self) -> Mapping[int, str]:
        """How each control token is written."""


@dataclass(frozen=True, slots=True)
class ServedPrompt:
    """What the model reads: `ids`, which `text` spells."""

    text: str
    ids: PackedIds

    @property
    def part(self) -> ControlText:
        """The prompt as a part of a segment, its ids verbatim."""
        return ControlText(self.text, tuple(self.ids))


def of_given(tokenizer: ServedTokenizer, given: Sequence[Any], param: str, max_len: int) -> list[ServedPrompt]:
    """Prompts that are texts or lists of token ids.

    Raises:
        Refusal: one is empty, has more than `max_len` tokens, or an id that the model lacks.
        RunError: SGLC430, a text holds half of a surrogate pair.
    """
    prompts = []
    for item in given:
        if isinstance(item, str):
            prompt = of_text(tokenizer, item)
        else:
            vocabulary = len(tokenizer.token_bytes())
            if item and not 0 <= min(item) <= max(item) < vocabulary:
                unknown = next(id_ for id_ in item if not 0 <= id_ < vocabulary)
                raise bad(param, f"has the token id {unknown}, the model has ids up to {vocabulary - 1}")
            prompt = ServedPrompt(_spelled(tokenizer, item), PackedIds.of(item))
        if not prompt.ids:
            raise bad(param, "is empty, and this model has no token that begins an empty text")
        check_sizes([prompt.ids], param, max_len, 0)  # before the others are encoded
        prompts.append(prompt)
    return prompts


def encoded(tokenizer: Tokenizer, texts: Sequence[str], special: bool) -> list[Sequence[int]]:
    """The ids of raw texts; with `special`, behind the begin token where the model has one."""
    if special:
        return [of_text(tokenizer, text).ids for text in texts]
    return [_encoded(tokenizer, tokenizer.split_control(text)) for text in texts]


def of_text(tokenizer: Tokenizer, text: str) -> ServedPrompt:
    """A raw prompt, behind the begin token where the model has one. Control tokens may be written in it."""
    ids = _encoded(tokenizer, tokenizer.split_control(text))
    if tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
        ids = [tokenizer.bos_id, *ids]
    return ServedPrompt(text, PackedIds.of(ids))


def load_template(tokenizer: ServedTokenizer) -> None:
    """Have what chats take ready before one comes: while that is imported and compiled, all others wait."""
    if tokenizer.template is not None:
        with suppress(BackendError):  # of a template that wants other messages
            tokenizer.render([{"role": "user", "content": "a"}], generate=True)


def of_chat(tokenizer: ServedTokenizer, body: ChatBody) -> ServedPrompt:
    """The conversation as the model's template writes it.

    What looks like a control token in the content of a message stays text.

    Raises:
        Refusal: it is to be continued, and ends in no answer; the template has no such variable.
        BackendError: SGLC513, there is no template, or it refuses the conversation.
    """
    hidden: list[str] = []
    if variables := _variables(tokenizer, body):
        if body.offered or any(turn.tool_calls or turn.tool_call_id for turn in body.messages):
            template_format(tokenizer)  # is kept for all requests, so it is not found out under one's variables
        tokenizer = tokenizer.with_variables(_hide_all(tokenizer, variables, hidden))
    messages = _hide_all(tokenizer, [turn.told for turn in body.messages], hidden)
    tools = _hide_all(tokenizer, [{"type": "function", "function": one.told} for one in body.offered], hidden)
    last = body.messages[-1]
    if not body.continue_final_message:
        generate = body.add_generation_prompt is not False
        text = rendered(tokenizer, messages, generate=generate, tools=tools)
    elif body.add_generation_prompt:
        raise bad("continue_final_message", "and `add_generation_prompt` exclude each other")
    elif last.role != "assistant" or last.tool_calls:
        raise bad("continue_final_message", "wants the last message to be the assistant's, and a text")
    else:
        roles = tuple(message["role"] for message in messages)
        markup = ChatMarkup(tokenizer)
        opened = markup.opened(roles)
        gap = markup.gap(roles, opened) if isinstance(opened, str) else ""
        if len(messages) > 1:
            text = rendered(tokenizer, messages[:-1], generate=True, tools=tools)
        else:
            text = opened if isinstance(opened, str) else ""
        text += gap + messages[-1]["content"]
    ids = []
    shown = ""
    for part in tokenizer.split_control(text):
        if isinstance(part, ControlText):
            ids += list(part.ids)
            shown += part.text
        else:
            plain = _STAND_IN.sub(lambda match: hidden[int(match[1])], part)
            ids += tokenizer.encode(plain)
            shown += plain
    if not ids:
        raise Refusal(400, "`messages` make an empty prompt", param="messages", code="invalid_value")
    return ServedPrompt(shown, PackedIds.of(ids))


def reasons(tokenizer: ServedTokenizer) -> bool:
    """Whether a request can have the model reason, or not."""
    return bool(_switches(variables_of(tokenizer.template or "")))


def _switches(read: Container[str]) -> list[str]:
    """What of the variables that a template reads has the model reason."""
    return [name for name in ("reasoning_effort", "enable_thinking", "thinking") if name in read]


def _variables(tokenizer: ServedTokenizer, body: ChatBody) -> dict[str, Any]:
    """What the template is told beside the conversation.

    Raises:
        Refusal: it reads no such thing. What is false or null asks for nothing.
    """
    given, effort = body.chat_template_kwargs, body.reasoning_effort
    if not given and effort is None:
        return {}
    read = variables_of(tokenizer.template or "")
    for name, value in given.items():
        if value and name not in read:
            param = f"chat_template_kwargs.{name}"
            raise bad(param, "is not read by this model's template", "unsupported_value")
    made = {name: value for name, value in given.items() if name in read}
    if effort is None:
        return made
    if switches := _switches(read):
        return {switches[0]: effort if switches[0] == "reasoning_effort" else effort != "none", **made}
    if effort != "none":
        raise bad("reasoning_effort", "is not read by this model's template", "unsupported_value")
    return made


def calling_of(tokenizer: Tokenizer, body: ChatBody, *, held: bool) -> Calling | None:
    """How the answer calls tools, if it may; `held`: whether it is held to that.

    Raises:
        BackendError: SGLC513, the model's template does it in no way that is known here.
    """
    if not body.offered:
        return None
    names = frozenset(tool.name for tool in body.offered)
    alone = body.tool_choice != "auto"
    return Calling(template_format(tokenizer) or HERMES, names, held, alone)


def _hide_all(tokenizer: Tokenizer, value: Any, hidden: list[str]) -> Any:
    """`value`, of JSON, with stand-ins in all its texts."""
    match value:
        case str():
            return _hide(tokenizer, value, hidden)
        case dict():
            hide = partial(_hide_all, tokenizer, hidden=hidden)
            return {hide(key): hide(each) for key, each in value.items()}
        case list():
            return [_hide_all(tokenizer, each, hidden) for each in value]
        case _:
            return value


def _hide(tokenizer: Tokenizer, content: str, hidden: list[str]) -> str:
    """`content` with stand-ins for what the template's output would be mistaken for; they join `hidden`."""

    def stand_in(text: str) -> str:
        hidden.append(text)
        return f"\ue0a3{len(hidden) - 1}\ue0a4"

    content = re.sub("[\ue0a3\ue0a4]", lambda match: stand_in(match[0]), content)
    parts = tokenizer.split_control(content)
    if len(parts) == 1 and isinstance(parts[0], str):
        return content
    return "".join(stand_in(part.text) if isinstance(part, ControlText) else part for part in parts)


def _encoded(tokenizer: Tokenizer, parts: Sequence[str | ControlText]) -> list[int]:
    ids: list[int] = []
    for part in parts:
        ids += part.ids if isinstance(part, ControlText) else tokenizer.encode(part)
    return ids


def _spelled(tokenizer: ServedTokenizer, ids: Sequence[int]) -> str:
    """The text of ids, control tokens as they are written."""
    table, control = tokenizer.token_bytes(), tokenizer.control
    return b"".join([control[id_].encode() if id_ in control else table[id_] for id_ in ids]).decode(
        "utf-8", "replace"
    )


async def at_once_or_apart(given: Sequence[Any], made: Callable[..., _T], *arguments: Any) -> _T:
    """What is `made` of texts or lists of ids: in a thread, unless to hand it over would take longer."""
    if len(given) + sum(map(len, given)) <= _AT_ONCE:
        return made(*arguments)
    return await asyncio.to_thread(made, *arguments)
