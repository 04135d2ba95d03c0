"""`sglang.lang.choices`: the methods of `select`, and what a method of one's own is made of."""

from sglc.frontend.language.choices import ChoicesDecision as ChoicesDecision
from sglc.frontend.language.choices import ChoicesSamplingMethod as ChoicesSamplingMethod
from sglc.frontend.language.choices import greedy_token_selection as greedy_token_selection
from sglc.frontend.language.choices import token_length_normalized as token_length_normalized
from sglc.frontend.language.choices import (
    unconditional_likelihood_normalized as unconditional_likelihood_normalized,
)
