"""Whole programs on the default model, passes on and off: `sglc bench programs` with its results stored.

Writes benchmarks/results/programs-<cpu>.json.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from machine import ROOT, result_path

from sglc.cli import main

ROUNDS = 3

if __name__ == "__main__":
    path = result_path("programs")
    code = main(["bench", "programs", "--rounds", str(ROUNDS), "-o", str(path)])
    print(f"-> {path.relative_to(ROOT)}")
    sys.exit(code)
