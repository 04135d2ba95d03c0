"""The least that a batch's prompts can cost: what is computed if no prefix is ever computed twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

Ids = Sequence[int]


def fewest_computed(calls: Iterable[tuple[Ids, Sequence[Ids]]]) -> int:
    """Prompt tokens that have to pass through the model for `calls`, in the best order and with room for all.

    Each call is a prompt and what was generated behind it, once for each sample. A token of a prompt is for
    free if a prompt with the same tokens before it was computed, or if it was generated there; but the last one
    of each prompt has to pass through the model for that call, because what follows depends on it.
    """
    trie: dict[tuple[int, int], int] = {}  # (node, id) -> node; the root is 0
    wanted: set[int] = set()  # nodes of prompts
    ends: Counter[int] = Counter()
    generated: set[int] = set()

    def down(node: int, ids: Iterable[int]) -> list[int]:
        path = []
        for id_ in ids:
            node = trie.setdefault((node, id_), len(trie) + 1)
            path.append(node)
        return path

    for prompt, samples in calls:
        path = down(0, prompt)
        wanted.update(path)
        ends[path[-1]] += 1
        for ids in samples:
            # The last token of a sample has not passed through the model.
            generated.update(down(path[-1], ids[:-1]))
    again = sum(count - (node not in generated) for node, count in ends.items())
    return len(wanted - generated) + again
