"""The prefix tree: which token sequences have their KV in which pages.

A radix tree: one node is a run of pages with no branch inside, of `page_size` ids each, or one page of fewer
in a leaf. It is split where sequences part, and where somebody's ends: locks, pins and marks are of whole runs.
A node's children are sorted by the ids of their first pages, so the best match of a page, whole or in part, is
a neighbour of its place in that order.
`refs` counts the locks on a node, and its children that have any: one with such is never evicted. Of the other
leaves the one with the lowest (worth, next use, last use) loses its last pages: first what the program has
released, then the rest, then what is pinned, its farthest next use first. Time is a logical tick. Every
namespace has a root: nothing is shared between two of them.
No node is reachable whose page a step that is not launched yet will write.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from weakref import WeakValueDictionary

from sglc.ir.made_often import made_often
from sglc.runtime.cache.cache_log import CacheLog, Change, stored, whole
from sglc.runtime.cache.cache_log import Key as Key
from sglc.runtime.ids import common_prefix

_Rank = tuple[int, int, int, int]  # (worth, -next use, last use, serial): the lowest is evicted first

_MOST_PAGES = 64  # of one node: what is split or shortened is copied
SOME_DAY = 1 << 62  # a next use that nobody knows: later than any that somebody does
DUE = -(1 << 40)  # plus the place in a queue: a next use before any that has a time


class Worth(IntEnum):
    """What keeping a node is worth. Leaves of the lowest worth are evicted first."""

    DEAD = 0  # its program has released it
    NORMAL = 1
    PINNED = 2  # of a node with pins, whatever else it would be worth


# Compared in the inner loops, where a plain integer is faster.
_DEAD, _NORMAL, _PINNED = int(Worth.DEAD), int(Worth.NORMAL), int(Worth.PINNED)


class PageNode:
    """Pages of a cached sequence, one behind the other, which ends with them at `end`.

    `serial` is the last page's; those before it have the numbers before it. `shared` is of the last page, too,
    where others branch off; `shared_whole` is of those before it.
    """

    __slots__ = (
        "__weakref__", "children", "end", "key", "keys", "last_use", "moved", "namespace", "next_uses",
        "pages", "parent", "pins", "queued", "refs", "scratch", "serial", "shared", "shared_whole", "step",
        "worth",
    )  # fmt: skip

    def __init__(
        self,
        parent: PageNode | None,
        key: Key,
        pages: list[int],
        step: int = -1,
        serial: int = 0,
        tick: int = 0,
    ) -> None:
        self.parent = parent
        self.key = key
        self.pages = pages
        self.step = step  # the step whose launch writes the pages
        self.serial = serial
        self.end: int
        self.scratch: bool
        self.namespace: str
        if parent is None:
            self.end, self.scratch, self.namespace = 0, False, ""
        else:
            self.end, self.scratch, self.namespace = parent.end + len(key), parent.scratch, parent.namespace
        self.keys: list[Key] = []  # of the children, the ids of their first pages
        self.children: list[PageNode] = []
        self.refs = 0
        self.pins = 0
        self.next_uses: list[int] = []  # of the pins that know theirs, in order
        self.worth = _NORMAL  # without its pins; never more than its parent's
        self.shared = self.shared_whole = False  # several have gone through it: no single one can release it
        self.last_use = tick
        self.queued: _Rank | None = None  # its valid entry in the eviction heap
        self.moved: PageNode | None = None  # after removal: the node that took over its pins

    @property
    def page(self) -> int:
        """The only page, or the last."""
        return self.pages[-1]


@made_often
@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The longest known prefix: `node` is matched whole, then `tokens` ids of `source`, which is one page."""

    node: PageNode
    source: PageNode | None
    tokens: int

    @property
    def length(self) -> int:
        """Tokens known."""
        return self.node.end + self.tokens


class RadixTree:
    """The trees of one pool. `drop` gives a removed node's page back.

    `evictable` counts pages that eviction can free now: those of nodes without locks. `root` is the
    root of the namespace "". `log` is told of whole pages, while somebody follows.
    """

    __slots__ = (
        "_drop", "_heap", "_nodes", "_pushes", "_roots", "_serial", "_tick", "evictable", "log", "page_size",
        "root",
    )  # fmt: skip

    def __init__(self, page_size: int, drop: Callable[[int], None]) -> None:
        self.page_size = page_size
        self.evictable = 0
        self.log: CacheLog | None = None
        # A root lives as long as nodes below it or whoever works in its namespace.
        self._roots: WeakValueDictionary[str, PageNode] = WeakValueDictionary()
        self.root = self.root_of("")
        self._drop = drop
        self._heap: list[tuple[_Rank, int, PageNode]] = []  # the count of pushes breaks ties
        self._nodes = 0
        self._pushes = 0
        self._serial = 0
        self._tick = 0

    def root_of(self, namespace: str) -> PageNode:
        """The root of a namespace: a model, an adapter, a salt, or whatever must not share."""
        root = self._roots.get(namespace)
        if root is None:
            root = PageNode(None, (), [])
            root.namespace = namespace
            self._roots[namespace] = root
        return root

    def follow(self, count: int | None) -> tuple[int, list[Change]]:
        """What has changed behind the first `count` changes of the log, and how many there are now.

        Args:
            count: None ends the log. Where it is not of the log, or too long ago, all that there is comes as
                changes.
        """
        if count is None:
            self.log = None
            return 0, []
        changes = None if self.log is None else self.log.since(count)
        if self.log is None:
            self.log = CacheLog()
        if changes is None:
            changes = list(whole(self._roots, self.page_size))
        return self.log.count, changes

    def scratch(self) -> PageNode:
        """A root of its own. What is below it goes as soon as nobody locks or pins it."""
        root = PageNode(None, (), [])
        root.scratch = True
        return root

    def match(self, ids: Key, limit: int, start: PageNode) -> PrefixMatch:
        """The longest known prefix of ids[:limit]; `start` is a node known to match whole (a root does).

        What matches whole is in use again, if it was dead.
        """
        size, node = self.page_size, start
        while node.end > limit:
            assert node.parent is not None
            node = node.parent
        source, tokens = None, 0
        while keys := node.keys:
            begin = node.end
            end = begin + size
            key = ids[begin:end] if end <= limit else ids[begin:limit]
            at = bisect_left(keys, key)
            if at < len(keys) and keys[at] == key and len(key) == size:
                child = node.children[at]
                if len(child.pages) == 1 or child.key == ids[begin : min(child.end, limit)]:
                    node = child
                    continue
                common = common_prefix(child.key, ids[begin:limit])
                tokens = common % size
                node = self._split(child, common - tokens)
                source = child if tokens else None
                break
            for i in (at, at - 1) if key else ():
                if not 0 <= i < len(keys) or keys[i][0] != key[0]:
                    continue
                if (common := common_prefix(keys[i], key)) > tokens:
                    source, tokens = node.children[i], common
                    if common == len(key):  # the other cannot have more of it
                        break
            break
        self._tick += 1
        deepest = node
        node.last_use = self._tick
        if source is not None:
            source = self._first_page(source)
            source.last_use = self._tick
            if tokens == len(source.key):
                deepest = source
        if deepest.worth == _DEAD:
            _revive(deepest)
        return PrefixMatch(node, source, tokens)

    def insert(
        self, parent: PageNode, key: Key, page: int, step: int, *, locked: bool = False
    ) -> tuple[PageNode, bool]:
        """The node of one page that holds `key` below `parent`, and whether it is new and now owns `page`.

        An existing node that begins with `key` is left as it is: the caller keeps its page. A leaf
        that `key` only continues makes room for the new node, unless it is locked.

        Args:
            locked: a new node has the lock that the caller holds on `parent`, as by `lock`.
        """
        assert 0 < len(key) <= self.page_size
        assert parent.end % self.page_size == 0, "a partial page has no children"
        keys = parent.keys
        at = bisect_left(keys, key) if keys else 0
        if at < len(keys) and keys[at][: len(key)] == key:
            node = self._first_page(parent.children[at])
            _revive(node)
            return node, False
        node = self._added(parent, at, key, [page], step)
        if locked:
            assert parent.parent is None or parent.refs, "a lock is handed on that nobody holds"
            node.refs = 1
        else:
            self.evictable += 1
        if others := len(keys) - 1:
            if at and key[: len(keys[at - 1])] == keys[at - 1]:
                others -= 1  # it is the same sequence, not as far as it has come
                if not parent.children[at - 1].refs:
                    self._remove(parent.children[at - 1], node)
            parent.shared |= others > 0
        if not locked:
            self._queue(node)
        return node, True

    def insert_pages(self, parent: PageNode, ids: Key, pages: Sequence[int], step: int) -> tuple[PageNode, int]:
        """`insert` of whole pages, which hold `ids`, each behind the one before it, the first below `parent`.

        They have the lock that the caller holds on that. It ends before a page that is there already. Gives the
        last node, and how many are new.
        """
        count, size = 0, self.page_size
        assert parent.parent is None or parent.refs, "a lock is handed on that nobody holds"
        while count < len(pages) and parent.keys:
            key = ids[count * size : (count + 1) * size]
            node, new = self.insert(parent, key, pages[count], step, locked=True)
            if not new:
                return parent, count
            parent = node
            count += 1
        while count < len(pages):  # all below one without children is new
            run = list(pages[count : count + _MOST_PAGES])
            key = ids[count * size : (count + len(run)) * size]
            parent = self._added(parent, 0, key, run, step)
            parent.refs = 1
            count += len(run)
        return parent, count

    def _added(self, parent: PageNode, at: int, key: Key, pages: list[int], step: int) -> PageNode:
        """A new child of `parent`, `at` its place."""
        if parent.worth == _DEAD:
            _revive(parent)
        self._tick += 1
        self._serial += len(pages)
        node = PageNode(parent, key, pages, step, self._serial, self._tick)
        parent.keys.insert(at, key[: self.page_size])
        parent.children.insert(at, node)
        self._nodes += 1
        if self.log is not None and self._is_told(node):
            for change in stored(node, self.page_size):
                self.log.add(change)
        return node

    def _split(self, node: PageNode, tokens: int) -> PageNode:
        """Cut a run behind its first `tokens` ids, if that is inside: gives the node that has these.

        `node` itself has the rest, and whatever was told of its end. Above it all is as it was.
        """
        if tokens == len(node.key):
            return node
        parent, count = node.parent, tokens // self.page_size
        assert parent is not None
        at = bisect_left(parent.keys, node.key[: self.page_size])
        assert parent.children[at] is node
        serial = node.serial - len(node.pages) + count
        upper = PageNode(parent, node.key[:tokens], node.pages[:count], node.step, serial, node.last_use)
        upper.worth, upper.refs = node.worth, int(node.refs > 0)
        upper.shared = upper.shared_whole = node.shared_whole
        parent.children[at] = upper
        node.parent, node.key, node.pages = upper, node.key[tokens:], node.pages[count:]
        upper.keys.append(node.key[: self.page_size])
        upper.children.append(node)
        self._nodes += 1
        return upper

    def _first_page(self, node: PageNode) -> PageNode:
        """The first page of a run, as a node of its own."""
        return node if len(node.pages) == 1 else self._split(node, self.page_size)

    def until(self, node: PageNode, tokens: int) -> PageNode:
        """The last whole page on the way to `node` that ends within so many tokens, as the end of a node."""
        while node.end > tokens:
            begin = node.end - len(node.key)
            assert node.parent is not None
            if whole := (tokens - begin) // self.page_size * self.page_size if tokens > begin else 0:
                return self._split(node, whole)
            node = node.parent
        return node

    def through(self, node: PageNode, tokens: int) -> PageNode:
        """The last page that the first `tokens` ids of the way to `node` reach into, as `match` finds it.

        They are some, and no more than that way has.
        """
        while (parent := node.parent) is not None and parent.end >= tokens:
            node = parent
        behind = tokens - node.end + len(node.key)
        whole = behind // self.page_size * self.page_size
        if whole:
            upper = self._split(node, whole)
        found = upper if whole == behind else self._first_page(node)
        self._tick += 1
        found.last_use = self._tick
        if found.worth == _DEAD:
            _revive(found)
        return found

    def lock(self, node: PageNode, held: PageNode | None = None) -> None:
        """Keep `node` and all above it. A caller that holds a lock on the ancestor `held` trades it in."""
        if node is held:
            return
        while node.parent is not None:
            node.refs += 1
            if node.refs > 1:  # what is above it is kept already
                break
            self.evictable -= len(node.pages)
            node = node.parent
        if held is not None and held.parent is not None:
            assert held.refs > 1, "a lock is traded in that nobody holds, or for a node elsewhere"
            held.refs -= 1

    def unlock(self, node: PageNode) -> None:
        """Take a lock back."""
        leaf, free = node, 0
        self._tick += 1
        node.last_use = self._tick
        assert node.refs or node.parent is None, "a node is unlocked more often than locked"
        while (parent := node.parent) is not None:  # a node with locks has some on all above it
            node.refs = refs = node.refs - 1
            if refs:
                break
            free += len(node.pages)
            node = parent
        self.evictable += free
        if not (leaf.refs or leaf.children):
            self._settle(leaf)

    def pin(self, node: PageNode, next_use: int = SOME_DAY) -> None:
        """Wish that `node` stays: it is evicted after all that nobody pins.

        Args:
            next_use: a time on a clock of the caller's; of pinned leaves the one with the latest goes first.
        """
        node.pins += 1
        if next_use != SOME_DAY:
            insort(node.next_uses, next_use)

    def unpin(self, node: PageNode, next_use: int = SOME_DAY) -> None:
        """Take a pin back that was given with `next_use`, from wherever eviction has moved it."""
        if node.moved is not None:
            node = resolve(node)
        assert node.pins > 0, "a node is unpinned more often than pinned"
        node.pins -= 1
        if next_use != SOME_DAY:
            _end_use(node, next_use)
        if not (node.refs or node.children):
            self._settle(node)

    def repin(self, node: PageNode, old: int, new: int) -> None:
        """A pin on `node` that was given with next use `old` has `new` from now on."""
        if old != SOME_DAY:
            _end_use(node, old)
        if new != SOME_DAY:
            insort(node.next_uses, new)
        if not (node.refs or node.children):
            self._queue(node)

    def demote(self, node: PageNode) -> None:
        """`node`, and what is above it for its sake only, is dead.

        That ends at the first node which somebody pins, or which another sequence has gone through.
        """
        leaf = node
        while node.parent is not None and not (node.pins or node.shared):
            if node.worth == _DEAD:
                break
            children = node.children  # the one that the walk has come from is dead
            if (node is leaf or len(children) > 1) and any(child.worth != _DEAD for child in children):
                break
            node.worth = _DEAD
            node = node.parent
        if not (leaf.refs or leaf.children):
            self._queue(leaf)

    def evict(self, most: int = 1) -> None:
        """Free a page, or up to `most` of one node's. There is one: the caller has looked at `evictable`."""
        while True:
            assert self._heap, "nothing left to evict"
            rank, _, node = heapq.heappop(self._heap)
            if node.queued != rank:
                continue  # superseded by a lower entry
            node.queued = None
            if node.moved or node.children or node.refs:
                continue  # queued again when it becomes an unlocked leaf
            if self._rank(node) != rank:
                self._queue(node)
                continue
            parent = node.parent
            assert parent is not None
            if most < len(node.pages):
                self._give_back(node, most)
                del node.pages[-most:]
                tokens = most * self.page_size
                node.key, node.end, node.serial = node.key[:-tokens], node.end - tokens, node.serial - most
                node.shared = node.shared_whole
                self._queue(node)
            else:
                self._remove(node, parent)
                self._settle(parent)
            return

    def clear(self) -> None:
        """Forget all nodes, pins and locks without giving pages back: the pool starts afresh too."""
        for root in self._roots.values():
            root.keys.clear()
            root.children.clear()
            root.pins, root.next_uses = 0, []
        self._heap.clear()
        self._nodes = 0
        self.evictable = 0
        if self.log is not None:
            self.log.cleared()

    def _is_told(self, node: PageNode) -> bool:
        return len(node.key) >= self.page_size and not node.scratch

    def _remove(self, node: PageNode, successor: PageNode) -> None:
        assert not node.refs, "a locked node is removed"
        assert not node.children, "a node with children is removed"
        parent = node.parent
        assert parent is not None
        at = bisect_left(parent.keys, node.key[: self.page_size])
        assert parent.children[at] is node
        del parent.keys[at], parent.children[at]
        self._give_back(node, len(node.pages))
        self._nodes -= 1
        node.moved = successor
        successor.pins += node.pins
        if node.next_uses:
            successor.next_uses = sorted(successor.next_uses + node.next_uses)
        successor.last_use = max(successor.last_use, node.last_use)
        node.pins, node.next_uses = 0, []

    def _give_back(self, node: PageNode, count: int) -> None:
        """The last `count` pages of a leaf are anybody's, the last one first."""
        for page in reversed(node.pages[-count:]):
            self._drop(page)
        self.evictable -= count
        if self.log is not None and self._is_told(node):
            for serial in range(node.serial, node.serial - count, -1):
                self.log.add((serial,))

    def _settle(self, node: PageNode) -> None:
        """Queue a node for eviction that became a free leaf; in a scratch tree it goes at once."""
        while node.scratch and node.parent and not (node.children or node.refs or node.pins or node.moved):
            self._remove(node, node.parent)
            node = node.parent
        if len(node.key) < self.page_size and (longer := self._continued(node)):
            self._remove(node, longer)
            return
        self._queue(node)

    def _continued(self, node: PageNode) -> PageNode | None:
        """The node that holds all that the unlocked leaf `node` does, and more; None if there is none."""
        parent = node.parent
        if parent is None or node.moved or node.refs or node.children:
            return None
        at = bisect_left(parent.keys, node.key) + 1
        if at < len(parent.keys) and parent.keys[at][: len(node.key)] == node.key:
            return self._first_page(parent.children[at])
        return None

    def _queue(self, node: PageNode) -> None:
        if node.parent is None or node.moved or node.children or node.refs:
            return
        rank = self._rank(node)
        if node.queued is None or rank < node.queued:
            node.queued = rank
            self._pushes += 1
            heapq.heappush(self._heap, (rank, self._pushes, node))
            if len(self._heap) > 2 * self._nodes + 16:  # more of them are superseded than valid
                self._heap = [entry for entry in self._heap if _is_valid(entry)]
                heapq.heapify(self._heap)

    def _rank(self, node: PageNode) -> _Rank:
        if not node.pins:
            return (node.worth, 0, node.last_use, node.serial)
        return (_PINNED, -node.next_uses[0] if node.next_uses else -SOME_DAY, node.last_use, node.serial)


def resolve(node: PageNode) -> PageNode:
    """`node`, or after its removal the one that took over."""
    while node.moved is not None:
        if node.moved.moved is not None:
            node.moved = node.moved.moved  # so that the next one finds it sooner
        node = node.moved
    return node


def _end_use(node: PageNode, next_use: int) -> None:
    """A pin on `node` has that next use, which somebody knows, no longer."""
    at = bisect_left(node.next_uses, next_use)
    assert node.next_uses[at : at + 1] == [next_use], "a pin with that next use was never given"
    del node.next_uses[at]


def _revive(node: PageNode) -> None:
    """`node` and all above it is in use (again)."""
    while node.worth == _DEAD:
        node.shared = node.shared_whole = True  # somebody else came for it
        node.worth = _NORMAL
        assert node.parent is not None, "a root is always in use"
        node = node.parent


def _is_valid(entry: tuple[_Rank, int, PageNode]) -> bool:
    rank, _, node = entry
    return node.moved is None and node.queued == rank
