"""Texts of the default model match what they are held to: a small part of `make soak`."""

from __future__ import annotations

from collections import Counter

from sglc.backends.local import LocalBackend
from tests.soak_constrained import REGEXES, SCHEMAS, soak


def test_constrained_texts_match(local: LocalBackend) -> None:
    total = Counter[str]()
    for found in soak(local, prompts=2, seed=7):
        total.update(found)
    assert len({*REGEXES}) + len(SCHEMAS) == 60
    assert total["generations"] == 240
    assert total["cut"] <= 12
    assert local.machine is not None
    assert local.machine.engine.forced > 300
