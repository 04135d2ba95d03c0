"""Streams over HTTP that are left leave nothing behind: a small part of `make soak`."""

from __future__ import annotations

import pytest

from tests.depth import at_depth
from tests.soak_http import soak

pytestmark = pytest.mark.slow


def test_every_token_is_the_oracles_and_nothing_stays() -> None:
    found = soak(seconds=at_depth(2, 2, 120), clients=40, seed=7, pool=60)
    assert found["requests"] >= 40
    assert found["left"] > 0
    assert found["tokens"] > 0
