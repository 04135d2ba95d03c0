"""A process that loads plan files and runs them: it has not compiled them.

A line of its input is a JSON object of `name`, `module`, `plan` and `alone`, and the answer is the outcome of
the run. With `alone` the module is imported for its arguments alone, behind the plan.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import sglc as sgl
from tests.source_fuzz.observe import SEED, Outcome, loaded, seen

_ROOT = Path(__file__).parent.parent.parent


class Child:
    """The other process, begun when it is first asked."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            self._process.stdout.close()
            self._process.wait()

    def run(self, name: str, module: Path, plan: Path, *, alone: bool) -> Outcome:
        """The outcome of a plan file there."""
        if self._process is None:
            path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH", ""))))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.source_fuzz.child"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "77"},
            )  # fmt: skip
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        asked = {"name": name, "module": str(module), "plan": str(plan), "alone": alone}
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the other process ended with {process.wait()} at {name}")
        outcome: Outcome = json.loads(answer)
        return outcome


def _answer(name: str, module: str, plan: str, *, alone: bool) -> Outcome:
    known = None if alone else loaded(name, Path(module))
    there = sgl.load_plan(plan)
    row: dict[str, Any] = loaded(name, Path(module)).rows()[0] if known is None else known.rows()[0]
    return seen(lambda backend: [there.run(row, backend=backend, seed=SEED)], known, row)


def main() -> None:
    """Answer until the input ends."""
    out = sys.stdout
    sys.stdout = sys.stderr  # what a program prints is no answer
    for line in sys.stdin:
        out.write(json.dumps(_answer(**json.loads(line))) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
