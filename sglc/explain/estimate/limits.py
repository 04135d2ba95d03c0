"""How many tokens a generation can make, from its limits and the form that it is held to."""

from __future__ import annotations

from sglc.explain.estimate.intervals import Interval, between
from sglc.explain.estimate.token_counts import TokenCounter
from sglc.ir.grammar.text_lengths import text_lengths
from sglc.ir.sampling import Sampling


def kept(sampling: Sampling, counter: TokenCounter) -> Interval:
    """Tokens of the text of one sample."""
    most = sampling.max_tokens
    may_end_early = bool(sampling.stop or sampling.stop_regex or sampling.stop_token_ids)
    least = 0 if may_end_early else min(sampling.min_tokens, most)
    if sampling.ignore_eos and not may_end_early and sampling.regex is None:
        return between(most, most)
    if sampling.regex is not None and (held := text_lengths(sampling.regex)) is not None:
        shortest, longest, alphabet = held
        bytes_ = counter.of_bytes(shortest, longest, alphabet)
        if not may_end_early:
            least = max(least, min(bytes_.low, most))
        if bytes_.high is not None:
            most = min(most, bytes_.high)
    return between(min(least, most), most)


def completion(sampling: Sampling, counter: TokenCounter) -> Interval:
    """Tokens that all samples generate, with those that end them."""
    text = kept(sampling, counter)
    # Of a text that is not full, one more token says that it has ended.
    most = max(sampling.max_tokens, 1) if text.high is None else min(text.high + 1, max(sampling.max_tokens, 1))
    return Interval(text.low * sampling.n, most * sampling.n, min(text.likely, most) * sampling.n)
