"""A deterministic automaton over bytes, as plain data: the compiled form of a regular expression.

Every state leads to an accepting one, and no two states accept the same continuations. States are
numbered in the order in which a walk from the start first meets them, so equal languages give
equal automata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

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


def tree_of(texts: Iterable[str]) -> ByteDfa:
    """The automaton of these texts alone, a state for each beginning of them."""
    data = [text.encode("utf-8", "replace") for text in texts]
    kinds = {byte: kind for kind, byte in enumerate(sorted(set(b"".join(data))), 1)}
    rows, accepting = [[DEAD] * (len(kinds) + 1)], [False]
    for text in data:
        state = 0
        for byte in text:
            if rows[state][kinds[byte]] == DEAD:
                rows[state][kinds[byte]] = len(rows)
                rows.append([DEAD] * (len(kinds) + 1))
                accepting.append(False)
            state = rows[state][kinds[byte]]
        accepting[state] = True
    classes = bytearray(256)
    for byte, kind in kinds.items():
        classes[byte] = kind
    return ByteDfa(bytes(classes), tuple(map(tuple, rows)), tuple(accepting))


@dataclass(frozen=True, slots=True)
class Edge:
    """From `source`, a byte of the ranges `first` (both ends inside), then the bytes `rest`, to `target`."""

    source: int
    first: tuple[tuple[int, int], ...]
    rest: bytes
    target: int


def only_class(classes: bytes, row: Sequence[int]) -> int | None:
    """The class of the one byte that a state with these moves goes on with; None if there are several."""
    if row.count(DEAD) != len(row) - 1:
        return None
    kind = next(kind for kind, move in enumerate(row) if move != DEAD)
    return kind if classes.count(kind) == 1 else None


def only_classes(classes: bytes, moves: Sequence[Sequence[int]]) -> Callable[[int], int | None]:
    """`only_class` of states, which each is asked for once: runs are asked for from each place in them."""
    return cache(lambda state: only_class(classes, moves[state]))


def forced_bytes(dfa: ByteDfa, state: int, only: Callable[[int], int | None]) -> bytes:
    """The bytes that every match goes on with from `state`: none where it may end or go on in several ways.

    Args:
        only: the `only_classes` of the automaton.
    """
    forced = bytearray()
    while not dfa.accepting[state] and (kind := only(state)) is not None:
        forced.append(dfa.classes.index(kind))
        state = dfa.moves[state][kind]
    return bytes(forced)


def forced_moves(dfa: ByteDfa) -> list[int | None]:
    """Of every state the byte that has to come next, if one has to."""
    alone = [
        dfa.classes.index(kind) if dfa.classes.count(kind) == 1 else None for kind in range(len(dfa.moves[0]))
    ]
    dead = len(dfa.moves[0]) - 1
    return [
        None if accepting or row.count(DEAD) != dead else alone[row.index(max(row))]
        for row, accepting in zip(dfa.moves, dfa.accepting, strict=True)
    ]


def crossings(dfa: ByteDfa) -> list[bool]:
    """Whether each state is not just inside a run of forced bytes.

    It is the start, a text may end or choose there, or several edges meet.
    """
    entered = [0] * len(dfa.moves)
    for row in dfa.moves:
        for target in {*row} - {DEAD}:
            entered[target] += 1
    forced = forced_moves(dfa)
    return [state == 0 or entered[state] > 1 or forced[state] is None for state in range(len(dfa.moves))]


def compressed(dfa: ByteDfa) -> tuple[Edge, ...]:
    """The automaton with every run of forced bytes as one edge, in the order of its states.

    What is left of its states are the `crossings`. Its texts are the same.
    """
    forced, crossing = forced_moves(dfa), crossings(dfa)
    edges = []
    for source in (state for state, here in enumerate(crossing) if here):
        for target in sorted({*dfa.moves[source]} - {DEAD}):
            first = _ranges(dfa, source, target)
            rest = bytearray()
            while not crossing[target]:
                byte = forced[target]
                assert byte is not None
                rest.append(byte)
                target = dfa.moves[target][dfa.classes[byte]]
            edges.append(Edge(source, first, bytes(rest), target))
    return tuple(edges)


def _ranges(dfa: ByteDfa, source: int, target: int) -> tuple[tuple[int, int], ...]:
    """The bytes that lead from `source` straight to `target`."""
    found: list[tuple[int, int]] = []
    for byte, kind in enumerate(dfa.classes):
        if dfa.moves[source][kind] != target:
            continue
        if found and found[-1][1] == byte - 1:
            found[-1] = (found[-1][0], byte)
        else:
            found.append((byte, byte))
    return tuple(found)
