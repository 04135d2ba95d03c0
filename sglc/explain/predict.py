"""Goes through a plan without running it: which calls will be made, on which prompts, in which order.

Every block is gone through with what is known of its values. Of several arms each is gone through, and one
counts; a loop is gone through as often as it may run. Bounds of generated text that is read again as text
take it to be no more tokens there than it was made of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from sglc.errors import Loc
from sglc.explain.forecast import Tally, one_of
from sglc.explain.known import (
    START,
    After,
    Chain,
    Form,
    Many,
    Open,
    Prompt,
    Said,
    Val,
    computed,
    form_of,
    last,
    one_form,
    plain_of,
    text_of,
)
from sglc.explain.limits import completion, kept
from sglc.explain.pieces import Counter, Item, Line, Marked, Symbol, Unknown, last_word, merged, soft, weight
from sglc.explain.prefixes import Arms, Prefixes
from sglc.explain.spans import ZERO, Span, between, sure
from sglc.ir.choosing import NEEDS_UNCONDITIONAL
from sglc.ir.plan import (
    Block,
    CallStep,
    CondStep,
    ControlText,
    ExtendNode,
    ForkNode,
    FunctionStep,
    GenNode,
    Held,
    HostStep,
    ImagePart,
    Joined,
    KeepNode,
    LoopStep,
    MapStep,
    OpenNode,
    OutputTree,
    Part,
    Plan,
    ReleaseNode,
    ReleaseStep,
    Result,
    RoleMark,
    Segment,
    SelectNode,
    Slot,
    Step,
    SwitchStep,
    TextPart,
    ValueStep,
)
from sglc.ir.target import Target

_MOST_BLOCKS = 2_000  # that are gone through; what is behind them has no bound
_TURN = Span(0, 8, 4.0)  # tokens by which an API marks a turn

Name = Slot | Held


@dataclass(frozen=True, slots=True)
class Asked:
    """One call that may be made."""

    site: str
    node: GenNode | SelectNode
    row: int
    symbols: tuple[Symbol, ...]
    line: Line
    shared: int  # symbols of it that are surely there before
    tally: Tally  # if it is made
    certain: bool
    weight: float
    after: After
    behind: After


@dataclass(frozen=True, slots=True)
class Called:
    """One call of a declared function."""

    site: str
    step: FunctionStep
    certain: bool
    weight: float
    after: After


@dataclass(slots=True)
class Seen:
    """What going through plans has found; several of them share prefixes."""

    target: Target
    counter: Counter
    prefixes: Prefixes = field(default_factory=Prefixes)
    asked: list[Asked] = field(default_factory=list)
    called: list[Called] = field(default_factory=list)
    ends: dict[tuple[str, Loc], None] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    endless: set[str] = field(default_factory=set)  # sites that run nobody knows how often

    def begun(self) -> tuple[int, int]:
        """How much has been found."""
        return len(self.asked), len(self.called)

    def no_end(self, since: tuple[int, int]) -> None:
        """What was found since then runs nobody knows how often."""
        self.endless.update(base_site(asked.site) for asked in self.asked[since[0] :])
        self.endless.update(base_site(called.site) for called in self.called[since[1] :])


def go_through(plan: Plan, arguments: Mapping[str, str], row: int, seen: Seen) -> None:
    """Go through `plan` with what is known of its arguments; what is found is added to `seen`."""
    given: dict[Name, Val] = {}
    for name in plan.params:
        known = arguments.get(name)
        form = Open(("argument", name), f"{{{name}}}") if known is None else form_of(known)
        given[Slot(name)] = Val(form)
    going = _Going(plan, row, seen)
    body = plan.body
    _, tally = going.block(Block((), body.steps, body.results, ()), _Place([given]))
    seen.tally = seen.tally + tally


class _Ends(Exception):
    """Ordinary Python takes over."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a block stands: the names it sees, what makes its sites distinct, and how sure it is to run."""

    names: list[dict[Name, Val]]
    call: str = ""
    iterations: tuple[int, ...] = ()
    arms: Arms = ()
    certain: bool = True
    weight: float = 1.0
    after: After = START  # what decides that it runs

    def inner(self, given: Mapping[Name, Val], *iteration: int) -> _Place:
        return replace(self, names=[*self.names, dict(given)], iterations=(*self.iterations, *iteration))

    def perhaps(self, arm: tuple[int, int], weight: float, after: After) -> _Place:
        return replace(
            self, arms=(*self.arms, arm), certain=False, weight=self.weight * weight,
            after=last([self.after, after]),
        )  # fmt: skip

    def find(self, name: Name) -> Val:
        for names in reversed(self.names):
            if name in names:
                return names[name]
        return Val(Prompt(())) if isinstance(name, Held) else Val(Open(("name", name), f"{{{name.name}}}"))


class _Going:
    """One plan, gone through for one row."""

    def __init__(self, plan: Plan, row: int, seen: Seen) -> None:
        self.plan = plan
        self.row = row
        self.seen = seen
        self.counter = seen.counter
        self.blocks = 0
        self.decisions = 0

    # -- steps -----------------------------------------------------------------------------------

    def block(self, block: Block, at: _Place) -> tuple[list[Val], Tally]:
        self.blocks += 1
        tally = Tally()
        try:
            for step in block.steps:
                tally = tally + self.step(step, at)
        except _Ends:
            return [Val(Open(("end", index), "{...}")) for index, _ in enumerate(block.results)], tally
        return [self.tree(tree, at) for tree in block.results], tally

    def numbered(
        self, number: int, at: _Place, given: Sequence[Val] = (), *iteration: int
    ) -> tuple[list[Val], Tally]:
        block = self.plan.blocks[number]
        return self.block(block, at.inner(dict(zip(block.params, given, strict=True)), *iteration))

    def step(self, step: Step, at: _Place) -> Tally:
        here = at.names[-1]
        match step:
            case Segment():
                return _Nodes(self, step, at).go()
            case ValueStep(name, operation, operands, loc):
                values = [self.tree(tree, at) for tree in operands]
                key = (self.row, "value", at.call, at.iterations, name)
                form = computed(operation, tuple(value.form for value in values), name, key, loc)
                here[Slot(name)] = Val(form, last(value.after for value in values))
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
                raise _Ends
            case ReleaseStep():
                return Tally()
            case _:
                assert_never(step)

    def function(self, step: FunctionStep, at: _Place) -> Tally:
        values = [self.tree(tree, at) for tree in (*step.args, *step.named.values())]
        after = last([at.after, *(value.after for value in values)])
        site = "@".join([f"{at.call}/{step.name}" if at.call else step.name, *map(str, at.iterations)])
        self.seen.called.append(Called(site, step, at.certain, at.weight, after))
        behind = After(frozenset({site}), after.depth, after.chain)
        key = (self.row, "function", site)
        at.names[-1][Slot(step.name)] = Val(Open(key, f"{{{step.function.rpartition('.')[2]}()}}"), behind)
        return Tally(tools=sure(1))

    def choice(self, step: CondStep | SwitchStep, at: _Place) -> Tally:
        decided = self.tree(step.pred if isinstance(step, CondStep) else step.value, at)
        arms = _arms(step, decided.form)
        if len(arms) == 1:
            made, tally = self.numbered(arms[0], replace(at, after=last([at.after, decided.after])))
            at.names[-1].update(zip(step.gives, made, strict=True))
            return tally
        self.decisions += 1
        number = self.decisions
        outcomes: list[list[Val]] = []
        tallies = []
        for arm in arms:
            place = at.perhaps((number, arm), 1 / len(arms), decided.after)
            made, tally = self.numbered(arm, place)
            outcomes.append(made)
            tallies.append(tally)
        self.join(step.gives, outcomes, at, number, decided.after)
        return one_of(tallies)

    def loop(self, step: LoopStep, at: _Place) -> Tally:
        carried = [self.tree(tree, at) for tree in step.init]
        self.decisions += 1
        number = self.decisions
        place, tally, outcomes, since = at, Tally(), [], self.seen.begun()
        for iteration in range(step.max_iters):
            if self.blocks > _MOST_BLOCKS:
                tally = tally + endless(tally)
                self.seen.no_end(since)
                carried = [Val(_opened(value.form, (number, index)), value.after)
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

    def map(self, step: MapStep, at: _Place) -> Tally:
        items = self.tree(step.items, at)
        here = at.names[-1]
        if isinstance(items.form, Many) and len(items.form.items) + self.blocks <= _MOST_BLOCKS:
            rows: list[list[Val]] = []
            tally = Tally()
            for index, item in enumerate(items.form.items):
                made, once = self.numbered(step.body, at, [Val(item, items.after)], index)
                rows.append(made)
                tally = tally + once
            for place, name in enumerate(step.gives):
                column = [row[place] for row in rows]
                here[name] = Val(Many(tuple(v.form for v in column)), last(v.after for v in column))
            return tally
        self.decisions += 1
        place_of_items = at.perhaps((self.decisions, 0), 1.0, items.after)
        number, since = self.decisions, self.seen.begun()
        one = Val(Open((self.row, "item", number), "{item}"), items.after)
        made, once = self.numbered(step.body, place_of_items, [one], 0)
        self.seen.no_end(since)
        for name, value in zip(step.gives, made, strict=True):
            here[name] = Val(Open((self.row, "list", number, name.name), f"{{{name.name}}}"), value.after)
        return once.perhaps(1.0) + endless(once)

    def join(
        self, gives: Sequence[Name], outcomes: Sequence[Sequence[Val]], at: _Place, number: int, after: After
    ) -> None:
        for place, name in enumerate(gives):
            values = [outcome[place] for outcome in outcomes]
            key = (self.row, "joined", number, place)
            shown = "{one of several ends}" if isinstance(name, Held) else f"{{{name.name}}}"
            form = one_form([value.form for value in values], key, shown, self.counter)
            at.names[-1][name] = Val(form, last([after, *(value.after for value in values)]))

    # -- values ----------------------------------------------------------------------------------

    def tree(self, tree: OutputTree, at: _Place) -> Val:
        match tree:
            case Held(None):
                return Val(Prompt(()))
            case Slot() | Held():
                return at.find(tree)
            case Joined(parts):
                values = [self.tree(part, at) for part in parts]
                text = merged([piece for value in values for piece in text_of(value.form)])
                pieces = tuple(piece for piece in text if not isinstance(piece, Marked))
                return Val(Said(pieces), last(value.after for value in values))
            case tuple():
                values = [self.tree(part, at) for part in tree]
                return Val(Many(tuple(value.form for value in values)), last(value.after for value in values))
            case Mapping():
                values = [self.tree(part, at) for part in tree.values()]
                return Val(Open(("mapping", self.row), "{...}"), last(value.after for value in values))
            case _:
                return Val(form_of(tree))


class _Nodes:
    """One segment: of each node the stream behind it, and the text that it made."""

    def __init__(self, going: _Going, segment: Segment, at: _Place) -> None:
        self.going = going
        self.counter = going.counter
        self.seen = going.seen
        self.segment = segment
        self.at = at
        self.made: list[tuple[Val, Val | None]] = []
        self.tally = Tally(submits=sure(1)) if segment.nodes else Tally()

    def go(self) -> Tally:
        here = self.at.names[-1]
        for node in self.segment.nodes:
            match node:
                case OpenNode(handle=None):
                    self.made.append((Val(Prompt(()), self.at.after), None))
                case OpenNode():
                    kept_ = self.at.find(Held(str(node.handle)))
                    self.made.append((Val(_prompt(kept_.form), last([self.at.after, kept_.after])), None))
                case ExtendNode():
                    self.made.append((self.extended(node), None))
                case ForkNode():
                    self.made.append(self.made[node.stream])
                case KeepNode():
                    self.made.append(self.made[node.stream])
                    here[Held(str(node.handle))] = self.made[node.stream][0]
                case GenNode() | SelectNode():
                    self.made.append(self.asked(node))
                case ReleaseNode():
                    self.made.append((Val(Prompt(())), None))
                case _:
                    assert_never(node)
        for name, index in self.segment.gives:
            text = self.made[index][1]
            assert text is not None
            here[Slot(name)] = text
        return self.tally

    def line(self, node: int) -> Line:
        form = self.made[node][0].form
        assert isinstance(form, Prompt)
        return form.line

    def extended(self, node: ExtendNode) -> Val:
        items: list[Item] = list(self.line(node.stream))
        afters = [self.made[node.stream][0].after]
        for number, part in enumerate(node.parts):
            found, after = self.part(part, number)
            items += found
            afters.append(after)
        return Val(Prompt(merged(items)), last(afters))

    def part(self, part: Part, number: int) -> tuple[Sequence[Item], After]:
        match part:
            case ControlText(text, ids):
                return [Marked(ids, text)], START
            case RoleMark():
                return [Unknown(("turn", part.role, part.begins), _TURN, part.text, hard=True)], START
            case ImagePart():
                picture = self.text(part.data)
                key = ("picture", text_of(picture.form))
                return [Unknown(key, between(0, None), "{picture}", hard=True)], picture.after
            case _:
                value = self.text(part)
                return text_of(value.form), value.after

    def text(self, part: TextPart) -> Val:
        match part:
            case str():
                return Val(form_of(part))
            case Slot():
                return self.at.find(part)
            case Result(node):
                value = self.made[node][1]
                assert value is not None
                return value

    # -- calls -----------------------------------------------------------------------------------

    def asked(self, node: GenNode | SelectNode) -> tuple[Val, Val]:
        """Note a call; gives the stream behind it, and its text."""
        at, row = self.at, self.going.row
        site = str(node.site.inside(at.call, at.iterations))
        stream = self.made[node.stream][0]
        line = self.line(node.stream)
        symbols = self.counter.symbols(line)
        after = last([at.after, stream.after])
        if isinstance(node, GenNode):
            extra, scored, text = ZERO, ZERO, self.generated(node, site)
            new = completion(node.sampling, self.counter)
        else:
            choices = [self.text(choice) for choice in node.choices]
            after = last([after, *(choice.after for choice in choices)])
            symbols, extra, scored, text, new = self.chosen(node, site, line, symbols, choices)
        tally, shared = self.counts(site, symbols, extra, scored, new)
        if getattr(node, "ahead", 0) and self.seen.target.guesses:
            tally = replace(tally, calls=between(0, 1))  # the request of an earlier one may answer it
        earlier = after.chain
        chain = Chain(base_site(site), 1, new, None)
        if earlier is not None:
            chain = Chain(chain.site, earlier.calls + 1, earlier.new + new, earlier)
        behind = After(frozenset({base_site(site)}), after.depth + 1, chain)
        self.seen.asked.append(
            Asked(site, node, row, symbols, line, shared, tally, at.certain, at.weight, after, behind)
        )
        self.tally = self.tally + tally
        return Val(Prompt(self.behind(node, line, text, site)), behind), Val(Said((text,)), behind)

    def counts(
        self, site: str, symbols: tuple[Symbol, ...], extra: Span, scored: Span, new: Span
    ) -> tuple[Tally, int]:
        """Enter a prompt among the others; what it counts, and how many symbols others surely begin with."""
        counter = self.counter
        found, maybe, nested = self.seen.prefixes.add(symbols, self.at.arms, f"{self.going.row}:{site}")
        least = int(counter.exact)  # the last token is always computed: what follows it is wanted
        # Of two prompts, one the beginning of the other, the one that comes second has its last token again.
        either_way = least * nested
        unread = _unread(symbols, found) + either_way
        begun = _less(weight(symbols[:found], counter), least if found == len(symbols) else 0)
        most = _less(weight(symbols[:maybe], counter), least if maybe == len(symbols) else 0).high
        most = None if most is None else most + either_way
        shared = Span(max(begun.low - unread, 0), most, begun.likely)
        rest, whole = weight(symbols[maybe:], counter), weight(symbols[found:], counter)
        high = None if whole.high is None else max(whole.high, least) + unread
        computed_ = Span(max(rest.low, least) - either_way, high, max(whole.likely, least))
        # What a cut takes from the end is taken from what is shared, where there is no more behind that.
        cut = max(-extra.low - max(whole.low, 0), 0)
        shared = Span(max(shared.low - cut, 0), shared.high, shared.likely)
        prompt = weight(symbols, counter) + extra
        return (
            Tally(sure(1), prompt.floored(least), shared, computed_ + extra, new, scored),
            found,
        )

    def generated(self, node: GenNode, site: str) -> Unknown:
        key = (self.going.row, "text", site)
        return Unknown(key, kept(node.sampling, self.counter), f"{{{node.site.name}}}")

    def behind(self, node: GenNode | SelectNode, line: Line, text: Unknown, site: str) -> Line:
        """The stream that goes on behind a call."""
        if isinstance(node, SelectNode):
            return merged([*line, text])
        key = (self.going.row, "ids", site)
        made: list[Item] = [*line, replace(text, key=key, hard=True)]
        if node.sampling.stop or node.sampling.stop_regex:
            # The text before a stop may end within a token: that part is read again as text.
            made.append(Unknown((self.going.row, "tail", site), Span(0, 2, 0.0), ""))
        symbols = self.counter.symbols(made)
        found, maybe, _ = self.seen.prefixes.add(symbols, self.at.arms)
        if found < maybe == len(symbols):
            # Another prompt goes on where this text begins: if it comes later, it may begin with the text.
            most = text.tokens.high
            chance = Tally(shared=Span(0, most, 0.0), computed=Span(-(most or 0), 0, 0.0))
            self.tally = self.tally + chance
        return tuple(made)

    def chosen(
        self, node: SelectNode, site: str, line: Line, symbols: tuple[Symbol, ...], choices: Sequence[Val]
    ) -> tuple[tuple[Symbol, ...], Span, Span, Unknown, Span]:
        """A choice: its prompt, what is passed through besides, its text, and what is generated for it."""
        texts = [text_of(choice.form) for choice in choices]
        spelled = [text[0] for text in texts if len(text) == 1 and isinstance(text[0], str)]
        key = (self.going.row, "text", site)
        shown = f"{{{node.site.name}}}"
        target = self.seen.target
        if len(spelled) < len(texts):
            text = Unknown(key, between(0, None), shown)
            return symbols, Span(-self.cut(line), None, 0.0), between(0, None), text, ZERO
        tail = line[-1] if line and isinstance(line[-1], str) else ""
        text = Unknown(key, self.counter.of_choices(tail, spelled), shown, tuple(spelled))
        if not target.scores_tokens:
            longest = max(self.counter.of_text(choice).high or 0 for choice in spelled)
            return symbols, ZERO, ZERO, text, between(0, max(longest, len(max(spelled, key=len))) + 1)
        prompt = self.counter.encode(tail)
        merges = not tail and bool(line) and soft(line[-1])
        extra = Span(-self.cut(line), 0, 0.0) if merges else ZERO
        whole = [self.counter.encode(tail + choice) for choice in spelled]
        cut = min(_common(prompt, ids) for ids in whole)
        if not cut and len(prompt) == len(symbols):
            cut, whole = len(prompt), [(*prompt, *self.counter.encode(choice)) for choice in spelled]
        symbols = symbols[: len(symbols) - len(prompt) + cut]
        ids = [choice[cut:] for choice in whole]
        distinct = {one[:end] for one in ids for end in range(1, len(one))}
        scored = Span(len(distinct), sum(len(one) - 1 for one in ids), float(len(distinct)))
        if merges:  # what was cut away is scored as a part of every choice
            scored = Span(0, (scored.high or 0) + self.cut(line) * len(ids), scored.likely)
        if tail and len(line) > 1 and soft(line[-2]):  # what stands before may shift where its tokens begin
            scored = Span(max(scored.low - len(ids), 0), (scored.high or 0) + len(ids), scored.likely)
            extra = Span(-1, 1, 0.0)
        alone = {one[0] for one in ids if len(one) > 1}
        if node.method not in NEEDS_UNCONDITIONAL:
            return symbols, extra, scored, text, ZERO
        return symbols, extra + sure(len(alone)), replace(scored, high=2 * (scored.high or 0)), text, ZERO

    def cut(self, line: Line) -> int:
        """Tokens at the end of a prompt that may become one with a choice, and be scored as a part of it."""
        last_ = line[-1] if line else ""
        return len(self.counter.encode(last_word(last_))) if isinstance(last_, str) else 2


def _arms(step: CondStep | SwitchStep, form: Form) -> tuple[int, ...]:
    """The blocks that may run."""
    known = plain_of(form)
    if isinstance(step, CondStep):
        return (step.then, step.orelse) if known is None else (step.then if known[0] else step.orelse,)
    texts: tuple[str, ...] = ()
    match form:
        case Said((Unknown(choices=choices),)) if choices:
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

    def open_(span: Span) -> Span:
        return Span(0, None if span.high != 0 else 0, 0.0)

    return Tally(*(open_(getattr(tally, name)) for name in Tally.__dataclass_fields__))


def _opened(form: Form, key: tuple[int, int]) -> Form:
    """A value that has become anything."""
    unknown = Unknown(("endless", key), between(0, None), "{...}")
    return Prompt((*form.line, unknown)) if isinstance(form, Prompt) else Open(("endless", key), "{...}")


def _prompt(form: Form) -> Prompt:
    if isinstance(form, Prompt):
        return form
    return Prompt((Unknown(("stream", form), between(0, None), "{...}"),))


def _less(span: Span, count: int) -> Span:
    return span + Span(-count, -count, -float(count))


def _unread(symbols: Sequence[Symbol], found: int) -> int:
    """1 where a prompt goes on behind a generation, from which nothing went on: its last id may have no KV."""
    return int(any(isinstance(symbol, Unknown) for symbol in symbols[max(found - 2, 0) : found]))


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def base_site(site: str) -> str:
    """A site at run time as it is written: without the numbers of iterations."""
    return re.sub(r"@\d+", "", site)
