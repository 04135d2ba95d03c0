"""What is said of an automaton in one line: how large it is, and how much of its texts is forced."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from sglc.ir.grammar.dfa import DEAD, ByteDfa, crossings, forced_moves, tree_of
from sglc.ir.grammar.regex import compile_regex

_MOST_MOVES = 50_000  # of an automaton whose runs are counted: some 10 ms
_MOST_CHOICE_MOVES = 20_000  # of a choice, which nobody compiles but to look at it


@dataclass(frozen=True, slots=True)
class FsmSummary:
    """The size of an automaton without the states inside runs of forced bytes, as `dfa.compressed` gives it.

    `runs` are its edges with forced bytes. Its shortest text has `shortest` bytes, `forced` of them forced. Of
    a large one only the states are counted, and these all; `runs` is None.
    """

    states: int
    runs: int | None = None
    forced: int = 0
    shortest: int = 0

    def __str__(self) -> str:
        states = f"{self.states:,} state{'' if self.states == 1 else 's'}"
        if self.runs is None:
            return f"{states}, too many to look for runs"
        runs = f"{self.runs:,} run{'' if self.runs == 1 else 's'}"
        return f"{states}, {runs}, {self.forced:,} of {self.shortest:,} bytes forced"


@lru_cache(maxsize=128)
def summary_of(pattern: str) -> FsmSummary:
    """The summary of a regular expression's automaton.

    Raises:
        LegalizeError: as `compile_regex`.
    """
    return summary(compile_regex(pattern))


def summary(dfa: ByteDfa) -> FsmSummary:
    """The summary of an automaton."""
    if len(dfa.moves) * len(dfa.moves[0]) > _MOST_MOVES:
        return FsmSummary(len(dfa.moves))
    forced, crossing = forced_moves(dfa), crossings(dfa)
    targets = [{*row} - {DEAD} for row in dfa.moves]
    edges = [(source, target) for source, here in enumerate(crossing) if here for target in targets[source]]
    runs = sum(forced[source] is not None or not crossing[target] for source, target in edges)
    path = _shortest(dfa, targets)
    return FsmSummary(sum(crossing), runs, sum(forced[state] is not None for state in path), len(path))


def _shortest(dfa: ByteDfa, targets: list[set[int]]) -> list[int]:
    """The states that a shortest text is read from, the first such text by the order of its states."""
    before: dict[int, int] = {0: DEAD}
    queue = deque(before)
    while not dfa.accepting[state := queue.popleft()]:
        for target in sorted(targets[state]):
            if target not in before:
                before[target] = state
                queue.append(target)
    path = []
    while (state := before[state]) != DEAD:
        path.append(state)
    return path


@lru_cache(maxsize=128)
def summary_of_choices(choices: tuple[object, ...]) -> FsmSummary | None:
    """The summary of a choice between texts; None if a run says what these are, or there is much of them."""
    dfa = automaton_of_choices(choices)
    return None if dfa is None else summary(dfa)


def automaton_of_choices(choices: Sequence[object]) -> ByteDfa | None:
    """The tree of the texts; None if a run says what these are, or it is large."""
    texts = [choice for choice in choices if isinstance(choice, str)]
    together = "".join(texts).encode("utf-8", "replace")
    if len(texts) < len(choices) or len(together) * (len(set(together)) + 1) > _MOST_CHOICE_MOVES:
        return None
    return tree_of(texts)
