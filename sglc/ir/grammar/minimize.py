"""The smallest automaton of a language, from any deterministic one."""

from __future__ import annotations

from collections.abc import Sequence

from sglc.ir.grammar.dfa import DEAD, ByteDfa


def blocks_of(moves: Sequence[Sequence[int]], accepting: Sequence[bool]) -> list[int]:
    """Block of each state, equal for states that accept the same continuations (Hopcroft 1971).

    `DEAD` is a state too, the last one; its block is that of all states without a match ahead.
    """
    dead = len(moves)
    before: list[list[list[int]]] = []  # by class and state: where a move to the state begins
    for column in zip(*moves, strict=True):
        before.append([[] for _ in range(dead + 1)])
        for state, to in enumerate((*column, DEAD)):
            before[-1][to].append(state)
    ends = {state for state in range(dead) if accepting[state]}
    blocks = [ends, set(range(dead + 1)) - ends]
    block_of = [0 if state in ends else 1 for state in range(dead + 1)]
    waiting = {0, 1}
    while waiting:
        splitter = list(blocks[waiting.pop()])
        for origins in before:
            hit: dict[int, set[int]] = {}
            for state in splitter:
                for earlier in origins[state]:
                    hit.setdefault(block_of[earlier], set()).add(earlier)
            for block, inside in hit.items():
                if len(inside) == len(blocks[block]):
                    continue
                # Work in proportion to `inside`, not to the block, or long chains take quadratic time.
                small = inside if 2 * len(inside) <= len(blocks[block]) else blocks[block] - inside
                blocks[block] -= small
                for state in small:
                    block_of[state] = len(blocks)
                # If the block still waits, both halves do; else the smaller one is enough.
                waiting.add(len(blocks))
                blocks.append(small)
    return block_of


def canonical(
    classes: bytes, moves: Sequence[Sequence[int]], accepting: Sequence[bool], block_of: list[int]
) -> ByteDfa:
    """One state for each block, numbered as they are met; classes of bytes that move alike joined."""
    dead = block_of[-1]
    numbers = {block_of[0]: 0}
    members = [0]
    rows: list[list[int]] = []
    for state in members:  # grows while it is walked
        rows.append([])
        for to in moves[state]:
            block = block_of[to]
            if block != dead and block not in numbers:
                numbers[block] = len(members)
                members.append(to)
            rows[-1].append(DEAD if block == dead else numbers[block])
    columns = list(zip(*rows, strict=True))
    joined = {column: kind for kind, column in enumerate(dict.fromkeys(columns))}
    return ByteDfa(
        bytes(joined[columns[kind]] for kind in classes),
        tuple(zip(*joined, strict=True)),
        tuple(accepting[state] for state in members),
    )
