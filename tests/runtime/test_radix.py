"""The prefix tree against a plain set of sequences, and its locks, pins and evictions."""

from __future__ import annotations

import gc
import random

import pytest

from sglc.runtime.cache.page_tree import Key, PageNode, RadixTree, Worth, resolve
from sglc.runtime.ids import common_prefix


class Cache:
    """A tree whose pages are numbered as they come; `gone` are the pages given back."""

    def __init__(self, page_size: int) -> None:
        self.gone: list[int] = []
        self.tree = RadixTree(page_size, self.gone.append)
        self.pages = 0

    def add(self, ids: Key, root: PageNode | None = None) -> PageNode:
        """Insert a sequence; gives its deepest node."""
        node = root or self.tree.root
        for at in range(0, len(ids), self.tree.page_size):
            node, new = self.tree.insert(node, ids[at : at + self.tree.page_size], self.pages, 0)
            self.pages += new
        return node

    def known(self, ids: Key) -> int:
        """How many leading ids are cached."""
        return self.tree.match(ids, len(ids), self.tree.root).length

    def evict_all(self) -> list[int]:
        """Everything that can go, in the order it goes."""
        while self.tree.evictable:
            self.tree.evict()
        return self.gone


def test_match_is_whole_pages_then_a_part_of_one() -> None:
    cache = Cache(4)
    cache.add((1, 2, 3, 4, 5, 6))
    match = cache.tree.match((1, 2, 3, 4, 5, 6, 7), 7, cache.tree.root)
    assert (match.node.page, match.tokens, match.length) == (0, 2, 6)
    assert match.source is not None
    assert match.source.page == 1
    assert cache.known((1, 2, 9)) == 2  # of a full page
    assert cache.known((9,)) == 0
    assert cache.known(()) == 0


def test_limit_keeps_tokens_out_of_the_match() -> None:
    cache = Cache(4)
    cache.add((1, 2, 3, 4))
    match = cache.tree.match((1, 2, 3, 4), 3, cache.tree.root)
    assert match.node is cache.tree.root
    assert match.tokens == 3


def test_best_neighbour_on_either_side() -> None:
    cache = Cache(4)
    for key in ((1, 1, 1, 1), (1, 5, 0, 0), (1, 5, 9, 9), (2, 0, 0, 0)):
        cache.add(key)
    assert cache.known((1, 5, 9, 8)) == 3  # the page after it in order
    assert cache.known((1, 5, 0, 1)) == 3  # the page before it
    assert cache.known((1, 1, 1, 1)) == 4


def test_an_equal_page_stays_private() -> None:
    cache = Cache(2)
    first = cache.add((1, 2))
    again, new = cache.tree.insert(cache.tree.root, (1, 2), 77, 0)
    assert again is first
    assert not new
    part, new = cache.tree.insert(cache.tree.root, (1,), 78, 0)
    assert part is first
    assert not new
    assert cache.gone == []


def test_a_longer_page_replaces_a_free_partial_leaf() -> None:
    cache = Cache(4)
    short = cache.add((1, 2))
    cache.tree.pin(short)
    longer = cache.add((1, 2, 3))
    assert cache.gone == [0]
    assert resolve(short) is longer
    assert longer.pins == 1
    assert cache.tree.evictable == 1
    cache.tree.unpin(short)
    assert longer.pins == 0


def test_a_locked_partial_leaf_stays_beside_the_longer_page_until_it_is_unlocked() -> None:
    cache = Cache(4)
    short = cache.add((1, 2))
    cache.tree.lock(short)
    longer = cache.add((1, 2, 3))
    assert cache.gone == []
    assert cache.known((1, 2, 3)) == 3
    cache.tree.unlock(short)
    assert cache.gone == [0]
    assert resolve(short) is longer
    assert cache.tree.evictable == 1


def test_a_sequence_that_goes_on_is_not_shared_with_itself() -> None:
    cache = Cache(2)
    short = cache.add((1, 2, 3))
    cache.tree.lock(short)
    longer = cache.add((1, 2, 3, 4))
    cache.tree.unlock(short)
    cache.tree.demote(longer)
    assert longer.parent is not None
    assert [node.worth for node in (longer, longer.parent)] == [Worth.DEAD, Worth.DEAD]


def test_locks_hold_the_whole_path() -> None:
    cache = Cache(1)
    leaf = cache.add((1, 2, 3))
    other = cache.add((1, 9))
    assert cache.tree.evictable == 4
    cache.tree.lock(leaf)
    assert cache.tree.evictable == 1
    cache.tree.evict()
    assert cache.gone == [other.page]
    with pytest.raises(AssertionError, match="nothing left to evict"):
        cache.tree.evict()
    cache.tree.unlock(leaf)
    assert cache.tree.evictable == 3
    with pytest.raises(AssertionError, match="more often than locked"):
        cache.tree.unlock(leaf)


def test_a_lock_moves_down() -> None:
    cache = Cache(1)
    top = cache.add((1,))
    cache.tree.lock(top)
    leaf = cache.add((1, 2, 3))
    cache.tree.lock(leaf, held=top)
    assert [top.refs, leaf.refs] == [1, 1]
    cache.tree.unlock(leaf)
    assert cache.tree.evictable == 3


def test_a_lock_counts_above_its_node_once_whoever_holds_it() -> None:
    cache = Cache(1)
    leaf = cache.add((1, 2, 3))
    top = leaf.parent.parent  # type: ignore[union-attr]
    assert top is not None
    for _ in range(2):
        cache.tree.lock(leaf)
    cache.tree.lock(top)
    assert [top.refs, leaf.refs] == [2, 2]
    for node in (leaf, top, leaf):
        assert cache.tree.evictable == 0
        cache.tree.unlock(node)
    assert cache.tree.evictable == 3
    with pytest.raises(AssertionError, match="traded in"):
        cache.tree.lock(leaf, held=top)


def test_eviction_takes_leaves_least_recently_used_first() -> None:
    cache = Cache(1)
    cache.add((1, 2))  # pages 0, 1
    cache.add((3, 4))  # pages 2, 3
    cache.add((5,))  # page 4
    cache.known((1, 2))
    for _ in range(5):
        cache.tree.evict()
    # The page above a leaf was used when the leaf was.
    assert cache.gone == [3, 2, 4, 1, 0]
    assert cache.tree.evictable == 0


def test_pinned_leaves_go_last_and_the_pin_moves_up() -> None:
    cache = Cache(1)
    pinned = cache.add((1, 2))  # pages 0, 1
    cache.add((3,))
    cache.tree.pin(pinned)
    cache.known((3,))
    cache.tree.evict()
    assert cache.gone == [2]
    cache.tree.evict()
    assert cache.gone == [2, 1]
    assert resolve(pinned).page == 0
    assert resolve(pinned).pins == 1
    cache.add((4,))
    cache.tree.evict()
    assert cache.gone == [2, 1, 3]
    cache.tree.unpin(pinned)
    with pytest.raises(AssertionError, match="more often than pinned"):
        cache.tree.unpin(pinned)


def test_an_unpinned_leaf_is_found_again() -> None:
    cache = Cache(1)
    first, second = cache.add((1,)), cache.add((2,))
    cache.tree.pin(first)
    cache.tree.pin(second)
    cache.tree.lock(first)
    cache.tree.unlock(first)
    cache.tree.unpin(second)
    cache.tree.evict()
    assert cache.gone == [second.page]


def test_of_pinned_pages_that_goes_first_whose_next_use_is_farthest_now() -> None:
    cache = Cache(2)
    nodes = [cache.add((n, n)) for n in range(4)]
    for use, node in enumerate(nodes):
        cache.tree.pin(node, use)
    cache.tree.evict()
    assert cache.gone == [3]
    cache.tree.repin(nodes[0], 0, 9)
    cache.tree.repin(nodes[2], 2, 0)
    assert cache.evict_all() == [3, 0, 1, 2]


def test_a_scratch_tree_goes_with_its_last_lock_or_pin() -> None:
    cache = Cache(2)
    root = cache.tree.scratch()
    leaf = cache.add((1, 2, 3), root)
    cache.tree.lock(leaf)
    cache.tree.pin(leaf)
    assert cache.known((1, 2, 3)) == 0
    cache.tree.unlock(leaf)
    assert cache.gone == []
    cache.tree.unpin(leaf)
    assert cache.gone == [1, 0]
    assert root.children == []
    assert cache.tree.evictable == 0


def test_the_heap_stays_small_however_often_a_leaf_is_used() -> None:
    cache = Cache(1)
    leaf = cache.add((1,))
    for _ in range(1_000):
        cache.known((1,))
        cache.tree.lock(leaf)
        cache.tree.pin(leaf)
        cache.tree.unlock(leaf)
        cache.tree.unpin(leaf)
    assert len(cache.tree._heap) <= 2


def test_superseded_entries_are_dropped_from_the_heap_and_no_others() -> None:
    cache = Cache(1)
    leaf, held = cache.add((1,)), cache.add((2,))
    cache.tree.lock(held)
    cache.tree.pin(leaf, 0)
    cache.tree.evict()  # the pin moves to the root; nothing is queued but what is locked
    leaf = cache.add((3,))
    cache.tree.pin(leaf, 1)
    cache.tree.lock(leaf)
    cache.tree._heap.clear()
    leaf.queued = None
    for next_use in range(2, 1_000):  # always later than before, so always a lower rank
        cache.tree.pin(leaf, next_use)
        cache.tree.unpin(leaf, next_use - 1)
        cache.tree.unlock(leaf)
        cache.tree.lock(leaf)
    assert len(cache.tree._heap) <= 20
    cache.tree.unlock(leaf)
    cache.tree.unlock(held)
    assert cache.evict_all() == [0, 1, 2]


def test_what_comes_and_goes_leaves_nothing_in_the_heap() -> None:
    cache = Cache(1)
    for token in range(200):
        leaf = cache.add((token, token), cache.tree.scratch())
        cache.tree.lock(leaf)
        cache.tree.unlock(leaf)
    assert len(cache.gone) == 400
    assert len(cache.tree._heap) <= 16


def test_dead_then_the_rest_then_pinned_leaves() -> None:
    cache = Cache(1)
    pinned, normal, dead = (cache.add((token,)) for token in range(3))
    cache.tree.demote(dead)
    cache.tree.pin(pinned)
    cache.known((9,))
    assert cache.evict_all() == [dead.page, normal.page, pinned.page]


def test_of_pinned_leaves_the_farthest_next_use_goes_first() -> None:
    cache = Cache(1)
    soon, later, some_day, both = (cache.add((token,)) for token in range(4))
    cache.tree.pin(soon, 2)
    cache.tree.pin(later, 7)
    cache.tree.pin(some_day)
    cache.tree.pin(both, 9)
    cache.tree.pin(both, 1)
    cache.tree.evict()
    assert cache.gone == [some_day.page]
    cache.tree.unpin(both, 1)
    assert cache.evict_all() == [some_day.page, both.page, later.page, soon.page]
    cache.tree.unpin(both, 9)  # they have moved to the root
    cache.tree.unpin(soon, 2)
    with pytest.raises(AssertionError, match="was never given"):
        cache.tree.unpin(soon, 2)


def test_what_others_go_through_does_not_die_with_one_of_them() -> None:
    cache = Cache(1)
    other = cache.add((9,))
    first, second = cache.add((1, 2, 3)), cache.add((1, 2, 4, 5))
    for leaf in (first, second):
        cache.tree.demote(leaf)
    # Both have gone through (1, 2).
    assert cache.evict_all() == [3, 5, 4, other.page, 2, 1]


def test_a_tail_dies_up_to_the_pin_of_another() -> None:
    cache = Cache(1)
    middle = cache.add((1, 2))
    leaf = cache.add((1, 2, 3, 4))
    cache.tree.pin(middle)
    cache.tree.demote(leaf)
    top = middle.parent
    assert leaf.parent is not None
    assert top is not None
    assert [node.worth for node in (leaf, leaf.parent, middle, top)] == [Worth.DEAD] * 2 + [Worth.NORMAL] * 2
    cache.tree.unpin(middle)
    cache.tree.demote(middle)
    assert [middle.worth, top.worth] == [0, 0]


def test_the_dead_come_back_when_they_are_asked_for() -> None:
    cache = Cache(2)
    leaf = cache.add((1, 2, 3, 4, 5, 6))
    cache.tree.demote(leaf)
    assert cache.known((1, 2, 3, 9)) == 3
    top = cache.tree.root.children[0]
    middle = top.children[0]
    assert [top.worth, middle.worth, leaf.worth] == [1, 0, 0]  # a part of a page is not the page
    cache.tree.demote(leaf)
    assert top.worth == Worth.NORMAL  # two have wanted it
    assert cache.known((1, 2, 3, 4, 5, 6)) == 6
    assert leaf.worth == middle.worth == Worth.NORMAL


def test_namespaces_share_nothing_but_the_pool() -> None:
    cache = Cache(2)
    adapter = cache.tree.root_of("adapter")
    cache.add((1, 2, 3, 4))
    assert cache.tree.match((1, 2, 3, 4), 4, adapter).length == 0
    cache.add((1, 2), adapter)
    assert cache.tree.match((1, 2, 3, 4), 4, adapter).length == 2
    assert cache.tree.root_of("adapter") is adapter
    assert cache.tree.root_of("") is cache.tree.root
    assert cache.tree.evictable == 3
    assert cache.evict_all() == [1, 0, 2]


def test_an_empty_namespace_leaves_nothing() -> None:
    cache = Cache(1)
    for i in range(50):
        cache.add((i,), cache.tree.root_of(f"salt {i}"))
    cache.add((1,))
    gc.collect()
    assert len(cache.tree._roots) == 51
    cache.evict_all()
    gc.collect()
    assert list(cache.tree._roots) == [""]


def test_clear_empties_every_namespace() -> None:
    cache = Cache(1)
    adapter = cache.tree.root_of("adapter")
    cache.tree.pin(cache.add((1, 2), adapter), 4)
    cache.add((1,))
    cache.tree.pin(adapter, 5)
    cache.tree.clear()
    assert cache.tree.evictable == 0
    assert cache.tree.match((1, 2), 2, cache.tree.root_of("adapter")).length == 0
    assert (adapter.pins, adapter.next_uses) == (0, [])
    assert cache.gone == []


def test_a_node_that_took_over_is_found_at_once() -> None:
    cache = Cache(1)
    leaf = cache.add(tuple(range(40)))
    cache.tree.pin(leaf)
    cache.evict_all()
    assert resolve(leaf) is cache.tree.root
    assert leaf.moved is not None
    assert leaf.moved.moved is not None
    assert leaf.moved.moved.page < leaf.page - 2
    for _ in range(10):
        resolve(leaf)
    assert leaf.moved is cache.tree.root


def test_a_prompt_is_a_few_nodes_that_go_page_by_page() -> None:
    cache, ids = Cache(2), tuple(range(300))
    last, count = cache.tree.insert_pages(cache.tree.root, ids, range(150), 0)
    assert (count, last.end) == (150, 300)
    nodes, node = 0, last
    while node.parent is not None:
        nodes, node = nodes + 1, node.parent
    assert nodes == 3
    assert cache.tree.evictable == 0
    half = cache.tree.match(ids, 101, cache.tree.root)  # parts it, whoever holds it
    assert (half.length, half.node.end, half.source and half.source.page) == (101, 100, 50)
    cache.tree.unlock(last)
    assert cache.tree.evictable == 150
    cache.tree.lock(half.node)
    cache.tree.evict(3)
    assert cache.gone == [149, 148, 147]
    assert (last.end, cache.known(ids)) == (294, 294)
    assert sorted(cache.evict_all()) == list(range(50, 150))
    cache.tree.unlock(half.node)
    assert cache.evict_all()[100:] == list(range(49, -1, -1))
    assert cache.tree.root.children == []


@pytest.mark.parametrize("page_size", [1, 3, 4])
def test_match_is_the_longest_common_prefix_with_anything_inserted(page_size: int) -> None:
    rng = random.Random(page_size)
    cache, sequences = Cache(page_size), [()]
    for _ in range(400):
        base = rng.choice(sequences)
        ids = base[: rng.randint(0, len(base))] + tuple(rng.randrange(3) for _ in range(rng.randint(0, 6)))
        whole = len(ids) // page_size * page_size
        assert cache.known(ids) == max(common_prefix(ids, other) for other in sequences), (
            "another prefix is longer"
        )
        start = cache.tree.match(ids, whole, cache.tree.root).node
        assert cache.tree.match(ids, len(ids), start).length == cache.known(ids)
        cache.add(ids)
        sequences.append(ids)
    assert len(cache.gone) + cache.tree.evictable == cache.pages
    while cache.tree.evictable:
        cache.tree.evict()
    assert sorted(cache.gone) == list(range(cache.pages))
