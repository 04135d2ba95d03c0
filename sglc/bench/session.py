"""One round on a fresh engine: requests through the KV API, and what they took."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Self, TypeVar

from sglc.bench.profile import Profile, Profiler
from sglc.bench.rig import Rig
from sglc.ir.sampling import Sampling
from sglc.runtime.constraints.protocol import Constraint
from sglc.runtime.engine.own_process import COLLECTIONS
from sglc.runtime.ids import Handle, RequestId
from sglc.runtime.scheduler.requests import RequestDone, RequestFailed, SampleDone

TEMPERATURE = 0.6
WARM_UP_SEED = 12345  # of work that no round measures
_PROFILED_STEPS = 1200  # some 200,000 kernels, which take a while to read

Then = Callable[[SampleDone], None]


class BenchSession:
    """An engine and what its requests add up to. The clock starts when it is made.

    Times are of `time.perf_counter`: `began`; `step_ends` of every call of `Engine.step`; `ended`, of the last
    token; `first`, of the first token of each request that was tracked.
    """

    def __init__(self, rig: Rig, profiler: Profiler | None = None) -> None:
        self.engine = rig.engine()
        self.step_ends: list[float] = []
        self.first: dict[RequestId, float] = {}
        self._profiler = profiler
        self._untold: set[RequestId] = set()  # tracked, and without a token so far
        self._open: dict[RequestId, tuple[Handle, Then | None]] = {}
        self._counts = dict.fromkeys(
            ("requests", "tokens_in", "tokens_cached", "tokens_computed", "tokens_out"), 0
        )
        self._least_free = rig.executor.pages
        self.began = self.ended = perf_counter()

    def gen(
        self,
        base: Handle | None,
        ids: Sequence[int],
        out: int,
        *,
        temperature: float = TEMPERATURE,
        sampling: Sampling | None = None,
        constraint: Constraint | None = None,
        tracked: bool = False,
        then: Then | None = None,
    ) -> RequestId:
        """Generate `out` tokens behind the ids of `base` and `ids`; `then` is called with the sample.

        Otherwise as `sampling` says, held to `constraint`.
        """
        handle = self.engine.extend(base, ids)
        asked = _sampling(sampling or Sampling(), out, temperature)
        self._counts["requests"] += 1
        request = self.engine.gen(
            handle, asked, [self._counts["requests"]], eos_ids=(), watch=False, constraint=constraint
        )
        self._open[request] = handle, then
        if tracked:
            self._untold.add(request)
        return request

    def step(self) -> None:
        """One step of the engine, and what its events set in motion."""
        if self._profiler is not None:
            self._profiler.before(len(self.step_ends))
        events = self.engine.step()
        now = perf_counter()
        self.step_ends.append(now)
        self._least_free = min(self._least_free, self.engine.allocator.pool.free)
        if self._untold:
            self._look_for_first_tokens(now)
        for event in events:
            match event:
                case SampleDone(request):
                    self.ended = now
                    if request in self._untold:
                        self._told(request, now)
                    handle, then = self._open.pop(request)
                    self.engine.release(handle)
                    if then is not None:
                        then(event)
                case RequestDone():
                    self._counts["tokens_in"] += event.prompt_tokens
                    self._counts["tokens_cached"] += event.cached_tokens
                    self._counts["tokens_computed"] += event.computed_tokens
                    self._counts["tokens_out"] += event.completion_tokens
                case RequestFailed():
                    raise event.error

    def run(self) -> Self:
        """Steps until nothing is left to do."""
        while not self.engine.idle:
            self.step()
        if self._profiler is not None:
            self._profiler.end()
        return self

    def rows(self) -> dict[RequestId, int]:
        """The row of every request that has one."""
        return {work.part.request.id: row for row, work in self.engine.allocator.work.items()}

    @property
    def seconds(self) -> float:
        """From the first request to the last token."""
        return self.ended - self.began

    @property
    def step_s(self) -> float:
        """Median time between two steps."""
        return median(after - before for before, after in pairwise((self.began, *self.step_ends)))

    def counts(self) -> dict[str, int]:
        """Of all requests that are done: tokens in (cached, computed) and out; of the engine: steps, and the
        pages that were not free at the same time, those of cached prefixes included."""
        pages = self.engine.executor.pages
        return {**self._counts, "steps": len(self.step_ends), "pages_used": pages - self._least_free}

    def _look_for_first_tokens(self, now: float) -> None:
        made = self.engine.rows.made
        for request, row in self.rows().items():
            if request in self._untold and made[row]:
                self._told(request, now)

    def _told(self, request: RequestId, now: float) -> None:
        self._untold.remove(request)
        self.first[request] = now


@cache
def _sampling(asked: Sampling, out: int, temperature: float) -> Sampling:
    return replace(asked, max_tokens=out, temperature=temperature, ignore_eos=True)


Round = TypeVar("Round", bound=BenchSession)


def repeat(
    rounds: int, profiled: bool, one: Callable[[Profiler | None], Round]
) -> tuple[list[Round], Profile | None]:
    """`rounds` rounds and, if wanted, one more under the profiler."""
    done = []
    for number in range(rounds):
        with _no_pauses():
            done.append(one(None))
        print(f"sglc: round {number + 1} of {rounds}: {done[-1].seconds:.3f} s", file=sys.stderr, flush=True)
    if not profiled:
        return done, None
    profiler = Profiler(min(_PROFILED_STEPS, len(done[-1].step_ends)))
    one(profiler)
    return done, profiler.profile()


@contextmanager
def _no_pauses() -> Iterator[None]:
    """No garbage collection looks at what was there before, and few at the rest: as in the runtime's process.

    What the program has frozen itself stays so.
    """
    frozen, usual = gc.get_freeze_count(), gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTIONS)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        if not frozen:
            gc.unfreeze()
