"""What follows a branch goes into its arms, where an arm generates: both are then one segment, and not two.

t2 = cond(b0):                       s4, t3 = cond(b0):
    s2, t1 = gen(s1, 'x')                s2, t1 = gen(s1, 'x')
    yield s2                             s5 = append(s2, 'B:'); s6, t4 = gen(s5, 'y')
else:                            ->      yield s6, t4
    yield s1                         else:
s3 = append(s2, 'B:')                    s7 = append(s1, 'B:'); s8, t5 = gen(s7, 'y')
s4, t3 = gen(s3, 'y')                    yield s8, t5

That ends before the next decision. Only one arm runs, so a site may stand in each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

from sglc.ir.core import (
    Op,
    Program,
    Region,
    Type,
    Value,
    next_id,
    operands,
    renamed,
    values_in,
    walk,
    with_fields,
    with_regions,
)
from sglc.ir.depth import with_room
from sglc.ir.ops import (
    Append,
    Cond,
    Control,
    Fork,
    Format,
    Gen,
    Image,
    Prompt,
    RoleClose,
    RoleOpen,
    ScopeBegin,
    ScopeEnd,
    Select,
    Switch,
    arms_of,
    hands_over,
)

_MOST_COPIES = 128  # ops that what follows one branch may come to
_MOVES = (Append, Control, Image, RoleOpen, RoleClose, ScopeBegin, ScopeEnd, Fork, Format, Gen, Select)


@with_room
def with_arm_tails(program: Program, prompts: Mapping[Value, Sequence[Value | str]]) -> Program:
    """The program, in which what follows a branch that generates is part of its arms.

    Args:
        prompts: what its `prompt` ops say, by their streams.
    """
    given = {value for op in program.params for value in op.results}
    ops = _Tails(count(next_id(program)), prompts).block(program.ops, given, values_in(program.returns))
    return with_fields(program, ops=ops)


class _Tails:
    def __init__(self, ids: Iterator[int], prompts: Mapping[Value, Sequence[Value | str]]) -> None:
        self.ids = ids
        self.prompts = prompts

    def block(self, ops: Iterable[Op], given: set[Value], ends: Iterable[Value]) -> tuple[Op, ...]:
        """The ops of a block that is `given` values from its beginning, and hands on those of `ends`."""
        ends, left, made = tuple(ends), list(ops), list[Op]()
        while left:
            op = left.pop(0)
            if isinstance(op, Cond | Switch):
                op, left = self.branch(op, left, given, ends)
            made.append(with_regions(op, self.region))
        return tuple(made)

    def region(self, region: Region) -> Region:
        return with_fields(region, ops=self.block(region.ops, set(region.params), region.results))

    def branch(
        self, op: Cond | Switch, behind: list[Op], given: set[Value], ends: Sequence[Value]
    ) -> tuple[Op, list[Op]]:
        """A branch with what goes into its arms of the ops `behind` it, and the ops that do not."""
        arms = [arm for arm in arms_of(op) if not hands_over(arm)]
        tail = self.tail(op, behind, given)
        if not any(isinstance(other, Gen | Select) for other in tail) or len(tail) * len(arms) > _MOST_COPIES:
            return op, behind
        wanted = {value for other in tail for value in operands(other)}
        if not _joins(op, [place for place, value in enumerate(op.results) if value in wanted]):
            return op, behind
        moved = set(map(id, tail))
        left = [other for other in behind if id(other) not in moved or isinstance(other, Format)]
        read = self.read(left, ends)
        made = [value for other in tail if not isinstance(other, Format) for value in other.results]
        gives = tuple([value for value in (*op.results, *made) if value in read])

        def arm(region: Region) -> Region:
            if hands_over(region):
                return region
            rename = dict(zip(op.results, region.results, strict=True))
            for other in tail:
                rename.update((value, Value(next(self.ids), value.type)) for value in other.results)
            ops = (*region.ops, *(renamed(other, rename) for other in tail))
            return replace(region, ops=ops, results=tuple([rename[value] for value in gives]))

        return replace(with_regions(op, arm), results=gives), left

    def tail(self, op: Cond | Switch, behind: Iterable[Op], given: set[Value]) -> list[Op]:
        """The ops behind a branch that go on from it, up to one that decides, or waits for something else."""
        there = {*op.results, *operands(op), *(value for value in given if value.type is Type.TEXT)}
        mine = set(op.results)
        tail: list[Op] = []
        for other in behind:
            if isinstance(other, Prompt):
                continue
            if not isinstance(other, _MOVES):
                break
            reads = set(operands(other))
            follows = not reads.isdisjoint(mine)
            if reads <= there and (follows or isinstance(other, Format)):
                tail.append(other)
                there.update(other.results)
                mine.update(other.results if follows else ())
            elif follows or isinstance(other, Gen | Select):
                break  # variables keep their order
        return tail

    def read(self, ops: Iterable[Op], ends: Iterable[Value]) -> set[Value]:
        """What ops read, those in their blocks too, and what a block hands on."""
        found = set(ends)
        for op in ops:  # a prompt is read for its texts
            found.update(values_in(op.turns) if isinstance(op, Prompt) else operands(op))
            for inner in walk((op,)):
                if isinstance(inner, Prompt):
                    found.update(part for part in self.prompts[inner.stream] if isinstance(part, Value))
        return found


def _joins(op: Cond | Switch, wanted: Sequence[int]) -> bool:
    """Whether what reads these results of a branch would be in one segment with a generation of an arm."""
    for arm in arms_of(op):
        if hands_over(arm):
            continue
        made = {value: inner for inner in arm.ops for value in inner.results}
        todo, seen = [arm.results[place] for place in wanted], set[int]()
        generates = decides = False
        while todo:
            inner = made.get(todo.pop())
            if inner is None or id(inner) in seen:
                continue
            seen.add(id(inner))
            generates = generates or isinstance(inner, Gen | Select)
            if isinstance(inner, _MOVES):
                todo += operands(inner)
            elif isinstance(inner, Cond | Switch) and _joins(inner, range(len(inner.results))):
                return True
            else:
                decides = True
        if generates and not decides:
            return True
    return False
