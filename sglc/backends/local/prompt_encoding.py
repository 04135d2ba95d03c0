"""Texts of prompts as ids before a runtime has them: encoding is the program's own work.

Rows of a batch begin with the same long arguments. Such a beginning is encoded once, and a part of its own:
under it the runtime finds what it has of it. It is known by its content, whoever asks. A row's own work is what
comes behind it.

What is before another text may not be known yet, and the text may begin with an id that is of both. A long one
is encoded from its first place on behind which that is of no account.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from sglc.errors import SglcError
from sglc.ir.made_often import made_often
from sglc.ir.plan.dataflow import goes_on
from sglc.ir.plan.events import PackedIds
from sglc.ir.plan.segment import EncodedText, ExtendNode, GenNode, Node, OpenNode, Part, Segment, joined, reads
from sglc.ir.target import ControlText, Tokenizer

_GENERATIONS = frozenset((GenNode,))
_LONG = 1024  # characters of a part, behind which a prompt is worth remembering
_CHARACTERS = 4 << 20  # remembered in all
_SEEN = 4096  # beginnings that came once
_MOST_BEHIND = 64  # nodes with ids behind others: the runtime puts them end to end one by one


class PackingTokenizer(Tokenizer, Protocol):
    """One that gives ids as they are sent, and knows where texts behind others begin anew."""

    def packed(self, text: str, *, within: bool) -> bytes:
        """`encode`, or `encode_within`, as int32."""

    def first_cut(self, text: str) -> int:
        """The first place of `text` behind which its ids are the same whatever is before; 0 if none is."""


@made_often
@dataclass(frozen=True, slots=True)
class _Beginning:
    """What prompts begin with: `parts` end to end, and behind them text that is not encoded yet."""

    parts: tuple[EncodedText, ...] = ()
    tail: str = ""


_NOTHING = _Beginning()


class PromptEncoder:
    """Encodes what prompts begin with, and long texts behind that.

    A long beginning is remembered from the second time on, the newest ones.

    Safe to use from several threads.
    """

    def __init__(self, tokenizer: PackingTokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()  # over what is remembered
        self._known: OrderedDict[tuple[Part, ...], _Beginning] = OrderedDict()  # by parts, the last used last
        self._characters = 0
        self._seen: OrderedDict[int, None] = OrderedDict()  # hashes: who is taken for another is known too soon

    def encoded(self, segment: Segment) -> Segment:
        """The segment, whose prompts begin with ids as far as their texts are known, and no more may follow.

        Long texts behind that are ids but for their ends, which may merge with others.
        """
        nodes, left = list(segment.nodes), _MOST_BEHIND
        for index, node in enumerate(segment.nodes):
            if type(node) is not ExtendNode:
                continue
            begins = _is_empty(nodes, node.stream)
            is_long = not begins and left > 0 and _size(node.parts) >= _LONG
            if begins or is_long:
                left -= is_long
                whole = _GENERATIONS.issuperset(map(type, _readers(segment, index)))
                encoded = self.parts if begins else self.behind
                try:
                    nodes[index] = ExtendNode(node.stream, encoded(node.parts, whole=whole))
                except SglcError:
                    continue  # the runtime will meet it where the text is needed, and tell
        return Segment(
            tuple(nodes), segment.gives, segment.priority, segment.share, segment.namespace, segment.hints,
            segment.room, segment.waits,
        )  # fmt: skip

    def parts(self, parts: tuple[Part, ...], *, whole: bool) -> tuple[Part, ...]:
        """The parts of a prompt, with ids for those at its beginning.

        Args:
            whole: no text follows them, so they are encoded up to their end.

        Raises:
            SglcError: a text cannot be encoded.
        """
        ends, end = [], len(parts)
        for at, part in enumerate(parts):
            if type(part) is not str:
                if type(part) is not ControlText:
                    end = at
                    break
            elif len(part) >= _LONG:
                ends.append(at + 1)
        known, done = _NOTHING, 0
        if ends:
            with self._lock:
                known, done = self._longest(parts, ends)
        found = self._extended(known, parts[done:end], whole=whole and end == len(parts))
        tail = (found.tail,) if found.tail else ()
        behind = self.behind(parts[end:], whole=whole) if end < len(parts) else ()
        return (*found.parts, *tail, *behind)

    def behind(self, parts: tuple[Part, ...], *, whole: bool) -> tuple[Part, ...]:
        """Parts behind others, of whose long texts all is ids but what may merge with a text beside it.

        Args:
            whole: no text follows them.

        Raises:
            SglcError: a text cannot be encoded.
        """
        given = joined(parts)
        found: list[Part] = []
        for at, part in enumerate(given):
            if type(part) is str and len(part) >= _LONG and _is_whole(part):
                before = given[at - 1] if at else None
                ends = type(given[at + 1]) is ControlText if at + 1 < len(given) else whole
                found += self._inner(before, part, whole=ends)
            else:
                found.append(part)
        return tuple(found)

    def _inner(self, before: Part | None, text: str, *, whole: bool) -> list[Part]:
        """A text behind `before`, as ids from where that is of no account, up to the end or to its last cut."""
        tokenizer = self._tokenizer
        begin, within = 0, True
        if isinstance(before, ControlText) and before.ids:  # with which nothing merges
            within = goes_on(before.ids, tokenizer.token_bytes())
        elif not (begin := tokenizer.first_cut(text)):
            return [text]
        rest = text[begin:]
        end = len(rest) if whole else tokenizer.cut(rest)
        if not end:
            return [text]
        ids = EncodedText(PackedIds(tokenizer.packed(rest[:end], within=within)))
        return [part for part in (text[:begin], ids, rest[end:]) if part]

    def clear(self) -> None:
        """Forget all beginnings."""
        with self._lock:
            self._known.clear()
            self._seen.clear()
            self._characters = 0

    def _longest(self, parts: tuple[Part, ...], ends: Sequence[int]) -> tuple[_Beginning, int]:
        """The longest beginning of a prompt that is known, and how many of its parts that is: one of `ends`."""
        known, done = _NOTHING, 0
        keys: list[tuple[Part, ...]] = []
        for end in ends:
            key = parts[:end]
            longer = self._known.get(key)
            if longer is None:
                if not self._came_before(key):
                    break
                longer = self._known[key] = self._extended(known, parts[done:end], whole=False)
                self._characters += _size(key)
            keys.append(key)
            known, done = longer, end
        for key in reversed(keys):  # a longer one is found through those before it, which stay longer
            self._known.move_to_end(key)
        while self._characters > _CHARACTERS:
            oldest, _ = self._known.popitem(last=False)
            self._characters -= _size(oldest)
        return known, done

    def _came_before(self, key: tuple[Part, ...]) -> bool:
        number = hash(key)
        if number in self._seen:
            del self._seen[number]
            return True
        self._seen[number] = None
        if len(self._seen) > _SEEN:
            self._seen.popitem(last=False)
        return False

    def _extended(self, known: _Beginning, parts: Sequence[Part], *, whole: bool) -> _Beginning:
        """A beginning with texts behind it; encoded up to the end, or as far as no text behind changes it."""
        ids = b""
        before = PackedIds.of(known.parts[-1].ids).packed if known.parts else b""
        tail = known.tail
        for part in parts:
            if type(part) is str:
                tail += part
                continue
            assert isinstance(part, ControlText)
            ids += self._encode(ids or before, tail) + PackedIds.of(part.ids).packed
            tail = ""
        cut = len(tail) if whole else self._tokenizer.cut(tail)
        ids += self._encode(ids or before, tail[:cut])
        added = (EncodedText(PackedIds(ids)),) if ids else ()
        return _Beginning((*known.parts, *added), tail[cut:])

    def _encode(self, before: bytes, text: str) -> bytes:
        """Ids of ordinary text behind others, packed as they are."""
        if not text:
            return b""
        tokenizer = self._tokenizer
        within = before != b"" and goes_on(PackedIds(before), tokenizer.token_bytes())
        return tokenizer.packed(text, within=within)


def _is_empty(nodes: Sequence[Node], stream: int) -> bool:
    node = nodes[stream] if stream < len(nodes) else None
    return type(node) is OpenNode and node.handle is None


def _readers(segment: Segment, index: int) -> Iterator[Node]:
    if segment.waits is not None:
        return map(segment.nodes.__getitem__, segment.waits.readers[index])
    return (node for node in segment.nodes[index + 1 :] if index in reads(node))


def _is_whole(text: str) -> bool:
    """Whether a text has no half of a pair: of one with such the runtime says where that is."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _size(key: tuple[Part, ...]) -> int:
    return sum([len(part) for part in key if type(part) is str])
