"""The engine on the oracle: what is computed, counted, reported and given back, case by case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from sglc.errors import BackendError, RunError
from sglc.ir.sampling import Sampling
from sglc.runtime.cache.page_tree import Key, PageNode, PrefixMatch, RadixTree
from sglc.runtime.engine.engine import (
    Engine,
    EngineConfig,
    EngineEvent,
    PromptScored,
    RequestDone,
    RequestFailed,
    SampleDone,
    ScoreDone,
    Token,
)
from sglc.runtime.executor.executor_state import ExecutorState
from sglc.runtime.scheduler.queue import RequestQueue
from sglc.runtime.scheduler.samples import listed
from sglc.runtime.step import Step, StepCost, StepResult
from tests.depth import few
from tests.reference.oracle import Oracle

EOS = (3,)
LONG = tuple(4 + i * 7 % 23 for i in range(64))  # no end id in it


class Recorder(Oracle):
    """An oracle that remembers its steps and fails when told to."""

    def __init__(self, *, pages: int, page_size: int, depth: int, trees: bool = True) -> None:
        super().__init__(pages=pages, page_size=page_size, depth=depth, eos_ids=EOS, trees=trees)
        self.steps: list[Step] = []
        self.drained: list[int] = []  # before the launch of each of them
        self.fail_launch = False
        self.fail_drain = False

    def launch(self, step: Step) -> int:
        if self.fail_launch:
            self.fail_launch = False
            raise RuntimeError("out of memory")
        self.steps.append(step)
        self.drained.append(self._drained)
        return super().launch(step)

    def drain(self, ticket: int) -> StepResult:
        result = super().drain(ticket)
        if self.fail_drain:
            self.fail_drain = False
            raise RuntimeError("device lost")
        return result


@dataclass
class Bench:
    """An engine, its executor, and everything it reported."""

    page_size: int = 4
    pages: int = 100
    depth: int = 1
    token_budget: int = 256
    max_rows: int = 8
    max_len: int = 200
    cache: bool = True
    trees: bool = True
    cost: StepCost | None = None
    events: list[EngineEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.oracle = Recorder(pages=self.pages, page_size=self.page_size, depth=self.depth, trees=self.trees)
        self.engine = Engine(
            self.oracle,
            EngineConfig(
                token_budget=self.token_budget,
                max_rows=self.max_rows,
                cache=self.cache,
                max_len=self.max_len,
                cost=self.cost,
            ),
        )

    def gen(
        self,
        ids: Sequence[int],
        sampling: Sampling | None = None,
        seeds: Sequence[int] = (1,),
        *,
        watch: bool = True,
    ) -> int:
        sampling = sampling or Sampling(max_tokens=6, ignore_eos=True)
        return self.engine.gen(self.engine.extend(None, ids), sampling, seeds, eos_ids=EOS, watch=watch)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.events += self.engine.step()

    def run(self) -> None:
        for _ in range(2_000):
            if self.engine.idle:
                return
            self.step()
        raise AssertionError("the engine does not come to an end")

    def of(self, request: int) -> list[EngineEvent]:
        return [event for event in self.events if event.request == request]

    def usage(self, request: int) -> tuple[int, int, int]:
        """Cached, computed, completion."""
        (done,) = [event for event in self.of(request) if isinstance(event, RequestDone)]
        assert done.prompt_tokens == done.cached_tokens + done.computed_tokens
        return done.cached_tokens, done.computed_tokens, done.completion_tokens

    def samples(self, request: int) -> list[tuple[tuple[int, ...], tuple[float, ...], str]]:
        done = [event for event in self.of(request) if isinstance(event, SampleDone)]
        return [(event.ids, event.logprobs, event.finish) for event in sorted(done, key=lambda e: e.sample)]

    def nothing_left(self) -> bool:
        allocator = self.engine.allocator
        return allocator.reserved == 0 and allocator.pool.free + allocator.tree.evictable == self.pages


PLAIN = Sampling(max_tokens=6, ignore_eos=True)


@pytest.mark.parametrize("length", few([1, 3, 4, 5, 7, 8, 9, 16], 4))
@pytest.mark.parametrize("max_tokens", few([1, 4, 5], 2))
@pytest.mark.parametrize("page_size", [1, 4])
def test_page_boundaries(length: int, max_tokens: int, page_size: int) -> None:
    bench = Bench(page_size=page_size)
    sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
    first = bench.gen(LONG[:length], sampling)
    bench.run()
    again = bench.gen(LONG[:length], sampling)
    bench.run()
    truth = bench.oracle.continuation(LONG[:length], sampling, 1)
    assert bench.samples(first) == bench.samples(again) == [truth]
    assert bench.usage(first) == (0, length, max_tokens)
    assert bench.usage(again) == (length - 1, 1, max_tokens)
    assert bench.nothing_left()


def test_tokens_are_reported_one_by_one_in_order() -> None:
    bench = Bench(depth=3)
    request = bench.gen(LONG[:9], PLAIN)
    bench.run()
    tokens = [event for event in bench.of(request) if isinstance(event, Token)]
    ids, logprobs, _ = bench.oracle.continuation(LONG[:9], PLAIN, 1)
    assert [(t.sample, t.id, t.logprob) for t in tokens] == [
        (0, i, p) for i, p in zip(ids, logprobs, strict=True)
    ]
    assert isinstance(bench.of(request)[-2], SampleDone)
    assert isinstance(bench.of(request)[-1], RequestDone)


def test_the_next_turn_computes_only_what_is_new() -> None:
    bench = Bench(page_size=16)
    handle = bench.engine.extend(None, LONG[:21])
    bench.engine.gen(handle, PLAIN, [1], eos_ids=EOS)
    bench.run()
    (ids, _, _), *_ = bench.samples(1)
    turn = bench.engine.extend(handle, (*ids, 5, 6, 7))
    bench.engine.gen(turn, PLAIN, [2], eos_ids=EOS)
    bench.run()
    # The last sampled id has no KV, then the literal.
    assert bench.usage(2) == (21 + 5, 1 + 3, 6)


def test_an_end_leaves_no_id_without_kv_behind() -> None:
    bench = Bench(page_size=16, depth=2)
    sampling = Sampling(max_tokens=60, stop_token_ids=tuple(range(0, 29, 4)))
    request = bench.gen(LONG[:21], sampling, [5])
    bench.run()
    ((ids, _, finish),) = bench.samples(request)
    assert finish == "stop"
    assert bench.samples(request) == [bench.oracle.continuation(LONG[:21], sampling, 5)]
    assert bench.usage(request)[2] == len(ids) + 1
    turn = bench.gen((*LONG[:21], *ids, 5, 6, 7))
    bench.run()
    assert bench.usage(turn)[:2] == (21 + len(ids), 3)


@pytest.mark.parametrize(("length", "looked"), [(600, 5), (10, 1)])
def test_while_a_long_step_runs_commands_are_looked_for_until_it_is_over(length: int, looked: int) -> None:
    """A short one is waited for as soon as there is none."""
    bench = Bench(pages=400, token_budget=1000, max_len=1000)
    looks: list[bool] = []
    bench.oracle.ready = lambda ticket: len(looks) == 5  # type: ignore[method-assign]

    def meanwhile() -> bool:
        looks.append(True)
        return False

    bench.gen([1] * length, PLAIN)
    bench.events += bench.engine.step(meanwhile)
    assert len(looks) == looked


@pytest.mark.parametrize(
    ("token_budget", "max_rows", "more"),
    [
        (800, 64, 32 - 10),  # twice as many as began, of which ten are there
        (300, 64, 30 - 10),  # that fill a step
        (200, 64, 16),  # some are always obeyed: others may be ended by them
        (800, 16, 32),  # those that wait have no row
    ],
)
def test_commands_before_a_step_are_those_that_it_has_rows_for(
    token_budget: int, max_rows: int, more: int
) -> None:
    """So as many are there as fill it, and it is launched before the device is done with the one before."""
    bench = Bench(depth=2, token_budget=token_budget, max_rows=max_rows)
    over = False
    bench.oracle.ready = lambda ticket: over  # type: ignore[method-assign]
    for seed in range(26):
        bench.gen([seed, *LONG[:9]], Sampling(max_tokens=1), [seed])
    # Nothing is in flight: they may wait for long.
    assert (bench.engine.most_commands, bench.engine.starves) == (16, False)
    bench.step()
    assert bench.engine.most_commands == more
    assert not bench.engine.starves
    over = True
    assert bench.engine.starves == (max_rows > 16)
    bench.run()
    assert not bench.engine.starves


@pytest.mark.parametrize("length", [10, 32, 35])
@pytest.mark.parametrize("depth", [1, 3])
def test_equal_prompts_at_once_are_computed_once(length: int, depth: int) -> None:
    bench = Bench(page_size=16, depth=depth)
    sampling = Sampling(max_tokens=1)
    requests = [bench.gen(LONG[:length], sampling, [seed]) for seed in range(5)]
    bench.run()
    assert [bench.usage(request)[:2] for request in requests] == [(0, length)] + 4 * [(length - 1, 1)]
    assert bench.oracle.extended == length + 4
    for seed, request in enumerate(requests):
        assert bench.samples(request) == [bench.oracle.continuation(LONG[:length], sampling, seed)]


def test_questions_behind_one_prefix_wait_for_it_and_then_run_together() -> None:
    bench = Bench(page_size=4, max_rows=8)
    requests = [bench.gen((*LONG[:33], 10 + i, 11, 12), Sampling(max_tokens=1)) for i in range(8)]
    bench.run()
    assert [bench.usage(request)[:2] for request in requests] == [(0, 36)] + 7 * [(33, 3)]
    assert [step.rows.size for step in bench.oracle.steps] == [1, 7]


def test_a_short_common_beginning_is_not_worth_waiting() -> None:
    bench = Bench(page_size=16)
    for i in range(4):
        bench.gen((4, *((5 + i + j) % 23 + 4 for j in range(25))), Sampling(max_tokens=1))
    bench.run()
    assert [step.rows.size for step in bench.oracle.steps] == [4]


def test_what_a_batch_begins_with_is_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, walked = Bench(pages=2_000, max_rows=64, max_len=400, token_budget=2_000), 0
    match = RadixTree.match

    def counted(self: RadixTree, ids: Key, limit: int, start: PageNode) -> PrefixMatch:
        nonlocal walked
        found = match(self, ids, limit, start)
        walked += found.node.end - start.end
        return found

    prefixes = [bench.engine.prefix(None, (4 + first, *LONG, *LONG)) for first in range(4)]
    handles = [bench.engine.extend(prefix, (5 + row, 4, 4, 4)) for row in range(8) for prefix in prefixes]
    for handle in handles:  # those of one prefix are not one behind the other
        bench.engine.gen(handle, PLAIN, [1], eos_ids=EOS)
    monkeypatch.setattr(RadixTree, "match", counted)
    bench.run()
    assert 0 < walked < 2 * sum(len(prefix.ids) for prefix in prefixes)  # of eight rows each


@pytest.mark.parametrize("held", ["fork", "nothing behind it"])
def test_what_is_taken_from_a_prompt_whose_row_still_runs_keeps_it(held: str) -> None:
    bench = Bench(pages=24)
    engine = bench.engine
    handle = engine.extend(None, LONG[:16])
    engine.gen(handle, Sampling(max_tokens=8, ignore_eos=True), [1], eos_ids=EOS)
    bench.step(3)
    kept = engine.fork(handle, 1)[0] if held == "fork" else engine.extend(handle, ())
    engine.release(handle)
    bench.run()
    for other in range(6):
        warmed = engine.extend(None, (20 + other, *LONG[:15]))
        engine.warm(warmed)
        bench.run()
        engine.forget(warmed)
    again = engine.gen(kept, Sampling(max_tokens=1, ignore_eos=True), [1], eos_ids=EOS)
    bench.run()
    assert bench.usage(again)[0] == 15


@pytest.mark.parametrize("length", few([1, 2, 16, 17, 19, 32], 3))
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("depth", [1, 4])
def test_samples_share_their_prompt(length: int, cache: bool, depth: int) -> None:
    bench = Bench(page_size=16, cache=cache, depth=depth)
    sampling = Sampling(max_tokens=5, n=4, ignore_eos=True)
    request = bench.gen(LONG[:length], sampling, [10, 11, 12, 13])
    bench.run()
    truth = [bench.oracle.continuation(LONG[:length], sampling, seed) for seed in (10, 11, 12, 13)]
    assert bench.samples(request) == truth
    assert bench.usage(request) == (0, length, 20)
    # The prompt, its last id once more for three samples, and four decode steps of each.
    assert bench.oracle.extended == length + 3 + 4 * 4
    assert bench.nothing_left()
    assert cache or bench.engine.allocator.pool.free == bench.pages


def test_more_samples_than_rows() -> None:
    bench = Bench(max_rows=2, token_budget=3)
    sampling = Sampling(max_tokens=3, n=5, ignore_eos=True)
    request = bench.gen(LONG[:9], sampling, range(5))
    bench.run()
    truth = [bench.oracle.continuation(LONG[:9], sampling, seed) for seed in range(5)]
    assert bench.samples(request) == truth
    assert bench.usage(request)[:2] == (0, 9)


def test_without_a_cache_nothing_outlives_its_request() -> None:
    bench = Bench(cache=False)
    for _ in range(2):
        request = bench.gen(LONG[:9])
        bench.run()
        assert bench.usage(request)[:2] == (0, 9)
        assert bench.engine.allocator.pool.free == bench.pages


CHOICES = [(7,), (7, 8), (7, 8, 9), (7, 8), (20, 21, 22, 23, 24), ()]


@pytest.mark.parametrize("length", [1, 4, 6])
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("token_budget", [2, 256])
def test_score_single_equal_and_prefix_choices(length: int, cache: bool, token_budget: int) -> None:
    bench = Bench(cache=cache, token_budget=token_budget, depth=2)
    handle = bench.engine.extend(None, LONG[:length])
    request = bench.engine.score(handle, CHOICES)
    bench.run()
    scored, done = bench.of(request)
    assert scored == ScoreDone(request, tuple(bench.oracle.scores(LONG[:length], c) for c in CHOICES))
    assert done == RequestDone(request, length, 0, length, 2 + 4, 0)  # (7, 8) and (20, 21, 22, 23)
    # The choices are not kept, the prompt is.
    fresh = bench.gen((*LONG[:length], 7, 8, 9, 10))
    bench.run()
    assert bench.usage(fresh)[0] == (length if cache else 0)


def test_single_ids_are_scored_in_one_step() -> None:
    bench = Bench()
    bench.engine.score(bench.engine.extend(None, LONG[:10]), [(i,) for i in range(20)])
    bench.run()
    assert [int(step.starts[-1]) for step in bench.oracle.steps] == [10]


def test_a_known_prompt_and_its_choices_are_one_step() -> None:
    bench = Bench()
    handle = bench.engine.extend(None, LONG[:10])
    bench.engine.warm(handle)
    bench.run()
    bench.engine.score(handle, [(5, 6), (7, 8, 9)])
    bench.run()
    assert [int(step.starts[-1]) for step in bench.oracle.steps] == [10, 1 + 1 + 2]


def test_a_prompt_and_its_choices_are_one_row_of_one_step() -> None:
    bench = Bench()
    request = bench.engine.score(bench.engine.extend(None, LONG[:10]), [(5, 6, 7, 8), (5, 6, 9), (5, 1), (2,)])
    bench.run()
    (step,) = bench.oracle.steps
    assert step.ids.tolist() == [*LONG[:10], 5, 6, 7]  # each id once, the last ones are only scored
    assert sorted(step.score_ids.tolist()) == sorted([2, 5, 1, 6, 7, 9, 8])  # and that once too
    assert bench.of(request)[1] == RequestDone(request, 10, 0, 10, 3, 0)


def test_an_id_sees_those_above_it_alone() -> None:
    bench = Bench(page_size=4)
    handle = bench.engine.extend(None, LONG[:6])
    request = bench.engine.score(handle, [(1, 2, 3), (1, 4, 5), (6, 7, 8), (1, 2, 9, 9, 9)])
    bench.run()
    (step,) = bench.oracle.steps
    (tree,) = step.trees
    assert step.ids[6:].tolist() == [1, 2, 9, 9, 4, 6, 7]
    assert (tree.row, tree.base) == (0, 6)
    assert tree.depths.tolist() == [0, 1, 2, 3, 1, 0, 1]
    assert tree.until.tolist() == [5, 4, 4, 4, 5, 7, 7]
    batch = ExecutorState(4).expand(step)
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 7, 6, 7]
    assert bench.usage(request)[:2] == (0, 6)


def test_without_branching_rows_each_end_is_a_chain() -> None:
    bench = Bench(trees=False)
    choices = [(5, 6, 7), (5, 6, 8, 9), (5, 6), (5, 6, 8), (1, 2, 3), (4,)]
    request = bench.engine.score(bench.engine.extend(None, LONG[:10]), choices)
    bench.run()
    first, then = bench.oracle.steps
    assert (first.trees, then.trees) == ((), ())
    # (5, 6) scores what follows it in three choices.
    assert first.ids.tolist() == [*LONG[:10], 1, 2]
    assert then.ids.tolist() == [5, 6, 8]
    scored, done = bench.of(request)
    assert scored == ScoreDone(request, tuple(bench.oracle.scores(LONG[:10], choice) for choice in choices))
    assert done == RequestDone(request, 10, 0, 10, 5, 0)


def test_choices_without_room_behind_the_prompt_follow_it() -> None:
    bench = Bench(page_size=4, pages=5)
    choices = [tuple(range(first, first + 6)) for first in (4, 10, 16)]
    request = bench.engine.score(bench.engine.extend(None, LONG[:10]), choices)
    bench.run()
    # Five pages have room for two of the choices behind the prompt.
    assert [step.ids.tolist() for step in bench.oracle.steps] == [
        [*LONG[:10], *range(4, 9), *range(10, 15)],
        [*range(16, 21)],
    ]
    assert bench.of(request)[0] == ScoreDone(request, tuple(bench.oracle.scores(LONG[:10], c) for c in choices))
    assert bench.of(request)[1] == RequestDone(request, 10, 0, 10, 15, 0)


def test_warm_then_gen() -> None:
    bench = Bench(page_size=16)
    handle = bench.engine.extend(None, LONG[:21])
    warm = bench.engine.warm(handle)
    bench.run()
    assert bench.of(warm) == [RequestDone(warm, 21, 0, 21, 0, 0)]
    again = bench.engine.warm(handle)
    bench.run()
    assert bench.of(again) == [RequestDone(again, 21, 21, 0, 0, 0)]
    branch = bench.engine.extend(handle, (1, 2))
    request = bench.engine.gen(branch, PLAIN, [1], eos_ids=EOS)
    bench.run()
    assert bench.usage(request)[:2] == (21, 2)


def test_warming_nothing_is_done_at_once() -> None:
    bench = Bench()
    warm = bench.engine.warm(bench.engine.extend(None, ()))
    bench.run()
    assert bench.of(warm) == [RequestDone(warm, 0, 0, 0, 0, 0)]
    assert bench.oracle.steps == []


def test_a_page_shared_in_part_is_copied() -> None:
    bench = Bench(page_size=16)
    bench.gen(LONG[:30])
    bench.run()
    request = bench.gen((*LONG[:23], 1, 2))
    bench.run()
    assert bench.usage(request)[:2] == (23, 2)
    assert bench.samples(request) == [bench.oracle.continuation((*LONG[:23], 1, 2), PLAIN, 1)]
    assert sum(len(step.copies) for step in bench.oracle.steps) == 1


def test_long_prompts_go_in_chunks_beside_decoding_rows() -> None:
    bench = Bench(token_budget=8)
    bench.gen(LONG[:4], Sampling(max_tokens=20, ignore_eos=True))
    bench.step()
    bench.gen(LONG[5:40], Sampling(max_tokens=1))
    bench.step(5)
    assert [int(step.starts[-1]) for step in bench.oracle.steps] == [4, 8, 8, 8, 8, 8]
    assert all(step.rows.size == 2 for step in bench.oracle.steps[1:])
    bench.run()
    assert bench.samples(2) == [bench.oracle.continuation(LONG[5:40], Sampling(max_tokens=1), 1)]


@pytest.mark.parametrize(
    ("depth", "out", "began"),
    [
        (2, 1, [16, 32, 64, 128, 60]),
        (1, 1, [16] * 18 + [12]),  # no step is in flight beside which the host could begin more
        (2, 40, [16] * 18 + [12]),  # from the second one on rows decode
    ],
)
def test_more_rows_begin_while_a_step_is_in_flight_and_nothing_decodes(
    depth: int, out: int, began: list[int]
) -> None:
    bench = Bench(depth=depth, pages=4_500, max_rows=300, token_budget=1024)
    for first in range(300):
        ids = (4 + first % 20, 4 + first // 20, 5, 6)
        bench.gen(ids, Sampling(max_tokens=out, ignore_eos=True), watch=False)
    bench.run()
    rows = [step.rows.size - step.decoding for step in bench.oracle.steps]
    assert [count for count in rows if count] == began


def test_pages_shared_with_a_row_that_is_deeper_in_the_tree() -> None:
    bench = Bench(page_size=4)
    bench.gen(LONG[:8], Sampling(max_tokens=20, ignore_eos=True), watch=False)
    bench.step(2)
    bench.gen((*LONG[:6], 5, 5), Sampling(max_tokens=20, ignore_eos=True), watch=False)
    bench.step()
    rows = bench.engine.rows
    assert rows.shared_pages[:2].tolist() == [0, 1]
    bench.run()


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_step_is_launched_before_the_one_before_it_is_drained(depth: int) -> None:
    bench = Bench(depth=depth)
    bench.gen(LONG[:4], Sampling(max_tokens=12, ignore_eos=True), watch=False)
    bench.run()
    ahead = [
        step.index - drained for step, drained in zip(bench.oracle.steps, bench.oracle.drained, strict=True)
    ]
    assert max(ahead) == depth
    assert ahead[depth:] == [depth] * (12 - depth)


def test_a_row_that_is_watched_is_one_step_ahead_at_most() -> None:
    bench = Bench(depth=4)
    bench.gen(LONG[:4], Sampling(max_tokens=20, ignore_eos=True), watch=False)
    bench.step(6)
    bench.gen(LONG[5:9], Sampling(max_tokens=3, ignore_eos=True))
    bench.run()
    ahead = [
        step.index - drained for step, drained in zip(bench.oracle.steps, bench.oracle.drained, strict=True)
    ]
    both = [i for i, step in enumerate(bench.oracle.steps) if step.rows.size == 2]
    assert all(ahead[i] <= 2 for i in both[1:])
    assert ahead[5] == ahead[-1] == 4


# -- cut, abort, release


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("length", [0, 1, 3])
def test_cut_drops_what_is_in_flight(depth: int, length: int) -> None:
    bench = Bench(depth=depth, page_size=4)
    sampling = Sampling(max_tokens=50, ignore_eos=True)
    request = bench.gen(LONG[:9], sampling)
    while sum(isinstance(event, Token) for event in bench.events) < 3:
        bench.step()
    bench.engine.cut(request, 0, length)
    bench.engine.cut(request, 0, 0)  # it has ended: no effect
    bench.run()
    ids, logprobs, _ = bench.oracle.continuation(LONG[:9], sampling, 1)
    assert bench.samples(request) == [(ids[:length], logprobs[:length], "stop")]
    assert bench.usage(request)[2] == length
    assert sum(isinstance(event, Token) for event in bench.events) == 3
    turn = bench.gen((*LONG[:9], *ids[:length], 5, 6))
    bench.run()
    written = 9 + length - (depth == 1 and length == 3)  # no step has read the last token yet
    assert bench.usage(turn)[:2] == (written, 9 + length + 2 - written)
    assert bench.nothing_left()


def test_cut_of_one_sample_leaves_the_others() -> None:
    bench = Bench(depth=4)
    sampling = Sampling(max_tokens=12, n=3, ignore_eos=True)
    request = bench.gen(LONG[:9], sampling, [1, 2, 3])
    while not any(isinstance(event, Token) and event.sample == 1 for event in bench.events):
        bench.step()
    bench.engine.cut(request, 1, 1)
    bench.run()
    truth = [bench.oracle.continuation(LONG[:9], sampling, seed) for seed in (1, 2, 3)]
    truth[1] = (truth[1][0][:1], truth[1][1][:1], "stop")
    assert bench.samples(request) == truth


@pytest.mark.parametrize("depth", few([1, 4], 1))
@pytest.mark.parametrize("kind", ["gen", "samples", "score", "warm"])
def test_abort_in_every_state(depth: int, kind: str) -> None:
    for steps in few(range(14), 7):
        bench = Bench(depth=depth, token_budget=8, max_rows=2, pages=12)
        handle = bench.engine.extend(None, LONG[:19])
        match kind:
            case "gen":
                request = bench.engine.gen(handle, PLAIN, [1], eos_ids=EOS)
            case "samples":
                sampling = Sampling(max_tokens=4, n=3, ignore_eos=True)
                request = bench.engine.gen(handle, sampling, [1, 2, 3], eos_ids=EOS)
            case "score":
                request = bench.engine.score(handle, [(4, 5, 6), (7, 8), (9, 10, 11)])
            case _:
                request = bench.engine.warm(handle)
        other = bench.gen((*LONG[:6], 1, 2, 3))
        bench.step(steps)
        before = len(bench.of(request))
        bench.engine.abort(request)
        bench.engine.abort(request)
        bench.run()
        assert len(bench.of(request)) == before, "an event after the abort"
        assert bench.samples(other) == [bench.oracle.continuation((*LONG[:6], 1, 2, 3), PLAIN, 1)]
        assert bench.nothing_left()
        again = bench.engine.gen(handle, PLAIN, [4], eos_ids=EOS)
        bench.run()
        assert bench.samples(again) == [bench.oracle.continuation(LONG[:19], PLAIN, 4)]


def test_abort_takes_back_events_not_reported_yet() -> None:
    bench = Bench()
    request = bench.gen(LONG[:9])
    bench.step(2)
    bench.engine.cut(request, 0, 1)
    bench.engine.abort(request)
    bench.run()
    assert all(isinstance(event, Token) for event in bench.events)


@pytest.mark.parametrize("steps", range(6))
def test_a_handle_may_be_released_while_its_request_runs(steps: int) -> None:
    bench = Bench(depth=2)
    handle = bench.engine.extend(None, LONG[:9])
    request = bench.engine.gen(handle, PLAIN, [1], eos_ids=EOS)
    bench.step(steps)
    bench.engine.release(handle)
    with pytest.raises(KeyError):
        bench.engine.ids(handle)
    bench.run()
    assert bench.samples(request) == [bench.oracle.continuation(LONG[:9], PLAIN, 1)]


def test_handles_name_sequences() -> None:
    bench = Bench()
    base = bench.engine.extend(None, (1, 2))
    one, two = bench.engine.fork(base, 2)
    longer = bench.engine.extend(one, (5,))
    bench.engine.release(base)
    assert bench.engine.ids(two) == (1, 2)
    assert bench.engine.ids(longer) == (1, 2, 5)
    assert bench.engine.fork(two, 0) == ()
    assert bench.engine.idle


# -- room


def test_a_pool_of_exactly_the_pages_needed() -> None:
    bench = Bench(page_size=4, pages=4)
    sampling = Sampling(max_tokens=8, ignore_eos=True)
    for seed in range(3):  # 9 + 7 tokens with KV
        request = bench.gen(LONG[seed : seed + 9], sampling, [seed])
        bench.run()
        truth = bench.oracle.continuation(LONG[seed : seed + 9], sampling, seed)
        assert bench.samples(request) == [truth]
    # A partly matching page is in the way: the request does without the copy.
    request = bench.gen((*LONG[2:10], 9), sampling, [7])
    bench.run()
    assert bench.samples(request) == [bench.oracle.continuation((*LONG[2:10], 9), sampling, 7)]
    with pytest.raises(RunError) as failure:
        bench.gen(LONG[:10], sampling)
    assert failure.value.code == "SGLC441"
    assert "18 tokens needs 5 KV pages, the pool has 4" in failure.value.message


def test_samples_in_a_pool_that_holds_one() -> None:
    bench = Bench(page_size=4, pages=4, depth=2)
    sampling = Sampling(max_tokens=8, n=3, ignore_eos=True)
    request = bench.gen(LONG[:9], sampling, [1, 2, 3])
    bench.run()
    truth = [bench.oracle.continuation(LONG[:9], sampling, seed) for seed in (1, 2, 3)]
    assert bench.samples(request) == truth


def test_handles_never_block_admission() -> None:
    bench = Bench(page_size=4, pages=6)
    kept = [bench.engine.extend(None, LONG[i : i + 8]) for i in (0, 10, 20)]
    for handle in kept:
        bench.engine.warm(handle)
    bench.run()
    assert bench.engine.allocator.pool.free == 0
    request = bench.gen(LONG[30:46], Sampling(max_tokens=8, ignore_eos=True))
    bench.run()
    assert bench.usage(request)[:2] == (0, 16)
    again = bench.engine.gen(kept[2], PLAIN, [1], eos_ids=EOS)
    bench.run()
    assert bench.samples(again) == [bench.oracle.continuation(LONG[20:28], PLAIN, 1)]


def test_what_a_handle_names_is_evicted_last() -> None:
    bench = Bench(page_size=4, pages=8)
    handle = bench.engine.extend(None, LONG[:8])
    bench.engine.warm(handle)
    bench.run()
    for start in (10, 20, 30):  # each needs four pages
        passing = bench.engine.extend(None, LONG[start : start + 12])
        bench.engine.gen(passing, Sampling(max_tokens=4, ignore_eos=True), [1], eos_ids=EOS)
        bench.engine.release(passing)
        bench.run()
    request = bench.engine.gen(handle, PLAIN, [1], eos_ids=EOS)
    bench.run()
    assert bench.usage(request)[:2] == (7, 1)


@pytest.mark.parametrize("looks", [True, False])
@pytest.mark.parametrize("shared", [8, 12])
def test_a_prefix_that_somebody_waits_for_outlives_its_first_user(
    looks: bool, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not looks:  # as if nobody waited
        monkeypatch.setattr(RequestQueue, "wanted", lambda self, ids, beyond, root: 0)
    bench = Bench(page_size=4, pages=8, max_rows=1)
    one = Sampling(max_tokens=1, ignore_eos=True)
    old = bench.engine.extend(None, LONG[40:52])  # three pages, used before all others
    bench.engine.warm(old)
    bench.run()
    bench.engine.forget(old)
    first = bench.engine.extend(None, (*LONG[:shared], 1, 1))
    request = bench.engine.gen(first, one, [1], eos_ids=EOS)
    bench.gen(LONG[20:36], Sampling(max_tokens=4, ignore_eos=True))  # wants five pages
    last = bench.gen((*LONG[:shared], 2, 2), one)
    while not any(isinstance(event, RequestDone) and event.request == request for event in bench.events):
        bench.step(1)
    bench.engine.release(first)
    bench.run()
    assert bench.usage(last)[:2] == ((shared, 2) if looks else (0, shared + 2))


def test_requests_start_in_the_order_of_arrival() -> None:
    bench = Bench(page_size=4, pages=8, max_rows=4)
    big = Sampling(max_tokens=20, ignore_eos=True)
    small, one = Sampling(max_tokens=4, ignore_eos=True), Sampling(max_tokens=1)
    requests = [bench.gen(LONG[i : i + n], s) for i, n, s in ((0, 5, big), (10, 28, small), (40, 5, one))]
    bench.run()
    done = [event.request for event in bench.events if isinstance(event, RequestDone)]
    # The second does not fit beside the first; the third, which would, does not overtake it.
    assert done == requests
    assert [step.rows.size for step in bench.oracle.steps][:2] == [1, 1]


def test_what_can_never_run_is_refused_at_once() -> None:
    bench = Bench(max_len=20, pages=100)
    handle = bench.engine.extend(None, LONG[:15])
    with pytest.raises(RunError) as failure:
        bench.engine.gen(handle, PLAIN, [1], eos_ids=EOS)
    assert failure.value.code == "SGLC440"
    assert "21 tokens is longer than the model's 20" in failure.value.message
    with pytest.raises(RunError, match="21 tokens"):
        bench.engine.score(handle, [(1,), (1, 2, 3, 4, 5, 6)])
    with pytest.raises(RunError, match="30 tokens"):
        bench.engine.warm(bench.engine.extend(handle, LONG[:15]))
    with pytest.raises(RunError) as failure:
        bench.engine.gen(bench.engine.extend(None, ()), PLAIN, [1], eos_ids=EOS)
    assert failure.value.code == "SGLC442"
    assert bench.engine.idle
    fits = Sampling(max_tokens=5, ignore_eos=True)
    request = bench.engine.gen(handle, fits, [1], eos_ids=EOS)
    bench.run()
    assert bench.samples(request) == [bench.oracle.continuation(LONG[:15], fits, 1)]


# -- sampling


def test_min_tokens_and_stop_ids() -> None:
    bench = Bench(depth=2)
    stops = tuple(range(5))
    seen = set()
    for seed in range(12):
        for sampling in (
            Sampling(max_tokens=9, stop_token_ids=stops),
            Sampling(max_tokens=9, min_tokens=4, stop_token_ids=stops),
            Sampling(max_tokens=9, ignore_eos=True),
            Sampling(max_tokens=9, temperature=0.0, min_tokens=9),
        ):
            request = bench.gen(LONG[seed : seed + 5], sampling, [seed])
            bench.run()
            truth = bench.oracle.continuation(LONG[seed : seed + 5], sampling, seed)
            assert bench.samples(request) == [truth]
            assert len(truth[0]) >= sampling.min_tokens
            seen.add((sampling.min_tokens, truth[2]))
    assert seen == {(0, "stop"), (0, "length"), (4, "stop"), (4, "length"), (9, "length")}


def test_the_same_seed_gives_the_same_sample_in_any_company() -> None:
    alone = Bench()
    request = alone.gen(LONG[:9], PLAIN, [42])
    alone.run()
    crowd = Bench(depth=3, token_budget=11, page_size=1, pages=300)
    others = [crowd.gen(LONG[i : i + 12], PLAIN, [i]) for i in range(6)]
    again = crowd.gen(LONG[:9], PLAIN, [42])
    crowd.run()
    assert crowd.samples(again) == alone.samples(request)
    assert len({crowd.samples(other)[0][0] for other in others}) == 6


# -- failures


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("where", ["launch", "drain"])
def test_a_failing_executor_fails_what_it_ran_and_nothing_else(depth: int, where: str) -> None:
    bench = Bench(depth=depth, max_rows=1)
    handle = bench.engine.extend(None, LONG[:9])
    running = bench.engine.gen(handle, Sampling(max_tokens=20, ignore_eos=True), [1], eos_ids=EOS)
    waiting = bench.gen(LONG[20:29])
    bench.step(4)
    setattr(bench.oracle, f"fail_{where}", True)
    bench.run()
    failed = bench.of(running)[-1]
    assert isinstance(failed, RequestFailed)
    assert isinstance(failed.error, BackendError)
    assert failed.error.code == "SGLC520"
    assert bench.samples(waiting) == [bench.oracle.continuation(LONG[20:29], PLAIN, 1)]
    # Nothing that was cached before is trusted.
    again = bench.engine.gen(handle, PLAIN, [1], eos_ids=EOS)
    bench.run()
    assert bench.usage(again)[:2] == (0, 9)
    assert bench.samples(again) == [bench.oracle.continuation(LONG[:9], PLAIN, 1)]
    assert bench.nothing_left()


def test_steps_are_shown_at_the_third_level_of_debugging_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for level, steps in (("2", 0), ("3", 3)):
        monkeypatch.setenv("SGLC_DEBUG", level)
        bench = Bench()
        bench.gen(LONG[:9], Sampling(max_tokens=3, ignore_eos=True))
        bench.run()
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == steps == len(bench.oracle.steps) * (level == "3")
    assert lines[0] == "sglc: step 0: 0 rows decode; prompt tokens: 9 for row 0"
    assert lines[1] == "sglc: step 1: 1 rows decode; prompt tokens: none"


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("token_budget", [3, 256])
@pytest.mark.parametrize("begin", few([0, 1, 2, 6, 12, 13, 40], 4))
def test_a_prompt_is_scored_whatever_is_cached(page_size: int, token_budget: int, begin: int) -> None:
    bench = Bench(page_size=page_size, token_budget=token_budget)
    sampling = Sampling(max_tokens=3, n=2, ignore_eos=True, logprobs_from=begin, top_logprobs=2)
    first = max(begin, 1)
    requests = [bench.gen(LONG[:13], sampling, (4, 5))]
    bench.run()
    requests.append(bench.gen(LONG[:13], sampling, (4, 5)))
    bench.run()
    for request in requests:
        assert bench.samples(request) == [bench.oracle.continuation(LONG[:13], sampling, s) for s in (4, 5)]
        scored = [event for event in bench.of(request) if isinstance(event, PromptScored)]
        if begin >= 13:
            assert scored == []
            continue
        (event,) = scored
        assert event.logprobs == bench.oracle.scores(LONG[:first], LONG[first:13])
        found = [listed(likely) for likely in event.likeliest]
        assert found == [bench.oracle.likeliest(LONG[:i], 2) for i in range(first, 13)]
        tokens = [e for e in bench.of(request) if isinstance(e, Token) and e.sample == 0]
        assert bench.of(request).index(event) < bench.of(request).index(tokens[0])
    assert bench.usage(requests[1]) == (min(first - 1, 12), 13 - min(first - 1, 12), 6)
    assert bench.nothing_left()


def test_the_likeliest_ids_of_samples() -> None:
    bench = Bench(depth=3)
    asked = bench.gen(LONG[:9], Sampling(max_tokens=6, ignore_eos=True, top_logprobs=4))
    more = bench.gen(LONG[2:9], Sampling(max_tokens=6, ignore_eos=True, top_logprobs=1000))
    plain = bench.gen(LONG[1:9], PLAIN)
    bench.run()
    for request, prompt, count in ((asked, LONG[:9], 4), (more, LONG[2:9], 29)):
        (done,) = [event for event in bench.of(request) if isinstance(event, SampleDone)]
        truth = [bench.oracle.likeliest((*prompt, *done.ids[:i]), count) for i in range(len(done.ids))]
        assert [listed(likely) for likely in done.likeliest] == truth
        assert [listed(t.likeliest) for t in bench.of(request) if isinstance(t, Token)] == truth
    ended = [event for event in bench.of(plain) if isinstance(event, Token | SampleDone)]
    assert all(e.likeliest == () if isinstance(e, SampleDone) else not listed(e.likeliest) for e in ended)


@pytest.mark.parametrize(
    "penalty", [{"frequency_penalty": 0.5, "presence_penalty": 1.0}, {"repetition_penalty": 1.5}]
)
@pytest.mark.parametrize("depth", [1, 4])
def test_only_rows_with_penalties_wait_for_their_tokens(depth: int, penalty: dict[str, float]) -> None:
    bench = Bench(depth=depth)
    biased = Sampling(max_tokens=12, ignore_eos=True, logit_bias=((5, 1.0),))
    penalised = Sampling(max_tokens=12, ignore_eos=True, **penalty)
    made = [
        (s, bench.gen(LONG[i : i + 8], s), LONG[i : i + 8]) for i, s in enumerate((biased, penalised, PLAIN))
    ]
    bench.run()
    for sampling, request, prompt in made:
        assert bench.samples(request) == [bench.oracle.continuation(prompt, sampling, 1)]
    ahead, before = [0, 0, 0], [-1, -1, -1]
    for step, drained in zip(bench.oracle.steps, bench.oracle.drained, strict=True):
        assert set(step.bias_at.tolist()) <= {i for i, row in enumerate(step.rows.tolist()) if row < 2}
        assert set(step.repeated_at.tolist()) <= {i for i, row in enumerate(step.rows.tolist()) if row == 1}
        for row in step.rows.tolist():
            ahead[row] += before[row] > drained
            before[row] = step.index
    assert (ahead[0] > 5, ahead[1] > 0, ahead[2] > 3) == (depth > 1, False, depth > 1)


def test_a_prompt_with_an_unknown_id_is_refused() -> None:
    bench = Bench()
    for unknown in (29, -1):
        with pytest.raises(RunError, match=f"id {unknown}, .* up to 28") as failure:
            bench.gen([*LONG[:4], unknown], PLAIN)
        assert failure.value.code == "SGLC443"
    request = bench.gen(LONG[:4], PLAIN)
    bench.run()
    assert bench.samples(request) == [bench.oracle.continuation(LONG[:4], PLAIN, 1)]


def test_a_bias_for_an_unknown_id_is_refused() -> None:
    with pytest.raises(RunError, match="the id 29") as failure:
        Bench().gen(LONG[:4], Sampling(logit_bias=((3, 1.0), (29, 1.0))))
    assert failure.value.code == "SGLC470"


def test_a_prompt_is_taken_whole_beside_rows_that_nobody_looks_at() -> None:
    """With costs, it comes in chunks only while somebody sees how long a step takes."""
    cost = StepCost(products_s=((1, 1e-3), (100, 1e-3), (1000, 1e-2)), key_s=0.0, pair_s=0.0)
    sampling = Sampling(max_tokens=64, temperature=0.0, ignore_eos=True)
    steps = {}
    for watch in (True, False):
        oracle = Oracle(pages=400, page_size=16, depth=1)
        engine = Engine(oracle, EngineConfig(token_budget=1024, max_rows=8, max_len=4096, cost=cost))
        engine.gen(engine.extend(None, [1, 2, 3]), sampling, [0], eos_ids=(), watch=watch)
        for _ in range(3):
            engine.step()
        before = oracle.extended
        engine.gen(engine.extend(None, [i % 29 for i in range(1000)]), sampling, [0], eos_ids=(), watch=watch)
        steps[watch] = 0
        while oracle.extended - before < 1000:
            engine.step()
            steps[watch] += 1
    assert steps[False] <= 2
    assert steps[True] > 4


def test_short_prompts_are_not_put_off_for_long_ones() -> None:
    """With costs, a long prompt comes in chunks while a row decodes; a short one behind it comes at once."""
    products_s = ((1, 1e-3), (100, 1e-3), (150, 1.5e-3), (200, 2e-3), (1000, 1e-2))
    cost = StepCost(products_s=products_s, key_s=0.0, pair_s=0.0)
    oracle = Oracle(pages=400, page_size=16, depth=1)
    engine = Engine(oracle, EngineConfig(token_budget=1024, max_rows=8, max_len=4096, cost=cost))
    sampling = Sampling(max_tokens=64, temperature=0.0, ignore_eos=True)
    engine.gen(engine.extend(None, [1, 2, 3]), sampling, [0], eos_ids=())
    for _ in range(3):
        engine.step()
    before = oracle.extended
    engine.gen(engine.extend(None, [i % 29 for i in range(2000)]), sampling, [0], eos_ids=())
    short = engine.gen(engine.extend(None, [5] * 100), sampling, [0], eos_ids=())
    steps = 0
    while True:
        steps += 1
        if any(isinstance(event, Token) and event.request == short for event in engine.step()):
            break
    assert steps <= 2
    assert oracle.extended - before < 2 * (200 + 100) + 8, (
        "the long prompt comes in chunks that the cost affords"
    )
