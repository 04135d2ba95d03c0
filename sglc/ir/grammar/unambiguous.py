"""Whether texts that are written one behind the other can be told apart again, whatever they are.

Each text is one of an automaton's. Two neighbours can be cut in two ways if some text of the first goes on to
another one of it, and what it goes on with may be missing from the rest:

    first has u and uv, the rest has w and vw, and v is not empty  <=>  uvw can be cut behind u and behind uv

So one walk looks for such a v and w in the product of the automata; where it finds none, the intersection of
what can be added to the first and what can be taken from the rest is empty, and every text is cut in one way
(Book, Even, Greibach, Ott: Ambiguity in graphs and expressions, 1971, for the general case).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sglc.ir.grammar.dfa import DEAD, ByteDfa, run

_MOST_LOOKED_AT = 400_000  # pairs of states times bytes that move differently: about half a second

Place = tuple[int, int]  # which automaton of a sequence, and its state


def can_hold(dfa: ByteDfa, text: str) -> bool:
    """Whether `text` stands anywhere in a text that the automaton accepts."""
    data = text.encode("utf-8", "replace")
    return any(run(dfa, data, state) != DEAD for state in range(len(dfa.moves)))


def ended_by(dfa: ByteDfa, stops: str) -> ByteDfa:
    """The automaton of its texts, each up to the first of the ASCII characters `stops` in it."""
    kinds = {byte: len(dfa.moves[0]) + number for number, byte in enumerate(sorted(set(stops.encode("ascii"))))}
    classes = bytes(kinds.get(byte, kind) for byte, kind in enumerate(dfa.classes))
    accepting = [
        ends or any(row[dfa.classes[byte]] != DEAD for byte in kinds)
        for row, ends in zip(dfa.moves, dfa.accepting, strict=True)
    ]
    return ByteDfa(classes, tuple((*row, *[DEAD] * len(kinds)) for row in dfa.moves), tuple(accepting))


def cut_in_one_way(first: ByteDfa, rest: Sequence[ByteDfa]) -> bool | None:
    """Whether a text of `first`, and behind it one of each of `rest`, says by itself where the first one ends.

    None: the automata are too large to tell.
    """
    steps = _Steps((first, *rest))
    ends = [(0, state) for state, accepting in enumerate(first.accepting) if accepting]
    # Of each pair: where the text stands that is cut later, and where the one that is cut earlier.
    pairs = [(end, begun, False) for end in ends for begun in steps.begun(1)]
    seen = set(pairs)
    while pairs:
        one, other, cut = pairs.pop()
        for byte in steps.bytes:
            after, beyond = (
                steps.alone(one, byte) if not cut else steps.moved(one, byte),
                steps.moved(other, byte),
            )
            found = [(left, right, cut) for left in after for right in beyond]
            if not cut:  # behind this byte the first text may end here too, and the rest begins
                found += [
                    (begun, right, True)
                    for left in after
                    if first.accepting[left[1]]
                    for right in beyond
                    for begun in steps.begun(1)
                ]
            for pair in found:
                if pair[2] and steps.ends(pair[0]) and steps.ends(pair[1]):
                    return False
                if pair not in seen:
                    seen.add(pair)
                    pairs.append(pair)
        if len(seen) * len(steps.bytes) > _MOST_LOOKED_AT:
            return None
    return True


class _Steps:
    """Automata one behind the other, read byte by byte: in several places at once where one may end."""

    def __init__(self, parts: Sequence[ByteDfa]) -> None:
        self.parts = parts
        kinds = {tuple(part.classes[byte] for part in parts): byte for byte in range(256)}
        self.bytes = tuple(kinds.values())  # one of each kind that moves differently

    def begun(self, part: int) -> tuple[Place, ...]:
        """Where reading from `part` on may stand before the first byte."""
        return tuple(self._on((part, 0)))

    def moved(self, place: Place, byte: int) -> tuple[Place, ...]:
        """Where it may stand behind `byte`."""
        return tuple(found for after in self.alone(place, byte) for found in self._on(after))

    def alone(self, place: Place, byte: int) -> tuple[Place, ...]:
        """The same within the automaton of `place`."""
        part, state = place
        after = self.parts[part].moves[state][self.parts[part].classes[byte]]
        return () if after == DEAD else ((part, after),)

    def ends(self, place: Place) -> bool:
        """Whether the whole text may end there."""
        part, state = place
        return part == len(self.parts) - 1 and self.parts[part].accepting[state]

    def _on(self, place: Place) -> Iterator[Place]:
        yield place
        part, state = place
        if self.parts[part].accepting[state] and part + 1 < len(self.parts):
            yield from self._on((part + 1, 0))
