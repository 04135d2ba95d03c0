"""Agents in the engine's own time: real programs on the oracle, each step of which begins when nobody computes.

A program is in the engine, or its tool works, or its Python runs; no step is made while any Python runs. Tools
take steps, not seconds, and those that end together go on one by one, in the order of the agents. So a run is
the same each time, and what is counted is the policy's.
"""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import uvicorn

import sglc
from sglc.backends.http import ServerBackend, ServerOptions
from sglc.backends.local import LocalBackend, LocalOptions
from sglc.ir.plan.backend import Backend
from sglc.ir.plan.events import Event
from sglc.ir.plan.segment import ReleaseNode, Segment
from sglc.ir.target import Target
from sglc.runtime.cache.page_tree import PageNode, RadixTree
from sglc.runtime.engine.engine import Engine, EngineConfig, QueuePosition
from sglc.runtime.engine.machine import Machine
from sglc.runtime.step import Step
from sglc.serve.app import make_direct
from sglc.serve.door import Access, guarded
from sglc.serve.limits import Limits
from sglc.serve.server import bound_socket
from sglc.serve.service import Service
from tests.oracle_backend import Characters
from tests.page_trace import Trace, recorded, replay
from tests.reference.oracle import Oracle
from tests.waiting import until

_NAP_S = 0.0002
_STUCK_S = 60.0
VOCAB = 98
PAGE_SIZE = 16


@dataclass(slots=True)
class Clock:
    """Steps, and the tools that wait for one. `live` programs have not ended."""

    live: int
    now: int = 0
    asleep: list[tuple[int, int, threading.Event]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def sleep(self, steps: int, number: int) -> None:
        """Work for so many steps, as agent `number`'s tool."""
        done = threading.Event()
        with self._lock:
            heapq.heappush(self.asleep, (self.now + steps, number, done))
        assert done.wait(_STUCK_S), "the clock stands still"

    def wake(self) -> bool:
        """End the first tool that is due; whether there is one."""
        with self._lock:
            if not self.asleep or self.asleep[0][0] > self.now:
                return False
            heapq.heappop(self.asleep)[2].set()
            return True


class TimedMachine(Machine):
    """A machine whose steps wait for the programs' Python."""

    clock: Clock

    @property
    def idle(self) -> bool:
        return self.clock.live == 0 and Machine.idle.fget(self)  # type: ignore[attr-defined]

    def submit(
        self, segment: Segment, emit: Callable[[Event], None], done: Callable[[], None], **options: Any
    ) -> object:
        if segment.nodes and all(isinstance(node, ReleaseNode) for node in segment.nodes):
            self.clock.live -= 1  # what an agent does at its end
        return super().submit(segment, emit, done, **options)

    def step(self, meanwhile: Callable[[], bool] | None = None) -> None:
        clock = self.clock
        inside = len({id(run) for run, _, _ in self._calls.values()})
        if inside + len(clock.asleep) < clock.live:
            time.sleep(_NAP_S)
        elif not clock.wake():
            if self.engine.idle and clock.asleep:
                clock.now = clock.asleep[0][0]
            else:
                clock.now += 1  # before anybody hears of the step
                super().step(meanwhile)


class CountingOracle(Oracle):
    """Counts the tokens that are passed through as prompts, and the rows that decode."""

    prompt_tokens = 0
    decoded = 0

    def launch(self, step: Step) -> int:
        before = self.extended
        ticket = super().launch(step)
        self.prompt_tokens += self.extended - before - step.decoding
        self.decoded += step.decoding
        return ticket


class TimedBackend(LocalBackend):
    """The local back end with a `TimedMachine` over the oracle; `arrange` is called with it before it runs."""

    def __init__(
        self,
        clock: Clock,
        pages: int,
        *,
        page_size: int = PAGE_SIZE,
        max_rows: int = 64,
        token_budget: int = 2048,
        arrange: Callable[[TimedMachine], None] = lambda machine: None,
    ) -> None:
        super().__init__(LocalOptions("oracle", device="cpu", max_rows=max_rows))
        self.oracle = CountingOracle(pages=pages, page_size=page_size, vocab_size=VOCAB, eos_ids=(0,))
        self._clock = clock
        self._token_budget = token_budget
        self._arrange = arrange

    @cached_property
    def target(self) -> Target:
        return Target(
            "local",
            Characters(),
            scores_tokens=True,
            continues_text=True,
            whole_answers=True,
            concurrency=self.options.max_rows,
        )

    def _load(self) -> Machine:
        config = EngineConfig(max_rows=self.options.max_rows, max_len=4_000, token_budget=self._token_budget)
        machine = TimedMachine(Engine(self.oracle, config), Characters())
        machine.clock = self._clock
        self._arrange(machine)
        return machine


class _LastUse(RadixTree):
    __slots__ = ()

    def _rank(self, node: PageNode) -> tuple[int, int, int, int]:
        return (0, 0, node.last_use, node.serial)


class _NoPrograms(Engine):
    """Requests in the order in which they come; nothing is known of what follows them."""

    def gen(self, *given: Any, turn: QueuePosition | None = None, **named: Any) -> int:
        return super().gen(*given, **named)

    def score(self, *given: Any, turn: QueuePosition | None = None, **named: Any) -> int:
        return super().score(*given, **named)

    def hold(self, handle: int, steps: int, place: int) -> None:
        pass


def least_recently_used(machine: Machine) -> None:
    """The same runtime without liveness and without programs: what was used last stays."""
    machine.engine.__class__ = _NoPrograms
    machine.engine.tree.__class__ = _LastUse


def words(seed: str, length: int) -> str:
    """A text of `length` letters, so of as many tokens."""
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz ", k=length))


@dataclass(frozen=True, slots=True)
class Agents:
    """The workload: `rounds` of a generation and a tool's result behind a system prompt, lengths in tokens."""

    count: int = 64
    rounds: int = 8
    system: int = 800
    result: int = 200
    output: int = 60
    shared: bool = False  # one system prompt for all
    tool_steps: int = 0  # a tool takes 0 to so many steps
    seed: int = 0

    @property
    def tokens(self) -> int:
        """Tokens whose KV all agents together would like to keep."""
        own = self.rounds * self.output + (self.rounds - 1) * self.result
        return self.count * own + self.system * (1 if self.shared else self.count)

    def run(self, clock: Clock, backend: Backend, *, served: bool = False) -> list[Any]:
        """Run all agents; gives their results. A machine that is `served` does not see where they end."""

        def tool(number: int, turn: int) -> str:
            delay = random.Random(f"{self.seed}/{number}/{turn}").randint(0, self.tool_steps)
            clock.sleep(delay, number)
            return words(f"{self.seed}/{number}/{turn}", self.result)

        @sglc.function
        def agent(s: Any, number: int) -> None:
            clock.sleep(0, number)
            s += words(f"{self.seed}/{0 if self.shared else number}", self.system)
            for turn in range(self.rounds):
                s += sglc.gen(f"answer{turn}", max_tokens=self.output, ignore_eos=True)
                assert isinstance(s[f"answer{turn}"], str)
                if turn + 1 < self.rounds:
                    s += tool(number, turn)
            if served:
                clock.live -= 1

        rows = [{"number": number} for number in range(self.count)]
        results = agent.run_batch(rows, backend=backend, num_threads=self.count, seed=self.seed)
        for result in results:
            assert result.error() is None, result.error()
        return list(results)


@dataclass(frozen=True, slots=True)
class Counts:
    """What one run took. `recomputed` are tokens of prompts that had been computed before, `bound` those
    that the farthest next use would have had to compute again for the same rows (see `page_trace`)."""

    steps: int
    prompt_tokens: int
    recomputed: int
    bound: int
    gave_way: int


@contextmanager
def served(backend: LocalBackend) -> Iterator[str]:
    """The URL of a server before `backend`, whose clients' hints may have all of the cache."""
    backend.start()
    limits = Limits(hint_tokens=1 << 30)
    service = Service(backend, Characters(), "oracle", 4_000, limits=limits)
    direct = make_direct(service)
    app = guarded(direct, Access(), limits, service.drain, service.queue, service.metrics)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    with bound_socket("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            until(lambda: server.started, "the server does not start")
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def measure(
    work: Agents,
    pages: int,
    arrange: Callable[[Machine], None] = lambda machine: None,
    *,
    token_budget: int = 2048,
    hints: str | None = None,
) -> Counts:
    """Run `work` with a pool of so many pages of 16 tokens; through a server, if there are `hints` for that."""
    traces: list[Trace] = []

    def watch(machine: TimedMachine) -> None:
        arrange(machine)
        traces.append(recorded(machine.engine))

    clock = Clock(work.count)
    backend = TimedBackend(clock, pages, token_budget=token_budget, arrange=watch)
    try:
        if hints is None:
            work.run(clock, backend)
        else:
            with served(backend) as url:
                work.run(clock, ServerBackend(ServerOptions(url=url, hints=hints)), served=True)
        machine = backend.machine
        assert machine is not None
        first = replay(traces[0], 1 << 40)
        return Counts(
            machine.engine.steps,
            traces[0].computed,
            traces[0].computed - first,
            replay(traces[0]) - first,
            machine.engine.queue.preempted,
        )
    finally:
        backend.close()
