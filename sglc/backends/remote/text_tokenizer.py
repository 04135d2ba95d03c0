"""A chat template without a tokenizer: prompts of such models are sent as text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sglc.backends.remote.prompts import Prompt, text
from sglc.errors import RunError
from sglc.ir.target import ControlText, Objects
from sglc.runtime.tokenizer.chat_template import ChatTemplate

_CHARACTERS_A_TOKEN = 4  # a guess, for estimates


class TextTokenizer:
    """The chat template of a model whose tokenizer is elsewhere. Its control tokens have no ids here."""

    bos_id = None  # the server puts it before a prompt that lacks it
    eos_ids = ()
    has_template = True
    control = None  # all markup is control text

    def __init__(self, template: str, named: Mapping[str, str], control: Sequence[str], identity: str) -> None:
        self.hash = identity
        self.template, self.named = template, named
        self._chat = ChatTemplate(template, named)
        self._control = re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True))) or r"(?!)")

    def encode(self, text: str) -> list[int]:
        """As many ids as there may be, for estimates alone."""
        return [0] * -(-len(text) // _CHARACTERS_A_TOKEN)

    encode_within = encode

    def cut(self, text: str) -> int:
        return 0

    def decode(self, ids: Sequence[int]) -> str:
        raise NotImplementedError

    def token_bytes(self) -> Sequence[bytes]:
        raise NotImplementedError

    def split_control(self, markup: str) -> tuple[str | ControlText, ...]:
        """All markup is control text: it is not checked as literals are."""
        return (ControlText(markup, (0,)),) if markup else ()

    def render(self, messages: Objects, *, generate: bool, tools: Objects | None = None) -> str:
        return self._chat.render(messages, generate=generate, tools=tools)

    def check(self, text: str) -> None:
        """Refuse a literal that the server would read as control tokens.

        Raises:
            RunError: SGLC548.
        """
        if found := self._control.search(text):
            raise RunError(
                "SGLC548", f"the prompt has `{found[0]}` in it, which the server would read as a control token",
                note="the server's tokenizer is not on this machine, so prompts go there as text",
                hint="take it out of the text, or have the model here too: `sglc models pull NAME`",
            )  # fmt: skip

    def text(self, prompt: Prompt) -> str:
        """A prompt as it is sent.

        Raises:
            RunError: SGLC548, as of `check`.
        """
        for item in prompt:
            if isinstance(item, str):
                self.check(item)
        return text(prompt)
