"""Agents whose KV does not fit: tokens computed again with what is known of programs, and without it (what was
used last stays, requests in order of arrival), and what knowing the future would have saved.

64 agents of 8 rounds: a system prompt of 800 tokens, of their own or of all, 60 tokens out, a tool's result of
200. The pool takes a quarter of what they all would like to keep. Tools answer at once, or take up to 20 or up
to 200 steps; as long as that pages are held in a third run, and not only for as long as it is worth the steps.
Real programs, on the engine with the oracle; tokens and steps are counted, not timed.

    python -m benchmarks.liveness [--http]

With `--http` they ask a server, and say ahead what they know, or nothing.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS, setting, store
from sglc.runtime.engine.machine import Machine
from tests.agents import PAGE_SIZE, Agents, least_recently_used, measure


def case(work: Agents) -> dict[str, Any]:
    """Both policies on one workload."""
    pages = work.tokens // PAGE_SIZE // 4
    programs, requests = measure(work, pages), measure(work, pages, least_recently_used)
    held = measure(work, pages, held_throughout)
    return {
        "pages": pages,
        "programs": asdict(programs),
        "held throughout": asdict(held),
        "least recently used": asdict(requests),
        "recomputed, of least recently used": round(programs.recomputed / requests.recomputed, 3),
        "held throughout: recomputed, of least recently used": round(held.recomputed / requests.recomputed, 3),
        "held throughout: steps, of least recently used": round(held.steps / requests.steps, 3),
        "recomputed, of the bound": round(programs.recomputed / max(programs.bound, 1), 3),
        "steps, of least recently used": round(programs.steps / requests.steps, 3),
    }


def held_throughout(machine: Machine) -> None:
    """Pages are held for a program that is away, however long that is."""
    machine.engine.reservations.longest = 1 << 30


def served_case(work: Agents) -> dict[str, Any]:
    """Through a server, with hints and without."""
    pages = work.tokens // PAGE_SIZE // 4
    told, untold = (measure(work, pages, hints=hints) for hints in ("sglc", ""))
    return {
        "pages": pages,
        "with hints": asdict(told),
        "without": asdict(untold),
        "recomputed, of without": round(told.recomputed / untold.recomputed, 3),
        "steps, of without": round(told.steps / untold.steps, 3),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--agents", type=int, default=64)
    arguments = parser.parse_args()
    cases: dict[str, Any] = {}
    for steps in (0, 20, 200):
        for shared in (False, True):
            work = Agents(arguments.agents, shared=shared, tool_steps=steps)
            name = (
                f"{'one system prompt' if shared else 'own system prompts'}, tools take {steps} steps at most"
            )
            cases[name] = served_case(work) if arguments.http else case(work)
            print(name, json.dumps(cases[name]), flush=True)
    report = {"what": __doc__.split("\n\n")[0], "agents": arguments.agents, "cases": cases, **setting()}
    store(arguments.out or RESULTS / f"liveness{'-http' if arguments.http else ''}.json", report)


if __name__ == "__main__":
    main()
