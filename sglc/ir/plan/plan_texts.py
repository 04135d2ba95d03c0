"""Whether what a plan reads as texts are texts: what each name stands for, found block by block, once each.

A block is looked at before those that hold it, and so is what it reads from outside: whether that is a text is
asked where the block is held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from sglc.errors import VerifyError
from sglc.ir.core import OPS, Type
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
    Plan,
    PromptEnd,
    Step,
    SwitchStep,
    ValueStep,
    blocks_of,
)
from sglc.ir.plan.segment import Held, Segment, Slot
from sglc.ir.plan.uses import Name, gives_of, own_reads
from sglc.ir.values import OPERATIONS

# That something is a text: if these names of the block around are; None: it is none.
IsText = frozenset[Name] | None
_TEXT: IsText = frozenset()


def check_texts(plan: Plan) -> None:
    """What is read as a text is one, and no stream is in what is read as data.

    Args:
        plan: its names are given before they are read, and its blocks fit.

    Raises:
        VerifyError: SGLC221, with the path of the fault.
    """
    blocks: list[_Block] = []
    for number, block in enumerate(plan.blocks):
        blocks.append(
            _Block(block, blocks, f".blocks[{number}]", {name: frozenset([name]) for name in block.params})
        )
    params: dict[Name, IsText] = {
        Slot(param.name): _TEXT if param.kind == "str" else None for param in plan.params
    }
    _Block(plan.body, blocks, "", params)


class _Block:
    """One block: whether its results are texts, and what it reads from outside as texts, and where."""

    def __init__(
        self, block: Block, blocks: Sequence[_Block], path: str, params: Mapping[Name, IsText]
    ) -> None:
        self._blocks = blocks
        self._known = dict(params)
        self.params = block.params
        self.wanted: dict[Name, str] = {}
        for number, step in enumerate(block.steps):
            self._step(step, f"{path}.steps[{number}]")
        for number, variable in enumerate(block.variables):
            here = f"{path}.variables[{number}]"
            match variable:
                case Named(_, value):
                    self._joined(value, here)
                case PromptEnd(said, turns):
                    self._want(said, here)
                    self._data(turns, here)
                    for part in _leaves(turns):
                        if not isinstance(part, Slot):
                            self._want(part, here)
                case _:
                    continue
        self._joined(block.results, f"{path}.results")
        self.leaves = bool(block.steps) and isinstance(block.steps[-1], HostStep)
        self.results = [self._is_text(result) for result in block.results]

    def _step(self, step: Step, path: str) -> None:
        """Check what a step reads, and note what it gives."""
        inner = [self._blocks[number] for number in blocks_of(step)]
        gives: list[IsText] = [None] * len(gives_of(step))
        within: dict[Name, IsText] = {}  # what parameters of its block are
        match step:
            case Segment():
                for name in own_reads(step):
                    self._want(name, path)
                gives = [_TEXT if isinstance(name, Slot) else None for name in gives_of(step)]
            case ValueStep():
                self._data(step.operands, path)
                if OPERATIONS[step.operation].takes == (Type.TEXT,):
                    for operand in step.operands:
                        self._want(operand, path)
                gives = [_TEXT if OPS[step.operation].result_types == (Type.TEXT,) else None]
            case FunctionStep():
                self._data((step.args, step.named), path)
                gives = [_TEXT if step.gives == "text" else None]
            case HostStep():
                self._joined(step.reads, path)
                for read in step.reads if step.error else ():
                    self._want(read, path)
            case CondStep() | SwitchStep():
                if isinstance(step, SwitchStep):
                    self._want(step.value, path)
                back = [arm.results for arm in inner if not arm.leaves]
                gives = [_all(self._around(one, {}) for one in column) for column in zip(*back, strict=True)]
                gives = gives or [None] * len(step.gives)
            case LoopStep():
                self._joined(step.init, path)
                carried = [self._is_text(tree) for tree in step.init]
                within = dict(zip(inner[0].params, carried, strict=True))
                after = [self._around(one, within) for one in inner[0].results[1:]]
                gives = [_all(pair) for pair in zip(carried, after, strict=True)]
                within = dict(zip(inner[0].params, gives, strict=True))
            case MapStep():
                self._data(step.items, path)
                within = dict.fromkeys(inner[0].params, _TEXT)  # a run tells what is no text
            case CallStep():
                self._joined(step.args, path)
                within = dict(zip(inner[0].params, map(self._is_text, step.args), strict=True))
                gives = [self._around(one, within) for one in inner[0].results]
        for one in inner:
            for name, where in one.wanted.items():
                self._need(self._around(frozenset([name]), within), name, where)
        self._known.update(zip(gives_of(step), gives, strict=True))

    def _around(self, is_text: IsText, within: Mapping[Name, IsText]) -> IsText:
        """What a block that is held says of a text, in this one."""
        if is_text is None:
            return None
        return _all(within[name] if name in within else self._is_text(name) for name in is_text)

    def _is_text(self, tree: OutputTree) -> IsText:
        if isinstance(tree, Slot):
            return self._known.get(tree, frozenset([tree]))
        return _TEXT if isinstance(tree, str | Joined) else None

    def _want(self, tree: OutputTree, path: str) -> None:
        """It is read as a text."""
        if isinstance(tree, Joined):
            self._joined(tree, path)
        elif not isinstance(tree, Held):
            self._need(self._is_text(tree), tree, path)

    def _need(self, is_text: IsText, tree: OutputTree, path: str) -> None:
        if is_text is None:
            what = f"`{tree.name}`" if isinstance(tree, Slot | Held) else f"{tree!r}"
            raise VerifyError("SGLC221", f"this is no plan: `{path or '.'}` reads {what} as a text")
        for name in is_text:
            self.wanted.setdefault(name, path)

    def _joined(self, tree: OutputTree, path: str) -> None:
        """The parts of texts in it are texts."""
        for part in _leaves(tree):
            for text in part.parts if isinstance(part, Joined) else ():
                self._want(text, path)

    def _data(self, tree: OutputTree, path: str) -> None:
        """It holds no streams."""
        self._joined(tree, path)
        if any(isinstance(part, Held) for part in _leaves(tree)):
            raise VerifyError("SGLC221", f"this is no plan: `{path}` reads a stream as data")


def _all(several: Iterable[IsText]) -> IsText:
    """That all of them are texts."""
    found: frozenset[Name] = frozenset()
    for one in several:
        if one is None:
            return None
        found |= one
    return found


def _leaves(tree: OutputTree) -> Iterator[OutputTree]:
    match tree:
        case tuple():
            for part in tree:
                yield from _leaves(part)
        case Mapping():
            for part in tree.values():
                yield from _leaves(part)
        case _:
            yield tree
