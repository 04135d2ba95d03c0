"""The names of one run of a block, and the streams among them that still have readers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sglc.execution.plan.values import Kept, Value
from sglc.ir.core import Site
from sglc.ir.plan.plan import Block, FunctionStep, Step, blocks_of
from sglc.ir.plan.segment import GenNode, Held, KeepNode, Segment, SelectNode, Slot, reads
from sglc.ir.plan.uses import Name, Uses, block_ends, gives_of
from sglc.ir.pure import STORED


@dataclass(frozen=True, slots=True)
class Failed:
    """Stands for what a failed step should have given."""

    error: Exception


class Facts:
    """What is known of a block before it runs."""

    def __init__(self, block: Block, uses: Uses) -> None:
        self.reads = [tuple(uses.reads(step)) for step in block.steps]
        self.effects = [uses.has_effects(step) for step in block.steps]
        self.hands_over = [uses.hands_over(step) for step in block.steps]
        self.gives = [name for step in block.steps for name in gives_of(step)]
        # What generations of the block make, and the place of each in its program.
        self.sites: dict[Name, Site] = {
            Slot(name): node.site
            for step in block.steps
            if isinstance(step, Segment)
            for name, index in step.gives
            if isinstance(node := step.nodes[index], GenNode | SelectNode)
        }
        for step in block.steps:
            match step:
                case FunctionStep(name, function, (Slot() as text,)) if function.endswith(STORED):
                    if text in self.sites:
                        self.sites[Slot(name)] = self.sites[text]
        self.ends = tuple(dict.fromkeys(block_ends(block)))
        self.readers = Counter(name for reads in (*self.reads, self.ends) for name in reads)
        self.chains = _chains(block, self.reads)
        self.flat = len(self.chains) == 1 and not any(map(blocks_of, block.steps))


def _chains(block: Block, wanted: Sequence[Sequence[Name]]) -> list[list[int]]:
    """The steps of a block; together those of which each can begin no earlier than the one before it ends."""
    chains: list[list[int]] = []
    lasts: dict[Name, list[int]] = {}  # by what the last step of a chain gives as it ends: its chain
    for number, step in enumerate(block.steps):
        chain = next((lasts[name] for name in wanted[number] if name in lasts), None)
        if chain is None:
            chains.append(chain := [])
        for name in [name for name, known in lasts.items() if known is chain]:
            del lasts[name]  # only the last one's names
        chain.append(number)
        lasts.update(dict.fromkeys(_at_its_end(step), chain))
    return chains


def _at_its_end(step: Step) -> tuple[Name, ...]:
    """What a step gives when it ends, and no earlier."""
    if not isinstance(step, Segment):
        return gives_of(step)
    asked = {i for i, node in enumerate(step.nodes) if isinstance(node, GenNode | SelectNode)}
    given: list[tuple[Name, int]] = [(Slot(name), index) for name, index in step.gives]
    given += [(Held(str(node.handle)), node.stream) for node in step.nodes if isinstance(node, KeepNode)]
    return tuple([name for name, index in given if asked <= behind(step, index)])


def behind(segment: Segment, index: int) -> set[int]:
    """Node `index` of a segment, and every node that it waits for, directly or not."""
    seen = {index}
    for at in range(index, -1, -1):
        if at in seen:
            seen.update(reads(segment.nodes[at]))
    return seen


class Scope:
    """The names that one run of a block gives, round those of the block that holds it.

    `left` counts the readers of each stream that have not ended: its steps, and the block's end.
    """

    def __init__(self, block: Block, facts: Facts, outer: Scope | None) -> None:
        self.outer = outer
        self.values: dict[Name, asyncio.Future[Value | Failed]] = {}
        self.left = Counter(facts.readers)
        self.variables: dict[int, dict[str, Value]] = {}  # by step, of the blocks that it ran
        loop = asyncio.get_running_loop()
        for name in (*block.params, *facts.gives):
            self.values[name] = loop.create_future()

    def give(self, name: Name, value: Value | Failed) -> None:
        """Enter what `name` is, once."""
        if isinstance(value, Kept) and self.left[name]:
            value.hold()
        if not self.values[name].done():
            self.values[name].set_result(value)

    async def find(self, names: Sequence[Name]) -> dict[Name, Value]:
        """The values of names, when they are there.

        Raises:
            the error of the first that will not come.
        """
        found: dict[Name, Value] = {}
        for name in names:
            scope: Scope | None = self
            while scope is not None and name not in scope.values:
                scope = scope.outer
            value = Kept(None) if scope is None else await scope.values[name]
            if isinstance(value, Failed):
                raise value.error
            found[name] = value
        return found

    def there(self, names: Iterable[Name]) -> dict[Name, Value] | None:
        """The values of names as far as they are there, None for the others; None if no value is there."""
        found: dict[Name, Value] = {}
        missing = 0
        for name in dict.fromkeys(names):
            scope: Scope | None = self
            while scope is not None and name not in scope.values:
                scope = scope.outer
            given = None if scope is None else scope.values[name]
            value = given.result() if given is not None and given.done() and not given.cancelled() else None
            missing += value is None or isinstance(value, Failed)
            found[name] = None if isinstance(value, Failed) else value
        return None if found and missing == len(found) else found

    def read(self, names: Sequence[Name]) -> None:
        """A reader of `names` has ended."""
        for name in names:
            if name in self.values and isinstance(name, Held):
                self.left[name] -= 1
                given = self.values[name]
                there = given.done() and not given.cancelled()
                if not self.left[name] and there and isinstance(kept := given.result(), Kept):
                    kept.drop()
