"""Holds, and the order in which programs have their turn: on the engine, and on segments."""

from __future__ import annotations

from sglc.ir.plan.events import GenDone
from sglc.ir.plan.segment import ExtendNode, KeepNode, NodeResult, OpenNode, ReleaseNode
from sglc.ir.sampling import Sampling
from sglc.runtime.engine.engine import Engine, EngineConfig, QueuePosition
from sglc.runtime.scheduler.critical_path import remaining_tokens
from sglc.runtime.scheduler.gap_stats import ToolLatencyStats
from sglc.runtime.scheduler.requests import RequestDone
from tests.reference.oracle import Oracle
from tests.runtime.test_segments import Bench, gen

ONE = Sampling(max_tokens=1, ignore_eos=True)
SIZE = 4


class Pool:
    """An engine of 8 pages whose steps take 4 tokens: what comes back within 8 steps is held."""

    def __init__(self, max_rows: int = 4) -> None:
        self.oracle = Oracle(pages=8, page_size=SIZE, vocab_size=99)
        self.engine = Engine(self.oracle, EngineConfig(token_budget=4, max_rows=max_rows, max_len=32))

    def text(self, begin: int) -> tuple[int, ...]:
        return tuple(range(begin, begin + 16))

    def kept(self, begin: int, steps: int, place: int) -> int:
        """A handle on 16 tokens, four pages, which the program at `place` comes back to."""
        handle = self.engine.extend(None, self.text(begin))
        self.engine.warm(handle)
        self.drain()
        self.engine.hold(handle, steps, place)
        return handle

    def drain(self) -> None:
        while not self.engine.idle:
            self.engine.step()

    def known(self, begin: int) -> int:
        tree = self.engine.tree
        return tree.match(self.text(begin), 16, tree.root).length

    def ask(self, begin: int, place: int, tokens: int = 1) -> int:
        sampling = Sampling(max_tokens=tokens, ignore_eos=True)
        handle = self.engine.extend(None, self.text(begin))
        return self.engine.gen(handle, sampling, (1,), eos_ids=(), turn=QueuePosition(place))

    def until_done(self, request: int) -> int:
        """Steps until it is done."""
        for step in range(1, 200):
            if any(isinstance(e, RequestDone) and e.request == request for e in self.engine.step()):
                return step
        raise AssertionError("it starves")


def test_who_is_behind_waits_for_what_is_held_while_others_run() -> None:
    pool = Pool()
    pool.kept(0, 2, place=1)
    busy = pool.ask(0, place=2, tokens=12)  # runs on what is held itself
    pool.engine.step()
    pool.ask(40, place=3)
    for _ in range(4):
        pool.engine.step()
        assert pool.known(0) == 16
        assert pool.known(40) == 0
    pool.until_done(busy)
    pool.drain()
    assert pool.known(40) >= 12


def test_who_is_ahead_takes_what_is_held() -> None:
    pool = Pool()
    pool.kept(0, 2, place=5)
    pool.kept(20, 2, place=3)
    pool.until_done(pool.ask(40, place=4))
    assert pool.known(20) == 16
    assert pool.known(0) < 16


def test_nothing_is_held_when_nobody_else_can_run() -> None:
    pool = Pool()
    pool.kept(0, 2, place=1)
    pool.kept(20, 2, place=2)
    pool.until_done(pool.ask(40, place=3))
    assert pool.known(0) == 16  # of the two, the one that is behind gave up


def test_a_hold_ends_by_itself() -> None:
    pool = Pool()
    pool.kept(0, 2, place=1)
    assert pool.engine.reservations.longest == 8
    pool.until_done(pool.ask(0, place=2, tokens=12))
    assert not pool.engine.reservations.nodes()


def test_who_stays_away_for_long_is_not_held() -> None:
    pool = Pool()
    pool.kept(0, 9, place=1)
    assert not pool.engine.reservations.nodes()


def test_a_program_waits_for_none_that_begins_after_it() -> None:
    pool = Pool(max_rows=1)
    for number in range(20):
        pool.ask(3 * number, place=100 + number, tokens=2)
    pool.engine.step()
    late = pool.ask(70, place=1)
    # One row runs: at most 5 steps for the one that has begun, and 5 for the late one.
    assert pool.until_done(late) <= 10


def test_of_one_program_the_longest_way_goes_first() -> None:
    pool = Pool(max_rows=1)
    pool.ask(0, place=1)
    handles = [pool.engine.extend(None, pool.text(begin)) for begin in (20, 40)]
    short, long = (
        pool.engine.gen(handle, ONE, (1,), eos_ids=(), turn=QueuePosition(2, left))
        for handle, left in zip(handles, (1, 50), strict=True)
    )
    pool.until_done(long)
    assert short in pool.engine._requests


def test_remaining_tokens_follow_the_longest_way() -> None:
    nodes = (
        OpenNode(), ExtendNode(0, ("a",)), gen(1, max_tokens=5), gen(1, max_tokens=30),
        ExtendNode(2, (NodeResult(3),)), gen(4, max_tokens=7), ReleaseNode(9),
    )  # fmt: skip
    readers = [[1], [2, 3], [4], [4], [5], [], []]
    assert remaining_tokens(nodes, readers) == [37, 37, 12, 37, 7, 7, 0]


def test_absences_are_learnt_by_place() -> None:
    absences = ToolLatencyStats()
    tool, other = ("f", "x"), ("f", "y")
    assert absences.expected(tool) == 0
    absences.ended(tool, 10)
    absences.ended(tool, 20)
    assert (absences.expected(tool), absences.expected(other)) == (15, 0)
    for _ in range(100):
        absences.ended(tool, 2)
    assert absences.expected(tool) == 2


def test_a_program_keeps_its_place_and_its_kv_between_segments() -> None:
    bench = Bench()
    begin = (OpenNode(), ExtendNode(0, ("abcdefgh",)), gen(1))
    bench.run(*begin, KeepNode(2, 7), name="first")
    (held,) = bench.machine.engine.reservations.nodes()
    assert held.end >= 8
    bench.run(*begin, name="another program")
    done = bench.run(OpenNode(7), ExtendNode(0, ("cd",)), gen(1), ReleaseNode(7), name="second")
    assert isinstance(done[2], GenDone)
    assert done[2].usage.computed == 3  # the last token of the text before, and two new ones
    assert not bench.machine.engine.reservations.nodes()


def test_the_next_segment_of_a_program_goes_before_a_new_program() -> None:
    bench = Bench()
    begin = (OpenNode(), ExtendNode(0, ("abcdefgh",)), gen(1))
    bench.run(*begin, KeepNode(2, 7), name="old")
    engine = bench.machine.engine
    bench.submit(*begin, name="new")
    bench.submit(OpenNode(7), ExtendNode(0, ("cd",)), gen(1), ReleaseNode(7), name="old")
    turns = [part.request.turn for part in engine.queue.parts]
    assert [turn.place for turn in turns] == sorted(turn.place for turn in turns)
    assert len({turn.place for turn in turns}) == 2
    assert engine.queue.parts[0].ids[8:9] != ()
    bench.drain()
