"""A segment: the unit that a back end is handed, a frozen DAG of what is appended, generated and chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import and_
from typing import Any, TypeVar, cast

from sglc.errors import Loc
from sglc.ir.core import Site
from sglc.ir.made_often import made_often
from sglc.ir.plan.hints import Hints
from sglc.ir.sampling import Sampling
from sglc.ir.target import ControlText

_P = TypeVar("_P")
_Node = TypeVar("_Node", bound="Node")


@dataclass(frozen=True, slots=True)
class Slot:
    """A value of the environment: an argument, or what a step gave. `bind` replaces it in a segment."""

    name: str


@dataclass(frozen=True, slots=True)
class Held:
    """A kept stream of the environment; None is the empty stream."""

    name: str | None


@dataclass(frozen=True, slots=True)
class NodeResult:
    """The text that node `node` of the same segment produces (its first sample)."""

    node: int


TextPart = str | Slot | NodeResult


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A picture inside a literal; `data` is a data URI. Only for back ends that take pictures."""

    data: TextPart


@dataclass(frozen=True, slots=True)
class RoleMark:
    """A chat turn of `role` begins or ends here. Only for back ends that take messages."""

    role: str
    begins: bool

    @property
    def text(self) -> str:
        """How it is shown where a conversation is one text; no back end sees this."""
        return f"{self.role.upper()}:" if self.begins else "\n"


@made_often
@dataclass(frozen=True, slots=True)
class Made:
    """A text that a model made before: `ids` and behind them `tail`; without ids it is read like a literal."""

    text: str
    ids: tuple[int, ...] | None = None
    tail: str = ""


@made_often
@dataclass(frozen=True, slots=True)
class EncodedText:
    """Literal text that merges with none beside it, as ids. The local back end makes it of other parts."""

    ids: Sequence[int]


Part = TextPart | ControlText | ImagePart | RoleMark | Made | EncodedText


@dataclass(frozen=True, slots=True)
class OpenNode:
    """A stream to start from: the empty one (`handle` None or an unbound name), or one kept earlier.

    A name is that of a stream in the environment.
    """

    handle: int | str | None = None


@made_often
@dataclass(frozen=True, slots=True)
class ExtendNode:
    """`stream` followed by literal parts. Literals between two generations are encoded as one string."""

    stream: int
    parts: tuple[Part, ...]


@made_often
@dataclass(frozen=True, slots=True)
class GenNode:
    """Decode from `stream`. Before a segment is submitted `seed` is filled in, or `sampling` has one.

    With `ahead` one request of at most so many tokens may be asked for this generation and for those behind
    it in its turn, up to the first that has none. An API that keeps prompts is told `cache_key`. With `unify`
    one answer may be that of all that ask for the same. `fsm`, `fused`, `next_use`, `most` and `behind` are as
    of the op, and under `form` the runtime keeps what it compiles of the generation's regex, schema or grammar,
    for every tokenizer a file. `drawn`: nobody asked for the run's seed, so equal ones may be samples of one
    request. `limit`: the name of the text that is its `max_tokens`; till it is there, that of `sampling` is.
    """

    stream: int
    site: Site
    sampling: Sampling
    loc: Loc
    seed: int | None = None
    ahead: int = 0
    cache_key: str = ""
    unify: bool = False
    fsm: str = ""
    form: str = ""
    fused: bool = False
    drawn: bool = False
    next_use: str = ""
    most: int = 0
    behind: int = 0
    limit: str = ""


@dataclass(frozen=True, slots=True)
class SelectNode:
    """Pick the best of `choices` after `stream`."""

    stream: int
    site: Site
    choices: tuple[TextPart, ...]
    method: str
    loc: Loc
    cache_key: str = ""
    unify: bool = False
    fsm: str = ""
    fused: bool = False
    next_use: str = ""
    most: int = 0
    behind: int = 0


@dataclass(frozen=True, slots=True)
class ForkNode:
    """`stream` once more, as the trunk of `size` branches that decode together."""

    stream: int
    size: int


@dataclass(frozen=True, slots=True)
class KeepNode:
    """Keep `stream` under `handle` for later segments, until one releases it."""

    stream: int
    handle: int | str


@dataclass(frozen=True, slots=True)
class ReleaseNode:
    """Forget a kept stream."""

    handle: int


ASKED = (GenNode, SelectNode)  # as a tuple, which is looked through in half the time of a union
Node = OpenNode | ExtendNode | GenNode | SelectNode | ForkNode | KeepNode | ReleaseNode


def reads(node: Node) -> list[int]:
    """Indices of the nodes that `node` waits for, one entry a use."""
    match node:
        case OpenNode() | ReleaseNode():
            return []
        case ExtendNode(stream, parts):
            found = [stream]
            for part in parts:
                if type(part) is str:  # most are
                    continue
                text = part.data if isinstance(part, ImagePart) else part
                if isinstance(text, NodeResult):
                    found.append(text.node)
            return found
        case SelectNode():
            return [node.stream, *(choice.node for choice in node.choices if isinstance(choice, NodeResult))]
        case GenNode() | ForkNode() | KeepNode():
            return [node.stream]


@dataclass(frozen=True, slots=True)
class Waits:
    """Of each node, the indices of those that it waits for and of those that wait for it, one entry a use.

    `first` are the nodes that wait for none.
    """

    sources: Sequence[Sequence[int]]
    readers: Sequence[Sequence[int]]
    first: Sequence[int]


def waits_of(sources: Sequence[Sequence[int]]) -> Waits:
    """Which nodes of a segment wait for which, by what each `reads`."""
    readers: list[list[int]] = [[] for _ in sources]
    for index, read in enumerate(sources):
        for source in read:
            readers[source].append(index)
    return Waits(sources, readers, [index for index, read in enumerate(sources) if not read])


def stopped_by(node: _Node, stops: Sequence[str]) -> _Node:
    """The node, which ends at these strings too if it is a generation."""
    if not isinstance(node, GenNode):
        return node
    more = [stop for stop in stops if stop not in node.sampling.stop]
    return replace(node, sampling=replace(node.sampling, stop=(*node.sampling.stop, *more)))


def place_of(node: Node) -> Loc | None:
    """Where the program has a node, if it is known."""
    return node.loc if isinstance(node, GenNode | SelectNode) else None


@made_often
@dataclass(frozen=True, slots=True)
class Segment:
    """Work for one `Backend.submit`: nodes in an order in which each reads only earlier ones.

    `gives` are (name, node): texts that go into the environment. Kept streams go there under their
    handles. A back end needs neither.

    `waits` is `waits_of` what its nodes read, where that is known: rows of one plan have it in common.

    Where segments wait for each other, those of a higher `priority` go first, and of equal ones each `share`
    (such as a user) has as many generations as another; those without one are in the order of their programs.
    What begins in one `namespace` (a user's salt) shares no KV with any other.

    `hints` of somebody else's program are obeyed with so many tokens of the share's streams (`room`).
    """

    nodes: tuple[Node, ...]
    gives: tuple[tuple[str, int], ...] = ()
    priority: int = 0
    share: str = ""
    namespace: str = ""
    hints: Hints | None = None
    room: int = 0
    waits: Waits | None = field(default=None, compare=False, repr=False)


def behind(segment: Segment, index: int) -> set[int]:
    """Node `index` of a segment, and every node that it waits for, directly or not."""
    seen = {index}
    for at in range(index, -1, -1):
        if at in seen:
            seen.update(reads(segment.nodes[at]))
    return seen


def origin(nodes: Sequence[Node], stream: int) -> tuple[int, tuple[Part, ...]]:
    """What the prompt of a node consists of: the node that it goes on from, and the parts behind that."""
    parts: tuple[Part, ...] = ()
    while True:
        match nodes[stream]:
            case ForkNode(before):
                stream = before
            case ExtendNode(before, more):
                stream, parts = before, (*more, *parts)
            case _:
                return stream, parts


def joined(parts: Iterable[_P]) -> tuple[_P, ...]:
    """Parts with neighbouring texts as one, however they were appended, and empty ones left out."""
    given = tuple(parts)
    if len(given) < 2:
        return given if given != ("",) else ()
    texts = [isinstance(part, str) for part in given]
    if all(given) and not any(map(and_, texts, texts[1:])):  # none is empty, and none beside another
        return given
    out: list[Any] = []
    for is_text, run in groupby(given, lambda part: isinstance(part, str)):
        if not is_text:
            out += run
        elif text := "".join(cast("Iterable[str]", run)):
            out.append(text)
    return tuple(out)
