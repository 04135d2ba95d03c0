"""Small data for benchmark programs, drawn with seeds: texts and lists whose lengths differ between rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

ROWS = 20
_WORDS = (
    "river", "stone", "cloud", "lamp", "garden", "bread", "winter", "letter", "music", "paper",
    "horse", "island", "candle", "market", "bridge", "forest", "window", "silver", "story", "morning",
    "kettle", "harbour", "pencil", "mountain", "summer", "engine", "apple", "ticket", "mirror", "village",
)  # fmt: skip


def words(draw: random.Random, count: int) -> str:
    """So many words."""
    return " ".join(draw.choice(_WORDS) for _ in range(count))


def sentence(draw: random.Random, least: int = 3, most: int = 12) -> str:
    """One sentence of some length between these, in words."""
    return words(draw, draw.randint(least, most)).capitalize() + "."


def names(draw: random.Random, count: int) -> list[str]:
    """So many words that differ."""
    return draw.sample(_WORDS, count)


def rows(seed: int, make: Callable[[random.Random, int], Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """The rows of a benchmark, each drawn by itself and made with its number."""
    return tuple(make(random.Random(f"{seed} {number}"), number) for number in range(ROWS))
