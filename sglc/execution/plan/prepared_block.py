"""What is known of a block and its segments before they run: names by number, who waits for them, the order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sglc.execution.bind import Template, asked_in
from sglc.execution.plan.values import Names, Read
from sglc.ir.core import Site
from sglc.ir.plan.plan import (
    Block,
    CallStep,
    CondStep,
    FunctionStep,
    HostStep,
    LoopStep,
    MapStep,
    Named,
    OutputTree,
    PromptEnd,
    Step,
    SwitchStep,
    ValueStep,
    Within,
    blocks_of,
)
from sglc.ir.plan.segment import GenNode, Held, KeepNode, Segment, SelectNode, Slot, behind
from sglc.ir.plan.uses import BlockEffects, Name, Uses, block_ends, gives_of, names_in
from sglc.ir.pure import STORED

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Blocks:
    """All blocks of a plan. `effects`: None where nothing in it has to wait for effects before it."""

    blocks: Sequence[Block]
    uses: Uses
    effects: BlockEffects | None


class PreparedSegment:
    """By node: `gives` has the numbers of the names that are what it makes, `ends` the kept streams that wait
    for it, as places in `keeps`.

    `texts` and `opened` are what it reads, by name; of a stream of its own block that it opens also the number.
    By place: `keeps` has the nodes that keep a stream, `handles` and `kept` under what, `left` for how many
    generations each waits. `there` are those that wait for none.
    """

    def __init__(self, segment: Segment, read: Collection[Name], names: Names) -> None:
        self.segment = segment
        self.empty = not segment.nodes
        self.texts: list[tuple[str, Read]] = [
            (name.name, names.reader(name)) for name in read if isinstance(name, Slot)
        ]
        self.opened: list[tuple[str, Read, int | None]] = [
            (name.name, names.reader(name), names.own.get(name))
            for name in read
            if isinstance(name, Held) and name.name is not None
        ]
        self.asked = tuple(asked_in(segment))
        self.gives: dict[int, list[int]] = {}
        for name, index in segment.gives:
            self.gives.setdefault(index, []).append(names.own[Slot(name)])
        self.keeps: list[KeepNode] = []
        self.left: list[int] = []
        self.ends: dict[int, list[int]] = {}
        for index, node in enumerate(segment.nodes):
            if isinstance(node, KeepNode):
                waits = _generations(segment, index)
                for source in waits:
                    self.ends.setdefault(source, []).append(len(self.keeps))
                self.keeps.append(node)
                self.left.append(len(waits))
        self.handles = [node.handle for node in self.keeps]
        self.kept = [names.own[Held(str(handle))] for handle in self.handles]
        self.there = [place for place, waits in enumerate(self.left) if not waits]

    @cached_property
    def template(self) -> Template:
        """For the program itself."""
        return Template(self.segment)

    @cached_property
    def placed(self) -> Template:
        """For where it stands in a called program or in a loop."""
        return Template(self.segment, placed=True)


def _generations(segment: Segment, index: int) -> list[int]:
    """The generations that node `index` waits for, directly or not."""
    return [at for at in sorted(behind(segment, index)) if isinstance(segment.nodes[at], GenNode | SelectNode)]


class PreparedStep:
    """A step that reads `names`, for itself and for its blocks, and gives `gives`, of the block `around` it.

    `gives` and `held` are names of its block by number: those that it gives, and the streams that it reads.
    `streams`: it may give some. All else is found out when the step first begins: a run waits for answers then.
    """

    def __init__(self, step: Step, names: Collection[Name], gives: Iterable[Name], around: Names) -> None:
        own = around.own
        self.step = step
        self._names = names
        self._around = around
        self.gives = tuple([own[name] for name in gives])
        self.held = tuple([own[name] for name in names if isinstance(name, Held) and name in own])
        self.streams = Held in map(type, gives)
        self.inner: dict[int, PreparedBlock] = {}  # those of its blocks that have begun, by place

    @cached_property
    def segment(self) -> PreparedSegment | None:
        """If it is one."""
        step = self.step
        return PreparedSegment(step, self._names, self._around) if isinstance(step, Segment) else None

    @cached_property
    def reads(self) -> tuple[Read, ...]:
        """Its own operands, in order."""
        return tuple([self._around.reader(tree) for tree in operands_of(self.step)])

    @cached_property
    def named(self) -> Mapping[str, Read]:
        """Those that a function is given by name."""
        named = self.step.named if isinstance(self.step, FunctionStep) else {}
        return {key: self._around.reader(tree) for key, tree in named.items()}

    @cached_property
    def whole(self) -> tuple[Read, ...]:
        """All names that it and its blocks read."""
        return tuple([self._around.reader(name) for name in self._names])


@dataclass(frozen=True, slots=True)
class PreparedVariable:
    """A variable, and the generation that makes it if it is what one makes."""

    name: str
    read: Read
    names: tuple[Name, ...]
    tree: OutputTree
    site: Site | None


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """Where the program's prompt ends."""

    text: Read
    turns: Read | None  # None: it has none
    names: tuple[Name, ...]
    end: PromptEnd


@dataclass(frozen=True, slots=True)
class Order:
    """The effects of a block's steps: which step `has` some, and of each step the number of the last one
    `before` it that has, and of the last one before it that may hand over to Python, or pauses; of calls of
    tools, in which the program may raise too. `last` is the last of all, `gate` of those that may hand over.

    `waits`: whether a step begins behind those before it.
    """

    has: tuple[bool, ...]
    waits: tuple[bool, ...]
    before: tuple[int, ...]
    gates: tuple[int, ...]
    last: int
    gate: int


class PreparedBlock:
    """A block inside the one that holds it.

    By number of a name: `waiting` has the steps that wait for it, `left` how many read it as a stream. By
    number of a step: `missing` is for how much it waits. `held`: it reads streams; `opened`: of its parameters.

    Args:
        arm: it is one of those of which a step runs one.
    """

    def __init__(
        self, block: Block, plan: Blocks, outer: PreparedBlock | None = None, *, arm: bool = False
    ) -> None:
        self._plan = plan
        gives = [gives_of(step) for step in block.steps]
        given = [name for names in gives for name in names]
        around: Names | None = None if outer is None else outer.names
        # An arm that does nothing is read as if it stood in the block around.
        self.nothing = arm and around is not None and not (block.params or block.steps or block.variables)
        self.names: Names = (
            around if self.nothing and around is not None else Names((*block.params, *given), around)
        )
        own = {} if self.nothing else self.names.own
        self.params = len(block.params)
        self.count = len(own)
        reads = [plan.uses.reads(step) for step in block.steps]
        self.steps = [PreparedStep(*each, self.names) for each in zip(block.steps, reads, gives, strict=True)]
        self.order = _order(block, plan.effects) if plan.effects is not None else None
        self.waiting: list[list[int]] = [[] for _ in own]
        self.missing = [0] * len(block.steps)
        self.left = [0] * len(own)
        for number, names in enumerate(reads):
            for name in names:
                if (place := own.get(name, NOBODY)) >= self.params:
                    self.waiting[place].append(number)
                    self.missing[number] += 1
        self.first = [number for number, count in enumerate(self.missing) if not count]
        ends = [
            own[name] for name in dict.fromkeys(block_ends(block)) if isinstance(name, Held) and name in own
        ]
        self.ends = tuple(ends)
        for number in (*ends, *(number for step in self.steps for number in step.held)):
            self.left[number] += 1
        self.held = any(self.left)
        self.opened = [number for number, count in enumerate(self.left[: self.params]) if count]
        self.block = block
        self.streams = Held in map(type, names_in(block.results))

    @cached_property
    def results(self) -> list[Read]:
        """What it gives at its end."""
        return [self.names.reader(tree) for tree in self.block.results]

    @cached_property
    def sites(self) -> dict[Name, Site]:
        """What generations of the block make, and the place of each in its program."""
        return _sites(self.block)

    @cached_property
    def variables(self) -> tuple[PreparedVariable | PreparedPrompt | Within, ...]:
        """What it stores at its end, in order."""
        return tuple([self._variable(variable) for variable in self.block.variables])

    def inner(self, step: PreparedStep, place: int) -> PreparedBlock:
        """The block of a step at `place` among those that it holds."""
        found = step.inner.get(place)
        if found is None:
            around = None if isinstance(step.step, CallStep) else self
            arm = isinstance(step.step, CondStep | SwitchStep)
            found = PreparedBlock(self._plan.blocks[blocks_of(step.step)[place]], self._plan, around, arm=arm)
            step.inner[place] = found
        return found

    def _variable(self, variable: Named | PromptEnd | Within) -> PreparedVariable | PreparedPrompt | Within:
        match variable:
            case Named(name, tree):
                site = self.sites.get(tree) if isinstance(tree, Slot) else None
                made = site if site is not None and site.name == name else None
                return PreparedVariable(name, self.names.reader(tree), tuple(names_in(tree)), tree, made)
            case PromptEnd(said, turns):
                read = self.names.reader(turns) if turns != () else None
                return PreparedPrompt(self.names.reader(said), read, tuple(names_in((said, turns))), variable)
            case Within():
                return variable


def operands_of(step: Step) -> tuple[OutputTree, ...]:
    """What a step reads by itself, by place."""
    match step:
        case ValueStep():
            return step.operands
        case FunctionStep() | CallStep():
            return step.args
        case CondStep():
            return (step.pred,)
        case SwitchStep():
            return (step.value,)
        case LoopStep():
            return step.init
        case MapStep():
            return (step.items,)
        case HostStep():
            return step.reads
        case Segment():
            return ()


def _sites(block: Block) -> dict[Name, Site]:
    found: dict[Name, Site] = {}
    for step in block.steps:
        match step:
            case Segment():
                for name, index in step.gives:
                    node = step.nodes[index]
                    if isinstance(node, GenNode | SelectNode):
                        found[Slot(name)] = node.site
            case FunctionStep(name, function, (Slot() as text,)) if function.endswith(STORED) and text in found:
                found[Slot(name)] = found[text]
            case _:
                continue
    return found


def _order(block: Block, effects: BlockEffects) -> Order:
    has = [effects.has_effects(step) for step in block.steps]
    waits = [isinstance(step, FunctionStep) and step.in_order for step in block.steps]
    before, gates = [], []
    last = gate = end = NOBODY
    for number, step in enumerate(block.steps):
        before.append(last)
        gates.append(end if isinstance(step, FunctionStep) and step.effects else gate)
        if effects.hands_over(step):
            gate = number
        if effects.may_end(step):
            end = number
        if has[number]:
            last = number
    return Order(tuple(has), tuple(waits), tuple(before), tuple(gates), last, gate)
