"""The reference meaning of plans, to compare with that of the programs they were lowered from.

Steps run one after another in their order; a kept stream is its text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from sglc.errors import RunError
from sglc.ir.core import Site
from sglc.ir.depth import with_room
from sglc.ir.plan.plan import (
    Block,
    CallStep,
    CondStep,
    FunctionStep,
    HostStep,
    Joined,
    LoopStep,
    MapStep,
    OutputTree,
    Plan,
    Step,
    SwitchStep,
    ValueStep,
)
from sglc.ir.plan.segment import (
    ExtendNode,
    ForkNode,
    GenNode,
    Held,
    ImagePart,
    KeepNode,
    NodeResult,
    OpenNode,
    Part,
    ReleaseNode,
    RoleMark,
    Segment,
    SelectNode,
    Slot,
)
from sglc.ir.target import ControlText
from sglc.ir.values import Plain, case_of, evaluate, returned, text
from tests.reference.interpret import Meaning, Model
from tests.reference.python import as_plain, is_python, items_of, python_value


@with_room
def plan_meaning(
    plan: Plan, model: Model, args: Mapping[str, str], streams: Mapping[str, str] | None = None
) -> Meaning:
    """Interpret a plan with `args` as arguments and `streams` as streams that an earlier run kept.

    Raises:
        RunError: what the values make the program raise (`ir.values`).
    """
    given: _Names = {Slot(name): item for name, item in args.items()}
    given |= {Held(name): item for name, item in (streams or {}).items()}
    run = _Run(plan, model)
    try:
        (value,) = run.block(plan.body, _Place([given]))
    except _HandedOver as handed:
        answer = model.host(handed.reason, handed.reads)
        return Meaning(run.calls, answer, (*run.hosts, (handed.reason, handed.reads)))
    return Meaning(run.calls, as_plain(value), tuple(run.hosts))


_Names = dict[Slot | Held, Plain]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a block runs: the names it sees, innermost last, and what makes its sites distinct."""

    names: list[_Names]
    call: str = ""
    iterations: tuple[int, ...] = ()

    def inner(self, given: _Names, *iteration: int) -> _Place:
        return _Place([*self.names, given], self.call, (*self.iterations, *iteration))

    def find(self, name: Slot | Held) -> Plain:
        for names in reversed(self.names):
            if name in names:
                return names[name]
        assert isinstance(name, Held), name
        return ""  # nothing was kept


class _HandedOver(Exception):
    """Ordinary Python has taken over."""

    def __init__(self, reason: str, reads: tuple[Plain, ...]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.reads = reads


@dataclass(slots=True)
class _Run:
    plan: Plan
    model: Model
    calls: dict[Site, tuple[str, str]] = field(default_factory=dict)
    hosts: list[tuple[str, tuple[Plain, ...]]] = field(default_factory=list)

    def block(self, block: Block, at: _Place) -> list[Plain]:
        for step in block.steps:
            self.step(step, at)
        return [self.tree(tree, at) for tree in block.results]

    def inner(self, number: int, at: _Place, given: Sequence[Plain] = (), *iteration: int) -> list[Plain]:
        block = self.plan.blocks[number]
        return self.block(block, at.inner(dict(zip(block.params, given, strict=True)), *iteration))

    def step(self, step: Step, at: _Place) -> None:
        here = at.names[-1]
        match step:
            case Segment():
                _Nodes(self, step, at).run()
            case HostStep(error=str(name)) if name:
                said = self.tree(step.reads[0], at) if step.reads else step.reason
                raise RunError("SGLC401", f"`{name}`: {said}", step.loc)
            case HostStep():
                raise _HandedOver(step.reason, tuple(as_plain(self.tree(tree, at)) for tree in step.reads))
            case ValueStep():
                operands = tuple(self.tree(tree, at) for tree in step.operands)
                here[Slot(step.name)] = evaluate(step.operation, operands, step.loc)
            case FunctionStep():
                here[Slot(step.name)] = self.called(step, at)
            case CondStep():
                made = self.inner(step.then if self.tree(step.pred, at) else step.orelse, at)
                here.update(zip(step.gives, made, strict=True))
            case SwitchStep():
                default = len(step.arms) > len(step.cases)
                number = case_of(text(self.tree(step.value, at)), step.cases, default, step.loc)
                here.update(zip(step.gives, self.inner(step.arms[number], at), strict=True))
            case LoopStep():
                carried = [self.tree(tree, at) for tree in step.init]
                for number in range(step.max_iters):
                    again, *carried = self.inner(step.body, at, carried, number)
                    if not again:
                        break
                here.update(zip(step.gives, carried, strict=True))
            case MapStep():
                items = items_of(self.tree(step.items, at), step.loc)
                rows = [self.inner(step.body, at, (item,), number) for number, item in enumerate(items)]
                lists = zip(*rows, strict=True) if rows else [()] * len(step.gives)
                here.update(zip(step.gives, lists, strict=True))
            case CallStep():
                block = self.plan.blocks[step.body]
                args = tuple(self.tree(tree, at) for tree in step.args)
                call = str(step.site.inside(at.call, at.iterations))
                made = self.block(block, _Place([dict(zip(block.params, args, strict=True))], call))
                here.update(zip(step.gives, made, strict=True))
            case _:
                assert_never(step)

    def called(self, step: FunctionStep, at: _Place) -> Plain:
        exact = tuple(self.tree(tree, at) for tree in step.args)
        exact_named = {key: self.tree(tree, at) for key, tree in step.named.items()}
        args, named = as_plain(exact), as_plain(exact_named)
        if step.effects:
            self.hosts.append((step.function, (args, named)))
        if is_python(step.function):
            return python_value(step.function, exact, exact_named, step.gives, step.loc)
        made = self.model.declared(step.function, args, named)
        return returned(step.function, made, step.gives, step.loc)

    def tree(self, tree: OutputTree, at: _Place) -> Plain:
        match tree:
            case Held(None):
                return ""
            case Slot() | Held():
                return at.find(tree)
            case Joined():
                return "".join(text(self.tree(part, at)) for part in tree.parts)
            case tuple():
                return tuple(self.tree(part, at) for part in tree)
            case Mapping():
                return {key: self.tree(part, at) for key, part in tree.items()}
            case _:
                return tree


class _Nodes:
    """One segment: of each node the text of the stream behind it, and its own text."""

    def __init__(self, run: _Run, segment: Segment, at: _Place) -> None:
        self.run_of = run
        self.segment = segment
        self.at = at
        self.made: list[tuple[str, str]] = []

    def run(self) -> None:
        here = self.at.names[-1]
        for node in self.segment.nodes:
            match node:
                case OpenNode(handle=None):
                    self.made.append(("", ""))
                case OpenNode():
                    self.made.append((text(self.at.find(Held(str(node.handle)))), ""))
                case ExtendNode():
                    parts = (self.part(part) for part in node.parts)
                    self.made.append((self.made[node.stream][0] + "".join(parts), ""))
                case ForkNode():
                    self.made.append(self.made[node.stream])
                case KeepNode():
                    self.made.append(self.made[node.stream])
                    here[Held(str(node.handle))] = self.made[node.stream][0]
                case GenNode() | SelectNode():
                    self.made.append(self.generated(node))
                case ReleaseNode():
                    self.made.append(("", ""))
                case _:
                    assert_never(node)
        here.update((Slot(name), self.made[node][1]) for name, node in self.segment.gives)

    def generated(self, node: GenNode | SelectNode) -> tuple[str, str]:
        prefix, model = self.made[node.stream][0], self.run_of.model
        site = node.site.inside(self.at.call, self.at.iterations)
        if isinstance(node, GenNode):
            answer = model.generate(site, prefix)
        else:
            choices = tuple(self.part(choice) for choice in node.choices)
            answer = choices[model.choose(site, prefix, choices)]
        assert site not in self.run_of.calls, site
        self.run_of.calls[site] = (prefix, answer)
        return prefix + answer, answer

    def part(self, part: Part) -> str:
        match part:
            case str():
                return part
            case ControlText() | RoleMark():
                return part.text
            case Slot():
                return text(self.at.find(part))
            case NodeResult():
                return self.made[part.node][1]
            case ImagePart():
                return f"picture({self.part(part.data)})"
            case _:
                assert_never(part)
