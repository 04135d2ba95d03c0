"""Counts of the suites: what is accepted that is not valid, what is refused, what is valid and not accepted."""

from __future__ import annotations

import pytest

from tests.constraints.verdicts import suite_counts, total

pytestmark = pytest.mark.slow


def test_counts_of_the_test_suite() -> None:
    found = total(suite_counts()["sglc"])
    assert found["schemas"] == 438
    assert found["false accepts"] == 0
    assert found["refused"] == 150
