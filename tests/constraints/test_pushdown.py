"""Pushdown automata: the texts of their grammars, every token as its bytes, and always a way to the end."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from sglc.errors import LegalizeError
from sglc.ir.grammar import pushdown as module
from sglc.ir.grammar.pushdown import MOST_NESTED, pushdown
from sglc.ir.grammar.regex import call, compile_with_calls
from sglc.ir.sampling import Sampling
from sglc.runtime.constraints.constraint import Constraints
from sglc.runtime.constraints.pushdown_automaton import PushdownAutomaton
from sglc.runtime.constraints.token_automaton import TokenAutomaton, Vocabulary
from sglc.runtime.step import ByteAutomaton
from tests.constraints.verdicts import CONSTRAINTS
from tests.depth import at_depth
from tests.reference.kept_rows import KeptRows

JSON = r"""root ::= value
value ::= object | array | string | number | "true" | "null"
object ::= "{" (pair ("," pair)*)? "}"
pair ::= string ":" value
array ::= "[" (value ("," value)*)? "]"
string ::= "\"" [^"\\\x00-\x1f]* "\""
number ::= "-"? [0-9]+ ("." [0-9]+)?"""
GRAMMARS = {
    "sums": 'root ::= (sum "; ")+\nsum ::= item (" + " item)*\nitem ::= [0-9]+ | "(" sum ")"',
    "terms": 'root ::= term (("+" | "-") term)*\nterm ::= factor (("*" | "/") factor)*\n'
    'factor ::= [0-9]+ | "(" root ")"',
    "json": JSON,
    "both sides": 'root ::= "a" root "b" | "c"',
    "to the right": 'root ::= "a" root | "b"',
    "lists": 'root ::= (item "\\n")*\nitem ::= "- " [a-z]{1,5} nest?\nnest ::= " [" item ("," item)* "]"',
    "may be empty": 'root ::= "z"* rest\nrest ::= "" | "x" rest "y"',
    "beyond letters": 'root ::= "é" root "ü" | "日" | [a-zЖ-Я]',
    "one of two": 'root ::= "(" one ")"\none ::= two | "a"\ntwo ::= root | one2 | "b"\none2 ::= "[" one "]"',
}
TOKENS = [
    b"", *(bytes([byte]) for byte in range(256)), b"((", b"(((((", b"))", b")))))", b"]]", b"]}", b'"}', b'",',
    b"12", b'{"', b'[{"', b"ab", b"aaaa", b"bb", b"cb", b"xxxy", b"; (", b") + (", b" + ", b"]" * 20,
    b"([" * 30, b"\xc3\xa9", b"1)", b"1); 1", b'":[', b'"]}]',
]  # fmt: skip


def held(grammar: str, constraints: Constraints = CONSTRAINTS) -> PushdownAutomaton:
    made = constraints.of(Sampling(ebnf=grammar, canonical=False))
    assert isinstance(made, PushdownAutomaton)
    return made


@pytest.mark.parametrize("name", GRAMMARS)
def test_texts_are_those_of_the_parser(name: str) -> None:
    """Byte for byte along random texts: what may come next, and whether the text may end."""
    rng = Random(name)
    ours, theirs = held(GRAMMARS[name]), CONSTRAINTS._grammars.begun("ebnf", GRAMMARS[name])
    for _ in range(at_depth(3, 5, 200)):
        at, other = ours.start, theirs.start
        for _ in range(80):
            mask = ours.mask(at)
            assert mask.tolist() == theirs.mask(other).tolist()
            assert ours.accepting(at) == theirs.accepting(other)
            allowed = np.flatnonzero(mask).tolist()
            if not allowed:
                assert ours.done(at)
                break
            byte = rng.choice(allowed)
            at, other = ours.advance(at, byte), theirs.advance(other, byte)


@pytest.mark.parametrize("few", [0, 48, 10_000])
@pytest.mark.parametrize("name", ["sums", "json", "both sides", "may be empty"])
def test_a_token_is_its_bytes(name: str, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks of long tokens, and what executors are told, against one state after the other; whether few nodes
    are walked or all."""
    monkeypatch.setattr("sglc.runtime.constraints.pushdown_automaton.FEW", few)
    rng = Random(name)
    made = held(GRAMMARS[name], Constraints(TOKENS, len(TOKENS)))
    assert made.automaton is not None
    assert made.automaton.stack is not None
    oracle, stack = KeptRows(TOKENS, ()), made.automaton.stack
    for _ in range(at_depth(2, 3, 60)):
        state = made.start
        for _ in range(30):
            place = stack.places[state]
            mask = made.mask(state)
            assert mask.tolist() == oracle.allowed(made.automaton, *place).tolist()
            assert made.accepting(state) == oracle.may_end(made.automaton, *place)
            assert_base(made.automaton, mask, place[0])
            allowed = np.flatnonzero(mask).tolist()
            if not allowed:
                break
            long = [token for token in allowed if len(TOKENS[token]) > 1]
            token = rng.choice(long if long and rng.random() < 0.7 else allowed)
            after = made.advance(state, token)
            assert stack.places[after] == oracle.behind(made.automaton, *place, token)
            state = after


def assert_base(automaton: ByteAutomaton, mask: np.ndarray, state: int) -> None:
    """What is said to depend on a state alone does, and everything else is said to depend on the stack."""
    assert automaton.stack is not None
    group = automaton.stack.group_of[state]
    base = np.unpackbits(automaton.stack.base[group].view(np.uint8), bitorder="little", count=mask.size)
    others = automaton.stack.others[group]
    rest = mask.copy()
    rest[others] = False
    assert rest.tolist() == base.astype(bool).tolist()


@pytest.mark.parametrize(
    "rules",
    [
        (call(1), f"(?:{call(1)}a|b)"),  # begins with itself
        (call(1), f"(?:a{call(1)}b?|b)"),  # whose b it is
        (call(1), f"(?:a{call(1)}|a?b)"),  # what `a` begins is told later
        (call(1), f"a{call(1)}"),  # never ends
        (f"(?:{call(1)}|{call(2)})", f"(?:a{call(1)}b|c)", f"(?:a{call(2)}d|c)"),
    ],
)
def test_what_one_byte_does_not_tell_is_left_to_parsers(rules: tuple[str, ...]) -> None:
    assert pushdown(rules) is None


def ends(made: PushdownAutomaton, state: int) -> bool:
    """Whether short tokens lead from a place to the end of a text, those first that close something."""
    for _ in range(4 * MOST_NESTED):
        if made.accepting(state):
            return True
        allowed = np.flatnonzero(made.mask(state)).tolist()
        if not allowed:
            return False
        state = made.advance(
            state, min(allowed, key=lambda byte: (byte not in b")]}b;", byte in b'([{"a-', byte))
        )
    return False


DEEP = {"sums": b"(", "json": b"[", "both sides": b"a"}


def deepest(made: PushdownAutomaton, letter: int) -> int:
    state = made.start
    while made.mask(state)[letter]:
        state = made.advance(state, letter)
    return state


@pytest.mark.slow
@pytest.mark.parametrize("name", DEEP)
def test_the_deepest_text_can_be_ended(name: str) -> None:
    made = held(GRAMMARS[name])
    state = deepest(made, DEEP[name][0])
    assert len(made._places[state][1]) >= MOST_NESTED - 2
    assert ends(made, state)


def test_a_stack_without_room_for_the_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Joined, "_needed", lambda self: [0] * len(self.moves))
    made = Constraints(TOKENS, len(TOKENS)).of(Sampling(ebnf=GRAMMARS["sums"], canonical=False))
    assert isinstance(made, PushdownAutomaton)
    assert not ends(made, deepest(made, 1 + b"("[0]))


def test_a_rule_at_a_rule_s_end_puts_nothing_on_the_stack() -> None:
    made = held(GRAMMARS["to the right"])
    state = made.start
    for _ in range(2 * MOST_NESTED):
        state = made.advance(state, b"a"[0])
    assert len(made._places[state][1]) <= 1
    assert made.done(made.advance(state, b"b"[0]))


def test_what_calls_nothing_again_has_no_stack() -> None:
    made = CONSTRAINTS.of(Sampling(ebnf='root ::= word (", " word){0,3}\nword ::= [a-z]{1,4}', canonical=False))
    assert isinstance(made, TokenAutomaton)
    text = b"ab, cde"
    state = made.start
    for byte in text:
        state = made.advance(state, byte)
    assert made.accepting(state)


def test_a_vocabulary_without_a_byte_leaves_the_grammar_to_the_parser() -> None:
    lacking = [token for token in TOKENS if token not in (b")", b"1)", b"1); 1", b"))")]
    form = pushdown((call(1), rf"(?:[01]+|\({call(1)}\))"))
    assert form is not None
    with pytest.raises(Exception, match="cannot write any text"):
        PushdownAutomaton(form, Vocabulary(lacking, len(lacking)), "brackets")


@pytest.mark.slow
@pytest.mark.parametrize(("bound", "most"), [("_MOST_PLACES", 60), ("_MOST_STACKED", 2000)])
def test_one_that_has_come_to_many_places_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    monkeypatch.setattr(f"sglc.runtime.constraints.pushdown_automaton.{bound}", most)
    constraints = Constraints(TOKENS, len(TOKENS))
    made = held(GRAMMARS["sums"], constraints)
    assert held(GRAMMARS["sums"], constraints) is made
    deepest(made, 1 + b"("[0])
    assert made.worn
    assert held(GRAMMARS["sums"], constraints) is not made


@pytest.mark.parametrize("levels", [3, 4])
def test_a_byte_that_calls_more_rules_than_a_token_may_is_a_parser_s(levels: int) -> None:
    """Left to the automaton, nothing would be allowed behind `x`, where a text may not end."""
    rules = [f'l{at} ::= l{at + 1} ("{"+-*/"[at]}" l{at + 1})* | "{at}(" l{at} ")"\n' for at in range(levels)]
    grammar = f'root ::= "x" l0\n{"".join(rules)}l{levels} ::= [a-z] | "(" l0 ")" | "[" l{levels} "]"'
    constraint = CONSTRAINTS.of(Sampling(ebnf=grammar, canonical=False))
    assert constraint is not None
    assert isinstance(constraint, PushdownAutomaton) == (levels == 3)
    assert constraint.mask(constraint.advance(constraint.start, b"x"[0])).any()


@pytest.mark.parametrize("levels", [15, 16])
def test_a_byte_that_goes_back_further_than_a_token_may_is_a_parser_s(levels: int) -> None:
    def level(at: int) -> str:
        return rf"(?:-|<{call(at + 1)}{chr(0x60 + at)}?|\[{call(at)}\])"

    made = pushdown([rf"\({call(1)}\)", *map(level, range(1, levels + 1)), rf"(?:-|\({call(1)}\))"])
    assert (made is None) == (levels == 16)


@pytest.mark.slow
def test_as_many_rules_as_calls_tell_apart_are_called() -> None:
    """Each has its bytes, which no byte of another call is taken for."""
    count = 250
    rules = [f'r{at} ::= "a" r{max(0, at - 1)} | "b" r{at} "c" | "d"\n' for at in range(count)]
    made = held("root ::= " + " | ".join(f'"{at:03}" r{at}' for at in range(count)) + "\n" + "".join(rules))
    state = made.start
    for byte in b"249bab" + b"a" * 300 + b"dcc":
        state = made.advance(state, byte)
    assert made.done(state)


def test_rules_that_may_be_nothing_one_through_the_other_are_compiled_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[list[str]] = []
    monkeypatch.setattr(
        module,
        "compile_with_calls",
        lambda rules: compile_with_calls(compiled.append([*rules]) or compiled[-1]),
    )
    rules = [
        rf"x{call(1)}",
        *(f"(?:{call(at + 1)}|{at}{call(at)}b)" for at in range(1, 9)),
        f"(?:9{call(9)}b)?",
    ]
    made = pushdown(tuple(rules))
    assert made is not None
    assert len(compiled) == 2
    state = (automaton := PushdownAutomaton(made, Vocabulary(TOKENS, len(TOKENS)), "")).start
    for byte in b"x19bb":
        state = automaton.advance(state, 1 + byte)
        assert automaton.accepting(state) == (byte in b"xb" and not automaton._places[state][1])


def test_what_was_looked_at_without_a_stack_is_not_kept_for_one() -> None:
    """What is forced is told by states without one; it may go on into a rule that it calls itself."""
    schema = (
        '{"$ref": "#/$defs/list", "$defs": {"list": {"type": "array", "items": {"type": "object", '
        '"properties": {"b": {"$ref": "#/$defs/list"}}, "required": ["b"], "additionalProperties": false}}}}'
    )
    tokens = [*(bytes([byte]) for byte in range(256)), b"]}", b"]}]"]

    def mask(local_first: bool) -> list[bool]:
        made = Constraints(tokens, len(tokens)).of(Sampling(json_schema=schema, canonical=False))
        assert isinstance(made, PushdownAutomaton)
        state = made.start
        for byte in b'[{"b':
            state = made.advance(state, byte)
        local = made.local(state)
        for byte in b'": [':
            state, local = made.advance(state, byte), made.advance(local, byte)
        if local_first:
            made.mask(local)
        return made.mask(state).tolist()

    assert mask(local_first=True) == mask(local_first=False)
    assert mask(local_first=True)[256:] == [True, True]


@pytest.mark.slow
def test_the_rules_of_a_grammar_take_no_longer_than_one_pattern() -> None:
    rules = [f"(?:{at}{call(at)}|(?:[ab]*a[ab]{{12}}[c-{chr(100 + at)}])?[a-z]*;)" for at in range(1, 21)]
    assert pushdown([call(1), rules[0]]) is not None
    with pytest.raises(LegalizeError, match="SGLC452"):
        pushdown(["|".join(map(call, range(1, 21))), *rules])
