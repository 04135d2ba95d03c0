"""Grammars that call their rules again, as deterministic pushdown automata over bytes.

Each rule is an automaton of its own, in which a call of another one is a move. Where the next byte alone tells
whether to read it, to call a rule or to go back behind the call of this one, a text is read in one way, with a
stack of the states to go back to (an LL(1) grammar whose tokens are bytes; Knuth, "Top-down syntax analysis",
1971). Other grammars are left to parsers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from sglc.ir.grammar.dfa import DEAD, ByteDfa
from sglc.ir.grammar.regex import FIRST_CALL, call, called_rule, compile_with_calls

# What a move may be besides a state and `DEAD`: the byte is read, and the text goes on behind the call of this
# rule; or it goes on there before the byte is read; or, from `CALL` on downwards, a rule is called (`calls`).
RETURN, LEAVE, CALL = -2, -3, -4
MOST_NESTED = 256  # calls that a text may be inside of
MOST_LEFT, MOST_PUT = 16, 4  # how far a token may go back, and what it may put on top of the lowest it came to
_MOST_STATES = 20_000
_MOST_NEEDED = 16  # calls that a state may need to come to an end
_NEVER = 1 << 30  # what one needs that comes to none


@dataclass(frozen=True, slots=True)
class Pushdown:
    """State 0 is the start, with nothing on the stack.

    classes: of the 256 bytes.
    moves: by state and class, a state, `DEAD`, `RETURN`, `LEAVE`, or `CALL` - n, which does `calls[n]`: the
        first state is put on the stack (`DEAD`: none is), and the byte is read from the second one.
    ends: of every state, whether its rule may end there.
    rule_of: of every state the rule that it is part of, the first one being the text as a whole.
    room: the most states that may lie on the stack at a state: the rest are needed to come to an end.
    follows: of each rule the classes of bytes that may come behind it.
    """

    classes: bytes
    moves: tuple[tuple[int, ...], ...]
    calls: tuple[tuple[int, int], ...]
    ends: tuple[bool, ...]
    rule_of: tuple[int, ...]
    room: tuple[int, ...]
    follows: tuple[frozenset[int], ...]


def pushdown(rules: Sequence[str]) -> Pushdown | None:
    """The automaton of the texts of the first one of `rules`, patterns that may `call` others.

    None if the next byte does not always tell how to go on, or it would be too large.

    Raises:
        LegalizeError: as `compile_regex`, of one of them.
    """
    automata = compile_with_calls(rules)
    if empty := _empty(automata):  # it is up to who calls them to leave them out
        automata = compile_with_calls(_optional(rule, empty) for rule in rules)
    if sum(len(dfa.moves) for dfa in automata) > _MOST_STATES:
        return None
    return _Joined(
        [_never_empty(dfa) if number in empty else dfa for number, dfa in enumerate(automata)]
    ).made()


def _empty(automata: Sequence[ByteDfa]) -> set[int]:
    """The rules that may be nothing, but for the first one."""
    empty: set[int] = set()
    while True:
        found = {number for number, dfa in enumerate(automata) if number and _may_be_nothing(dfa, empty)}
        if found == empty:
            return empty
        empty = found


def _may_be_nothing(dfa: ByteDfa, empty: set[int]) -> bool:
    seen = [0]
    for state in seen:  # grows while it is walked
        calls = _calls(dfa, dfa.moves[state], 0) if empty else ()
        seen += {behind for rule, behind in calls if rule in empty}.difference(seen)
    return any(dfa.accepting[state] for state in seen)


def _optional(pattern: str, empty: set[int]) -> str:
    for number in empty:
        pattern = pattern.replace(call(number), f"(?:{call(number)})?")
    return pattern


def _never_empty(dfa: ByteDfa) -> ByteDfa:
    """The same texts but for the empty one."""
    moved = tuple(tuple(target + (target != DEAD) for target in row) for row in (dfa.moves[0], *dfa.moves))
    return ByteDfa(dfa.classes, moved, (False, *dfa.accepting))


class _Joined:
    """The automata of all rules as one."""

    def __init__(self, automata: Sequence[ByteDfa]) -> None:
        self.first = [0]  # of each rule, its first state
        for dfa in automata:
            self.first.append(self.first[-1] + len(dfa.moves))
        alike: dict[tuple[int, ...], int] = {}
        columns = [tuple(dfa.classes[byte] for dfa in automata) for byte in range(FIRST_CALL)]
        self.classes = bytes(alike.setdefault(column, len(alike)) for column in columns)
        self.kinds = len(alike)
        self.moves: list[dict[int, int]] = []  # of each state by class
        # Of each state, the rules that it may call, each with the state behind the call.
        self.called: list[list[tuple[int, int]]] = []
        self.ends: list[bool] = []
        self.rule_of: list[int] = []
        for number, dfa in enumerate(automata):
            begin = self.first[number]
            for row, ends in zip(dfa.moves, dfa.accepting, strict=True):
                reads = {column: row[column[number]] for column in alike}
                self.moves.append({alike[c]: begin + to for c, to in reads.items() if to != DEAD})
                self.called.append(_calls(dfa, row, begin))
                self.ends.append(ends)
                self.rule_of.append(number)
        # What `_firsts` found of states: those of a rule that is called before those that call it.
        self.known: dict[int, frozenset[int]] = {}
        # Where a rule has come to its end, and nothing else is possible, it is gone back from at once.
        self.over = [
            ends and not moves and not called and rule > 0
            for ends, moves, called, rule in zip(self.ends, self.moves, self.called, self.rule_of, strict=True)
        ]

    def made(self) -> Pushdown | None:
        firsts = self._firsts()
        if firsts is None or not self._bytes_are_near():
            return None
        follows = self._follows(firsts)
        calls: dict[tuple[int, int], int] = {}
        moves: list[tuple[int, ...]] = []
        for state in range(len(self.moves)):
            row = {kind: RETURN if self.over[to] else to for kind, to in self.moves[state].items()}
            for rule, behind in self.called[state]:
                pair = (DEAD if self.over[behind] else behind, self.first[rule])
                for kind in firsts[self.first[rule]]:
                    if kind in row:
                        return None
                    row[kind] = CALL - calls.setdefault(pair, len(calls))
            if self.ends[state] and self.rule_of[state] and not self.over[state]:
                for kind in follows[self.rule_of[state]]:
                    if kind in row:
                        return None
                    row[kind] = LEAVE
            moves.append(tuple(row.get(kind, DEAD) for kind in range(self.kinds)))
        pairs = list(calls)
        reached = [0]
        seen = {0}
        for state in reached:  # grows while it is walked
            to = [place for move in moves[state] if move <= CALL for place in pairs[CALL - move]]
            for place in [*moves[state], *to]:
                if place >= 0 and place not in seen:
                    seen.add(place)
                    reached.append(place)
        return self._kept(reached, moves, pairs, follows)

    def _kept(
        self, kept: Sequence[int], moves: Sequence[Sequence[int]], calls: Sequence[tuple[int, int]],
        follows: Sequence[set[int]],
    ) -> Pushdown | None:  # fmt: skip
        """The automaton of the states `kept`; None if one of them may need too much of the stack."""
        needed = self._needed()
        if max(needed[state] for state in kept) > _MOST_NEEDED:
            return None
        number = {state: at for at, state in enumerate(kept)} | {DEAD: DEAD}
        used = {move for state in kept for move in moves[state] if move <= CALL}
        left = [CALL - move for move in sorted(used, reverse=True)]
        number |= {CALL - old: CALL - new for new, old in enumerate(left)} | {RETURN: RETURN, LEAVE: LEAVE}
        rows = [[number[move] for move in moves[state]] for state in kept]
        # Other states told more bytes apart.
        columns: dict[tuple[int, ...], int] = {}
        kind_of = [columns.setdefault(column, len(columns)) for column in zip(*rows, strict=True)]
        # What no text has is like 0xC0, which none has either.
        classes = bytes(kind_of[kind] for kind in self.classes)
        return Pushdown(
            classes + bytes([classes[0xC0]] * (256 - FIRST_CALL)),
            tuple(zip(*columns, strict=True)),
            tuple((number[calls[old][0]], number[calls[old][1]]) for old in left),
            tuple(self.ends[state] for state in kept),
            tuple(self.rule_of[state] for state in kept),
            tuple(MOST_NESTED - needed[state] for state in kept),
            tuple(frozenset(kind_of[kind] for kind in rule) for rule in follows),
        )

    def _firsts(self) -> list[frozenset[int]] | None:
        """The classes that each state may go on with inside its rule; None if a rule begins with itself."""
        known = self.known
        asked: list[int] = []

        def of(state: int) -> frozenset[int] | None:
            if state in known:
                return known[state]
            if state in asked:
                return None
            asked.append(state)
            found = set(self.moves[state])
            for rule, _ in self.called[state]:
                begins = of(self.first[rule])
                if begins is None:
                    return None
                found |= begins
            asked.pop()
            known[state] = frozenset(found)
            return known[state]

        firsts = [of(state) for state in range(len(self.moves))]
        return None if None in firsts else [first for first in firsts if first is not None]

    def _follows(self, firsts: Sequence[frozenset[int]]) -> list[set[int]]:
        """The classes that may come behind each rule."""
        follows: list[set[int]] = [set() for _ in self.first[1:]]
        last: list[set[int]] = [set() for _ in follows]  # of each rule those that it may end with
        for state, called in enumerate(self.called):
            for rule, behind in called:
                follows[rule] |= firsts[behind]
                if self.ends[behind] and self.rule_of[state]:
                    last[self.rule_of[state]].add(rule)
        _spread(follows, last)
        return follows

    def _bytes_are_near(self) -> bool:
        """Whether each byte that may come is a token that may: no further back or up than one may go."""
        puts = [0] * len(self.moves)
        for state in self.known:
            for rule, behind in self.called[state]:
                puts[state] = max(puts[state], puts[self.first[rule]] + (not self.over[behind]))
        # Which rules a byte goes back from one after the other is told by the rules alone: what may come behind
        # the outer one may come behind the inner one.
        behind_of: list[set[int]] = [set() for _ in self.first[1:]]
        last: list[set[int]] = [set() for _ in behind_of]
        leaves = {
            rule
            for rule, ends, over in zip(self.rule_of, self.ends, self.over, strict=True)
            if ends and not over
        }
        for state, called in enumerate(self.called):
            outer = self.rule_of[state]
            for rule, behind in called:
                if self.over[behind]:
                    last[outer].add(rule)
                elif self.ends[behind] and outer:
                    behind_of[rule].add(outer)
        _spread(behind_of, last)
        left = 0
        while leaves and left < MOST_LEFT:
            leaves = {outer for rule in leaves for outer in behind_of[rule]}
            left += 1
        return max(puts) <= MOST_PUT and left < MOST_LEFT

    def _needed(self) -> list[int]:
        """How many states more have to lie on the stack before each state's rule can come to its end."""
        needed = [0 if ends else _NEVER for ends in self.ends]
        before: list[list[int]] = [[] for _ in needed]  # of each state those whose need depends on its own
        for state, (moves, called) in enumerate(zip(self.moves, self.called, strict=True)):
            for to in {*moves.values(), *(self.first[rule] for rule, _ in called), *(to for _, to in called)}:
                before[to].append(state)
        asked = deque(state for to, need in enumerate(needed) if not need for state in before[to])
        while asked:
            state = asked.popleft()
            ways = [needed[to] for to in self.moves[state].values()]
            for rule, behind in self.called[state]:
                inside = needed[self.first[rule]]
                ways.append(inside if self.over[behind] else max(1 + inside, needed[behind]))
            least = min(ways)
            if least < needed[state] and least <= _MOST_NEEDED:
                needed[state] = least
                asked += before[state]
        return needed


def _spread(sets: Sequence[set[int]], to: Sequence[set[int]]) -> None:
    """Add what is in a set to those that it leads `to`, until none grows."""
    asked = [*range(len(sets))]
    while asked:
        at = asked.pop()
        for other in to[at]:
            if not sets[at] <= sets[other]:
                sets[other].update(sets[at])
                asked.append(other)


def _calls(dfa: ByteDfa, row: Sequence[int], begin: int) -> list[tuple[int, int]]:
    """The rules that a state may call, each with the state behind the call."""
    found = []
    for first in range(FIRST_CALL, 256):
        inside = row[dfa.classes[first]]
        if inside != DEAD:
            moves = dfa.moves[inside]
            for second in range(FIRST_CALL):
                behind = moves[dfa.classes[second]]
                if behind != DEAD:
                    found.append((called_rule(first, second), begin + behind))
    return found
