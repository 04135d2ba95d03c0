"""Forced text in the tokenizer's own tokens, and where a token is left open."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

from sglc.ir.grammar import dfa
from sglc.ir.grammar.dfa import only_class
from sglc.ir.sampling import Sampling
from sglc.ir.target import Tokenizer
from sglc.runtime.constraints import pushdown_automaton, token_automaton
from sglc.runtime.constraints.constraint import Constraints
from sglc.runtime.constraints.protocol import Constraint

FIXED = "what has to be said before anything else is the same in each of all the texts that there may be"


@pytest.fixture(scope="module")
def tokenizer(default_tokenizer: Tokenizer) -> Tokenizer:
    return default_tokenizer


@pytest.fixture(scope="module")
def constraints(tokenizer: Tokenizer) -> Constraints:
    spelled = tokenizer.token_bytes()
    return Constraints(spelled, len(spelled), tokenizer.encode)


def of(constraints: Constraints, regex: str, *, canonical: bool = True) -> Constraint:
    made = constraints.of(Sampling(regex=regex, canonical=canonical))
    assert made is not None
    return made


def forced(constraint: Constraint, state: int) -> tuple[list[int], int]:
    """The ids that have to follow, and the state behind them."""
    ids: list[int] = []
    while not constraint.done(state) and (token := constraint.only(state)) is not None:
        assert np.flatnonzero(constraint.mask(state)).tolist() == [token]
        ids.append(token)
        state = constraint.advance(state, token)
    return ids, state


def test_forced_text_is_spelled_as_the_tokenizer_does(tokenizer: Tokenizer, constraints: Constraints) -> None:
    constraint = of(constraints, r'\{\n    "name": "[a-z]{1,9}", "années": 1\}')
    ids, state = forced(constraint, constraint.start)
    assert ids == tokenizer.encode('{\n    "name": "')
    state = constraint.advance(state, tokenizer.encode("anna")[0])
    assert constraint.only(state) is None
    # A token that is sampled may go some way into what is forced: the rest is spelled from there.
    (quote,) = tokenizer.encode('"')
    ids, state = forced(constraint, constraint.advance(state, quote))
    assert ids == tokenizer.encode(', "années": 1}')
    assert constraint.done(state)


@pytest.mark.parametrize(
    "asked", [Sampling(regex=f"{FIXED}[0-9]+"), Sampling(ebnf=f'root ::= "{FIXED}" x\nx ::= "(" x ")" | "b"')]
)
def test_what_has_to_follow_is_looked_for_once(
    asked: Sampling, tokenizer: Tokenizer, constraints: Constraints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a run is looked for nobody gets a token: each state is asked for its one way on once, and of the
    vocabulary few nodes are walked."""
    constraint = constraints.of(asked)
    assert constraint is not None
    states: list[Sequence[int]] = []

    def counted(classes: bytes, row: Sequence[int]) -> int | None:
        states.append(row)
        return only_class(classes, row)

    monkeypatch.setattr(dfa, "only_class", counted)
    for walk in (token_automaton._VocabularyWalk, pushdown_automaton._Walk):
        monkeypatch.setattr(walk, "behind", None)
    ids: list[int] = []
    state = constraint.start
    while len(ids) < len(tokenizer.encode(FIXED)) - 1:
        token = constraint.only(state)
        assert token is not None
        ids.append(token)
        state = constraint.advance(state, token)
    assert ids == tokenizer.encode(FIXED)[:-1]
    assert len(states) <= len(FIXED) + 1


def test_any_spelling_is_the_models_choice(tokenizer: Tokenizer, constraints: Constraints) -> None:
    constraint = of(constraints, 'the name: "[a-z]{3}"', canonical=False)
    assert constraint.only(constraint.start) is None
    allowed = np.flatnonzero(constraint.mask(constraint.start)).tolist()
    assert {tokenizer.token_bytes()[token] for token in allowed} == {b"t", b"th", b"the"}


@pytest.mark.parametrize(
    ("regex", "left"),
    [
        ("Answer: (yes|no)", " "),  # " yes" and " no" are tokens
        ("Answer: [0-9]+", ""),  # digits are tokens of their own
        ('Answer: "[0-9a-z_]+"', ""),  # of all that may come only ` "_` is one
        ("Answer:(yes|no)", ""),
        ("Answer: [a-z0-9]", " "),
    ],
)
def test_a_token_is_left_open_where_it_would_be_joined(
    tokenizer: Tokenizer, constraints: Constraints, regex: str, left: str
) -> None:
    constraint = of(constraints, regex)
    ids, state = forced(constraint, constraint.start)
    whole = re.split(r"[(\[]", regex)[0]
    assert ids == tokenizer.encode(whole.removesuffix(left))
    exact = of(constraints, regex, canonical=False)
    assert constraint.mask(state).tolist() == exact.mask(state).tolist()


def test_bytes_that_are_no_characters_are_the_models_choice(constraints: Constraints) -> None:
    constraint = of(constraints, "(é|è)[êë]x")
    exact = of(constraints, "(é|è)[êë]x", canonical=False)
    stack, seen = [constraint.start], set[int]()
    while stack:
        state = stack.pop()
        if state in seen:
            continue
        seen.add(state)
        mask, every = constraint.mask(state), exact.mask(state)
        assert mask.any() == every.any()
        assert not (mask & ~every).any(), "a token that does not match"
        stack += [constraint.advance(state, token) for token in np.flatnonzero(mask).tolist()]
    assert any(exact.accepting(state) for state in seen)


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: [1, *range(2, 2 + len(text))],  # adds a token of its own
        lambda text: [],
        lambda text: [3],  # another text
    ],
)
def test_a_tokenizer_with_other_ways_forces_nothing(encode: object) -> None:
    pieces: Sequence[bytes] = [b"", b" ", b"a", b"b", b"ab"]
    constraints = Constraints(pieces, 5, encode)  # type: ignore[arg-type]
    constraint = of(constraints, "ab(a|b)")
    assert np.flatnonzero(constraint.mask(0)).tolist() == [2, 4]
    assert constraint.only(0) is None


def test_a_schema_is_spelled_too(tokenizer: Tokenizer, constraints: Constraints) -> None:
    schema = '{"type": "object", "properties": {"é": {"type": "boolean"}}, "required": ["é"]}'
    constraint = constraints.of(Sampling(json_schema=schema))
    assert constraint is not None
    ids, state = forced(constraint, constraint.start)
    assert ids == tokenizer.encode('{"é":')
    (yes,) = tokenizer.encode(" true")
    ids, state = forced(constraint, constraint.advance(state, yes))
    assert ids == tokenizer.encode("}")
    assert constraint.done(state)


def test_grammars_know_what_follows_inside_a_character(constraints: Constraints, tokenizer: Tokenizer) -> None:
    constraint = constraints.of(Sampling(ebnf='root ::= [éê] "ë!"', canonical=False))
    assert constraint is not None
    first = tokenizer.token_bytes().index(b"\xc3")
    assert constraint.ahead(constraint.start) in (b"", b"\xc3")
    state = constraint.advance(constraint.start, first)
    assert constraint.ahead(state) == b""
    second = tokenizer.token_bytes().index(b"\xa9")
    assert constraint.ahead(constraint.advance(state, second)) == "ë!".encode()
    may_end = constraints.of(Sampling(ebnf='root ::= "ab" "cd"?', canonical=False))
    assert may_end is not None
    assert may_end.ahead(may_end.start) == b"ab"
