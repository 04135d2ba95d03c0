"""Constraints whose calls take long: their rows wait, others go on; calls without an end are given up."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Any

import pytest

from sglc.errors import RunError, SglcError
from sglc.ir.plan.segment import ExtendNode, OpenNode
from sglc.ir.sampling import Sampling
from sglc.runtime.constraints import give_way
from sglc.runtime.constraints.grammar_matcher import XGrammarMatcher
from sglc.runtime.constraints.protocol import Constraint
from sglc.runtime.engine import lookahead, matcher_threads
from sglc.runtime.engine.matcher_threads import MatcherThreads
from sglc.runtime.step import I32, Step
from tests.runtime import test_engine, test_segments
from tests.runtime.soak import SlowAutomaton
from tests.runtime.test_constrained import CONSTRAINTS, PIECES
from tests.runtime.test_engine import EOS, LONG
from tests.runtime.test_grammar import LETTERS
from tests.runtime.test_segments import gen
from tests.waiting import until

PATTERN = "[ab]é{3}[0-9]{2}(a|b)*!"
_BLOCK = bytes(1 << 20)


class Released(threading.Event):
    """Until it is set, `work` takes a processor, and lets other threads go on."""

    def work(self) -> None:
        while not self.is_set():
            hashlib.sha256(_BLOCK)


class Stuck(SlowAutomaton):
    """Its masks behind the `first` ones never come until they are released."""

    def __init__(self, pattern: str, first: int) -> None:
        super().__init__(CONSTRAINTS.regex(pattern))
        self.left = first
        self.released = Released()

    def bits(self, state: int) -> I32:
        self.left -= 1
        if self.left < 0:
            self.released.work()
        return super().bits(state)


class Bench(test_engine.Bench):
    def slow(self, pattern: str = PATTERN, *, seed: int = 1, most: int = 30) -> int:
        return self.held(SlowAutomaton(CONSTRAINTS.regex(pattern)), seed=seed, most=most)

    def held(self, constraint: SlowAutomaton, *, seed: int = 1, most: int = 30) -> int:
        handle = self.engine.extend(None, LONG[:9])
        return self.engine.gen(handle, Sampling(max_tokens=most), [seed], eos_ids=EOS, constraint=constraint)

    def until(self, done: Callable[[], object]) -> None:
        def stepped() -> bool:
            self.step()
            return bool(done())

        until(stepped)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 3])
def test_a_row_alone_loses_no_step(depth: int) -> None:
    for seed in range(8):
        steps, made = [], []
        for slow in (False, True):
            bench = Bench(depth=depth)
            automaton = CONSTRAINTS.regex(PATTERN)
            handle = bench.engine.extend(None, LONG[:9])
            constraint = SlowAutomaton(automaton) if slow else automaton
            request = bench.engine.gen(
                handle, Sampling(max_tokens=30), [seed], eos_ids=EOS, constraint=constraint
            )
            bench.run()
            steps.append(len(bench.oracle.steps))
            made.append(bench.samples(request))
        assert made[0] == made[1]
        assert steps[0] == steps[1]


@contextmanager
def stuck_at_once(monkeypatch: pytest.MonkeyPatch, first: int) -> Iterator[tuple[Bench, Stuck, int]]:
    """A bench with a sample that gets stuck."""
    monkeypatch.setattr(lookahead, "_MAY_TAKE_S", 0.05)
    bench, constraint = Bench(depth=2), Stuck("[ab]{20}", first)
    try:
        yield bench, constraint, bench.held(constraint)
    finally:
        constraint.released.set()


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1, 5])
def test_a_call_without_an_end_fails_its_request_and_nobody_waits_for_it(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stuck_at_once(monkeypatch, first) as (bench, _, request):
        free = bench.gen(LONG[:12], Sampling(max_tokens=20, ignore_eos=True))
        others = [bench.slow(seed=seed) for seed in range(3)]
        bench.run()  # nobody has released anything
        *_, failed = bench.of(request)
        assert isinstance(failed, test_engine.RequestFailed)
        assert failed.error.code == "SGLC459"
        assert "takes too long" in failed.error.message
        assert bench.samples(free)[0][2] == "length"
        for seed, other in enumerate(others):
            truth = bench.oracle.continuation(
                LONG[:9], Sampling(max_tokens=30), seed, CONSTRAINTS.regex(PATTERN)
            )
            assert bench.samples(other) == [truth]
        assert bench.nothing_left()  # no page either, though the call still runs


@pytest.mark.slow
def test_others_go_on_while_a_call_runs() -> None:
    bench, constraint = Bench(depth=2), Stuck("[ab]{20}", 2)
    request = bench.held(constraint)
    try:
        bench.until(lambda: constraint.left < 0)
        free = bench.gen(LONG[:12], Sampling(max_tokens=20, ignore_eos=True))
        good = bench.slow()
        bench.until(lambda: bench.samples(free) and bench.samples(good))
        assert not bench.samples(request)
    finally:
        constraint.released.set()
    bench.run()
    truth = bench.oracle.continuation(LONG[:9], Sampling(max_tokens=30), 1, CONSTRAINTS.regex("[ab]{20}"))
    assert bench.samples(request) == [truth]


@pytest.mark.slow
def test_every_step_takes_a_free_row_on_while_another_row_is_late() -> None:
    bench, constraint = Bench(), Stuck("[ab]{20}", 2)
    bench.held(constraint)
    try:
        bench.until(lambda: constraint.left < 0)
        bench.gen(LONG[:12], Sampling(max_tokens=20, ignore_eos=True))
        bench.step()
        for _ in range(18):
            before = len(bench.oracle.steps)
            bench.step()
            assert len(bench.oracle.steps) == before + 1
            assert bench.oracle.steps[-1].rows.size == 1
    finally:
        constraint.released.set()
    bench.run()
    assert bench.nothing_left()


def test_what_is_aborted_while_it_is_late_gives_its_pages_back_at_once() -> None:
    bench, constraint = Bench(), Stuck("[ab]{20}", 2)
    request = bench.held(constraint)
    try:
        bench.until(lambda: constraint.left < 0)
        bench.engine.abort(request)
        assert bench.engine.idle
        assert bench.nothing_left()
    finally:
        constraint.released.set()


# -- what a generation is held to is read, or built


@contextmanager
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[test_segments.Bench, Released]]:
    """A machine to which no constraint comes until it is released."""
    bench, released = test_segments.Bench(), Released()
    constraints = bench.machine.model.constraints
    original = constraints.of

    def of(sampling: Sampling) -> Constraint | None:
        if not constraints.at_hand(sampling):
            released.work()
        return original(sampling)

    monkeypatch.setattr(constraints, "of", of)
    try:
        yield bench, released
    finally:
        released.set()


def stepped_until(bench: test_segments.Bench, done: Callable[[], object]) -> None:
    def stepped() -> bool:
        bench.machine.step()
        return bool(done())

    until(stepped)


@pytest.mark.slow
@pytest.mark.parametrize("form", [{"regex": "[b-d]{4}"}, {"ebnf": 'root ::= [b-d] [b-d] "bd"'}], ids=str)
def test_nobody_waits_while_a_form_is_read(form: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with unread(monkeypatch) as (bench, released):
        bench.submit(OpenNode(), ExtendNode(0, ("cd",)), gen(1, **form), name="held")
        bench.submit(OpenNode(), ExtendNode(0, ("cd",)), gen(1), name="free")
        stepped_until(bench, lambda: "free" in bench.ended)
        assert "held" not in bench.ended
        released.set()
        bench.drain()
        assert re.fullmatch("[b-d]{4}", bench.done("held")[2].samples[0].text)
        # From then on it is there, and nothing is waited for.
        released.clear()
        again = bench.run(OpenNode(), ExtendNode(0, ("cd",)), gen(1, **form), name="again")
        assert again[2].samples == bench.done("held")[2].samples


def test_what_is_aborted_while_its_form_is_read_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    with unread(monkeypatch) as (bench, released):
        run = bench.submit(OpenNode(), ExtendNode(0, ("cd",)), gen(1, regex="[b-d]{4}"))
        bench.machine.abort(run)
        released.set()
        bench.drain()
        assert (bench.events, bench.machine.engine.steps) == ([], 0)


@pytest.mark.slow
def test_requests_of_one_form_share_what_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    form = Sampling(
        ebnf='root ::= "a" [b-d] [b-d]? "!" ("a" root "a"?)?'
    )  # one byte does not tell whose `a` it is
    first, second = LETTERS.of(form), LETTERS.of(form)
    assert first is not None
    assert second is not None
    a, b = (PIECES.index(letter) for letter in "ab")
    behind = [first.advance(first.start, a)]
    behind.append(first.advance(behind[0], b))
    masks = [first.mask(state) for state in (first.start, *behind)]
    assert first.ahead(first.start) == b"a"

    def unasked(self: XGrammarMatcher, byte: int = 0) -> None:
        raise AssertionError("it was looked at before")

    monkeypatch.setattr(XGrammarMatcher, "look", unasked)
    monkeypatch.setattr(XGrammarMatcher, "push", unasked)
    assert second.ahead(second.start) == b"a"
    states = [second.start, second.advance(second.start, a)]
    states.append(second.advance(states[1], b))
    assert [second.mask(state).tolist() for state in states] == [mask.tolist() for mask in masks]
    with pytest.raises(AssertionError):
        second.mask(second.advance(states[2], b))


# -- the threads themselves


class Asked:
    """Calls of threads, and what came of them, in order."""

    def __init__(self, threads: MatcherThreads) -> None:
        self.threads = threads
        self.given: list[Any] = []

    def begin(self, key: object, work: Callable[[], Any], *, urgent: bool = False) -> None:
        self.threads.begin(key, work, self.given.append, may_take_s=0.05, awaited=True, urgent=urgent)

    def all(self) -> list[Any]:
        """What all have given."""

        def over() -> bool:
            self.threads.wait(0.01, for_all=False)
            self.threads.deliver()
            return not self.threads.pending

        until(over)
        return self.given


@pytest.mark.slow
def test_calls_of_one_key_come_one_after_the_other() -> None:
    asked, running, most = Asked(MatcherThreads(threads=3)), [], []

    def call(key: int, number: int) -> tuple[int, int]:
        running.append(key)
        most.append(running.count(key))
        hashlib.sha256(_BLOCK)
        running.remove(key)
        return key, number

    for number in range(30):
        for key in (1, 2, 3):
            asked.begin(key, partial(call, key, number))
    given = asked.all()
    assert set(most) == {1}
    for key in (1, 2, 3):
        assert [number for which, number in given if which == key] == [*range(30)]


def test_errors_are_given_and_bugs_are_raised() -> None:
    asked = Asked(MatcherThreads())

    def refuses() -> None:
        raise RunError("SGLC459", "no")

    def breaks() -> None:
        raise ZeroDivisionError

    asked.begin(1, refuses)
    (error,) = asked.all()
    assert isinstance(error, RunError)
    asked.begin(1, breaks)
    with pytest.raises(ZeroDivisionError):
        asked.all()
    asked.begin(1, lambda: 5)
    assert asked.all()[-1] == 5


def test_what_is_dropped_is_not_given() -> None:
    asked, first = Asked(MatcherThreads(threads=1)), Released()
    asked.begin(1, first.work)
    asked.begin(1, lambda: "behind it")
    asked.begin(2, lambda: "another")
    asked.threads.drop(1)
    first.set()
    assert asked.all() == ["another"]


def test_a_key_is_begun_again_after_its_call_was_dropped() -> None:
    asked, first = Asked(MatcherThreads(threads=1)), threading.Event()
    asked.begin(0, first.wait)
    asked.begin(1, lambda: "dropped")
    asked.threads.drop(1)
    asked.begin(1, lambda: "again")
    first.set()
    assert asked.all() == [True, "again"]


def test_threads_rest_while_a_step_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of matchers, and no others: a step may look at a matcher, too."""
    monkeypatch.setattr(give_way, "_SLICE_S", 0.0)
    monkeypatch.setattr(give_way, "_REST_S", 60.0)
    asked = Asked(MatcherThreads(threads=1))
    told: list[str] = []

    def work() -> None:
        told.append("begun")
        give_way.pause()
        told.append("went on")

    with give_way.step():
        give_way.pause()
        asked.begin(1, work)
        until(lambda: told)
        time.sleep(0.01)
        assert told == ["begun"]
        with give_way.waiting():
            until(lambda: len(told) == 2)
    assert asked.all() == [None]
    assert told == ["begun", "went on"]


def test_a_thread_rests_again_while_a_step_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(give_way, "_SLICE_S", 0.0)
    rests: list[float] = []

    class NoStep(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            rests.append(timeout or 0.0)
            return super().wait(timeout)

    monkeypatch.setattr(give_way, "_NO_STEP", NoStep())
    asked = Asked(MatcherThreads(threads=1))
    with give_way.step():
        asked.begin(1, lambda: [give_way.pause() for _ in range(3)])
        until(lambda: len(rests) == 3)
    assert len(asked.all()) == 1
    assert rests == [give_way._REST_S] * 3


def test_what_nobody_wants_any_more_ends_between_two_calls() -> None:
    asked, begun = Asked(MatcherThreads(threads=1)), threading.Event()

    def work() -> None:
        begun.set()
        while True:
            give_way.pause()

    asked.begin(1, work)
    begun.wait()
    assert asked.threads._resting == 0
    asked.threads.drop(1)
    until(lambda: asked.threads._resting == 1)
    asked.begin(1, lambda: "another")
    assert asked.all() == ["another"]


@pytest.mark.parametrize(("many_s", "threads"), [(60.0, 1), (0.0, 3)])
def test_short_calls_are_one_thread_s_for_a_while(
    many_s: float, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as a thread shows itself between two of them, but not for ever."""
    monkeypatch.setattr(give_way, "last_shown_s", lambda: inf)
    monkeypatch.setattr(matcher_threads, "_MANY_S", many_s)
    asked, ends = Asked(MatcherThreads(threads=4)), [threading.Event() for _ in range(3)]
    for number, end in enumerate(ends):
        asked.begin(number, end.wait)

    def at_work() -> int:
        asked.threads.wait(0.002, for_all=False)
        return len(asked.threads.working)

    if threads == 1:
        assert {at_work() for _ in range(10)} == {1}
    else:
        until(lambda: at_work() == threads)
    for end in ends:
        end.set()
    assert asked.all() == [True] * 3


def test_a_thread_shows_itself_where_it_pauses() -> None:
    asked, before_s = Asked(MatcherThreads(threads=1)), time.perf_counter()
    give_way.pause()  # no thread of theirs
    assert give_way.last_shown_s() < before_s
    asked.begin(1, give_way.pause)
    asked.all()
    assert give_way.last_shown_s() > before_s


@pytest.mark.slow
def test_an_engine_says_when_it_makes_a_step_beside_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, constraint = Bench(), Stuck("[ab]{20}", 2)
    launch = bench.oracle.launch
    beside: list[tuple[bool, bool]] = []

    def told(step: Step) -> int:
        beside.append((bool(bench.engine.threads.pending), not give_way._NO_STEP.is_set()))
        return launch(step)

    monkeypatch.setattr(bench.oracle, "launch", told)
    bench.gen(LONG[:12])
    bench.run()
    assert set(beside) == {(False, False)}
    bench.held(constraint)
    try:
        free = bench.gen(LONG[:12], Sampling(max_tokens=20, ignore_eos=True))
        bench.until(lambda: bench.samples(free))
    finally:
        constraint.released.set()
    bench.run()
    assert (True, True) in beside
    assert (True, False) not in beside
    assert give_way._NO_STEP.is_set()


def test_what_is_urgent_comes_first() -> None:
    asked, begun, first = Asked(MatcherThreads(threads=1)), threading.Event(), threading.Event()

    def holds() -> None:
        begun.set()
        first.wait()

    asked.begin(0, holds)
    begun.wait()
    for number in range(1, 7):
        asked.begin(number, partial(int, number), urgent=number in (3, 5))
    first.set()
    assert asked.all() == [None, 3, 5, 1, 2, 4, 6]


@pytest.mark.slow
def test_few_threads_are_lost_and_others_take_their_place() -> None:
    threads = MatcherThreads(threads=1, most_lost=2)
    asked, stuck = Asked(threads), Released()
    try:
        for key in range(3):
            asked.begin(key, stuck.work)
            asked.begin(key, lambda: "behind it")
            asked.begin(7 + key, lambda: "another")
            given = asked.all()[3 * key :]
            errors = [each for each in given if isinstance(each, SglcError)]
            assert len(errors) == (2 if key < 2 else 3)
            assert given.count("another") == (key < 2)
        asked.begin(20, lambda: "no thread is left")
        assert isinstance(asked.all()[-1], SglcError)
    finally:
        stuck.set()
    until(lambda: not threads.lost)
    asked.begin(21, lambda: "they have come back")
    assert asked.all()[-1] == "they have come back"
