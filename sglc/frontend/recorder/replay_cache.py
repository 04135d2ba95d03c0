"""Recordings that were made before: a run that does the same again only follows their trail.

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
from sglc.frontend.recorder.recorder import Recorder
from sglc.frontend.values.recorded import NO_TURNS, Generated, Recorded, Stream, Turns
from sglc.frontend.values.symbolic import SymbolicText
from sglc.ir.core import Op, Program, Site, Type, Value
from sglc.ir.sampling import Sampling

_MOST_PLACES = 20_000  # of one tree: programs whose every run differs must not fill the memory
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
class Place:
    """A point that recordings come to: what the last step added, and the steps that went on from here."""

    before: Place | None = None
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
    next: dict[Hashable, Place] = field(default_factory=dict)


class Tree:
    """The recordings of one function with the same defaults."""

    def __init__(self) -> None:
        self.root = Place()
        self.places = 1
        self.recorded = 0  # launches that were recorded; all others were on the trail

    def grow(self, at: Place, step: Hashable, place: Place) -> Place:
        """The place behind `step`: the given one, or that which another thread was quicker to add."""
        self.places += 1
        return at.next.setdefault(step, place)


class TrailRecorder(Recorder):
    """A `Recorder` for runs with real arguments. `tree` is shared by all runs of the function."""

    __slots__ = ("_at", "_real", "_tree")

    def __init__(self, function: str, defaults: Sampling, tree: Tree, ahead: int = 0) -> None:
        super().__init__(function, defaults, symbolic=False, ahead=ahead)
        self._tree = tree
        self._at: Place | None = tree.root  # None: off the trail
        self._real = False  # whether `ops`, `params` and the counters are those of this run

    # -- steps -----------------------------------------------------------------------------------

    def new_stream(self, loc: Loc) -> Stream:
        step = ("root", id(loc))
        place = self._known(step)
        if place is None:
            return self._learned(step, lambda: super(TrailRecorder, self).new_stream(loc))
        return self._own(Stream(self.launch, place.values[0]))

    def fork(self, stream: Stream, size: int, labels: tuple[str, ...], loc: Loc) -> list[Stream]:
        step = ("fork", self._name(stream), size, labels, id(loc))
        place = self._known(step)
        if place is None:
            return self._learned(step, lambda: super(TrailRecorder, self).fork(stream, size, labels, loc))
        self._resume(stream, place)
        return [self._own(Stream(self.launch, value, stream.turns)) for value in place.values]

    def append(self, stream: Stream, text: str | SymbolicText, loc: Loc) -> None:
        if text == "" if isinstance(text, str) else not text.parts:
            return
        step: Hashable
        if isinstance(text, str):
            step = ("append", self._name(stream), self._slot(text), id(loc))
            place = self._known(step)
        else:
            step, place = ("append", self._name(stream), text.parts, id(loc)), None
            if not any(isinstance(part, str) for part in text.parts):
                place = self._known(step)
            elif self._at is not None:  # literals inside are no slots, so every run may differ
                self._leave()
        if place is None:
            self._learned(step, lambda: super(TrailRecorder, self).append(stream, text, loc))
            return
        if place.slots:
            self._slots[str(text)] = place.slots[0]
        self._resume(stream, place)
        stream.value = place.values[0]

    def role_open(self, stream: Stream, role: str, loc: Loc) -> None:
        step = ("open", self._name(stream), role, id(loc))
        place = self._known(step)
        if place is None:
            self._learned(step, lambda: super(TrailRecorder, self).role_open(stream, role, loc), stream)
            return
        self._resume(stream, place)
        stream.value, stream.turns = place.values[0], place.turns

    def role_close(self, stream: Stream, loc: Loc) -> None:
        step = ("close", self._name(stream), id(loc))
        place = self._known(step)
        if place is None:
            self._learned(step, lambda: super(TrailRecorder, self).role_close(stream, loc), stream)
            return
        self._resume(stream, place)
        stream.value, stream.turns = place.values[0], place.turns

    def gen(self, stream: Stream, path: tuple[int, ...], expr: GenExpr) -> Generated:
        step = ("gen", self._name(stream), path, expr.name, id(expr.loc), *expr.overrides.items())
        place = self._known(step)
        if place is None:
            return self._learned(step, lambda: super(TrailRecorder, self).gen(stream, path, expr))
        return self._generated(stream, path, expr.name or "gen", place)

    def select(self, stream: Stream, path: tuple[int, ...], expr: SelectExpr) -> Generated:
        if not all(isinstance(choice, str) for choice in expr.choices):
            self._leave()
        slots = tuple([self._slot(str(choice)) for choice in expr.choices]) if self._at is not None else ()
        # Equal new texts are one slot, different ones are several.
        new = tuple([expr.choices.index(c) for c in expr.choices]) if -1 in slots else ()
        step = ("select", self._name(stream), path, expr.name, id(expr.loc), slots, new, expr.method)
        place = self._known(step)
        if place is None:
            return self._learned(step, lambda: super(TrailRecorder, self).select(stream, path, expr))
        fresh = [choice for choice in dict.fromkeys(map(str, expr.choices)) if choice not in self._slots]
        self._slots.update(zip(fresh, place.slots, strict=True))
        return self._generated(stream, path, expr.name or "select", place)

    def reserve(self, path: tuple[int, ...], name: str) -> Site:
        self._leave()  # it is no step, and steps do not say how often a name occurred
        return super().reserve(path, name)

    def join(
        self, path: tuple[int, ...], name: str, values: tuple[Generated | Value | None, ...] | None, loc: Loc
    ) -> Value | None:
        items: Hashable = values and tuple(
            [(v.launch, v.value.id) if isinstance(v, Generated) else v and v.id for v in values]
        )
        step = ("join", path, name, items, id(loc))
        place = self._known(step)
        if place is None:
            return self._learned(step, lambda: super(TrailRecorder, self).join(path, name, values, loc))
        self._count(path, name)
        return place.values[0] if place.values else None

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
        place = self._known(step)
        if place is None or place.launched is None:
            return self._taken(step, mine, final)
        launched = place.launched
        for stream, handle in zip(mine, launched.handles, strict=True):
            stream.handle = handle
        texts = dict(zip(launched.slots, self._slots, strict=True))
        self._handles = set(launched.kept)
        self.launch += 1
        self._slots, self._resumed = {}, {}
        return Recorded(launched.program, texts, launched.release, final, launched.memo)

    def _taken(self, step: Hashable, mine: list[Stream], final: bool) -> Recorded:
        """`take` of what no run before has done: recorded, and remembered for the next one."""
        at = self._at
        self._leave()
        recorded = super().take(final=final)
        if at is None:
            return recorded
        self._tree.recorded += 1
        place = Place(
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
        if self._tree.places < _MOST_PLACES:
            self._at, self._real = self._tree.grow(at, step, place), True
        return recorded

    # -- inside ----------------------------------------------------------------------------------

    def _known(self, step: Hashable) -> Place | None:
        """The place behind `step`, and the recording is there now; None if it has to be recorded."""
        if self._real or self._at is None:
            return None
        place = self._at.next.get(step)
        if place is not None:
            self._at = place
        return place

    def _learned(self, step: Hashable, record: Callable[[], _T], stream: Stream | None = None) -> _T:
        """Record, and remember the step if the recording is on the trail."""
        at = self._at
        self._leave()
        marks = len(self.ops), len(self.params), len(self._slots), len(self._resumed)
        made = record()
        if at is None or self._tree.places >= _MOST_PLACES:
            return made
        ops = tuple(self.ops[marks[0] :])
        place = Place(
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
        self._at, self._real = self._tree.grow(at, step, place), True
        return made

    def _leave(self) -> None:
        """Go on as an ordinary recorder: have what was recorded on the trail since the last launch."""
        at, self._at = self._at, None
        if at is None or self._real:
            self._real = False
            return
        steps: list[Place] = []
        place: Place | None = at
        while place is not None and place.launched is None:
            steps.append(place)
            place = place.before
        self.ops = [op for step in reversed(steps) for op in step.ops]
        self.params = [op for step in reversed(steps) for op in step.params]
        self._next_value, self._next_handle = at.next_value, at.next_handle

    def _value(self, result: Type) -> Value:
        # Everything that gets recorded begins here, what this class does not know of too.
        if self._at is not None:
            self._leave()
        return super()._value(result)

    def _name(self, stream: Stream) -> int | str:
        return stream.value.id if stream.launch == self.launch else stream.handle

    def _slot(self, text: str) -> int:
        value = self._slots.get(text)
        return -1 if value is None else value.id

    def _resume(self, stream: Stream, place: Place) -> None:
        """A stream of an earlier launch goes on in this one."""
        if stream.launch != self.launch:
            self._resumed.update(place.resumed)
            stream.value, stream.launch = self._resumed[stream.handle], self.launch

    def _generated(self, stream: Stream, path: tuple[int, ...], name: str, place: Place) -> Generated:
        assert place.made is not None
        self._resume(stream, place)
        self._count(path, name)
        stream.value = place.values[0]
        return place.made

    def _count(self, path: tuple[int, ...], name: str) -> None:
        self._occurrences[path, name] = self._occurrences.get((path, name), 0) + 1


def _given(ops: tuple[Op, ...]) -> tuple[Value, ...]:
    """The results of the last op of a step: `append` may have a `format` before it."""
    return ops[-1].results if ops else ()
