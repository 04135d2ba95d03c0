"""What the steps of a plan read from the environment, and what they give to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import assert_never

from sglc.ir.plan.plan import (
    Block,
    CallStep,
    CondStep,
    FunctionStep,
    HostStep,
    Joined,
    LoopStep,
    MapStep,
    Named,
    OutputTree,
    PromptEnd,
    Step,
    SwitchStep,
    ValueStep,
    blocks_of,
)
from sglc.ir.plan.segment import (
    ExtendNode,
    GenNode,
    Held,
    ImagePart,
    KeepNode,
    Node,
    OpenNode,
    Segment,
    SelectNode,
    Slot,
)
from sglc.ir.pure import PAUSE, PURE, STORED

Name = Slot | Held
Names = dict[Name, None]  # in order of their first mention


def names_in(tree: OutputTree) -> list[Name]:
    """Every value and stream in a tree, in order."""
    match tree:
        case Slot() | Held(str()):
            return [tree]
        case str() | None:
            return []
        case Joined(parts):
            return [part for part in parts if isinstance(part, Slot)]
        case tuple():
            return [name for part in tree if type(part) is not str for name in names_in(part)]
        case Mapping():
            return [name for part in tree.values() for name in names_in(part)]
        case _:
            return []


def node_reads(node: Node) -> Sequence[Name]:
    """What a node reads from the environment."""
    match node:
        case OpenNode(str() as name):
            return (Held(name),)
        case ExtendNode():
            data = [part.data if isinstance(part, ImagePart) else part for part in node.parts]
            return [part for part in data if isinstance(part, Slot)]
        case GenNode(limit=str(limit)) if limit:
            return (Slot(limit),)
        case SelectNode():
            return [choice for choice in node.choices if isinstance(choice, Slot)]
        case _:
            return ()


def own_reads(step: Step) -> Sequence[Name]:
    """What a step reads by itself, without its blocks."""
    match step:
        case Segment():
            return [name for node in step.nodes for name in node_reads(node)]
        case HostStep():
            return names_in(step.reads)
        case ValueStep():
            return names_in(step.operands)
        case CondStep():
            return names_in(step.pred)
        case SwitchStep():
            return names_in(step.value)
        case LoopStep():
            return names_in(step.init)
        case MapStep():
            return names_in(step.items)
        case CallStep():
            return names_in(step.args)
        case FunctionStep():
            return [*names_in(step.args), *names_in(step.named)]
        case _:
            assert_never(step)


def gives_of(step: Step) -> tuple[Name, ...]:
    """What a step gives."""
    match step:
        case Segment():
            kept = (Held(n.handle) for n in step.nodes if isinstance(n, KeepNode) and isinstance(n.handle, str))
            return (*(Slot(name) for name, _ in step.gives), *kept)
        case ValueStep() | FunctionStep():
            return (Slot(step.name),)
        case CondStep() | SwitchStep() | LoopStep() | MapStep() | CallStep():
            return step.gives
        case HostStep():
            return ()
        case _:
            assert_never(step)


class Uses:
    """What the steps of a plan read, those in their blocks included. Blocks are looked at once each."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._outside: list[Names] = []  # by block: what it reads from outside
        for block in blocks:  # a block holds only those before it
            self._outside.append(self._of_block(block))

    def reads(self, step: Step) -> Names:
        """What a step, and the blocks that it holds, read from outside of it."""
        found = dict.fromkeys(own_reads(step))
        if not isinstance(step, CallStep):
            for number in blocks_of(step):
                found.update(self._outside[number])
        return found

    def _of_block(self, block: Block) -> Names:
        found: Names = {}
        own: Names = dict.fromkeys(block.params)
        for step in block.steps:
            found.update(self.reads(step))
            own.update(dict.fromkeys(gives_of(step)))
        found.update(dict.fromkeys(block_ends(block)))
        return {name: None for name in found if name not in own}


class BlockEffects:
    """What the steps of a plan do beside giving values, those in their blocks included."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.effects: list[bool] = []  # by block: whether tools behind it have to wait for it
        self.handing_over: list[bool] = []
        self.ending: list[bool] = []
        for block in blocks:  # a block holds only those before it
            self.effects.append(any(map(self.has_effects, block.steps)))
            self.handing_over.append(any(map(self.hands_over, block.steps)))
            self.ending.append(any(map(self.may_end, block.steps)))

    def has_effects(self, step: Step) -> bool:
        """Whether tools behind a step have to wait for it.

        It calls one, the program may end in it, or it reads an object that a tool may change.
        """
        match step:
            case FunctionStep():
                if step.function not in PURE:
                    return not step.function.endswith(STORED)  # that only reads a text, and fails nobody
                return PURE[step.function].fails or _goes_through(step.function)
            case HostStep():
                return True
            case ValueStep():
                return step.operation == "parse_json"
            case SwitchStep() if len(step.arms) == len(step.cases):
                return True
        return any(self.effects[number] for number in blocks_of(step))

    def hands_over(self, step: Step) -> bool:
        """Whether the program may go on as Python in a step, or waits for a person: nothing behind it begins
        before."""
        if isinstance(step, HostStep):
            return not step.error
        if isinstance(step, FunctionStep):
            return step.function == PAUSE
        return any(self.handing_over[number] for number in blocks_of(step))

    def may_end(self, step: Step) -> bool:
        """Whether the program may raise, or go on as Python, in a step."""
        return isinstance(step, HostStep) or any(self.ending[number] for number in blocks_of(step))


def _goes_through(function: str) -> bool:
    """Whether it is a method of what a tool may change, or asks how one would fail."""
    return function.startswith(("list.", "dict.", "set.", "sglc.raises", "sglc.message"))


def block_ends(block: Block) -> Iterator[Name]:
    """What a block reads at its end: for its results, and for its variables."""
    yield from names_in(block.results)
    for variable in block.variables:
        if isinstance(variable, Named):
            yield from names_in(variable.value)
        elif isinstance(variable, PromptEnd):
            yield from names_in((variable.text, variable.turns))
