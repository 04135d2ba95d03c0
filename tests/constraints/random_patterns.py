"""Random patterns, and what of their automata leads to a match."""

from __future__ import annotations

import random
from collections.abc import Sequence

from sglc.ir.grammar.dfa import ByteDfa


def random_pattern(rng: random.Random, depth: int = 3) -> str:
    """Classes, literals and their like, nested."""
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(
            ("[a-z]", "[A-Z]", r"\d", r"\w", r"\s", ".", '[^"]', "[가-힣]", "é", "the ", '"name": "', "ing",
             " and", "12", "[,.!]", "[ab]", r"\{", "한국", "-")
        )  # fmt: skip
    parts = [random_pattern(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    match rng.randrange(3):
        case 0:
            return "".join(parts)
        case 1:
            return f"(?:{'|'.join(parts)})"
        case _:
            return f"(?:{''.join(parts)}){rng.choice(('*', '+', '?', '{1,4}', '{2}'))}"


def goal_states(dfa: ByteDfa, tokens: Sequence[bytes]) -> set[int]:
    """States from which bytes that are tokens lead to a match: every byte of a token is one here."""
    single = sorted({data[0] for data in tokens if len(data) == 1})
    goals = {state for state, accepting in enumerate(dfa.accepting) if accepting}
    while True:
        more = {
            state
            for state in range(len(dfa.moves))
            if state not in goals and any(dfa.moves[state][dfa.classes[byte]] in goals for byte in single)
        }
        if not more:
            return goals
        goals |= more
