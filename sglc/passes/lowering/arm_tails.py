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

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import get_args

from sglc.ir.core import (
    Op,
    Program,
    Region,
    Type,
    Value,
    operands,
    renamed,
    values_in,
    walk,
    with_fields,
    with_regions,
)
from sglc.ir.made_often import replaced
from sglc.ir.ops import (
    ASKED,
    Cond,
    Format,
    Prompt,
    ScopeBegin,
    ScopeEnd,
    Switch,
    arms_of,
    hands_over,
)
from sglc.passes.lowering.segments import StreamOp

_MOST_COPIES = 128  # ops that what follows one branch may come to
_BRANCHES = (Cond, Switch)
_MOVES = (*get_args(StreamOp), ScopeBegin, ScopeEnd, Format)


def with_arm_tails(
    program: Program, prompts: Mapping[Value, Sequence[Value | str]], ids: Iterator[int]
) -> Program:
    """The program, in which what follows a branch that generates is part of its arms.

    Args:
        prompts: what its `prompt` ops say, by their streams.
        ids: free ones.
    """
    given = {value for op in program.params for value in op.results}
    ops = _Tails(ids, prompts).block(program.ops, given, list(values_in(program.returns)))
    return with_fields(program, ops=ops)


class _Tails:
    def __init__(self, ids: Iterator[int], prompts: Mapping[Value, Sequence[Value | str]]) -> None:
        self.ids = ids
        self.prompts = prompts

    def block(self, ops: Sequence[Op], given: set[Value], ends: Sequence[Value]) -> tuple[Op, ...]:
        """The ops of a block that is `given` values from its beginning, and hands on those of `ends`."""
        if not any(op.region_fields for op in ops):
            return tuple(ops)
        made: list[Op] = []
        moved: set[int] = set()
        uses: Counter[Value] = Counter()  # how often each value is read, once a branch is worth it
        for number, op in enumerate(ops):
            if id(op) in moved:
                continue
            if isinstance(op, _BRANCHES) and any(isinstance(inner, ASKED) for inner in walk((op,))):
                tail = self.tail(op, map(ops.__getitem__, range(number + 1, len(ops))), given)
                if _is_worth_it(op, tail):
                    # What is made of texts is there, too, for who reads it behind the branch.
                    going = [other for other in tail if not isinstance(other, Format)]
                    moved.update(map(id, going))
                    uses = uses or Counter([*ends, *self.reads(ops)])
                    op = self.branch(op, tail, going, uses)
            made.append(with_regions(op, self.region) if op.region_fields else op)
        return tuple(made)

    def region(self, region: Region) -> Region:
        return with_fields(region, ops=self.block(region.ops, set(region.params), region.results))

    def branch(self, op: Cond | Switch, tail: Sequence[Op], going: Sequence[Op], uses: Counter[Value]) -> Op:
        """A branch with `tail` in its arms, of which `going` is nowhere else then.

        Args:
            uses: how often each value is read in the block.
        """
        inside = Counter([*self.reads(going)])
        made = (*op.results, *(value for other in going for value in other.results))
        gives = tuple([value for value in made if uses[value] > inside[value]])

        def arm(region: Region) -> Region:
            if hands_over(region):
                return region
            rename = dict(zip(op.results, region.results, strict=True))
            for other in tail:
                rename.update((value, Value(next(self.ids), value.type)) for value in other.results)
            ops = (*region.ops, *(renamed(other, rename) for other in tail))
            return replaced(region, ops=ops, results=tuple([rename[value] for value in gives]))

        return with_regions(op, arm, results=gives)

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
            elif follows or isinstance(other, ASKED):
                break  # variables keep their order
        return tail

    def reads(self, ops: Iterable[Op]) -> Iterator[Value]:
        """What ops read, those in their blocks too. A prompt is read for its texts."""
        for op in ops:
            yield from values_in(op.turns) if isinstance(op, Prompt) else operands(op)
            for inner in walk((op,)) if op.region_fields else (op,):
                if isinstance(inner, Prompt):
                    yield from (part for part in self.prompts[inner.stream] if isinstance(part, Value))


def _is_worth_it(op: Cond | Switch, tail: Sequence[Op]) -> bool:
    """Whether what follows a branch saves a segment in one of its arms, and is not too much to be in each."""
    if not any(isinstance(other, ASKED) for other in tail) or len(tail) * len(arms_of(op)) > _MOST_COPIES:
        return False
    wanted = {value for other in tail for value in operands(other)}
    return _joins(op, [place for place, value in enumerate(op.results) if value in wanted])


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
            generates = generates or isinstance(inner, ASKED)
            if isinstance(inner, _MOVES):
                todo += operands(inner)
            elif isinstance(inner, _BRANCHES) and _joins(inner, range(len(inner.results))):
                return True
            else:
                decides = True
        if generates and not decides:
            return True
    return False
