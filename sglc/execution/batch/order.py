"""In which order the rows of a batch run: those that begin alike one behind the other.

The order visits the trie of all prompts depth first, so a cache that holds the path to one row computes every
token once (Theorem 3.1 of the SGLang paper). Texts stand in for tokens: what two texts share, their tokens
share but for one or two, and encoding every prompt a second time would take longer than all else here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from operator import itemgetter
from typing import Any

from sglc.ir.plan.backend import Backend
from sglc.ir.plan.plan import Derived, Plan, PromptPrefix
from sglc.ir.plan.segment import Slot

Ids = Sequence[int]
KnownRow = tuple[Sequence[PromptPrefix], Mapping[str, Any]]  # how its prompts begin, and its arguments

_FIRST_STEP = 64  # characters that are compared first where two texts may differ soon
_MOST_BYTES = 4  # of a character; no tokenizer makes more tokens of it


def plan_order(plan: Plan, rows: Sequence[Mapping[str, Any]], backend: Backend) -> Sequence[int]:
    """The numbers of `rows`, arguments of `plan`, in the order in which to run them."""
    if has_room(backend, [(plan.leads, row) for row in rows]):
        return range(len(rows))
    return depth_first(keys([begins(plan.leads, row) for row in rows]))


def computes(backend: Backend) -> bool:
    """Whether an order may save something: one with room for everything computes no prompts."""
    return getattr(backend, "cache_tokens", None) != sys.maxsize


def has_room(backend: Backend, rows: Sequence[KnownRow]) -> bool:
    """Whether the cache of a back end holds how all rows begin, a token for each byte: of most texts it is
    then four times as large. No order saves anything there, and in that of the list rows that begin
    differently begin side by side.

    What has no model yet, or is somewhere else, does not say what it holds.
    """
    room: int | None = getattr(backend, "cache_tokens", None)
    return room is not None and most_tokens(rows, room) <= room


def most_tokens(rows: Sequence[KnownRow], end: float = inf) -> int:
    """Tokens that are enough for how all rows begin, from their prefixes and arguments, or more than `end`.

    What begins with the same literals and arguments counts once.
    """
    alike: dict[int, tuple[Sequence[PromptPrefix], list[Mapping[str, Any]]]] = {}
    for prefixes, texts in rows:
        alike.setdefault(id(prefixes), (prefixes, []))[1].append(texts)
    tokens = 0
    counted: dict[PromptPrefix, set[tuple[str, ...]]] = {}  # what the arguments are on the way so far
    for prefixes, arguments in alike.values():
        for prefix in prefixes:
            columns: list[Sequence[str]] = []  # of what is not the same in all rows
            for place, part in enumerate(prefix, 1):
                if not isinstance(part, str):
                    columns.append(_column(part, arguments))
                if tokens > end:
                    return tokens
                known = counted.setdefault(prefix[:place], set())
                paths = (set(zip(*columns, strict=True)) if columns else {()}) - known
                tokens += sum([_most(part if isinstance(part, str) else path[-1]) for path in paths])
                known |= paths
    return tokens


def _column(part: Slot | Derived, rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    if isinstance(part, Slot):
        return list(map(str, map(itemgetter(part.name), rows)))
    return [_text(part, texts) for texts in rows]


def _most(text: str) -> int:
    return len(text) if text.isascii() else _MOST_BYTES * len(text)


def zero_first(find: Callable[[], Sequence[int]]) -> Iterator[int]:
    """The order that is found, which 0 is the first of: that is known before."""
    yield 0
    yield from [number for number in find() if number]


def begins(prefixes: Sequence[PromptPrefix], texts: Mapping[str, Any]) -> tuple[str, ...]:
    """How the prompts of one row begin."""
    return tuple([written(prefix, texts) for prefix in prefixes])


def written(prefix: PromptPrefix, texts: Mapping[str, Any]) -> str:
    """A prompt prefix with a row's arguments in it."""
    return "".join([part if isinstance(part, str) else _text(part, texts) for part in prefix])


def _text(part: Slot | Derived, texts: Mapping[str, Any]) -> str:
    if isinstance(part, Slot):
        return str(texts[part.name])
    whole = written(part.parts, texts)
    return whole.strip() if part.operation == "strip" else whole.lower()


def keys(rows: Sequence[Sequence[str]]) -> list[str]:
    """One text for the prompts of each row, of which that one comes first in which the order can save most."""
    columns = key_columns(rows)
    return [key(prompts, columns) for prompts in rows]


def key_columns(rows: Sequence[Sequence[str]]) -> Sequence[int]:
    """The places of a row's prompts in its key; nothing where they stay as they are."""
    counts = {len(prompts) for prompts in rows}
    if len(counts) != 1 or counts == {0} or counts == {1}:
        return ()
    saving = [_saving(column) for column in zip(*rows, strict=True)]
    return sorted(range(len(saving)), key=saving.__getitem__, reverse=True)  # stable: else the program's order


def key(prompts: Sequence[str], columns: Sequence[int]) -> str:
    """One text for the prompts of a row."""
    return "\0".join([prompts[place] for place in columns] if len(columns) == len(prompts) else prompts)


def depth_first(prompts: Sequence[str]) -> list[int]:
    """The numbers of `prompts` as a walk through their trie meets them, children by their first prompt.

    So 0 comes first, and prompts that have nothing in common stay as they are.
    """
    ranked = sorted(range(len(prompts)), key=prompts.__getitem__)
    shared = [common(prompts[a], prompts[b]) for a, b in pairwise(ranked)]
    path = [_Node(0, len(prompts))]  # from the root to where the walk in the order of the alphabet is
    for number, length in zip(ranked, [0, *shared], strict=bool(ranked)):
        below: _Node | None = None
        while path[-1].end > length:
            below = path.pop()
            if path[-1].end >= length:
                path[-1].add(below)
                below = None
        if below is not None:
            path.append(_Node(length, below.first, [below]))
        path.append(_Node(len(prompts[number]) + 1, number))
    while len(path) > 1:
        below = path.pop()
        path[-1].add(below)
    return _visited(path[0])


@dataclass(slots=True)
class _Node:
    """Where prompts part, behind `end` characters; one without children is a prompt, with a character more."""

    end: int
    first: int  # the lowest number below; that of a prompt
    children: list[_Node] = field(default_factory=list)

    def add(self, child: _Node) -> None:
        self.children.append(child)
        self.first = min(self.first, child.first)


def _visited(root: _Node) -> list[int]:
    found: list[int] = []
    todo = [root] if root.children else []
    while todo:
        node = todo.pop()
        if node.children:
            todo += sorted(node.children, key=lambda child: child.first, reverse=True)
        else:
            found.append(node.first)
    return found


def trie_size(sequences: Sequence[str] | Sequence[Ids]) -> int:
    """Nodes of the trie of `sequences`, the root not counted: what has to be computed at least.

    Args:
        sequences: texts, or ids below 0x110000.
    """
    texts = sorted(one if isinstance(one, str) else "".join(map(chr, one)) for one in sequences)
    return sum(map(len, texts)) - sum(common(a, b) for a, b in pairwise(texts))


def _saving(prompts: Sequence[str]) -> int:
    """Characters that only an order of the rows can share: not those that all of them begin with."""
    ranked = sorted(prompts)
    return sum(common(a, b) for a, b in pairwise(ranked)) - (len(ranked) - 1) * common(ranked[0], ranked[-1])


def common(a: str | bytes, b: str | bytes) -> int:
    """How many leading characters are equal, or bytes."""
    end = min(len(a), len(b))
    low, step = 0, _FIRST_STEP
    while low + step < end and a[low : low + step] == b[low : low + step]:
        low += step
        step *= 2
    high = min(low + step, end)  # they differ at or before it, if not at the end
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
