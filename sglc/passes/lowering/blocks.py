"""Blocks of ops become steps: what needs the same decisions is one segment, decisions are steps between.

An op needs a decision if it reads, directly or not, what the decision gives. Ops that need the same
ones go into one segment: then no two segments wait for each other, and each begins as early as it can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import get_args

from sglc.ir.core import (
    Op,
    Program,
    Region,
    Tree,
    Type,
    Value,
    all_ops,
    fresh_ids,
    kinds,
    operands,
    values_in,
)
from sglc.ir.effects import Effect, any_effect, variable_of
from sglc.ir.ops import (
    ASKED,
    Arg,
    Cond,
    Format,
    Gen,
    HostCall,
    Image,
    Join,
    Loop,
    Map,
    Prompt,
    PureCall,
    Resume,
    Root,
    Select,
    Store,
    Switch,
    Tool,
)
from sglc.ir.plan.plan import Block, Joined, Named, OutputTree, PromptEnd, Step, Within, blocks_of
from sglc.ir.plan.segment import Held, Slot, joined
from sglc.ir.pure import PURE
from sglc.ir.target import Target
from sglc.passes.lowering.arm_tails import with_arm_tails
from sglc.passes.lowering.chosen_texts import with_chosen_texts
from sglc.passes.lowering.sections import SECTIONS, without_sections
from sglc.passes.lowering.segments import LoweringScope, Nodes, StreamOp, Texts
from sglc.passes.lowering.steps import decision, may_hand_over, put_together
from sglc.passes.lowering.units import Unit, ordered
from sglc.passes.prompt.text import with_needed, with_texts

_STREAM_OPS = get_args(StreamOp)
_PROMPT = "\0prompt"  # what a `prompt` op stores: no variable of the user's has such a name
_TOOLS = Effect.ACTS | Effect.CALLS
_GATHERS = (Format, Join)  # what is put together where it is read
_TAKES_TEXTS = (*ASKED, Image)  # each as one, even of several parts
_NAMES = (Gen, Select, Join, Store, Cond, Switch, Loop, Map)  # what may store variables
_MOVABLE = tuple(kind for kind in _STREAM_OPS if kind not in (Gen, Select))


class Lowering:
    """All blocks of one plan, those inside others first."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.blocks: list[Block] = []

    def program(self, program: Program) -> Block:
        """The plan's own steps; the only result is the return value."""
        program, lowering = self.begun(program)
        return lowering.block((), (program.returns,), keep_returns=True)

    def called(self, program: Program) -> int:
        """The block of a called program; its results are the values that it returns."""
        program, lowering = self.begun(program)
        params = tuple(
            Slot(op.name) if isinstance(op, Arg) else Held(op.name)
            for op in program.params
            if isinstance(op, Arg | Resume)
        )
        block = lowering.block(params, tuple(values_in(program.returns)))
        return self.add(Block(block.params, block.steps, block.results))  # its variables are its own

    def begun(self, program: Program) -> tuple[Program, _BlockLowering]:
        """A program as it is divided, and the lowering of its own ops."""
        ids, there = fresh_ids(program), kinds(program)  # what it becomes has no section or tool more
        acts = not there.isdisjoint((Tool, HostCall))
        inside = any(isinstance(op, ASKED) for op in all_ops(program)[len(program.ops) :])
        program, prompts = with_texts(with_chosen_texts(program, ids), ids, acts=acts)
        if inside:
            program = with_arm_tails(program, prompts, ids)
        named = program
        if not prompts:  # else that was done with the texts
            program = with_needed(program, prompts)
        if not there.isdisjoint(SECTIONS):
            program, prompts = without_sections(program, prompts)
        scope = LoweringScope(named, prompts, acts=acts)
        return program, _BlockLowering(self, scope, program.ops)

    def region(self, scope: LoweringScope, region: Region) -> int:
        """The block of a region, in the scope of the program that it belongs to."""
        params = tuple(named(scope, value) for value in region.params)
        texts = [op for op in region.ops if isinstance(op, Format)]
        if len(texts) == len(region.ops):  # made where they are read
            for op in texts:
                scope.format(op)
            return self.add(Block(params, (), tuple([scope.tree(value) for value in region.results])))
        whole, scope.whole = scope.whole, {}  # what is put together here is not seen elsewhere
        block = _BlockLowering(self, scope, region.ops).block(params, region.results)
        scope.whole = whole
        return self.add(block)

    def add(self, block: Block) -> int:
        self.blocks.append(block)
        return len(self.blocks) - 1


def named(scope: LoweringScope, value: Value) -> Slot | Held:
    """Enter a value that comes from the environment; its name there."""
    name = scope.name(value)
    if value.type is Type.TEXT:
        assert isinstance(name, Slot)
        scope.texts[value] = (name,)
    return name


class _BlockLowering:
    """One block. Masks are sets of decisions, as bits of an integer."""

    def __init__(self, lowering: Lowering, scope: LoweringScope, ops: Iterable[Op]) -> None:
        self.lowering = lowering
        self.scope = scope
        self.flat = list(self.flattened(ops))
        self.reads = list(map(operands, self.flat))
        self.masks: dict[Value, int] = {}  # of values that are not there from the beginning
        self.keys: list[int] = []  # of each op that belongs into a segment, and of those that do not -1
        self.before: list[int] = []  # of each op: one more than the bits of all decisions before it
        self.leaving: set[int] = set()  # ops at which Python may take over
        self.segments: dict[int, Unit] = {}
        self.units: list[Unit] = []
        self.makers: dict[Value, tuple[Unit, ...]] = {}
        self.units_of: dict[int, Unit] = {}  # by the number of the op
        self.joining: dict[Value, Unit] = {}  # the steps that put texts together
        self.stood: list[tuple[Unit, int]] = []  # how many parts of the prompt stand before a step
        self.decisions = 0

    def flattened(self, ops: Iterable[Op]) -> Iterator[Op]:
        """The ops without those that only name what is there already."""
        for op in ops:
            if isinstance(op, Root):
                self.scope.roots[op.results[0]] = None
            elif isinstance(op, Prompt):
                yield Store(_PROMPT, (tuple(self.scope.prompts[op.stream]), op.turns), loc=op.loc)
            else:
                yield op

    def block(
        self, params: tuple[Slot | Held, ...], ends: Sequence[Tree], *, keep_returns: bool = False
    ) -> Block:
        """The block that gives `ends`. `keep_returns`: streams in them are kept under their paths."""
        wanted, ops = list(values_in(tuple(ends))), self.flat
        joined = self.mask(ops)
        self.sink(ops, wanted)
        self.divide(ops, joined)
        segments = [unit for unit in self.units if unit.ops]
        if segments:
            uses = Counter([*chain.from_iterable(self.reads), *wanted])
            for unit in segments:
                unit.nodes = Nodes(self.scope, self.lowering.target, unit.ops, uses)
        results = tuple([self.ending(tree, ()) if keep_returns else self.scope.tree(tree) for tree in ends])
        variables = self.variables(ops)
        for unit in self.units:
            if unit.nodes is not None:
                unit.step = unit.nodes.segment()
        order = ordered(self.units)
        numbers = {unit: number for number, unit in enumerate(order)}
        placed = tuple([self.placed(item, numbers) for item in variables])
        steps = tuple(unit.step for unit in order if unit.step is not None)
        return Block(params, steps, results, placed)

    # -- what is needed ------------------------------------------------------------------------------

    def mask(self, ops: Sequence[Op]) -> dict[int, list[Value]]:
        """Which decisions each op needs; by op, texts that have to be put together before it."""
        joined: dict[int, list[Value]] = {}
        barrier = 0  # where Python may take over, nothing behind has begun
        for number, op in enumerate(ops):
            needs, reads = barrier, self.reads[number]
            self.before.append(1 << self.decisions)
            for value in reads:
                needs |= self.masks.get(value, 0)
            if isinstance(op, _STREAM_OPS):
                if isinstance(op, _TAKES_TEXTS) and (whole := self.composite(op)):
                    joined[number] = whole
                    needs |= self.decision(len(whole))
                if isinstance(op, ASKED):
                    self.scope.texts[op.results[1]] = (op.results[1],)
                self.keys.append(needs)
                self.masks.update(dict.fromkeys(op.results, needs))
                continue
            self.keys.append(-1)
            late = not self.masks.keys().isdisjoint(reads)
            match op:
                case Format():
                    self.scope.format(op)
                case Join():
                    self.scope.lists[op.results[0]] = op.values
                case Store():
                    continue
                case _:
                    quick = isinstance(op, PureCall) and op.name in PURE  # Python's own functions on data
                    late = late or barrier > 0 or not quick
                    if late:  # else it is there before anything is asked
                        needs |= self.decision()
                    for value in op.results:
                        named(self.scope, value)
                    if self.scope.acts and may_hand_over(op):
                        self.leaving.add(number)
                        barrier = needs
            if late:
                self.masks.update(dict.fromkeys(op.results, needs))
        return joined

    def decision(self, count: int = 1) -> int:
        """The bits of so many new decisions."""
        first = self.decisions
        self.decisions += count
        return ((1 << count) - 1) << first

    def composite(self, op: Gen | Select | Image) -> list[Value]:
        """Texts of several parts that a node can only take as one, and those that come before it."""
        items: Sequence[Value | str] = ()
        match op:
            case Select():
                items = op.choices
            case Image():
                items = (op.data,)
            case Gen() if op.limit is not None:
                items = (op.limit,)
        found: dict[Value, None] = {}
        for item in items:
            if not isinstance(item, Value) or item in self.scope.whole:
                continue
            parts = self.scope.texts[item]
            if len(parts) > 1 or (isinstance(op, Gen) and any(isinstance(part, Value) for part in parts)):
                found[item] = None
        return list(found)

    def sink(self, ops: Sequence[Op], wanted: Iterable[Value]) -> None:
        """Prompts that only one segment reads are made in that segment: nothing has to be kept for it."""
        if len({*self.keys, -1}) <= 2:  # there is one segment at most
            return
        readers: dict[Value, set[int]] = {value: {-1} for value in wanted}
        for number in range(len(ops) - 1, -1, -1):
            op = ops[number]
            if isinstance(op, _MOVABLE):
                keys = {key for value in op.results for key in readers.get(value, ())}
                if len(keys) == 1 and -1 not in keys:
                    (self.keys[number],) = keys
            for value in self.reads[number]:
                readers.setdefault(value, set()).add(self.keys[number])

    # -- units ---------------------------------------------------------------------------------------

    def divide(self, ops: Sequence[Op], joined: Mapping[int, Sequence[Value]]) -> None:
        """Every op into its unit; decisions, and the blocks in them, become steps."""
        effects: Unit | None = None
        barrier: tuple[Unit, ...] = ()
        for number, op in enumerate(ops):
            if isinstance(op, Store):
                continue
            sources = dict.fromkeys(barrier)
            for value in self.reads[number]:
                for unit in self.makers.get(value, ()):
                    sources[unit] = None
            for value in joined.get(number, ()):
                if value not in self.joining:
                    step = put_together(value, self.scope, op)
                    self.joining[value] = self.unit(number, step, self.makers.get(value, ()))
                sources[self.joining[value]] = None
            if isinstance(op, _GATHERS):
                self.makers[op.results[0]] = tuple(sources)
                continue
            if isinstance(op, _STREAM_OPS):
                unit = self.segment(number, self.keys[number])
                unit.ops.append(op)
                unit.after.update(sources)
                unit.after.pop(unit, None)
            else:
                leaves, waits = number in self.leaving, list(sources)
                if leaves:  # for what needs no decision from here on
                    waits = [other for other in self.units if other.key < self.before[number]]
                step = decision(op, self.scope, self.lowering.region, self.lowering.called)
                unit = self.unit(number, step, waits)
                barrier = (unit,) if leaves else barrier
                if self.scope.acts and any_effect(op, _TOOLS):
                    if effects is not None:
                        unit.after[effects] = None
                    effects = unit
            self.units_of[number] = unit
            self.makers.update(dict.fromkeys(op.results, (unit,)))

    def unit(self, position: int, step: Step | None, after: Iterable[Unit] = ()) -> Unit:
        made = Unit(position, step=step, after=dict.fromkeys(after))
        self.units.append(made)
        return made

    def segment(self, position: int, key: int) -> Unit:
        if key not in self.segments:
            self.segments[key] = self.unit(position, None)
            self.segments[key].key = key
        return self.segments[key]

    # -- ends ----------------------------------------------------------------------------------------

    def ending(self, tree: Tree, path: tuple[str, ...]) -> OutputTree:
        """What the program gives at its end, at a place in what it returns: streams are kept."""
        match tree:
            case Value(type=Type.STREAM):
                return self.kept(tree, ".".join(path))
            case tuple():
                return tuple(self.ending(part, (*path, str(i))) for i, part in enumerate(tree))
            case Mapping():
                return {key: self.ending(part, (*path, key)) for key, part in tree.items()}
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
        unit.nodes.kept[handle] = unit.nodes.stream(stream)
        return Held(handle)

    def placed(
        self, variable: Named | PromptEnd | Unit, numbers: Mapping[Unit, int]
    ) -> Named | PromptEnd | Within:
        """A variable, for steps of these numbers."""
        match variable:
            case Unit():
                return Within(numbers[variable])
            case PromptEnd() if self.stood:
                return replace(variable, stood=tuple([(numbers[unit], count) for unit, count in self.stood]))
            case _:
                return variable

    def prompt(self, whole: Texts, before: Sequence[tuple[Unit, Texts]]) -> OutputTree:
        """The text of a prompt, whose parts end where it `stood` before a step."""
        parts: list[str | Slot] = []
        at = 0
        for unit, texts in (*before, (None, whole)):
            if whole[: len(texts)] != texts or len(texts) < at:
                continue
            parts += joined(map(self.scope.outside, whole[at : len(texts)]))
            at = len(texts)
            if unit is not None:
                self.stood.append((unit, len(parts)))
        return Joined(tuple(parts)) if len(parts) > 1 else parts[0] if parts else ""

    def variables(self, ops: Sequence[Op]) -> list[Named | PromptEnd | Unit]:
        """What is stored, the named texts and lists outside forks, and the steps whose blocks have some."""
        found: list[Named | PromptEnd | Unit] = []
        since: dict[str, int] = {}  # where each name stands, behind the last step that may change it
        before: list[tuple[Unit, Texts]] = []  # what the prompt says before a step in which the program may end
        for number, op in enumerate(ops):
            if not isinstance(op, _NAMES):
                continue
            match op:
                case Gen() | Select() | Join() if (stored := variable_of(op)) is not None:
                    name, value = stored, op.results[-1]
                case Store(name, (tuple(parts), turns)) if name == _PROMPT:
                    texts = (self.scope.parts(part) for part in parts if isinstance(part, Value | str))
                    whole = tuple(chain.from_iterable(texts))
                    behind = (at for at in range(number + 1, len(ops)) if not isinstance(ops[at], Format))
                    following = next(behind, None)
                    if following is not None and any_effect(ops[following], Effect.LEAVES):
                        before.append((self.units_of[following], whole))
                    else:
                        found.append(PromptEnd(self.prompt(whole, before), self.scope.tree(turns)))
                    continue
                case Store(name, value):
                    pass
                case Cond() | Switch() | Loop() | Map():
                    unit = self.units_of[number]
                    held = blocks_of(unit.step) if unit.step is not None else ()
                    if any(self.lowering.blocks[inner].variables for inner in held):
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
