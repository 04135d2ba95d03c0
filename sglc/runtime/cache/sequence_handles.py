"""Handles: names for token sequences, each with a pin on the deepest tree node of its sequence.

A pin keeps KV as long as there is room; a handle never takes room from a running row. A handle ends
in one of two ways: it is released (its program will not come back to the sequence, so what no other
one goes through is evicted first), or it is forgotten (nobody knows, so it is evicted in its turn).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import error as StructError
from struct import pack
from weakref import WeakSet

import numpy as np

from sglc.ir.plan.events import PackedIds
from sglc.runtime.cache.page_tree import SOME_DAY, Key, PageNode, RadixTree, resolve
from sglc.runtime.ids import Handle
from sglc.runtime.step import I32

# (ids, a number of them, their root) -> how many of them are wanted, 0 if not more than that number.
Wanted = Callable[[Key, int, PageNode], int]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Prefix:
    """Ids that many begin with, and a node that they lead to as far as is known. It pins nothing."""

    ids: Key
    array: I32  # the same ids
    root: PageNode  # of its namespace
    node: PageNode
    base: Prefix | None  # a shorter one that it goes on from


@dataclass(slots=True, eq=False)
class _Sequence(Prefix):
    next_use: int


def as_ids(ids: Sequence[int] | I32) -> tuple[Key, I32]:
    """Ids as a tuple of ints, and as int32 [n]. Of many ids this takes a fifth of what numpy takes.

    Raises:
        AssertionError: an id that is too large to be one.
    """
    if type(ids) is PackedIds:
        array = np.frombuffer(ids.packed, np.int32)
        return tuple(array.tolist()), array
    key = ids if type(ids) is tuple else tuple(np.asarray(ids, np.int64).tolist())
    try:
        return key, np.frombuffer(pack(f"{len(key)}i", *key), np.int32)
    except StructError as error:
        raise AssertionError("bad token id") from error


class Handles:
    """All handles of an engine. With `follows` off they pin nothing (nothing is shared then)."""

    __slots__ = ("_follows", "_made", "_prefixes", "_sequences", "_tree")

    def __init__(self, tree: RadixTree, follows: bool) -> None:
        self._tree = tree
        self._follows = follows
        self._made = 0
        self._sequences: dict[Handle, _Sequence] = {}
        self._prefixes: WeakSet[Prefix] = WeakSet()

    def extend(
        self, base: Handle | Prefix | None, ids: Sequence[int], namespace: str = "", array: I32 | None = None
    ) -> Handle:
        """A new handle on the ids of `base` (none: nothing, in `namespace`) followed by `ids`.

        Args:
            array: the same ids, if `as_ids` has made both.
        """
        added, array = as_ids(ids) if array is None else (tuple(ids), array)
        if base is not None:
            before = base if isinstance(base, Prefix) else self._sequences[base]
            assert namespace == "" or self._tree.root_of(namespace) is before.root, (
                "a handle changes its namespace"
            )
            if not added and not isinstance(base, Prefix):
                return self.fork(base)
            ids, array, root = before.ids + added, np.concatenate((before.array, array)), before.root
            before.node = known = resolve(before.node)
            near = _whole(known)
            prefix = _shorter(before)
        else:
            root = near = known = self._tree.root_of(namespace)
            ids, prefix = added, None
        node = self._deepest(ids, near) if self._follows else known
        if prefix is not None:
            self._lead(prefix, node)
        return self._add(ids, array, root, node, prefix)

    def prefix(self, base: Handle | Prefix | None, ids: Key, array: I32, namespace: str = "") -> Prefix:
        """A prefix of the ids of `base` (none: nothing, in `namespace`) followed by `ids`.

        Args:
            ids, array: `as_ids` has made both.
        """
        if base is None:
            root = self._tree.root_of(namespace)
            made = Prefix(ids, array, root, root, None)
        else:
            before = base if isinstance(base, Prefix) else self._sequences[base]
            array = np.concatenate((before.array, array))
            made = Prefix(before.ids + ids, array, before.root, resolve(before.node), _shorter(before))
        self._prefixes.add(made)
        return made

    def fork(self, handle: Handle) -> Handle:
        """A new handle on the same ids."""
        base = self._sequences[handle]
        return self._add(base.ids, base.array, base.root, resolve(base.node), base.base)

    def expect(self, handle: Handle, next_use: int) -> None:
        """The handle's KV is expected to be used next at `next_use`, a time on a clock of the caller's."""
        sequence = self._sequences[handle]
        if sequence.node.moved is not None:
            sequence.node = resolve(sequence.node)
        self._tree.repin(sequence.node, sequence.next_use, next_use)
        sequence.next_use = next_use

    def used(self, handle: Handle, at: int) -> None:
        """The use expected `at` is over, and no other one is known of, unless it was told of meanwhile."""
        sequence = self._sequences.get(handle)
        if sequence is not None and sequence.next_use == at:
            self.expect(handle, SOME_DAY)

    def node(self, handle: Handle) -> PageNode:
        """The deepest node of the handle's ids that is known."""
        sequence = self._sequences[handle]
        sequence.node = resolve(sequence.node)
        return sequence.node

    def release(self, handle: Handle, wanted: Wanted = lambda ids, beyond, root: 0) -> None:
        """The handle ends, and nobody comes back to its ids for its sake.

        Args:
            wanted: says how many of the ids somebody else is going to ask for; what they need stays.
        """
        sequence = self._sequences.pop(handle)
        self._tree.unpin(sequence.node, sequence.next_use)
        node = sequence.node
        if node.moved is not None:
            node = resolve(node)
        if node.end > len(sequence.ids):  # where it matches in part, it is another sequence's page
            node = self._tree.until(node, len(sequence.ids))
        alone = node
        while alone.parent is not None and not (alone.pins or alone.shared):
            alone = alone.parent
        kept = wanted(sequence.ids, alone.end, sequence.root) if alone is not node else 0
        if kept > alone.end:
            self._tree.until(node, kept).shared = True  # of a page in part there will be others
        self._tree.demote(node)

    def forget(self, handle: Handle) -> None:
        """The handle ends; its ids may well be asked for again."""
        sequence = self._sequences.pop(handle)
        self._tree.unpin(sequence.node, sequence.next_use)

    def sequence(self, handle: Handle) -> Prefix:
        """The ids that a handle names, not to be written, and the root of its namespace."""
        return self._sequences[handle]

    def follow(self, handle: Handle, near: PageNode | None = None) -> None:
        """Pin the deepest node of a handle's ids as the tree is now. Nothing, if it has ended.

        `near` is a node that a prefix of the handle's ids leads to, or one of those that go on behind them.
        """
        sequence = self._sequences.get(handle)
        if sequence is None or not self._follows:
            return
        node = self._deepest(sequence.ids, near or self.start(handle, sequence.root))
        if node is not sequence.node:
            self._move_pin(sequence, node)

    def reached(self, handle: Handle, node: PageNode) -> None:
        """Pin `node`, which is of a handle's ids, if it is deeper than what is. Nothing, if that has ended."""
        sequence = self._sequences.get(handle)
        if sequence is not None and self._follows and node.end > resolve(sequence.node).end:
            self._move_pin(sequence, node)

    def _move_pin(self, sequence: _Sequence, node: PageNode) -> None:
        self._tree.pin(node, sequence.next_use)
        self._tree.unpin(sequence.node, sequence.next_use)
        sequence.node = node

    def _deepest(self, ids: Key, near: PageNode) -> PageNode:
        """The deepest node of `ids` as the tree is now. `near` as of `follow`."""
        near = resolve(near)
        if near.end >= len(ids) > 0:
            return self._tree.through(near, len(ids))
        if near.end % self._tree.page_size:
            assert near.parent is not None
            near = near.parent
        match = self._tree.match(ids, len(ids), near)
        return match.source or match.node

    def start(self, handle: Handle, root: PageNode) -> PageNode:
        """A node below `root` that matches the handle's ids whole, as deep as is known without looking."""
        sequence = self._sequences.get(handle)
        if sequence is None or root is not sequence.root:
            return root
        if sequence.node.moved is not None:
            sequence.node = resolve(sequence.node)
        node = sequence.node
        if (base := sequence.base) is not None:
            if base.node.moved is not None:
                base.node = resolve(base.node)
            if base.node.end > node.end:  # somebody who begins alike came that far
                node = base.node
        return _whole(node)

    def found(self, handle: Handle, node: PageNode) -> None:
        """`node` is on the way of a handle's ids: who begins as it does finds that sooner."""
        sequence = self._sequences.get(handle)
        if sequence is not None and sequence.base is not None and self._follows:
            self._lead(sequence.base, node)

    def _lead(self, prefix: Prefix, node: PageNode) -> None:
        """A prefix's ids are the first ones on the way to `node`, or all on it."""
        if prefix.node.moved is not None:
            prefix.node = resolve(prefix.node)
        page = self._tree.page_size
        if prefix.node.end < node.end and prefix.node.end // page < len(prefix.ids) // page:
            prefix.node = self._tree.until(node, len(prefix.ids))

    def pinned(self) -> list[PageNode]:
        """The pinned node of every handle."""
        return [resolve(sequence.node) for sequence in self._sequences.values()]

    def reset(self) -> None:
        """The tree was cleared: every handle starts from its root again."""
        for sequence in self._sequences.values():
            sequence.node = sequence.root
            self._tree.pin(sequence.node, sequence.next_use)
        for prefix in self._prefixes:
            prefix.node = prefix.root

    def _add(self, ids: Key, array: I32, root: PageNode, node: PageNode, base: Prefix | None) -> Handle:
        self._tree.pin(node)
        self._made += 1
        self._sequences[self._made] = _Sequence(ids, array, root, node, base, SOME_DAY)
        return self._made


def _shorter(before: Prefix) -> Prefix | None:
    """What goes on from there has this in common with others."""
    return before.base if isinstance(before, _Sequence) else before


def _whole(node: PageNode) -> PageNode:
    """A node that matches whole where `node` was found: a run does, and a single page maybe in part."""
    return node if len(node.pages) > 1 else node.parent or node
