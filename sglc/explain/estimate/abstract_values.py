"""Values of a run that has not begun: what is known of them, and which calls come before them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from sglc.errors import Loc, SglcError
from sglc.explain.estimate.intervals import ZERO, Interval, either
from sglc.explain.estimate.token_counts import (
    Line,
    Text,
    TokenCounter,
    Unknown,
    first_word,
    last_word,
    merged,
    soft,
)
from sglc.ir.values import Plain, evaluate


@dataclass(frozen=True, slots=True)
class CallChain:
    """Calls one after another, the last one first. `new` are the tokens generated in all of them."""

    site: str
    calls: int
    new: Interval
    before: CallChain | None

    @property
    def length(self) -> float:
        """How long it takes, in steps of the model: a call is at least one."""
        return self.new.likely + self.calls


@dataclass(frozen=True, slots=True)
class After:
    """What has to be over: the last steps, how many calls one after another, and the longest chain of them."""

    sites: frozenset[str] = frozenset()
    depth: int = 0
    chain: CallChain | None = None


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
class TextValue:
    """A text."""

    text: Text


@dataclass(frozen=True, slots=True)
class PlainValue:
    """A value that is no text, and known."""

    value: Plain


@dataclass(frozen=True, slots=True)
class ListValue:
    """A list whose length is known."""

    items: tuple[AbstractValue, ...]


@dataclass(frozen=True, slots=True)
class StreamValue:
    """A stream."""

    line: Line


@dataclass(frozen=True, slots=True)
class UnknownValue:
    """Nothing is known of it but where it comes from."""

    key: Hashable
    shown: str


AbstractValue = TextValue | PlainValue | ListValue | StreamValue | UnknownValue


@dataclass(frozen=True, slots=True)
class ValueAfter:
    """A value and what comes before it."""

    form: AbstractValue
    after: After = START


def form_of(value: object) -> AbstractValue:
    """A value of plain data."""
    match value:
        case str():
            return TextValue((value,) if value else ())
        case tuple() | list():
            return ListValue(tuple(map(form_of, value)))
        case _:
            return PlainValue(value)  # type: ignore[arg-type]


def text_of(form: AbstractValue) -> Text:
    """A value where it is used as a text."""
    match form:
        case TextValue(text):
            return text
        case ListValue(items) if items:  # of several samples the first
            return text_of(items[0])
        case UnknownValue(key, shown):
            return (Unknown(key, Interval(0, None, 0.0), shown),)
        case PlainValue(value):
            return (str(value),)
        case _:
            return (Unknown(("text", form), Interval(0, None, 0.0), "{...}"),)


def plain_of(form: AbstractValue) -> tuple[Plain] | None:
    """A value that is wholly known."""
    match form:
        case TextValue(()):
            return ("",)
        case TextValue((str() as text,)):
            return (text,)
        case PlainValue(value):
            return (value,)
        case ListValue(items):
            known = [plain_of(item) for item in items]
            return (tuple(one[0] for one in known if one),) if all(known) else None
        case _:
            return None


def computed(
    operation: str, operands: tuple[AbstractValue, ...], name: str, key: Hashable, loc: Loc
) -> AbstractValue:
    """What an operation of `ir.values` makes of what is known."""
    known = [plain_of(form) for form in operands]
    if all(known):
        try:
            return form_of(evaluate(operation, [one[0] for one in known if one], loc))
        except SglcError:
            return UnknownValue(key, f"{{{name}}}")  # the run will say so
    match operation, operands:
        case "format", _:
            return TextValue(_joined(operands))
        case (("strip" | "lower"), (TextValue((Unknown() as one,)),)) if one.choices:
            change = str.strip if operation == "strip" else str.lower
            choices = tuple(map(change, one.choices))
            return TextValue((Unknown((operation, one.key), one.tokens, one.shown, choices),))
        case (("strip" | "lower"), (TextValue(text),)):
            highs = [part.tokens.high if isinstance(part, Unknown) else len(part.encode()) for part in text]
            bounded = all(high is not None for high in highs)
            # Small letters may be more tokens than capital ones.
            most = sum(high or 0 for high in highs) * (4 if operation == "lower" else 1) if bounded else None
            likely = sum(part.tokens.likely if isinstance(part, Unknown) else len(part) / 4 for part in text)
            return TextValue((Unknown((operation, text), Interval(0, most, likely), f"{{{name}}}"),))
        case "concat", _ if all(isinstance(form, ListValue | TextValue) for form in operands):
            lists = (form.items if isinstance(form, ListValue) else (form,) for form in operands)
            return ListValue(tuple(item for items in lists for item in items))
        case "pack", (form,):
            return form
        case _:
            return UnknownValue(key, f"{{{name}}}")


def _joined(operands: Iterable[AbstractValue]) -> Text:
    whole = merged([part for form in operands for part in text_of(form)])
    return tuple(part for part in whole if isinstance(part, str | Unknown))


def one_form(forms: list[AbstractValue], key: Hashable, shown: str, counter: TokenCounter) -> AbstractValue:
    """One of several values, it is not known which."""
    first = forms[0]
    if all(form == first for form in forms):
        return first
    if all(isinstance(form, StreamValue) for form in forms):
        return StreamValue(
            _one_line([form.line for form in forms if isinstance(form, StreamValue)], key, shown, counter)
        )
    if all(isinstance(form, TextValue) for form in forms):
        texts = [form.text for form in forms if isinstance(form, TextValue)]
        spelled = tuple(text[0] if text else "" for text in texts)
        choices = tuple(choice for choice in spelled if isinstance(choice, str))
        if len(choices) < len(texts) or any(len(text) > 1 for text in texts):
            choices = ()
        span = either(counted(text, counter) for text in texts)
        return TextValue((Unknown(key, span, shown, choices),))
    return UnknownValue(key, shown)


def _one_line(lines: list[Line], key: Hashable, shown: str, counter: TokenCounter) -> Line:
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
    hard = not any(end and (isinstance(end[0], str) or soft(end[0])) for end in ends)
    edges = [_edges(end, counter) for end in ends if end]
    most = None if None in edges else max((edge for edge in edges if edge is not None), default=0)
    return (*known, Unknown(key, span, shown, begins_hard=hard, edges=most))


def _common_text(texts: list[str]) -> str:
    """What all of them begin with."""
    first, last_ = min(texts), max(texts)
    pairs = enumerate(zip(first, last_, strict=False))
    return first[: next((index for index, (one, other) in pairs if one != other), len(first))]


def _edges(end: Line, counter: TokenCounter) -> int | None:
    """Tokens at both ends of a line that may become one with what stands beside it; None if not known."""
    if soft(end[0]) or soft(end[-1]):
        return None
    first = len(counter.encode(first_word(end[0]))) if isinstance(end[0], str) else 0
    return first + (len(counter.encode(last_word(end[-1]))) if isinstance(end[-1], str) else 0)


def counted(line: Line | Text, counter: TokenCounter) -> Interval:
    """Tokens of a line by itself."""
    symbols = counter.symbols(line)
    spans = (symbol.tokens if isinstance(symbol, Unknown) else counter.weigh(1) for symbol in symbols)
    return sum(spans, ZERO).floored()
