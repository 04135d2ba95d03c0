"""The methods of `select`, as values that programs pass to `choices_method`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ChoicesMethod:
    """How `select` decides, by name: the runtime does it."""

    name: str


token_length_normalized = ChoicesMethod("token_length_normalized")
greedy_token_selection = ChoicesMethod("greedy_token_selection")
unconditional_likelihood_normalized = ChoicesMethod("unconditional_likelihood_normalized")

# Of one choice: (log-probability, token id, None) of every token.
TokenLogprobs = Sequence[tuple[float, int, None]]


@dataclass(frozen=True, slots=True)
class ChoicesDecision:
    """What a method of one's own decided."""

    decision: str
    meta_info: Mapping[str, Any] | None = None


class ChoicesSamplingMethod(ABC):
    """A method of one's own: the model scores the choices, Python decides, the prompt goes on."""

    @abstractmethod
    def __call__(
        self,
        *,
        choices: Sequence[str],
        normalized_prompt_logprobs: Sequence[float],
        input_token_logprobs: Sequence[TokenLogprobs],
        output_token_logprobs: Sequence[TokenLogprobs],
        unconditional_token_logprobs: Sequence[TokenLogprobs] | None = None,
    ) -> ChoicesDecision:
        """One of `choices`.

        Args:
            normalized_prompt_logprobs: mean log-probability (natural) of each choice's tokens.
            input_token_logprobs: those of every token of each choice, behind the prompt.
            output_token_logprobs: empty lists: nothing is generated to decide.
            unconditional_token_logprobs: None in this release.
        """
