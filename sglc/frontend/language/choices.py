"""The methods of `select`, as values that programs pass to `choices_method`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglc.ir.choice_scoring import NEEDS_UNCONDITIONAL, best, decide
from sglc.ir.ops import SELECT_METHODS

# Of one choice: (log-probability, token id, None) of every token.
TokenLogprobs = Sequence[tuple[Any, int, None]]


@dataclass(frozen=True, slots=True)
class ChoicesDecision:
    """What a method of one's own decided."""

    decision: str
    meta_info: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ChoicesMethod:
    """How `select` decides, by name: the runtime does it. Called, it decides on log-probabilities at hand."""

    name: str

    @property
    def requires_unconditional_logprobs(self) -> bool:
        """Whether it also wants the choices' log-probabilities without the prompt."""
        return self.name in NEEDS_UNCONDITIONAL

    def __call__(
        self,
        *,
        choices: Sequence[str],
        normalized_prompt_logprobs: Sequence[float],
        input_token_logprobs: Sequence[TokenLogprobs],
        output_token_logprobs: Sequence[TokenLogprobs],
        unconditional_token_logprobs: Sequence[TokenLogprobs] | None = None,
    ) -> ChoicesDecision:
        """One of `choices`; the arguments are those of `ChoicesSamplingMethod`."""
        given = {
            "normalized_prompt_logprobs": normalized_prompt_logprobs,
            "input_token_logprobs": input_token_logprobs,
            "output_token_logprobs": output_token_logprobs,
        }
        if self.name == SELECT_METHODS[0]:  # the means are given
            return ChoicesDecision(choices[best(normalized_prompt_logprobs)], given)
        logprobs = [[logprob for logprob, *_ in tokens] for tokens in input_token_logprobs]
        alone = [[logprob for logprob, *_ in tokens] for tokens in unconditional_token_logprobs or ()]
        decision = decide(self.name, logprobs, alone)
        more = {
            "greedy_logprob_matrix": decision.matrix,
            "unconditional_token_logprobs": unconditional_token_logprobs,
            "normalized_unconditional_prompt_logprobs": decision.scores if alone else (),
        }
        told = {key: value for key, value in more.items() if value}
        return ChoicesDecision(choices[decision.choice], {**given, **told})


token_length_normalized = ChoicesMethod("token_length_normalized")
greedy_token_selection = ChoicesMethod("greedy_token_selection")
unconditional_likelihood_normalized = ChoicesMethod("unconditional_likelihood_normalized")


class ChoicesSamplingMethod(ABC):
    """A method of one's own: the model scores the choices, Python decides, the prompt goes on."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        """Whether `unconditional_token_logprobs` is wanted."""
        return False

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
            unconditional_token_logprobs: those without the prompt, None for the first, if they are required.
        """
