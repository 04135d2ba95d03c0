"""What a pass may know of a back end, as data.

The compiler never imports a back end: capabilities are fields, the tokenizer is a protocol.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Protocol

from sglc.ir.sampling import Sampling

Objects = Sequence[Mapping[str, Any]]  # of JSON: messages, tools


@dataclass(frozen=True, slots=True)
class ControlText:
    """Control tokens inside a literal; `text` is only how they are written."""

    text: str
    ids: tuple[int, ...]


class Encoding(Protocol):
    """How a model elsewhere cuts text into tokens. Encodings of `tiktoken` are such."""

    def encode(self, text: str, /) -> Sequence[int]:
        """Ids of a text."""

    def decode(self, ids: Sequence[int], /) -> str:
        """Text of ids."""


class Tokenizer(Protocol):
    """Text to token ids and back, and the model's chat template. Implemented without torch."""

    @property
    def hash(self) -> str:
        """Identity of vocabulary, merges and template (hex); a plan is refused under another one."""

    @property
    def bos_id(self) -> int | None:
        """The id that the model expects before raw text, if it expects one."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a turn."""

    @property
    def control(self) -> Mapping[int, str] | None:
        """How each control token is written; None: all markup is control text."""

    @property
    def has_template(self) -> bool:
        """Whether the model comes with a chat template."""

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text: what looks like a control token is encoded as the text it is.

        The text begins a sequence or stands behind a control token, where some tokenizers put a space.
        """

    def encode_within(self, text: str) -> list[int]:
        """Ids of ordinary text that goes on behind other text: no space is put before it."""

    def cut(self, text: str) -> int:
        """The last place of `text` up to which its ids are the same whatever follows; 0 if none is known."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens left out, invalid UTF-8 as U+FFFD."""

    def token_bytes(self) -> Sequence[bytes]:
        """Bytes of every id, index = id. Control tokens have none (b'')."""

    def split_control(self, markup: str) -> tuple[str | ControlText, ...]:
        """Template output cut into ordinary text and control tokens."""

    def render(self, messages: Objects, *, generate: bool, tools: Objects | None = None) -> str:
        """The chat template applied to `messages` (keys `role`, `content`); `generate` opens the answer.

        `tools` are OpenAI's objects. Templates that know them also take `tool_calls` in messages, with
        arguments as objects, and messages of the role `tool`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Takes:
    """What one model takes of a request; by default everything. Passes read this, and so does `explain`.

    What is not here every back end takes: `max_tokens`, and temperature 1 with top_p 1.
    """

    stops: int | None = None  # stop strings of one request; None: any number
    blank_stops: bool = True  # stop strings of white space alone
    samples: int | None = None  # samples of one request; None: any number
    seed: bool = True
    temperature: float | None = math.inf  # the highest; None: no other than 1
    top_p: bool = True
    top_p_at_any_temperature: bool = True  # else one of the two, with the other left at 1
    top_k: bool = True
    min_p: bool = True
    penalties: bool = True
    repetition_penalty: bool = True
    logit_bias: bool = True
    min_tokens: bool = True
    stop_tokens: bool = True  # `stop_token_ids` and `ignore_eos`
    stop_regex: bool = True
    logprobs: int | None = None  # likeliest tokens at a place; None: any number, -1: none, nor of the made ones
    prompt_logprobs: bool = True
    regex: bool = True
    ebnf: bool = True
    structural_tag: bool = True
    tools: bool = False  # is asked for calls as such; else, with structural tags, the text is held to them
    json_schema: str = "full"  # `full`, a subset (a name of `ir.grammar.schema_subsets`), or "" for none
    reasons: bool = False  # thinks before it answers, and `max_tokens` counts that too
    prefill: bool = True  # goes on behind text that is given in the assistant's turn
    bound_prefill: bool = True  # also held to a form, and behind white space
    roles: tuple[str, ...] | None = None  # whose turns there may be; None: anybody's
    late_system: bool = True  # system turns may stand behind others
    blank_turns: bool = True  # their texts may be empty, or of white space alone
    follows_own: bool = True  # begins an answer behind a whole turn of the assistant's; else goes on in that
    cache_key: bool = False  # may be told which prompts begin alike (`Gen.cache_key`)
    cache_least: int = 1024  # tokens of the shortest prompt that is kept
    hints: bool = False  # is told ahead what follows a request (`Gen.next_use`)
    cache_turns: bool = False  # keeps whole turns, and is told behind which one
    pictures: tuple[str, ...] | None = None  # types of pictures that it takes, if it takes any; None: all
    picture_roles: tuple[str, ...] | None = None  # whose turns may hold pictures; None: anybody's
    picture_addresses: bool = True  # fetches a picture whose address is given

    def picture_refused(self, data: str, role: str) -> tuple[str, str] | None:
        """Why a picture cannot stand in a turn of `role` ("": in none), and what would help; None if it can.

        Of a picture that only a run knows `data` is "".
        """
        if self.picture_roles is not None and role and role not in self.picture_roles:
            return f"it stands in a turn of `{role}`", "put it into the user's turn"
        if not data.startswith("data:"):
            if self.picture_addresses or not data:
                return None
            why = "it is given by its address, which the API does not fetch"
            return why, "give the picture itself: its bytes, or its file"
        kind = data[:256].removeprefix("data:").partition(",")[0].partition(";")[0]
        if self.pictures is None or kind in self.pictures:
            return None
        return f"the model takes no pictures of the type `{kind}`", f"it takes {', '.join(self.pictures)}"

    def turn_refused(self, role: str, *, behind: bool) -> str:
        """Why a turn of `role` cannot stand where it does, `behind` others than system turns; or nothing."""
        if self.roles is not None and role not in self.roles:
            return f"there are no turns of `{role}`, but of {', '.join(f'`{own}`' for own in self.roles)}"
        if role == "system" and behind and not self.late_system:
            return "a system turn stands behind others, and instructions stand before the conversation alone"
        return ""

    def holds(self, sampling: Sampling) -> bool:
        """Whether the model takes what a generation is held to as it is, or it is held to nothing."""
        return (
            (sampling.regex is None or self.regex)
            and (sampling.ebnf is None or self.ebnf)
            and (sampling.json_schema is None or self.json_schema == "full")
            and (sampling.structural_tag is None or self.structural_tag)
        )

    def sent_stops(self, stop: Sequence[str]) -> tuple[str, ...]:
        """The stop strings of a generation that its request is given; at the others the text is cut here."""
        sent = [text for text in stop if self.blank_stops or not text.isspace()]
        return tuple(sent if self.stops is None else sent[: self.stops])


EVERYTHING = Takes()


def _no_encoding() -> Encoding | None:
    return None


@dataclass(frozen=True, slots=True)
class Target:
    """What a back end can do, as data.

    `protocol` is what a prompt is on its way there: `tokens` (ids, those of the template's markup among
    them), `text` (one text, the template's markup in it) or `chat` (messages).
    """

    name: str
    tokenizer: Tokenizer | None = None
    scores_tokens: bool = False  # returns log-probabilities of given text
    continues_text: bool = False  # decodes from any prefix, not only a new turn
    images: bool = False  # takes pictures
    concurrency: int = 16  # generations that it runs at once; the executor keeps 4 x this many rows live
    protocol: str = "tokens"
    takes: Takes = EVERYTHING
    known: bool = True  # else what it takes is what its protocol has in common
    guesses: bool = False  # one request can be asked for several generations of a turn (`Gen.ahead`)
    holds_forms: bool = True  # what it makes is of the form asked for; else who reads it looks
    whole_answers: bool = False  # pieces cost something: `submit(..., streams=False)` where nobody reads them
    passes: tuple[str, ...] | None = None  # those to run, in this order; None: the pipeline of its kind
    model: str = field(default="", compare=False)  # its name, where `name` only says where it is
    # Of a model elsewhere, for estimates alone: they ask for it.
    encoding: Callable[[], Encoding | None] = field(default=_no_encoding, compare=False)

    @property
    def told_by(self) -> tuple[Hashable, ...]:
        """What is equal of targets for which a program compiles to the same plan."""
        return (*_own_fields(self), self.tokenizer.hash if self.tokenizer else "")

    def is_deterministic(self, sampling: Sampling | None) -> bool:
        """Whether the same prompt has the same answer each time: a greedy one, or one under a seed of its own.

        None is a choice: it is ranked by log-probabilities, or a greedy answer.
        """
        if sampling is None:
            return self.scores_tokens or self.takes.temperature is not None
        if sampling.temperature == 0:
            return self.takes.temperature is not None
        return self.takes.seed and sampling.seed is not None


_own_fields = attrgetter(*(part.name for part in fields(Target) if part.compare and part.name != "tokenizer"))
