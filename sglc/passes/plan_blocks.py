"""Blocks of ops become steps: what needs the same decisions is one segment, decisions are steps between.

An op needs a decision if it reads, directly or not, what the decision gives. Ops that need the same
ones go into one segment: then no two segments wait for each other, and each begins as early as it can.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from sglc.ir.core import Op, Program, Region, Tree, Type, Value, operands, values_in, walk
from sglc.ir.ops import (
    Arg,
    Call,
    Concat,
    Cond,
    Eq,
    Format,
    FusedGen,
    Gen,
    HostCall,
    Image,
    In,
    Join,
    Loop,
    Lower,
    Map,
    Not,
    Pack,
    ParseJson,
    Pin,
    PureCall,
    Release,
    Resume,
    Root,
    ScopeBegin,
    ScopeEnd,
    Select,
    Speculate,
    Strip,
    Switch,
    Tool,
    Warm,
    arms_of,
)
from sglc.ir.plan import (
    Block,
    CallStep,
    CondStep,
    FunctionStep,
    Held,
    HostStep,
    LoopStep,
    MapStep,
    Named,
    OutputTree,
    ReleaseStep,
    Slot,
    Step,
    SwitchStep,
    ValueStep,
    Within,
    blocks_of,
)
from sglc.ir.target import Target
from sglc.passes.plan_segment import Nodes, Scope, StreamOp

_STREAM_OPS = get_args(StreamOp)
_MOVABLE = tuple(kind for kind in _STREAM_OPS if kind not in (Gen, Select))


class Lowering:
    """All blocks of one plan, those inside others first."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.blocks: list[Block] = []

    def program(self, program: Program) -> Block:
        """The plan's own steps; the only result is the return value."""
        scope = Scope(program)
        return _BlockLowering(self, scope, program.ops).block((), (program.returns,), keep_returns=True)

    def called(self, program: Program) -> int:
        """The block of a called program; its results are the values that it returns."""
        scope = Scope(program)
        params = tuple(
            Slot(op.name) if isinstance(op, Arg) else Held(op.name)
            for op in program.params
            if isinstance(op, Arg | Resume)
        )
        lowering = _BlockLowering(self, scope, program.ops)
        block = lowering.block(params, tuple(values_in(program.returns)))
        return self.add(Block(block.params, block.steps, block.results))  # its variables are its own

    def region(self, scope: Scope, region: Region) -> int:
        """The block of a region, in the scope of the program that it belongs to."""
        params = tuple(named(scope, value) for value in region.params)
        whole, scope.whole = scope.whole, {}  # what is put together here is not seen elsewhere
        block = _BlockLowering(self, scope, region.ops).block(params, region.results)
        scope.whole = whole
        return self.add(block)

    def add(self, block: Block) -> int:
        self.blocks.append(block)
        return len(self.blocks) - 1


def named(scope: Scope, value: Value) -> Slot | Held:
    """Enter a value that comes from the environment; its name there."""
    name = scope.name(value)
    if value.type is Type.TEXT:
        assert isinstance(name, Slot)
        scope.texts[value] = (name,)
    return name


@dataclass(slots=True, eq=False)
class _Unit:
    """A step in the making: a decision, or the segment of all ops that need the same decisions."""

    position: int  # of its first op
    key: int = 0  # decisions that a segment needs
    ops: list[StreamOp] = field(default_factory=list)
    step: Step | None = None
    nodes: Nodes | None = None
    after: dict[_Unit, None] = field(default_factory=dict)


class _BlockLowering:
    """One block. Masks are sets of decisions, as bits of an integer."""

    def __init__(self, lowering: Lowering, scope: Scope, ops: Iterable[Op]) -> None:
        self.lowering = lowering
        self.scope = scope
        self.flat = list(self.flattened(ops))
        self.masks: dict[Value, int] = {}
        self.keys: list[int] = []  # of each op that belongs into a segment, and of those that do not -1
        self.before: list[int] = []  # of each op: one more than the bits of all decisions before it
        self.segments: dict[int, _Unit] = {}
        self.units: list[_Unit] = []
        self.makers: dict[Value, tuple[_Unit, ...]] = {}
        self.units_of: dict[int, _Unit] = {}  # by the number of the op
        self.joining: dict[Value, _Unit] = {}  # the steps that put texts together
        self.decisions = 0

    def flattened(self, ops: Iterable[Op]) -> Iterator[Op]:
        """The ops without those that only stand round others or name what is there already."""
        for op in ops:
            match op:
                case Speculate() | FusedGen():
                    yield from self.flattened(op.body.ops)
                    own = (self.scope.own(value) for value in op.body.results)
                    self.scope.alias.update(zip(op.results, own, strict=True))
                case ScopeBegin() | ScopeEnd():
                    self.scope.alias[op.results[0]] = self.scope.own(op.stream)
                case Root():
                    self.scope.roots[op.results[0]] = None
                case Warm():
                    pass
                case _:
                    yield op

    def block(
        self, params: tuple[Slot | Held, ...], ends: Sequence[Tree], *, keep_returns: bool = False
    ) -> Block:
        """The block that gives `ends`. `keep_returns`: streams in them are kept under their paths."""
        wanted = [self.scope.own(value) for value in values_in(tuple(ends))]
        ops = self.live(wanted)
        joined = self.mask(ops)
        self.sink(ops, wanted)
        uses = Counter(self.scope.own(value) for op in ops for value in operands(op))
        uses.update(wanted)
        self.divide(ops, joined)
        for unit in self.units:
            if unit.ops:
                unit.nodes = Nodes(self.scope, self.lowering.target, unit.ops, uses)
        results = tuple(self.ending(tree, (), keep_returns) for tree in ends)
        variables = self.variables(ops)
        for unit in self.units:
            if unit.nodes is not None:
                unit.step = unit.nodes.segment(self.scope.exported.__contains__)
        order = self.ordered()
        numbers = {unit: number for number, unit in enumerate(order)}
        placed = tuple(item if isinstance(item, Named) else Within(numbers[item]) for item in variables)
        steps = tuple(unit.step for unit in order if unit.step is not None)
        return Block(params, steps, results, placed)

    # -- what is needed ------------------------------------------------------------------------------

    def live(self, wanted: Iterable[Value]) -> list[Op]:
        """The ops that have to run, or that one of those or the results need."""
        live = dict.fromkeys(wanted)
        kept: list[Op] = []
        for op in reversed(self.flat):
            if isinstance(op, Pin | Release) or _has_to_run(op) or any(value in live for value in op.results):
                kept.append(op)
                if not isinstance(op, Pin | Release):
                    live.update(dict.fromkeys(self.scope.own(value) for value in operands(op)))
        made = dict.fromkeys(value for op in self.flat for value in op.results)

        def there(stream: Value) -> bool:
            return (own := self.scope.own(stream)) in live or own not in made

        return [op for op in reversed(kept) if not isinstance(op, Pin | Release) or there(op.stream)]

    def mask(self, ops: Sequence[Op]) -> dict[int, list[Value]]:
        """Which decisions each op needs; by op, texts that have to be put together before it."""
        joined: dict[int, list[Value]] = {}
        barrier = 0  # where Python may take over, nothing behind has begun
        for number, op in enumerate(ops):
            needs = barrier
            self.before.append(1 << self.decisions)
            for value in operands(op):
                needs |= self.masks.get(self.scope.own(value), 0)
            match op:
                case Format():
                    parts = (part for item in op.parts for part in self.scope.parts(item))
                    self.scope.texts[op.results[0]] = tuple(parts)
                case Join():
                    self.scope.lists[op.results[0]] = op.values
                case Gen() | Select() | Image() if whole := self.composite(op):
                    joined[number] = whole
                    needs |= self.decision(len(whole))
            in_segment = isinstance(op, _STREAM_OPS)
            self.keys.append(needs if in_segment else -1)
            if isinstance(op, Gen | Select):
                self.scope.texts[op.results[1]] = (op.results[1],)
            if not in_segment and not isinstance(op, Format | Join):
                needs |= self.decision()
                for value in op.results:
                    named(self.scope, value)
                barrier = needs if _hands_over(op) else barrier
            self.masks.update(dict.fromkeys(op.results, needs))
        return joined

    def decision(self, count: int = 1) -> int:
        """The bits of so many new decisions."""
        first = self.decisions
        self.decisions += count
        return ((1 << count) - 1) << first

    def composite(self, op: Gen | Select | Image) -> list[Value]:
        """Texts of several parts that a node can only take as one."""
        items: Sequence[Value | str] = ()
        if isinstance(op, Select):
            items = op.choices
        elif isinstance(op, Image):
            items = (op.data,)
        found: dict[Value, None] = {}
        for item in items:
            own = self.scope.own(item) if isinstance(item, Value) else item
            if isinstance(own, Value) and own not in self.scope.whole and len(self.scope.texts[own]) > 1:
                found[own] = None
        return list(found)

    def sink(self, ops: Sequence[Op], wanted: Iterable[Value]) -> None:
        """Prompts that only one segment reads are made in that segment: nothing has to be kept for it."""
        readers: dict[Value, dict[int, None]] = {}

        def read(value: Value, key: int) -> None:
            readers.setdefault(self.scope.own(value), {})[key] = None

        for value in wanted:
            read(value, -1)
        for number in range(len(ops) - 1, -1, -1):
            op = ops[number]
            if isinstance(op, _MOVABLE):
                keys = {key: None for value in op.results for key in readers.get(value, {})}
                if len(keys) == 1 and -1 not in keys:
                    (self.keys[number],) = keys
            for value in operands(op):
                read(value, self.keys[number])

    # -- units ---------------------------------------------------------------------------------------

    def divide(self, ops: Sequence[Op], joined: Mapping[int, Sequence[Value]]) -> None:
        """Every op into its unit; decisions, and the blocks in them, become steps."""
        effects: _Unit | None = None
        pinned: dict[Value, None] = {}
        released = 0  # units before the last release
        barrier: tuple[_Unit, ...] = ()
        for number, op in enumerate(ops):
            sources = dict.fromkeys(unit for value in operands(op) for unit in self.made_by(value))
            sources.update(dict.fromkeys(barrier))
            for value in joined.get(number, ()):
                if value not in self.joining:
                    step = self.put_together(value, op)
                    self.joining[value] = self.unit(number, step, self.made_by(value))
                sources[self.joining[value]] = None
            match op:
                case Format() | Join():
                    self.makers[op.results[0]] = tuple(sources)
                    continue
                case Pin():
                    pinned[self.scope.own(op.stream)] = None
                    continue
                case Release():
                    if self.scope.own(op.stream) in pinned:
                        del pinned[self.scope.own(op.stream)]
                        self.unit(number, self.release(op.stream), self.earlier(number, released))
                        released = len(self.units) - 1
                    continue
                case _ if isinstance(op, _STREAM_OPS):
                    unit = self.segment(number, self.keys[number])
                    unit.ops.append(op)
                    unit.after.update(sources)
                    unit.after.pop(unit, None)
                case _:
                    waits = self.earlier(number) if _hands_over(op) else sources
                    unit = self.unit(number, self.step(op), waits)
                    barrier = (unit,) if _hands_over(op) else barrier
                    if _calls_tools(op):
                        if effects is not None:
                            unit.after[effects] = None
                        effects = unit
            self.units_of[number] = unit
            self.makers.update(dict.fromkeys(op.results, (unit,)))
        for value in () if ops and isinstance(ops[-1], HostCall) else pinned:
            self.unit(len(ops), self.release(value), self.units)

    def made_by(self, value: Value) -> tuple[_Unit, ...]:
        return self.makers.get(self.scope.own(value), ())

    def unit(self, position: int, step: Step | None, after: Iterable[_Unit] = ()) -> _Unit:
        made = _Unit(position, step=step, after=dict.fromkeys(after))
        self.units.append(made)
        return made

    def earlier(self, number: int, since: int = 0) -> list[_Unit]:
        """The units, from the one at `since` on, that need no decision from op `number` on."""
        return [unit for unit in self.units[since:] if unit.key < self.before[number]]

    def segment(self, position: int, key: int) -> _Unit:
        if key not in self.segments:
            self.segments[key] = self.unit(position, None)
            self.segments[key].key = key
        return self.segments[key]

    def put_together(self, value: Value, reader: Op) -> Step:
        name = self.scope.name(value)
        assert isinstance(name, Slot)
        self.scope.whole[value] = name
        parts = tuple(self.scope.tree(p) if isinstance(p, Value) else p for p in self.scope.texts[value])
        return ValueStep(name.name, "format", parts, reader.loc)

    def release(self, stream: Value) -> Step:
        return ReleaseStep(self.scope.stream(stream))

    def step(self, op: Op) -> Step:
        """The step of a decision."""
        tree, gives = self.scope.tree, tuple(self.scope.name(value) for value in op.results)
        region = self.lowering.region
        match op:
            case Strip() | Lower() | ParseJson():
                return self.value(op, (op.text,))
            case Eq():
                return self.value(op, (op.left, op.right))
            case In():
                return self.value(op, (op.part, op.text))
            case Not():
                return self.value(op, (op.value,))
            case Concat():
                return self.value(op, op.items)
            case Pack():
                return self.value(op, (op.tree,))
            case Tool() | PureCall():
                args, named_args = (
                    tuple(map(tree, op.args)),
                    {key: tree(item) for key, item in op.named.items()},
                )
                effects = isinstance(op, Tool)
                return FunctionStep(_name(gives), op.name, args, named_args, op.gives, effects, op.loc)
            case Cond():
                then, orelse = region(self.scope, op.then), region(self.scope, op.orelse)
                return CondStep(tree(op.pred), then, orelse, gives, op.loc)
            case Switch():
                arms = tuple(region(self.scope, arm) for arm in arms_of(op))
                return SwitchStep(tree(op.value), op.cases, arms, gives, op.loc)
            case Loop():
                init = tuple(map(tree, op.init))
                return LoopStep(init, op.max_iters, region(self.scope, op.body), gives, op.loc)
            case Map():
                return MapStep(tree(op.items), region(self.scope, op.body), gives, op.loc)
            case Call():
                called = self.lowering.called(op.program)
                return CallStep(op.site, tuple(map(tree, op.args)), called, gives, op.loc)
            case HostCall():
                return HostStep(op.reason, op.loc, tuple(map(tree, op.reads)))
            case _:
                raise AssertionError(op.mnemonic)

    def value(self, op: Op, items: Iterable[Tree]) -> Step:
        operands = tuple(map(self.scope.tree, items))
        return ValueStep(_name(tuple(map(self.scope.name, op.results))), op.mnemonic, operands, op.loc)

    # -- ends ----------------------------------------------------------------------------------------

    def ending(self, tree: Tree, path: tuple[str, ...], keep: bool) -> OutputTree:
        """What the block gives at its end."""
        match tree:
            case Value(type=Type.STREAM) if keep:
                return self.kept(self.scope.own(tree), ".".join(path))
            case tuple() if keep:
                return tuple(self.ending(part, (*path, str(i)), keep) for i, part in enumerate(tree))
            case Mapping() if keep:
                return {key: self.ending(part, (*path, key), keep) for key, part in tree.items()}
            case _:
                return self.scope.tree(tree)

    def kept(self, stream: Value, handle: str) -> OutputTree:
        """A returned stream, kept under its path; one that a decision gave has a name already."""
        makers = self.makers.get(stream, ())
        if makers and makers[0].nodes is None:
            return self.scope.stream(stream)
        unit = makers[0] if makers else self.segment(0, 0)
        if unit.nodes is None:
            unit.nodes = Nodes(self.scope, self.lowering.target, (), Counter())
        unit.nodes.keep(stream, handle)
        return Held(handle)

    def variables(self, ops: Sequence[Op]) -> list[Named | _Unit]:
        """The named texts and lists outside forks, and the steps whose blocks have some."""
        found: list[Named | _Unit] = []
        since: dict[str, int] = {}  # where each name stands, behind the last step that may change it
        for number, op in enumerate(ops):
            match op:
                case Gen() | Select() if not op.site.fork:
                    name, value = op.site.name, op.results[1]
                case Join() if not op.site.fork:
                    name, value = op.site.name, op.results[0]
                case Cond() | Switch() | Loop() | Map():
                    unit = self.units_of[number]
                    if unit.step is not None and self.has_variables(unit.step):
                        found.append(unit)
                        since = {}
                    continue
                case _:
                    continue
            variable = Named(name, self.scope.tree(value))
            if name in since:
                found[since[name]] = variable
            else:
                since[name] = len(found)
                found.append(variable)
        return found

    def ordered(self) -> list[_Unit]:
        """The units in an order in which each comes behind those it needs; else as in the program."""
        waiting = {unit: len(unit.after) for unit in self.units}
        followers: dict[_Unit, list[_Unit]] = {unit: [] for unit in self.units}
        for unit in self.units:
            for before in unit.after:
                followers[before].append(unit)
        rank = {unit: (unit.position, number) for number, unit in enumerate(self.units)}
        ready = [(*rank[unit], unit) for unit in self.units if not waiting[unit]]
        heapq.heapify(ready)
        order: list[_Unit] = []
        while ready:
            unit = heapq.heappop(ready)[-1]
            order.append(unit)
            for follower in followers[unit]:
                waiting[follower] -= 1
                if not waiting[follower]:
                    heapq.heappush(ready, (*rank[follower], follower))
        assert len(order) == len(self.units), "units wait for each other"
        return order

    def has_variables(self, step: Step) -> bool:
        return any(self.lowering.blocks[number].variables for number in blocks_of(step))


def _name(gives: Sequence[Slot | Held]) -> str:
    (only,) = gives
    assert only.name is not None
    return only.name


def _inside(op: Op) -> Iterator[Op]:
    """The op and all ops in it, those of called programs included."""
    for inner in walk((op,)):
        yield inner
        if isinstance(inner, Call):
            for called in inner.program.ops:
                yield from _inside(called)


def _hands_over(op: Op) -> bool:
    return any(isinstance(inner, HostCall) for inner in walk((op,)))


def _calls_tools(op: Op) -> bool:
    return any(isinstance(inner, Tool) for inner in _inside(op))


def _has_to_run(op: Op) -> bool:
    """Whether leaving the op out would be noticed, even if nothing reads what it gives."""
    return any(
        isinstance(inner, Gen | Select | Join | Tool | HostCall | ParseJson | Map)
        or (isinstance(inner, Switch) and inner.default is None)
        for inner in _inside(op)
    )
