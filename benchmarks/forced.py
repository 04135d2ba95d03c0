"""Model steps of constrained texts: with runs of forced tokens, with a step for each of the same tokens, and
with a step for each token of any spelling. Greedy, the default model on the CPU; steps are counted, not timed.

    python -m benchmarks.forced
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS, store
from sglc.backends.local import LocalBackend, LocalOptions
from sglc.bench.constrained import CHARACTER
from sglc.errors import Loc
from sglc.ir.core import Site
from sglc.ir.plan.events import GenDone
from sglc.ir.plan.segment import ExtendNode, GenNode, OpenNode, Segment
from sglc.ir.sampling import Sampling
from sglc.runtime.engine import jump_forward
from tests.soak_constrained import CITY

ABOUT = "{} is a character in Harry Potter. Please fill in the following information about this character.\n"
WORK = {
    "character": (CHARACTER, [ABOUT.format(n) for n in ("Harry Potter", "Hermione Granger")]),
    "city": (CITY, ["Paris as JSON: ", "The capital of Japan as JSON:\n"]),
}


def generate(backend: LocalBackend, prompt: str, regex: str, *, canonical: bool) -> tuple[int, int, str]:
    """Tokens, model steps, and the text."""
    sampling = Sampling(regex=regex, max_tokens=300, temperature=0.0, canonical=canonical, seed=0)
    node = GenNode(1, Site("forced", (), "x"), sampling, Loc("forced.py", 1))

    async def run() -> GenDone:
        events = [
            event async for event in backend.submit(Segment((OpenNode(), ExtendNode(0, (prompt,)), node)))
        ]
        (done,) = [event for event in events if isinstance(event, GenDone)]
        return done

    machine = backend.machine
    before = 0 if machine is None else machine.engine._next_step
    (sample,) = asyncio.run(run()).samples
    assert sample.finish == "stop"
    machine = backend.machine
    assert machine is not None
    return len(sample.ids), machine.engine._next_step - before, sample.text


def measure(backend: LocalBackend) -> dict[str, Any]:
    """Counts by schema, summed over its prompts."""
    original = jump_forward.forced_run
    report: dict[str, Any] = {}
    for name, (regex, prompts) in WORK.items():
        total = dict.fromkeys(
            (
                "tokens",
                "steps",
                "steps, one each",
                "tokens, any spelling",
                "steps, any",
                "steps, any, one each",
            ),
            0,
        )
        for prompt in prompts:
            tokens, steps, text = generate(backend, prompt, regex, canonical=True)
            any_tokens, any_steps, any_text = generate(backend, prompt, regex, canonical=False)
            jump_forward.forced_run = lambda request, state, made: None
            same = generate(backend, prompt, regex, canonical=True)
            any_same = generate(backend, prompt, regex, canonical=False)
            jump_forward.forced_run = original
            assert (same[0], same[2]) == (tokens, text)
            assert (any_same[0], any_same[2]) == (any_tokens, any_text)
            for key, value in zip(
                total, (tokens, steps, same[1], any_tokens, any_steps, any_same[1]), strict=True
            ):
                total[key] += value
        report[name] = {
            **total,
            "fewer steps for the same tokens": round(total["steps, one each"] / total["steps"], 2),
            "fewer steps than one for each token of any spelling": round(
                total["steps, any, one each"] / total["steps"], 2
            ),
            "fewer steps with any spelling": round(total["steps, any, one each"] / total["steps, any"], 2),
        }
    return report


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "forced.json")
    arguments = parser.parse_args()
    backend = LocalBackend(LocalOptions("smollm2"))
    try:
        report = {"what": __doc__.split("\n\n")[0], **measure(backend), "python": platform.python_version()}
    finally:
        backend.close()
    print(json.dumps(report, indent=1))
    store(arguments.out, report)


if __name__ == "__main__":
    main()
