"""What an executor and a back end exchange: segments, plans, events. Plain frozen data.

A segment is a DAG of nodes handed to a back end at once. A node's index is its position; a
stream is named by the index of the node that made it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sglc.errors import Loc, SglcError
from sglc.ir.core import Site
from sglc.ir.sampling import Sampling


@dataclass(frozen=True, slots=True)
class ControlText:
    """Control tokens inside a literal; `text` is only how they are written."""

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """A program argument. `bind` replaces it before a segment is submitted."""

    name: str


@dataclass(frozen=True, slots=True)
class Result:
    """The text that node `node` of the same segment produces (its first sample)."""

    node: int


TextPart = str | Slot | Result
Part = TextPart | ControlText


@dataclass(frozen=True, slots=True)
class OpenNode:
    """A stream to start from: the empty one (`handle` None or an unbound name), or one kept earlier."""

    handle: int | str | None = None


@dataclass(frozen=True, slots=True)
class ExtendNode:
    """`stream` followed by literal parts. Literals between two generations are encoded as one string."""

    stream: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class GenNode:
    """Decode from `stream`. Before a segment is submitted `sampling.seed` is an integer."""

    stream: int
    site: Site
    sampling: Sampling
    loc: Loc


@dataclass(frozen=True, slots=True)
class SelectNode:
    """Pick the best of `choices` after `stream`."""

    stream: int
    site: Site
    choices: tuple[TextPart, ...]
    method: str
    loc: Loc


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


Node = OpenNode | ExtendNode | GenNode | SelectNode | ForkNode | KeepNode | ReleaseNode


def reads(node: Node) -> list[int]:
    """Indices of the nodes that `node` waits for, one entry a use."""
    match node:
        case OpenNode() | ReleaseNode():
            return []
        case ExtendNode(stream, parts):
            return [stream, *(part.node for part in parts if isinstance(part, Result))]
        case SelectNode():
            return [node.stream, *(choice.node for choice in node.choices if isinstance(choice, Result))]
        case GenNode() | ForkNode() | KeepNode():
            return [node.stream]


@dataclass(frozen=True, slots=True)
class Segment:
    """Work for one `Backend.submit`: nodes in an order in which each reads only earlier ones."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class HostStep:
    """Ordinary Python takes over: the plan's instance goes on as recorded operations, run by run."""

    reason: str
    loc: Loc


@dataclass(frozen=True, slots=True)
class Output:
    """What node `node` of step `step` produced: a text, or for a kept stream its handle."""

    step: int
    node: int


@dataclass(frozen=True, slots=True)
class Joined:
    """Several texts as one: what a function returns as an f-string."""

    parts: tuple[str | Slot | Output, ...]


# A plan's results: outputs, arguments and constants inside ordinary JSON-like data.
OutputTree = (
    Output
    | Joined
    | Slot
    | str
    | int
    | float
    | bool
    | None
    | tuple["OutputTree", ...]
    | Mapping[str, "OutputTree"]
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a plan will cost at least, as far as literals and limits tell (tokens)."""

    calls: int
    literal_tokens: int
    max_new_tokens: int
    critical_path: int  # generations that must run one after another


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A lowered program: steps in order, the arguments they want, and what they give.

    `variables` are the named texts (a list for a joined name), `returns` the function's value.
    `tokenizer` is the hash of the tokenizer that control tokens were taken from ("" without one).
    """

    version: int
    program: str
    target: str
    tokenizer: str
    params: tuple[str, ...]
    steps: tuple[Segment | HostStep, ...]
    variables: Mapping[str, OutputTree]
    returns: OutputTree
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one call or of many.

    `prompt` = `cached` + `computed`: ids of the prompts, those whose KV was there already, and
    those passed through extend. `scored`: extra ids passed through extend to rank choices.
    `completion`: ids produced by decode.
    """

    prompt: int = 0
    cached: int = 0
    computed: int = 0
    scored: int = 0
    completion: int = 0
    calls: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.computed + other.computed,
            self.scored + other.scored,
            self.completion + other.completion,
            self.calls + other.calls,
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """One generated text: `ids` are the kept token ids; `finish` is `stop`, `length`, or `abort`."""

    text: str
    ids: tuple[int, ...]
    finish: str
    logprobs: tuple[float, ...] = ()  # of `ids`, natural log, before temperature


@dataclass(frozen=True, slots=True)
class Delta:
    """More text of sample 0 of a generation (streaming). The deltas of a node add up to its text."""

    node: int
    text: str


@dataclass(frozen=True, slots=True)
class GenDone:
    """A generation ended. `samples` has `sampling.n` entries; the stream continues with the first."""

    node: int
    prompt_ids: tuple[int, ...]
    samples: tuple[Sample, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class SelectDone:
    """A choice was made. `logprobs[i]` are the log-probabilities of `choice_ids[i]` after `prompt_ids`."""

    node: int
    prompt_ids: tuple[int, ...]
    choice: int
    text: str
    scores: tuple[float, ...]
    choice_ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """A node, and with it every node that reads it, will not complete."""

    node: int
    error: SglcError


Event = Delta | GenDone | SelectDone | NodeFailed
