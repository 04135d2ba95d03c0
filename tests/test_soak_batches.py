"""Batches that are ended anywhere go on: a small part of `make soak`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.depth import at_depth

pytestmark = pytest.mark.slow


def test_every_row_has_its_result_once(tmp_path: Path) -> None:
    """In a process of its own: it forks, and this one may have threads."""
    kills, rows = at_depth(3, 3, 200), at_depth(1_000, 1_000, 100_000)
    done = subprocess.run(
        [
            sys.executable, "-m", "tests.soak_batches", "--kills", str(kills), "--rows", str(rows),
            "--output", str(tmp_path / "found.json"),
        ],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["counts"]["ends"] >= kills
    assert [one["rows"] for one in found["many"].values()] == [rows, rows // 4]
