"""One run of a block: what stands under its names, what its steps still wait for, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sglc.execution.plan.prepared_block import NOBODY, PreparedBlock, PreparedPrompt, PreparedVariable
from sglc.execution.plan.values import (
    MISSING,
    PROMPT,
    SO_FAR,
    Counter,
    Environment,
    Kept,
    Made,
    Samples,
    Value,
    read,
    text,
)
from sglc.ir.core import Site
from sglc.ir.plan.plan import Joined, OutputTree, Within
from sglc.ir.plan.segment import Slot

# Is told the results of a block, or the first error in it.
Then = Callable[[Sequence[Value], Exception | None], None]


@dataclass(frozen=True, slots=True)
class Placed:
    """What makes the sites of a block distinct: the call that runs its program, and iterations around."""

    call: str = ""
    iterations: tuple[int, ...] = ()


class Turn:
    """When everything with effects up to some place has ended, with its first error."""

    __slots__ = ("_behind", "_own", "_then", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: Exception | None = None
        self._own: Exception | None = None
        self._then: list[Callable[[], None]] = []
        self._behind: list[Turn] = []

    def then(self, call: Callable[[], None]) -> None:
        """Call this when it comes, which it has not yet."""
        self._then.append(call)

    def come(self, before: Turn | None, error: Exception | None) -> None:
        """It has come when `before` has, with the first error of both."""
        self._own = error
        if before is not None and not before.done:
            before._behind.append(self)
            return
        coming = [(self, None if before is None else before.error)]
        while coming:  # many may have waited for one
            turn, earlier = coming.pop()
            turn.done, turn.error = True, earlier or turn._own
            coming += [(behind, turn.error) for behind in turn._behind]
            waiting, turn._then = turn._then, []  # they hold the turn, or its block
            for call in waiting:
                call()


class Frame(Environment):
    """One run of a block, inside that of the block which holds it.

    Args:
        before: comes when all effects before the block are over; `ended` does so when its own are too.
        variables: is given those of the block, whatever comes of it.
        then: is told what comes of it.
    """

    __slots__ = (
        "at", "before", "block", "ended", "errors", "left", "missing", "then", "turns", "unfinished",
        "variables", "within",
    )  # fmt: skip

    def __init__(
        self, block: PreparedBlock, at: Placed, outer: Frame | None, variables: dict[str, Value], then: Then,
        before: Turn | None = None, ended: Turn | None = None, meter: Counter | None = None,
    ) -> None:  # fmt: skip
        self.values = [MISSING] * block.count
        self.outer = outer
        self.meter = meter
        self.block = block
        self.at = at
        self.then = then
        self.variables = variables
        self.before = before
        self.ended = ended
        self.missing = block.missing.copy()
        self.left = block.left.copy() if block.held else block.left
        self.unfinished = len(block.steps)
        self.errors: dict[int, Exception] = {}  # by step
        self.within: dict[int, list[dict[str, Value]]] = {}  # by step: the variables of the blocks that it ran
        self.turns: Sequence[Turn | None] = ()  # by step: of those with effects
        if block.order is not None:
            self.turns = [Turn() if effects else None for effects in block.order.has]

    def before_step(self, number: int) -> Turn | None:
        """When all effects before a step are over; None: there are none."""
        order = self.block.order
        if order is None or order.before[number] == NOBODY:
            return self.before
        return self.turns[order.before[number]]

    def awaited(self, number: int) -> Iterator[Turn]:
        """What comes before a step begins: what may go on as Python, and before its own effects all others."""
        order = self.block.order
        if order is None:
            return
        if order.gates[number] != NOBODY and (gate := self.turns[order.gates[number]]) is not None:
            yield gate
        if order.waits[number] and (before := self.before_step(number)) is not None:
            yield before

    def let_go(self, numbers: Sequence[int]) -> None:
        """A reader of these streams has ended."""
        for number in numbers:
            self.left[number] -= 1
            if not self.left[number] and isinstance(kept := self.values[number], Kept):
                kept.drop()

    def store(self) -> None:
        """Give its variables as far as they are there."""
        whole = not self.unfinished and not self.errors
        if not whole and self.meter is not None:
            return  # what is there of texts is not counted
        for variable in self.block.variables:
            match variable:
                case PreparedVariable(name):
                    if whole:
                        value = variable.read(self)
                    else:
                        known = self.block.names.known(variable.names, self)
                        value = None if known is None else read(variable.tree, known)
                        if known is None or (value is None and isinstance(variable.tree, Joined)):
                            continue
                    site = variable.site
                    if site is not None and value is not None:
                        value = Made(site.inside("", self.at.iterations) if self.at.iterations else site, value)
                    self.variables[name] = value
                case PreparedPrompt():
                    self.variables[PROMPT] = self._prompt(variable, whole=whole)
                case Within(step):
                    for inner in self.within.get(step, ()):
                        self.variables |= inner
        if not whole:
            self.variables[SO_FAR] = tuple(map(self._so_far, self.block.block.results))

    def _prompt(self, prompt: PreparedPrompt, *, whole: bool) -> Value:
        """What the prompt says as far as it came, and what its turns consist of."""
        if whole:
            turns: Value = () if prompt.turns is None else prompt.turns(self)
            if self.meter is not None:
                self.meter.take(turns)
            return prompt.text(self), turns
        known: Any = self.block.names.known(prompt.names, self) or dict.fromkeys(prompt.names)
        return self._so_far(prompt.end.text, prompt.end.stood), read(prompt.end.turns, known)

    def _so_far(self, tree: OutputTree, stood: Sequence[tuple[int, int]] = ()) -> str:
        """What there is of a text: up to its first part that is not there, with what there is of that. Literals
        are, before what has come or begun, or where it `stood` before a step that the program came to; else
        perhaps the program did not come there. So are texts that were made elsewhere, or before. Where the
        program has not come past a step, there is no more than that gives; if it is not known what stood before
        that, what was made elsewhere does not show that the program came there."""
        said, literal, written = "", "", set[Site]()
        certain, last = self._came(stood)
        order = self.block.order
        shows = bool(stood) or order is None or order.gate == NOBODY or self._is_past(order.gate)
        own: Sequence[int] = () if last is None else self.block.steps[last[0]].gives
        for place, part in enumerate((*(tree.parts if isinstance(tree, Joined) else (tree,)), "")):
            if place == certain:
                said, literal = said + literal, ""
            if last is not None and place >= last[1] and self._number(part) not in own:
                return said
            if isinstance(part, str):
                literal += part
                continue
            value = self.block.names.reader(part)(self) if isinstance(part, Slot) else None  # else no text
            if not isinstance(value, str | Samples):
                begun = self._begun(part)
                return said if begun is None else said + literal + begun
            literal += text(value)
            site = self.block.sites.get(part) if isinstance(part, Slot) else None
            if (not shows) if site is None else (not site.in_prompt or site in written):
                continue
            if site is not None:
                written.add(site)
            said, literal = said + literal, ""
        return said

    def _came(self, stood: Sequence[tuple[int, int]]) -> tuple[int, tuple[int, int] | None]:
        """How many parts of the prompt stood before the last step that the program came to, of those; and the
        first of them that it has not come past, if there is one."""
        certain = 0
        for number, count in stood if self.turns else ():
            before = self.before_step(number)
            if before is None or (before.done and before.error is None):
                certain = count
            if not self._is_past(number):
                return certain, (number, count)
        return certain, None

    def _is_past(self, number: int) -> bool:
        """Whether a step with effects is over, and so are those before it, and the program goes on."""
        turn = self.turns[number]
        return turn is not None and turn.done and turn.error is None

    def _number(self, name: OutputTree) -> int | None:
        return self.block.names.own.get(name) if isinstance(name, Slot) else None

    def _begun(self, name: OutputTree) -> str | None:
        """What there is of a text that is not whole; None: perhaps the program did not come to it."""
        number = self._number(name)
        for at, step in enumerate(self.block.steps):
            if number not in step.gives:
                continue
            inner: list[Any] = [found for block in self.within.get(at, ()) if (found := block.get(SO_FAR))]
            if inner:  # a loop's block gives first whether it goes on
                return str(inner[-1][step.gives.index(number) - len(step.gives)])
            return None if self.missing[at] else ""
        return None
