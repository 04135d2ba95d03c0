"""Masks on the device along random texts of forms, of vocabularies of real size: each token's bytes decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from benchmarks.pairs_vocabulary import pairs
from sglc.ir.grammar.dfa import DEAD, ByteDfa, accepts
from sglc.ir.grammar.regex import compile_regex
from sglc.ir.sampling import Sampling
from sglc.runtime.constraints.constraint import Constraints
from sglc.runtime.constraints.protocol import Constraint
from sglc.runtime.constraints.pushdown_automaton import PushdownAutomaton
from sglc.runtime.kernels.automata import Automata
from sglc.runtime.kernels.pushdown_masks import pushdown_masks
from sglc.runtime.kernels.rows import DEPTH, batch_lists, row_state
from sglc.runtime.kernels.sample import adjustments, sample, sample_scratch
from sglc.runtime.step import Bool, unpack_masks
from sglc.runtime.tokenizer.tokenizer import LocalTokenizer
from tests.constraints.random_patterns import goal_states, random_pattern
from tests.constraints.test_pushdown import GRAMMARS
from tests.depth import at_depth
from tests.reference.kept_rows import KeptRows

pytestmark = [
    pytest.mark.kernel, pytest.mark.model,
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]  # fmt: skip

CUDA = torch.cuda.is_available()
if not CUDA:  # minutes in Triton's interpreter
    pytestmark.append(pytest.mark.nightly)
DEVICE = "cuda" if CUDA else "cpu"
SIZES = (49_152, 151_936)
PATTERNS = at_depth(5, 40, 200) if CUDA else 2
WALKS = at_depth(1, 2, 4) if CUDA else 1
LENGTH = 20 if CUDA else 3  # tokens of a walk
TREE = (
    '{"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "required": ["children", "name"], '
    '"properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}, '
    '"name": {"type": "string"}}}}}'
)
FORMS = [
    Sampling(json_schema=TREE, canonical=False),
    *(Sampling(ebnf=grammar, canonical=False) for grammar in GRAMMARS.values()),
]


class ByBytes:
    """All tokens of a vocabulary at once, a byte at a time."""

    def __init__(self, tokens: Sequence[bytes], size: int) -> None:
        self.tokens, self.size = tokens, size
        self.lengths = np.zeros(size, np.int64)
        self.lengths[: len(tokens)] = [len(data) for data in tokens]
        self.columns: list[
            tuple[NDArray[np.int64], NDArray[np.uint8]]
        ] = []  # ids so long, and their byte there
        for at in range(int(self.lengths.max())):
            ids = np.flatnonzero(self.lengths > at)
            self.columns.append((ids, np.array([tokens[token][at] for token in ids.tolist()], np.uint8)))

    def mask(self, dfa: ByteDfa, goals: set[int], state: int) -> Bool:
        """The ids that lead from a state to one of `goals`."""
        dead = len(dfa.moves)
        moves = np.array([*dfa.moves, (DEAD,) * len(dfa.moves[0])])
        moves[moves == DEAD] = dead
        classes = np.frombuffer(dfa.classes, np.uint8)
        at = np.full(self.size, state)
        for ids, data in self.columns:
            lives = at[ids] != dead
            if not lives.any():
                break  # none of those that are longer does
            at[ids[lives]] = moves[at[ids[lives]], classes[data[lives]]]
        good = np.zeros(dead + 1, np.bool_)
        good[list(goals)] = True
        return good[at] & (self.lengths > 0)


@dataclass
class Row:
    """One row on the device, which follows what is put there."""

    tokens: Sequence[bytes]
    size: int

    def __post_init__(self) -> None:
        self.eos = torch.tensor([0], dtype=torch.int32, device=DEVICE)
        self.held = Automata(self.tokens, self.size, self.eos, 1, words=1 << 24, masks=4096)
        self.state, self.lists = row_state(1, 1, 0, DEVICE), batch_lists(1, 1, 1, DEVICE)
        self.lists.rows[:, 0] = torch.tensor([0, 1, 0, 1], dtype=torch.int32)
        self.added, self.scratch = adjustments(2, self.size, DEVICE), sample_scratch(1, DEVICE)
        self.logits = torch.zeros(1, self.size, device=DEVICE)

    def hold(self, form: Constraint) -> bool:
        """Whether there is room for a form, whose start the row is at then."""
        at = self.held.hold(form.automaton) if form.automaton is not None else None
        if at is None:
            return False
        self.state.automaton[0], self.state.state[0], self.state.fields[DEPTH.value, 0] = at, form.start, 0
        if self.held.stack_of(at) is None:
            self.state.mask[0] = self.held.mask_of(at, form.start)
        else:
            self.state.mask[0] = self.held.first_own
            rows = torch.zeros(1, dtype=torch.int32, device=DEVICE)
            pushdown_masks(rows, self.state, self.held.tables, self.held.first_own, self.eos, self.size)
        return True

    def mask(self) -> Bool:
        words = self.held.tables.masks[int(self.state.mask[0]), : -(-self.size // 32)].cpu().numpy()
        return unpack_masks(words, self.size)

    def place(self) -> tuple[int, tuple[int, ...]]:
        depth = int(self.state.fields[DEPTH.value, 0])
        return int(self.state.state[0]), tuple(self.state.stacks[0, :depth].tolist())

    def take(self, token: int) -> int:
        """Sample a token, which leads the row on; how many ids may follow."""
        out = [torch.zeros(1, dtype=torch.int32, device=DEVICE) for _ in range(2)]
        self.logits[0, token] = 99.0
        sample(
            self.logits, self.lists, self.state, self.eos, self.scratch, self.held.tables, self.added, out[0],
            torch.zeros(1, device=DEVICE), out[1], filters=False, first_own=self.held.first_own,
        )  # fmt: skip
        self.logits[0, token] = 0.0
        assert int(out[0]) == token
        return int(out[1])


@cache
def vocabulary(tokenizer: LocalTokenizer, size: int) -> Sequence[bytes]:
    tokens = tokenizer.token_bytes()
    return tokens if size == len(tokens) else pairs(tokens, size)


def with_end(mask: Bool, form: Constraint, state: int) -> Bool:
    """The ids that a row may sample: id 0 ends a text."""
    found = mask.copy()
    found[0] = form.accepting(state)
    return found


@pytest.mark.parametrize("size", SIZES)
def test_masks_of_patterns_are_those_of_a_byte_at_a_time(default_tokenizer: LocalTokenizer, size: int) -> None:
    """Half of them with forced text in the tokenizer's spelling."""
    tokens, rng, seen = vocabulary(default_tokenizer, size), Random(size), set[str]()
    constraints = Constraints(tokens, size, default_tokenizer.encode)
    row, by_bytes = Row(tokens, size), ByBytes(tokens, size)
    masks = too_large = spelled = 0
    while len(seen) < PATTERNS:
        pattern = random_pattern(rng)
        dfa = compile_regex(pattern)
        if pattern in seen or accepts(dfa, b""):
            continue
        form, goals = (
            constraints.of(Sampling(regex=pattern, canonical=len(seen) % 2 == 0)),
            goal_states(dfa, tokens),
        )
        seen.add(pattern)
        assert form is not None
        if not row.hold(form):
            too_large += 1
            continue
        state = form.start
        for _ in range(LENGTH):
            wanted = by_bytes.mask(dfa, goals, state)
            if (only := form.only(state)) is not None and np.count_nonzero(wanted) > 1:
                assert wanted[only]
                wanted = np.arange(size) == only
                spelled += 1
            assert np.array_equal(form.mask(state), wanted), (pattern, state)
            assert np.array_equal(row.mask(), with_end(wanted, form, state)), (pattern, state)
            masks += 1
            if not wanted.any():
                break
            token = int(rng.choice(np.flatnonzero(wanted)))
            follow, state = row.take(token), form.advance(state, token)
            assert int(row.state.state[0]) == state
            assert follow == np.count_nonzero(form.mask(state)), (pattern, state)
        assert form.automaton is not None
        row.held.release(form.automaton)
    assert masks > 2 * (PATTERNS - too_large)
    assert too_large <= PATTERNS // 4
    assert spelled or PATTERNS < 40


@pytest.mark.parametrize("size", SIZES if CUDA else SIZES[:1])
@pytest.mark.parametrize("number", range(len(FORMS)) if CUDA else [0, 6])  # 6: ends early
def test_masks_of_rules_with_calls_are_those_of_a_byte_at_a_time(
    default_tokenizer: LocalTokenizer, size: int, number: int
) -> None:
    tokens, rng = vocabulary(default_tokenizer, size), Random(number)
    form = Constraints(tokens, size).of(FORMS[number])
    assert isinstance(form, PushdownAutomaton)
    automaton, row, oracle = form.automaton, Row(tokens, size), KeptRows(tokens, (0,))
    assert automaton is not None
    assert automaton.stack is not None
    masks = 0
    for _ in range(WALKS):
        assert row.hold(form)
        state = form.start
        for _ in range(LENGTH):
            place, mask = automaton.stack.places[state], form.mask(state)
            assert row.place() == place
            assert np.array_equal(row.mask(), with_end(mask, form, state)), place
            allowed = np.flatnonzero(mask)
            assert form.accepting(state) == oracle.may_end(automaton, *place)
            some = rng.choices(allowed, k=50) if allowed.size else []
            for token in {*map(int, some), *rng.sample(range(1, size), 200)}:
                # One without bytes leads nowhere else, and is no text.
                leads = bool(tokens[token]) and oracle.behind(automaton, *place, token)[0] >= 0
                assert mask[token] == leads, (place, tokens[token])
            masks += 1
            if not allowed.size:
                break
            long = [token for token in allowed.tolist() if len(tokens[token]) > 1]
            token = rng.choice(long if long and rng.random() < 0.5 else allowed.tolist())
            follow, state = row.take(token), form.advance(state, token)
            assert follow == np.count_nonzero(form.mask(state)), place
        row.held.release(automaton)
    assert masks > WALKS
