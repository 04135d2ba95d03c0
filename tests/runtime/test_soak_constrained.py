"""Texts of the default model match what they are held to: a small part of `make soak`."""

from __future__ import annotations

from collections import Counter

import pytest

from sglc.backends.local import LocalBackend
from tests import soak_small_pools
from tests.depth import at_depth
from tests.soak_constrained import GRAMMARS, REGEXES, SCHEMAS, TAGS, soak

pytestmark = pytest.mark.slow

PROMPTS = at_depth(1, 1, 2)
PART = at_depth(3, 5, 1)  # one in so many cases, of each temperature others


def test_constrained_texts_match(local: LocalBackend) -> None:
    total = Counter[str]()
    for found in soak(local, prompts=PROMPTS, seed=7, part=PART):
        total.update(found)
    assert len({*REGEXES}) + len(SCHEMAS) + len(GRAMMARS) + len(TAGS) == 68
    assert total["generations"] == -(-136 * PROMPTS // PART)
    assert total["cut"] <= 10 * PROMPTS
    assert local.machine is not None
    assert local.machine.engine.forced > 150 * PROMPTS // PART


def test_constrained_texts_match_where_little_is_kept_and_much_is_aborted() -> None:
    rounds = at_depth(1, 1, 4)
    found = soak_small_pools.soak(rounds, seed=1)
    assert found["generations"] == 136 * rounds
    assert found["stop"] > 50 * rounds
    assert found["aborted in the middle"] > 10 * rounds
