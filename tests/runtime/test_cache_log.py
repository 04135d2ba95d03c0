"""Who follows the cache knows what the tree has: after random work, with evictions, aborts, and late looks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from sglc.runtime.cache.cache_log import CacheLog
from sglc.runtime.cache.page_tree import PageNode, RadixTree
from tests.depth import at_depth
from tests.runtime.soak import Driver, Setup

pytestmark = pytest.mark.slow

Pages = set[tuple[str, tuple[int, ...]]]  # whole sequences, by namespace


class Follower:
    """What is known of a cache by its changes."""

    def __init__(self) -> None:
        self.count = -1
        self.pages: dict[int, tuple[int, tuple[int, ...], str]] = {}
        self.anew = 0

    def look(self, tree: RadixTree) -> None:
        self.count, changes = tree.follow(self.count)
        self.take(changes)

    def take(self, changes: Sequence[Any]) -> None:
        for change in changes:
            match change:
                case ():
                    self.pages.clear()
                    self.anew += 1
                case (page,):
                    del self.pages[page]
                    assert page not in {parent for parent, _, _ in self.pages.values()}
                case (page, parent, ids, namespace):
                    assert page not in self.pages
                    assert not parent or parent in self.pages
                    self.pages[page] = parent, tuple(ids), namespace

    def known(self) -> Pages:
        def ids_of(page: int) -> tuple[int, ...]:
            parent, ids, _ = self.pages[page]
            return (*(ids_of(parent) if parent else ()), *ids)

        return {(self.pages[page][2], ids_of(page)) for page in self.pages}


def cached(tree: RadixTree) -> Pages:
    """What the tree has in whole pages."""
    found: Pages = set()

    def walk(node: PageNode, before: tuple[int, ...], namespace: str) -> None:
        for child in node.children:
            whole = (*before, *child.key)
            ends = range(len(before) + tree.page_size, len(whole) + 1, tree.page_size)
            found.update((namespace, whole[:end]) for end in ends)
            walk(child, whole, namespace)

    for namespace, root in tree._roots.items():
        walk(root, (), namespace)
    return found


@pytest.mark.parametrize("most", [1 << 16, 7])
def test_changes_add_up_to_the_tree(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if most == 7:
        monkeypatch.setattr("sglc.runtime.cache.page_tree.CacheLog", lambda: CacheLog(most))
    seen, removed, anew = 0, 0, 0
    for seed in range(at_depth(3, 6, 200)):
        driver, rng = Driver(Setup.draw(random.Random(seed)), seed), random.Random(seed)
        tree, followers = driver.engine.tree, [Follower(), Follower()]
        assert tree.log is None
        for _ in range(150):
            while driver.rng.random() < 0.5:
                driver.act()
            driver.step()
            for follower, often in zip(followers, (0.5, 0.05), strict=True):
                if rng.random() < often:
                    before = set(follower.pages)
                    follower.look(tree)
                    removed += len(before - set(follower.pages))
        driver.finish()
        for follower in followers:
            follower.look(tree)
            assert follower.known() == cached(tree)
            anew += follower.anew
        seen += len(followers[0].pages)
        tree.follow(None)
        assert tree.log is None
    assert seen > 10
    assert removed > 10
    told_anew = 2 * at_depth(3, 6, 200)  # in the beginning, and where an engine broke down
    assert anew >= (4 * told_anew if most == 7 else told_anew)


def test_nobody_s_cache_has_no_log() -> None:
    driver = Driver(Setup.draw(random.Random(1)), 1)
    for _ in range(50):
        driver.act()
        driver.step()
    assert driver.engine.tree.log is None
    driver.finish()
