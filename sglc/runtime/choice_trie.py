"""Choices behind one prompt as tries of their ids: what is passed through the model, and what it scores.

An id is passed through once however many choices go through it, and the last id of a choice only where
another choice goes on behind it: its log-probability comes from the id before. A trie's ids lie depth
first behind the prompt in one row, so that an id sees those above it alone: those before it that are
not done yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sglc.runtime.ids import common_prefix
from sglc.runtime.step import I32

# A trie's ids attend with a mask of all their pairs; more of them go to another trie.
MOST_TOKENS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceTrie:
    """Ids behind a prompt, depth first.

    Fields:
        ids: n of them.
        depths: int32 [n], 0 directly behind the prompt.
        until: int32 [n]: ids j .. until[j] - 1 are those that see id j, itself and what is below it.
        pairs: (place, id) in ascending order: what follows the id at `place`, -1 the prompt, is scored.
    """

    ids: tuple[int, ...]
    depths: I32
    until: I32
    pairs: tuple[tuple[int, int], ...]

    @property
    def branches(self) -> bool:
        """Whether an id does not see all before it."""
        return bool((self.until < len(self.ids)).any())


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceTries:
    """How choices are scored. `where[c]` is (trie, number of its pair) of each id of choice c.

    The first trie goes with the prompt: what may come first in a choice is scored there alone.
    """

    tries: tuple[ChoiceTrie, ...]
    where: tuple[tuple[tuple[int, int], ...], ...]


def tries_of(choices: Sequence[Sequence[int]], room: int, *, branching: bool) -> ChoiceTries:
    """`choices` as few tries, each of at most `room` ids, or of one choice's.

    Without `branching` each of them is a chain: what two choices share is in both their chains, unless
    one goes on where the other ends.
    """
    firsts = sorted({choice[0] for choice in choices if choice})
    growing = [_Growing({(-1, token) for token in firsts})]
    scored: list[tuple[int, list[tuple[int, int]]]] = [(0, []) for _ in choices]  # behind its first id
    path: list[int] = []  # where the growing trie has the ids of the choice before, but for its last
    before: Sequence[int] = ()
    # Side by side, choices share as much as they can: only what the last one went through is looked at.
    for index in sorted(range(len(choices)), key=lambda i: tuple(choices[i])):
        choice = choices[index]
        if not choice:
            continue
        inner, trie = choice[:-1], growing[-1]
        shared = min(common_prefix(before, inner), len(path))
        size = len(trie.ids) + len(inner) - shared
        branches = shared < min(len(inner), len(trie.ids))
        if branches and (not branching or size > room):
            trie, shared = _Growing(set()), 0
            growing.append(trie)
        path = path[:shared] + trie.add(inner[shared:], shared)
        before = choice
        pairs = list(zip(path, choice[1:], strict=True))
        trie.pairs.update(pairs)
        scored[index] = len(growing) - 1, pairs
    tries = tuple(trie.grown() for trie in growing)
    numbers = [{pair: i for i, pair in enumerate(trie.pairs)} for trie in tries]
    where = []
    for choice, (number, pairs) in zip(choices, scored, strict=True):
        first = [(0, numbers[0][-1, choice[0]])] if choice else []
        of = numbers[number]
        where.append((*first, *[(number, of[pair]) for pair in pairs]))
    return ChoiceTries(tries, tuple(where))


@dataclass(slots=True, eq=False)
class _Growing:
    pairs: set[tuple[int, int]]
    ids: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)

    def add(self, ids: Sequence[int], depth: int) -> list[int]:
        """`ids` one below the other, the first at `depth`; gives their places."""
        begin = len(self.ids)
        self.ids += ids
        self.depths += range(depth, depth + len(ids))
        return list(range(begin, len(self.ids)))

    def grown(self) -> ChoiceTrie:
        count = len(self.ids)
        until = np.full(count, count, np.int32)
        above: list[int] = []  # the ids that the last one sees
        chain = not count or self.depths[-1] == count - 1  # all see all before them
        for place, depth in enumerate(self.depths if not chain else ()):
            if depth < len(above):
                until[above[depth:]] = place
                del above[depth:]
            above.append(place)
        return ChoiceTrie(tuple(self.ids), np.array(self.depths, np.int32), until, tuple(sorted(self.pairs)))
