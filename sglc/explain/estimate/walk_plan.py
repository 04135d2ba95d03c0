"""Goes through a plan without running it: which calls will be made, on which prompts, in which order.

Every block is gone through with what is known of its values. Of several arms each is gone through, and one
counts; a loop is gone through as often as it may run. Bounds of generated text that is read again as text
take it to be no more tokens there than it was made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from sglc.errors import SglcError
from sglc.explain.estimate.abstract_values import (
    START,
    AbstractValue,
    After,
    ListValue,
    StreamValue,
    TextValue,
    UnknownValue,
    ValueAfter,
    computed,
    form_of,
    last,
    one_form,
    plain_of,
    text_of,
)
from sglc.explain.estimate.forecast import Tally, one_of
from sglc.explain.estimate.intervals import Interval, between, sure
from sglc.explain.estimate.state import BlockContext, EstimateState, Name, PossibleToolCall
from sglc.explain.estimate.token_counts import Marked, Unknown, merged
from sglc.explain.estimate.walk_segment import SegmentWalk
from sglc.frontend.language.image import data_of
from sglc.ir.plan.plan import (
    Block,
    CallStep,
    CondStep,
    FunctionStep,
    HostStep,
    Joined,
    LoopStep,
    MapStep,
    OutputTree,
    Plan,
    Step,
    SwitchStep,
    ValueStep,
)
from sglc.ir.plan.segment import Held, Segment, Slot
from sglc.ir.pure import PURE, READ_PICTURE, STORED

_MOST_BLOCKS = 2_000  # that are gone through; what is behind them has no bound


def go_through(plan: Plan, arguments: Mapping[str, str], row: int, seen: EstimateState) -> None:
    """Go through `plan` with what is known of its arguments; what is found is added to `seen`."""
    given: dict[Name, ValueAfter] = {}
    for name in plan.names:
        known = arguments.get(name)
        form = UnknownValue(("argument", name), f"{{{name}}}") if known is None else form_of(known)
        given[Slot(name)] = ValueAfter(form)
    going = _PlanWalk(plan, row, seen)
    body = plan.body
    _, tally = going.block(Block((), body.steps, body.results, ()), BlockContext([given]))
    seen.tally = seen.tally + tally


class _Stops(Exception):
    """Ordinary Python takes over."""


def _nothing(place: int) -> ValueAfter:
    """Stands for a result of a block that does not come to its end."""
    return ValueAfter(UnknownValue(("end", place), "{...}"))


class _PlanWalk:
    """One plan, gone through for one row."""

    def __init__(self, plan: Plan, row: int, seen: EstimateState) -> None:
        self.plan = plan
        self.row = row
        self.seen = seen
        self.counter = seen.counter
        self.blocks = 0
        self.decisions = 0

    # -- steps -----------------------------------------------------------------------------------

    def block(self, block: Block, at: BlockContext) -> tuple[list[ValueAfter], Tally]:
        self.blocks += 1
        tally = Tally()
        try:
            for step in block.steps:
                tally = tally + self.step(step, at)
        except _Stops:
            return [_nothing(index) for index, _ in enumerate(block.results)], tally
        return [self.tree(tree, at) for tree in block.results], tally

    def numbered(
        self, number: int, at: BlockContext, given: Sequence[ValueAfter] = (), *iteration: int
    ) -> tuple[list[ValueAfter], Tally]:
        block = self.plan.blocks[number]
        return self.block(block, at.inner(dict(zip(block.params, given, strict=True)), *iteration))

    def step(self, step: Step, at: BlockContext) -> Tally:
        here = at.names[-1]
        match step:
            case Segment():
                return SegmentWalk(self.row, self.seen, step, at).go()
            case ValueStep(name, operation, operands, loc):
                values = [self.tree(tree, at) for tree in operands]
                key = (self.row, "value", at.call, at.iterations, name)
                form = computed(operation, tuple(value.form for value in values), name, key, loc)
                here[Slot(name)] = ValueAfter(form, last(value.after for value in values))
                return Tally()
            case FunctionStep():
                return self.function(step, at)
            case CondStep() | SwitchStep():
                return self.choice(step, at)
            case LoopStep():
                return self.loop(step, at)
            case MapStep():
                return self.map(step, at)
            case CallStep():
                call = str(step.site.inside(at.call, at.iterations))
                args = [self.tree(tree, at) for tree in step.args]
                block = self.plan.blocks[step.body]
                place = replace(
                    at, names=[dict(zip(block.params, args, strict=True))], call=call, iterations=()
                )
                made, tally = self.block(block, place)
                here.update(zip(step.gives, made, strict=True))
                return tally
            case HostStep():
                self.seen.ends[step.reason, step.loc] = None
                self.seen.goes_on = self.seen.goes_on or not step.error
                raise _Stops
            case _:
                assert_never(step)

    def function(self, step: FunctionStep, at: BlockContext) -> Tally:
        values = [self.tree(tree, at) for tree in (*step.args, *step.named.values())]
        after = last([at.after, *(value.after for value in values)])
        site = "@".join([f"{at.call}/{step.name}" if at.call else step.name, *map(str, at.iterations)])
        reads = step.function == READ_PICTURE or step.function.endswith(STORED)
        declared = step.function not in PURE and not reads
        if declared:
            self.seen.called.append(PossibleToolCall(site, step, at.chances, after))
        behind = After(frozenset({site}), after.depth, after.chain)
        key = (self.row, "function", site)
        form: AbstractValue = UnknownValue(key, f"{{{step.function.rpartition('.')[2]}()}}")
        if step.function == READ_PICTURE and (known := plain_of(values[0].form)):
            form = _picture(str(known[0]), form)
        at.names[-1][Slot(step.name)] = ValueAfter(form, behind)
        return Tally(tools=sure(1)) if declared else Tally()

    def choice(self, step: CondStep | SwitchStep, at: BlockContext) -> Tally:
        decided = self.tree(step.pred if isinstance(step, CondStep) else step.value, at)
        arms = _arms(step, decided.form)
        if len(arms) == 1:
            made, tally = self.numbered(arms[0], replace(at, after=last([at.after, decided.after])))
            made += [_nothing(place) for place in range(len(made), len(step.gives))]  # it ends the program
            at.names[-1].update(zip(step.gives, made, strict=True))
            return tally
        self.decisions += 1
        number = self.decisions
        outcomes: list[list[ValueAfter]] = []
        tallies = []
        for arm in arms:
            place = at.perhaps((number, arm), 1 / len(arms), decided.after)
            made, tally = self.numbered(arm, place)
            outcomes.append(made)
            tallies.append(tally)
        self.join(step.gives, outcomes, at, number, decided.after)
        return one_of(tallies)

    def loop(self, step: LoopStep, at: BlockContext) -> Tally:
        carried = [self.tree(tree, at) for tree in step.init]
        self.decisions += 1
        number = self.decisions
        place, tally, outcomes, since = at, Tally(), [], self.seen.begun()
        for iteration in range(step.max_iters):
            if self.blocks > _MOST_BLOCKS:
                tally = tally + endless(tally)
                self.seen.no_end(since)
                carried = [ValueAfter(_opened(value.form, (number, index)), value.after)
                           for index, value in enumerate(carried)]  # fmt: skip
                outcomes.append(carried)
                break
            made, once = self.numbered(step.body, place, carried, iteration)
            tally = tally + (once if iteration == 0 else once.perhaps(place.weight / at.weight))
            again, *carried = made
            outcomes.append(carried)
            known = plain_of(again.form)
            if known is not None and not known[0]:
                break
            if known is not None:
                outcomes.pop()
            else:
                place = place.perhaps((number, -1 - iteration), 0.5, again.after)
        else:
            if not outcomes or outcomes[-1] is not carried:
                outcomes.append(carried)
        self.join(step.gives, outcomes, at, number, START)
        return tally

    def map(self, step: MapStep, at: BlockContext) -> Tally:
        items = self.tree(step.items, at)
        here = at.names[-1]
        if isinstance(items.form, ListValue) and len(items.form.items) + self.blocks <= _MOST_BLOCKS:
            rows: list[list[ValueAfter]] = []
            tally = Tally()
            for index, item in enumerate(items.form.items):
                made, once = self.numbered(step.body, at, [ValueAfter(item, items.after)], index)
                rows.append(made)
                tally = tally + once
            for place, name in enumerate(step.gives):
                column = [row[place] for row in rows]
                here[name] = ValueAfter(ListValue(tuple(v.form for v in column)), last(v.after for v in column))
            return tally
        self.decisions += 1
        place_of_items = at.perhaps((self.decisions, 0), 1.0, items.after)
        number, since = self.decisions, self.seen.begun()
        one = ValueAfter(UnknownValue((self.row, "item", number), "{item}"), items.after)
        made, once = self.numbered(step.body, place_of_items, [one], 0)
        self.seen.no_end(since)
        for name, value in zip(step.gives, made, strict=True):
            here[name] = ValueAfter(
                UnknownValue((self.row, "list", number, name.name), f"{{{name.name}}}"), value.after
            )
        return once.perhaps(1.0) + endless(once)

    def join(
        self,
        gives: Sequence[Name],
        outcomes: Sequence[Sequence[ValueAfter]],
        at: BlockContext,
        number: int,
        after: After,
    ) -> None:
        for place, name in enumerate(gives):
            # An arm that ends the program gives nothing.
            ends = [outcome[place] for outcome in outcomes if place < len(outcome)]
            values = ends or [_nothing(place)]
            key = (self.row, "joined", number, place)
            shown = "{one of several ends}" if isinstance(name, Held) else "{one of several texts}"
            form = one_form([value.form for value in values], key, shown, self.counter)
            at.names[-1][name] = ValueAfter(form, last([after, *(value.after for value in values)]))

    # -- values ----------------------------------------------------------------------------------

    def tree(self, tree: OutputTree, at: BlockContext) -> ValueAfter:
        match tree:
            case Held(None):
                return ValueAfter(StreamValue(()))
            case Slot() | Held():
                return at.find(tree)
            case Joined(parts):
                values = [self.tree(part, at) for part in parts]
                text = merged([piece for value in values for piece in text_of(value.form)])
                pieces = tuple(piece for piece in text if not isinstance(piece, Marked))
                return ValueAfter(TextValue(pieces), last(value.after for value in values))
            case tuple():
                values = [self.tree(part, at) for part in tree]
                return ValueAfter(
                    ListValue(tuple(value.form for value in values)), last(value.after for value in values)
                )
            case Mapping():
                values = [self.tree(part, at) for part in tree.values()]
                return ValueAfter(
                    UnknownValue(("mapping", self.row), "{...}"), last(value.after for value in values)
                )
            case _:
                return ValueAfter(form_of(tree))


def _picture(source: str, otherwise: AbstractValue) -> AbstractValue:
    """A picture that a run would read, as it is now."""
    try:
        return form_of(data_of(source))
    except SglcError:  # a run says so
        return otherwise


def _arms(step: CondStep | SwitchStep, form: AbstractValue) -> tuple[int, ...]:
    """The blocks that may run."""
    known = plain_of(form)
    if isinstance(step, CondStep):
        return (step.then, step.orelse) if known is None else (step.then if known[0] else step.orelse,)
    texts: tuple[str, ...] = ()
    match form:
        case TextValue((Unknown(choices=choices),)) if choices:
            texts = choices
        case _ if known is not None:
            texts = (str(known[0]),)
    if not texts:
        return step.arms
    fitting = [step.arms[step.cases.index(text)] for text in texts if text in step.cases]
    if len(step.arms) > len(step.cases) and any(text not in step.cases for text in texts):
        fitting.append(step.arms[-1])
    return tuple(dict.fromkeys(fitting)) or step.arms


def endless(tally: Tally) -> Tally:
    """As often again as one likes."""

    def open_(span: Interval) -> Interval:
        return Interval(0, None if span.high != 0 else 0, 0.0)

    return Tally(*(open_(getattr(tally, name)) for name in Tally.__dataclass_fields__))


def _opened(form: AbstractValue, key: tuple[int, int]) -> AbstractValue:
    """A value that has become anything."""
    unknown = Unknown(("endless", key), between(0, None), "{...}")
    return (
        StreamValue((*form.line, unknown))
        if isinstance(form, StreamValue)
        else UnknownValue(("endless", key), "{...}")
    )
