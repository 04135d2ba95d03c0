"""A plan as text for people: one node a line. It is not parsed back; `plan_json` is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from sglc.errors import Loc
from sglc.ir.core import Site
from sglc.ir.plan import (
    ControlText,
    ExtendNode,
    ForkNode,
    GenNode,
    HostStep,
    Joined,
    KeepNode,
    Node,
    OpenNode,
    Output,
    OutputTree,
    Part,
    Plan,
    ReleaseNode,
    Result,
    SelectNode,
    Slot,
)
from sglc.ir.sampling import Sampling

_DEFAULT = Sampling()


def plan_text(plan: Plan) -> str:
    """The plan's steps, results and estimate, ending in a newline.

    Control tokens stand in angle brackets as they are written, arguments and results in braces.
    """
    made = f"# for `{plan.target}`" + (f", tokenizer {plan.tokenizer[:12]}" if plan.tokenizer else "")
    lines = [f"plan {plan.program}({', '.join(plan.params)})  {made}"]
    for number, step in enumerate(plan.steps):
        match step:
            case HostStep():
                lines.append(f"  step {number}: ordinary Python, {step.reason}{_place(step.loc)}")
            case _:
                lines.append(f"  step {number}: one segment of {len(step.nodes)} nodes")
                lines += [f"    n{i} = {_node(node, plan.program)}" for i, node in enumerate(step.nodes)]
    lines += [f"  {name} = {_tree(tree)}" for name, tree in plan.variables.items()]
    if plan.returns is not None:
        lines.append(f"  return {_tree(plan.returns)}")
    e = plan.estimate
    lines.append(
        f"  # {e.calls} calls, {e.critical_path} one after another; {e.literal_tokens} literal tokens, "
        f"at most {e.max_new_tokens} new ones"
    )
    return "\n".join(lines) + "\n"


def _node(node: Node, function: str) -> str:
    match node:
        case OpenNode():
            return "open" if node.handle is None else f"open {node.handle!r}"
        case ExtendNode():
            return f"extend n{node.stream} {' '.join(_part(part) for part in node.parts)}"
        case GenNode():
            return (
                f"gen n{node.stream} {_site(node.site, function)}{_sampling(node.sampling)}{_place(node.loc)}"
            )
        case SelectNode():
            choices = " | ".join(_part(choice) for choice in node.choices)
            return f"select n{node.stream} {_site(node.site, function)} {choices}{_place(node.loc)}"
        case ForkNode():
            return f"fork n{node.stream} into {node.size}"
        case KeepNode():
            return f"keep n{node.stream} as {node.handle!r}"
        case ReleaseNode():
            return f"release {node.handle}"


def _part(part: Part) -> str:
    match part:
        case str():
            return repr(part)
        case ControlText():
            return part.text or f"<{','.join(map(str, part.ids))}>"
        case Slot():
            return f"{{{part.name}}}"
        case Result():
            return f"{{n{part.node}}}"


def _tree(tree: OutputTree) -> str:
    match tree:
        case Output():
            return f"n{tree.node}"
        case Slot():
            return f"{{{tree.name}}}"
        case Joined():
            return " + ".join(_tree(part) for part in tree.parts)
        case tuple():
            return f"[{', '.join(_tree(part) for part in tree)}]"
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
