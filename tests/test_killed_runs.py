"""Recorded runs that are killed (-9), as `tests.soak_resume` does for long."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.depth import at_depth, some_of
from tests.soak_resume import SETTINGS, Setting, check

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("setting", some_of(SETTINGS, 1, 2), ids=str)
def test_a_run_that_is_killed_again_and_again_ends_as_one_that_is_not(setting: Setting, tmp_path: Path) -> None:
    assert check(setting, at_depth(1, 1, 12), 5, tmp_path)
