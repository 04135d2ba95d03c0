"""Whole programs on the default model, passes on and off: `sglc bench programs` with its results stored.

Writes benchmarks/results/programs-<cpu>.json.
"""

from __future__ import annotations

import sys

from benchmarks.machine import result_path
from sglc.cli import main

ROUNDS = 3

if __name__ == "__main__":
    sys.exit(main(["bench", "programs", "--rounds", str(ROUNDS), "-o", str(result_path("programs"))]))
