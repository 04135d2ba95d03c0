"""Numbers that are not known yet: bounds, and what is expected between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isclose


@dataclass(frozen=True, slots=True)
class Interval:
    """A count between `low` and `high`, both included; `high` None: there is no bound.

    `likely` is what is expected: the middle, unless more is known. Without a bound it leaves out what has none.
    """

    low: int
    high: int | None
    likely: float

    @property
    def exact(self) -> bool:
        """Whether the count is known."""
        return self.low == self.high

    def __contains__(self, count: int) -> bool:
        return self.low <= count and (self.high is None or count <= self.high)

    def __add__(self, other: Interval) -> Interval:
        bounded = self.high is not None and other.high is not None
        high = (self.high or 0) + (other.high or 0) if bounded else None
        return Interval(self.low + other.low, high, self.likely + other.likely)

    def perhaps(self, weight: float) -> Interval:
        """The same where it may not come to it; `weight` is how likely it does."""
        return Interval(min(self.low, 0), self.high, self.likely * weight)

    def floored(self, least: int = 0) -> Interval:
        """No less than `least`."""
        high = None if self.high is None else max(self.high, least)
        return Interval(max(self.low, least), high, max(self.likely, least))

    def at_most(self, most: int | None) -> Interval:
        """No more than `most`."""
        if most is None or (self.high is not None and self.high <= most):
            return self
        return Interval(min(self.low, most), most, min(self.likely, most))

    @property
    def possible(self) -> Interval:
        """What is left of it as a count: nothing below 0, and what is expected between the bounds."""
        low = max(self.low, 0)
        high = None if self.high is None else max(self.high, low)
        likely = max(self.likely, low)
        return Interval(low, high, likely if high is None else min(likely, high))

    def __str__(self) -> str:
        if self.exact:
            return str(self.low)
        return f"{self.low}+" if self.high is None else f"{self.low}-{self.high}"


ZERO = Interval(0, 0, 0.0)


def sure(count: int) -> Interval:
    """A count that is known."""
    return Interval(count, count, float(count))


def between(low: int, high: int | None) -> Interval:
    """A count of which only the bounds are known."""
    return Interval(low, high, float(low) if high is None else (low + high) / 2)


def either(spans: Iterable[Interval]) -> Interval:
    """One of several counts, it is not known which."""
    all_ = list(spans)
    likely = sum(span.likely for span in all_) / len(all_)
    return Interval(min(span.low for span in all_), _highest(all_), likely)


def weighted(spans: Sequence[tuple[float, Interval]]) -> Interval:
    """At most one of several counts, each as likely as its weight; surely one, if these make 1 together."""
    lows = [span.low for _, span in spans]
    surely = len(spans) > 1 and isclose(sum(weight for weight, _ in spans), 1)
    likely = sum(weight * span.likely for weight, span in spans)
    return Interval(min(lows) if surely else min(0, *lows), _highest(span for _, span in spans), likely)


def _highest(spans: Iterable[Interval]) -> int | None:
    highs = [span.high for span in spans]
    known = [high for high in highs if high is not None]
    return max(known) if len(known) == len(highs) else None
