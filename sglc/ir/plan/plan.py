"""What an executor and a back end exchange: segments, plans, events. Plain frozen data.

A segment is a DAG of nodes handed to a back end at once. A node's index is its position; a
stream is named by the index of the node that made it. A plan is steps: segments, and what decides
which segments run. Steps give values and kept streams to an environment of names, each once, and read
from it; values and streams have names of their own kind. Blocks inside steps are numbered, not
nested: a step holds only blocks with smaller numbers than its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """A value of the environment: an argument, or what a step gave. `bind` replaces it in a segment."""

    name: str


@dataclass(frozen=True, slots=True)
class Held:
    """A kept stream of the environment; None is the empty stream."""

    name: str | None


@dataclass(frozen=True, slots=True)
class Result:
    """The text that node `node` of the same segment produces (its first sample)."""

    node: int


TextPart = str | Slot | Result


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


Part = TextPart | ControlText | ImagePart | RoleMark


@dataclass(frozen=True, slots=True)
class OpenNode:
    """A stream to start from: the empty one (`handle` None or an unbound name), or one kept earlier.

    A name is that of a stream in the environment.
    """

    handle: int | str | None = None


@dataclass(frozen=True, slots=True)
class ExtendNode:
    """`stream` followed by literal parts. Literals between two generations are encoded as one string."""

    stream: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class GenNode:
    """Decode from `stream`. Before a segment is submitted `seed` is filled in, or `sampling` has one.

    With `ahead` one request of at most so many tokens may be asked for this generation and for those behind
    it in its turn, up to the first that has none. An API that keeps prompts is told `cache_key`.
    """

    stream: int
    site: Site
    sampling: Sampling
    loc: Loc
    seed: int | None = None
    ahead: int = 0
    cache_key: str = ""


@dataclass(frozen=True, slots=True)
class SelectNode:
    """Pick the best of `choices` after `stream`."""

    stream: int
    site: Site
    choices: tuple[TextPart, ...]
    method: str
    loc: Loc
    cache_key: str = ""


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
            pictures = (part.data for part in parts if isinstance(part, ImagePart))
            return [stream, *(part.node for part in (*parts, *pictures) if isinstance(part, Result))]
        case SelectNode():
            return [node.stream, *(choice.node for choice in node.choices if isinstance(choice, Result))]
        case GenNode() | ForkNode() | KeepNode():
            return [node.stream]


def readers_of(nodes: Sequence[Node]) -> list[list[int]]:
    """Of each node, the indices of those that wait for it, one entry a use."""
    readers: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        for source in reads(node):
            readers[source].append(index)
    return readers


def place_of(node: Node) -> Loc | None:
    """Where the program has a node, if it is known."""
    return node.loc if isinstance(node, GenNode | SelectNode) else None


@dataclass(frozen=True, slots=True)
class Segment:
    """Work for one `Backend.submit`: nodes in an order in which each reads only earlier ones.

    `gives` are (name, node): texts that go into the environment. Kept streams go there under their
    handles. A back end needs neither.
    """

    nodes: tuple[Node, ...]
    gives: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Joined:
    """Several texts as one."""

    parts: tuple[str | Slot, ...]


@dataclass(frozen=True, slots=True)
class Derived:
    """What `strip` or `lower` makes of a text that is there before the run."""

    operation: str
    parts: tuple[str | Slot | Derived, ...]


# How a prompt begins: literals, arguments, and what is made of arguments.
Lead = tuple[str | Slot | Derived, ...]


# Values and streams of the environment, and constants, inside ordinary JSON-like data.
OutputTree = (
    Slot
    | Held
    | Joined
    | str
    | int
    | float
    | bool
    | None
    | tuple["OutputTree", ...]
    | Mapping[str, "OutputTree"]
)


@dataclass(frozen=True, slots=True)
class HostStep:
    """Ordinary Python takes over: the plan's instance goes on as recorded operations, run by run."""

    reason: str
    loc: Loc
    reads: tuple[OutputTree, ...] = ()


@dataclass(frozen=True, slots=True)
class ValueStep:
    """`name` is what an operation of `ir.values` makes of `operands`."""

    name: str
    operation: str
    operands: tuple[OutputTree, ...]
    loc: Loc


@dataclass(frozen=True, slots=True)
class CondStep:
    """Run block `then` or block `orelse`; its results are given."""

    pred: OutputTree
    then: int
    orelse: int
    gives: tuple[Slot | Held, ...]
    loc: Loc


@dataclass(frozen=True, slots=True)
class SwitchStep:
    """Run the block of the case that equals `value`; the last one of `arms` is the default, if there is one."""

    value: OutputTree
    cases: tuple[str, ...]
    arms: tuple[int, ...]
    gives: tuple[Slot | Held, ...]
    loc: Loc


@dataclass(frozen=True, slots=True)
class LoopStep:
    """Run block `body` on `init`, and on its own results behind the first, as long as the first is true."""

    init: tuple[OutputTree, ...]
    max_iters: int
    body: int
    gives: tuple[Slot | Held, ...]
    loc: Loc


@dataclass(frozen=True, slots=True)
class MapStep:
    """Run block `body` on each text of `items`, all at the same time; for each result, a list of them."""

    items: OutputTree
    body: int
    gives: tuple[Slot | Held, ...]
    loc: Loc


@dataclass(frozen=True, slots=True)
class CallStep:
    """Run block `body`, which is a whole program with an environment of its own, on `args`."""

    site: Site
    args: tuple[OutputTree, ...]
    body: int
    gives: tuple[Slot | Held, ...]
    loc: Loc


@dataclass(frozen=True, slots=True)
class FunctionStep:
    """`name` is what the declared Python function returns, a value of type `gives`.

    One with effects (a tool) is called when all before it, in the order of the program, have returned.
    """

    name: str
    function: str
    args: tuple[OutputTree, ...]
    named: Mapping[str, OutputTree]
    gives: str
    effects: bool
    loc: Loc


@dataclass(frozen=True, slots=True)
class ReleaseStep:
    """Until here, and until all steps before it have ended, `stream` stays kept."""

    stream: Held


Step = (
    Segment
    | HostStep
    | ValueStep
    | CondStep
    | SwitchStep
    | LoopStep
    | MapStep
    | CallStep
    | FunctionStep
    | ReleaseStep
)


@dataclass(frozen=True, slots=True)
class Named:
    """A variable and its value."""

    name: str
    value: OutputTree


@dataclass(frozen=True, slots=True)
class Within:
    """The variables of the blocks that step `step` runs."""

    step: int


# Variables in the order of the program: of several of one name the last counts.
Variables = tuple[Named | Within, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Steps in an order in which each reads only what earlier ones gave, the block's parameters, or outside.

    What its steps give is seen in the block itself and in the blocks that its steps hold.
    """

    params: tuple[Slot | Held, ...]
    steps: tuple[Step, ...]
    results: tuple[OutputTree, ...]
    variables: Variables = ()


def blocks_of(step: Step) -> tuple[int, ...]:
    """The blocks that a step holds, in the order of the text."""
    match step:
        case CondStep():
            return (step.then, step.orelse)
        case SwitchStep():
            return step.arms
        case LoopStep() | MapStep() | CallStep():
            return (step.body,)
        case _:
            return ()


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a plan will cost at least, as far as literals and limits tell (tokens).

    A block of a loop counts once, that of a `map` as if it ran on one text; of several blocks the
    cheapest counts. `max_new_tokens` are at most: as often as a loop may run, and the dearest block.
    """

    calls: int
    literal_tokens: int
    max_new_tokens: int
    critical_path: int  # generations that must run one after another


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A lowered program: steps in order, the arguments they want, and what they give.

    `variables` are the named texts (a list for a joined name), `returns` the function's value. Streams
    that it returns are kept under the dotted path of their place in it. `tokenizer` is the hash of the
    tokenizer that control tokens were taken from ("" without one). `leads` tell which runs begin alike.
    """

    version: int
    program: str
    target: str
    tokenizer: str
    params: tuple[str, ...]
    steps: tuple[Step, ...]
    variables: Variables
    returns: OutputTree
    estimate: Estimate
    blocks: tuple[Block, ...] = ()
    leads: tuple[Lead, ...] = ()

    @property
    def body(self) -> Block:
        """The plan's own steps as a block."""
        return Block(tuple(Slot(name) for name in self.params), self.steps, (self.returns,), self.variables)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one call or of many.

    `calls`: of a local model generations and choices; of an API requests that were answered or failed,
    those that were tried again among them.

    `prompt` = `cached` + `computed`: ids of the prompts, those whose KV was there already, and
    those passed through extend. `scored`: extra ids passed through extend to rank choices.
    `completion`: ids produced by decode.

    `saved_calls`: generations that the request of an earlier one answered too; `saved_prompt`: what their
    own requests would have sent, at least.
    """

    prompt: int = 0
    cached: int = 0
    computed: int = 0
    scored: int = 0
    completion: int = 0
    calls: int = 0
    saved_calls: int = 0
    saved_prompt: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.computed + other.computed,
            self.scored + other.scored,
            self.completion + other.completion,
            self.calls + other.calls,
            self.saved_calls + other.saved_calls,
            self.saved_prompt + other.saved_prompt,
        )


# A token as SGLang reports it: its log-probability (None for the first of a prompt), its id, and its
# text where that was asked for.
TokenLogprob = tuple[float | None, int, str | None]


@dataclass(frozen=True, slots=True)
class Sample:
    """One generated text: `ids` are the kept token ids; `finish` is `stop`, `length`, or `abort`."""

    text: str
    ids: tuple[int, ...]
    finish: str
    logprobs: tuple[float, ...] = ()  # of `ids`, natural log, before temperature
    texts: tuple[str, ...] = ()  # of `ids`, one by one, if asked for
    top_logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()  # at the places of `ids`, best first, if asked for
    end: TokenLogprob | None = None  # the token that ended the text and is not among `ids`, if one did
    end_top: tuple[TokenLogprob, ...] = ()  # at its place


@dataclass(frozen=True, slots=True)
class Delta:
    """More text of sample 0 of a generation (streaming). The deltas of a node add up to its text.

    `tokens` surely belong to the sample, whose other ones come with later deltas or at its end;
    `top_logprobs` are those at their places. The first delta has what was asked for of the prompt.
    """

    node: int
    text: str
    tokens: tuple[TokenLogprob, ...] = ()
    top_logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    prompt_top_logprobs: tuple[tuple[TokenLogprob, ...] | None, ...] = ()


@dataclass(frozen=True, slots=True)
class GenDone:
    """A generation ended. `samples` has `sampling.n` entries; the stream continues with the first.

    `prompt_logprobs` are those of the last ids of the prompt, as many as were asked for.
    """

    node: int
    prompt_ids: tuple[int, ...]
    samples: tuple[Sample, ...]
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    prompt_top_logprobs: tuple[tuple[TokenLogprob, ...] | None, ...] = ()  # None at a prompt's first id


@dataclass(frozen=True, slots=True)
class SelectDone:
    """A choice was made. `logprobs[i]` are the log-probabilities of `choice_ids[i]` after `prompt_ids`.

    `unconditional[i]` are those of the same ids without the prompt (None for the first), if the method
    needs them; `greedy_matrix` is what `greedy_token_selection` compares, column by column. `decided` says
    how: by the texts' log-probabilities as a `continuation`, by a provider's `decision`, by a text
    `constrained` to the choices, or by a `match` of one with a text. Only the first has log-probabilities.
    """

    node: int
    prompt_ids: tuple[int, ...]
    choice: int
    text: str
    scores: tuple[float, ...]
    choice_ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]
    usage: Usage
    unconditional: tuple[tuple[float | None, ...], ...] = ()
    greedy_matrix: tuple[tuple[float, ...], ...] = ()
    decided: str = "continuation"


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """A node, and with it every node that reads it, will not complete."""

    node: int
    error: SglcError


Event = Delta | GenDone | SelectDone | NodeFailed
