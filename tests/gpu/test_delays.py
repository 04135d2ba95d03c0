"""Nothing that a step reads may change under it: random delays on the device and a pool that is too small
give the same tokens as a quiet run without graphs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from sglc.ir.sampling import Sampling
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.executor.cuda_executor import CudaExecutor
from sglc.runtime.scheduler.requests import RequestFailed, SampleDone
from sglc.runtime.step import Step, StepResult
from tests.runtime.reference_models import tiny_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ROWS, TOKENS = 24, 96


class Delayed:
    """An executor whose device stops at random before and behind a step, for up to 2 ms."""

    def __init__(self, inner: CudaExecutor, seed: int) -> None:
        self.page_size, self.pages = inner.page_size, inner.pages
        self.depth, self.vocab_size = inner.depth, inner.vocab_size
        self.trees, self.keeps, self.hold, self.release = inner.trees, inner.keeps, inner.hold, inner.release
        self._inner, self._random = inner, random.Random(seed)

    def launch(self, step: Step) -> Any:
        self._stop()
        ticket = self._inner.launch(step)
        self._stop()
        return ticket

    def ready(self, ticket: Any) -> bool:
        return self._inner.ready(ticket)

    def drain(self, ticket: Any) -> StepResult:
        return self._inner.drain(ticket)

    def _stop(self) -> None:
        if self._random.random() < 0.3:
            torch.cuda._sleep(self._random.randrange(4_000_000))


def outcomes(engine: Engine, seed: int) -> dict[int, list[tuple[int, ...]]]:
    """Tokens of every sample of 80 requests with common prefixes, which come in bursts; some are aborted."""
    draw = random.Random(seed)
    prefixes = [[draw.randrange(5, 300) for _ in range(draw.randrange(20, 120))] for _ in range(4)]
    waiting = []
    for number in range(80):
        own = [draw.randrange(5, 300) for _ in range(draw.randrange(1, 40))]
        sampling = Sampling(
            max_tokens=draw.randrange(1, 60), temperature=draw.choice([0.0, 0.9]), n=draw.choice([1, 1, 1, 4]),
            ignore_eos=draw.random() < 0.7, min_p=draw.choice([0.0, 0.05]),
        )  # fmt: skip
        waiting.append((number, [*draw.choice(prefixes), *own], sampling, draw.random() < 0.1))
    made: dict[int, list[tuple[int, ...]]] = {}
    numbers: dict[int, int] = {}
    steps = 0
    while waiting or not engine.idle:
        if waiting and steps % 7 == 0:
            for number, prompt, sampling, aborted in [waiting.pop(0) for _ in range(min(10, len(waiting)))]:
                handle = engine.extend(None, prompt)
                request = engine.gen(handle, sampling, list(range(sampling.n)), eos_ids=(2,), watch=False)
                engine.release(handle)
                numbers[request] = number
                if aborted:
                    engine.abort(request)
                else:
                    made[number] = [()] * sampling.n
        steps += 1
        for event in engine.step():
            if isinstance(event, SampleDone):
                made[numbers[event.request]][event.sample] = event.ids
            elif isinstance(event, RequestFailed):
                raise event.error
    return made


@pytest.mark.parametrize("seed", range(3))
def test_delays_and_a_small_pool_change_nothing(seed: int, tmp_path: Path) -> None:
    model, config = tiny_model(tmp_path, "qwen3")
    held = {name: weight.detach().cuda() for name, weight in model.state_dict().items()}

    def executor(pages: int, depth: int, graphs: bool = True) -> CudaExecutor:
        return CudaExecutor(
            config, held, page_size=4, pages=pages, max_rows=ROWS, max_tokens=TOKENS, max_len=512, eos_ids=(2,),
            depth=depth, graphs=graphs,
        )  # fmt: skip

    limits = EngineConfig(token_budget=TOKENS, max_rows=ROWS, max_len=512)
    quiet = outcomes(Engine(executor(2000, 1, graphs=False), limits), seed)
    preempted = 0
    for pages, depth in ((2000, 4), (90, 2), (90, 4)):
        engine = Engine(Delayed(executor(pages, depth), seed), limits)
        assert outcomes(engine, seed) == quiet
        preempted += engine.queue.preempted
    assert preempted > 0, "the small pool was not small enough"
