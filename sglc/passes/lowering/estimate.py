"""Bounds of what a plan costs, from its literals and limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sglc.ir.plan.plan import Block, CondStep, Estimate, LoopStep, Step, SwitchStep, blocks_of
from sglc.ir.plan.segment import ExtendNode, GenNode, Held, KeepNode, Segment, SelectNode, Slot, reads
from sglc.ir.plan.uses import Uses, gives_of, node_reads
from sglc.ir.target import ControlText, Tokenizer


def estimate(steps: Sequence[Step], blocks: Sequence[Block], tokenizer: Tokenizer | None) -> Estimate:
    """Bounds of `steps`: literals as the tokenizer encodes them (0 without one), limits of generations."""
    inner: list[Estimate] = []
    uses = Uses(blocks)
    for block in blocks:  # a block holds only those before it
        inner.append(_Block(inner, uses, tokenizer).steps(block.steps))
    return _Block(inner, uses, tokenizer).steps(steps)


class _Block:
    """Adds up the steps of one block, whose own blocks are known."""

    def __init__(self, inner: Sequence[Estimate], uses: Uses, tokenizer: Tokenizer | None) -> None:
        self.inner = inner
        self.uses = uses
        self.tokenizer = tokenizer
        self.calls = self.literal_tokens = self.max_new_tokens = 0
        self.depths: dict[Slot | Held, int] = {}  # generations that must be done before it is there

    def steps(self, steps: Iterable[Step]) -> Estimate:
        deepest = 0
        for step in steps:
            here = self.segment(step) if isinstance(step, Segment) else self.decision(step)
            deepest = max(deepest, here)
        return Estimate(self.calls, self.literal_tokens, self.max_new_tokens, deepest)

    def decision(self, step: Step) -> int:
        before = max((self.depths.get(name, 0) for name in self.uses.reads(step)), default=0)
        held = [self.inner[number] for number in blocks_of(step)]
        if held:
            times = step.max_iters if isinstance(step, LoopStep) else 1
            least: Callable[[Iterable[int]], int] = min if isinstance(step, CondStep | SwitchStep) else sum
            self.calls += least(part.calls for part in held)
            self.literal_tokens += least(part.literal_tokens for part in held)
            self.max_new_tokens += times * max(part.max_new_tokens for part in held)
            before += least(part.critical_path for part in held)
        for name in gives_of(step):
            self.depths[name] = before
        return before

    def segment(self, segment: Segment) -> int:
        depths: list[int] = []
        for node in segment.nodes:
            depth = max((depths[i] for i in reads(node)), default=0)
            depth = max([depth, *(self.depths.get(name, 0) for name in node_reads(node))])
            match node:
                case GenNode():
                    self.calls += 1
                    self.max_new_tokens += node.sampling.max_tokens * node.sampling.n
                    depth += 1
                case SelectNode():
                    self.calls += 1
                    depth += 1
                case ExtendNode() if self.tokenizer is not None:
                    for part in node.parts:
                        match part:
                            case ControlText():
                                self.literal_tokens += len(part.ids)
                            case str():
                                self.literal_tokens += len(self.tokenizer.encode(part))
                case KeepNode(handle=str() as name):
                    self.depths[Held(name)] = depth
            depths.append(depth)
        for name, index in segment.gives:
            self.depths[Slot(name)] = depths[index]
        return max(depths, default=0)
