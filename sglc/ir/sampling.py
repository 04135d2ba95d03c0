"""How a generation samples and when it stops: the only definition of these fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglc.ir.made_often import made_often, replaced

# Of `repetition_penalty`, for which vLLM and transformers know no highest: what lies between makes no logit
# overflow that it divides, or is multiplied with, in 32 bits.
LEAST_REPETITION, MOST_REPETITION = 1e-9, 1e9
MOST_TEMPERATURE = 3e38  # of 32 bits
# What says the form of a text; of them a generation has one at most.
FORMS = ("regex", "json_schema", "ebnf", "structural_tag", "tools")
SEEDS = "an integer from 0 to 2**64 - 1"


def is_seed(value: object) -> bool:
    """Whether it is one of `SEEDS`."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64


@made_often
@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Resolved parameters of one generation (run defaults merged with the call's own).

    `max_tokens` 0 makes no text: what is asked for are the log-probabilities at that place.
    Before `min_tokens` no id ends the text, but a stop string or pattern does, as in SGLang. `temperature` 0 is
    greedy. `top_k` -1 is off. `stop` strings are cut from the text. `seed` None
    means: derived from the run's seed, the row and the site. With a `regex` the whole text matches
    it, as in `re.fullmatch(regex, text, re.ASCII)`, unless a stop string, a stop token that is text
    or `max_tokens` ends it before. `json_schema` (JSON) and `ebnf` (GBNF) constrain it in the same
    way; `structural_tag` (JSON) constrains what markers in a free text begin. Of the four at most one is given,
    and none beside `tools`: JSON of `tools` (OpenAI's functions) that the text may call in the format of
    Hermes, and of `choice` (`auto`, `required`, or the name of one).
    A schema is enforced whole, `strict` or not. With `canonical`, text that has to follow is made of the tokens
    that the tokenizer makes of it; else of any that spell it.
    `stop_regex` patterns end the text like `stop` strings, before the first match of `re.search`.

    `logit_bias` are (id, bias) pairs added to the logits; `frequency_penalty` and `presence_penalty` are
    OpenAI's, over the ids made so far. `repetition_penalty` is that of transformers and vLLM: logits of the ids
    of prompt and text are divided by it where they are above 0, and multiplied where not, before anything is
    added. `logprobs_from` asks for the log-probabilities of the prompt's tokens from that index on,
    `top_logprobs` for the likeliest ids at every place that has one, `logprob_text` for their texts. A local
    model gives those of the generated tokens always; `logprobs` asks an API for them.
    """

    max_tokens: int = 128
    min_tokens: int = 0
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    ignore_eos: bool = False
    seed: int | None = None
    regex: str | None = None
    json_schema: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    tools: str | None = None
    canonical: bool = True
    strict: bool = False
    stop_regex: tuple[str, ...] = ()
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs_from: int | None = None
    top_logprobs: int = 0
    logprob_text: bool = False
    logprobs: bool = False

    def changed(self, given: Mapping[str, Any]) -> Sampling:
        """These parameters with those that are given."""
        return replaced(self, **given)

    @property
    def unreachable(self) -> str:
        """What is wrong if it asks for more tokens than it allows for, by its own names; "" if it does not."""
        if self.min_tokens <= self.max_tokens:
            return ""
        return f"`min_tokens` is `{self.min_tokens}`, more than `max_tokens`, which is `{self.max_tokens}`"

    @property
    def constrained(self) -> bool:
        """Whether the text is held to a form, or pieces of it."""
        return not (self.regex is self.json_schema is self.ebnf is self.structural_tag is None)

    @property
    def penalised(self) -> bool:
        """Whether ids that were made are less likely from then on."""
        return bool(self.frequency_penalty or self.presence_penalty) or self.repetition_penalty != 1
