"""Automata on the device allow what they allow on the host, and sampled tokens lead them on."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from sglc.ir.grammar.regex import compile_regex
from sglc.runtime.constraints.canonical_tokens import CanonicalTokens
from sglc.runtime.constraints.protocol import Constraint
from sglc.runtime.constraints.token_automaton import TokenAutomaton, Vocabulary, build
from sglc.runtime.kernels.automata import Automata
from sglc.runtime.kernels.rows import batch_lists, row_state
from sglc.runtime.kernels.sample import adjustments, sample, sample_scratch
from sglc.runtime.step import ByteAutomaton, pack_masks, unpack_masks
from tests.depth import at_depth
from tests.reference.longest_match import longest_match

pytestmark = [
    pytest.mark.kernel, pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]  # fmt: skip

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PIECES = [
    "", *'abcxyzenos0129,:{}" ', "ab", "abc", "12", "129", '": ', "é", "yes", "no", "  ", "abcabcabcabc",
]  # fmt: skip
TOKENS = [piece.encode() for piece in PIECES] + [b"\xc3", b"\xa9", b"a\xc3"]
VOCAB = len(TOKENS) + 45  # padding, into a second word and block
EOS = (0, len(TOKENS) + 40)
PATTERNS = (
    "[abc]+", "(yes|no)", r'\{"ab": [0-9]{1,3}, "c": "[a-c]*"\}', "[a-z ]{20}", "é*", "[^a]{1,4}",
    "(12|129){2}x?",
)  # fmt: skip


def constraint(pattern: str, *, canonical: bool) -> Constraint:
    vocabulary = Vocabulary(TOKENS, VOCAB)
    automaton = TokenAutomaton(build(compile_regex(pattern), vocabulary), vocabulary, pattern)
    return CanonicalTokens(automaton, vocabulary, longest_match(TOKENS)) if canonical else automaton


def held(automaton: ByteAutomaton, **room: int) -> tuple[Automata, int]:
    made = Automata(TOKENS, VOCAB, torch.tensor(EOS, dtype=torch.int32, device=DEVICE), 4, **room)
    at = made.hold(automaton)
    assert at is not None
    return made, at


@pytest.mark.parametrize("canonical", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS[: at_depth(4, 7, 7)])
def test_masks_and_states_are_those_of_the_host(pattern: str, canonical: bool) -> None:
    form = constraint(pattern, canonical=canonical)
    assert form.automaton is not None
    made, at = held(form.automaton, words=1 << 14, masks=200)
    masks, follow = made.tables.masks.cpu().numpy(), made.tables.follow.cpu().numpy()
    seen, left = {form.start}, [form.start]
    while left:
        state = left.pop()
        row = made.mask_of(at, state)
        wanted = form.mask(state)
        assert follow[row] == wanted.sum()
        if form.accepting(state):
            wanted[list(EOS)] = True
        assert unpack_masks(masks[row][: -(-VOCAB // 32)], VOCAB).tolist() == wanted.tolist()
        for token in np.flatnonzero(form.mask(state)).tolist():
            after = form.advance(state, token)
            if after not in seen:
                seen.add(after)
                left.append(after)


def test_a_sampled_token_leads_on_and_is_less_likely_from_then_on() -> None:
    form = constraint("[abc]{1,30}", canonical=False)
    assert form.automaton is not None
    made, at = held(form.automaton, words=1 << 14, masks=200)
    state, lists = row_state(4, 1, 0, DEVICE), batch_lists(4, 4, 4, DEVICE)
    lists.rows[0, :2] = torch.tensor([3, 1], dtype=torch.int32)
    lists.rows[1, :2] = lists.rows[3, :2] = 1
    state.automaton[3], state.state[3], state.mask[3] = at, form.start, made.mask_of(at, form.start)
    added = adjustments(5, VOCAB, DEVICE)
    # Ids 1, 5 and 70 stand in the prompt.
    added.repetition[1] = 1.5
    repeated = np.isin(np.arange(VOCAB), (1, 5, 70))
    added.repeated[1] = torch.from_numpy(pack_masks(repeated)[::-1].copy()).to(DEVICE)
    state.fields[11, 1] = 1
    state.fields[12:14, 1] = torch.tensor([0.5, 2.0]).view(torch.int32)
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    logits[0, list(EOS)] = -9.0
    ids = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    logprobs, follows = torch.zeros(2, device=DEVICE), torch.zeros(2, dtype=torch.int32, device=DEVICE)
    eos = torch.tensor(EOS, dtype=torch.int32, device=DEVICE)
    expected, counts = form.start, dict[int, int]()
    for _ in range(6):
        adjusted = logits[1].cpu().clone()
        there = torch.tensor([1, 5, 70, *counts])
        adjusted[there] = torch.where(adjusted[there] > 0, adjusted[there] / 1.5, adjusted[there] * 1.5)
        for token, count in counts.items():
            adjusted[token] -= 0.5 * count + 2.0
        mask = torch.from_numpy(form.mask(expected))
        if form.accepting(expected):
            mask[list(EOS)] = True
        wanted = logits[0].cpu().where(mask, torch.tensor(-torch.inf)).argmax().item()
        sample(logits, lists, state, eos, sample_scratch(2, DEVICE), made.tables, added, ids, logprobs, follows)
        assert ids.tolist() == [wanted, adjusted.argmax().item()]
        own = logits.log_softmax(1).gather(1, ids[:, None].long())[:, 0]
        assert logprobs.tolist() == pytest.approx(own.tolist())
        expected = form.advance(expected, int(ids[0]))
        assert state.state[3] == expected
        assert follows.tolist() == [min(2, form.mask(expected).sum()), 2] or follows[0] > 2
        counts[ids[1].item()] = counts.get(ids[1].item(), 0) + 1
    assert len(counts) > 2


def test_room_is_that_of_automata_nobody_uses() -> None:
    """Many forms through little room: those in use stay right, those that do not fit are refused."""
    rng = random.Random(1)
    forms = [constraint(f"[abc]{{1,{n}}}x", canonical=False) for n in range(1, 12)]
    made = Automata(TOKENS, VOCAB, torch.tensor(EOS, dtype=torch.int32, device=DEVICE), 4, words=3000, masks=20)
    used: list[tuple[Constraint, int]] = []
    refused = 0
    for _ in range(at_depth(40, 60, 400)):
        if used and rng.random() < 0.5:
            form, _ = used.pop(rng.randrange(len(used)))
            assert form.automaton is not None
            made.release(form.automaton)
            continue
        form = rng.choice(forms)
        assert form.automaton is not None
        at = made.hold(form.automaton)
        if at is None:
            refused += 1
            continue
        used.append((form, at))
        for each, place in used:
            row = made.mask_of(place, each.start)
            words = made.tables.masks[row, : -(-VOCAB // 32)].cpu().numpy()
            assert unpack_masks(words, VOCAB).tolist() == each.mask(each.start).tolist()
    assert refused
