"""What going through plans finds, and where a block of them stands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

from sglc.errors import Loc
from sglc.explain.estimate.abstract_values import (
    START,
    After,
    StreamValue,
    UnknownValue,
    ValueAfter,
    last,
)
from sglc.explain.estimate.forecast import Tally
from sglc.explain.estimate.prefix_tree import Arms, PrefixTree
from sglc.explain.estimate.token_counts import Symbol, TokenCounter
from sglc.ir.plan.plan import FunctionStep
from sglc.ir.plan.segment import GenNode, Held, SelectNode, Slot
from sglc.ir.target import Target

Name = Slot | Held
Chances = tuple[tuple[int, int, float], ...]  # (which decision, which arm, how likely), outermost first


@dataclass(frozen=True, slots=True)
class PossibleCall:
    """One call that may be made."""

    site: str
    node: GenNode | SelectNode
    symbols: tuple[Symbol, ...]
    shared: int  # symbols of it that are surely there before
    tally: Tally  # if it is made
    chances: Chances
    after: After
    behind: After


@dataclass(frozen=True, slots=True)
class PossibleToolCall:
    """One call of a declared function."""

    site: str
    step: FunctionStep
    chances: Chances
    after: After


@dataclass(slots=True)
class EstimateState:
    """What going through plans has found; several of them share prefixes."""

    target: Target
    counter: TokenCounter
    prefixes: PrefixTree = field(default_factory=PrefixTree)
    asked: list[PossibleCall] = field(default_factory=list)
    called: list[PossibleToolCall] = field(default_factory=list)
    ends: dict[tuple[str, Loc], None] = field(default_factory=dict)
    goes_on: bool = False  # behind one of these ordinary Python may ask for more
    tally: Tally = field(default_factory=Tally)
    endless: set[str] = field(default_factory=set)  # sites that run nobody knows how often

    def begun(self) -> tuple[int, int]:
        """How much has been found."""
        return len(self.asked), len(self.called)

    def no_end(self, since: tuple[int, int]) -> None:
        """What was found since then runs nobody knows how often."""
        self.endless.update(base_site(asked.site) for asked in self.asked[since[0] :])
        self.endless.update(base_site(called.site) for called in self.called[since[1] :])


@dataclass(frozen=True, slots=True)
class BlockContext:
    """Where a block stands: the names it sees, what makes its sites distinct, and how sure it is to run."""

    names: list[dict[Name, ValueAfter]]
    call: str = ""
    iterations: tuple[int, ...] = ()
    chances: Chances = ()
    after: After = START  # what decides that it runs

    @property
    def arms(self) -> Arms:
        return tuple((number, arm) for number, arm, _ in self.chances)

    @property
    def weight(self) -> float:
        return prod(weight for *_, weight in self.chances)

    def inner(self, given: Mapping[Name, ValueAfter], *iteration: int) -> BlockContext:
        return replace(self, names=[*self.names, dict(given)], iterations=(*self.iterations, *iteration))

    def perhaps(self, arm: tuple[int, int], weight: float, after: After) -> BlockContext:
        return replace(self, chances=(*self.chances, (*arm, weight)), after=last([self.after, after]))

    def find(self, name: Name) -> ValueAfter:
        for names in reversed(self.names):
            if name in names:
                return names[name]
        return (
            ValueAfter(StreamValue(()))
            if isinstance(name, Held)
            else ValueAfter(UnknownValue(("name", name), f"{{{name.name}}}"))
        )


def base_site(site: str) -> str:
    """A site at run time as it is written: without the numbers of iterations."""
    return re.sub(r"@\d+", "", site)
