"""From a stream back to what it is made of, part by part, through branches and loops.

Where a branch or a loop makes a stream, the op is given one more result: what its blocks add to the
stream, as one value. So what a prompt says is known from texts alone, and no stream is kept for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from sglc.errors import LegalizeError
from sglc.ir.core import Op, Program, Region, Tree, Type, Value, regions, with_regions
from sglc.ir.made_often import replaced
from sglc.ir.ops import Cond, Format, Loop, Pack, Root, Switch, arms_of, hands_over
from sglc.ir.remark import place

Parts = tuple[Tree, ...]


@dataclass(slots=True)
class _More:
    """What an op with blocks is to give besides: of each block, and for a loop what its value is inside."""

    result: Value
    blocks: list[Parts]
    inside: Value | None = None


@dataclass(slots=True)
class StreamParts:
    """The parts of a program's streams.

    Args:
        part_of: what an op adds to its stream.
        kind: of the values that blocks give: a text, or JSON, which is a list of parts and of such lists.
        ids: for further values.
    """

    program: Program
    part_of: Callable[[Op], Parts]
    kind: Type
    ids: Iterator[int]
    _makers: dict[Value, Op] = field(default_factory=dict)
    _homes: dict[Value, int] = field(default_factory=dict)  # the block that an op stands in, by what it gives
    _loops: dict[Value, tuple[Loop, int]] = field(default_factory=dict)  # by the parameter of their bodies
    _more: dict[Value, list[_More]] = field(default_factory=dict)  # by the first result of the op
    _known: dict[Value, tuple[Value | None, _More]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._enter((*self.program.params, *self.program.ops), count())

    def _enter(self, ops: Sequence[Op], blocks: Iterator[int]) -> None:
        block = next(blocks)
        for op in ops:
            self._makers.update(dict.fromkeys(op.results, op))
            self._homes.update(dict.fromkeys(op.results, block))
            if isinstance(op, Loop):
                self._loops.update((param, (op, i)) for i, param in enumerate(op.body.params))
            if op.region_fields:
                for region in regions(op):
                    self._enter(region.ops, blocks)

    def of(self, stream: Value, since: Value | None = None) -> Parts:
        """What stands in `stream`, behind `since` if that is given.

        Raises:
            LegalizeError: SGLC330, it goes on from a stream that the program was given, or a called one gave.
        """
        parts: Parts = ()
        at: Value | None = stream
        while at is not None and at != since:
            if at in self._loops:
                loop, number = self._loops[at]
                at = loop.init[number]
                parts = (self._carried(loop, number).inside, *parts)
            else:
                at, more = self._back(at, self._homes[at], since)
                parts = (*more, *parts)
        return parts

    def before(self, stream: Value) -> Iterator[Value]:
        """The stream, and those of its block that it goes on from; last the one from outside, if it does."""
        at: Value | None = stream
        while at is not None:
            yield at
            if self._homes.get(at) != self._homes.get(stream) or at in self._loops:
                return
            at, _ = self._step(at)

    @property
    def widens(self) -> bool:
        """Whether ops are given further results, for what was asked."""
        return bool(self._more)

    def rebuilt(self, change: Callable[[Op], Op]) -> tuple[Op, ...]:
        """The ops of the program, each as `change` makes it, and with the results that were asked for."""
        return self._block(self.program.ops, change)

    def value(self) -> Value:
        """A value that nothing uses."""
        return Value(next(self.ids), self.kind)

    def made(self, parts: Parts, op: Op) -> Op:
        """The op that makes one value of parts, for `op`."""
        loc = op.loc
        if self.kind is Type.TEXT:
            texts = tuple(part for part in parts if isinstance(part, Value | str))
            return Format(texts, results=(self.value(),), loc=loc)
        return Pack(parts, results=(self.value(),), loc=loc)

    # -- inside --------------------------------------------------------------------------------------

    def _back(self, stream: Value, block: int, since: Value | None = None) -> tuple[Value | None, Parts]:
        """The stream from outside the block that `stream` goes on from (None: the empty one), and the rest."""
        found: list[Parts] = []
        at: Value | None = stream
        while at is not None and at != since and self._homes.get(at) == block:
            at, parts = self._step(at)
            found.append(parts)
        return at, tuple(part for parts in reversed(found) for part in parts)

    def _step(self, stream: Value) -> tuple[Value | None, Parts]:
        """The stream that the op which makes this one goes on from (None: the empty one), and what it adds."""
        op = self._makers[stream]
        match op:
            case Root():
                return None, ()
            case Cond() | Switch():
                at, more = self._branch(op, op.results.index(stream))
                return at, (more.result,)
            case Loop():
                number = op.results.index(stream)
                return op.init[number], (self._carried(op, number).result,)
            case _ if hasattr(op, "stream"):
                return op.stream, self.part_of(op)
            case _:
                raise LegalizeError(
                    "SGLC330", f"the text behind a stream of `{op.mnemonic}` is not known", place(op.loc)
                )

    def _branch(self, op: Cond | Switch, number: int) -> tuple[Value | None, _More]:
        """What all arms go on from, and what they add."""
        stream = op.results[number]
        if stream not in self._known:
            back = [arm for arm in arms_of(op) if not hands_over(arm)]
            ends = [arm.results[number] for arm in back]
            found = [self._back(end, self._inside(arm)) for end, arm in zip(ends, back, strict=True)]
            bases = {base for base, _ in found}
            base = next(iter(bases)) if len(bases) == 1 else None
            blocks = [parts for _, parts in found] if len(bases) == 1 else [self.of(end) for end in ends]
            more = _More(self.value(), blocks)
            self._more.setdefault(op.results[0], []).append(more)
            self._known[stream] = base, more
        return self._known[stream]

    def _carried(self, op: Loop, number: int) -> _More:
        """What the iterations add."""
        stream = op.results[number]
        if stream not in self._known:
            inside = self.value()
            more = _More(self.value(), [], inside)
            self._more.setdefault(op.results[0], []).append(more)
            self._known[stream] = op.init[number], more
            base, parts = self._back(op.body.results[number + 1], self._inside(op.body))
            if base != op.body.params[number]:
                raise LegalizeError(
                    "SGLC330", "the text behind a stream that a loop does not go on with is not known",
                    place(op.loc),
                )  # fmt: skip
            more.blocks.append((inside, *parts))
        return self._known[stream][1]

    def _inside(self, region: Region) -> int:
        """The number of a region's own block."""
        return next((self._homes[value] for op in region.ops for value in op.results), -1)

    def _block(self, ops: Iterable[Op], change: Callable[[Op], Op]) -> tuple[Op, ...]:
        made: list[Op] = []
        for op in ops:
            if op.region_fields:
                inner = with_regions(op, lambda region: replaced(region, ops=self._block(region.ops, change)))
                made += self._widened(change(inner))
            else:
                made.append(change(op))
        return tuple(made)

    def _widened(self, op: Op) -> list[Op]:
        """An op with blocks, with the further results that it is asked for."""
        asked = self._more.get(op.results[0], ()) if op.results else ()
        before: list[Op] = []
        for more in asked:
            arm = partial(self._with, more, iter(more.blocks), op)
            op = with_regions(op, arm, results=(*op.results, more.result))
            if isinstance(op, Loop):
                nothing = self.made(("",) if self.kind is Type.TEXT else (), op)
                before.append(nothing)
                op = replaced(op, init=(*op.init, *nothing.results))
        return [*before, op]

    def _with(self, more: _More, blocks: Iterator[Parts], op: Op, region: Region) -> Region:
        """A block of `op` that gives one value more, of the next of `blocks`."""
        if hands_over(region):
            return region
        made = self.made(next(blocks), op)
        params = region.params if more.inside is None else (*region.params, more.inside)
        return replaced(
            region, params=params, ops=(*region.ops, made), results=(*region.results, *made.results)
        )
