"""What a plan's marked generations ask for, as far as that shows before it runs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress

from sglc.ir.plan.plan import CallStep, LoopStep, MapStep, Plan, steps_of
from sglc.ir.plan.segment import (
    ASKED,
    ExtendNode,
    ForkNode,
    GenNode,
    KeepNode,
    Node,
    NodeResult,
    OpenNode,
    Part,
    ReleaseNode,
    RoleMark,
    Segment,
    SelectNode,
    Slot,
    joined,
    origin,
    reads,
)
from sglc.ir.plan.uses import Name, node_reads
from sglc.ir.target import ControlText

_WRITTEN = (str, RoleMark, ControlText)  # parts that are known before a run


@dataclass(frozen=True)
class Asked:
    """What the marked generations of a plan ask for, as far as that shows before it runs.

    `names` are those of its arguments, `segments` those that have marked ones, and whether each is a step of
    the program itself. `repeats`: one run may ask for the same twice.
    """

    names: tuple[str, ...]
    segments: Sequence[tuple[Segment, bool]]
    repeats: bool

    @cached_property
    def arguments(self) -> tuple[tuple[str, ...], ...]:
        """The names of those that a prompt is made of, for each prompt once: only rows of a batch have to know.

        What stands in a block, or behind another step, may depend on every argument.
        """
        found: dict[tuple[str, ...], None] = {}
        for segment, own_step in self.segments:
            for read in compress(_read(segment), map(_is_marked, segment.nodes)):
                own = tuple([name for name in self.names if Slot(name) in read])
                found[own if own_step and len(own) == len(read) else self.names] = None
        return tuple(found)


NOTHING_ASKED = Asked((), (), False)


def asked_in_plan(plan: Plan) -> Asked:
    """What a plan asks for."""
    steps = list(steps_of(plan))
    segments = [step for step in steps if isinstance(step, Segment) and any(map(_is_marked, step.nodes))]
    if not segments:
        return NOTHING_ASKED
    top = {id(step) for step in plan.steps}
    placed = [(segment, id(segment) in top) for segment in segments]
    repeats = any(isinstance(step, LoopStep | MapStep | CallStep) for step in steps) and not all(
        own_step for _, own_step in placed
    )
    count = sum(_is_marked(node) for segment in segments for node in segment.nodes)
    return Asked(plan.names, placed, repeats or (count > 1 and _asks_again(segments)))


def _asks_again(segments: Iterable[Segment]) -> bool:
    """Whether two of the marked generations of a plan ask for the same."""
    numbers: dict[Hashable, int] = {}
    asked = [
        number
        for segment in segments
        for number in compress(numbered(segment, numbers), map(_is_marked, segment.nodes))
    ]
    return len(set(asked)) < len(asked)


def _is_marked(node: Node) -> bool:
    return isinstance(node, ASKED) and node.unify


def known_questions(plan: Plan, texts: Mapping[str, str]) -> list[Hashable]:
    """What the marked generations of one run ask for, equal for what is made once.

    Of those alone that every run makes, whose prompts are made of literals and of `texts`, the arguments, and
    whose `max_tokens` are written in the program.
    """
    found: list[Hashable] = []
    for segment in plan.steps:
        if not isinstance(segment, Segment):
            continue
        for node in segment.nodes:
            if not (isinstance(node, GenNode | SelectNode) and node.unify):
                continue
            if isinstance(node, GenNode) and node.limit:
                continue
            prompt = _prompt(segment, node.stream, texts)
            choices = _filled(node.choices, texts) if isinstance(node, SelectNode) else []
            if prompt is not None and choices is not None:
                asked = node.sampling if isinstance(node, GenNode) else node.method
                found.append((asked, tuple(choices), joined(prompt)))
    return found


def _read(segment: Segment) -> Iterator[frozenset[Name]]:
    """Of each node, the names that it and what it waits for read from the environment."""
    found: list[frozenset[Name]] = []
    for node in segment.nodes:
        before = [found[source] for source in dict.fromkeys(reads(node))]
        own = frozenset(node_reads(node))
        most = max([own, *before], key=len)
        found.append(most if all(names <= most for names in (own, *before)) else own.union(*before))
        yield found[-1]


def numbered(segment: Segment, numbers: dict[Hashable, int]) -> Iterator[int]:
    """Of each generation and choice, a number that is equal for what reads the same names and literals in the
    same order, and asks the same of it; of any other node -1.

    A prompt is the number of what stands before its last literal, and that literal. So what is compared does
    not grow with the generations that stand before: they are numbers in it. `numbers` has all that were given.
    """

    def number(what: Hashable) -> int:
        return numbers.setdefault(what, len(numbers))

    prompts: list[tuple[int, str]] = []
    made: list[int] = []
    for node in segment.nodes:
        signature = -1
        match node:
            case OpenNode(handle):
                prompt = number(("open", handle)), ""
            case ExtendNode(stream, parts):
                prompt = prompts[stream]
                for part in parts:
                    before, text = prompt
                    known = ("made", made[part.node]) if isinstance(part, NodeResult) else part
                    prompt = (before, text + part) if type(part) is str else (number((*prompt, known)), "")
            case GenNode(stream) | SelectNode(stream):
                own = (node.sampling, node.limit) if isinstance(node, GenNode) else (node.choices, node.method)
                signature = number(("asked", own, prompts[stream]))
                prompt = number((*prompts[stream], ("made", signature))), ""
            case ForkNode(stream) | KeepNode(stream):
                prompt = prompts[stream]
            case ReleaseNode():
                prompt = -1, ""  # nobody goes on behind it
        prompts.append(prompt)
        made.append(signature)
        yield signature


def _prompt(segment: Segment, index: int, texts: Mapping[str, str]) -> list[Part] | None:
    """The parts of the prompt behind a node; None where one is not known before a run."""
    begin, parts = origin(segment.nodes, index)
    return _filled(parts, texts) if segment.nodes[begin] == OpenNode() else None


def _filled(parts: Iterable[Part], texts: Mapping[str, str]) -> list[Part] | None:
    """Parts with `texts` in them; None where one is not known before a run."""
    own = [texts.get(part.name, part) if isinstance(part, Slot) else part for part in parts]
    return own if all(isinstance(part, _WRITTEN) for part in own) else None
