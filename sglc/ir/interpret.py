"""The reference meaning of programs and plans: a stream is a string, a generation a pure function.

Tests compare passes and lowering with it. Two programs mean the same if every generation sees the
same text and the results are equal; how texts are cut into appends or tokens has no part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from sglc.ir.core import Op, Program, Site, Tree, Value
from sglc.ir.ops import (
    Append,
    Arg,
    Control,
    Fork,
    Format,
    Gen,
    HostCall,
    Join,
    Resume,
    RoleClose,
    RoleOpen,
    Root,
    Select,
)
from sglc.ir.plan import (
    ControlText,
    ExtendNode,
    ForkNode,
    GenNode,
    Joined,
    KeepNode,
    OpenNode,
    Output,
    OutputTree,
    Part,
    Plan,
    ReleaseNode,
    Result,
    Segment,
    SelectNode,
    Slot,
)

Generate = Callable[[Site, str], str]  # site, prefix -> the text
Choose = Callable[[Site, str, tuple[str, ...]], int]  # site, prefix, choices -> which
Render = Callable[[Sequence[Mapping[str, str]], bool], str]  # messages, open an answer? -> template text
Plain = str | int | float | bool | None | tuple["Plain", ...] | Mapping[str, "Plain"]

_END = "\ue0a3"  # stands behind a content whose turn is open, to find where the template ends it


@dataclass(frozen=True, slots=True)
class Model:
    """What a program runs on: the answers, and the chat template (None: turns get plain marks)."""

    generate: Generate
    choose: Choose
    render: Render | None = None


@dataclass(frozen=True, slots=True)
class Meaning:
    """Every generation's (prefix, text), and the return value with texts and streams as strings."""

    calls: Mapping[Site, tuple[str, str]]
    returns: Plain


def meaning(
    program: Program, model: Model, args: Mapping[str, str], streams: Mapping[str, str] | None = None
) -> Meaning:
    """Interpret a verified program with `args` as arguments and `streams` as resumed streams.

    Raises:
        ValueError: with a template, text between turns or a resumed turn, which it cannot render.
    """
    prompts: dict[Value, _Prompt] = {}
    texts: dict[Value, Plain] = {}
    calls: dict[Site, tuple[str, str]] = {}

    def text(item: Value | str) -> str:
        found = item if isinstance(item, str) else texts[item]
        assert isinstance(found, str), item
        return found

    def run(op: Op) -> None:
        match op:
            case Arg():
                texts[op.results[0]] = args[op.name]
            case Resume():
                if model.render is not None and (op.turns or op.role):
                    raise ValueError("the contents of a resumed turn are unknown")
                prompts[op.results[0]] = _Prompt((streams or {})[op.name])
            case Root():
                prompts[op.results[0]] = _Prompt()
            case Append():
                prompts[op.results[0]] = prompts[op.stream].plus(text(op.text), model)
            case Control():
                prompts[op.results[0]] = prompts[op.stream].plus(op.text, model)
            case RoleOpen():
                prompts[op.results[0]] = prompts[op.stream].opened(op.role, model)
            case RoleClose():
                prompts[op.results[0]] = prompts[op.stream].closed(op.role, model)
            case Fork():
                prompts.update(dict.fromkeys(op.results, prompts[op.stream]))
            case Gen() | Select():
                before = prompts[op.stream]
                prefix = before.text(model)
                if isinstance(op, Gen):
                    made = model.generate(op.site, prefix)
                else:
                    choices = tuple(text(choice) for choice in op.choices)
                    made = choices[model.choose(op.site, prefix, choices)]
                calls[op.site] = (prefix, made)
                after, value = op.results
                prompts[after], texts[value] = before.plus(made, model), made
            case Join():
                texts[op.results[0]] = tuple(None if value is None else texts[value] for value in op.values)
            case Format():
                texts[op.results[0]] = "".join(text(part) for part in op.parts)
            case HostCall():
                pass
            case _:
                raise AssertionError(op.mnemonic)

    def result(tree: Tree) -> Plain:
        match tree:
            case Value():
                return prompts[tree].text(model) if tree in prompts else texts[tree]
            case tuple():
                return tuple(result(part) for part in tree)
            case Mapping():
                return {key: result(part) for key, part in tree.items()}
            case _:
                return tree

    for op in (*program.params, *program.ops):
        run(op)
    return Meaning(calls, result(program.returns))


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A stream: text, and behind it whole turns whose markup only the template knows."""

    head: str = ""
    turns: tuple[tuple[str, str], ...] = ()
    open: bool = False

    def plus(self, text: str, model: Model) -> _Prompt:
        if not self.turns:
            return replace(self, head=self.head + text)
        if not self.open:
            raise ValueError("a template cannot render text between turns")
        *before, (role, content) = self.turns
        return replace(self, turns=(*before, (role, content + text)))

    def opened(self, role: str, model: Model) -> _Prompt:
        if model.render is None:
            return self.plus(f"<{role}>", model)
        return replace(self, turns=(*self.turns, (role, "")), open=True)

    def closed(self, role: str, model: Model) -> _Prompt:
        return self.plus(f"</{role}>", model) if model.render is None else replace(self, open=False)

    def text(self, model: Model) -> str:
        if model.render is None or not self.turns:
            return self.head
        if not self.open:
            return self.head + model.render(_messages(self.turns), False)
        *before, (role, content) = self.turns
        if role == "assistant":
            return self.head + model.render(_messages(before), True) + content
        whole = model.render(_messages((*before, (role, content + _END))), False)
        return self.head + whole[: whole.index(_END)]


def _messages(turns: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


def plan_meaning(
    plan: Plan, model: Model, args: Mapping[str, str], streams: Mapping[str, str] | None = None
) -> Meaning:
    """Interpret a plan's segments; a kept stream's handle stands for its text."""
    calls: dict[Site, tuple[str, str]] = {}
    made: list[list[tuple[str, str]]] = []  # by step and node: the stream's text, the node's own text

    for step in plan.steps:
        nodes: list[tuple[str, str]] = []
        made.append(nodes)
        if not isinstance(step, Segment):
            continue

        def text(part: Part, nodes: list[tuple[str, str]] = nodes) -> str:
            match part:
                case str():
                    return part
                case ControlText():
                    return part.text
                case Slot():
                    return args[part.name]
                case Result():
                    return nodes[part.node][1]
                case _:
                    assert_never(part)

        for node in step.nodes:
            match node:
                case OpenNode(handle=None):
                    nodes.append(("", ""))
                case OpenNode():
                    nodes.append(((streams or {})[str(node.handle)], ""))
                case ExtendNode():
                    nodes.append((nodes[node.stream][0] + "".join(text(part) for part in node.parts), ""))
                case ForkNode() | KeepNode():
                    nodes.append((nodes[node.stream][0], nodes[node.stream][0]))
                case GenNode() | SelectNode():
                    prefix = nodes[node.stream][0]
                    if isinstance(node, GenNode):
                        answer = model.generate(node.site, prefix)
                    else:
                        choices = tuple(text(choice) for choice in node.choices)
                        answer = choices[model.choose(node.site, prefix, choices)]
                    calls[node.site] = (prefix, answer)
                    nodes.append((prefix + answer, answer))
                case ReleaseNode():
                    nodes.append(("", ""))
                case _:
                    assert_never(node)

    def result(tree: OutputTree) -> Plain:
        match tree:
            case Output():
                return made[tree.step][tree.node][1]
            case Slot():
                return args[tree.name]
            case Joined():
                return "".join(str(result(part)) for part in tree.parts)
            case tuple():
                return tuple(result(part) for part in tree)
            case Mapping():
                return {key: result(part) for key, part in tree.items()}
            case _:
                return tree

    return Meaning(calls, result(plan.returns))
