"""Random programs on the oracle: what came of every call lies between the bounds that were told before.

python -m tests.soak_explain --programs 1000 --seed 0
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from sglc.errors import RunError
from sglc.execution.plan.executor import run_plan
from sglc.execution.session import Session
from sglc.explain.estimate.estimate import estimated
from sglc.explain.estimate.forecast import Forecast
from sglc.explain.estimate.state import base_site
from sglc.ir.plan.events import Usage
from sglc.ir.plan.plan import Plan
from sglc.ir.target import Target
from sglc.ir.text.printer import from_text, to_text
from sglc.passes.compile import compile_program
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.engine.machine import Machine
from tests.oracle_backend import Characters, OracleBackend, PacedOracle
from tests.random_programs import ARGS, random_program
from tests.test_plan_run import Recorded, begun, outcome, plain

PAIRS = tuple(first + second for first in " #xeoyu'" for second in " #xeoyu'rt<")


class Pairs(Characters):
    """Ids for some pairs of characters too, taken from the left: a literal's ids depend on where it is cut."""

    hash = "pairs"

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        at, first = 0, len(super().token_bytes())
        while at < len(text):
            pair = text[at : at + 2]
            known = pair in PAIRS
            ids += [first + PAIRS.index(pair)] if known else super().encode(text[at])
            at += 1 + known
        return ids

    def cut(self, text: str) -> int:
        whole = self.encode(text)
        return len(text) - len(self.decode(whole[-1:]))  # the last one may become a pair

    def first_cut(self, text: str) -> int:
        """Behind two characters that are no pair it does not matter where the first pair began."""
        return next((at for at in range(1, len(text)) if text[at - 1 : at + 1] not in PAIRS), 0)

    def decode(self, ids: Sequence[int]) -> str:
        spelled = self.token_bytes()
        return b"".join(spelled[i] for i in ids).decode()

    def token_bytes(self) -> list[bytes]:
        return [*super().token_bytes(), *(pair.encode() for pair in PAIRS)]


class PairsBackend(OracleBackend):
    """The oracle with that tokenizer. One row at a time: nothing is computed twice at the same time."""

    def __init__(self) -> None:
        super().__init__(max_rows=1)
        size = len(Pairs().token_bytes())
        self.oracle = PacedOracle(pages=8_000, page_size=4, vocab_size=size)

    @cached_property
    def target(self) -> Target:
        return replace(super().target, tokenizer=Pairs())

    def _load(self) -> Machine:
        return Machine(Engine(self.oracle, EngineConfig(max_rows=1, max_len=4_000)), Pairs())


GIVEN = {**ARGS, "b": "beta"}
Estimate = Callable[[list[tuple[Plan, Mapping[str, str]]], Target], Forecast]


def check(seed: int, estimate: Estimate = estimated, given: Mapping[str, str] = GIVEN) -> Counter[str]:
    """Hold a run of random program `seed` against its estimate; what it was good for.

    Raises:
        AssertionError: a count is not where it should be.
    """
    made = random_program(seed, regions=True, images=False, ascii_only=True, python=False, resumed=False)
    program = from_text(plain(to_text(begun(made))), "random.sglir")
    backend = PairsBackend()
    try:
        compiled = compile_program(program, backend.target)
        forecast = estimate([(compiled.plan, given)], backend.target)
        run = Session(backend, seed)
        value = outcome(lambda: run_plan(compiled.plan, GIVEN, run, Recorded())[1])
    finally:
        backend.close()
    if isinstance(value, RunError):
        assert value.code == "SGLC404", to_text(program)  # an empty choice
        return Counter()
    text = to_text(program)
    found: Counter[str] = Counter(calls=0)
    made_: dict[str, list[Usage]] = {}
    for call in run.calls:
        step = forecast.step_of(base_site(str(call.site)))
        assert step is not None, (call.site, text)
        assert call.usage.prompt in step.each.prompt, (call.site, call.usage, step.each, text)
        assert call.usage.completion in step.each.new, (call.site, call.usage, step.each, text)
        assert call.usage.scored in step.each.scored, (call.site, call.usage, step.each, text)
        found["calls"] += 1
        found["exact prompts"] += step.each.prompt.exact
        made_.setdefault(step.site, []).append(call.usage)
    for step in forecast.steps:
        if step.kind == "tool":
            continue
        used = made_.get(step.site, [])
        assert len(used) in step.counts.calls, (step.site, len(used), step.counts.calls, text)
        assert sum(one.prompt for one in used) in step.counts.prompt, (step.site, used, step.counts, text)
    whole = sum((call.usage for call in run.calls), start=Usage())
    counts = forecast.counts
    assert len(run.calls) in counts.calls, (len(run.calls), counts, text)
    assert whole.prompt in counts.prompt, (whole, counts, text)
    sites = [
        (str(c.site), c.usage.prompt, c.usage.cached, str(forecast.step_of(base_site(str(c.site))).each.shared))
        for c in run.calls
    ]
    assert whole.computed in counts.computed, (sites, whole, counts, text)
    assert whole.cached in counts.shared, (sites, whole, counts, text)
    assert whole.completion in counts.new, (whole, counts, text)
    assert run.submits in counts.submits, (run.submits, counts, text)
    found["exact in all"] += counts.prompt.exact and counts.computed.exact
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/soak-explain.json"))
    arguments = parser.parse_args()
    start, total = time.monotonic(), Counter[str]()
    for seed in range(arguments.seed, arguments.seed + arguments.programs):
        total.update(check(seed))
    report = {
        "what": "random programs on the oracle: every count of every call against the bounds told before",
        "programs": arguments.programs,
        "seed": arguments.seed,
        "counts": dict(sorted(total.items())),
        "violations": 0,  # the first one ends the run with its assertion
        "seconds": round(time.monotonic() - start, 1),
        "python": platform.python_version(),
    }
    arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{arguments.programs} programs, {total['calls']} calls: no violation")


if __name__ == "__main__":
    main()
