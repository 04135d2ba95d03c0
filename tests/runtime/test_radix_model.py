"""The prefix tree against a flat dictionary of prefixes, under any sequence of calls.

The dictionary has an entry for each page, under (namespace, all ids up to its end). What eviction
takes is found there by looking at every entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sglc.runtime.cache.page_tree import SOME_DAY, Key, PageNode, RadixTree, Worth, resolve
from sglc.runtime.ids import common_prefix
from tests.depth import at_depth

Place = tuple[str, Key]

NAMESPACES = ("", "adapter")
IDS = st.lists(st.integers(0, 1), max_size=8).map(tuple)
NAMES = st.sampled_from(NAMESPACES)
NEXT_USES = st.sampled_from((0, 1, 2, 3, SOME_DAY))
PICK = st.integers(0, 1_000)


@dataclass
class Entry:
    """What is known of a page."""

    node: PageNode
    made: int
    last_use: int
    worth: Worth = Worth.NORMAL
    shared: bool = False
    locks: int = 0  # of this page itself
    pins: list[int] = field(default_factory=list)  # their next uses


class TreeMachine(RuleBasedStateMachine):
    """One tree and its model."""

    @initialize(page_size=st.sampled_from((1, 2, 3)), texts=st.lists(IDS, min_size=3, max_size=6))
    def start(self, page_size: int, texts: list[Key]) -> None:
        self.size = page_size
        self.gone: list[int] = []
        self.tree = RadixTree(page_size, self.gone.append)
        self.tick = 0
        self.pages = 0
        self.most = 0
        self.model = {(name, ()): Entry(self.tree.root_of(name), 0, 0) for name in NAMESPACES}
        self.locked: list[Place] = []
        self.pinned: list[tuple[PageNode, Place, int]] = []  # the node as it was pinned, where it is now
        for ids in texts:
            self.insert("", ids)

    # -- the model

    def above(self, place: Place) -> Place:
        name, ids = place
        return name, ids[: (len(ids) - 1) // self.size * self.size]

    def below(self, place: Place) -> list[Place]:
        """The children of a page, in the order of their ids."""
        return sorted(other for other in self.model if other[1] and self.above(other) == place)

    def is_locked(self, place: Place) -> bool:
        name, ids = place
        return any(name == space and self.covers(held, ids) for space, held in self.locked)

    def covers(self, held: Key, ids: Key) -> bool:
        """Whether a lock on the page that ends `held` holds the one that ends `ids`."""
        return held == ids or (held[: len(ids)] == ids and len(ids) % self.size == 0)

    def revive(self, place: Place) -> None:
        while self.model[place].worth is Worth.DEAD:
            entry = self.model[place]
            entry.shared = True
            entry.worth = Worth.NORMAL
            place = self.above(place)

    def rank(self, place: Place) -> tuple[int, int, int, int]:
        entry = self.model[place]
        if entry.pins:
            return Worth.PINNED, -min(entry.pins), entry.last_use, entry.made
        return entry.worth, 0, entry.last_use, entry.made

    def forget(self, place: Place, successor: Place) -> None:
        entry, heir = self.model.pop(place), self.model[successor]
        heir.pins += entry.pins
        heir.last_use = max(heir.last_use, entry.last_use)
        self.pinned = [(node, successor if at == place else at, next_use) for node, at, next_use in self.pinned]
        assert self.gone.pop() == entry.node.page, "another page is given back"

    def pages_of(self) -> list[Place]:
        return [place for place in self.model if place[1]]

    # -- calls

    @rule(name=NAMES, ids=IDS)
    def insert(self, name: str, ids: Key) -> None:
        self.add((name, ()), ids)

    @rule(pick=PICK, ids=IDS)
    def grow(self, pick: int, ids: Key) -> None:
        """A row that has worked below a page all the time goes on."""
        places = [place for place in self.model if len(place[1]) % self.size == 0]
        self.add(places[pick % len(places)], ids[:3])

    def add(self, place: Place, ids: Key) -> None:
        _, before = place
        for at in range(len(before), len(before) + len(ids), self.size):
            if len(place[1]) % self.size:
                break  # it went into a part of a page
            key = ids[at - len(before) : at - len(before) + self.size]
            node, new = self.tree.insert(self.model[place].node, key, self.pages, 0)
            place = self.added(place, key, node, new)

    def added(self, place: Place, key: Key, node: PageNode, new: bool) -> Place:
        """What the tree did with a page below `place`; gives the page's own place."""
        name, before = place
        siblings = self.below(place)
        same = [other for other in siblings if other[1][len(before) : len(before) + len(key)] == key]
        assert new == (not same), "a page is new that is there, or the other way round"
        if same:
            assert node is self.model[same[0]].node
            self.revive(same[0])
            return same[0]
        self.revive(place)
        self.tick += 1
        self.pages += 1
        shorter = [other for other in siblings if other[1][len(before) :] < key][-1:]
        child = (name, before + key)
        self.model[child] = Entry(node, self.pages, self.tick)
        same_sequence = [child]
        for other in shorter:
            if key[: len(other[1]) - len(before)] == other[1][len(before) :]:
                same_sequence.append(other)
                if not self.is_locked(other):
                    self.forget(other, child)
        self.model[place].shared |= any(other not in same_sequence for other in self.below(place))
        return child

    @precondition(lambda self: self.locked)
    @rule(pick=PICK, ids=IDS)
    def grow_locked(self, pick: int, ids: Key) -> None:
        """A row enters whole pages, and holds the last of them then."""
        at = pick % len(self.locked)
        place = self.locked[at]
        if len(place[1]) % self.size:
            return
        pages = len(ids) // self.size
        numbers = range(self.pages, self.pages + pages)
        last, count = self.tree.insert_pages(self.model[place].node, place[1] + ids, numbers, 0)
        nodes = [last]
        for _ in range(count):
            assert nodes[-1].parent is not None
            nodes.append(nodes[-1].parent)
        assert nodes.pop() is self.model[place].node
        for number in range(count):
            place = self.added(place, ids[number * self.size : (number + 1) * self.size], nodes.pop(), True)
            self.locked[at] = place
        if count < pages:
            key = ids[count * self.size : (count + 1) * self.size]
            there = next(other for other in self.below(place) if other[1][len(place[1]) :][: self.size] == key)
            self.revive(there)

    @rule(name=NAMES, ids=IDS, back=st.integers(0, 2))
    def match(self, name: str, ids: Key, back: int) -> None:
        limit = max(0, len(ids) - back)
        wanted = ids[:limit]
        found = self.tree.match(ids, limit, self.tree.root_of(name))
        best = max(common_prefix(wanted, other) for space, other in self.model if space == name)
        assert found.length == best, "not the longest prefix"
        whole = (name, wanted[: found.node.end])
        assert self.model[whole].node is found.node
        self.tick += 1
        self.model[whole].last_use = self.tick
        if found.source is None:
            self.revive(whole)
            return
        source = next(place for place, entry in self.model.items() if entry.node is found.source)
        assert self.above(source) == whole
        assert source[1][: found.length] == wanted[: found.length]
        self.model[source].last_use = self.tick
        self.revive(source if len(source[1]) == found.length else whole)

    @precondition(lambda self: self.pages_of())
    @rule(pick=PICK)
    def lock(self, pick: int) -> None:
        places = self.pages_of()
        place = places[pick % len(places)]
        self.tree.lock(self.model[place].node)
        self.locked.append(place)

    @precondition(lambda self: self.locked)
    @rule(pick=PICK)
    def unlock(self, pick: int) -> None:
        place = self.locked.pop(pick % len(self.locked))
        self.tree.unlock(self.model[place].node)
        self.tick += 1
        self.model[place].last_use = self.tick
        siblings = self.below(self.above(place))
        longer = [other for other in siblings if other != place and other[1][: len(place[1])] == place[1]]
        if longer and len(place[1]) % self.size and not self.is_locked(place):
            self.forget(place, longer[0])  # which has all of it

    @rule(pick=PICK, next_use=NEXT_USES)
    def pin(self, pick: int, next_use: int) -> None:
        places = list(self.model)
        place = places[pick % len(places)]
        entry = self.model[place]
        self.tree.pin(entry.node, next_use)
        entry.pins.append(next_use)
        self.pinned.append((entry.node, place, next_use))

    @precondition(lambda self: self.pinned)
    @rule(pick=PICK)
    def unpin(self, pick: int) -> None:
        node, place, next_use = self.pinned.pop(pick % len(self.pinned))
        assert resolve(node) is self.model[place].node, "a pin is lost"
        self.tree.unpin(node, next_use)
        self.model[place].pins.remove(next_use)

    @precondition(lambda self: self.pinned)
    @rule(pick=PICK, next_use=NEXT_USES)
    def repin(self, pick: int, next_use: int) -> None:
        node, place, before = self.pinned[pick % len(self.pinned)]
        self.tree.repin(resolve(node), before, next_use)
        self.pinned[pick % len(self.pinned)] = node, place, next_use
        self.model[place].pins.remove(before)
        self.model[place].pins.append(next_use)

    @precondition(lambda self: self.pages_of())
    @rule(pick=PICK)
    def demote(self, pick: int) -> None:
        places = self.pages_of()
        place = places[pick % len(places)]
        self.tree.demote(self.model[place].node)
        while place[1]:
            entry = self.model[place]
            kept = bool(entry.pins) or entry.shared or entry.worth is Worth.DEAD
            if kept or any(self.model[child].worth is not Worth.DEAD for child in self.below(place)):
                break
            entry.worth = Worth.DEAD
            place = self.above(place)

    @precondition(lambda self: self.tree.evictable)
    @rule(count=st.integers(1, 6))
    def evict(self, count: int) -> None:
        for _ in range(min(count, self.tree.evictable)):
            leaves = [place for place in self.pages_of() if not self.below(place) and not self.is_locked(place)]
            victim = min(leaves, key=self.rank)
            self.tree.evict()
            self.forget(victim, self.above(victim))

    # -- what always holds

    @invariant()
    def agree(self) -> None:
        nodes = {}
        for name in NAMESPACES:
            stack: list[tuple[PageNode, Key]] = [(self.tree.root_of(name), ())]
            while stack:
                node, ids = stack.pop()
                nodes[name, ids] = node
                stack += [(child, ids + child.key) for child in node.children]
        assert {place: entry.node for place, entry in self.model.items()} == nodes
        free = 0
        for place, entry in self.model.items():
            node = entry.node
            assert node.end == len(place[1])
            assert node.pins == len(entry.pins)
            assert node.next_uses == sorted(use for use in entry.pins if use != SOME_DAY)
            if not place[1]:
                continue
            assert (node.worth, node.shared, node.last_use) == (entry.worth, entry.shared, entry.last_use)
            assert entry.worth <= self.model[self.above(place)].worth, "worth more than what is above it"
            assert bool(node.refs) == self.is_locked(place)
            free += not node.refs
        assert self.tree.evictable == free
        assert not self.gone
        self.most = max(self.most, len(nodes))
        assert len(self.tree._heap) <= 2 * self.most + 16, "superseded entries pile up"

    def teardown(self) -> None:
        if not hasattr(self, "tree"):
            return
        while self.locked:
            self.unlock(0)
        self.evict(self.tree.evictable)
        assert not self.pages_of(), "pages are left that nothing can free"


TestTree = TreeMachine.TestCase
TestTree.settings = settings(
    max_examples=at_depth(15, 40, 120),
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
