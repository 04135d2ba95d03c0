"""What tokens of an API cost, by a table that says where it comes from. An unknown price is said, never 0."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sglc.backends.models.table import VENDORS, facts_of, source
from sglc.explain.estimate.forecast import Tally

_MILLION = 1e6
_CACHED_FROM = 1024  # tokens: shorter prompts are not cached


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars. `high` None: there is no bound. `likely` takes nothing to be cached."""

    low: float
    high: float | None
    likely: float
    source: str

    def __str__(self) -> str:
        high = "no bound" if self.high is None else dollars(self.high)
        return f"{dollars(self.low)} to {high}, about {dollars(self.likely)} ({self.source})"


def dollars(amount: float) -> str:
    """An amount with two digits that say something, and at least two behind the point."""
    digits = 2 if amount >= 0.1 or not amount else 1 - math.floor(math.log10(amount))
    return f"${amount:.{digits}f}"


def price_of(target: str, counts: Tally) -> Price | None:
    """The price of `counts` on a target, by its name; None if it is not known."""
    facts = facts_of(target)
    if facts is None or facts.prices is None:
        return None
    prompt, cached, new = facts.prices
    saved = prompt - (prompt if cached is None else cached)
    shared = counts.shared.high if counts.shared.high is not None else counts.prompt.low
    # What is surely sent, and as much of it from the cache as there may be.
    low = counts.prompt.low * prompt - min(shared, counts.prompt.low) * saved * (shared >= _CACHED_FROM)
    low += counts.new.low * new
    bounded = counts.prompt.high is not None and counts.new.high is not None
    high = (counts.prompt.high or 0) * prompt + (counts.new.high or 0) * new if bounded else None
    likely = counts.prompt.likely * prompt + counts.new.likely * new
    high = None if high is None else high / _MILLION
    return Price(low / _MILLION, high, likely / _MILLION, f"prices: {source()}")


def is_priced(target: str) -> bool:
    """Whether somebody asks money for what runs on a target."""
    return target.partition(":")[0] in (*VENDORS, "litellm")
