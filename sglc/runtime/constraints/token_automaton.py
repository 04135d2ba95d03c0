"""Automata over token ids, from an automaton over bytes and the bytes of a vocabulary's tokens.

Tokens whose bytes are of the same classes, one after the other, can never be told apart by an automaton:
they are one node of its trie, which is walked from a state when that is first met. A vocabulary may lack
some bytes, so not every text can be written. A state is open if tokens lead from it to a match. Only
tokens that end in an open state are allowed: there are no dead ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sglc.errors import RunError, shown
from sglc.ir.grammar.dfa import DEAD, ByteDfa, forced_bytes, only_classes, run
from sglc.runtime.constraints.alike_states import alike_states
from sglc.runtime.constraints.mask_room import MaskRoom
from sglc.runtime.step import I32, Bool, ByteAutomaton, pack_masks

_MASK_BYTES = 128 << 20  # kept of all automata over a vocabulary: 6,700 masks of all of 152,000 tokens
_CHILDREN = 4_096  # nodes and states of which the ways on are kept
_NODE_BYTES, _WAY_BYTES = 400, 64  # of the children of a node; of one of the ways on from a state
_SMALL = 1_024  # nodes of a trie that is gone through as a whole
_MOST_MOVES = 1 << 20  # of an automaton that executors follow
FEW = 48  # live nodes that are walked, and whose tokens are looked up, one by one


_NO_IDS: I32 = np.empty(0, np.int32)


class Vocabulary:
    """The bytes of all tokens as a trie, in arrays ordered by depth. Node 0 is the root.

    Args:
        token_bytes: bytes of every id, index = id; ids without bytes are no text and never allowed.
        size: ids of the model; those behind `token_bytes` are padding.
    """

    def __init__(self, token_bytes: Sequence[bytes], size: int) -> None:
        self.token_bytes = token_bytes[:size]
        self.mask_room = MaskRoom(_MASK_BYTES)
        lengths = np.array([len(data) for data in self.token_bytes], np.int64)
        begins = np.cumsum(lengths) - lengths
        flat = np.frombuffer(b"".join(self.token_bytes), np.uint8)
        self.lengths: I32 = np.zeros(size, np.int32)  # bytes of every id
        self.lengths[: lengths.size] = lengths
        self.begins: NDArray[np.uint8] = np.zeros(size, np.uint8)  # the first byte of every id that has bytes
        self.begins[: lengths.size][lengths > 0] = flat[begins[lengths > 0]]
        self.node_of: I32 = np.zeros(size, np.int32)  # where a token's bytes end; 0 without bytes
        parents, values, self.levels = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)], [1]
        for depth in range(int(lengths.max(initial=0))):
            tokens = np.flatnonzero(lengths > depth)
            keys = self.node_of[tokens].astype(np.int64) * 256 + flat[begins[tokens] + depth]
            nodes, which = np.unique(keys, return_inverse=True)
            self.node_of[tokens] = self.levels[-1] + which
            parents.append(nodes // 256)
            values.append(nodes % 256)
            self.levels.append(self.levels[-1] + nodes.size)  # level d + 1: levels[d] up to levels[d + 1]
        self.parent = np.concatenate(parents).astype(np.int32)
        self.value = np.concatenate(values).astype(np.uint8)
        self.single = sorted({data[0] for data in self.token_bytes if len(data) == 1})
        # Whether every byte of every token is a token of its own, as in a byte-level BPE.
        self.closed = set(np.unique(flat).tolist()) <= set(self.single)


# Of a depth of a trie: its first node, the one behind its last, and of each the parent and what it reads.
Level = tuple[int, int, NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class TokenTrie:
    """The tokens of a vocabulary as sequences of classes of bytes, as plain arrays.

    Fields:
        parent, kind: int32 [N], the trie of the classes, ordered by depth: a node's byte has the class `kind`.
        levels: int32 [D + 1]; nodes levels[d] up to levels[d + 1] have depth d + 1. Node 0 is the root.
        tokens, begins: int32, the tokens that a text can have, by their nodes; those of node n stand from
            begins[n] up to begins[n + 1].
    """

    parent: I32
    kind: I32
    levels: I32
    tokens: I32
    begins: I32

    def nodes(self, size: int) -> NDArray[np.int64]:
        """The node of each id, int64 [size]; -1 of what no text has."""
        nodes: NDArray[np.int64] = np.full(size, -1, np.int64)
        nodes[self.tokens] = np.repeat(np.arange(self.parent.size), np.diff(self.begins))
        return nodes

    def first_children(self) -> NDArray[np.int64]:
        """Of each node the first child, which its others follow up to that of the next node: int64 [N + 1]."""
        counts = np.bincount(self.parent[1:], minlength=self.parent.size)
        return np.concatenate(([1], 1 + np.cumsum(counts)))

    def ids_of(self, nodes: Sequence[int]) -> I32:
        """The tokens of `nodes`."""
        begins, tokens = self.begins, self.tokens
        return np.concatenate([_NO_IDS, *[tokens[begins[node] : begins[node + 1]] for node in nodes]])

    def by_depth(self) -> list[Level]:
        """The nodes below the root, in the type of an index, as numpy would make them of others each time."""
        parent, kind = self.parent.astype(np.int64), self.kind.astype(np.int64)
        return [
            (first, last, parent[first:last], kind[first:last])
            for first, last in pairwise(self.levels.tolist())
        ]


@dataclass(frozen=True, slots=True, eq=False)
class Tables(TokenTrie):
    """The same with a byte automaton.

    Fields:
        moves: int32 [states, classes], those of `dfa`: to make one of the other keeps Python's lock for long.
        is_open: bool [states + 1], the states from which tokens lead to a match; the last one is `DEAD`.
        alike: int32 [states], of each state the first one with the same mask, as far as is known.
    """

    dfa: ByteDfa
    moves: I32
    is_open: Bool
    alike: I32


def token_trie(classes: bytes, moves: Sequence[Sequence[int]], vocabulary: Vocabulary) -> TokenTrie:
    """The trie of the tokens of which every byte is of a class that some state has a move with."""
    kinds = len(moves[0])
    alive = np.array([any(row[kind] != DEAD for row in moves) for kind in range(kinds)])
    kind_of = np.frombuffer(classes, np.uint8).astype(np.int64)[vocabulary.value]
    number = np.full(vocabulary.parent.size, -1, np.int64)  # of a node of the vocabulary, its class; -1: none
    number[0] = 0
    parents, values, levels = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)], [1]
    for first, last in pairwise(vocabulary.levels):
        before, kind = number[vocabulary.parent[first:last]], kind_of[first:last]
        lives = (before >= 0) & alive[kind]
        nodes, which = np.unique(before[lives] * kinds + kind[lives], return_inverse=True)
        if not nodes.size:
            break  # and none of those that are longer
        number[first:last][lives] = levels[-1] + which
        parents.append(nodes // kinds)
        values.append(nodes % kinds)
        levels.append(levels[-1] + nodes.size)
    node_of = vocabulary.node_of
    class_of = np.where(node_of > 0, number[node_of], -1)
    tokens = np.flatnonzero(class_of >= 0)
    tokens = tokens[np.argsort(class_of[tokens])]
    counts = np.bincount(class_of[tokens], minlength=levels[-1])
    return TokenTrie(
        np.concatenate(parents).astype(np.int32),
        np.concatenate(values).astype(np.int32),
        np.array(levels, np.int32),
        tokens.astype(np.int32),
        np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
    )


def build(dfa: ByteDfa, vocabulary: Vocabulary) -> Tables:
    """The tables of an automaton."""
    trie = token_trie(dfa.classes, dfa.moves, vocabulary)
    tables = Tables(
        trie.parent, trie.kind, trie.levels, trie.tokens, trie.begins, dfa, np.array(dfa.moves, np.int32),
        np.zeros(len(dfa.moves) + 1, np.bool_),
        np.arange(len(dfa.moves), dtype=np.int32),
    )  # fmt: skip
    tables.is_open[:] = _open_states(tables, vocabulary)
    tables.alike[:] = alike_states(dfa.moves, tables.is_open.tolist(), trie.levels.size - 1)
    return tables


def _open_states(tables: Tables, vocabulary: Vocabulary) -> Bool:
    dfa = tables.dfa
    kinds = sorted({dfa.classes[byte] for byte in vocabulary.single})
    spelled = np.flatnonzero(np.diff(tables.begins))
    walk = _VocabularyWalk(tables)
    origins: list[list[int]] = [[] for _ in range(len(dfa.moves) + 1)]
    for state, row in enumerate(dfa.moves):
        if vocabulary.closed:  # a byte at a time leads wherever tokens do
            reached = [row[kind] for kind in kinds]
        else:
            reached = (np.unique(walk.behind(state)[spelled]) // walk.kinds).tolist()
        for to in reached:
            origins[to].append(state)
    is_open = np.array([*dfa.accepting, False])
    stack = np.flatnonzero(is_open).tolist()
    while stack:
        for before in origins[stack.pop()]:
            if not is_open[before]:
                is_open[before] = True
                stack.append(before)
    return is_open


class _VocabularyWalk:
    """Walks the trie of the classes. A state is its row in the table of moves, and its number times `kinds`."""

    def __init__(self, tables: Tables) -> None:
        states, self.kinds = tables.moves.shape
        table = np.append(tables.moves.astype(np.int64), np.full((1, self.kinds), DEAD), axis=0)
        self._moves: NDArray[np.int64] = np.where(table == DEAD, states, table).ravel() * self.kinds
        self._dead = states * self.kinds
        self._size = tables.parent.size
        self.is_small = self._size <= _SMALL
        self._rows = tables.dfa.moves
        self._kind = tables.kind
        self._first_child = tables.first_children()
        self._children_of = lru_cache(maxsize=_CHILDREN)(self._children)
        self._ways_of = lru_cache(maxsize=_CHILDREN)(self._ways)
        self._levels = tables.by_depth()

    @property
    def remembered_bytes(self) -> int:
        """About what the ways on take that are kept."""
        nodes, states = self._children_of.cache_info().currsize, self._ways_of.cache_info().currsize
        return _NODE_BYTES * nodes + _WAY_BYTES * len(self._rows[0]) * states

    def live(self, state: int) -> list[tuple[int, int]] | None:
        """The nodes that `state` leads on to from the root, each with its state.

        None if they are not few, or the trie is so small that going through all of it takes less time.
        """
        if self.is_small:
            return None
        live = [(0, state)]
        for node, at in live:  # grows while it is walked
            children = self._children_of(node)
            for kind, target in self._ways_of(at):
                if kind in children:
                    live.append((children[kind], target))
            if len(live) > FEW:
                return None
        return live[1:]

    def _children(self, node: int) -> dict[int, int]:
        """A node's children by what they read."""
        first, last = self._first_child[node : node + 2].tolist()
        return dict(zip(self._kind[first:last].tolist(), range(first, last), strict=True))

    def _ways(self, state: int) -> list[tuple[int, int]]:
        """What a state goes on with, and where to."""
        return [(kind, target) for kind, target in enumerate(self._rows[state]) if target != DEAD]

    def behind(self, state: int) -> NDArray[np.int64]:
        """The state behind every node if the root is at `state`: int64 [N + 1], `DEAD`'s at the end."""
        behind: NDArray[np.int64] = np.empty(self._size + 1, np.int64)
        behind[0] = state * self.kinds
        for depth, (first, last, parent, kind) in enumerate(self._levels, 1):
            reached = behind[first:last] = self._moves[behind[parent] + kind]
            # Few tokens are long: below a level without a live node there is none.
            if depth & (depth - 1) == 0 and (reached == self._dead).all():
                behind[last:] = self._dead
                break
        behind[-1] = self._dead
        return behind


# A mask: packed bits, or the ids where they are few; and the one id that it allows, if it is one.
_Mask = tuple["NDArray[np.uint8] | I32", "int | None"]


class TokenAutomaton:
    """A `Constraint`: the tokens of a vocabulary along a byte automaton."""

    start = 0
    slow = False
    worn = False

    def __init__(self, tables: Tables, vocabulary: Vocabulary, pattern: str) -> None:
        """Raises RunError: SGLC454, nothing but the empty text can be written."""
        self._tables = tables
        self._dfa = tables.dfa
        self._vocabulary = vocabulary
        self._walk = _VocabularyWalk(tables)
        self._opens = np.repeat(tables.is_open, self._walk.kinds)  # by rows of the walk
        self._size = vocabulary.node_of.size
        self._class_of = tables.nodes(self._size)
        self._alike: list[int] = tables.alike.tolist()
        self._masks: dict[int, _Mask] = {}
        self._only_class = only_classes(tables.dfa.classes, tables.dfa.moves)
        # The first mask is made with the rest: each text needs it, and what waits for this waits for that too.
        if not tables.is_open[0] or not self.mask(self.start).any():
            raise RunError(
                "SGLC454",
                f"the model cannot write any text that matches `{shown(pattern)}`",
                note="its vocabulary has to spell the text; the empty text does not count",
            )

    @property
    def size_bytes(self) -> int:
        """What it takes to keep it, without masks, which a `MaskRoom` bounds: its nodes, states and moves, as
        tables and as indices, and its tokens."""
        nodes, (states, kinds) = self._tables.parent.size, self._tables.moves.shape
        tables: int = 36 * nodes + (200 + 25 * kinds) * states + 12 * self._size
        return tables + self._walk.remembered_bytes

    @cached_property
    def automaton(self) -> ByteAutomaton | None:
        """The same for an executor that follows it by itself; None if it is too large for that."""
        dfa = self._dfa
        if self._tables.moves.size > _MOST_MOVES:
            return None
        ends = np.array(dfa.accepting, np.int32)
        _, first, mask_of = np.unique(2 * self._tables.alike + ends, return_index=True, return_inverse=True)
        return ByteAutomaton(
            classes=np.frombuffer(dfa.classes, np.uint8),
            moves=self._tables.moves,
            is_open=self._tables.is_open[:-1],
            mask_of=mask_of.astype(np.int32),
            masks=np.stack((first, ends[first], np.full(first.size, -1))).astype(np.int32),
        )

    def mask(self, state: int) -> Bool:
        """Ids that may come next, bool [V], the caller's own."""
        kept = self._kept(state)
        if kept.dtype == np.uint8:
            bits = kept.view(np.uint8)
            return np.unpackbits(bits, count=self._size, bitorder="little").view(np.bool_)
        mask = np.zeros(self._size, np.bool_)
        mask[kept] = True
        return mask

    def bits(self, state: int) -> I32:
        """The same as `pack_masks` gives it, the caller's own."""
        kept = self._kept(state)
        if kept.dtype == np.int32:
            return pack_masks(self.mask(state))
        words: I32 = np.zeros(-(-self._size // 32), np.int32)
        words.view(np.uint8)[: kept.size] = kept
        return words

    def accepting(self, state: int) -> bool:
        """Whether the text may end here."""
        return self._dfa.accepting[state]

    def ahead(self, state: int) -> bytes:
        """Bytes that have to come next."""
        return forced_bytes(self._dfa, state, self._only_class)

    def only(self, state: int) -> int | None:
        """The id that has to come next; None if there are several, or none."""
        at = self._alike[state]
        return (self._masks.get(at) or self._made(at))[1]

    def advance(self, state: int, token: int) -> int:
        """The state behind `token`, which `state` allows."""
        return run(self._dfa, self._vocabulary.token_bytes[token], state)

    def local(self, state: int) -> int:
        """The state itself: nothing else is remembered."""
        return state

    def done(self, state: int) -> bool:
        """Whether the text has to end here."""
        if not self._dfa.accepting[state]:
            return False
        kept = self._kept(state)
        return not (kept.any() if kept.dtype == np.uint8 else kept.size)

    def _kept(self, state: int) -> NDArray[np.uint8] | I32:
        at = self._alike[state]
        return (self._masks.get(at) or self._made(at))[0]

    def _made(self, state: int) -> _Mask:
        made = self._masks[state] = self._make(state)
        self._vocabulary.mask_room.take(self._masks, state, made[0].nbytes)
        return made

    def _make(self, state: int) -> _Mask:
        live = self._walk.live(state)
        if live is not None:
            return self._mask_of([node for node, at in live if self._tables.is_open[at]])
        is_open = self._opens[self._walk.behind(state)]
        nodes = np.flatnonzero(is_open).tolist() if self._walk.is_small else []
        return self._mask_of(nodes) if 0 < len(nodes) <= FEW else _packed(is_open[self._class_of])

    def _mask_of(self, nodes: Sequence[int]) -> _Mask:
        """The mask that allows the tokens of `nodes`, each of which may have most of them."""
        ids = self._tables.ids_of(nodes)
        if 8 * ids.nbytes <= self._size:
            return ids, int(ids[0]) if ids.size == 1 else None
        mask = np.zeros(self._size, np.bool_)
        mask[ids] = True
        return _packed(mask)


def _packed(mask: Bool) -> _Mask:
    only = int(mask.argmax()) if np.count_nonzero(mask) == 1 else None
    return np.packbits(mask, bitorder="little"), only


def only_one(words: I32) -> int | None:
    """The one id that a mask allows, given as `pack_masks` gives it; None if there are several, or none."""
    found = np.flatnonzero(words)
    if found.size != 1:
        return None
    word = int(words[found[0]]) & 0xFFFFFFFF
    return 32 * int(found[0]) + word.bit_length() - 1 if word & (word - 1) == 0 else None
