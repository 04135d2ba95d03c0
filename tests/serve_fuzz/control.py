"""A process that computes the same amount again and again, and notes when: what a machine takes from everybody.

python -m tests.serve_fuzz.control; ends with its standard input. It keeps a processor busy.
"""

from __future__ import annotations

import select
import sys
import time

_STEPS = 40_000  # a few milliseconds


def main() -> int:
    """Each line is when an amount was done, and how long it took."""
    last_s = time.monotonic()
    while not select.select([sys.stdin], [], [], 0)[0]:
        total = 0
        for step in range(_STEPS):
            total += step * step
        now_s = time.monotonic()
        print(f"{now_s:.6f} {now_s - last_s:.6f}", flush=False)
        last_s = now_s
    return 0


if __name__ == "__main__":
    sys.exit(main())
