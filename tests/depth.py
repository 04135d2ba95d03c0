"""How many of its cases a test runs: `TEST_DEPTH` is `quick`, `usual` (if it is not said) or `nightly`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

_T = TypeVar("_T")

DEPTHS = ("quick", "usual", "nightly")
DEPTH = os.environ.get("TEST_DEPTH", "usual")
if DEPTH not in DEPTHS:
    raise ValueError(f"TEST_DEPTH is `{DEPTH}`: it is one of {', '.join(DEPTHS)}")


def at_depth(quick: int, usual: int, nightly: int) -> int:
    """How many cases there are."""
    return {"quick": quick, "usual": usual, "nightly": nightly}[DEPTH]


def some_of(cases: Sequence[_T], quick: int, usual: int) -> list[_T]:
    """So many cases, spread evenly, the first and the last among them; all of them nightly."""
    count = min(at_depth(quick, usual, len(cases)), len(cases))
    if count == 1:
        return [cases[0]]
    return [cases[round(i * (len(cases) - 1) / (count - 1))] for i in range(count)]


def few(cases: Iterable[_T], quick: int) -> list[_T]:
    """So many cases at quick depth, spread evenly, the first and the last among them; all of them otherwise."""
    every = list(cases)
    return some_of(every, quick, len(every))
