"""How many of all test functions `make quick` runs; a test with several cases is one function.

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


def selection() -> list[str]:
    """What the target gives pytest to select by."""
    recipe = re.search(r"^quick:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    return shlex.split(recipe[1].replace("\\\n", " ").partition("$(PYTEST)")[2])


def functions(options: Sequence[str], depth: str) -> set[str]:
    """The test functions that pytest collects."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *options]
    environment = {**os.environ, "TEST_DEPTH": depth}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}


def main() -> None:
    every, quick = functions((), "usual"), functions(selection(), "quick")
    print(f"make quick runs {len(quick)} of {len(every)} test functions, {len(quick) / len(every):.1%}")


if __name__ == "__main__":
    main()
