"""States of an automaton that no token tells apart: they have one mask.

Those of a counted repeat differ in how much more may come, which no token shows that is shorter than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sglc.ir.grammar.dfa import DEAD

_MOST_MOVES = 100_000  # of an automaton that is looked at: some 50 ms


def alike_states(moves: Sequence[Sequence[int]], is_open: Sequence[bool], most_bytes: int) -> list[int]:
    """Of each state the first one that at most so many bytes lead from to open states as they lead from it.

    Moore's refinement, of which only as many rounds are made. In a round only states are looked at that lead to
    one that the round before told apart, so a long chain costs as much as it has states. In a large automaton
    every state is on its own.

    Args:
        is_open: of every state; the last one is `DEAD`'s.
    """
    if len(moves) * len(moves[0]) > _MOST_MOVES:
        return list(range(len(moves)))
    block_of = [*map(int, is_open[:-1]), 2]  # one that is not open may lead on to such that are, the last not
    before: list[list[int]] = [[] for _ in moves]
    for state, row in enumerate(moves):
        for target in {*row} - {DEAD}:
            before[target].append(state)
    looked_at: Iterable[int] = range(len(moves))
    sizes = [block_of.count(block) for block in range(3)]
    for _ in range(most_bytes):
        found: dict[int, dict[tuple[int, ...], list[int]]] = {}
        for state in looked_at:
            led_to = tuple([block_of[target] for target in moves[state]])
            found.setdefault(block_of[state], {}).setdefault(led_to, []).append(state)
        told_apart: list[int] = []
        for block, groups in found.items():
            apart = sorted(groups.values(), key=len)
            if sum(map(len, apart)) == sizes[block]:
                apart.pop()  # the largest stays the block
            for group in apart:
                sizes[block] -= len(group)
                sizes.append(len(group))
                told_apart += group
                for state in group:
                    block_of[state] = len(sizes) - 1
        if not told_apart:
            break
        looked_at = {state for target in told_apart for state in before[target]}
    first: dict[int, int] = {}
    return [first.setdefault(block, state) for state, block in enumerate(block_of[: len(moves)])]
