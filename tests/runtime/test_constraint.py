"""Masks over token ids: what brute force over the vocabulary allows, and nothing that leads nowhere."""

from __future__ import annotations

import gc
import itertools
import random
import re
import tracemalloc
import weakref
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglc.errors import RunError
from sglc.ir.grammar.dfa import DEAD, ByteDfa, accepts, run
from sglc.ir.grammar.regex import compile_regex
from sglc.ir.sampling import Sampling
from sglc.runtime.constraints import constraint, token_automaton
from sglc.runtime.constraints.alike_states import alike_states
from sglc.runtime.constraints.constraint import Constraints
from sglc.runtime.constraints.pushdown_automaton import PushdownAutomaton
from sglc.runtime.constraints.token_automaton import TokenAutomaton, Vocabulary, build
from sglc.runtime.tokenizer.tokenizer import LocalTokenizer
from tests.constraints.random_patterns import goal_states, random_pattern
from tests.depth import at_depth, few, some_of
from tests.soak_constrained import REGEXES
from tests.test_regex import patterns

BYTES = [bytes([byte]) for byte in range(256)]
PIECES = [b"", b"ab", b"aba", b"12", b" 1", b"\xa9\xc3", "한".encode(), "é!".encode(), b"ab", b"\xed\x95"]
PATTERNS = (
    "[ab]{1,4}", "(ab|12)+!?", r"\d+( \d+)*", "é*", "[^a]{2}", "(한|é)[!a]", r"[\s\S]{1,3}", "yes|no",
    "a+b", "ab*c|1",
)  # fmt: skip


def shuffled(seed: int, *, without: bytes = b"") -> list[bytes]:
    """A small vocabulary of all single bytes but some, and longer pieces, in any order."""
    tokens = [data for data in BYTES if data not in [bytes([byte]) for byte in without]] + PIECES
    random.Random(seed).shuffle(tokens)
    return tokens


def open_states(dfa: ByteDfa, tokens: Sequence[bytes]) -> set[int]:
    """States from which tokens lead to a match, found by walking forward from each."""
    pieces = sorted(set(tokens) - {b""})
    after = [sorted({run(dfa, data, state) for data in pieces} - {DEAD}) for state in range(len(dfa.moves))]
    found = set()
    for start in range(len(dfa.moves)):
        reached, stack = {start}, [start]
        while stack:
            for to in after[stack.pop()]:
                if to not in reached:
                    reached.add(to)
                    stack.append(to)
        if any(dfa.accepting[state] for state in reached):
            found.add(start)
    return found


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("without", [b"", b"b\xa9\x80"])
@pytest.mark.parametrize(("small", "few"), [(1024, 48), (1024, 2), (0, 48), (0, 2)])
def test_masks_equal_brute_force(
    pattern: str, without: bytes, small: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of small tries, of which all is walked, and of large ones, where few nodes may be live."""
    monkeypatch.setattr(token_automaton, "_SMALL", small)
    monkeypatch.setattr(token_automaton, "FEW", few)
    tokens = shuffled(len(pattern), without=without)
    dfa = compile_regex(pattern)
    goals = open_states(dfa, tokens)
    vocabulary = Vocabulary(tokens, len(tokens) + 7)  # the last ids are padding
    if not any(data and run(dfa, data) in goals for data in tokens):
        with pytest.raises(RunError, match="cannot write"):
            TokenAutomaton(build(dfa, vocabulary), vocabulary, pattern)
        return
    automaton = TokenAutomaton(build(dfa, vocabulary), vocabulary, pattern)
    for state in range(len(dfa.moves)):
        expected = [bool(data) and run(dfa, data, state) in goals for data in tokens] + [False] * 7
        assert automaton.mask(state).tolist() == expected
        ids = np.flatnonzero(expected).tolist()
        assert automaton.only(state) == (ids[0] if len(ids) == 1 else None)
        assert automaton.accepting(state) == dfa.accepting[state]
        assert automaton.done(state) == (dfa.accepting[state] and not any(expected))
        for token in ids:
            assert automaton.advance(state, token) == run(dfa, tokens[token], state)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_walk_ends_in_a_match(pattern: str) -> None:
    """Also with a vocabulary that lacks bytes: no walk gets stuck, and what it spells matches."""
    rng = random.Random(pattern)
    tokens = shuffled(5, without=b"b")
    automaton = Constraints(tokens, len(tokens)).regex(pattern)
    for _ in range(40):
        state, data = automaton.start, b""
        while not automaton.done(state):
            allowed = np.flatnonzero(automaton.mask(state)).tolist()
            if automaton.accepting(state) and rng.random() < 0.3:
                break
            assert allowed, "stuck"
            token = rng.choice(allowed)
            data += tokens[token]
            state = automaton.advance(state, token)
        assert automaton.accepting(state)
        assert re.fullmatch(pattern, data.decode(), re.ASCII)


def test_states_of_a_counted_repeat_have_one_mask() -> None:
    """Longest token: three bytes. Only the last three states know how many letters may still come."""
    tokens = [*BYTES, b"ab", b"abc", b"!!", b"c!"]
    automaton = Constraints(tokens, len(tokens)).regex("[a-c]{1,80}!")
    vocabulary = Vocabulary(tokens, len(tokens))
    for state in range(82):
        alone = TokenAutomaton(build(compile_regex("[a-c]{1,80}!"), vocabulary), vocabulary, "")
        assert automaton.mask(state).tolist() == alone.mask(state).tolist()
    assert len(automaton._masks) == 6


@pytest.mark.slow
@settings(max_examples=at_depth(40, 60, 1500), deadline=None, derandomize=True)
@given(patterns(), st.integers(0, 4), st.randoms(use_true_random=False))
def test_alike_states_are_those_that_few_bytes_do_not_tell_apart(
    pattern: str, most_bytes: int, choice: random.Random
) -> None:
    dfa = compile_regex(pattern)
    kinds, dead = range(len(dfa.moves[0])), len(dfa.moves)
    rows = [[dead if to == DEAD else to for to in row] for row in dfa.moves] + [[dead] * len(kinds)]
    is_open = [choice.random() < 0.7 for _ in range(dead)] + [False]
    # What is seen from a state: of each text, whether states on its way are open, and whether there are any.
    seen: list[object] = [*is_open[:-1], "dead"]
    for _ in range(most_bytes):
        seen = [(seen[state], *(seen[to] for to in row)) for state, row in enumerate(rows)]
    found = alike_states(dfa.moves, is_open, most_bytes)
    assert found == [seen.index(seen[state]) for state in range(dead)]


def test_the_end_is_not_taken_for_what_no_single_token_leads_on_from() -> None:
    """No token ends within the first letter, as none ends behind the last."""
    letter = "é".encode()
    automaton = Constraints([letter, b"a"], 2).regex("éa")
    last = automaton.advance(automaton.advance(0, 0), 1)
    assert automaton.mask(0).tolist() == [True, False]
    assert automaton.mask(last).tolist() == [False, False]
    assert automaton.done(last)


def test_a_mask_is_the_caller_s_own() -> None:
    automaton = Constraints(BYTES, 256).regex("[ab]+")
    automaton.mask(0)[:] = True
    assert np.flatnonzero(automaton.mask(0)).tolist() == [ord("a"), ord("b")]


def test_patterns_are_compiled_once() -> None:
    constraints = Constraints(BYTES, 256)
    assert constraints.regex("[ab]+") is constraints.regex("[ab]+")
    assert constraints.regex("[ab]+") is not constraints.regex("[ab]*")


def test_of_large_automata_fewer_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    constraints = Constraints(BYTES, 256)
    monkeypatch.setattr(constraint, "_BYTES", 3 * constraints.regex("a").size_bytes)
    oldest = weakref.ref(constraints.regex("a"))
    for letter in "abcd":
        constraints.regex(letter)
    assert [constraints.at_hand(Sampling(regex=letter)) for letter in "abcd"] == [False, True, True, True]
    gc.collect()
    assert oldest() is None
    first = constraints.of(Sampling(regex="b"))
    assert constraints.of(Sampling(regex="b")) is first
    constraints.regex("[ab]{1,50}c{50}")  # larger than all of these
    assert [constraints.at_hand(Sampling(regex=letter)) for letter in "bcd"].count(True) < 3


@pytest.mark.parametrize("kind", ["regex", "ebnf"])
def test_what_automata_keep_is_within_a_bound(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their masks too: of each of some 50 states here a bit for every id, or four bytes for most of them."""
    monkeypatch.setattr(token_automaton, "_MASK_BYTES", 1 << 20, raising=False)
    monkeypatch.setattr(constraint, "_BYTES", 4 << 20)
    letters = "abcdefghijklmnop"
    tokens = [*BYTES, *("".join(four).encode() for four in itertools.product(letters, repeat=4))]
    constraints = Constraints(tokens, len(tokens))
    constraints.of(Sampling(**{kind: {"regex": "a", "ebnf": 'root ::= "a" root | "b"'}[kind]}))
    tracemalloc.start()
    try:
        for form in range(10):
            runs = [f"[a-p]{{4,9}}{at}" for at in range(10)]
            pattern = f"{form}{''.join(runs)}"
            calls = " ".join(f'[a-p] [a-p] [a-p] [a-p]+ "{at}"' for at in range(10))
            grammar = f'root ::= "{form}" {calls} x\nx ::= "(" x ")" | "b"'
            held = constraints.of(Sampling(**{kind: {"regex": pattern, "ebnf": grammar}[kind]}))
            assert isinstance(held, TokenAutomaton | PushdownAutomaton)
            moves = held._dfa.moves if isinstance(held, TokenAutomaton) else held._form.moves
            for state in range(len(moves)):
                held.mask(state)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 6 << 20
    finally:
        tracemalloc.stop()
    assert len(constraints._automata) > 2


@pytest.mark.parametrize("pattern", ["", "(?:)|(?:){3}", "c|ccc"])
def test_what_cannot_be_written_is_refused(pattern: str) -> None:
    with pytest.raises(RunError, match="cannot write any text") as failure:
        Constraints([b"", b"a", b"b", b"cc"], 4).regex(pattern)
    assert failure.value.code == "SGLC454"


@pytest.mark.slow
def test_masks_of_many_patterns_on_a_real_vocabulary(default_tokenizer: LocalTokenizer) -> None:
    """Many patterns, behind random prefixes of what the masks allow: no difference to a token at a time."""
    tokens = default_tokenizer.token_bytes()
    constraints = Constraints(tokens, len(tokens))
    rng, forms = random.Random(4), list(REGEXES)
    while len(forms) < at_depth(10, 40, 100):
        pattern = random_pattern(rng)
        if pattern not in forms and not accepts(compile_regex(pattern), b""):
            forms.append(pattern)
    looked_at = 0
    chosen = some_of(forms, 2, 100)
    for pattern in chosen:
        automaton, dfa = constraints.regex(pattern), compile_regex(pattern)
        goals = goal_states(dfa, tokens)
        state = automaton.start
        for _ in range(rng.randint(1, 3)):
            expected = [bool(data) and run(dfa, data, state) in goals for data in tokens]
            assert automaton.mask(state).tolist() == expected, (pattern, state)
            looked_at += 1
            allowed = np.flatnonzero(expected)
            if not allowed.size:
                assert automaton.done(state)
                break
            state = automaton.advance(state, int(rng.choice(allowed)))
    assert looked_at > at_depth(1, 60, 150)


def test_on_a_real_vocabulary(default_tokenizer: LocalTokenizer) -> None:
    """49,152 tokens; 21 bytes are none: masks equal those of one token at a time."""
    tokens = default_tokenizer.token_bytes()
    assert sum(len(data) == 1 for data in tokens) == 235
    constraints = Constraints(tokens, len(tokens))
    for pattern in few((r"\d{4}", r'"[^"\n]*"', r"(?s).*", "[가-힣]+"), 2):
        automaton = constraints.regex(pattern)
        dfa = compile_regex(pattern)
        goals = open_states(dfa, tokens)
        for state in range(len(dfa.moves)):
            expected = [bool(data) and run(dfa, data, state) in goals for data in tokens]
            assert automaton.mask(state).tolist() == expected
    assert len(goals) > 1
