"""What a run will do, as far as that is known before it: plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sglc.errors import Loc
from sglc.explain.estimate.intervals import ZERO, Interval, either, weighted


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of a part of a run, in calls and tokens.

    `prompt` = `shared` + `computed`: what an earlier prompt of the run begins with too, and the rest.
    `new` are generated tokens with those that end a text, `scored` ids passed through to rank choices.
    `submits` are hand-overs to the back end by a run of the plan.
    """

    calls: Interval = ZERO
    prompt: Interval = ZERO
    shared: Interval = ZERO
    computed: Interval = ZERO
    new: Interval = ZERO
    scored: Interval = ZERO
    submits: Interval = ZERO
    tools: Interval = ZERO

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, name) + getattr(other, name) for name in _FIELDS))

    @property
    def possible(self) -> Tally:
        """Without what no run can count: corrections of other parts may be below 0, a whole never is."""
        prompt = self.prompt.possible
        shared, computed = self.shared.at_most(prompt.high), self.computed.at_most(prompt.high)
        least = Interval(shared.possible.low + computed.possible.low, None, 0.0).at_most(prompt.high).low
        own = replace(
            self, prompt=replace(prompt, low=max(prompt.low, least)), shared=shared, computed=computed
        )
        return Tally(*(getattr(own, name).possible for name in _FIELDS))

    def or_more(self) -> Tally:
        """The same where more may come, and nobody knows how much."""
        spans = [getattr(self, name) for name in _FIELDS]
        return Tally(*(Interval(span.low, None, span.likely) for span in spans))

    def perhaps(self, weight: float) -> Tally:
        """The same where it may not come to it."""
        return Tally(*(getattr(self, name).perhaps(weight) for name in _FIELDS))


_FIELDS = ("calls", "prompt", "shared", "computed", "new", "scored", "submits", "tools")


def one_of(tallies: list[Tally]) -> Tally:
    """One of several parts, it is not known which."""
    return Tally(*(either(getattr(tally, name) for tally in tallies) for name in _FIELDS))


def some_of(parts: Sequence[tuple[float, Tally]]) -> Tally:
    """At most one of several parts, of which it is known how likely each is."""
    return Tally(*(weighted([(weight, getattr(tally, name)) for weight, tally in parts]) for name in _FIELDS))


@dataclass(frozen=True, slots=True)
class StepForecast:
    """One generation, choice or declared function of the program, however often it runs.

    Attributes:
        site: as in `Site`, without the numbers of iterations.
        counts: over all of its calls.
        each: of a single call, if it is made.
        after: sites of the steps whose results it needs.
        wave: how many calls come one after another up to this one, at least.
        critical: it is on the chain that is expected to take longest.
        without_bound: what its prompt holds of which no length is known.
        asks: what is asked of the model.
        parts: its first prompt, as (kind, text): `shared` with an earlier prompt, `computed` as a literal, or
            `unknown`, with what stands for it.
    """

    site: str
    name: str
    kind: str  # `gen`, `select` or `tool`
    loc: Loc
    counts: Tally
    each: Tally
    after: tuple[str, ...]
    wave: int
    critical: bool
    without_bound: tuple[str, ...]
    asks: str
    parts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PrefixNode:
    """A node of the prefix tree; `above` is the number of the one before it, -1 for none.

    `prompts` go through it, and those of the sites `ends` end here.
    """

    above: int
    text: str
    tokens: Interval
    prompts: int
    ends: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Forecast:
    """An estimate of a run or of a batch, made before anything runs.

    Attributes:
        exact: prompts are counted as the target has them. `counted`: their texts are; else they are guessed
            from lengths.
        chain: the calls of the longest chain, in order; `chain_tokens` are those that it generates.
        tree: what the prompts begin with; a node stands behind the one above it.
        depth: calls that must come one after another, whichever way the run takes.
        ends: ordinary Python takes over: why and where. Nothing is known of what comes then, so `counts` have
            no bound.
    """

    program: str
    target: str
    rows: int
    exact: bool
    steps: tuple[StepForecast, ...]
    counts: Tally
    depth: int
    chain: tuple[str, ...]
    chain_tokens: Interval
    tree: tuple[PrefixNode, ...]
    ends: tuple[tuple[str, Loc], ...] = ()
    marks: tuple[tuple[int, str], ...] = ()  # control tokens of the prompts, and how they are written
    counted: bool = True
    goes_on: bool = False  # ordinary Python may ask for more

    def step_of(self, site: str) -> StepForecast | None:
        """The step that a call at `site` belongs to; numbers of iterations are left out."""
        return next((step for step in self.steps if step.site == site), None)
