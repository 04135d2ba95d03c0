"""Who runs in the next step: pure functions over counts. Units are tokens, rows and pages.

Rows that decode come first, then rows with a prompt to finish, then new ones in arrival order. A row
is admitted only if the pages it may need to its end are there, so no running row ever waits for pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# A row waits for a prefix that another row is computing if it saves this many tokens, or a twentieth of its
# own work: so what is computed twice stays below 5 %, and nobody waits a step for next to nothing.
WORTH_WAITING_TOKENS = 16
WORTH_WAITING_SHARE = 20


@dataclass(frozen=True, slots=True)
class Shares:
    """The token budget of one step: tokens of each unfinished prompt, and what is left for new rows."""

    chunks: tuple[int, ...]
    left: int


@dataclass(frozen=True, slots=True)
class Need:
    """What a new row asks for: tokens to pass through extend, pages to own until its end."""

    tokens: int
    pages: int


def divide(budget: int, decoding: int, unfinished: Sequence[int]) -> Shares:
    """Split `budget` tokens: one for each of `decoding` rows, then prompts with `unfinished` tokens, in order.

    New rows are admitted only with tokens that are left, so there are never more rows than tokens.
    """
    assert decoding <= budget, "more rows decode than the budget has tokens"
    left = budget - decoding
    chunks = []
    for tokens in unfinished:
        chunks.append(min(tokens, left))
        left -= chunks[-1]
    return Shares(tuple(chunks), left)


def admit(left: int, pages: int, need: Need) -> int | None:
    """Tokens of a new row's first chunk, or None if it has to wait.

    Args:
        left: tokens of the step that nobody has.
        pages: pages that are free or can be freed, less those that running rows may still need.
    """
    if left < 1 or need.pages > pages:
        return None
    return min(left, need.tokens)


def worth_waiting(known: int, soon: int, limit: int) -> bool:
    """Whether a prompt with `known` cached tokens waits until `soon` are; it could use `limit` at most."""
    gain = soon - known
    return gain > 0 and (gain >= WORTH_WAITING_TOKENS or WORTH_WAITING_SHARE * gain >= limit - known)
