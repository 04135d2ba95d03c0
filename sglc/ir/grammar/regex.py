"""Regular expressions as automata over UTF-8 bytes.

The automaton accepts the encoding of exactly those texts that `re.fullmatch(pattern, text, re.ASCII)`
matches. Python's own parser reads the pattern, so its syntax and meaning are those of `re`, and
`\\d`, `\\w`, `\\s` and case folding are those of ASCII. What is no regular language is refused.
"""

from __future__ import annotations

import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from re import _constants as sre
from re import _parser
from typing import Any

from sglc.errors import LegalizeError, shown
from sglc.ir.grammar.dfa import DEAD, ByteDfa
from sglc.ir.grammar.minimize import blocks_of, canonical
from sglc.ir.grammar.regex_positions import class_places, largest_repeat, part_place, refuse_posix
from sglc.ir.remembered import remembered

# What compiling may take, about two seconds at most: states of the automaton as it is first built, of
# those all that are looked at for the states of the deterministic one, and its states times its classes.
# A set is put together in a small part of the time that finding its members takes.
_MOST_PLACES = 100_000
_MOST_LOOKED_AT = 3_000_000
_TOGETHER = 32
_MOST_MOVES = 500_000

# The same of all rules of a grammar together, and states of the automata as they are first built.
_MOST_STATES = 50_000

_AUTOMATA = 128  # kept: compiling a program and running it builds each automaton once

_SURROGATES = 0xD800, 0xDFFF
MOST_CALLS = 256  # rules that patterns may call: of more, telling what follows which takes long
FIRST_CALL = 0xF5  # bytes from here on are in no text

# Of `[[a]` and `[a--b]`, which may mean something else one day; what they mean to `re` now is kept.
warnings.filterwarnings("ignore", "Possible (nested set|set )", FutureWarning, r"sglc\.")

Range = tuple[int, int]  # first and last, both inside: of code points, or of bytes

DIGIT: list[Range] = [(48, 57)]
_SPACE: list[Range] = [(9, 13), (32, 32)]
WORD: list[Range] = [(48, 57), (65, 90), (95, 95), (97, 122)]
STARTS = (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING)
ENDS = (sre.AT_END, sre.AT_END_STRING)
_REFUSED = {
    sre.ASSERT: "a lookahead or lookbehind",
    sre.ASSERT_NOT: "a negative lookahead or lookbehind",
    sre.AT: "an anchor or `\\b` inside the pattern",
    sre.GROUPREF: "a reference to a group",
    sre.GROUPREF_EXISTS: "a condition on a group",
    sre.ATOMIC_GROUP: "an atomic group",
    sre.POSSESSIVE_REPEAT: "a possessive repeat",
    sre.SUBPATTERN: "the flag `u` or `L`",
}


@remembered(_AUTOMATA)
def compile_regex(pattern: str) -> ByteDfa:
    """The minimal automaton of the UTF-8 texts that match `pattern` as a whole. The newest are kept.

    Raises:
        LegalizeError: SGLC450 `re` does not take the pattern; SGLC451 it has a part that no automaton can do;
            SGLC452 its automaton is too large; SGLC453 no text matches it.
    """
    if (refusal := _REFUSALS.get(pattern)) is not None:
        raise refusal()
    try:
        return _compiled(pattern, _Effort(), calls=False)
    except LegalizeError as error:
        if len(_REFUSALS) >= _AUTOMATA:
            _REFUSALS.clear()
        more: dict[str, Any] = {"note": error.note, "hint": error.hint, "at": error.at}
        _REFUSALS[pattern] = partial(LegalizeError, error.code, error.message, **more)
        raise


_REFUSALS: dict[str, Callable[[], LegalizeError]] = {}
"""What is wrong with patterns: that one asks for too much takes longest to find."""


def compile_with_calls(patterns: Iterable[str]) -> list[ByteDfa]:
    """As `compile_regex`, of the patterns of a grammar, in which surrogates stand for calls of its rules.

    U+D800 + n is read as the two bytes of `call_bytes(n)`, which no text in UTF-8 has. All of them may take as
    long as one that stands alone.
    """
    effort = _Effort()
    return [_compiled(pattern, effort, calls=True) for pattern in patterns]


@dataclass(slots=True)
class _Effort:
    """What compiling has taken: states that were built, and what was looked at for them."""

    states: int = 0
    looked_at: int = 0


def call(rule: int) -> str:
    """What stands in a pattern for a rule, by its number, which is below `MOST_CALLS`."""
    return chr(_SURROGATES[0] + rule)


def call_bytes(rule: int) -> tuple[int, int]:
    """What a call is read as: a byte that begins calls, and one that does not."""
    return FIRST_CALL + rule // FIRST_CALL, rule % FIRST_CALL


def called_rule(first: int, second: int) -> int:
    """The rule whose call these bytes are."""
    return (first - FIRST_CALL) * FIRST_CALL + second


def _compiled(pattern: str, effort: _Effort, *, calls: bool) -> ByteDfa:
    try:
        refuse_posix(pattern)
        tree = _parser.parse(pattern, re.ASCII)
        return _deterministic(_Nfa(pattern, tree, calls), pattern, effort)
    except (re.error, ValueError) as error:  # the latter of numbers with too many digits
        raise LegalizeError(
            "SGLC450", f"`{shown(pattern)}` is no regular expression", note=shown(f"{error}"),
            hint="mend the pattern", at=getattr(error, "pos", None),
        ) from None  # fmt: skip
    except (OverflowError, RecursionError):
        raise _too_large(pattern) from None


def _too_large(pattern: str) -> LegalizeError:
    at = largest_repeat(pattern)
    return LegalizeError(
        "SGLC452",
        f"the automaton of `{shown(pattern, 60)}` is too large",
        note=_at(at) + f"it may have some {_MOST_MOVES} moves",
        hint="lower the bounds of its repeats",
        at=at,
    )


def _at(place: int | None) -> str:
    return "" if place is None else f"at position {place} of the pattern; "


class _Nfa:
    """A nondeterministic automaton, built from its end to its start.

    `edges[place]` are (first byte, last byte, next place), `jumps[place]` places that are reached
    without reading anything.
    """

    def __init__(self, pattern: str, tree: Any, calls: bool) -> None:
        self._pattern = pattern
        self.calls = calls
        self.edges: list[list[tuple[int, int, int]]] = []
        self.jumps: list[list[int]] = []
        self._steps: dict[tuple[int, int, int], int] = {}
        self.final = self._place()
        items = list(tree)
        # The whole text has to match, so an anchor at either end says nothing new.
        while items and items[0][0] is sre.AT and items[0][1] in STARTS:
            items.pop(0)
        while items and items[-1][0] is sre.AT and items[-1][1] in ENDS:
            items.pop()
        self.start = self._sequence(items, self.final, tree.state.flags)

    def _place(self, jumps: Iterable[int] = ()) -> int:
        if len(self.edges) == _MOST_PLACES:
            raise _too_large(self._pattern)
        self.edges.append([])
        self.jumps.append(list(jumps))
        return len(self.edges) - 1

    def _sequence(self, items: Iterable[Any], after: int, flags: int) -> int:
        """Where to begin so that `items` lead to the place `after`."""
        for item in reversed(list(items)):
            after = self._item(item, after, flags)
        return after

    def _item(self, item: Any, after: int, flags: int) -> int:
        match item:
            case (sre.LITERAL, code) if self.calls and _SURROGATES[0] <= code <= _SURROGATES[1]:
                return self._call(code - _SURROGATES[0], after)
            case (sre.IN, members) if self.calls:  # the parser makes one of alternatives that are a character
                called = [code - _SURROGATES[0] for code in _surrogates(members)]
                others = self._character(characters(item, flags), after)
                return self._place([others, *(self._call(rule, after) for rule in called)])
            case (sre.LITERAL | sre.NOT_LITERAL | sre.ANY | sre.IN, _):
                return self._character(characters(item, flags), after)
            case (sre.SUBPATTERN, (_, added, removed, inner)) if not added & (re.UNICODE | re.LOCALE):
                return self._sequence(inner, after, (flags | added) & ~removed)
            case (sre.BRANCH, (_, options)):
                return self._place([self._sequence(option, after, flags) for option in options])
            case (sre.MAX_REPEAT | sre.MIN_REPEAT, (least, most, inner)):
                return self._repeat(list(inner), least, most, after, flags)
        kind = item[0]
        at = part_place(self._pattern, kind)
        raise LegalizeError(
            "SGLC451",
            f"`{shown(self._pattern)}` has {_REFUSED.get(kind, f'`{kind}`')}, "
            "which cannot constrain a generation",
            note=_at(at) + "literals, classes, groups, `|`, repeats and the flags `i`, `s`, `x` can",
            hint="the whole text has to match the pattern: write it without that",
            at=at,
        )

    def _repeat(self, inner: list[Any], least: int, most: int, after: int, flags: int) -> int:
        if most == sre.MAXREPEAT:
            place = self._place()
            self.jumps[place] = [self._sequence(inner, place, flags), after]
        else:
            place = after
            for _ in range(most - least):
                place = self._place([self._sequence(inner, place, flags), after])
        for _ in range(least):
            before = place
            place = self._sequence(inner, before, flags)
            if place == before:  # a repeat of nothing
                break
        return place

    def _call(self, rule: int, after: int) -> int:
        first, second = call_bytes(rule)
        place = self._place()
        self.edges[place].append((first, first, self._step(second, second, after)))
        return place

    def _character(self, ranges: Iterable[Range], after: int) -> int:
        place = self._place()
        for first, last in ranges:
            for head, *tail in _utf8(first, last):
                target = after
                for byte in reversed(tail):
                    target = self._step(*byte, target)
                self.edges[place].append((*head, target))
        return place

    def _step(self, first: int, last: int, after: int) -> int:
        """The place from which just these bytes lead to `after`."""
        key = (first, last, after)
        if key not in self._steps:
            self._steps[key] = self._place()
            self.edges[self._steps[key]].append(key)
        return self._steps[key]


def characters(item: Any, flags: int) -> list[Range]:
    """The code points that a literal, a class or a dot stands for, in order; no surrogates."""
    match item:
        case (sre.ANY, _):
            return _without([] if flags & re.DOTALL else [(10, 10)])
        case (sre.LITERAL, code):
            return _without(_without(_folded([(code, code)], flags)))
        case (sre.NOT_LITERAL, code):
            return _without(_folded([(code, code)], flags))
        case _:
            members = item[1]
            others = _without(_folded([found for member in members for found in _member(member)], flags))
            return others if members[0][0] is sre.NEGATE else _without(others)


def _member(member: Any) -> list[Range]:
    match member:
        case (sre.NEGATE, _):
            return []
        case (sre.LITERAL, code):
            return [(code, code)]
        case (sre.RANGE, (first, last)):
            return [(first, last)]
        case (sre.CATEGORY, sre.CATEGORY_DIGIT):
            return DIGIT
        case (sre.CATEGORY, sre.CATEGORY_SPACE):
            return _SPACE
        case (sre.CATEGORY, sre.CATEGORY_WORD):
            return WORD
        case (sre.CATEGORY, sre.CATEGORY_NOT_DIGIT):
            return _without(DIGIT)
        case (sre.CATEGORY, sre.CATEGORY_NOT_SPACE):
            return _without(_SPACE)
        case (sre.CATEGORY, sre.CATEGORY_NOT_WORD):
            return _without(WORD)
        case _:
            raise AssertionError(member)


def _surrogates(members: Iterable[Any]) -> list[int]:
    """The surrogates that a class has one by one."""
    first, last = _SURROGATES
    return [code for kind, code in members if kind is sre.LITERAL and first <= code <= last]


def _folded(ranges: list[Range], flags: int) -> list[Range]:
    """`ranges` with the other case of their ASCII letters, if case does not count."""
    if not flags & re.IGNORECASE:
        return ranges
    both = list(ranges)
    for letters, offset in (((65, 90), 32), ((97, 122), -32)):
        for first, last in ranges:
            low, high = max(first, letters[0]), min(last, letters[1])
            if low <= high:
                both.append((low + offset, high + offset))
    return both


def _without(ranges: Iterable[Range]) -> list[Range]:
    """All code points but surrogates and those of `ranges`, in order."""
    return complement([*ranges, _SURROGATES])


def complement(ranges: Iterable[Range]) -> list[Range]:
    """All other code points, in order."""
    left: list[Range] = []
    begin = 0
    for first, last in sorted([*ranges, (0x110000, 0x110000)]):
        if begin < first:
            left.append((begin, first - 1))
        begin = max(begin, last + 1)
    return left


def _utf8(first: int, last: int) -> Iterator[tuple[Range, ...]]:
    """Sequences of byte ranges that together spell the code points `first` to `last`."""
    for limit in (0x7F, 0x7FF, 0xFFFF):
        if first <= limit < last:
            yield from _utf8(first, limit)
            yield from _utf8(limit + 1, last)
            return
    # A sequence may vary in a byte only if it has all values of the bytes behind that one.
    for bits in (6, 12, 18) if last > 0x7F else ():
        rest = (1 << bits) - 1
        if first >> bits != last >> bits and (first & rest or last & rest != rest):
            middle = (first | rest) + 1 if first & rest else last & ~rest
            yield from _utf8(first, middle - 1)
            yield from _utf8(middle, last)
            return
    yield tuple(zip(chr(first).encode(), chr(last).encode(), strict=True))


def _deterministic(nfa: _Nfa, pattern: str, effort: _Effort) -> ByteDfa:
    labels, arrows = _labelled(nfa.edges)
    classes, kinds_of = _kinds(labels)
    kinds = max(classes) + 1
    closures: dict[int, frozenset[int]] = {}

    def count(places: int) -> None:
        effort.looked_at += places
        if effort.looked_at > _MOST_LOOKED_AT:
            raise _too_large(pattern)

    def closure(place: int) -> frozenset[int]:
        """Places reached without reading, of those that read something or end the match."""
        if place not in closures:
            seen, stack = {place}, [place]
            while stack:
                for to in nfa.jumps[stack.pop()]:
                    if to not in seen:
                        seen.add(to)
                        stack.append(to)
            count(len(seen))
            closures[place] = frozenset(at for at in seen if arrows[at] or at == nfa.final)
        return closures[place]

    numbers = {closure(nfa.start): 0}
    queue = deque(numbers)
    moves: list[list[int]] = []
    while queue:
        reached: dict[int, list[int]] = {}  # by label
        for place in queue.popleft():
            for label, to in arrows[place]:
                reached.setdefault(label, []).append(to)
        labels_of: list[tuple[int, ...]] = [()] * kinds
        for label in reached:
            for kind in kinds_of[label]:
                labels_of[kind] += (label,)
        behind: dict[tuple[int, ...], int] = {(): DEAD}  # by labels: most bytes that move at all have the same
        for wanted in labels_of:
            if wanted in behind:
                continue
            parts = [closure(to) for label in wanted for to in reached[label]]
            count(len(parts) + sum(map(len, parts)) // _TOGETHER)
            state = frozenset().union(*parts)
            if state not in numbers:
                numbers[state] = len(numbers)
                queue.append(state)
            behind[wanted] = numbers[state]
        moves.append([behind[wanted] for wanted in labels_of])
        effort.states += 1
        if len(numbers) * kinds > _MOST_MOVES or (nfa.calls and effort.states > _MOST_STATES):
            raise _too_large(pattern)
    accepting = [nfa.final in state for state in numbers]
    blocks = blocks_of(moves, accepting)
    if blocks[0] == blocks[DEAD]:
        classes_at = ((at, _parser.parse(piece, re.ASCII)[0]) for at, piece in class_places(pattern))
        at = next((at for at, item in classes_at if not characters(item, 0)), None)
        raise LegalizeError(
            "SGLC453", f"no text matches `{shown(pattern)}`",
            note="" if at is None else _at(at) + "no character is in this class",
            hint="mend the pattern", at=at,
        )  # fmt: skip
    return canonical(classes, moves, accepting, blocks)


def _labelled(
    edges: Sequence[Sequence[tuple[int, int, int]]],
) -> tuple[list[tuple[Range, ...]], list[list[tuple[int, int]]]]:
    """What edges may read, each set of bytes once, and the edges of every place as (its number, next place)."""
    numbers: dict[tuple[Range, ...], int] = {}
    arrows = []
    for leaving in edges:
        read: dict[int, tuple[Range, ...]] = {}
        for first, last, to in leaving:
            read[to] = (*read.get(to, ()), (first, last))
        arrows.append([(numbers.setdefault(ranges, len(numbers)), to) for to, ranges in read.items()])
    return list(numbers), arrows


def _kinds(labels: Sequence[Sequence[Range]]) -> tuple[bytes, list[list[int]]]:
    """The class of every byte, bytes in the same labels being of one; and the classes in each label."""
    inside = [0] * 256  # bit n: in label n
    for number, ranges in enumerate(labels):
        for first, last in ranges:
            for byte in range(first, last + 1):
                inside[byte] |= 1 << number
    kinds = {which: kind for kind, which in enumerate(dict.fromkeys(inside))}
    held = [[kind for which, kind in kinds.items() if which >> number & 1] for number in range(len(labels))]
    return bytes(kinds[which] for which in inside), held
