"""A long batch does not starve a chat: requests of a higher priority, and users who have had less, go first.

Counted in steps of the oracle, which also checks every token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from sglc.errors import Loc
from sglc.ir.core import Site
from sglc.ir.plan.events import Delta, Event
from sglc.ir.plan.segment import ExtendNode, GenNode, OpenNode, Segment
from sglc.ir.sampling import Sampling
from sglc.runtime.engine import wire
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.engine.machine import Machine
from sglc.runtime.scheduler.fair_share import FairShare
from tests.agents import PAGE_SIZE, VOCAB, CountingOracle, words
from tests.depth import at_depth
from tests.oracle_backend import Characters

ROWS, TOKENS, CHAT_TOKENS = 16, 60, 8
BATCH = at_depth(100, 120, 1_000)
CHATS = at_depth(10, 12, 60)


def text(name: str, tokens: int, priority: int = 0, share: str = "", prompt: int = 12) -> Segment:
    """One prompt of its own and its text."""
    sampling = Sampling(max_tokens=tokens, ignore_eos=True, seed=len(name))
    gen = GenNode(1, Site("f", (), name), sampling, Loc("f.py", 1))
    return Segment((OpenNode(), ExtendNode(0, (words(name, prompt),)), gen), priority=priority, share=share)


@dataclass
class Bench:
    """A machine on the oracle, and what has become of each text."""

    pages: int
    first: dict[str, int] = field(default_factory=dict)  # the step of its first token
    ended: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        oracle = CountingOracle(pages=self.pages, page_size=PAGE_SIZE, vocab_size=VOCAB, eos_ids=(0,))
        self.machine = Machine(Engine(oracle, EngineConfig(max_rows=ROWS, max_len=4_000)), Characters())

    def submit(self, name: str, segment: Segment) -> None:
        def emit(event: Event) -> None:
            if isinstance(event, Delta):
                self.first.setdefault(name, self.machine.steps)

        self.machine.submit(segment, emit, lambda: self.ended.update({name: self.machine.steps}))


def mixed(pages: int, batch: int, priority: int) -> tuple[list[int], int, Bench]:
    """Steps to the first token of chats that come beside a batch; when the batch has ended."""
    bench = Bench(pages)
    for number in range(batch):
        bench.submit(f"batch {number}", text(f"batch {number}", TOKENS))
    begun: dict[str, int] = {}
    while not bench.machine.idle or len(begun) < CHATS:
        if len(begun) < CHATS and bench.machine.steps % 23 == 0:
            name = f"chat {len(begun)}"
            begun[name] = bench.machine.steps
            bench.submit(name, text(name, CHAT_TOKENS, priority))
        bench.machine.step()
    assert len(bench.ended) == batch + CHATS
    waits = sorted(bench.first[name] - step for name, step in begun.items())
    last = max((step for name, step in bench.ended.items() if name.startswith("batch")), default=0)
    return waits, last, bench


@pytest.mark.slow
@pytest.mark.parametrize("pages", [4_000, 16 * 72 // PAGE_SIZE + 40])
def test_a_chat_goes_before_a_batch(pages: int) -> None:
    calm, _, _ = mixed(pages, 0, 0)
    late, without, _ = mixed(pages, BATCH, 0)
    waits, last, bench = mixed(pages, BATCH, 1)
    assert late[-1] > 20 * calm[-1]  # without a priority it waits for the batch
    assert waits[-1] <= 3 * calm[-1]
    assert last <= 1.05 * without
    assert bench.machine.engine.queue.preempted > 0


@pytest.mark.slow
def test_a_lower_priority_goes_last_and_ends() -> None:
    bench = Bench(4_000)
    for number in range(40):
        bench.submit(f"low {number}", text(f"low {number}", TOKENS, -1))
    for _ in range(3):
        bench.machine.step()
    for number in range(40):
        bench.submit(f"usual {number}", text(f"usual {number}", TOKENS))
    while not bench.machine.idle:
        bench.machine.step()
    usual, low = (sorted(s for n, s in bench.ended.items() if n.startswith(kind)) for kind in ("usual", "low"))
    assert usual[-1] <= low[0] + TOKENS
    assert len(low) == len(usual) == 40


def begun_between(share: Callable[[str], str]) -> int:
    """Texts of one user that begin between the arrival of another's ten and the last of these."""
    bench = Bench(4_000)
    for number in range(150):
        bench.submit(f"one {number}", text(f"one {number}", TOKENS, share=share("one")))
    for _ in range(50):
        bench.machine.step()
    arrived = bench.machine.steps
    for number in range(10):
        bench.submit(f"two {number}", text(f"two {number}", TOKENS, share=share("two")))
    while not bench.machine.idle:
        bench.machine.step()
    last = max(step for name, step in bench.first.items() if name.startswith("two"))
    return sum(arrived < step <= last for name, step in bench.first.items() if name.startswith("one"))


@pytest.mark.slow
def test_each_has_an_equal_share() -> None:
    assert begun_between(lambda user: "") > 100
    assert begun_between(lambda user: user) <= 10 + 2 * ROWS


def test_nobody_saves_up() -> None:
    fair = FairShare()
    assert [fair.tag("a", 1) for _ in range(3)] == [0, 1, 2]
    fair.began(2)
    assert fair.tag("b", 4) == 2  # and not 0
    assert fair.tag("b", 1) == 6


def test_a_turn_goes_through_the_socket() -> None:
    segment = text("a", 3, -7, "user")
    command = wire.decode_command(wire.encode_submit(1, segment))
    assert isinstance(command, wire.Submit)
    assert wire.decode_segment(command) == segment
