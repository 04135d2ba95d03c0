"""Who has a row first, when programs want more rows than there are: programs in the order in which they began
(of one program, the longest way first), against requests in order of arrival and other orders.

60 programs of five kinds (chains, trees of thought, map and reduce, agents with tools, single questions), and
of each kind alone, arrive at seeded times on 16 rows. Segments on the engine with the oracle; everything is
counted in steps.

    python -m benchmarks.priorities
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.machine import RESULTS, setting, store
from sglc.runtime.engine.engine import QueuePosition
from tests.agents import least_recently_used
from tests.program_mix import KINDS, Arrival, Watched, arrivals, run

ROWS, PAGES, RATE, COUNT, SEEDS = 16, 1_000, 0.06, 60, (0, 1)
_LATER = 1 << 20  # so that no place is negative


def _left(arrival: Arrival, turn: QueuePosition) -> int:
    """What is left of a whole program, about: the order that uses it is told more than it could know."""
    return turn.left + 40 * (len(arrival.segments) - arrival.done - 1)


_REQUESTS = "requests in order of arrival"
Order = Callable[[int, Arrival, QueuePosition], QueuePosition | None]
ORDERS: dict[str, Order | None] = {
    "programs": None,
    "programs, their requests in order of arrival": lambda now, arrival, turn: QueuePosition(turn.place),
    _REQUESTS: lambda now, arrival, turn: None,
    "longest way first, aged by steps": lambda now, arrival, turn: QueuePosition(
        _LATER + now - _left(arrival, turn)
    ),
    "longest way first, aged by programs": (
        lambda now, arrival, turn: QueuePosition(_LATER + arrival.at - _left(arrival, turn))
    ),
    "shortest way first, aged by steps": lambda now, arrival, turn: QueuePosition(
        _LATER + now + _left(arrival, turn)
    ),
    "fewest rounds so far first": lambda now, arrival, turn: QueuePosition(_LATER * (arrival.done + 1) + now),
}


def measure(kinds: tuple[str, ...], name: str) -> dict[str, float]:
    """Means over the seeds."""

    def arrange(machine: Watched) -> None:
        machine.turn = ORDERS[name]
        if name == _REQUESTS:
            least_recently_used(machine)

    found = [run(arrivals(kinds, COUNT, RATE, seed), rows=ROWS, pages=PAGES, arrange=arrange) for seed in SEEDS]
    return {
        "makespan": round(mean(waits.makespan for waits in found)),
        "p50": round(mean(waits.percentile(0.5) for waits in found)),
        "p95": round(mean(waits.percentile(0.95) for waits in found)),
        "mean": round(mean(mean(waits.latencies) for waits in found)),
        "prompt_tokens": round(mean(waits.prompt_tokens for waits in found)),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "priorities.json")
    arguments = parser.parse_args()
    steps: dict[str, Any] = {"all kinds": {}}
    for name in ORDERS:
        steps["all kinds"][name] = measure(KINDS, name)
        print(name, steps["all kinds"][name], flush=True)
    for kind in KINDS:
        steps[kind] = {name: measure((kind,), name) for name in ("programs", _REQUESTS)}
        print(kind, steps[kind], flush=True)
    report = {
        "what": __doc__.split("\n\n")[0],
        "rows": ROWS,
        "pages": PAGES,
        "programs a step": RATE,
        "programs": COUNT,
        "seeds": len(SEEDS),
        "steps": steps,
        **setting(),
    }
    store(arguments.out, report)


if __name__ == "__main__":
    main()
