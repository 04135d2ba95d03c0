"""Log-probabilities as the three protocols write them. Pure functions over the runtime's tokens."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from sglc.ir.plan.events import TokenLogprob
from sglc.serve.prompts import ServedTokenizer

Tops = Sequence[Sequence[TokenLogprob] | None]


class Spelling:
    """How the tokens of one model are shown."""

    def __init__(self, tokenizer: ServedTokenizer) -> None:
        self._bytes = tokenizer.token_bytes()
        self._control = tokenizer.control

    def text_bytes(self, token: int) -> bytes:
        """What a token adds to a generated text: a control token nothing."""
        return self._bytes[token] if token < len(self._bytes) else b""

    def is_control(self, token: int) -> bool:
        """Whether a token is a control token."""
        return token in self._control

    def all_bytes(self, token: int) -> bytes:
        """What a token adds to a prompt, control tokens as they are written."""
        return self._control[token].encode() if token in self._control else self.text_bytes(token)

    def name(self, token: int) -> str:
        r"""The token as a text of its own; `bytes:\xe2\x80` if it is none, `token_id:7` if it has no text."""
        spelled = self.all_bytes(token)
        if not spelled:
            return f"token_id:{token}"
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


class Offsets:
    """Where tokens begin in a text that they add up to, counted in characters.

    Those of `prompt`, with which it begins, may spell more than that: a begin token, and a space behind it.
    """

    def __init__(self, prompt: str = "") -> None:
        self._prompt = prompt
        self._first = True  # what comes begins the prompt, or stands behind a control token
        self._at = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def next(self, spelled: bytes) -> int:
        """Where the token begins that adds `spelled`."""
        begin = self._at
        self._at += len(self._decoder.decode(spelled))
        return begin

    def next_of_prompt(self, spelled: bytes, *, control: bool) -> int:
        """Where the token of the prompt begins that adds `spelled`, or would if the prompt had it."""
        if control and not self._prompt.startswith(spelled.decode(), self._at):
            return self._at
        begin, spaces = self.next(spelled), len(spelled) - len(spelled.lstrip(b" "))
        if self._first and not self._prompt.startswith(" " * spaces, begin):
            self._at -= 1
        self._first = control or (self._first and spaces == len(spelled))
        return begin


def of_completion(
    spelling: Spelling, offsets: Offsets, tokens: Sequence[TokenLogprob], tops: Tops, *, prompt: bool
) -> dict[str, Any]:
    """OpenAI's completions: four lists of the same length.

    Args:
        tops: of each token the likeliest ones at its place, or nothing at all if none are asked for.
        prompt: whether the tokens are those of a prompt, whose control tokens are part of the text.
    """

    def begin(token: int) -> int:
        if prompt:
            return offsets.next_of_prompt(spelling.all_bytes(token), control=spelling.is_control(token))
        return offsets.next(spelling.text_bytes(token))

    return {
        "tokens": [spelling.name(id_) for _, id_, _ in tokens],
        "token_logprobs": [logprob for logprob, _, _ in tokens],
        "top_logprobs": [
            _named(spelling, token, likeliest)
            for token, likeliest in zip(tokens, tops or [()] * len(tokens), strict=True)
        ],
        "text_offset": [begin(id_) for _, id_, _ in tokens],
    }


def _named(
    spelling: Spelling, token: TokenLogprob, likeliest: Sequence[TokenLogprob] | None
) -> dict[str, float | None] | None:
    """The likeliest tokens at one place, and the one that stands there."""
    logprob, id_, _ = token
    if logprob is None:
        return None
    # The token's own value is the one that is given beside it, to the last bit.
    return {**{spelling.name(other): value for value, other, _ in likeliest or ()}, spelling.name(id_): logprob}


def of_chat(spelling: Spelling, tokens: Sequence[TokenLogprob], tops: Tops) -> dict[str, Any]:
    """OpenAI's chats: an object a token."""
    content = [
        {**_shown(spelling, token), "top_logprobs": [_shown(spelling, other) for other in likeliest or ()]}
        for token, likeliest in zip(tokens, tops or [()] * len(tokens), strict=True)
    ]
    return {"content": content, "refusal": None}


def _shown(spelling: Spelling, token: TokenLogprob) -> dict[str, Any]:
    logprob, id_, _ = token
    return {"token": spelling.name(id_), "logprob": logprob, "bytes": list(spelling.all_bytes(id_))}


def of_generate(
    spelling: Spelling, tokens: Sequence[TokenLogprob], *, text: bool
) -> list[tuple[float | None, int, str | None]]:
    """SGLang's: (log-probability, id, text or null)."""
    return [
        (logprob, id_, spelling.all_bytes(id_).decode("utf-8", "replace") if text else None)
        for logprob, id_, _ in tokens
    ]
