"""More rows than a promise of all their tokens would allow: rows give way, and nothing else changes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from sglc.ir.sampling import Sampling
from sglc.runtime.engine.engine import PromptScored, RequestDone, SampleDone, Token
from sglc.runtime.scheduler.kv_allocator import Lengths
from sglc.runtime.scheduler.requests import RequestPart
from tests.depth import few
from tests.runtime.test_engine import LONG, Bench

SURE = Sampling(max_tokens=20, ignore_eos=True)  # watched, so that a cut could end it sooner


def bold(bench: Bench) -> Bench:
    """Every sample is expected to end at once."""
    bench.engine.allocator.lengths = Lengths(0.0)
    return bench


def tight(depth: int = 1, *, cache: bool = True) -> Bench:
    """Room for one sample of `SURE` after 8 tokens (7 pages), and for a second one's beginning."""
    return bold(Bench(page_size=4, pages=9, depth=depth, cache=cache))


def waits(bench: Bench) -> list[RequestPart]:
    """Parts whose rows gave way."""
    return [part for part in bench.engine.queue.parts if part.logprobs is not None]


def until_one_waits(bench: Bench) -> RequestPart:
    for _ in range(100):
        bench.step()
        if waits(bench):
            (part,) = waits(bench)
            return part
    raise AssertionError("nobody gives way")


def check(bench: Bench, request: int, ids: tuple[int, ...], sampling: Sampling, seeds: tuple[int, ...]) -> None:
    """What a request reported is what the oracle says."""
    done = [event for event in bench.of(request) if isinstance(event, SampleDone)]
    assert len(done) == len(seeds)
    for event in done:
        truth = bench.oracle.continuation(ids, sampling, seeds[event.sample])
        assert (event.ids, event.logprobs, event.finish) == truth
        tokens = [e.id for e in bench.of(request) if isinstance(e, Token) and e.sample == event.sample]
        assert tuple(tokens) in ((), event.ids)


@pytest.mark.parametrize("depth", few([1, 2, 4], 2))
@pytest.mark.parametrize("cache", few([True, False], 1))
@pytest.mark.parametrize("watch", few([True, False], 1))
def test_a_mix_of_programs_in_a_pool_far_too_small(depth: int, cache: bool, watch: bool) -> None:
    rng = random.Random(depth)
    bench = bold(Bench(page_size=4, pages=48, depth=depth, max_rows=16, cache=cache))
    asked = []
    for i in range(30):
        ids = LONG[: rng.choice((0, 9, 16))] + tuple(rng.randrange(4, 27) for _ in range(rng.randint(1, 9)))
        sampling = Sampling(max_tokens=rng.choice((40, 70)), n=rng.choice((1, 1, 2)), top_k=rng.choice((-1, 5)))
        seeds = tuple(100 * i + k for k in range(sampling.n))
        asked.append((bench.gen(ids, sampling, seeds, watch=watch), ids, sampling, seeds))
    most = 0
    while not bench.engine.idle:
        bench.step()
        most = max(most, len(bench.engine.allocator.work))
    for request, ids, sampling, seeds in asked:
        check(bench, request, ids, sampling, seeds)
    # A row may write 41 tokens at least: 11 pages, of 48.
    assert most > 2 * 48 // 11
    assert bench.engine.queue.preempted > 0
    allocator = bench.engine.allocator
    assert allocator.pool.free + allocator.tree.evictable == 48
    assert allocator.reserved == 0


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("cache", [True, False])
def test_the_later_row_gives_way_and_goes_on_where_it_was(depth: int, cache: bool) -> None:
    bench = tight(depth, cache=cache)
    first, second = bench.gen(LONG[:8], SURE), bench.gen(LONG[20:28], SURE, (2,))
    part = until_one_waits(bench)
    assert part.request.id == second
    bench.run()
    check(bench, first, LONG[:8], SURE, (1,))
    check(bench, second, LONG[20:28], SURE, (2,))
    assert bench.engine.queue.preempted == 1
    done = [event.request for event in bench.events if isinstance(event, RequestDone)]
    assert done == [first, second]
    # What was computed again is nobody's prompt, and no completion either.
    assert bench.usage(first) == bench.usage(second) == (0, 8, 20)


def test_nobody_gives_way_for_pages_that_come_back_anyway() -> None:
    bench = bold(Bench(page_size=4, pages=6, depth=2))
    short = bench.gen(LONG[:8], Sampling(max_tokens=3, ignore_eos=True))
    longer = bench.gen(LONG[20:28], Sampling(max_tokens=12, ignore_eos=True), (2,))
    bench.run()
    check(bench, short, LONG[:8], Sampling(max_tokens=3, ignore_eos=True), (1,))
    check(bench, longer, LONG[20:28], Sampling(max_tokens=12, ignore_eos=True), (2,))
    assert bench.engine.queue.preempted == 0


def test_a_sample_that_waits_can_be_cut() -> None:
    bench = tight()
    bench.gen(LONG[:8], SURE)
    second = bench.gen(LONG[20:28], SURE, (2,))
    until_one_waits(bench)
    tokens = [event.id for event in bench.of(second) if isinstance(event, Token)]
    assert len(tokens) > 2
    bench.engine.cut(second, 0, 2)
    bench.run()
    (done,) = [event for event in bench.of(second) if isinstance(event, SampleDone)]
    assert (done.ids, len(done.logprobs), done.finish) == (tuple(tokens[:2]), 2, "stop")
    assert bench.usage(second) == (0, 8, 2)


def test_a_sample_that_waits_can_be_aborted() -> None:
    bench = tight()
    first, second = bench.gen(LONG[:8], SURE), bench.gen(LONG[20:28], SURE, (2,))
    until_one_waits(bench)
    bench.engine.abort(second)
    seen = len(bench.of(second))
    bench.run()
    assert len(bench.of(second)) == seen
    check(bench, first, LONG[:8], SURE, (1,))


def test_a_prompt_is_scored_once_though_its_row_gave_way() -> None:
    bench = tight()
    bench.gen(LONG[:8], SURE)
    sampling = replace(SURE, logprobs_from=1, top_logprobs=2)
    second = bench.gen(LONG[20:28], sampling, (2,))
    until_one_waits(bench)
    bench.run()
    (scored,) = [event for event in bench.of(second) if isinstance(event, PromptScored)]
    assert scored.logprobs == bench.oracle.scores(LONG[20:21], LONG[21:28])
    check(bench, second, LONG[20:28], sampling, (2,))


def test_what_is_guessed_too_short_is_guessed_longer() -> None:
    bench = tight()
    bench.gen(LONG[:8], SURE)
    bench.gen(LONG[20:28], SURE, (2,))
    until_one_waits(bench)
    assert bench.engine.allocator.lengths.share == 0.5


def test_samples_of_a_known_length_are_promised_all_of_it() -> None:
    bench = tight()
    requests = [bench.gen(LONG[i : i + 8], SURE, (i,), watch=False) for i in (0, 20)]
    bench.step(3)
    assert len(bench.engine.allocator.work) == 1
    bench.run()
    assert bench.engine.queue.preempted == 0
    assert [bench.usage(request) for request in requests] == [(0, 8, 20)] * 2


def test_namespaces_do_not_share_prompts() -> None:
    bench = Bench()
    usage = []
    for space in ("", "adapter", "adapter", ""):
        handle = bench.engine.extend(None, LONG[:17], namespace=space)
        request = bench.engine.gen(handle, Sampling(max_tokens=2, ignore_eos=True), (1,), eos_ids=())
        bench.run()
        usage.append(bench.usage(request)[:2])
        bench.engine.forget(handle)
    assert usage == [(0, 17), (0, 17), (16, 1), (16, 1)]


@pytest.mark.parametrize("fails", ["fail_launch", "fail_drain"])
def test_a_namespace_outlives_a_failure(fails: str) -> None:
    bench = Bench(max_rows=1)
    handle = bench.engine.extend(None, LONG[:17], namespace="adapter")
    sampling = Sampling(max_tokens=3, ignore_eos=True)
    requests = [bench.engine.gen(handle, sampling, (i,), eos_ids=()) for i in range(3)]
    setattr(bench.oracle, fails, True)
    bench.run()
    assert [bench.usage(request)[:2] for request in requests[1:]] == [(0, 17), (16, 1)]
    assert bench.engine.tree.root.children == []


def test_what_its_program_released_is_evicted_first() -> None:
    bench = Bench(page_size=4, pages=12)
    one = Sampling(max_tokens=1)
    handles = [bench.engine.extend(None, LONG[i : i + 16]) for i in (0, 20)]
    for handle in handles:
        bench.engine.gen(handle, one, (1,), eos_ids=())
        bench.run()
    bench.engine.forget(handles[0])
    bench.engine.release(handles[1])  # used later, but dead
    bench.gen(LONG[40:60], one)
    bench.run()
    assert bench.engine.tree.match(LONG[:16], 16, bench.engine.tree.root).length == 16
    assert bench.engine.tree.match(LONG[20:36], 16, bench.engine.tree.root).length < 16


def test_what_is_expected_sooner_stays() -> None:
    bench = Bench(page_size=4, pages=12)
    one = Sampling(max_tokens=1)
    handles = [bench.engine.extend(None, LONG[i : i + 16]) for i in (0, 20)]
    for handle, steps in zip(handles, (5, 50), strict=True):
        bench.engine.gen(handle, one, (1,), eos_ids=())
        bench.engine.expect(handle, steps)
        bench.run()
    bench.gen(LONG[40:60], one)
    bench.run()
    assert bench.engine.tree.match(LONG[:16], 16, bench.engine.tree.root).length == 16
    assert bench.engine.tree.match(LONG[20:36], 16, bench.engine.tree.root).length < 16
