"""Equal prompts become one prompt."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping

from sglc.ir.core import (
    OPS,
    Op,
    Program,
    Region,
    Type,
    Value,
    content,
    fresh_ids,
    inputs,
    kinds,
    reading,
    regions,
    substitute,
    values_in,
    walk,
    with_fields,
    with_regions,
)
from sglc.ir.made_often import replaced
from sglc.ir.ops import (
    CONTINUING,
    Append,
    Call,
    Cond,
    Control,
    Fork,
    Gen,
    Loop,
    PureCall,
    Select,
    Switch,
    continued,
)
from sglc.ir.remark import Remark, place
from sglc.ir.target import Target
from sglc.passes.base import Exactness, Kind, Rewrite, register

_Merged = tuple[Op, ...]
# The ops that merge and may give an object.
_PURE = [kind for kind in OPS.values() if kind.pure and kind is not Fork]
_MAKERS = tuple(kind for kind in _PURE if kind.result_types in (None, (Type.JSON,)))


@register("share_prefixes", Exactness.TOKENS, "equal prompts become one, computed once", Kind.ENABLING)
def share_prefixes(program: Program, _: Target) -> Rewrite:
    """Merge pure ops with equal operands, and fork where two generations then meet in one stream.

        s1 = append(s0, 'a'); s2 = append(s0, 'a'); s3, t0 = gen(s1, 'x'); s4, t1 = gen(s2, 'y')
            -> s1 = append(s0, 'a'); s2, s5 = fork(s1); s3, t0 = gen(s2, 'x'); s4, t1 = gen(s5, 'y')

    `gen` and `select` sample or rank at a site of their own, so they never merge. A `fork` never
    merges either: each result is a branch of its own, and the equal branch of another fork is a
    second sample of it, not the same one. Nothing is lost, as a fork costs nothing.

    Ops merge within one block: what an arm computes is not computed before it is known to run, and
    a block that runs again keeps streams of its own. Called programs stay as they are, and so do
    objects that a tool or the caller gets: to who changes one of them, equal ones are not the same.
    """
    if _all_differ(program.ops, set()):
        return program
    shared, merged = _merge(program)
    remarks = tuple(_remarks(merged))
    return _fork_meetings(shared), remarks


def _all_differ(ops: Iterable[Op], gone_on: set[Value]) -> bool:
    """Whether no two pure ops of a block are equal, and no stream is gone on from twice, be it in other arms.

    Then there is nothing to do: what is merged first is equal as it stands.
    """
    first: set[Hashable] = set()
    for op in ops:
        if isinstance(op, CONTINUING):
            for stream in continued(op):
                if stream in gone_on:
                    return False
                gone_on.add(stream)
        if op.pure and not isinstance(op, Fork):
            key = _key(op)
            if key in first:
                return False
            first.add(key)
        if op.region_fields and not all(_all_differ(region.ops, gone_on) for region in regions(op)):
            return False
    return True


def _merge(program: Program) -> tuple[Program, _Merged]:
    """The program with equal pure ops of each block merged, and the ops that fell away."""
    rename: dict[Value, Value] = {}
    merged: list[Op] = []
    apart = _handed_out(program)

    def block(before: Iterable[Op]) -> tuple[Op, ...]:
        first: dict[Hashable, Op] = {}
        ops: list[Op] = []
        for op in before:
            op = with_regions(reading(op, rename), region)
            twin = op
            if op.pure and not isinstance(op, Fork) and apart.isdisjoint(op.results):
                twin = first.setdefault(_key(op), op)
            if twin is op:
                ops.append(op)
            else:
                merged.append(op)
                rename.update(zip(op.results, twin.results, strict=True))
        return tuple(ops)

    def region(before: Region) -> Region:
        ops = block(before.ops)
        return with_fields(before, ops=ops, results=substitute(before.results, rename))

    ops = block(program.ops)
    return with_fields(program, ops=ops, returns=substitute(program.returns, rename)), tuple(merged)


def _handed_out(program: Program) -> set[Value]:
    """Objects that something else than a pure function gets, and what they may hold, where objects are made."""
    if kinds(program).isdisjoint(_MAKERS):
        return set()
    ops = list(walk(program.ops))
    if not any(value.type is Type.JSON for op in ops if isinstance(op, _MAKERS) for value in op.results):
        return set()
    found = set(values_in(program.returns))
    for op in ops:
        found.update(*(region.results for region in regions(op)))
        if not isinstance(op, PureCall):
            found.update(inputs(op))
    for op in reversed(ops):
        if isinstance(op, PureCall) and op.results[0].type is Type.JSON and op.results[0] in found:
            found.update(inputs(op))
    return {value for value in found if value.type is Type.JSON}


def _key(op: Op) -> Hashable:
    """Equal for ops that make the same. In plain data, 1, 1.0 and True are not the same."""
    if op.tree_fields:
        return (op.mnemonic, *(repr(getattr(op, name)) for name in op.own_fields))
    return content(op)


def _fork_meetings(program: Program) -> Program:
    """A fork before the first of several ops that continue one stream on one path."""
    meetings = {stream: number for stream, number in _meetings(program.ops).items() if number > 1}
    if not meetings:
        return program
    return _Forking(program, meetings).program()


def _meetings(ops: Iterable[Op]) -> dict[Value, int]:
    """How many ops continue each stream on the path where most do, blocks included."""
    found: dict[Value, int] = {}
    for op in ops:
        for stream in continued(op):
            found[stream] = found.get(stream, 0) + 1
        inner = [_meetings(region.ops) for region in regions(op)]
        if isinstance(op, Cond | Switch):  # one of them runs
            inner = [{stream: max(arm.get(stream, 0) for arm in inner) for arm in inner for stream in arm}]
        for region in inner:
            for stream, number in region.items():
                found[stream] = found.get(stream, 0) + number
    return found


class _Forking:
    """Gives each op that continues a stream of `meetings` a branch of its own; exclusive arms share theirs."""

    def __init__(self, program: Program, meetings: Mapping[Value, int]) -> None:
        self.before = program
        self.meetings = meetings
        self.fresh = fresh_ids(program)
        self.branches: dict[Value, tuple[Value, ...]] = {}
        self.taken: dict[Value, int] = {}  # branches that are used on the way to this place

    def program(self) -> Program:
        given = (value for op in self.before.params for value in op.results)
        return replaced(self.before, ops=self.block(self.before.ops, given))

    def block(self, before: tuple[Op, ...], given: Iterable[Value]) -> tuple[Op, ...]:
        here = {*given, *(value for op in before for value in op.results)}
        ops: list[Op] = []
        for op in before:
            # The fork stands in the block where the stream is made: all that continue it see the branches.
            for stream in _meetings((op,)):
                if stream in here and stream in self.meetings and stream not in self.branches:
                    branches = tuple(Value(next(self.fresh), Type.STREAM) for _ in range(self.meetings[stream]))
                    ops.append(Fork(stream, results=branches, loc=op.loc))
                    self.branches[stream], self.taken[stream] = branches, 0
            ops.append(self.arms(op) if isinstance(op, Cond | Switch) else self.one(op))
        return tuple(ops)

    def arms(self, op: Cond | Switch) -> Op:
        before = {stream: self.taken[stream] for stream in _meetings((op,)) if stream in self.taken}
        after = dict(before)

        def arm(region: Region) -> Region:
            self.taken.update(before)
            made = self.region(region)
            after.update({stream: max(after[stream], self.taken[stream]) for stream in before})
            return made

        changed = with_regions(op, arm)
        self.taken.update(after)
        return changed

    def one(self, op: Op) -> Op:
        match op:
            case Gen() | Select():
                return replaced(op, stream=self.branch(op.stream))
            case Loop():
                op = replaced(op, init=tuple(self.branch(value) for value in op.init))
            case Call():
                return replaced(op, args=tuple(self.branch(a) if isinstance(a, Value) else a for a in op.args))
        return with_regions(op, self.region)

    def region(self, region: Region) -> Region:
        return replaced(region, ops=self.block(region.ops, region.params))

    def branch(self, value: Value) -> Value:
        if value not in self.branches:
            return value
        self.taken[value] += 1
        return self.branches[value][self.taken[value] - 1]


def _remarks(merged: _Merged) -> Iterator[Remark]:
    """One remark for all that fell away, at the place of the first literal."""
    texts = [(op.loc, op.text) for op in merged if isinstance(op, Append | Control)]
    literals = [(loc, text) for loc, text in texts if isinstance(text, str)]
    if literals:
        characters = sum(len(text) for _, text in literals)
        said = f"merged {len(merged)} equal ops, {characters} characters of literals among them"
        yield Remark("share_prefixes", said, place(literals[0][0]))
