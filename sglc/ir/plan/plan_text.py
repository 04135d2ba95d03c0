"""A plan as text for people: one node a line. It is not parsed back; `plan_json` is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import assert_never

from sglc.errors import Loc
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
    Named,
    OutputTree,
    Param,
    Plan,
    Step,
    SwitchStep,
    ValueStep,
    Within,
)
from sglc.ir.plan.segment import (
    EncodedText,
    ExtendNode,
    ForkNode,
    GenNode,
    Held,
    ImagePart,
    KeepNode,
    Made,
    Node,
    NodeResult,
    OpenNode,
    Part,
    ReleaseNode,
    RoleMark,
    Segment,
    SelectNode,
    Slot,
)
from sglc.ir.sampling import Sampling
from sglc.ir.target import ControlText

_DEFAULT = Sampling()


@with_room
def plan_text(plan: Plan) -> str:
    """The plan's steps, results and estimate, ending in a newline.

    Control tokens stand in angle brackets as they are written, values of the environment in braces.
    """
    made = f"# for `{plan.target}`" + (f", tokenizer {plan.tokenizer[:12]}" if plan.tokenizer else "")
    printer = _Printer(plan)
    printer.lines.append(f"plan {plan.program}({', '.join(map(_param, plan.params))})  {made}")
    if plan.outputs is not None:
        printer.lines.append(f"  outputs {', '.join(map(repr, plan.outputs)) or 'none'}")
    printer.lines += [f"  guard {guard.fact} is {guard.expected}" for guard in plan.guards]
    printer.steps(plan.steps, "  ")
    printer.variables(plan.body, "  ")
    lines = printer.lines
    if plan.returns is not None:
        lines.append(f"  return {_tree(plan.returns)}")
    if (e := plan.estimate) is not None:
        lines.append(
            f"  # {e.calls} calls, {e.critical_path} one after another; {e.literal_tokens} literal tokens, "
            f"at most {e.max_new_tokens} new ones"
        )
    return "\n".join(lines) + "\n"


def _param(param: Param) -> str:
    kind = "" if param.kind == "str" else f": {param.kind}"
    return f"{param.name}{kind}" + ("" if param.default is None else f" = {param.default}")


class _Printer:
    """Steps of blocks are indented below the step that holds them."""

    def __init__(self, plan: Plan) -> None:
        self.function = plan.program
        self.blocks = plan.blocks
        self.lines: list[str] = []

    def steps(self, steps: Sequence[Step], indent: str) -> None:
        for number, step in enumerate(steps):
            self.step(f"{indent}step {number}: ", step, indent + "  ")

    def step(self, head: str, step: Step, inside: str) -> None:
        match step:
            case Segment():
                gives = f", gives {', '.join(name for name, _ in step.gives)}" if step.gives else ""
                self.lines.append(f"{head}one segment of {len(step.nodes)} nodes{gives}")
                names = {node: f"{name} = " for name, node in step.gives}
                self.lines += [
                    f"{inside}n{i} = {names.get(i, '')}{_node(node, self.function)}"
                    for i, node in enumerate(step.nodes)
                ]
            case HostStep():
                reads = f", reads {_trees(step.reads)}" if step.reads else ""
                what = f"raises {step.error}" if step.error else "ordinary Python"
                self.lines.append(f"{head}{what}, {step.reason}{reads}{_place(step.loc)}")
            case ValueStep():
                self.lines.append(
                    f"{head}{step.name} = {step.operation}({_trees(step.operands)}){_place(step.loc)}"
                )
            case FunctionStep():
                kind = "tool" if step.effects else "function"
                kind = f"overlapping {kind}" if step.effects and not step.in_order else kind
                given = ", ".join(
                    [*map(_tree, step.args), *(f"{key}={_tree(tree)}" for key, tree in step.named.items())]
                )
                self.lines.append(
                    f"{head}{step.name} = {kind} {step.function}({given}), a {step.gives}{_place(step.loc)}"
                )
            case CondStep():
                self.lines.append(f"{head}{_gives(step.gives)}if {_tree(step.pred)}{_place(step.loc)}")
                self.block(step.then, inside)
                self.lines.append(f"{inside[:-2]}else")
                self.block(step.orelse, inside)
            case SwitchStep():
                self.lines.append(f"{head}{_gives(step.gives)}switch {_tree(step.value)}{_place(step.loc)}")
                for case, arm in zip((*map(repr, step.cases), "_"), step.arms, strict=False):
                    self.lines.append(f"{inside}case {case}")
                    self.block(arm, inside + "  ")
            case LoopStep():
                init = _bound(self.blocks[step.body].params, step.init)
                self.lines.append(
                    f"{head}{_gives(step.gives)}loop at most {step.max_iters} times{init}{_place(step.loc)}"
                )
                self.block(step.body, inside)
            case MapStep():
                param = ", ".join(map(_tree, self.blocks[step.body].params))
                self.lines.append(
                    f"{head}{_gives(step.gives)}map {param} over {_tree(step.items)}{_place(step.loc)}"
                )
                self.block(step.body, inside)
            case CallStep():
                site = _site(step.site, self.function)
                args = _bound(self.blocks[step.body].params, step.args)
                self.lines.append(f"{head}{_gives(step.gives)}call {site}{args}{_place(step.loc)}")
                self.block(step.body, inside)
            case _:
                assert_never(step)

    def block(self, number: int, indent: str) -> None:
        block = self.blocks[number]
        self.steps(block.steps, indent)
        self.variables(block, indent)
        self.lines.append(f"{indent}yield {_trees(block.results)}".rstrip())

    def variables(self, block: Block, indent: str) -> None:
        for variable in block.variables:
            if isinstance(variable, Named):
                self.lines.append(f"{indent}{variable.name} = {_tree(variable.value)}")
            elif isinstance(variable, Within):  # the prompt's end says nothing that the segments do not
                self.lines.append(f"{indent}variables of step {variable.step}")


def _gives(names: Sequence[Slot | Held]) -> str:
    return f"{', '.join(str(name.name) for name in names)} = " if names else ""


def _bound(params: Sequence[Slot | Held], given: Sequence[OutputTree]) -> str:
    pairs = [f"{param.name} = {_tree(tree)}" for param, tree in zip(params, given, strict=True)]
    return f", {', '.join(pairs)}" if pairs else ""


def _node(node: Node, function: str) -> str:
    match node:
        case OpenNode():
            return "open" if node.handle is None else f"open {node.handle!r}"
        case ExtendNode():
            return f"extend n{node.stream} {' '.join(_part(part) for part in node.parts)}"
        case GenNode():
            return (
                f"gen n{node.stream} {_site(node.site, function)}{_sampling(node.sampling)}"
                f"{f' limit={{{node.limit}}}' if node.limit else ''}"
                f"{f' ahead={node.ahead}' if node.ahead else ''}{_hint(node)}{_place(node.loc)}"
            )
        case SelectNode():
            choices = " | ".join(_part(choice) for choice in node.choices)
            return (
                f"select n{node.stream} {_site(node.site, function)} {choices}{_hint(node)}{_place(node.loc)}"
            )
        case ForkNode():
            return f"fork n{node.stream} into {node.size}"
        case KeepNode():
            return f"keep n{node.stream} as {node.handle!r}"
        case ReleaseNode():
            return f"release {node.handle}"


def _hint(node: GenNode | SelectNode) -> str:
    said = f" cache_key={node.cache_key!r}" if node.cache_key else ""
    said += " unify" if node.unify else ""
    said += " fused" if node.fused else ""
    said += f" fsm=({node.fsm})" if node.fsm else ""
    said += f" next_use={node.next_use!r} most={node.most} behind={node.behind}" if node.next_use else ""
    return f"{said} form={node.form}" if isinstance(node, GenNode) and node.form else said


def _part(part: Part) -> str:
    match part:
        case str():
            return repr(part)
        case Made():
            return repr(part.text)
        case ControlText():
            return part.text or f"<{','.join(map(str, part.ids))}>"
        case EncodedText():
            return f"<{len(part.ids)} ids>"
        case RoleMark():
            return f"<{'' if part.begins else '/'}{part.role}>"
        case ImagePart():
            data = _part(part.data)
            return f"picture {data if len(data) <= 60 else data[:57] + '...'}"
        case Slot():
            return f"{{{part.name}}}"
        case NodeResult():
            return f"{{n{part.node}}}"


def _trees(trees: Sequence[OutputTree]) -> str:
    return ", ".join(map(_tree, trees))


def _tree(tree: OutputTree) -> str:
    match tree:
        case Slot():
            return f"{{{tree.name}}}"
        case Held():
            return "an empty stream" if tree.name is None else f"stream {tree.name!r}"
        case Joined():
            return " + ".join(_tree(part) for part in tree.parts)
        case tuple():
            return f"[{_trees(tree)}]"
        case Mapping():
            return "{" + ", ".join(f"{key!r}: {_tree(part)}" for key, part in tree.items()) + "}"
        case _:
            return repr(tree)


def _site(site: Site, function: str) -> str:
    return str(site).removeprefix(function).removeprefix(".").removesuffix("#0")


def _sampling(sampling: Sampling) -> str:
    given = ((field.name, getattr(sampling, field.name)) for field in fields(sampling))
    return "".join(f" {name}={item!r}" for name, item in given if item != getattr(_DEFAULT, name))


def _place(loc: Loc) -> str:
    return f"  # {loc}" if loc.line else ""
