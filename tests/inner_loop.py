"""How many of all test functions `make quick` runs, and of those that there were when it was asked for.

A test with several cases is one function.

python -m tests.inner_loop
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
ASKED = "4fb343f"  # the commit at which `make quick` was asked for


def selection() -> list[str]:
    """What the target gives pytest to select by."""
    recipe = re.search(r"^quick:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    return shlex.split(recipe[1].replace("\\\n", " ").partition("$(PYTEST)")[2])


def functions(options: Sequence[str], depth: str) -> set[str]:
    """The test functions that pytest collects."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *options]
    environment = {**os.environ, "TEST_DEPTH": depth, "PYTEST_ADDOPTS": ""}  # which would change what it prints
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}


def names_then() -> set[str]:
    """The names of the test functions that there were when `make quick` was asked for, out of the history."""
    command = ["git", "grep", "-h", "-o", "-E", r"def test_\w+", ASKED, "--", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {line.removeprefix("def ") for line in done.stdout.splitlines()}


def names(functions: set[str]) -> set[str]:
    """Their names without the file, which may have moved."""
    return {function.rpartition("::")[2] for function in functions}


def main() -> None:
    every, quick, then = functions((), "usual"), functions(selection(), "quick"), names_then()
    old, run = names(every) & then, names(quick) & then
    print(f"make quick runs {len(quick)} of {len(every)} test functions, {len(quick) / len(every):.1%}")
    print(f"and {len(run)} of the {len(old)} that there were when it was asked for, {len(run) / len(old):.1%}")


if __name__ == "__main__":
    main()
