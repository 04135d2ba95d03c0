"""What an eviction policy could have done at best: the pages that a run asked for, and the farthest next use.

A trace has every row from its admission to its end, with the pages that it takes. `replay` runs it again on a
prefix tree whose victims are chosen by somebody who knows the trace: of the leaves that no row uses, the one
that is asked for again the latest (Belady's rule, for leaves only, as a prefix tree has it).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from sglc.runtime.cache.page_tree import PageNode, PrefixMatch
from sglc.runtime.engine.engine import Engine
from sglc.runtime.scheduler.batch_state import BatchState
from sglc.runtime.scheduler.kv_allocator import KVAllocator
from sglc.runtime.scheduler.requests import PartKind, RequestPart
from sglc.runtime.step import I32

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Open:
    """A row begins with `ids`, of which `limit` may be cached; the run itself had `known` of them."""

    row: int
    ids: tuple[int, ...]
    limit: int
    known: int


@dataclass(frozen=True, slots=True)
class Grow:
    """The row has so many pages now."""

    row: int
    pages: int


@dataclass(frozen=True, slots=True)
class End:
    """The row ends, and the KV of `ids` may stay."""

    row: int
    ids: tuple[int, ...]


@dataclass(slots=True)
class Trace:
    """What an engine did, in order."""

    page_size: int
    pages: int
    events: list[Open | Grow | End] = field(default_factory=list)

    @property
    def computed(self) -> int:
        """Tokens of prompts that were passed through."""
        return sum(len(event.ids) - event.known for event in self.events if isinstance(event, Open))


def recorded(engine: Engine) -> Trace:
    """The trace of an engine, written from now on."""
    allocator = engine.allocator
    trace = Trace(allocator.page_size, allocator.pool.free)
    numbers: dict[int, int] = {}

    class Watched(KVAllocator):
        def open(self, part: RequestPart, match: PrefixMatch, left: int) -> tuple[int, int, int] | None:
            assert part.kind is PartKind.SAMPLE, "only generations are traced"
            opened = super().open(part, match, left)
            if opened is not None:
                row, known, _ = opened
                numbers[row] = len(trace.events)
                trace.events.append(Open(numbers[row], part.ids, part.limit, known))
            return opened

        def retire(self, row: int, keep: int) -> PageNode:
            ids = tuple(self.rows.tokens[row, :keep].tolist())
            trace.events.append(End(numbers.pop(row), ids))
            return super().retire(row, keep)

    class WatchedRows(BatchState):
        __slots__ = ()

        def add_pages(self, rows: I32, counts: I32, pages: I32) -> None:
            super().add_pages(rows, counts, pages)
            for row in numbers.keys() & rows.tolist():  # a row that begins is not among them yet
                trace.events.append(Grow(numbers[row], int(self.held[row])))

    allocator.__class__ = Watched
    allocator.rows.__class__ = WatchedRows
    return trace


@dataclass(eq=False, slots=True)
class _Page:
    parent: _Page | None
    key: tuple[int, ...]
    children: dict[tuple[int, ...], _Page] = field(default_factory=dict)
    uses: list[int] = field(default_factory=list)  # when rows ask for it
    there: bool = False
    locks: int = 0
    held: int = 0  # children that are there


@dataclass(slots=True)
class _Row:
    used: list[_Page]  # of the whole pages of its prompt, those that it has
    prompt: list[_Page]
    more: int = 0  # pages that it has besides


class _Replay:
    """All pages that a trace names, and which of them are there."""

    def __init__(self, trace: Trace, pages: int) -> None:
        self.trace = trace
        self.size = trace.page_size
        self.room = pages
        self.root = _Page(None, (), there=True)
        self.leaves: dict[_Page, None] = {}  # that are there and that nobody uses
        self.rows: dict[int, _Row] = {}
        self.computed = 0
        self.now = 0

    def path(self, ids: tuple[int, ...]) -> list[_Page]:
        """The pages of `ids`, the last one perhaps in part."""
        node, found = self.root, []
        for at in range(0, len(ids), self.size):
            key = ids[at : at + self.size]
            node = node.children.setdefault(key, _Page(node, key))
            found.append(node)
        return found

    def prepare(self) -> None:
        """Note when each page is asked for."""
        for event in self.trace.events:
            if isinstance(event, End):
                self.path(event.ids)
        for now, event in enumerate(self.trace.events):
            if isinstance(event, Open):
                node = self.root
                for at in range(0, event.limit, self.size):
                    key = event.ids[at : min(at + self.size, event.limit)]
                    for part in node.children.values():
                        if part.key != key and _common(part.key, key) in (len(part.key), len(key)):
                            part.uses.append(now)  # of one of the two there is more
                    if (child := node.children.get(key)) is None:
                        break
                    child.uses.append(now)
                    node = child

    def run(self) -> int:
        """Tokens of prompts that are passed through."""
        self.prepare()
        for now, event in enumerate(self.trace.events):
            self.now = now
            match event:
                case Open():
                    self.open(event)
                case Grow():
                    self.grow(self.rows[event.row], event.pages)
                case End():
                    self.end(event)
        return self.computed

    def open(self, event: Open) -> None:
        node, known, used = self.root, 0, []
        whole = event.limit // self.size * self.size
        for at in range(0, whole, self.size):
            child = node.children.get(event.ids[at : at + self.size])
            if child is None or not child.there:
                break
            node, known = child, at + self.size
            used.append(child)
        rest = event.ids[known : event.limit]
        known += max((_common(rest, part.key) for part in node.children.values() if part.there), default=0)
        self.computed += len(event.ids) - known
        for page in used:
            self.lock(page)
        whole = len(event.ids) // self.size * self.size
        self.rows[event.row] = _Row(used, self.path(event.ids[:whole]))

    def grow(self, row: _Row, pages: int) -> None:
        for page in row.prompt[len(row.used) : pages]:
            self.lock(page)
            row.used.append(page)
            if not page.there:
                self.take(1)
                self.enter(page)
        new = pages - len(row.used) - row.more
        if new > 0:
            row.more += new
            self.take(new)

    def end(self, event: End) -> None:
        row = self.rows.pop(event.row)
        self.room += row.more
        for page in self.path(event.ids):
            if not page.there:
                self.take(1)
                self.enter(page)
        for page in row.used:
            page.locks -= 1
            self.settle(page)

    def lock(self, page: _Page) -> None:
        page.locks += 1
        self.leaves.pop(page, None)

    def enter(self, page: _Page) -> None:
        assert page.parent is not None
        page.there = True
        page.parent.held += 1
        self.leaves.pop(page.parent, None)
        self.settle(page)

    def settle(self, page: _Page) -> None:
        if page.parent is not None and page.there and not page.locks and not page.held:
            self.leaves[page] = None

    def take(self, pages: int) -> None:
        self.room -= pages
        while self.room < 0:
            assert self.leaves, "the trace needs more pages than there are"
            victim = max(self.leaves, key=self.next_use)
            del self.leaves[victim]
            assert victim.parent is not None
            victim.there = False
            victim.parent.held -= 1
            self.settle(victim.parent)
            self.room += 1

    def next_use(self, page: _Page) -> int:
        at = bisect_right(page.uses, self.now)
        return page.uses[at] if at < len(page.uses) else NEVER


def replay(trace: Trace, pages: int | None = None) -> int:
    """Tokens of prompts that a trace passes through at least, with so many pages (None: as many as it had)."""
    return _Replay(trace, trace.pages if pages is None else pages).run()


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
