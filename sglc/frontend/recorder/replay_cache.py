"""What runs recorded before: a run that does the same again replays it, and records nothing.

The recordings of one function are a tree. A step is what the function did (which operation, on which
stream, from which line, with which parameters); texts are slots, so they are no part of it. As long as
a run takes steps that are in the tree, no operation is made again, and at a launch the compiled plan is
there. A run that leaves the tree records as if there were none, and what it records joins the tree.

Invariant: a step names everything that the recorded operations depend on, so two runs at the same place
have recorded equal programs, with the same numbers for values, sites and handles.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar

from sglc.errors import Loc
from sglc.frontend.language.expr import GenExpr, SelectExpr
from sglc.frontend.recorder.recorder import OpRecorder
from sglc.frontend.values.recorded import NO_TURNS, Generated, Recorded, RecordedStream, Turns
from sglc.frontend.values.symbolic import SymbolicText
from sglc.ir.core import Op, Program, Site, Type, Value
from sglc.ir.sampling import Sampling

_MOST_NODES = 20_000  # of one tree: programs whose every run differs must not fill the memory
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Launched:
    """What a launch at this place is, whatever the texts. `memo` is for the compiled form."""

    program: Program
    slots: tuple[str, ...]  # names of the slots, in the order in which their texts came
    handles: tuple[str, ...]  # of the streams of this launch, in their order
    release: tuple[str, ...]
    kept: frozenset[str]  # the handles that are held from here on
    memo: dict[Hashable, object]


@dataclass(eq=False, slots=True)
class ReplayNode:
    """A point that runs come to: what the last step added, and the steps that went on from here."""

    before: ReplayNode | None = None
    ops: tuple[Op, ...] = ()
    params: tuple[Op, ...] = ()
    slots: tuple[Value, ...] = ()
    resumed: tuple[tuple[str, Value], ...] = ()
    values: tuple[Value, ...] = ()  # what the step gave
    made: Generated | None = None
    turns: Turns = NO_TURNS
    next_value: int = 0
    next_handle: int = 0
    launched: Launched | None = None
    next: dict[Hashable, ReplayNode] = field(default_factory=dict)


class ReplayCache:
    """The recordings of one function with the same defaults."""

    def __init__(self) -> None:
        self.root = ReplayNode()
        self.nodes = 1
        self.recorded = 0  # launches that were recorded; all others were replayed

    def grow(self, at: ReplayNode, step: Hashable, node: ReplayNode) -> ReplayNode:
        """The node behind `step`: the given one, or that which another thread was quicker to add."""
        self.nodes += 1
        return at.next.setdefault(step, node)


class CachingRecorder(OpRecorder):
    """An `OpRecorder` for runs with real arguments. `cache` is shared by all runs of the function."""

    __slots__ = ("_at", "_cache", "_real")

    def __init__(self, function: str, defaults: Sampling, cache: ReplayCache, ahead: int = 0) -> None:
        super().__init__(function, defaults, symbolic=False, ahead=ahead)
        self._cache = cache
        self._at: ReplayNode | None = cache.root  # None: not in the cache
        self._real = False  # whether `ops`, `params` and the counters are those of this run

    # -- steps -----------------------------------------------------------------------------------

    def new_stream(self, loc: Loc) -> RecordedStream:
        step = ("root", id(loc))
        node = self._known(step)
        if node is None:
            return self._learned(step, lambda: super(CachingRecorder, self).new_stream(loc))
        return self._own(RecordedStream(self.launch, node.values[0]))

    def fork(
        self, stream: RecordedStream, size: int, labels: tuple[str, ...], loc: Loc
    ) -> list[RecordedStream]:
        step = ("fork", self._name(stream), size, labels, id(loc))
        node = self._known(step)
        if node is None:
            return self._learned(step, lambda: super(CachingRecorder, self).fork(stream, size, labels, loc))
        self._resume(stream, node)
        return [self._own(RecordedStream(self.launch, value, stream.turns)) for value in node.values]

    def append(self, stream: RecordedStream, text: str | SymbolicText, loc: Loc) -> None:
        if text == "" if isinstance(text, str) else not text.parts:
            return
        step: Hashable
        if isinstance(text, str):
            step = ("append", self._name(stream), self._slot(text), id(loc))
            node = self._known(step)
        else:
            step, node = ("append", self._name(stream), text.parts, id(loc)), None
            if not any(isinstance(part, str) for part in text.parts):
                node = self._known(step)
            elif self._at is not None:  # literals inside are no slots, so every run may differ
                self._leave()
        if node is None:
            self._learned(step, lambda: super(CachingRecorder, self).append(stream, text, loc))
            return
        if node.slots:
            self._slots[str(text)] = node.slots[0]
        self._resume(stream, node)
        stream.value = node.values[0]

    def role_open(self, stream: RecordedStream, role: str, loc: Loc) -> None:
        step = ("open", self._name(stream), role, id(loc))
        node = self._known(step)
        if node is None:
            self._learned(step, lambda: super(CachingRecorder, self).role_open(stream, role, loc), stream)
            return
        self._resume(stream, node)
        stream.value, stream.turns = node.values[0], node.turns

    def role_close(self, stream: RecordedStream, loc: Loc) -> None:
        step = ("close", self._name(stream), id(loc))
        node = self._known(step)
        if node is None:
            self._learned(step, lambda: super(CachingRecorder, self).role_close(stream, loc), stream)
            return
        self._resume(stream, node)
        stream.value, stream.turns = node.values[0], node.turns

    def gen(self, stream: RecordedStream, path: tuple[int, ...], expr: GenExpr) -> Generated:
        step = ("gen", self._name(stream), path, expr.name, id(expr.loc), *expr.overrides.items())
        node = self._known(step)
        if node is None:
            return self._learned(step, lambda: super(CachingRecorder, self).gen(stream, path, expr))
        return self._generated(stream, path, expr.name or "gen", node)

    def select(self, stream: RecordedStream, path: tuple[int, ...], expr: SelectExpr) -> Generated:
        if not all(isinstance(choice, str) for choice in expr.choices):
            self._leave()
        slots = tuple([self._slot(str(choice)) for choice in expr.choices]) if self._at is not None else ()
        # Equal new texts are one slot, different ones are several.
        new = tuple([expr.choices.index(c) for c in expr.choices]) if -1 in slots else ()
        step = ("select", self._name(stream), path, expr.name, id(expr.loc), slots, new, expr.method)
        node = self._known(step)
        if node is None:
            return self._learned(step, lambda: super(CachingRecorder, self).select(stream, path, expr))
        fresh = [choice for choice in dict.fromkeys(map(str, expr.choices)) if choice not in self._slots]
        self._slots.update(zip(fresh, node.slots, strict=True))
        return self._generated(stream, path, expr.name or "select", node)

    def reserve(self, path: tuple[int, ...], name: str) -> Site:
        step = ("reserve", path, name)
        if self._known(step) is None:
            return self._learned(step, lambda: super(CachingRecorder, self).reserve(path, name))
        return super().reserve(path, name)

    def join(
        self, path: tuple[int, ...], name: str, values: tuple[Generated | Value | None, ...] | None, loc: Loc
    ) -> Value | None:
        items: Hashable = values and tuple(
            [(v.launch, v.value.id) if isinstance(v, Generated) else v and v.id for v in values]
        )
        step = ("join", path, name, items, id(loc))
        node = self._known(step)
        if node is None:
            return self._learned(step, lambda: super(CachingRecorder, self).join(path, name, values, loc))
        self._count(path, name)
        return node.values[0] if node.values else None

    # -- launches --------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether anything was recorded since the last launch."""
        if self._real or self._at is None:
            return bool(self.ops)
        return self._at.before is not None

    def take(self, *, final: bool) -> Recorded:
        self.streams = [stream for stream in self.streams if stream.live]
        mine = [stream for stream in self.streams if stream.launch == self.launch]
        older = tuple([stream.handle for stream in self.streams if stream.launch != self.launch])
        step = ("launch", final, tuple([stream.value.id for stream in mine]), older)
        node = self._known(step)
        if node is None or node.launched is None:
            return self._taken(step, mine, final)
        launched = node.launched
        for stream, handle in zip(mine, launched.handles, strict=True):
            stream.handle = handle
        texts = dict(zip(launched.slots, self._slots, strict=True))
        self._handles = set(launched.kept)
        self.launch += 1
        self._slots, self._resumed = {}, {}
        return Recorded(launched.program, texts, launched.release, final, launched.memo)

    def _taken(self, step: Hashable, mine: list[RecordedStream], final: bool) -> Recorded:
        """`take` of what no run before has done: recorded, and remembered for the next one."""
        at = self._at
        self._leave()
        recorded = super().take(final=final)
        if at is None:
            return recorded
        self._cache.recorded += 1
        node = ReplayNode(
            before=None,
            next_handle=self._next_handle,
            launched=Launched(
                recorded.program,
                tuple(recorded.texts),
                tuple([stream.handle for stream in mine]),
                recorded.release,
                frozenset(self._handles),
                recorded.memo,
            ),
        )
        if self._cache.nodes < _MOST_NODES:
            self._at, self._real = self._cache.grow(at, step, node), True
        return recorded

    # -- inside ----------------------------------------------------------------------------------

    def _known(self, step: Hashable) -> ReplayNode | None:
        """The node behind `step`, and the run is there now; None if it has to be recorded."""
        if self._real or self._at is None:
            return None
        node = self._at.next.get(step)
        if node is not None:
            self._at = node
        return node

    def _learned(self, step: Hashable, record: Callable[[], _T], stream: RecordedStream | None = None) -> _T:
        """Record, and remember the step if the run is in the cache so far."""
        at = self._at
        self._leave()
        marks = len(self.ops), len(self.params), len(self._slots), len(self._resumed)
        made = record()
        if at is None or self._cache.nodes >= _MOST_NODES:
            return made
        ops = tuple(self.ops[marks[0] :])
        node = ReplayNode(
            before=at,
            ops=ops,
            params=tuple(self.params[marks[1] :]),
            slots=tuple(list(self._slots.values())[marks[2] :]),
            resumed=tuple(list(self._resumed.items())[marks[3] :]),
            values=_given(ops),
            made=made if isinstance(made, Generated) else None,
            turns=NO_TURNS if stream is None else stream.turns,
            next_value=self._next_value,
            next_handle=self._next_handle,
        )
        self._at, self._real = self._cache.grow(at, step, node), True
        return made

    def _leave(self) -> None:
        """Go on as an ordinary recorder: have what was replayed since the last launch recorded."""
        at, self._at = self._at, None
        if at is None or self._real:
            self._real = False
            return
        steps: list[ReplayNode] = []
        node: ReplayNode | None = at
        while node is not None and node.launched is None:
            steps.append(node)
            node = node.before
        self.ops = [op for step in reversed(steps) for op in step.ops]
        self.params = [op for step in reversed(steps) for op in step.params]
        self._next_value, self._next_handle = at.next_value, at.next_handle

    def _value(self, result: Type) -> Value:
        # Everything that gets recorded begins here, what this class does not know of too.
        if self._at is not None:
            self._leave()
        return super()._value(result)

    def _name(self, stream: RecordedStream) -> int | str:
        return stream.value.id if stream.launch == self.launch else stream.handle

    def _slot(self, text: str) -> int:
        value = self._slots.get(text)
        return -1 if value is None else value.id

    def _resume(self, stream: RecordedStream, node: ReplayNode) -> None:
        """A stream of an earlier launch goes on in this one."""
        if stream.launch != self.launch:
            self._resumed.update(node.resumed)
            stream.value, stream.launch = self._resumed[stream.handle], self.launch

    def _generated(
        self, stream: RecordedStream, path: tuple[int, ...], name: str, node: ReplayNode
    ) -> Generated:
        assert node.made is not None
        self._resume(stream, node)
        self._count(path, name)
        stream.value = node.values[0]
        return node.made

    def _count(self, path: tuple[int, ...], name: str) -> None:
        self._occurrences[path, name] = self._occurrences.get((path, name), 0) + 1


def _given(ops: tuple[Op, ...]) -> tuple[Value, ...]:
    """The results of the last op of a step: `append` may have a `format` before it."""
    return ops[-1].results if ops else ()
