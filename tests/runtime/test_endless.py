"""Forms whose text never ends: refused if no finite text satisfies them, else looked ahead in only so far."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sglc.errors import LegalizeError, RunError
from sglc.ir.grammar.json_schema import enforced
from sglc.ir.grammar.schema_grammar import _endless
from sglc.ir.sampling import Sampling
from sglc.runtime.constraints import grammar_matcher
from sglc.runtime.constraints.constraint import Constraints
from sglc.runtime.constraints.grammar_constraint import GrammarConstraint
from sglc.runtime.constraints.llguidance_matcher import Guidance
from sglc.runtime.engine import jump_forward
from tests.runtime import test_engine
from tests.runtime.test_engine import EOS, LONG
from tests.runtime.test_grammar import LETTERS
from tests.waiting import HANG_S

ROOT = Path(__file__).parent.parent.parent
BYTES = [b"", *(bytes([byte]) for byte in range(256))]
CONSTRAINTS = Constraints(BYTES, len(BYTES), lambda text: [1 + byte for byte in text.encode()])
LINKS: dict[str, Any] = {"type": "object", "properties": {"next": {"$ref": "#"}}}
ENDLESS = {**LINKS, "required": ["next"]}


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"ebnf": 'root ::= "a" root'}, "SGLC457"),
    ({"ebnf": 'root ::= "x" | "a" loop\nloop ::= "b" loop'}, "SGLC457"),
    ({"ebnf": 'root ::= "a" (root)+'}, "SGLC457"),
    ({"ebnf": 'root ::= loop{1,3} "a"\nloop ::= "b" loop'}, "SGLC457"),
    ({"json_schema": json.dumps(ENDLESS)}, "SGLC456"),
    ({"json_schema": '{"type": "array", "minItems": 1, "items": {"$ref": "#"}}'}, "SGLC456"),
    (
        {"json_schema": json.dumps({
            "anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}],
            "$defs": {"a": {**ENDLESS, "properties": {"next": {"$ref": "#/$defs/a"}}}},
        })},
        "SGLC456",
    ),
    ({"json_schema": json.dumps(ENDLESS), "strict": True}, "SGLC456"),
)  # fmt: skip


@pytest.mark.slow
def test_what_no_finite_text_satisfies_is_refused() -> None:
    """In a process of little memory and time: looking for the end of such a text takes all that there is."""
    child = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (7_000_000 << 10,) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from sglc.errors import SglcError
from sglc.ir.sampling import Sampling
from tests.runtime.test_endless import CONSTRAINTS, REFUSED
for form, _ in REFUSED:
    try:
        constraint = CONSTRAINTS.of(Sampling(**form))
        print(constraint.only(constraint.start))
    except SglcError as error:
        print(error.code)
"""
    done = subprocess.run([sys.executable, "-c", child], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, [code for _, code in REFUSED]), done.stderr


@pytest.mark.parametrize(
    "form",
    [
        {"ebnf": 'root ::= "a" root | "b"'},
        {"ebnf": 'root ::= ("a" root)*  "."'},
        {"ebnf": 'root ::= "x"\nunused ::= "a" unused'},
        {"json_schema": json.dumps(LINKS)},
        {"json_schema": '{"type": "array", "items": {"$ref": "#"}}'},
        {"json_schema": json.dumps(LINKS), "strict": True},
    ],
)
def test_what_may_end_is_taken(form: dict[str, Any]) -> None:
    constraint = CONSTRAINTS.of(Sampling(**form))
    assert constraint is not None
    assert constraint.mask(constraint.start).any()


@pytest.mark.slow
@pytest.mark.parametrize("size", [255, 256, 257, 900])
def test_long_forced_text_is_looked_ahead_in_so_far(size: int) -> None:
    text = "".join(chr(ord("a") + i % 26) for i in range(size))
    constraint = CONSTRAINTS.of(Sampling(ebnf=f'root ::= "{text}" [01]'))
    assert constraint is not None
    state, made = constraint.start, ""
    while made != text:
        ahead = constraint.ahead(state).decode()
        assert text[len(made) :].startswith(ahead)
        assert len(ahead) >= min(128, size - len(made))
        token = constraint.only(state)
        assert token == 1 + ord(text[len(made)])
        made, state = made + text[len(made)], constraint.advance(state, token)
    assert constraint.ahead(state) == b""
    assert constraint.only(state) is None


def test_text_too_long_to_be_made_is_forced_in_parts_up_to_the_limit() -> None:
    """2^40 letters: finite, and as good as endless."""
    rules = "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(40))
    constraint = CONSTRAINTS.of(Sampling(ebnf=f'root ::= r0\n{rules}\nr40 ::= "a"'))
    assert constraint is not None
    assert constraint.ahead(constraint.start) == b"a" * 256
    long = Sampling(max_tokens=2 * jump_forward._MOST + 5, ebnf=f'root ::= r0\n{rules}\nr40 ::= "a"')
    bench = test_engine.Bench(depth=1)
    handle = bench.engine.extend(None, LONG[:9])
    request = bench.engine.gen(handle, long, [1], eos_ids=EOS, constraint=LETTERS.of(long))
    bench.run()
    ((ids, _, finish),) = bench.samples(request)
    assert (ids, finish) == ((1,) * long.max_tokens, "length")
    assert bench.nothing_left()


@pytest.mark.slow
def test_a_grammar_that_takes_too_long_fails_alone() -> None:
    """What it has read can be read in more and more ways: each token takes longer than the one before."""
    rules = "\n".join(f'x{i} ::= "a" | x{(i + 1) % 40} x{i * 3 % 40} | x{i * 5 % 40} "a"' for i in range(40))
    ambiguous = Sampling(max_tokens=150, ebnf=f"root ::= x0 x0 | x1 x7 | x5 x35\n{rules}")
    bench = test_engine.Bench(depth=2)
    handle = bench.engine.extend(None, LONG[:9])
    request = bench.engine.gen(handle, ambiguous, [1], eos_ids=(), constraint=LETTERS.of(ambiguous))
    free = bench.gen(LONG[:7])
    bench.run()
    (failed,) = [event for event in bench.of(request) if isinstance(event, test_engine.RequestFailed)]
    assert failed.error.code == "SGLC459"
    assert "takes too long" in failed.error.message
    assert bench.samples(free) == [bench.oracle.continuation(LONG[:7], test_engine.PLAIN, 1)]
    assert bench.nothing_left()


def test_what_a_form_takes_is_counted_for_all_that_are_held_to_it() -> None:
    """A request may have a thousand generations."""
    grammar = 'root ::= s "."\ns ::= s s s | s s | [a-z]'
    first, second = (CONSTRAINTS.of(Sampling(ebnf=grammar, canonical=False)) for _ in range(2))
    assert isinstance(first, GrammarConstraint)
    assert isinstance(second, GrammarConstraint)
    assert not second.done(second.start)
    first._effort.count(0.2)
    assert not second.done(second.start)
    first._effort.count(0.4)
    for constraint in (first, second):
        with pytest.raises(RunError, match="takes too long"):
            constraint.done(constraint.start)
    other = CONSTRAINTS.of(Sampling(ebnf=grammar + "\n# another", canonical=False))
    assert other is not None
    assert not other.done(other.start)


def test_what_loading_the_library_takes_is_no_effort_of_the_first_form(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Guidance):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            until_s = time.thread_time() + 0.3  # more than a call may take
            while time.thread_time() < until_s:
                pass

    monkeypatch.setattr(grammar_matcher, "Guidance", Slow)
    schema = {"type": "object", "properties": {"plate": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}}}
    for _ in range(2):  # the second time it is compiled already
        constraints = Constraints(BYTES, len(BYTES), lambda text: [1 + byte for byte in text.encode()])
        held = constraints.of(Sampling(json_schema=json.dumps(schema), canonical=False))
        assert isinstance(held, GrammarConstraint)
        assert not held.done(held.start)


@pytest.mark.parametrize(
    ("schema", "finite"),
    [
        (ENDLESS, False),
        (LINKS, True),
        ({**ENDLESS, "type": ["object", "null"]}, True),
        ({**ENDLESS, "type": ["object", "array"]}, True),
        ({"anyOf": [ENDLESS, {"type": "null"}]}, True),
        ({"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": ENDLESS}}, True),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {**ENDLESS, "properties": {"next": {"$ref": "#/$defs/a"}}}}},
            False,
        ),
        ({"allOf": [{"type": "object"}, ENDLESS]}, False),
        ({"type": "array", "minItems": 2, "prefixItems": [True], "items": {"$ref": "#"}}, False),
        ({"type": "array", "minItems": 1, "prefixItems": [True, {"$ref": "#"}]}, True),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"$ref": "#/$defs/c"}, "c": {"type": "null"}}}, True),
    ],
)
def test_finite_documents(schema: Any, finite: bool) -> None:
    assert (_endless(enforced(json.dumps(schema)).form) is None) == finite


def test_the_refusal_says_which_rule() -> None:
    with pytest.raises(RunError, match="no finite text") as failure:
        CONSTRAINTS.of(Sampling(ebnf='root ::= "x" | more\nmore ::= "a" more'))
    assert failure.value.note == "its rule `more` always needs itself again"
    with pytest.raises(LegalizeError, match="always needs itself again"):
        CONSTRAINTS.of(Sampling(json_schema=json.dumps(ENDLESS)))


NEVER_ENDS = """
import sys
import time
from sglc.ir.sampling import Sampling
from sglc.runtime.engine import lookahead, matcher_threads
from sglc.runtime.engine.matcher_threads import _LEFT
from tests.runtime import test_engine
from tests.runtime.test_engine import EOS, LONG
from tests.runtime.test_grammar import LETTERS

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(1)

lookahead._MAY_TAKE_S = 0.1  # a fast processor is done within what it is
matcher_threads._AT_THE_END_S = float(sys.argv[1])
slow = Slow()  # goes when Python ends
bench = test_engine.Bench(depth=2)
rules = 'x{0,2000} "."\\nx ::= y{0,2000}\\ny ::= [a-h]?'
held = Sampling(max_tokens=100, ebnf=f"root ::= [ab] [ab] [ab] [ab] {rules}")
handle = bench.engine.extend(None, LONG[:9])
request = bench.engine.gen(handle, held, [1], eos_ids=EOS, constraint=LETTERS.of(held))
free = bench.gen(LONG[:7])
bench.run()
error = bench.of(request)[-1].error
print(error.code, bench.samples(free)[0][2], bench.nothing_left(), len(_LEFT))
"""


@pytest.mark.slow
@pytest.mark.parametrize("awaited_s", [3, 0])
def test_a_call_of_the_library_that_never_ends_is_left_behind(awaited_s: int) -> None:
    """In a process of its own, whose end it does not put off either, nor by coming back while Python ends."""
    program = [sys.executable, "-c", NEVER_ENDS, str(awaited_s)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=HANG_S, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "SGLC459 length True 1\n"), done.stderr
