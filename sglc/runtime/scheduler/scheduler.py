"""Who runs in the next step: pure functions over counts. Units are tokens, rows and pages.

Rows that decode come first, then rows with a prompt to finish, then new ones in arrival order. A row
is admitted only if the pages of its prompt are there, so no prompt ever waits in the middle for pages.
Whether there will be pages for what it samples is a guess: see `admission`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sglc.runtime.step import StepCost

# A row waits for a prefix that another row is computing if it saves this many tokens, or a twentieth of its
# own work: so what is computed twice stays below 5 %, and nobody waits a step for next to nothing.
WORTH_WAITING_TOKENS = 16
WORTH_WAITING_SHARE = 20


# Rows that begin in one step: while a device works on them, the host sees to the next ones. Where no row
# decodes nobody waits for a step, and a device has few large ones done before many small ones: then twice as
# many may begin as in the step in flight, which is what the host has time for.
NEW_ROWS = 16
MOST_NEW_ROWS = 128
ROWS_OF_ONE_BEGIN = 16  # for each so many rows that decode, one may begin in a step, whatever it costs
SHORT_PROMPT = 256  # new tokens of a prompt that no long one puts off: programs go on with such ones
_SHARE, _LEAST = 8, 4  # of that, what a step takes of prompts however long it gets: they come to an end


def short_prompt(cost: StepCost | None) -> int:
    """New tokens up to which a prompt is short: where they cost at most what a step takes with none."""
    if cost is None:
        return SHORT_PROMPT
    twice_s = 2 * cost.products_s[0][1]
    return min(SHORT_PROMPT, max(tokens for tokens, seconds in cost.products_s if seconds <= twice_s))


def affordable(cost: StepCost, decoding: int, keys: int, position: int) -> int:
    """Tokens of a step in which `decoding` rows read `keys` keys, so that none of them waits too long.

    The others are of prompts, at about `position`. Not more than `cost` knows of.
    """
    last = cost.products_s[-1]
    pure = next((entry for entry in cost.products_s if entry[0] >= decoding), last)[1] + keys * cost.key_s
    room = cost.stretch * pure - keys * cost.key_s
    sight_s = position * cost.pair_s  # what a token of a prompt adds to the time of the products
    most = max(short_prompt(cost) // _SHARE, _LEAST)
    for tokens, seconds in cost.products_s:
        seen = (room - seconds) / sight_s if sight_s else tokens if seconds <= room else 0
        most = max(most, min(tokens - decoding, int(seen)))
    return decoding + most


def new_rows(decoding: int, before: int) -> int:
    """Rows that may begin beside `decoding` ones; in the step that is in flight, `before` began (none: 0)."""
    return NEW_ROWS if decoding else min(max(NEW_ROWS, 2 * before), MOST_NEW_ROWS)


def divide(budget: int, decoding: int, unfinished: Sequence[int]) -> tuple[list[int], int]:
    """Split `budget` tokens: one for each of `decoding` rows, then prompts with `unfinished` tokens, in order.

    Gives those of each prompt, and what is left for new rows. These are admitted only with tokens that are
    left, so there are never more rows than tokens.
    """
    assert decoding <= budget, "more rows decode than the budget has tokens"
    left = budget - decoding
    chunks = []
    for tokens in unfinished:
        chunks.append(min(tokens, left))
        left -= chunks[-1]
    return chunks, left


def worth_waiting(known: int, limit: int) -> int:
    """How many have to be cached soon that a prompt waits for it which has `known` tokens cached.

    It could use `limit` at most, which are more.
    """
    return known + min(WORTH_WAITING_TOKENS, -(-(limit - known) // WORTH_WAITING_SHARE))
