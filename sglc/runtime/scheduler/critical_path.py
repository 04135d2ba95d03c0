"""How much of a segment is still to come behind each of its nodes."""

from __future__ import annotations

from collections.abc import Sequence

from sglc.ir.plan.segment import GenNode, Node


def remaining_tokens(nodes: Sequence[Node], readers: Sequence[Sequence[int]]) -> list[int]:
    """Of each node, the tokens of the longest chain of generations that begins with it, by their limits.

    Args:
        readers: of each node, the numbers of those that wait for it; all are larger than its own.
    """
    left = [0] * len(nodes)
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index]
        own = node.sampling.max_tokens if type(node) is GenNode else 0
        behind = readers[index]
        left[index] = own + (max([left[reader] for reader in behind]) if behind else 0)
    return left
