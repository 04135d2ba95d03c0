"""How long the texts are that a regex matches."""

from __future__ import annotations

from functools import lru_cache
from graphlib import CycleError, TopologicalSorter

from sglc.errors import SglcError
from sglc.ir.grammar.dfa import DEAD, ByteDfa
from sglc.ir.grammar.regex import compile_regex


@lru_cache(maxsize=256)
def text_lengths(pattern: str) -> tuple[int, int | None, frozenset[int]] | None:
    """Bytes of the shortest and of the longest text that matches, and which bytes there are in such texts."""
    try:
        dfa = compile_regex(pattern)
    except SglcError:
        return None
    alphabet = frozenset(
        byte for byte in range(256) if any(moves[dfa.classes[byte]] != DEAD for moves in dfa.moves)
    )
    return _shortest(dfa), _longest(dfa), alphabet


def _shortest(dfa: ByteDfa) -> int:
    layer, seen, length = {0}, {0}, 0
    while not any(dfa.accepting[state] for state in layer):
        layer = {after for state in layer for after in dfa.moves[state]} - {DEAD} - seen
        seen |= layer
        length += 1
    return length


def _longest(dfa: ByteDfa) -> int | None:
    """None where a text may go on for ever: every state leads to an end, so that is where there is a circle."""
    after = {state: set(moves) - {DEAD} for state, moves in enumerate(dfa.moves)}
    longest: dict[int, int] = {}
    try:
        for state in TopologicalSorter(after).static_order():  # those that it leads to come first
            longest[state] = max((1 + longest[other] for other in after[state]), default=0)
    except CycleError:
        return None
    return longest[0]
