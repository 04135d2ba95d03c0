"""Automata with stacks on the device: masks, moves and counts are those of the host along random texts."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from torch import Tensor

from sglc.ir.grammar.pushdown import MOST_NESTED, pushdown
from sglc.ir.grammar.regex import call
from sglc.runtime.constraints.canonical_tokens import CanonicalTokens
from sglc.runtime.constraints.pushdown_automaton import PushdownAutomaton
from sglc.runtime.constraints.token_automaton import Vocabulary
from sglc.runtime.kernels.automata import Automata
from sglc.runtime.kernels.pushdown_masks import pushdown_masks
from sglc.runtime.kernels.rows import DEPTH, BatchLists, RowState, batch_lists, row_state
from sglc.runtime.kernels.sample import adjustments, sample, sample_scratch
from sglc.runtime.step import Filters, unpack_masks
from tests.depth import at_depth
from tests.reference.longest_match import longest_match

pytestmark = [
    pytest.mark.kernel, pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]  # fmt: skip

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PIECES = [
    "", *'abxy01(){}[],:+;" ', "ab", "((", "((((", "(((((", "))", "))))", "]]", "]}", "}]", '"}', '", "',
    "}, {", "], [", "[[", "1)", ") + (", "))+((", "; ", '": ', '{"a": ', "a" * 9, "]" * 20, "(" * 40,
]  # fmt: skip
TOKENS = [piece.encode() for piece in PIECES] + [
    bytes([byte]) for byte in range(256) if chr(byte) not in PIECES
]
VOCAB = len(TOKENS) + 45
EOS = (0, len(TOKENS) + 40)
RULES = {
    "sums": (f"(?:{call(1)}; )+", rf"(?:[01]+|\({call(1)}\))(?: \+ (?:[01]+|\({call(1)}\)))*"),
    "tree": (call(1), rf'\{{"a": \[(?:{call(1)}(?:, {call(1)})*)?\], "b": "[abxy]*"\}}'),
    "lists": (call(1), rf"(?:\[(?:{call(1)}(?:, {call(1)})*)?\]|null|[01]+)"),
    "two rules": (f"{call(1)}+", rf"\({call(2)}\)", rf"(?:a|\[{call(1)}?\]|x{call(2)})"),
}


def form(name: str, *, canonical: bool) -> tuple[PushdownAutomaton, PushdownAutomaton | CanonicalTokens]:
    vocabulary = Vocabulary(TOKENS, VOCAB)
    made = pushdown(RULES[name])
    assert made is not None
    inner = PushdownAutomaton(made, vocabulary, name)
    return inner, CanonicalTokens(inner, vocabulary, longest_match(TOKENS)) if canonical else inner


class Device:
    """Row 2 of 4, which follows a form."""

    def __init__(self, held: PushdownAutomaton | CanonicalTokens) -> None:
        self.eos = torch.tensor(EOS, dtype=torch.int32, device=DEVICE)
        self.automata = Automata(TOKENS, VOCAB, self.eos, 4, words=1 << 16, masks=300)
        assert held.automaton is not None
        at = self.automata.hold(held.automaton)
        assert at is not None
        self.places = held.automaton.stack.places if held.automaton.stack is not None else ()
        self.state: RowState = row_state(4, 1, 0, DEVICE)
        self.lists: BatchLists = batch_lists(4, 4, 4, DEVICE)
        self.lists.rows[0, 0] = 2
        self.lists.rows[1, 0] = self.lists.rows[3, 0] = 1
        self.state.automaton[2] = at
        self.state.mask[2] = self.automata.first_own + 2

    def put(self, number: int) -> None:
        """The row is at a place of the host's."""
        state, stack = self.places[number]
        self.state.state[2], self.state.fields[DEPTH.value, 2] = state, len(stack)
        self.state.stacks[2, : len(stack)] = torch.tensor(stack, dtype=torch.int32)
        rows = torch.tensor([2], dtype=torch.int32, device=DEVICE)
        pushdown_masks(rows, self.state, self.automata.tables, self.automata.first_own, self.eos, VOCAB)

    def mask(self) -> list[bool]:
        words = self.automata.tables.masks[self.automata.first_own + 2, : -(-VOCAB // 32)].cpu().numpy()
        return list(unpack_masks(words, VOCAB).tolist())

    def take(self, logits: Tensor) -> tuple[int, int]:
        """Sample; gives the token, and how many may follow."""
        out = [torch.zeros(1, dtype=torch.int32, device=DEVICE) for _ in range(2)]
        sample(
            logits, self.lists, self.state, self.eos, sample_scratch(1, DEVICE), self.automata.tables,
            adjustments(5, VOCAB, DEVICE), out[0], torch.zeros(1, device=DEVICE), out[1],
            filters=Filters.NONE, first_own=self.automata.first_own,
        )  # fmt: skip
        return int(out[0]), int(out[1])

    def place(self) -> tuple[int, tuple[int, ...]]:
        depth = int(self.state.fields[DEPTH.value, 2])
        return int(self.state.state[2]), tuple(self.state.stacks[2, :depth].tolist())


def wanted(held: PushdownAutomaton | CanonicalTokens, state: int) -> list[bool]:
    mask = held.mask(state)
    if held.accepting(state):
        mask[list(EOS)] = True
    return list(mask.tolist())


@pytest.mark.parametrize("canonical", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_masks_moves_and_counts_are_those_of_the_host(name: str, canonical: bool) -> None:
    inner, held = form(name, canonical=canonical)
    device, rng = Device(held), Random(name)
    for _ in range(at_depth(1, 1, 20)):
        state = held.start
        device.put(state)
        for step in range(at_depth(8, 8, 60)):
            assert device.mask() == wanted(held, state), inner._places[state]
            allowed = np.flatnonzero(held.mask(state)).tolist()
            if not allowed:
                break
            deeper = [token for token in allowed if TOKENS[token][:1] in (b"(", b"[", b"{")]
            token = rng.choice(deeper if deeper and step < 12 else allowed)
            logits = torch.zeros(1, VOCAB, device=DEVICE)
            logits[0, token] = 9.0
            got, follows = device.take(logits)
            assert got == token
            state = held.advance(state, token)
            assert device.place() == inner._places[state]
            assert follows == held.mask(state).sum()


@pytest.mark.parametrize("name", ["sums", "lists"])
def test_near_the_bound_every_token_is_tried(name: str) -> None:
    """Texts as deep as they may be: a token that would put too much on the stack is not allowed."""
    inner, held = form(name, canonical=False)
    device = Device(held)
    single = TOKENS.index(b"(" if name == "sums" else b"[")
    state = held.start
    deepest = 0
    while held.mask(state)[single]:
        state = held.advance(state, single)
        depth = len(inner._places[state][1])
        deepest = max(deepest, depth)
        if depth > MOST_NESTED - 9:
            device.put(state)
            assert device.mask() == wanted(held, state), depth
    assert deepest >= MOST_NESTED - 1
    assert held.mask(state).any()
