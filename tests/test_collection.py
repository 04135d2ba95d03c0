"""The tests as a suite: what collecting them imports, and how many of them `make quick` runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import inner_loop

TESTS = Path(__file__).parent

COLLECT = """
import sys
import pytest

code = pytest.main(["--collect-only", "-qq", "--ignore", "tests/runtime", "--ignore", "tests/gpu"])
print("imported:", *sorted({"torch", "transformers", "triton"} & sys.modules.keys()))
sys.exit(code)
"""


@pytest.mark.nightly
def test_only_tests_of_the_runtime_import_torch_when_they_are_collected() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COLLECT], cwd=TESTS.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "imported:"


@pytest.mark.nightly
def test_the_inner_loop_runs_most_tests() -> None:
    every = inner_loop.functions((), "usual")
    quick = inner_loop.functions(inner_loop.selection(), "quick")
    assert quick < every
    assert len(quick) >= 0.7 * len(every), sorted(every - quick)
    then = inner_loop.names_then()
    old, run = (inner_loop.names(each) & then for each in (every, quick))
    assert len(run) >= 0.9 * len(old), sorted(old - run)
