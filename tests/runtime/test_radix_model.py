"""The prefix tree against a flat dictionary of prefixes, under any sequence of calls.

The dictionary has an entry for each page, under (namespace, all ids up to its end). What eviction
takes is found there by looking at every entry. The tree keeps pages of one sequence in one node until somebody
parts them: locks, pins and marks are given at ends of nodes only, as they are by whoever has a node.
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

    page: int
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
        self.roots = [self.tree.root_of(name) for name in NAMESPACES]  # which live as long as these
        self.model = {(name, ()): Entry(-1, 0, 0) for name in NAMESPACES}
        self.locked: list[Place] = []
        self.pinned: list[tuple[PageNode, Place, int]] = []  # the node as it was pinned, where it is now
        for ids in texts:
            self.insert("", ids)

    # -- the model

    def node(self, place: Place) -> PageNode:
        """The node whose last page ends at a place, without a look through the tree's own eyes."""
        found = self.ends().get(place)
        assert found is not None, "no node ends there"
        return found

    def ends(self) -> dict[Place, PageNode]:
        """Where nodes end."""
        found: dict[Place, PageNode] = {}
        for name in NAMESPACES:
            stack: list[tuple[PageNode, Key]] = [(self.tree.root_of(name), ())]
            while stack:
                node, ids = stack.pop()
                found[name, ids] = node
                stack += [(child, ids + child.key) for child in node.children]
        return found

    def a_place(self, pick: int, *, pages: bool = True, whole: bool = False) -> Place:
        """Where a node ends: of `pages`, no root; `whole`: pages may follow."""
        places = [place for place in self.model if place in self.ends()]
        places = [place for place in places if place[1] or not pages]
        places = [place for place in places if not whole or len(place[1]) % self.size == 0]
        return places[pick % len(places)]

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
        assert self.gone.pop(0) == entry.page, "another page is given back"

    def pages_of(self) -> list[Place]:
        return [place for place in self.model if place[1]]

    # -- calls

    @rule(name=NAMES, ids=IDS)
    def insert(self, name: str, ids: Key) -> None:
        self.add((name, ()), ids)

    @rule(pick=PICK, ids=IDS)
    def grow(self, pick: int, ids: Key) -> None:
        """A row that has worked below a page all the time goes on."""
        self.add(self.a_place(pick, pages=False, whole=True), ids[:3])

    def add(self, place: Place, ids: Key) -> None:
        _, before = place
        for at in range(len(before), len(before) + len(ids), self.size):
            if len(place[1]) % self.size:
                break  # it went into a part of a page
            key = ids[at - len(before) : at - len(before) + self.size]
            node, new = self.tree.insert(self.node(place), key, self.pages, 0)
            place = self.added(place, key, new)
            assert self.node(place) is node

    def added(self, place: Place, key: Key, new: bool) -> Place:
        """What the tree did with a page below `place`; gives the page's own place."""
        name, before = place
        siblings = self.below(place)
        same = [other for other in siblings if other[1][len(before) : len(before) + len(key)] == key]
        assert new == (not same), "a page is new that is there, or the other way round"
        if same:
            self.revive(same[0])
            return same[0]
        self.revive(place)
        self.tick += 1
        page, self.pages = self.pages, self.pages + 1
        shorter = [other for other in siblings if other[1][len(before) :] < key][-1:]
        child = (name, before + key)
        self.model[child] = Entry(page, self.pages, self.tick)
        same_sequence = [child]
        for other in shorter:
            if key[: len(other[1]) - len(before)] == other[1][len(before) :]:
                same_sequence.append(other)
                if not self.is_locked(other):
                    self.forget(other, child)
        self.model[place].shared |= any(other not in same_sequence for other in self.below(place))
        return child

    @rule(pick=PICK, ids=IDS)
    def grow_locked(self, pick: int, ids: Key) -> None:
        """A row enters whole pages, and holds the last of them then."""
        places = [place for place in self.locked if len(place[1]) % self.size == 0]
        places += [(name, ()) for name in NAMESPACES]
        place = places[pick % len(places)]
        pages = len(ids) // self.size
        numbers = range(self.pages, self.pages + pages)
        parent = self.node(place)
        last, count = self.tree.insert_pages(parent, ids, numbers, 0)
        before, alone = place, False
        for number in range(count):
            key = ids[number * self.size : (number + 1) * self.size]
            self.tick -= alone  # pages of one node come at one time
            alone = alone or not self.below(place)
            place = self.added(place, key, True)
        assert self.node(place) is last
        if count:
            if before[1]:
                self.locked.remove(before)
            self.locked.append(place)
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
        assert self.node(whole) is found.node
        self.tick += 1
        self.model[whole].last_use = self.tick
        if found.source is None:
            self.revive(whole)
            return
        source = next(place for place, node in self.ends().items() if node is found.source)
        assert self.above(source) == whole
        assert source[1][: found.length] == wanted[: found.length]
        self.model[source].last_use = self.tick
        self.revive(source if len(source[1]) == found.length else whole)

    @precondition(lambda self: self.pages_of())
    @rule(pick=PICK, tokens=st.integers(0, 8))
    def until(self, pick: int, tokens: int) -> None:
        """Somebody goes a way with a node, and no further."""
        name, ids = self.a_place(pick)
        if tokens < len(ids):
            ids = ids[: tokens // self.size * self.size]
        assert self.tree.until(self.node(self.a_place(pick)), tokens) is self.node((name, ids))

    @precondition(lambda self: self.pages_of())
    @rule(pick=PICK, tokens=st.integers(1, 8))
    def through(self, pick: int, tokens: int) -> None:
        """Somebody goes a way with a node, and into the page behind that."""
        name, ids = place = self.a_place(pick)
        tokens = min(tokens, len(ids))
        page = min(-(-tokens // self.size) * self.size, len(ids))
        assert self.tree.through(self.node(place), tokens) is self.node((name, ids[:page]))
        self.tick += 1
        self.model[name, ids[:page]].last_use = self.tick
        self.revive((name, ids[:page]))

    @precondition(lambda self: self.pages_of())
    @rule(pick=PICK)
    def lock(self, pick: int) -> None:
        place = self.a_place(pick)
        self.tree.lock(self.node(place))
        self.locked.append(place)

    @precondition(lambda self: self.locked)
    @rule(pick=PICK)
    def unlock(self, pick: int) -> None:
        place = self.locked.pop(pick % len(self.locked))
        self.tree.unlock(self.node(place))
        self.tick += 1
        self.model[place].last_use = self.tick
        siblings = self.below(self.above(place))
        longer = [other for other in siblings if other != place and other[1][: len(place[1])] == place[1]]
        if longer and len(place[1]) % self.size and not self.is_locked(place):
            self.forget(place, longer[0])  # which has all of it

    @rule(pick=PICK, next_use=NEXT_USES)
    def pin(self, pick: int, next_use: int) -> None:
        place = self.a_place(pick, pages=False)
        node = self.node(place)
        self.tree.pin(node, next_use)
        self.model[place].pins.append(next_use)
        self.pinned.append((node, place, next_use))

    @precondition(lambda self: self.pinned)
    @rule(pick=PICK)
    def unpin(self, pick: int) -> None:
        node, place, next_use = self.pinned.pop(pick % len(self.pinned))
        assert resolve(node) is self.node(place), "a pin is lost"
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
        place = self.a_place(pick)
        self.tree.demote(self.node(place))
        while place[1]:
            entry = self.model[place]
            kept = bool(entry.pins) or entry.shared or entry.worth is Worth.DEAD
            if kept or any(self.model[child].worth is not Worth.DEAD for child in self.below(place)):
                break
            entry.worth = Worth.DEAD
            place = self.above(place)

    @precondition(lambda self: self.tree.evictable)
    @rule(most=st.integers(1, 6))
    def evict(self, most: int) -> None:
        """Pages that go together are those that would go one by one."""
        before = self.tree.evictable
        self.tree.evict(most)
        freed = before - self.tree.evictable
        assert 1 <= freed <= most
        for _ in range(freed):
            leaves = [place for place in self.pages_of() if not self.below(place) and not self.is_locked(place)]
            victim = min(leaves, key=self.rank)
            self.forget(victim, self.above(victim))

    # -- what always holds

    @invariant()
    def agree(self) -> None:
        ends, pages = self.ends(), 0
        for end, node in ends.items():
            if not end[1]:
                assert node.pins == len(self.model[end].pins)
                continue
            pages += len(node.pages)
            above = self.above(end)
            name, ids = end
            begin = len(ids) - len(node.key)
            assert node.end == len(ids)
            assert begin % self.size == 0
            assert node.pins == len(self.model[end].pins)
            assert node.next_uses == sorted(use for use in self.model[end].pins if use != SOME_DAY)
            if not node.children:
                assert node.last_use == self.model[end].last_use
            for number, page in enumerate(node.pages):
                at = min(begin + (number + 1) * self.size, len(ids))
                entry = self.model[name, ids[:at]]
                assert entry.page == page
                shared = node.shared if at == len(ids) else node.shared_whole
                assert (node.worth, shared) == (entry.worth, entry.shared)
                assert bool(node.refs) == self.is_locked((name, ids[:at]))
                assert at == len(ids) or not entry.pins, "a pin in a node"
            assert self.model[end].worth <= self.model[above].worth, "worth more than what is above it"
        assert pages == len(self.pages_of()), "pages that the tree has not"
        free = sum(not self.is_locked(place) for place in self.pages_of())
        assert self.tree.evictable == free
        assert not self.gone
        self.most = max(self.most, len(ends))
        assert len(self.tree._heap) <= 2 * self.most + 16, "superseded entries pile up"

    def teardown(self) -> None:
        if not hasattr(self, "tree"):
            return
        while self.locked:
            self.unlock(0)
        while self.tree.evictable:
            self.evict(3)
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
