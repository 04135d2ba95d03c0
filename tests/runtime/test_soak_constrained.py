"""Texts of the default model match what they are held to: a small part of `make soak`."""

from __future__ import annotations

from collections import Counter

import pytest

from sglc.backends.local import LocalBackend
from tests.depth import at_depth
from tests.soak_constrained import REGEXES, SCHEMAS, soak

PROMPTS = at_depth(1, 1, 2)


@pytest.mark.slow
def test_constrained_texts_match(local: LocalBackend) -> None:
    total = Counter[str]()
    for found in soak(local, prompts=PROMPTS, seed=7):
        total.update(found)
    assert len({*REGEXES}) + len(SCHEMAS) == 60
    assert total["generations"] == 120 * PROMPTS
    assert total["cut"] <= 6 * PROMPTS
    assert local.machine is not None
    assert local.machine.engine.forced > 150 * PROMPTS
