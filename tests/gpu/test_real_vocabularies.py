"""Masks on the device along random texts of patterns are those of the host, of vocabularies of real size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
import torch

from benchmarks.constraint_forms import pairs
from sglc.ir.grammar.dfa import accepts
from sglc.ir.grammar.regex import compile_regex
from sglc.runtime.constraints.constraint import Constraints
from sglc.runtime.kernels.automata import Automata
from sglc.runtime.kernels.rows import batch_lists, row_state
from sglc.runtime.kernels.sample import adjustments, sample, sample_scratch
from sglc.runtime.step import unpack_masks
from sglc.runtime.tokenizer.tokenizer import LocalTokenizer
from tests.depth import at_depth
from tests.runtime.test_constraint import random_pattern

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.model,
]  # fmt: skip

LARGE = 151_936


@dataclass
class Compared:
    """What `walked` looked at."""

    patterns: int = 0  # whose automata are on the device
    too_large: int = 0  # that have no room there
    masks: int = 0
    differing: int = 0  # masks, counts of what follows, and states behind a token


def walked(tokens: Sequence[bytes], size: int, patterns: int, length: int, device: str) -> Compared:
    """Walks of `length` tokens through random patterns: each mask and the state behind each token compared."""
    rng, seen, done = Random(size), set[str](), Compared()
    constraints, eos = Constraints(tokens, size), torch.tensor([0], dtype=torch.int32, device=device)
    held = Automata(tokens, size, eos, 1, words=1 << 24, masks=4096)
    state, lists, added = row_state(1, 1, 0, device), batch_lists(1, 1, 1, device), adjustments(2, size, device)
    lists.rows[:, 0] = torch.tensor([0, 1, 0, 1], dtype=torch.int32)
    out = [torch.zeros(1, dtype=torch.int32, device=device) for _ in range(2)]
    scratch, logits = sample_scratch(1, device), torch.zeros(1, size, device=device)
    while len(seen) < patterns:
        pattern = random_pattern(rng)
        if pattern in seen or accepts(compile_regex(pattern), b""):
            continue
        seen.add(pattern)
        form = constraints.regex(pattern)
        at = held.hold(form.automaton) if form.automaton is not None else None
        if at is None:
            done.too_large += 1
            continue
        done.patterns += 1
        here = form.start
        for _ in range(length):
            mask, row = form.mask(here), held.mask_of(at, here)
            wanted = mask.copy()
            if form.accepting(here):
                wanted[0] = True
            words = held.tables.masks[row, : -(-size // 32)].cpu().numpy()
            done.masks += 1
            done.differing += not np.array_equal(unpack_masks(words, size), wanted)
            done.differing += int(held.tables.follow[row]) != mask.sum()
            if not mask.any():
                break
            token = int(rng.choice(np.flatnonzero(mask)))
            state.automaton[0], state.state[0], state.mask[0] = at, here, row
            logits[0, token] = 99.0
            sample(
                logits,
                lists,
                state,
                eos,
                scratch,
                held.tables,
                added,
                out[0],
                torch.zeros(1, device=device),
                out[1],
            )
            logits[0, token] = 0.0
            here = form.advance(here, token)
            done.differing += int(out[0]) != token or int(state.state[0]) != here
        assert form.automaton is not None
        held.release(form.automaton)
    return done


@pytest.mark.nightly
def test_masks_and_states_are_those_of_the_host(default_tokenizer: LocalTokenizer) -> None:
    tokens = default_tokenizer.token_bytes()
    for vocabulary, size in ((tokens, len(tokens)), (pairs(tokens, LARGE), LARGE)):
        done = walked(vocabulary, size, at_depth(10, 40, 200), 20, "cuda")
        assert not done.differing
        assert done.masks > 5 * done.patterns > 4 * done.too_large
