"""Documents against compiled schemas: what is accepted that is not valid, and what is not that is.

`python -m tests.constraints.verdicts` prints the counts for all that there is, beside llguidance alone.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from sglc.errors import LegalizeError, RunError
from sglc.ir.grammar import schema_grammar
from sglc.ir.grammar.json_schema import read
from sglc.ir.sampling import Sampling
from sglc.runtime.constraints.constraint import Constraints
from sglc.runtime.constraints.grammar_constraint import GrammarConstraint, Look, Matcher
from sglc.runtime.constraints.protocol import Constraint
from tests.constraints.suites import DRAFTS, NEWEST, Case, store, suite

BYTES = [bytes([byte]) for byte in range(256)]
CONSTRAINTS = Constraints(BYTES, len(BYTES))
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": False}
Start = Callable[[], Matcher]
_STEPS = 2000  # of a search for an order


def ours(schema: Any) -> Start | None:
    """What makes matchers of a schema; None if it is refused."""
    try:
        constraint = CONSTRAINTS.of(Sampling(json_schema=json.dumps(schema)))
    except (LegalizeError, RunError):
        return None
    if isinstance(constraint, GrammarConstraint):
        return constraint._new_matcher
    assert constraint is not None
    return lambda: _Walk(constraint)


class _Walk:
    """A `Matcher` along an automaton."""

    def __init__(self, constraint: Constraint) -> None:
        self._constraint, self._state = constraint, constraint.start

    def take(self, token: int) -> None:
        assert self._constraint.mask(self._state)[token], "a token that the mask does not allow"
        self._state = self._constraint.advance(self._state, token)

    def look(self) -> Look:
        packed = np.packbits(self._constraint.mask(self._state), bitorder="little")
        return packed, self._constraint.accepting(self._state)

    def push(self, byte: int) -> bool:
        raise NotImplementedError

    def back(self, count: int) -> None:
        raise NotImplementedError


def bare(schema: Any) -> Start | None:
    """As `ours`, by llguidance alone, given the schema as it is."""
    from llguidance import LLMatcher

    try:
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_LAYOUT)
    except ValueError:
        return None
    if LLMatcher.validate_grammar(grammar):
        return None
    return lambda: CONSTRAINTS._grammars._guidance.matcher(grammar)


def accepts(start: Start, text: str) -> bool:
    """Whether a whole text is accepted."""
    matcher = start()
    try:
        for byte in text.encode("utf-8", "surrogatepass"):
            matcher.take(byte)
    except (AssertionError, RunError):
        return False
    return matcher.look()[1]


def names_in(schema: Any) -> dict[str, int]:
    """Names of properties, in the order in which a schema has them."""
    found: dict[str, int] = {}
    stack = [schema]
    while stack:
        match stack.pop():
            case dict() as part:
                for name in part.get("properties", ()) if isinstance(part.get("properties"), dict) else ():
                    found.setdefault(name, len(found))
                stack += reversed(part.values())
            case list() as parts:
                stack += reversed(parts)
    return found


def ordered(value: Any, key: Callable[[str], Any]) -> Any:
    """A document with the properties of its objects in another order."""
    match value:
        case dict():
            return {name: ordered(value[name], key) for name in sorted(value, key=key)}
        case list():
            return [ordered(part, key) for part in value]
        case _:
            return value


def spellings(document: Any, schema: Any) -> Iterator[str]:
    """Texts of a document: in the schema's order first; with escapes and in other orders and layouts."""
    names = names_in(schema)
    in_order = ordered(document, lambda name: (names.get(name, len(names)), name))
    yield json.dumps(in_order, ensure_ascii=False)
    yield json.dumps(document, ensure_ascii=False)
    yield json.dumps(document)
    yield json.dumps(ordered(document, lambda name: name))
    yield json.dumps(ordered(document, lambda name: -names.get(name, -1)), ensure_ascii=False)
    yield json.dumps(in_order, separators=(",", ":"))


def unnarrowed(schema: Any) -> Start | None:
    """As `ours`, without what is a choice: types that keywords tell, names that are listed, lists that end."""
    try:
        grammar = schema_grammar._grammar(schema_grammar._written(read(schema, exact=True).form))
    except LegalizeError:
        return None
    if schema_grammar.problem_of(grammar):
        return None
    return lambda: CONSTRAINTS._grammars._guidance.matcher(grammar)


def kind_of_reject(start: Start, document: Any, schema: Any) -> str | None:
    """Why a valid document is not accepted; None if it is, in the schema's order."""
    texts = list(spellings(document, schema))
    if accepts(start, texts[0]):
        return None
    if any(accepts(start, text) for text in texts) or accepts_in_some_order(start, document):
        return "order"
    whole = json.loads(texts[0], parse_float=_shortest)
    if accepts(start, json.dumps(whole, ensure_ascii=False)) or accepts_in_some_order(start, whole):
        return "spelling of a number"
    wider = unnarrowed(schema)
    if wider is None:  # of `not`, `if`, `oneOf` and the like, which are said in words that imply them
        return "other words"
    if accepts_in_some_order(wider, document) or accepts_in_some_order(wider, whole):
        return "choice"
    return "order, not found" if accepts_in_some_order(wider, whole, given_up=True) else "other"


def accepts_in_some_order(start: Start, document: Any, *, given_up: bool = False) -> bool:
    """Whether a document is accepted with its properties in some order, as far as a short search tells.

    With `given_up`: or that search has ended before all orders were tried.
    """
    left = [_STEPS]
    first = getattr(start(), "_matcher", None)
    if first is None:  # another library's
        return False
    return any(behind.is_accepting() for behind in _behind(first, document, left)) or (given_up and left[0] < 0)


def _behind(matcher: Any, value: Any, left: list[int]) -> Iterator[Any]:
    """Matchers behind a value, one for each order of its properties; so many steps are left."""
    match value:
        case list():
            yield from _in_turn(matcher, "[", value, "]", left)
        case dict():
            yield from _in_any_order(_read(matcher, "{"), value, "", left)
        case _:
            if (behind := _read(matcher, json.dumps(value, ensure_ascii=False))) is not None:
                yield behind


def _in_turn(matcher: Any, before: str, values: list[Any], end: str, left: list[int]) -> Iterator[Any]:
    if not values:
        if (behind := _read(matcher, before * (before == "[") + end)) is not None:
            yield behind
        return
    opened = _read(matcher, before)
    for behind in () if opened is None else _behind(opened, values[0], left):
        yield from _in_turn(behind, ", ", values[1:], end, left)


def _in_any_order(matcher: Any, rest: Mapping[str, Any], separator: str, left: list[int]) -> Iterator[Any]:
    if matcher is None:
        return
    if not rest:
        if (behind := _read(matcher, "}")) is not None:
            yield behind
        return
    for name, part in rest.items():
        left[0] -= 1
        if left[0] < 0:
            return
        named = _read(matcher, f"{separator}{json.dumps(name, ensure_ascii=False)}: ")
        for behind in () if named is None else _behind(named, part, left):
            others = {other: each for other, each in rest.items() if other != name}
            yield from _in_any_order(behind, others, ", ", left)


def _read(matcher: Any, text: str) -> Any:
    """A matcher behind a text; None if it does not take it."""
    copied = matcher.deep_copy()
    data = text.encode("utf-8", "surrogatepass")
    return copied if copied.validate_tokens([*data]) == len(data) and copied.consume_tokens([*data]) else None


def _shortest(number: str) -> float:
    value = float(number)
    return int(value) if value.is_integer() else value


def judged(
    case: Case, engine: Callable[[Any], Start | None], say: Callable[[str], None] = lambda line: None
) -> Counter[str]:
    """The counts of one case."""
    found = Counter(schemas=1)
    start = engine(case.schema)
    if start is None:
        found["refused"] += 1
        return found
    for document, valid in case.documents:
        found["documents"] += 1
        if not valid and (
            any(accepts(start, text) for text in spellings(document, case.schema))
            or accepts_in_some_order(start, document)
        ):
            found["false accepts"] += 1
            say(f"false accept: {case.keyword}: {case.name}: {json.dumps(document)[:200]}")
        elif valid and (kind := kind_of_reject(start, document, case.schema)) is not None:
            found[f"false rejects: {kind}"] += 1
            say(f"false reject ({kind}): {case.keyword}: {case.name}: {json.dumps(document)[:200]}")
    return found


def counts(
    cases: Iterable[Case], engine: Callable[[Any], Start | None], say: Callable[[str], None] = lambda line: None
) -> dict[str, Counter[str]]:
    """The counts of each keyword."""
    found: dict[str, Counter[str]] = {}
    for case in cases:
        found.setdefault(case.keyword, Counter()).update(judged(case, engine, say))
    return found


@cache
def suite_counts() -> Mapping[str, Mapping[str, Counter[str]]]:
    """Those of the test suite, by us and by llguidance alone."""
    return {"sglc": counts(suite(NEWEST), ours), "llguidance": counts(suite(NEWEST), bare)}


def total(found: Mapping[str, Counter[str]]) -> Counter[str]:
    """The sum over all keywords."""
    return sum(found.values(), Counter())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", choices=(*DRAFTS, "store"), default=NEWEST)
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    for name, engine in (("sglc", ours), ("llguidance", bare)):
        say = print if arguments.verbose and engine is ours else lambda line: None
        cases = store() if arguments.suite == "store" else suite(arguments.suite)
        found = counts(cases, engine, say)
        if arguments.suite != "store":
            for keyword, each in found.items():
                print(name, keyword, dict(each))
        counted = total(found)
        print(name, dict(sorted(counted.items())))
        if engine is ours and counted["false accepts"]:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
