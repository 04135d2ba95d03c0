"""Values of a run that has not begun: what is known of them, and which calls come before them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from sglc.errors import Loc, SglcError
from sglc.explain.estimate.ranges import Span, either, total
from sglc.explain.estimate.token_counts import (
    Counter,
    Item,
    Line,
    Marked,
    Text,
    Unknown,
    first_word,
    last_word,
    merged,
    soft,
)
from sglc.ir.values import Plain, evaluate


@dataclass(frozen=True, slots=True)
class Chain:
    """Calls one after another, the last one first. `new` are the tokens generated in all of them."""

    site: str
    calls: int
    new: Span
    before: Chain | None

    @property
    def length(self) -> float:
        """How long it takes, in steps of the model: a call is at least one."""
        return self.new.likely + self.calls


@dataclass(frozen=True, slots=True)
class After:
    """What has to be over: the last steps, how many calls one after another, and the longest chain of them."""

    sites: frozenset[str] = frozenset()
    depth: int = 0
    chain: Chain | None = None


START = After()


def last(afters: Iterable[After]) -> After:
    """When all of it is over."""
    every = list(afters)
    chains = [after.chain for after in every if after.chain is not None]
    return After(
        frozenset().union(*(after.sites for after in every)),
        max((after.depth for after in every), default=0),
        max(chains, key=lambda chain: chain.length, default=None),
    )


@dataclass(frozen=True, slots=True)
class Said:
    """A text."""

    text: Text


@dataclass(frozen=True, slots=True)
class Fact:
    """A value that is no text, and known."""

    value: Plain


@dataclass(frozen=True, slots=True)
class Many:
    """A list whose length is known."""

    items: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A stream."""

    line: Line


@dataclass(frozen=True, slots=True)
class Open:
    """Nothing is known of it but where it comes from."""

    key: Hashable
    shown: str


Form = Said | Fact | Many | Prompt | Open


@dataclass(frozen=True, slots=True)
class Val:
    """A value and what comes before it."""

    form: Form
    after: After = START


def form_of(value: object) -> Form:
    """A value of plain data."""
    match value:
        case str():
            return Said((value,) if value else ())
        case tuple() | list():
            return Many(tuple(map(form_of, value)))
        case _:
            return Fact(value)  # type: ignore[arg-type]


def text_of(form: Form) -> Text:
    """A value where it is used as a text."""
    match form:
        case Said(text):
            return text
        case Many(items) if items:  # of several samples the first
            return text_of(items[0])
        case Open(key, shown):
            return (Unknown(key, Span(0, None, 0.0), shown),)
        case Fact(value):
            return (str(value),)
        case _:
            return (Unknown(("text", form), Span(0, None, 0.0), "{...}"),)


def plain_of(form: Form) -> tuple[Plain] | None:
    """A value that is wholly known."""
    match form:
        case Said(()):
            return ("",)
        case Said((str() as text,)):
            return (text,)
        case Fact(value):
            return (value,)
        case Many(items):
            known = [plain_of(item) for item in items]
            return (tuple(one[0] for one in known if one),) if all(known) else None
        case _:
            return None


def computed(operation: str, operands: tuple[Form, ...], name: str, key: Hashable, loc: Loc) -> Form:
    """What an operation of `ir.values` makes of what is known."""
    known = [plain_of(form) for form in operands]
    if all(known):
        try:
            return form_of(evaluate(operation, [one[0] for one in known if one], loc))
        except SglcError:
            return Open(key, f"{{{name}}}")  # the run will say so
    match operation, operands:
        case "format", _:
            return Said(_joined(operands))
        case (("strip" | "lower"), (Said((Unknown() as one,)),)) if one.choices:
            change = str.strip if operation == "strip" else str.lower
            choices = tuple(map(change, one.choices))
            return Said((Unknown((operation, one.key), one.tokens, one.shown, choices),))
        case (("strip" | "lower"), (Said(text),)):
            highs = [part.tokens.high if isinstance(part, Unknown) else len(part.encode()) for part in text]
            bounded = all(high is not None for high in highs)
            # Small letters may be more tokens than capital ones.
            most = sum(high or 0 for high in highs) * (4 if operation == "lower" else 1) if bounded else None
            likely = sum(part.tokens.likely if isinstance(part, Unknown) else len(part) / 4 for part in text)
            return Said((Unknown((operation, text), Span(0, most, likely), f"{{{name}}}"),))
        case "concat", _ if all(isinstance(form, Many | Said) for form in operands):
            lists = (form.items if isinstance(form, Many) else (form,) for form in operands)
            return Many(tuple(item for items in lists for item in items))
        case "pack", (form,):
            return form
        case _:
            return Open(key, f"{{{name}}}")


def _joined(operands: Iterable[Form]) -> Text:
    whole = merged([part for form in operands for part in text_of(form)])
    return tuple(part for part in whole if isinstance(part, str | Unknown))


def one_form(forms: list[Form], key: Hashable, shown: str, counter: Counter) -> Form:
    """One of several values, it is not known which."""
    first = forms[0]
    if all(form == first for form in forms):
        return first
    if all(isinstance(form, Prompt) for form in forms):
        return Prompt(_one_line([form.line for form in forms if isinstance(form, Prompt)], key, shown, counter))
    if all(isinstance(form, Said) for form in forms):
        texts = [form.text for form in forms if isinstance(form, Said)]
        spelled = tuple(text[0] if text else "" for text in texts)
        choices = tuple(choice for choice in spelled if isinstance(choice, str))
        if len(choices) < len(texts) or any(len(text) > 1 for text in texts):
            choices = ()
        span = either(counted(text, counter) for text in texts)
        return Said((Unknown(key, span, shown, choices),))
    return Open(key, shown)


def _one_line(lines: list[Line], key: Hashable, shown: str, counter: Counter) -> Line:
    """What prompts begin with, and behind it one of several ends."""
    begin = 0
    while all(len(line) > begin and line[begin] == lines[0][begin] for line in lines):
        begin += 1
    known, ends = lines[0][:begin], [line[begin:] for line in lines]
    literals = [end[0] if end and isinstance(end[0], str) else "" for end in ends]
    if common := _common_text(literals):
        known = (*known, common)
        ends = [merged([literal[len(common) :], *end[1:]]) for literal, end in zip(literals, ends, strict=True)]
    span = either(counted(end, counter) for end in ends)
    hard = all(not end or _is_hard(end[0]) for end in ends)
    edges = [_edges(end, counter) for end in ends if end]
    most = None if None in edges else max((edge for edge in edges if edge is not None), default=0)
    return (*known, Unknown(key, span, shown, begins_hard=hard, edges=most))


def _common_text(texts: list[str]) -> str:
    """What all of them begin with."""
    first, last_ = min(texts), max(texts)
    pairs = enumerate(zip(first, last_, strict=False))
    return first[: next((index for index, (one, other) in pairs if one != other), len(first))]


def _is_hard(item: Item) -> bool:
    return isinstance(item, Marked) or (isinstance(item, Unknown) and item.hard)


def _edges(end: Line, counter: Counter) -> int | None:
    """Tokens at both ends of a line that may become one with what stands beside it; None if not known."""
    if soft(end[0]) or soft(end[-1]):
        return None
    first = len(counter.encode(first_word(end[0]))) if isinstance(end[0], str) else 0
    return first + (len(counter.encode(last_word(end[-1]))) if isinstance(end[-1], str) else 0)


def counted(line: Line | Text, counter: Counter) -> Span:
    """Tokens of a line by itself."""
    symbols = counter.symbols(line)
    return total(
        symbol.tokens if isinstance(symbol, Unknown) else counter.weigh(1) for symbol in symbols
    ).floored()
