"""The nodes of one segment, and how the values of a program are written in a plan.

A text is kept as its parts until it is used: literals, names of the environment, and texts that a
generation made, which are a node inside the segment of that generation and a name everywhere else.
Whatever is used outside of the segment that makes it is noted in `LoweringScope.exported`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from sglc.errors import LegalizeError
from sglc.ir.core import Program, Tree, Type, Value
from sglc.ir.grammar.form_key import form_key
from sglc.ir.made_often import replaced
from sglc.ir.ops import (
    Append,
    Arg,
    Control,
    Fork,
    Format,
    Gen,
    Image,
    Resume,
    RoleClose,
    RoleOpen,
    Select,
)
from sglc.ir.plan.plan import Joined, OutputTree
from sglc.ir.plan.segment import (
    ExtendNode,
    ForkNode,
    GenNode,
    Held,
    ImagePart,
    KeepNode,
    Node,
    NodeResult,
    OpenNode,
    Part,
    RoleMark,
    Segment,
    SelectNode,
    Slot,
    TextPart,
    joined,
)
from sglc.ir.remark import place
from sglc.ir.sampling import Sampling
from sglc.ir.target import ControlText, Target
from sglc.ir.text.printer import value_names
from sglc.ir.values import limited

StreamOp = Append | Control | Image | Gen | Select | Fork | RoleOpen | RoleClose
_Extension = Append | Control | Image | RoleOpen | RoleClose
Texts = tuple[str | Slot | Value, ...]  # a value: the text that a generation made


class LoweringScope:
    """What one program's values are called, and where they are found; shared by all of its blocks.

    `prompts` are what its `prompt` ops say, by their streams. `acts`: there are tools,
    or places where Python may take over.
    """

    def __init__(self, program: Program, prompts: Mapping[Value, Sequence[Value | str]], *, acts: bool) -> None:
        resumed = [op for op in program.params if isinstance(op, Resume)]
        self._names = value_names(program)
        self._named: dict[int, Slot | Held] = {op.results[0].id: Held(op.name) for op in resumed}
        # Streams that an earlier run kept, and those that are kept for a later one, are named by others.
        self._taken = dict.fromkeys([*(op.name for op in resumed), *_paths(program.returns, ())])
        self.texts: dict[Value, Texts] = {}
        self.lists: dict[Value, tuple[Value | None, ...]] = {}
        self.roots: dict[Value, None] = {}
        self.exported: dict[Value, None] = {}
        self.whole: dict[Value, Slot] = {}  # texts of several parts that a step puts together
        self.prompts = prompts
        self.acts = acts
        for op in program.params:
            if isinstance(op, Arg) and op.kind == "str":
                self.texts[op.results[0]] = (Slot(op.name),)

    def name(self, value: Value) -> Slot | Held:
        """The name of a value in the environment."""
        found = self._named.get(value.id)
        if found is None:
            name = self._names[value.id]
            while value.type is Type.STREAM and name in self._taken:
                name += "_"
            found = self._named[value.id] = Held(name) if value.type is Type.STREAM else Slot(name)
        return found

    def stream(self, value: Value) -> Held:
        """A stream by its name, to be read outside of the segment that makes it."""
        if value in self.roots:
            return Held(None)
        self.exported[value] = None
        made = self.name(value)
        assert isinstance(made, Held)
        return made

    def parts(self, item: Value | str) -> Texts:
        """What a text is made of."""
        if isinstance(item, str):
            return (item,) if item else ()
        return self.texts[item]

    def format(self, op: Format) -> None:
        """Enter the text that an op makes of others."""
        self.texts[op.results[0]] = tuple([part for item in op.parts for part in self.parts(item)])

    def written(self, item: Value | str, here: Mapping[Value, int]) -> tuple[TextPart, ...]:
        """The parts of a text; `here` are the generations of the segment that reads it, and their nodes."""
        return joined(self._part(part, here) for part in self.parts(item))

    def _part(self, part: str | Slot | Value, here: Mapping[Value, int]) -> TextPart:
        if isinstance(part, Value) and part in here:
            return NodeResult(here[part])
        return self.outside(part)

    def outside(self, part: str | Slot | Value) -> str | Slot:
        """A part of a text, to be read when the segments before have ended."""
        if not isinstance(part, Value):
            return part
        self.exported[part] = None
        made = self.name(part)
        assert isinstance(made, Slot)
        return made

    def tree(self, tree: Tree) -> OutputTree:
        """Plain data with values in it, to be read when the segments before have ended."""
        match tree:
            case Value(type=Type.STREAM):
                return self.stream(tree)
            case Value(type=Type.TEXT):
                return self.joined(self.parts(tree))
            case Value() if tree in self.lists:
                return tuple(None if item is None else self.tree(item) for item in self.lists[tree])
            case Value():
                return self.name(tree)
            case tuple():
                return tuple(self.tree(part) for part in tree)
            case str() | None:
                return tree
            case Mapping():
                return {key: self.tree(part) for key, part in tree.items()}
            case _:
                return tree

    def joined(self, items: Iterable[str | Slot | Value]) -> OutputTree:
        """Texts as one, to be read when the segments before have ended."""
        parts = joined(map(self.outside, items))
        return Joined(parts) if len(parts) > 1 else parts[0] if parts else ""


class Nodes:
    """The nodes of one segment, op by op in the order of the program.

    Args:
        uses: how often each stream of the block is read, by whatever reads it.
    """

    def __init__(
        self, scope: LoweringScope, target: Target, ops: Sequence[StreamOp], uses: Counter[Value]
    ) -> None:
        self.scope = scope
        self.target = target
        self.nodes: list[Node] = []
        self.streams: dict[Value, int] = {}
        self.generated: dict[Value, int] = {}
        self.kept: dict[str, int] = {}  # at the end, by handle
        self._opened: dict[Value, None] = {}  # streams that are made elsewhere
        self._chains: dict[Value, tuple[int, list[Part]]] = {}
        extended = {op.stream for op in ops if isinstance(op, _Extension)}
        # Streams that only the next extension reads: they get no node of their own.
        self._inner = {value for value in extended if uses[value] == 1}
        for op in ops:
            self.lower(op)

    def lower(self, op: StreamOp) -> None:
        match op:
            case Append():
                self.extend(op, self.scope.written(op.text, self.generated))
            case Control():
                self.extend(op, (ControlText(op.text, op.ids),))
            case Image():
                self.extend(op, self.picture(op))
            case Gen():
                ahead = op.ahead if self.target.guesses else 0
                key, stream = op.cache_key, self.stream(op.stream)
                sampling = _normal(op.sampling)
                limit = None if op.limit is None else self.single(op.limit)
                if isinstance(limit, str):
                    sampling = limited(sampling, limit, op.loc)
                node = GenNode(
                    stream, op.site, sampling, op.loc, ahead=ahead, cache_key=key, unify=op.unify, fsm=op.fsm,
                    form=form_key(sampling), fused=op.fused and self.target.guesses, next_use=op.next_use,
                    most=op.most, behind=op.behind, limit=limit.name if isinstance(limit, Slot) else "",
                )  # fmt: skip
                self.made(op, self.add(node))
            case Select():
                stream = self.stream(op.stream)
                choices = tuple(self.single(item) for item in op.choices)
                choice = SelectNode(
                    stream, op.site, choices, op.method, op.loc, op.cache_key, op.unify, op.fsm,
                    op.fused and self.target.guesses, op.next_use, op.most, op.behind,
                )  # fmt: skip
                self.made(op, self.add(choice))
            case Fork():
                trunk = self.add(ForkNode(self.stream(op.stream), len(op.results)))
                self.streams.update(dict.fromkeys(op.results, trunk))
            case RoleOpen() | RoleClose() if self.target.protocol == "chat":
                self.extend(op, (RoleMark(op.role, isinstance(op, RoleOpen)),))
            case RoleOpen() | RoleClose():
                raise LegalizeError(
                    "SGLC306", f"`{op.mnemonic}` is left: a plan has no chat turns", place(op.loc),
                    hint="run the pass `lower_roles` before the plan is made",
                )  # fmt: skip

    def add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def stream(self, value: Value) -> int:
        """The node of a stream; one that is made elsewhere is opened once."""
        if value not in self.streams:
            self.streams[value] = self.add(OpenNode(self.scope.stream(value).name))
            self._opened[value] = None
        return self.streams[value]

    def extend(self, op: _Extension, parts: tuple[Part, ...]) -> None:
        """One node for a whole chain of extensions whose inner streams nothing else reads."""
        before, after = op.stream, op.results[0]
        if before in self._chains:
            base, chain = self._chains.pop(before)
        else:
            base, chain = self.stream(before), []
        chain += parts
        if after in self._inner:
            self._chains[after] = (base, chain)
        else:
            whole = joined(chain)
            self.streams[after] = self.add(ExtendNode(base, whole)) if whole else base

    def picture(self, op: Image) -> tuple[Part, ...]:
        if not self.target.images:
            raise LegalizeError(
                "SGLC308", f"back end `{self.target.name}` takes no pictures", place(op.loc),
                hint="give the picture to a model that sees: `openai:MODEL`, `anthropic:MODEL`, `gemini:MODEL`",
            )  # fmt: skip
        return (ImagePart(self.single(op.data)),)

    def single(self, item: Value | str) -> TextPart:
        if isinstance(item, Value) and item in self.scope.whole:
            return self.scope.whole[item]
        (part,) = self.scope.written(item, self.generated) or ("",)
        return part

    def made(self, op: Gen | Select, node: int) -> None:
        after, text = op.results
        self.streams[after] = node
        self.generated[text] = node

    def segment(self) -> Segment:
        """The segment; what is exported by now is given to the environment."""
        exported = self.scope.exported
        for value, node in self.streams.items():
            handle = self.scope.name(value).name
            if value not in self._opened and value in exported and handle is not None:
                self.kept.setdefault(handle, node)
        keeps = tuple(KeepNode(node, handle) for handle, node in self.kept.items())
        made = [(text, node) for text, node in self.generated.items() if text in exported]
        texts = ((self.scope.name(text).name, node) for text, node in made)
        return Segment((*self.nodes, *keeps), tuple((name, node) for name, node in texts if name is not None))


_REAL = (
    "temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
)  # fmt: skip
_reals = attrgetter(*_REAL)


def _normal(sampling: Sampling) -> Sampling:
    """Real fields as floats: `temperature=0` and `temperature=0.0` give one plan, as they are one text."""
    if not sampling.logit_bias and {float}.issuperset(map(type, _reals(sampling))):
        return sampling
    bias = tuple((token, float(bias)) for token, bias in sampling.logit_bias)
    reals = {name: float(value) for name, value in zip(_REAL, _reals(sampling), strict=True)}
    return replaced(sampling, logit_bias=bias, **reals)


def _paths(tree: Tree, path: tuple[str, ...]) -> Iterable[str]:
    """The dotted paths of the streams in a return tree."""
    match tree:
        case Value(type=Type.STREAM):
            yield ".".join(path)
        case tuple():
            for number, part in enumerate(tree):
                yield from _paths(part, (*path, str(number)))
        case Mapping():
            for key, part in tree.items():
                yield from _paths(part, (*path, key))
