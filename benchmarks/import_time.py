"""Times `import sglc`: the median over fresh interpreters, less the median of a bare interpreter.

Writes benchmarks/results/import-<cpu>.json and fails if the goal is missed.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from benchmarks.machine import ROOT, result_path, setting, store

RUNS = 15
GOAL_MS = 150.0


def start_ms(code: str) -> float:
    """Wall time in milliseconds of one fresh interpreter that runs `code`."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    return (time.perf_counter() - begin) * 1000


def main() -> int:
    for code in ("pass", "import sglc"):  # the first start of each reads files from disk and writes bytecode
        start_ms(code)
    bare, full = [], []
    for _ in range(RUNS):  # in turns, so that a slow moment of the machine meets both
        bare.append(start_ms("pass"))
        full.append(start_ms("import sglc"))
    import_ms = statistics.median(full) - statistics.median(bare)
    result = {
        "what": "import sglc, median of fresh interpreters less a bare interpreter's median",
        "import_ms": round(import_ms, 2),
        "goal_ms": GOAL_MS,
        "bare_ms": [round(t, 2) for t in bare],
        "with_import_ms": [round(t, 2) for t in full],
        **setting(),
    }
    print(f"import sglc: {import_ms:.1f} ms (goal: under {GOAL_MS:.0f} ms)")
    store(result_path("import"), result)
    return 0 if import_ms < GOAL_MS else 1


if __name__ == "__main__":
    sys.exit(main())
