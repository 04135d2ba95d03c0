"""A deterministic automaton over bytes, as plain data: the compiled form of a regular expression.

Every state leads to an accepting one, and no two states accept the same continuations. States are
numbered in the order in which a walk from the start first meets them, so equal languages give
equal automata.
"""

from __future__ import annotations

from dataclasses import dataclass

DEAD = -1  # where a move leads that no match takes


@dataclass(frozen=True, slots=True)
class ByteDfa:
    """State 0 is the start.

    `classes[b]` is the class of byte b (256 of them); bytes of one class move alike.
    `moves[state][class]` is the next state or `DEAD`; `accepting[state]` says whether a text may end.
    """

    classes: bytes
    moves: tuple[tuple[int, ...], ...]
    accepting: tuple[bool, ...]


def run(dfa: ByteDfa, data: bytes, state: int = 0) -> int:
    """The state behind `data`, read from `state`; `DEAD` if no match goes on like that."""
    for byte in data:
        if state == DEAD:
            return DEAD
        state = dfa.moves[state][dfa.classes[byte]]
    return state


def accepts(dfa: ByteDfa, data: bytes) -> bool:
    """Whether `data` as a whole is a match."""
    state = run(dfa, data)
    return state != DEAD and dfa.accepting[state]
