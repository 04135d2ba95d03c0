"""What is let through for random schemas and patterns is valid; and this test would tell if it were not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from sglc.ir.grammar import schema_grammar
from sglc.runtime.constraints.constraint import Constraints
from tests.constraints import verdicts
from tests.constraints.random_schemas import Reference, parsed, pattern, python_pattern
from tests.constraints.sampled import problems
from tests.depth import at_depth, few


@pytest.mark.slow
def test_what_is_let_through_is_valid() -> None:
    found: Counter[str] = Counter()
    cases = at_depth(40, 40, 1500)
    assert list(problems(7, cases, found)) == []
    assert found["schemas"] == 3 * cases
    assert found["refused"] < 0.33 * found["schemas"]
    assert found["texts"] > 3 * cases
    # Those that were changed are told apart both ways.
    assert min(found["changed texts, accepted"], found["changed texts, invalid"]) > 5 * cases


Node = dict[str, Any]


def _without(key: str) -> Callable[[Node], Node]:
    return lambda node: {name: part for name, part in node.items() if name != key}


def _with(key: str, change: Callable[[Any], Any]) -> Callable[[Node], Node]:
    return lambda node: {name: change(part) if name == key else part for name, part in node.items()}


FAULTS: dict[str, Callable[[Node], Node]] = {
    "a bound is one off": _with("maximum", lambda bound: bound + 1),
    "an exclusive bound is not": lambda node: {
        {"exclusiveMinimum": "minimum"}.get(key, key): part for key, part in node.items()
    },
    "lengths are one off": _with("maxLength", lambda length: length + 1),
    "a pattern is searched for without its start": _with("pattern", lambda text: text.replace("^", "")),
    "a pattern is searched for without its end": _with("pattern", lambda text: text.replace("$", "")),
    "what is required is not": _without("required"),
    "names are free": _without("additionalProperties"),
    "formats have no effect": _without("format"),
    "multiples are not": _without("multipleOf"),
    "lists are too long": _with("maxItems", lambda count: count + 1),
    "one of `allOf` is left out": _with("allOf", lambda parts: parts[1:] or parts),
}


def _everywhere(form: Any, fault: Callable[[Node], Node]) -> Any:
    match form:
        case dict():
            return fault({key: _everywhere(part, fault) for key, part in form.items()})
        case list():
            return [_everywhere(part, fault) for part in form]
        case _:
            return form


@pytest.fixture
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(verdicts, "CONSTRAINTS", Constraints(verdicts.BYTES, len(verdicts.BYTES)))
    schema_grammar.exact_schema.cache_clear()
    yield
    schema_grammar.exact_schema.cache_clear()


LONG = ("formats have no effect", "one of `allOf` is left out", "an exclusive bound is not")  # to find


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    few([pytest.param(name, marks=pytest.mark.nightly if name in LONG else ()) for name in FAULTS], 2),
)
def test_a_fault_is_found(name: str, nothing_kept: None, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = schema_grammar._written
    monkeypatch.setattr(schema_grammar, "_written", lambda form: whole(_everywhere(form, FAULTS[name])))
    assert next(problems(7, 400, Counter()), None) is not None


def test_the_reference_reads_patterns_as_javascript_does() -> None:
    assert python_pattern(r"^\d+.[\w-]$") == "^[0-9]+[^\n\r\u2028\u2029][A-Za-z0-9_-]\\Z"
    assert python_pattern(r"[$.]\$\.") == r"[$.]\$\."
    reference = Reference({"pattern": "^a$", "multipleOf": 0.01, "type": ["string", "integer", "number"]})
    assert [bool(reference.problem(parsed(text))) for text in ('"a"', '"a\\n"', "0.29", "0.295")] == [
        False, True, False, True,
    ]  # fmt: skip
    assert len({pattern(Random(seed)) for seed in range(100)}) > 80
