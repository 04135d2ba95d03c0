"""A lowered program becomes a plan: one segment of nodes, what to keep of it, and what it will cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar, assert_never

from sglc.errors import LegalizeError
from sglc.ir.core import Op, Program, Tree, Type, Value, operands, values_in
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
    Estimate,
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
    Result,
    Segment,
    SelectNode,
    Slot,
    TextPart,
    reads,
)
from sglc.ir.plan_json import PLAN_VERSION
from sglc.ir.sampling import Sampling
from sglc.ir.target import Target, Tokenizer
from sglc.passes.base import place
from sglc.passes.later import refuse_later_ops


def lower_plan(program: Program, target: Target) -> Plan:
    """The plan of `program`, whose roles are lowered already.

        s1 = control(s0, '<|im_start|>', (1,)); s2 = append(s1, 'user\\n'); s3, t0 = gen(s2, 'x')
            -> n0 open; n1 extend n0 ['<|im_start|>', 'user\\n']; n2 gen n1 'x'

    Every generation runs, since its name makes it an output; other ops stay if a generation or
    the return value needs them. Streams in `program.returns` are kept under the dotted path of
    their place in it.

    Raises:
        LegalizeError: SGLC305 a choice of a `select` that is put together from several texts;
            SGLC306 chat turns that are not lowered; SGLC307 an op that only runs from a later release.
    """
    refuse_later_ops(program)
    lowering = _Segment(program)
    returns = lowering.returns(program.returns, ())
    host = tuple(HostStep(op.reason, op.loc) for op in program.ops if isinstance(op, HostCall))
    segment = (Segment(tuple(lowering.nodes)),) if lowering.nodes or not host else ()
    return Plan(
        version=PLAN_VERSION,
        program=program.name,
        target=target.name,
        tokenizer=target.tokenizer.hash if target.tokenizer else "",
        params=tuple(op.name for op in program.params if isinstance(op, Arg)),
        steps=(*segment, *host),
        variables=lowering.variables(),
        returns=returns,
        estimate=estimate(lowering.nodes, target.tokenizer),
    )


def estimate(nodes: Iterable[Node], tokenizer: Tokenizer | None) -> Estimate:
    """Bounds of a segment: literals as the tokenizer encodes them (0 without one), limits of generations."""
    calls = literal_tokens = max_new_tokens = 0
    depths: list[int] = []  # per node: generations that must be done before its stream or text is there
    for node in nodes:
        depth = max((depths[i] for i in reads(node)), default=0)
        match node:
            case GenNode():
                calls += 1
                max_new_tokens += node.sampling.max_tokens * node.sampling.n
                depth += 1
            case SelectNode():
                calls += 1
                depth += 1
            case ExtendNode() if tokenizer is not None:
                for part in node.parts:
                    match part:
                        case ControlText():
                            literal_tokens += len(part.ids)
                        case str():
                            literal_tokens += len(tokenizer.encode(part))
        depths.append(depth)
    return Estimate(calls, literal_tokens, max_new_tokens, max(depths, default=0))


class _Segment:
    """The nodes of a program, and where each value is found in them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.nodes: list[Node] = []
        self.streams: dict[Value, int] = {}
        self.texts: dict[Value, tuple[TextPart, ...]] = {}
        self.gathered: dict[Value, Join] = {}
        self._live = _live(program)
        uses = Counter(value for op in program.ops if self.live(op) for value in operands(op))
        uses.update(values_in(program.returns))
        extended = {op.stream for op in program.ops if isinstance(op, Append | Control) and self.live(op)}
        # Streams that only the next extension reads: they get no node of their own.
        self._inner = {value for value in extended if uses[value] == 1}
        self._chains: dict[Value, tuple[int, list[Part]]] = {}
        for op in (*program.params, *program.ops):
            if self.live(op):
                self.lower(op)

    def live(self, op: Op) -> bool:
        return isinstance(op, Arg | Gen | Select | Join | HostCall) or any(v in self._live for v in op.results)

    def lower(self, op: Op) -> None:
        match op:
            case Arg():
                self.texts[op.results[0]] = (Slot(op.name),)
            case Resume():
                self.streams[op.results[0]] = self.add(OpenNode(op.name))
            case Root():
                self.streams[op.results[0]] = self.add(OpenNode())
            case Append():
                self.extend(op.stream, op.results[0], self.parts(op.text))
            case Control():
                self.extend(op.stream, op.results[0], (ControlText(op.text, op.ids),))
            case Gen():
                node = GenNode(self.streams[op.stream], op.site, _normal(op.sampling), op.loc)
                self.generated(op, self.add(node))
            case Select():
                choices = tuple(self.choice(op, item) for item in op.choices)
                ranked = SelectNode(self.streams[op.stream], op.site, choices, op.method, op.loc)
                self.generated(op, self.add(ranked))
            case Fork():
                trunk = self.add(ForkNode(self.streams[op.stream], len(op.results)))
                self.streams.update(dict.fromkeys(op.results, trunk))
            case Format():
                self.texts[op.results[0]] = _merged(part for item in op.parts for part in self.parts(item))
            case Join():
                self.gathered[op.results[0]] = op
            case RoleOpen() | RoleClose():
                raise LegalizeError(
                    "SGLC306", f"`{op.mnemonic}` is left: a plan has no chat turns", place(op.loc),
                    hint="run the pass `lower_roles` before the plan is made",
                )  # fmt: skip
            case HostCall():
                pass
            case _:
                raise AssertionError(op.mnemonic)

    def add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def extend(self, stream: Value, after: Value, parts: tuple[Part, ...]) -> None:
        """One node for a whole chain of extensions whose inner streams nothing else reads."""
        base, chain = self._chains.pop(stream) if stream in self._chains else (self.streams[stream], [])
        chain += parts
        if after in self._inner:
            self._chains[after] = (base, chain)
        else:
            merged = _merged(chain)
            self.streams[after] = self.add(ExtendNode(base, merged)) if merged else base

    def generated(self, op: Gen | Select, node: int) -> None:
        after, text = op.results
        self.streams[after] = node
        self.texts[text] = (Result(node),)

    def parts(self, item: Value | str) -> tuple[TextPart, ...]:
        return (item,) if isinstance(item, str) else self.texts[item]

    def choice(self, op: Select, item: Value | str) -> TextPart:
        match self.parts(item):
            case (part,):
                return part
            case _:
                raise LegalizeError(
                    "SGLC305", f"a choice of `{op.site.name}` is made of several texts", place(op.loc),
                    hint="choose between literals, arguments or generated texts as they are",
                )  # fmt: skip

    def variables(self) -> Mapping[str, OutputTree]:
        """The newest text, or list, of each name outside forks."""
        found: dict[str, OutputTree] = {}
        for op in self.program.ops:
            match op:
                case Gen() | Select() if not op.site.fork:
                    found[op.site.name] = self.output(op.results[1])
                case Join() if not op.site.fork:
                    found[op.site.name] = self.output(op.results[0])
        return found

    def output(self, value: Value) -> OutputTree:
        """Where a text or a list is found when the segment is done."""
        if value.type is Type.LIST:
            return tuple(None if item is None else self.output(item) for item in self.gathered[value].values)
        parts = tuple(Output(0, p.node) if isinstance(p, Result) else p for p in self.texts[value])
        return parts[0] if len(parts) == 1 else Joined(parts)

    def returns(self, tree: Tree, path: tuple[str, ...]) -> OutputTree:
        match tree:
            case Value(type=Type.STREAM):
                return Output(0, self.add(KeepNode(self.streams[tree], ".".join(path))))
            case Value():
                return self.output(tree)
            case tuple():
                return tuple(self.returns(part, (*path, str(i))) for i, part in enumerate(tree))
            case Mapping():
                return {key: self.returns(part, (*path, key)) for key, part in tree.items()}
            case None | str() | int() | float():
                return tree
            case _:
                assert_never(tree)


def _normal(sampling: Sampling) -> Sampling:
    """Real fields as floats: `temperature=0` and `temperature=0.0` give one plan, as they are one text."""
    return replace(
        sampling,
        temperature=float(sampling.temperature),
        top_p=float(sampling.top_p),
        min_p=float(sampling.min_p),
    )


def _live(program: Program) -> set[Value]:
    """Values that a generation, a join, a host call or the return value needs."""
    live = set(values_in(program.returns))
    for op in reversed(program.ops):
        if isinstance(op, Gen | Select | Join | HostCall) or any(value in live for value in op.results):
            live.update(operands(op))
    return live


_P = TypeVar("_P", bound=Part)


def _merged(parts: Iterable[_P | str]) -> tuple[_P | str, ...]:
    """Parts with neighbouring literals joined and empty ones left out."""
    merged: list[_P | str] = []
    literal: list[str] = []

    def flush() -> None:
        if text := "".join(literal):
            merged.append(text)
        literal.clear()

    for part in parts:
        if isinstance(part, str):
            literal.append(part)
        else:
            flush()
            merged.append(part)
    flush()
    return tuple(merged)
