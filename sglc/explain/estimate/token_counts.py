"""Texts and prompts of which parts are not known yet, and how many tokens they are.

A prompt is a line of symbols: ids that are known, and unknown stretches, each with a key by which two
prompts that hold the same text recognise it. Every literal run is encoded as one string, as the runtime
does; where it meets unknown text, tokens may merge with it, and the stretch's bounds give room for that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from sglc.explain.estimate.intervals import Interval, between, sure
from sglc.ir.target import Target

_LAST_WORD = re.compile(r"\s*\S*\Z")
_FIRST_WORD = re.compile(r"\A(?:\s+|\S+)")
_CHARACTERS_A_TOKEN = 4  # about, of English; only where there is no tokenizer to ask


@dataclass(frozen=True, slots=True)
class Unknown:
    """A stretch that is not known: of a text, or of a prompt. Two with one key are the same text.

    Attributes:
        tokens: how many it is, encoded by itself.
        shown: what stands for it where a prompt is shown.
        choices: the texts that it can be, if they are known; `tokens` are then theirs.
        hard: ids that stay as they are, whatever stands beside them; `begins_hard`: the first of them do.
        edges: how many of its tokens may become one with what stands beside it; None: all.
        merges: how many before it may become one with it.
    """

    key: Hashable
    tokens: Interval
    shown: str
    choices: tuple[str, ...] = ()
    hard: bool = field(default=False, compare=False)
    begins_hard: bool = field(default=False, compare=False)
    edges: int | None = field(default=None, compare=False)
    merges: int = field(default=0, compare=False)


Piece = str | Unknown
Text = tuple[Piece, ...]
Symbol = int | Unknown


@dataclass(frozen=True, slots=True)
class Marked:
    """Ids that no neighbour changes: control tokens, and what they are written as."""

    ids: tuple[int, ...]
    text: str


Item = str | Unknown | Marked
Line = tuple[Item, ...]  # a prompt, its literal runs as they are written


def merged(line: Sequence[Item]) -> Line:
    """Neighbouring literals as one."""
    made: list[Item] = []
    for item in line:
        if isinstance(item, str) and made and isinstance(made[-1], str):
            made[-1] += item
        elif item != "":
            made.append(item)
    return tuple(made)


class TokenCounter:
    """Counts tokens for one target. Without its tokenizer a character stands for a part of a token.

    `exact`: prompts are ids, and those of the target's own tokenizer. `counted`: text is counted with it, but
    what is put round that elsewhere is not known.
    """

    def __init__(self, target: Target) -> None:
        tokenizer = target.tokenizer if target.protocol == "tokens" else None
        self.exact = tokenizer is not None
        self._encoding = target.encoding() if tokenizer is None else None
        self.counted = self.exact or self._encoding is not None
        known = tokenizer or self._encoding
        encode: Callable[[str], Sequence[int]] = known.encode if known else _characters
        self.encode = lru_cache(maxsize=4096)(lambda text: tuple(encode(text)))
        self._tokenizer = tokenizer
        self._spelled: Sequence[bytes] = tokenizer.token_bytes() if tokenizer else ()
        self._widest: dict[frozenset[int], int] = {}
        self._marks: dict[int, str] = {}
        self.runs: dict[tuple[Symbol, ...], str] = {}  # texts of known symbols
        # The last line that was asked for, where in its symbols each item ends, and these.
        self._last: tuple[Line, list[int], tuple[Symbol, ...]] = ((), [], ())

    def weigh(self, symbols: int) -> Interval:
        """Tokens of so many known symbols."""
        if self.counted:
            return sure(symbols)
        return Interval(-(-symbols // 16), symbols, symbols / _CHARACTERS_A_TOKEN)

    def of_text(self, text: str) -> Interval:
        """Tokens of a text by itself."""
        return self.weigh(len(self.encode(text)))

    def of_choices(self, before: str, choices: Sequence[str]) -> Interval:
        """Tokens that one of `choices` adds behind `before`."""
        base = len(self.encode(before))
        counts = [len(self.encode(before + choice)) - base for choice in choices]
        low, high = self.weigh(min(counts)), self.weigh(max(counts))
        likely = self.weigh(sum(counts)).likely / len(counts)
        return Interval(low.low, high.high, likely)

    def of_bytes(self, least: int, most: int | None, alphabet: frozenset[int]) -> Interval:
        """Tokens of `least` to `most` bytes out of `alphabet`."""
        if not self.exact:
            return between(-(-least // 16), most)
        if alphabet not in self._widest:
            fitting = (len(spelled) for spelled in self._spelled if spelled and alphabet.issuperset(spelled))
            self._widest[alphabet] = max(fitting, default=1)
        return between(-(-least // self._widest[alphabet]), most)

    def symbols(self, line: Sequence[Item]) -> tuple[Symbol, ...]:
        """A prompt as ids and unknown stretches, these with room for what merges at their ends."""
        line = merged(line)
        # Most lines go on where the one before ended: what stands before its last item is as it was.
        earlier, ends, symbols = self._last
        count = 0
        for one, other in zip(line, earlier, strict=False):
            if one is not other:
                break
            count += 1
        ends = ends[: max(count - 1, 0)]
        made = list(symbols[: ends[-1]]) if ends else []
        for index in range(len(ends), len(line)):
            item = line[index]
            match item:
                case str():
                    made += self.encode(item)
                case Marked():
                    made += item.ids
                    self._marks.update(zip(item.ids, (item.text, *[""] * len(item.ids)), strict=False))
                case Unknown():
                    before = line[index - 1] if index else None
                    shifted = index > 1 and soft(line[index - 2])
                    after = line[index + 1] if index + 1 < len(line) else None
                    made.append(self._roomy(item, before, after, shifted))
            ends.append(len(made))
        self._last = line, ends, tuple(made)
        return self._last[2]

    def spelled(self, symbols: Sequence[Symbol]) -> str:
        """The text of a line of symbols, control tokens and unknown stretches as they are shown."""
        parts: list[bytes] = []
        for symbol in symbols:
            if isinstance(symbol, Unknown):
                parts.append(symbol.shown.encode())
            elif symbol in self._marks:
                parts.append(self._marks[symbol].encode())
            else:
                parts.append(self._bytes(symbol))
        return b"".join(parts).decode("utf-8", "replace")

    def _bytes(self, symbol: int) -> bytes:
        if self._encoding is not None:
            return self._encoding.decode([symbol]).encode()
        if self._tokenizer is None:
            return chr(-1 - symbol).encode()
        if symbol >= len(self._spelled):  # one that gives ids as words come
            self._spelled = self._tokenizer.token_bytes()
        return self._spelled[symbol]

    @property
    def marks(self) -> tuple[tuple[int, str], ...]:
        """Control tokens that have stood in lines, and how they are written."""
        return tuple(self._marks.items())

    def _roomy(self, item: Unknown, before: Item | None, after: Item | None, shifted: bool) -> Unknown:
        """`item` where it stands: what it may swallow of its neighbours, and what may be cut otherwise.

        `shifted`: what stands before may be cut otherwise, too.
        """
        tokens, less, more, merges = item.tokens, 0, 0, 0
        if isinstance(before, str) and not item.hard and not item.begins_hard:
            merges = len(self.encode(last_word(before)))
            if item.choices:
                tokens = self.of_choices(before, item.choices)
                less, more = less + shifted, more + shifted
            else:
                less += merges
                more += 1
        if isinstance(after, str) and not item.hard:
            # The last word of the stretch may become one with the literal's first.
            less += len(self.encode(first_word(after)))
            more += 1
        elif isinstance(after, Unknown) and not after.hard and not item.hard:
            more += 1
            less += 1
        if less and not item.choices:
            less += max(tokens.low, 0) if item.edges is None else min(item.edges, max(tokens.low, 0))
        elif less:
            less += max(len(self.encode(choice)) - 1 for choice in item.choices)
        high = None if tokens.high is None else tokens.high + more
        return replace(item, tokens=Interval(tokens.low - less, high, tokens.likely), merges=merges)


def soft(item: Item) -> bool:
    """Whether an item is text of which no token is sure."""
    return isinstance(item, Unknown) and not item.hard


def weight(symbols: Sequence[Symbol], counter: TokenCounter) -> Interval:
    """Tokens of a line of symbols."""
    unknown = [symbol.tokens for symbol in symbols if isinstance(symbol, Unknown)]
    known = counter.weigh(len(symbols) - len(unknown))
    low, high, likely = known.low, known.high, known.likely
    for tokens in unknown:  # prompts are long, and a sum of intervals makes one for each
        low, likely = low + tokens.low, likely + tokens.likely
        high = None if high is None or tokens.high is None else high + tokens.high
    return Interval(low, high, likely)


def same(first: Symbol, second: Symbol) -> bool:
    """Whether two symbols stand for the same tokens."""
    if isinstance(first, Unknown) and isinstance(second, Unknown):
        return first.key == second.key
    return first == second and type(first) is type(second)


def common(first: Sequence[Symbol], second: Sequence[Symbol]) -> int:
    """Length of the longest common prefix."""
    limit = min(len(first), len(second))
    if first[:limit] == second[:limit]:  # as most are, and at once
        return limit
    for index in range(limit):
        if not same(first[index], second[index]):
            return index
    return limit


def last_word(text: str) -> str:
    """What of a text may become one token with what follows: its last word, with the space before it."""
    return _word(_LAST_WORD, text)


def first_word(text: str) -> str:
    """What of a text may become one token with what stands before: its first word, or the space before that."""
    return _word(_FIRST_WORD, text)


def _word(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[0] if found else ""


def _characters(text: str) -> list[int]:
    """One symbol a character, below 0 so that none is taken for an id."""
    return [-1 - ord(character) for character in text]
