"""One segment of a plan, gone through without running it: of each node the stream behind it, and its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from sglc.explain.estimate.abstract_values import (
    START,
    AbstractValue,
    After,
    CallChain,
    StreamValue,
    TextValue,
    ValueAfter,
    form_of,
    last,
    text_of,
)
from sglc.explain.estimate.api_requests import of_picture, requests_of
from sglc.explain.estimate.forecast import Tally
from sglc.explain.estimate.intervals import ZERO, Interval, between, sure
from sglc.explain.estimate.limits import completion, kept
from sglc.explain.estimate.state import BlockContext, EstimateState, PossibleCall, base_site
from sglc.explain.estimate.token_counts import (
    Item,
    Line,
    Marked,
    Symbol,
    Unknown,
    common,
    last_word,
    merged,
    soft,
    weight,
)
from sglc.ir.choice_scoring import NEEDS_UNCONDITIONAL
from sglc.ir.plan.segment import (
    EncodedText,
    ExtendNode,
    ForkNode,
    GenNode,
    Held,
    ImagePart,
    KeepNode,
    Made,
    NodeResult,
    OpenNode,
    Part,
    ReleaseNode,
    RoleMark,
    Segment,
    SelectNode,
    Slot,
    TextPart,
)
from sglc.ir.target import ControlText

# Tokens by which an API marks a turn: as OpenAI says of its own, 4 for each and 3 before the answer.
_TURN_BEGINS, _TURN_ENDS = Interval(0, 8, 3.0), Interval(0, 8, 1.0)


class SegmentWalk:
    """One segment: of each node the stream behind it, and the text that it made."""

    def __init__(self, row: int, seen: EstimateState, segment: Segment, at: BlockContext) -> None:
        self.row = row
        self.counter = seen.counter
        self.seen = seen
        self.segment = segment
        self.at = at
        self.made: list[tuple[ValueAfter, ValueAfter | None]] = []
        self.tally = Tally(submits=sure(1)) if segment.nodes else Tally()

    def go(self) -> Tally:
        here = self.at.names[-1]
        for node in self.segment.nodes:
            match node:
                case OpenNode(handle=None):
                    self.made.append((ValueAfter(StreamValue(()), self.at.after), None))
                case OpenNode():
                    kept_ = self.at.find(Held(str(node.handle)))
                    self.made.append(
                        (ValueAfter(_prompt(kept_.form), last([self.at.after, kept_.after])), None)
                    )
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
                    self.made.append((ValueAfter(StreamValue(())), None))
                case _:
                    assert_never(node)
        for name, index in self.segment.gives:
            text = self.made[index][1]
            assert text is not None
            here[Slot(name)] = text
        return self.tally

    def line(self, node: int) -> Line:
        form = self.made[node][0].form
        assert isinstance(form, StreamValue)
        return form.line

    def extended(self, node: ExtendNode) -> ValueAfter:
        items: list[Item] = list(self.line(node.stream))
        afters = [self.made[node.stream][0].after]
        for number, part in enumerate(node.parts):
            found, after = self.part(part, number)
            items += found
            afters.append(after)
        return ValueAfter(StreamValue(merged(items)), last(afters))

    def part(self, part: Part, number: int) -> tuple[Sequence[Item], After]:
        match part:
            case Made(text, ids):
                return [text] if ids is None else [Marked(ids, text)], START
            case ControlText(text, ids):
                return [Marked(ids, text)], START
            case RoleMark():
                marks = _TURN_BEGINS if part.begins else _TURN_ENDS
                return [Unknown(("turn", part.role, part.begins), marks, part.text, hard=True)], START
            case ImagePart():
                picture = self.text(part.data)
                form = text_of(picture.form)
                known = form[0] if len(form) == 1 and isinstance(form[0], str) else ""
                tokens = of_picture(self.seen.target, known)
                return [Unknown(("picture", form), tokens, "{picture}", hard=True)], picture.after
            case EncodedText():
                raise AssertionError("no plan has it")
            case _:
                value = self.text(part)
                return text_of(value.form), value.after

    def text(self, part: TextPart) -> ValueAfter:
        match part:
            case str():
                return ValueAfter(form_of(part))
            case Slot():
                return self.at.find(part)
            case NodeResult(node):
                value = self.made[node][1]
                assert value is not None
                return value

    # -- calls -----------------------------------------------------------------------------------

    def asked(self, node: GenNode | SelectNode) -> tuple[ValueAfter, ValueAfter]:
        """Note a call; gives the stream behind it, and its text."""
        at = self.at
        site = str(node.site.inside(at.call, at.iterations))
        stream = self.made[node.stream][0]
        line = self.line(node.stream)
        symbols = self.counter.symbols(line)
        after = last([at.after, stream.after])
        if isinstance(node, GenNode):
            extra, scored, text = ZERO, ZERO, self.generated(node, site)
            new = _unbounded(completion(node.sampling, self.counter), node)
        else:
            choices = [self.text(choice) for choice in node.choices]
            after = last([after, *(choice.after for choice in choices)])
            symbols, extra, scored, text, new = self.chosen(node, site, line, symbols, choices)
        tally, shared = self.counts(site, symbols, extra, scored, new)
        tally = requests_of(tally, node, self.segment.nodes, self.seen.target, self.counter)
        earlier = after.chain
        chain = CallChain(base_site(site), 1, new, None)
        if earlier is not None:
            chain = CallChain(chain.site, earlier.calls + 1, earlier.new + new, earlier)
        behind = After(frozenset({base_site(site)}), after.depth + 1, chain)
        self.seen.asked.append(PossibleCall(site, node, symbols, shared, tally, at.chances, after, behind))
        self.tally = self.tally + tally
        return ValueAfter(StreamValue(self.behind(node, line, text, site)), behind), ValueAfter(
            TextValue((text,)), behind
        )

    def counts(
        self, site: str, symbols: tuple[Symbol, ...], extra: Interval, scored: Interval, new: Interval
    ) -> tuple[Tally, int]:
        """Enter a prompt among the others; what it counts, and how many symbols others surely begin with."""
        counter = self.counter
        found, maybe, nested, open_to = self.seen.prefixes.add(symbols, self.at.arms, f"{self.row}:{site}")
        least = int(counter.exact)  # the last token is always computed: what follows it is wanted
        # Of two prompts, one the beginning of the other, the one that comes second has its last token again.
        either_way = least * nested
        unread = _unread(symbols, found) + either_way + open_to
        begun = _less(weight(symbols[:found], counter), least if found == len(symbols) else 0)
        most = _less(weight(symbols[:maybe], counter), least if maybe == len(symbols) else 0).high
        most = None if most is None else most + either_way
        shared = Interval(max(begun.low - unread, 0), most, begun.likely)
        rest, whole = weight(symbols[maybe:], counter), weight(symbols[found:], counter)
        high = None if whole.high is None else max(whole.high, least) + unread
        computed_ = Interval(max(rest.low, least) - either_way, high, max(whole.likely, least))
        # What a cut takes from the end is taken from what is shared, where there is no more behind that.
        cut = max(-extra.low - max(whole.low, 0), 0)
        shared = Interval(max(shared.low - cut, 0), shared.high, shared.likely)
        prompt = weight(symbols, counter) + extra
        return (
            Tally(sure(1), prompt.floored(least), shared, computed_ + extra, new, scored),
            found,
        )

    def generated(self, node: GenNode, site: str) -> Unknown:
        key = (self.row, "text", site)
        return Unknown(key, _unbounded(kept(node.sampling, self.counter), node), f"{{{node.site.name}}}")

    def behind(self, node: GenNode | SelectNode, line: Line, text: Unknown, site: str) -> Line:
        """The stream that goes on behind a call."""
        if isinstance(node, SelectNode):
            return merged([*line, text])
        key = (self.row, "ids", site)
        made: list[Item] = [*line, replace(text, key=key, hard=True)]
        if node.sampling.stop or node.sampling.stop_regex:
            # The text before a stop may end within a token: that part is read again as text.
            made.append(Unknown((self.row, "tail", site), Interval(0, 2, 0.0), ""))
        symbols = self.counter.symbols(made)
        found, maybe, *_ = self.seen.prefixes.add(symbols, self.at.arms)
        if found < maybe == len(symbols):
            # Another prompt goes on where this text begins: if it comes later, it may begin with the text.
            most = text.tokens.high
            chance = Tally(shared=Interval(0, most, 0.0), computed=Interval(-(most or 0), 0, 0.0))
            self.tally = self.tally + chance
        return tuple(made)

    def chosen(
        self,
        node: SelectNode,
        site: str,
        line: Line,
        symbols: tuple[Symbol, ...],
        choices: Sequence[ValueAfter],
    ) -> tuple[tuple[Symbol, ...], Interval, Interval, Unknown, Interval]:
        """A choice: its prompt, what is passed through besides, its text, and what is generated for it."""
        texts = [text_of(choice.form) for choice in choices]
        spelled = [text[0] for text in texts if len(text) == 1 and isinstance(text[0], str)]
        key = (self.row, "text", site)
        shown = f"{{{node.site.name}}}"
        target = self.seen.target
        if len(spelled) < len(texts):
            text = Unknown(key, between(0, None), shown)
            return symbols, Interval(-self.cut(line), None, 0.0), between(0, None), text, ZERO
        tail = line[-1] if line and isinstance(line[-1], str) else ""
        text = Unknown(key, self.counter.of_choices(tail, spelled), shown, tuple(spelled))
        if not target.scores_tokens:
            longest = max(self.counter.of_text(choice).high or 0 for choice in spelled)
            likely = sum(self.counter.of_text(choice).likely for choice in spelled) / len(spelled)
            most = max(longest, len(max(spelled, key=len))) + 1
            return symbols, ZERO, ZERO, text, Interval(0, most, likely)
        prompt = self.counter.encode(tail)
        merges = not tail and bool(line) and soft(line[-1])
        extra = Interval(-self.cut(line), 0, 0.0) if merges else ZERO
        whole = [self.counter.encode(tail + choice) for choice in spelled]
        cut = min(common(prompt, ids) for ids in whole)
        if not cut and len(prompt) == len(symbols):
            cut, whole = len(prompt), [(*prompt, *self.counter.encode(choice)) for choice in spelled]
        symbols = symbols[: len(symbols) - len(prompt) + cut]
        ids = [choice[cut:] for choice in whole]
        distinct = {one[:end] for one in ids for end in range(1, len(one))}
        scored = Interval(len(distinct), sum(len(one) - 1 for one in ids), float(len(distinct)))
        if merges:  # what was cut away is scored as a part of every choice
            scored = Interval(0, (scored.high or 0) + self.cut(line) * len(ids), scored.likely)
        if tail and len(line) > 1 and soft(line[-2]):  # what stands before may shift where its tokens begin
            scored = Interval(max(scored.low - len(ids), 0), (scored.high or 0) + len(ids), scored.likely)
            extra = Interval(-1, 1, 0.0)
        alone = {one[0] for one in ids if len(one) > 1}
        if node.method not in NEEDS_UNCONDITIONAL:
            return symbols, extra, scored, text, ZERO
        return symbols, extra + sure(len(alone)), replace(scored, high=2 * (scored.high or 0)), text, ZERO

    def cut(self, line: Line) -> int:
        """Tokens at the end of a prompt that may become one with a choice, and be scored as a part of it."""
        last_ = line[-1] if line else ""
        return len(self.counter.encode(last_word(last_))) if isinstance(last_, str) else 2


def _prompt(form: AbstractValue) -> StreamValue:
    if isinstance(form, StreamValue):
        return form
    return StreamValue((Unknown(("stream", form), between(0, None), "{...}"),))


def _less(span: Interval, count: int) -> Interval:
    return span + Interval(-count, -count, -float(count))


def _unbounded(tokens: Interval, node: GenNode) -> Interval:
    """Tokens of a generation, of which a run says how many it makes at most."""
    return replace(tokens, low=0, high=None) if node.limit else tokens


def _unread(symbols: Sequence[Symbol], found: int) -> int:
    """1 where a prompt goes on behind a generation, from which nothing went on: its last id may have no KV."""
    return int(any(isinstance(symbol, Unknown) for symbol in symbols[max(found - 2, 0) : found]))
