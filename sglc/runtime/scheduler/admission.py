"""Who may start with the pages there are, and who is preempted when they run short: pure functions.

A sample rarely takes all the tokens that it may, so rows are admitted for the pages that they are
expected to use while they run together, not for the most that each could. Where that was too bold,
pages run short before a launch and the row that loses least is preempted. Its tokens stay, so only its
KV is computed again. Units are tokens and pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sglc.runtime.step import I32


def expected_tokens(least: I32, most: I32, share: float) -> I32:
    """How many more tokens samples are expected to take that take `least` to `most` more: int32 [n] each.

    The longer a sample already is, the longer it is likely to be: it is expected to use its `share`
    of what is left.
    """
    expected: I32 = np.clip(np.ceil(share * most).astype(np.int32), least, most)
    return expected


@dataclass(frozen=True, slots=True)
class PageUsage:
    """How rows are expected to use pages from now on, int32 [n] each. A row writes a token in each step."""

    tokens: I32  # whose KV it has pages for, or will have at once
    left: I32  # tokens that it writes after those
    returned: I32  # pages that it has now, or takes at once, and gives back at its end


def peak_pages(usage: PageUsage, page_size: int) -> int:
    """The most pages that all rows together will have at any time, more than they have now.

    Only the moments at which a row is about to end matter: between two of them, use grows.
    """
    if not usage.left.size:
        return 0
    order = np.argsort(-usage.left, kind="stable")  # so that those still running when row k ends are 0..k
    left, returned = usage.left[order], usage.returned[order]
    # A row with room for `spare` tokens in its last page takes ceil((t - spare) / page_size) pages in t steps.
    spare = -usage.tokens[order] % page_size
    whole, rest = np.divmod(left, page_size)
    roomy = np.cumsum(spare[:, None] == np.arange(page_size), axis=0)  # [k, s]: rows of 0..k with s spare
    tight = np.cumsum(roomy, axis=1)  # [k, s]: with s at most
    rows = np.arange(left.size)
    taken = (rows + 1) * whole + np.where(rest > 0, tight[rows, rest - 1], 0)
    ended = returned.sum() - np.cumsum(returned)
    return max(0, int((taken - ended).max()))


def may_start(pages: int, at_once: int, usage: PageUsage, page_size: int) -> bool:
    """Whether a row may start that takes `at_once` pages at once, as far as can be told.

    Args:
        pages: those that are free or can be freed, less what is promised.
        usage: of the rows that run and of the new one.
    """
    return at_once <= pages and at_once + peak_pages(usage, page_size) <= pages


@dataclass(frozen=True, slots=True)
class Holder:
    """A row that could be preempted: then `pages` of its own, and the ones that it `wants` now, are others'."""

    row: int
    order: tuple[int, ...]  # where its part stands in the queue
    lost_tokens: int  # KV that nobody else holds
    pages: int
    wants: int = 0


def choose_preempted(short: int, running: Sequence[Holder]) -> tuple[int, ...]:
    """The rows that are preempted so that `short` pages more are there, or as many as can be.

    Those go that lose least work, of equal ones the latest. The oldest row always stays, so it ends,
    and then the next one is the oldest: whatever is preempted gets its turn.
    """
    if not running:
        return ()
    oldest = min(holder.order for holder in running)
    able = [holder for holder in running if holder.order != oldest and holder.pages + holder.wants > 0]
    chosen = []
    # A lower priority before what it loses.
    for holder in sorted(
        able, key=lambda holder: (-holder.order[0], holder.lost_tokens, [-part for part in holder.order])
    ):
        if short <= 0:
            break
        chosen.append(holder.row)
        short -= holder.pages + holder.wants
    return tuple(chosen)
