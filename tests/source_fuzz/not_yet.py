"""What is known to be unequal today, to be taken off this list one by one.

A kind of difference is no violation in programs with one of the features beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# An argument that is an object of a class with methods of its own is no parameter of a plan, which is data:
# giving it to the plan is refused.
NOT_YET: Mapping[str, frozenset[str]] = {"plan: error": frozenset({"argument: object"})}


def is_known(kind: str, features: Iterable[str]) -> bool:
    """Whether programs with these features may show the difference today."""
    return not NOT_YET.get(kind, frozenset()).isdisjoint(features)
