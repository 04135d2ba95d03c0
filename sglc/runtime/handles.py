"""Handles: names for token sequences, each with a pin on the deepest tree node of its sequence.

A pin keeps KV as long as there is room; a handle never takes room from a running row.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglc.runtime.radix import Key, Node, RadixTree, resolve
from sglc.runtime.requests import Handle


@dataclass(slots=True)
class _Sequence:
    ids: Key
    node: Node


class Handles:
    """All handles of an engine. With `follows` off they pin nothing (nothing is shared then)."""

    __slots__ = ("_follows", "_made", "_sequences", "_tree")

    def __init__(self, tree: RadixTree, follows: bool) -> None:
        self._tree = tree
        self._follows = follows
        self._made = 0
        self._sequences: dict[Handle, _Sequence] = {}

    def extend(self, base: Handle | None, ids: Key) -> Handle:
        """A new handle on the ids of `base` (none: nothing) followed by `ids`."""
        before = self._sequences[base] if base is not None else _Sequence((), self._tree.root)
        handle = self._add(before.ids + ids, before.node)
        self.follow(handle)
        return handle

    def fork(self, handle: Handle) -> Handle:
        """A new handle on the same ids."""
        base = self._sequences[handle]
        return self._add(base.ids, base.node)

    def release(self, handle: Handle) -> None:
        """The handle ends."""
        self._tree.unpin(self._sequences.pop(handle).node)

    def ids(self, handle: Handle) -> Key:
        """The ids that a handle names."""
        return self._sequences[handle].ids

    def follow(self, handle: Handle) -> None:
        """Pin the deepest node of a handle's ids as the tree is now. Nothing, if it is released."""
        sequence = self._sequences.get(handle)
        if sequence is None or not self._follows:
            return
        match = self._tree.match(sequence.ids, len(sequence.ids), self.start(handle, self._tree.root))
        node = match.source or match.node
        self._tree.pin(node)
        self._tree.unpin(sequence.node)
        sequence.node = node

    def start(self, handle: Handle, root: Node) -> Node:
        """A node below `root` that matches the handle's ids whole, as deep as is known without looking."""
        sequence = self._sequences.get(handle)
        if sequence is None or root is not self._tree.root:
            return root
        node = resolve(sequence.node)
        return node.parent or node  # the last page may match in part only

    def pinned(self) -> list[Node]:
        """The pinned node of every handle."""
        return [resolve(sequence.node) for sequence in self._sequences.values()]

    def reset(self) -> None:
        """The tree was cleared: every handle starts from its root again."""
        for sequence in self._sequences.values():
            sequence.node = self._tree.root
            self._tree.pin(sequence.node)

    def _add(self, ids: Key, node: Node) -> Handle:
        node = resolve(node)
        self._tree.pin(node)
        self._made += 1
        self._sequences[self._made] = _Sequence(ids, node)
        return self._made
