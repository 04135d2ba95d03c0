"""What an executor and a back end exchange: segments, plans, events. Plain frozen data.

A segment is a DAG of nodes handed to a back end at once. A node's index is its position; a
stream is named by the index of the node that made it. A plan is steps: segments, and what decides
which segments run. Steps give values and kept streams to an environment of names, each once, and read
from it; values and streams have names of their own kind. Blocks inside steps are numbered, not
nested: a step holds only blocks with smaller numbers than its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sglc.errors import Loc
from sglc.ir.core import NOWHERE, Site
from sglc.ir.plan.segment import Held, Segment, Slot


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
PromptPrefix = tuple[str | Slot | Derived, ...]


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
    """Ordinary Python takes over; with `error`, the program raises that with `reason`, or what it reads."""

    reason: str
    loc: Loc
    reads: tuple[OutputTree, ...] = ()
    error: str = ""


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

    One in the `order` of the program is called when all before it have returned, those without effects too: it
    could change what they read, and is not called where one of them has failed. Others are called when their
    arguments are there; one with `effects` not before it is known that the program comes to it.
    """

    name: str
    function: str
    args: tuple[OutputTree, ...]
    named: Mapping[str, OutputTree]
    gives: str
    effects: bool
    order: str  # of `ops.ORDERS`
    loc: Loc

    @property
    def in_order(self) -> bool:
        """Whether it waits for all that stands before it."""
        return self.order != "overlap"

    @property
    def needs_order(self) -> bool:
        """Whether its calls are told apart by their order."""
        return self.effects and self.order == "program"


Step = Segment | HostStep | ValueStep | CondStep | SwitchStep | LoopStep | MapStep | CallStep | FunctionStep


@dataclass(frozen=True, slots=True)
class Named:
    """A variable and its value."""

    name: str
    value: OutputTree


@dataclass(frozen=True, slots=True)
class Within:
    """The variables of the blocks that step `step` runs."""

    step: int


@dataclass(frozen=True, slots=True)
class PromptEnd:
    """What the program's own prompt says at its end, markup included, and what its turns consist of.

    `stood`: before these steps, in which the program may end, as many parts of the text stood there.
    """

    text: OutputTree
    turns: OutputTree
    stood: tuple[tuple[int, int], ...] = ()

    @property
    def parts(self) -> tuple[str | Slot, ...]:
        """Those of the text."""
        assert isinstance(self.text, Joined | Slot | str)
        return self.text.parts if isinstance(self.text, Joined) else (self.text,)


# Variables in the order of the program: of several of one name the last counts, and so does the last prompt.
Variables = tuple[Named | Within | PromptEnd, ...]


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
class Param:
    """An argument of type `kind`, what it is if nothing is given, and what its class holds (`ir.ops.Arg`)."""

    name: str
    kind: str = "str"
    default: str | None = None
    holds: str | None = None
    loc: Loc = NOWHERE


@dataclass(frozen=True, slots=True)
class PlanGuard:
    """The plan is for arguments of which `fact` is `expected`, both as `ir.facts` spells them."""

    fact: str
    expected: str
    loc: Loc


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
    tokenizer that control tokens were taken from ("" without one). The prompt prefixes in `leads` tell which
    runs begin alike. It does what its program does for arguments of which all `guards` hold. `outputs` are the
    variables that may be read; None: all, and the prompt.
    """

    version: int
    program: str
    target: str
    tokenizer: str
    params: tuple[Param, ...]
    steps: tuple[Step, ...]
    variables: Variables
    returns: OutputTree
    estimate: Estimate | None  # None: it was made to run at once
    blocks: tuple[Block, ...] = ()
    leads: tuple[PromptPrefix, ...] = ()
    guards: tuple[PlanGuard, ...] = ()
    outputs: tuple[str, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its arguments."""
        return tuple(param.name for param in self.params)

    @property
    def body(self) -> Block:
        """The plan's own steps as a block."""
        return Block(tuple(Slot(name) for name in self.names), self.steps, (self.returns,), self.variables)


def steps_of(plan: Plan) -> Iterator[Step]:
    """Every step of a plan, those in its blocks too."""
    yield from plan.steps
    for block in plan.blocks:
        yield from block.steps
