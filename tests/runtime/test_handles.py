"""Handles: what they pin, and what becomes of it when they are released or forgotten."""

from __future__ import annotations

import pytest

from sglc.runtime.cache.page_tree import Key, PageNode, RadixTree, Worth
from sglc.runtime.cache.sequence_handles import Handles, as_ids


class Bench:
    """Handles on a tree whose pages are numbered as they come; `gone` are those given back."""

    def __init__(self, page_size: int = 2, follows: bool = True) -> None:
        self.gone: list[int] = []
        self.tree = RadixTree(page_size, self.gone.append)
        self.handles = Handles(self.tree, follows)
        self.pages = 0

    def add(self, ids: Key, namespace: str = "") -> PageNode:
        """KV of a sequence, as a row that ends leaves it; gives its deepest node."""
        node = self.tree.root_of(namespace)
        for at in range(0, len(ids), self.tree.page_size):
            node, new = self.tree.insert(node, ids[at : at + self.tree.page_size], self.pages, 0)
            self.pages += new
        return node

    def evict_all(self) -> list[int]:
        while self.tree.evictable:
            self.tree.evict()
        return self.gone


def test_what_is_released_goes_before_what_is_forgotten() -> None:
    bench = Bench()
    forgotten, released = bench.add((1, 1, 1, 1)), bench.add((2, 2, 2, 2))
    first = bench.handles.extend(None, (1, 1, 1, 1))
    second = bench.handles.extend(None, (2, 2, 2, 2))
    bench.handles.forget(first)
    bench.handles.release(second)
    assert [forgotten.worth, released.worth] == [Worth.NORMAL, Worth.DEAD]
    assert bench.evict_all() == [3, 2, 1, 0]


def test_a_fork_keeps_what_the_other_releases() -> None:
    bench = Bench()
    leaf = bench.add((1, 2, 3, 4))
    handle = bench.handles.extend(None, (1, 2, 3, 4))
    twin = bench.handles.fork(handle)
    bench.handles.release(handle)
    assert (leaf.worth, leaf.pins) == (Worth.NORMAL, 1)
    bench.handles.release(twin)
    assert (leaf.worth, leaf.pins) == (Worth.DEAD, 0)


def test_only_the_private_tail_dies() -> None:
    bench = Bench()
    turn = bench.handles.extend(None, (1, 2, 3, 4))
    bench.add((1, 2, 3, 4, 5, 6, 7))
    longer = bench.handles.extend(turn, (5, 6, 7))
    bench.handles.follow(turn)
    bench.handles.release(longer)
    node: PageNode | None = bench.tree.root.children[0]
    worths = []
    while node is not None:
        worths.append(node.worth)
        node = node.children[0] if node.children else None
    assert worths == [Worth.NORMAL, Worth.NORMAL, Worth.DEAD, Worth.DEAD]


@pytest.mark.parametrize(("wanted", "alive"), [(0, 0), (2, 1), (3, 1), (4, 2), (6, 3)])
def test_what_others_want_of_a_released_sequence_stays(wanted: int, alive: int) -> None:
    bench = Bench()
    bench.add((1, 2, 3, 4, 5, 6))
    handle = bench.handles.extend(None, (1, 2, 3, 4, 5, 6))
    asked: list[tuple[Key, int]] = []

    def wants(ids: Key, beyond: int, root: PageNode) -> int:
        assert root is bench.tree.root
        asked.append((ids, beyond))
        return wanted

    bench.handles.release(handle, wants)
    assert asked == [((1, 2, 3, 4, 5, 6), 0)]
    node, worths = bench.tree.root, []
    while node.children:
        node = node.children[0]
        worths.append(node.worth)
    assert worths == [Worth.NORMAL] * alive + [Worth.DEAD] * (3 - alive)


def test_of_what_others_have_gone_through_nobody_is_asked() -> None:
    bench = Bench()
    bench.add((1, 2, 3, 4))
    bench.add((1, 2, 5, 6))
    handle = bench.handles.extend(None, (1, 2, 3, 4))
    beyond: list[int] = []
    bench.handles.release(handle, lambda ids, known, root: beyond.append(known) or 0)
    assert beyond == [2]


def test_a_page_that_matches_in_part_belongs_to_another_sequence() -> None:
    bench = Bench(page_size=4)
    other = bench.add((1, 2, 3, 4))
    handle = bench.handles.extend(None, (1, 2))
    assert other.pins == 1
    bench.handles.release(handle)
    assert (other.worth, other.pins) == (Worth.NORMAL, 0)


def test_a_released_sequence_that_was_evicted_in_part() -> None:
    bench = Bench()
    handle = bench.handles.extend(None, (1, 2, 3, 4))
    bench.add((1, 2, 3, 4))
    bench.handles.follow(handle)
    bench.tree.evict()
    bench.handles.release(handle)
    assert bench.tree.root.children[0].worth == Worth.DEAD


def test_the_expected_next_use_follows_the_handle() -> None:
    bench = Bench()
    soon, late = bench.handles.extend(None, (1, 2, 3, 4)), bench.handles.extend(None, (5, 6))
    bench.handles.expect(soon, 20)
    bench.handles.expect(late, 30)
    bench.handles.expect(soon, 10)
    near, far = bench.add((1, 2, 3, 4)), bench.add((5, 6))
    bench.handles.follow(soon)
    bench.handles.follow(late)
    assert (near.next_uses, far.next_uses, bench.tree.root.next_uses) == ([10], [30], [])
    bench.tree.evict()
    assert bench.gone == [far.page]
    bench.tree.evict()  # the pin moves up
    bench.handles.expect(soon, 12)
    assert bench.tree.root.children[0].next_uses == [12]
    bench.handles.release(soon)
    bench.handles.forget(late)
    assert bench.tree.root.pins == 0


def test_namespaces_are_kept_by_what_extends_and_forks() -> None:
    bench = Bench()
    bench.add((1, 2, 3, 4))
    leaf = bench.add((1, 2), "adapter")
    handle = bench.handles.extend(None, (1, 2, 3, 4), "adapter")
    longer = bench.handles.extend(handle, (5, 6))
    twin = bench.handles.fork(longer)
    assert leaf.pins == 3
    root = bench.tree.root_of("adapter")
    assert bench.handles.sequence(twin).root is root
    assert bench.handles.start(twin, root) is root
    assert bench.handles.start(twin, bench.tree.root) is bench.tree.root
    with pytest.raises(AssertionError, match="changes its namespace"):
        bench.handles.extend(handle, (), "another")


def test_after_a_reset_every_handle_is_at_its_own_root() -> None:
    bench = Bench()
    bench.add((1, 2), "adapter")
    handles = [bench.handles.extend(None, (1, 2), name) for name in ("", "adapter")]
    bench.handles.expect(handles[1], 3)
    bench.tree.clear()
    bench.handles.reset()
    assert bench.handles.pinned() == [bench.tree.root, bench.tree.root_of("adapter")]
    for handle in handles:
        bench.handles.release(handle)
    assert bench.tree.root_of("adapter").pins == bench.tree.root.pins == 0


def test_what_begins_with_a_prefix_is_found_from_there() -> None:
    bench = Bench()
    leaf = bench.add((1, 2, 3, 4))
    prefix = bench.handles.prefix(None, *as_ids((1, 2, 3, 4)))
    assert leaf.pins == 0
    handle = bench.handles.extend(prefix, (5,))
    assert bench.handles.sequence(handle).ids == (1, 2, 3, 4, 5)
    assert bench.handles.sequence(handle).array.tolist() == [1, 2, 3, 4, 5]
    assert prefix.node is leaf
    assert leaf.pins == 1
    longer = bench.handles.prefix(prefix, *as_ids((9, 9)))
    assert (longer.ids, longer.node) == ((1, 2, 3, 4, 9, 9), leaf)
    bench.handles.release(handle)
    bench.tree.clear()
    bench.handles.reset()
    assert prefix.node is longer.node is bench.tree.root
    again = bench.handles.extend(prefix, ())
    assert bench.handles.pinned() == [bench.tree.root]
    assert bench.handles.sequence(again).ids == (1, 2, 3, 4)


def test_what_one_row_has_found_of_a_prefix_all_begin_with() -> None:
    bench = Bench()
    prefix = bench.handles.prefix(None, *as_ids((1, 2, 3, 4, 5)))
    first, second = (bench.handles.extend(prefix, (6, last)) for last in (7, 8))
    forked = bench.handles.fork(second)
    behind = bench.handles.extend(second, (9,))
    assert bench.handles.start(second, bench.tree.root) is bench.tree.root
    found = bench.add((1, 2, 3, 4, 5, 6, 7, 7))
    bench.handles.found(first, found)
    assert prefix.node.end == 4  # whole pages of what they have in common
    for handle in (second, forked, behind):
        assert bench.handles.start(handle, bench.tree.root).end == 2  # a page that is alone is looked at again
    bench.evict_all()
    assert all(bench.handles.start(each, bench.tree.root) is bench.tree.root for each in (second, forked))


def test_a_prefix_whose_pages_were_evicted_is_looked_for_above() -> None:
    bench = Bench()
    bench.add((1, 2, 3, 4))
    prefix = bench.handles.prefix(None, *as_ids((1, 2, 3, 4)))
    bench.handles.forget(bench.handles.extend(prefix, (5,)))
    while bench.tree.evictable:
        bench.tree.evict()
    handle = bench.handles.extend(prefix, (6,))
    assert bench.handles.pinned() == [bench.tree.root]
    assert bench.handles.sequence(handle).ids == (1, 2, 3, 4, 6)


def test_with_the_cache_off_nothing_is_pinned() -> None:
    bench = Bench(follows=False)
    leaf = bench.add((1, 2))
    handle = bench.handles.extend(None, (1, 2))
    assert leaf.pins == 0
    bench.handles.release(handle)
    assert leaf.worth == Worth.NORMAL
