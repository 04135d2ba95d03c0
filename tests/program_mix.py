"""Programs of several kinds that arrive one by one, on segments and the oracle: who waits how many steps."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sglc.errors import Loc
from sglc.ir.core import Site
from sglc.ir.plan.segment import ExtendNode, GenNode, KeepNode, Node, NodeResult, OpenNode, ReleaseNode, Segment
from sglc.ir.sampling import Sampling
from sglc.runtime.engine.engine import Engine, EngineConfig, QueuePosition
from sglc.runtime.engine.machine import Machine
from tests.agents import PAGE_SIZE, VOCAB, CountingOracle, words
from tests.oracle_backend import Characters

KINDS = ("chain", "tree", "map", "agent", "one")
_LOC = Loc("mix.py", 1)


@dataclass(slots=True)
class Draft:
    """A segment in the making."""

    seed: str
    nodes: list[Node] = field(default_factory=list)

    def add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def text(self, stream: int, tokens: int) -> int:
        return self.add(ExtendNode(stream, (words(f"{self.seed}/{len(self.nodes)}", tokens),)))

    def results(self, stream: int, of: Sequence[int]) -> int:
        return self.add(ExtendNode(stream, tuple(part for node in of for part in (NodeResult(node), "\n"))))

    def gen(self, stream: int, tokens: int) -> int:
        number = len(self.nodes)
        sampling = Sampling(max_tokens=tokens, ignore_eos=True, seed=number)
        return self.add(GenNode(stream, Site("mix", (), f"x{number}"), sampling, _LOC))


@dataclass(eq=False, slots=True)
class Arrival:
    """A program: its rounds, each a segment, and how long its tool takes behind each."""

    number: int
    kind: str
    at: int
    segments: list[Segment]
    tools: list[int]
    done: int = 0  # rounds


def program(kind: str, number: int, at: int, seed: int) -> Arrival:
    """One program of `kind`, which arrives at step `at`."""
    rng = random.Random(f"{seed}/{number}")
    rounds = rng.randint(3, 8) if kind == "agent" else 1
    tools = [rng.randint(0, 30) for _ in range(rounds)]
    segments = [_segment(kind, number, turn, rounds, rng) for turn in range(rounds)]
    return Arrival(number, kind, at, segments, tools)


def _segment(kind: str, number: int, turn: int, rounds: int, rng: random.Random) -> Segment:
    draft = Draft(f"{kind}/{number}/{turn}")
    before = number * 100 + turn - 1
    stream = draft.add(OpenNode(before if turn else None))
    match kind:
        case "one":
            draft.gen(draft.text(stream, 150), rng.randint(5, 60))
        case "chain":
            stream = draft.text(stream, 200)
            for _ in range(rng.randint(4, 10)):
                stream = draft.text(draft.gen(stream, rng.randint(10, 60)), 20)
        case "map":
            stream = draft.text(stream, 400)
            parts = [draft.gen(draft.text(stream, 40), rng.randint(10, 90)) for _ in range(8)]
            draft.gen(draft.text(draft.gen(draft.results(stream, parts), 60), 10), 20)
        case "tree":
            stream = draft.text(stream, 300)
            leaves = []
            for _ in range(4):
                branch = draft.gen(draft.text(stream, 20), rng.randint(20, 80))
                leaves += [draft.gen(draft.text(branch, 10), rng.randint(10, 50)) for _ in range(3)]
            draft.gen(draft.results(stream, leaves[:4]), 30)
        case _:
            stream = draft.gen(draft.text(stream, 100 if turn else 300), rng.randint(20, 60))
            if turn + 1 < rounds:
                draft.add(KeepNode(stream, before + 1))
            if turn:
                draft.add(ReleaseNode(before))
    return Segment(tuple(draft.nodes))


def arrivals(kinds: Sequence[str], count: int, rate: float, seed: int) -> list[Arrival]:
    """`count` programs of `kinds`, `rate` of them a step."""
    rng = random.Random(seed)
    at, made = 0.0, []
    for number in range(count):
        at += rng.expovariate(rate)
        made.append(program(rng.choice(kinds), number, int(at), seed))
    return made


@dataclass(frozen=True, slots=True)
class Waits:
    """Steps until all had ended; of each program, from its arrival to its end; tokens of prompts."""

    makespan: int
    latencies: tuple[int, ...]
    prompt_tokens: int

    def percentile(self, share: float) -> int:
        """The latency that so large a share of the programs does not exceed."""
        return sorted(self.latencies)[min(len(self.latencies) - 1, int(len(self.latencies) * share))]


class Watched(Machine):
    """A machine that knows whose segments it runs. `turn` says when a call has its turn, if not the machine."""

    programs: dict[object, Arrival]
    beginning: Arrival
    turn: Callable[[int, Arrival, QueuePosition], QueuePosition | None] | None = None

    def turn_of(self, run, index):  # type: ignore[no-untyped-def]
        arrival = self.programs.setdefault(run, self.beginning)
        own = super().turn_of(run, index)
        return own if self.turn is None else self.turn(self.engine.steps, arrival, own)


def run(
    programs: Sequence[Arrival],
    *,
    rows: int,
    pages: int,
    arrange: Callable[[Watched], None] = lambda machine: None,
) -> Waits:
    """Run all programs with so many rows and pages; every step is one of the engine's."""
    oracle = CountingOracle(pages=pages, page_size=PAGE_SIZE, vocab_size=VOCAB, eos_ids=(0,))
    machine = Watched(Engine(oracle, EngineConfig(max_rows=rows, max_len=4_000)), Characters())
    machine.programs = {}
    arrange(machine)
    coming = [(arrival.at, arrival.number, arrival) for arrival in programs]
    heapq.heapify(coming)
    ended: list[Arrival] = []
    latencies: dict[int, int] = {}
    now = 0
    while len(latencies) < len(programs):
        if machine.engine.idle and coming:
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            arrival = machine.beginning = heapq.heappop(coming)[2]
            machine.submit(
                arrival.segments[arrival.done],
                lambda event: None,
                lambda arrival=arrival: ended.append(arrival),  # type: ignore[misc]
                streams=False,
            )
        machine.step()
        now += 1
        for arrival in ended:
            tool = arrival.tools[arrival.done]
            arrival.done += 1
            if arrival.done < len(arrival.segments):
                heapq.heappush(coming, (now + tool, arrival.number, arrival))
            else:
                latencies[arrival.number] = now - arrival.at
        ended.clear()
    return Waits(now, tuple(latencies[number] for number in sorted(latencies)), oracle.prompt_tokens)
