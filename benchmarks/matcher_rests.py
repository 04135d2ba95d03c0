"""How long steps take beside a search for what eight samples have to go on with: with and without rests.

A step is 70 calls of torch, about those of a small model on the CPU. For each sample 165 bytes are looked for
that a grammar asks for, one after the other. Turn by turn, so that what a machine takes from everybody is in
both.

Writes benchmarks/results/matcher-rests-<cpu>.json.
"""

from __future__ import annotations

import time
from functools import partial
from statistics import median

import torch

from benchmarks.lock_waits import step_ms
from benchmarks.machine import result_path, setting, store
from sglc.runtime.constraints import give_way
from sglc.runtime.constraints.grammar_matcher import Grammars
from sglc.runtime.engine.matcher_threads import MatcherThreads
from sglc.runtime.engine.own_process import keep_answering

_SAMPLES = 8
_ROUNDS = 40
_EBNF = f'root ::= "{"x" * 165}" ((([a-z]{{0,50}}){{0,50}}){{0,50}}){{0,20}} "."'
_BYTES = [bytes([byte]) for byte in range(256)]


def beside_threads(x: torch.Tensor, weights: torch.Tensor) -> dict[str, float]:
    """Milliseconds of the steps until all have found what they look for."""
    constraints = [Grammars(_BYTES, len(_BYTES)).begun("ebnf", _EBNF) for _ in range(_SAMPLES)]
    threads = MatcherThreads()
    given: list[bytes] = []
    steps: list[float] = []
    began_s = time.perf_counter()
    for number, constraint in enumerate(constraints):
        look = partial(constraint.ahead, constraint.start)
        threads.begin(number, look, given.append, may_take_s=9.0, awaited=True)
    while threads.pending:
        threads.wait(0.0005, for_all=True)
        threads.deliver()
        with give_way.step():
            steps.append(step_ms(x, weights))
    assert given == [b"x" * 165] * _SAMPLES, given
    taken_ms = 1e3 * (time.perf_counter() - began_s)
    return {"largest step": max(steps), "mean step": sum(steps) / len(steps), "all found": taken_ms}


def main() -> None:
    torch.set_num_threads(1)
    keep_answering()
    x, weights = torch.randn(1, 64), torch.randn(64, 64)
    alone = [step_ms(x, weights) for _ in range(200)]
    rest_s = give_way._REST_S
    rounds: dict[str, list[dict[str, float]]] = {"without rests": [], "with rests": []}
    beside_threads(x, weights)
    for _ in range(_ROUNDS):
        for kind, seconds in zip(rounds, (0.0, rest_s), strict=True):
            give_way._REST_S = seconds
            rounds[kind].append(beside_threads(x, weights))
    told = {
        kind: {name: round(median(one[name] for one in found), 2) for name in found[0]}
        for kind, found in rounds.items()
    }
    print(told)
    figures = {"rounds": _ROUNDS, "alone, ms": round(median(alone), 2), "medians, ms": told}
    store(result_path("matcher-rests"), {**setting(), **figures})


if __name__ == "__main__":
    main()
