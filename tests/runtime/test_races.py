"""Races that engines with steps in flight have had, one test for each, on the oracle.

The oracle checks every history that a step reads; `settled` checks who owns which page after every step.
"""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from sglc.errors import RunError
from sglc.ir.plan.events import NodeFailed
from sglc.ir.plan.segment import ExtendNode, OpenNode
from sglc.ir.sampling import Sampling
from sglc.runtime.cache.page_pool import Owner
from sglc.runtime.cache.page_tree import PageNode
from sglc.runtime.engine.engine import SampleDone
from sglc.runtime.executor.executor_state import ExecutorState
from sglc.runtime.step import Opened, Step
from tests.depth import few
from tests.reference.oracle import Oracle
from tests.runtime import test_segments as segments
from tests.runtime.test_engine import EOS, LONG, Bench

LATER = tuple(reversed(LONG))


def plain(max_tokens: int, **more: Any) -> Sampling:
    return Sampling(max_tokens=max_tokens, ignore_eos=True, **more)


def tree_pages(bench: Bench) -> list[int]:
    pages: list[int] = []
    stack: list[PageNode] = list(bench.engine.tree.root.children)
    while stack:
        node = stack.pop()
        assert node.refs >= 0
        pages += node.pages
        stack += node.children
    return pages


def settled(bench: Bench) -> None:
    """Every page has one owner, and the executor knows of every row what the host knows."""
    engine = bench.engine
    pool, rows = engine.allocator.pool, engine.rows
    nodes = tree_pages(bench)
    private = [
        page
        for row, work in engine.allocator.work.items()
        for page in rows.table[row, work.shared : rows.held[row]].tolist()
    ]
    assert len(set(nodes)) == len(nodes), "a page is in two nodes"
    assert sorted(nodes) == np.flatnonzero(pool.owner == Owner.NODE).tolist()
    assert sorted(private) == np.flatnonzero(pool.owner == Owner.PRIVATE).tolist()
    assert pool.free == int((pool.owner == Owner.FREE).sum())
    for row in engine.allocator.work:
        if rows.last_step[row] >= 0:
            assert bench.oracle.mirror.seq_len[row] == rows.seq_len[row]


def run(bench: Bench) -> None:
    for _ in range(500):
        if bench.engine.idle:
            break
        bench.step()
        settled(bench)
    assert bench.engine.idle
    assert bench.nothing_left()


def truth(bench: Bench, prompt: tuple[int, ...], sampling: Sampling, seed: int) -> Any:
    return [bench.oracle.continuation(prompt, sampling, seed)]


# -- A: abort while the prefill is in flight


@pytest.mark.parametrize("length", [3, 16, 37])
@pytest.mark.parametrize("budget", [8, 256])
def test_abort_while_the_prefill_is_in_flight(length: int, budget: int) -> None:
    bench = Bench(depth=4, pages=32, token_budget=budget)
    aborted = bench.gen(LONG[:length], plain(20))
    bench.step()
    assert bench.oracle._drained == -1, "the prefill is not in flight"
    bench.engine.abort(aborted)
    settled(bench)
    touched = bench.engine.allocator.pool.owner
    assert int((touched != Owner.FREE).sum()) >= -(-min(length, budget) // 4), "a page in flight is free"
    other = bench.gen(LATER[:30], plain(9))
    again = bench.gen(LONG[:length], plain(9))
    run(bench)
    assert bench.samples(other) == truth(bench, LATER[:30], plain(9), 1)
    assert bench.samples(again) == truth(bench, LONG[:length], plain(9), 1)
    assert bench.of(aborted) == []


# -- A2, B: abort with a shared prefix, in every state up to the finishing decode step


@pytest.mark.parametrize("steps", few(range(12), 3))
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_abort_with_a_shared_prefix(steps: int, depth: int) -> None:
    bench = Bench(depth=depth, pages=40)
    kept = bench.gen((*LONG[:20], 5), plain(6), watch=False)
    bench.step()
    aborted = bench.gen((*LONG[:20], 9), plain(5), watch=False)
    for _ in range(steps):
        bench.step()
        settled(bench)
    done = any(isinstance(event, SampleDone) for event in bench.of(aborted))
    bench.engine.abort(aborted)
    settled(bench)
    before = len(bench.of(aborted))
    run(bench)
    assert len(bench.of(aborted)) == before
    assert done == bool(bench.samples(aborted))
    assert bench.samples(kept) == truth(bench, (*LONG[:20], 5), plain(6), 1)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_abort_collides_with_the_finishing_decode_step(depth: int) -> None:
    """All steps of the request are launched, the last ones not drained."""
    bench = Bench(depth=depth, pages=40)
    sampling = plain(6)
    kept = bench.gen((*LONG[:20], 5), plain(30), watch=False)
    bench.step()
    aborted = bench.gen((*LONG[:20], 9), sampling, watch=False)
    rows = bench.engine.rows
    while not (rows.active[1] and rows.samples[1] and rows.seq_len[1] == rows.end[1]):
        bench.step()
    assert not bench.samples(aborted)
    bench.engine.abort(aborted)
    settled(bench)
    following = bench.gen((*LONG[:20], 9, 1), sampling)
    run(bench)
    assert bench.of(aborted) == []
    assert bench.samples(kept) == truth(bench, (*LONG[:20], 5), plain(30), 1)
    assert bench.samples(following) == truth(bench, (*LONG[:20], 9, 1), sampling, 1)


# -- C: two identical prompts in one batch


@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("length", [15, 16, 17, 32])
def test_identical_prompts_in_one_batch(depth: int, length: int) -> None:
    bench = Bench(depth=depth, pages=60)
    twins = [bench.gen(LONG[:length], plain(30), [seed], watch=False) for seed in range(4)]
    for _ in range(8):
        bench.step()
        settled(bench)
    rows, shared = bench.engine.rows, (length - 1) // 4
    tables = [rows.table[row, :shared].tolist() for row in bench.engine.allocator.work]
    assert len(tables) == 4
    assert all(table == tables[0] for table in tables), "a twin reads pages of its own"
    assert set(tables[0]) <= set(tree_pages(bench))
    others = [bench.gen(LATER[i : i + 9], plain(20), [i]) for i in range(4)]  # they take what is free
    run(bench)
    for seed, twin in enumerate(twins):
        assert bench.samples(twin) == truth(bench, LONG[:length], plain(30), seed)
    for i, other in enumerate(others):
        assert bench.samples(other) == truth(bench, LATER[i : i + 9], plain(20), i)


def test_an_equal_page_that_nobody_waited_for() -> None:
    """A prefix too short to wait for is computed twice: each row keeps its own page, one is in the tree."""
    bench = Bench(depth=4)
    prompts = ((*LONG[:4], *LATER, *LONG[20:60]), (*LONG[:4], *LATER[7:], *LONG[10:60]))
    requests = [bench.gen(prompt, plain(12), watch=False) for prompt in prompts]
    bench.step()
    assert bench.oracle.steps[0].rows.tolist() == [0, 1]
    first, second = bench.engine.rows.table[:2, 0].tolist()
    assert first != second
    assert first in tree_pages(bench)
    assert second not in tree_pages(bench)
    settled(bench)
    run(bench)
    for prompt, request in zip(prompts, requests, strict=True):
        assert bench.samples(request) == truth(bench, prompt, plain(12), 1)


# -- lookahead and what steps hold


def arrays(step: Step) -> list[Any]:
    """All that a step holds, the opened rows' arrays too."""
    held = [getattr(step, field.name) for field in fields(Step) if field.name != "opened"]
    return held + [getattr(step.opened, field.name) for field in fields(Opened)]


class Careful(Oracle):
    """Keeps each step beside a copy of what it said at its launch."""

    def __init__(self, *, pages: int, page_size: int, depth: int) -> None:
        super().__init__(pages=pages, page_size=page_size, depth=depth, eos_ids=EOS)
        self.kept: list[tuple[Step, list[Any]]] = []

    def launch(self, step: Step) -> int:
        self.kept.append((step, copy.deepcopy(arrays(step))))
        return super().launch(step)


def busy(bench: Bench) -> None:
    """Requests of many kinds that begin, end, are cut and aborted beside each other."""
    requests = []
    for i in range(24):
        sampling = plain(3 + 5 * i % 17, n=1 + i % 3, frequency_penalty=0.5 * (i % 7 == 0))
        seeds = list(range(sampling.n))
        requests.append(bench.gen(LONG[i % 5 : i % 5 + 7 + i], sampling, seeds, watch=i % 4 == 0))
        if i % 6 == 5:
            bench.engine.abort(requests[i - 3])
        bench.step(1 + i % 3)
        settled(bench)
    run(bench)


@pytest.mark.parametrize("depth", [2, 4])
def test_a_launched_step_is_never_written_again(depth: int) -> None:
    """Lookahead with reused staging: what a step holds is its own as long as anybody has it."""
    bench = Bench(depth=depth, pages=60, token_budget=24)
    careful = Careful(pages=60, page_size=4, depth=depth)
    bench.engine.executor = careful
    bench.oracle = careful  # type: ignore[assignment]
    busy(bench)
    assert len(careful.kept) > 40
    for step, said in careful.kept:
        for now, then in zip(arrays(step), said, strict=True):
            np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize("depth", [1, 4])
def test_rows_change_by_steps_alone_and_in_their_order(depth: int) -> None:
    """One mutation stream: the steps, run again in order by nobody who knows the host, mean the same."""
    bench = Bench(depth=depth, pages=60, token_budget=24)
    busy(bench)
    mirror = ExecutorState(4)
    for step in bench.oracle.steps:
        batch = mirror.expand(step)
        assert (batch.slots >= 0).all(), "a step writes where no step before it has said"
        held = -(-(batch.positions[batch.starts[1:] - 1] + 1) // 4)
        assert ((batch.pages >= 0).sum(axis=1) == held).all()
    np.testing.assert_array_equal(mirror.seq_len, bench.oracle.mirror.seq_len)
    np.testing.assert_array_equal(mirror.table, bench.oracle.mirror.table)


def test_prompt_pages_are_in_the_tree_from_their_launch_on() -> None:
    """Not from the drain: whoever comes one step later shares them, in the order of launches."""
    bench = Bench(depth=4)
    first = bench.gen(LONG[:22], plain(9), watch=False)
    bench.step()
    assert bench.oracle._drained == -1
    assert len(tree_pages(bench)) == 22 // 4
    second = bench.gen(LONG[:22], plain(9), [2], watch=False)
    bench.step()
    assert bench.oracle._drained == -1
    assert (
        bench.oracle.steps[1].lengths.tolist() == [1 + 22 % 4 - 1] or bench.oracle.steps[1].lengths.sum() <= 2
    )
    run(bench)
    assert bench.usage(second)[0] >= 20
    assert bench.samples(first) == truth(bench, LONG[:22], plain(9), 1)
    assert bench.samples(second) == truth(bench, LONG[:22], plain(9), 2)


def test_what_an_aborted_row_has_made_is_never_inserted() -> None:
    bench = Bench(depth=4)
    request = bench.gen(LONG[:8], plain(40), watch=False)
    bench.step(12)
    before = sorted(tree_pages(bench))
    bench.engine.abort(request)
    assert sorted(tree_pages(bench)) == before, "generated pages of an aborted row are in the tree"
    pool = bench.engine.allocator.pool
    assert int((pool.owner == Owner.QUARANTINE).sum()) > 0, "pages in flight are not in quarantine"
    run(bench)
    assert int((pool.owner == Owner.QUARANTINE).sum()) == 0
    assert pool.free == bench.pages - len(before)


# -- the generation of a row


@pytest.mark.parametrize("watch", [True, False])
def test_late_results_of_an_aborted_row_are_not_its_successors(watch: bool) -> None:
    bench = Bench(depth=4, max_rows=1)
    aborted = bench.gen(LONG[:9], plain(40), watch=False)
    bench.step(7)
    generation = int(bench.engine.rows.generation[0])
    in_flight = len(bench.engine._flights)
    assert in_flight == 3
    bench.engine.abort(aborted)
    successor = bench.gen(LATER[:6], plain(8), [5], watch=watch)
    bench.step()  # row 0 again, while its predecessor's steps are in flight
    assert bench.engine.rows.generation[0] == generation + 1
    assert bench.engine.allocator.work[0].part.request.id == successor
    assert bench.engine.rows.made[0] == 0
    assert [flight.generation.tolist() for flight in bench.engine._flights][-1] == [generation + 1]
    assert bench.engine._flights[0].generation.tolist() == [generation], "nothing is late"
    run(bench)
    assert bench.of(aborted) == []
    assert bench.samples(successor) == truth(bench, LATER[:6], plain(8), 5)


# -- prompts in chunks


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("steps", few(range(1, 9), 3))
def test_a_prompt_in_chunks_is_aborted_while_another_shares_it(depth: int, steps: int) -> None:
    """The second request begins behind what the first has launched of their prompt, then goes on alone."""
    bench = Bench(depth=depth, token_budget=6, pages=60)
    decoding = bench.gen(LATER[:3], plain(25), watch=False)
    bench.step()
    first = bench.gen(LONG[:40], plain(4), watch=False)
    bench.step(2)
    second = bench.gen((*LONG[:38], 1, 2), plain(4), [2], watch=False)
    for _ in range(steps):
        bench.step()
        settled(bench)
    bench.engine.abort(first)
    settled(bench)
    run(bench)
    assert bench.samples(second) == truth(bench, (*LONG[:38], 1, 2), plain(4), 2)
    assert bench.samples(decoding) == truth(bench, LATER[:3], plain(25), 1)


def test_a_row_samples_with_the_last_chunk_of_its_prompt_only() -> None:
    bench = Bench(depth=4, token_budget=6)
    request = bench.gen(LONG[:20], plain(5), watch=False)
    run(bench)
    prompt = [step for step in bench.oracle.steps if step.lengths.size]
    assert [step.lengths.tolist() for step in prompt] == [[6], [6], [6], [2]]
    assert [step.sample.tolist() for step in prompt] == [[False], [False], [False], [True]]
    assert [step.opened.rows.size for step in prompt] == [1, 0, 0, 0]
    assert bench.samples(request) == truth(bench, LONG[:20], plain(5), 1)


# -- what cannot run is refused


def test_an_overlong_prompt_is_refused_with_an_error() -> None:
    bench = Bench(max_len=30, pages=6)
    with pytest.raises(RunError) as failure:
        bench.gen(LONG[:29], plain(2))
    assert failure.value.code == "SGLC440"
    with pytest.raises(RunError) as failure:
        bench.gen(LONG[:25], plain(2))
    assert failure.value.code == "SGLC441"
    assert bench.engine.idle
    program = segments.Bench()
    program.submit(OpenNode(), ExtendNode(0, ("cd" * 90,)), segments.gen(1), ExtendNode(2, ("e",)))
    program.drain()
    failed = [event for _, event in program.events]
    assert [event.node for event in failed] == [2, 3]
    assert all(isinstance(event, NodeFailed) and event.error.code == "SGLC440" for event in failed)
    assert program.ended == ["s"]


@pytest.mark.parametrize("streams", [True, False])
def test_no_tokens_asked_for_are_no_tokens(streams: bool) -> None:
    with pytest.raises(RunError) as failure:
        Bench().gen(LONG[:5], Sampling(max_tokens=0))
    assert failure.value.code == "SGLC442"
    program = segments.Bench()
    done = program.run(OpenNode(), ExtendNode(0, ("cd",)), segments.gen(1, max_tokens=0), streams=streams)
    (sample,) = done[2].samples
    assert (sample.text, sample.ids, sample.finish) == ("", (), "length")


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("held", [{}, {"regex": "a"}])
def test_a_prompt_that_takes_all_the_room_is_scored(depth: int, held: dict[str, Any]) -> None:
    """With no tokens behind it; those that are looked at and dropped need no room."""
    options = {"max_tokens": 0, "logprobs_from": 0, "top_logprobs": 2, "n": 3, **held}
    program = segments.Bench(depth=depth)
    done = program.run(OpenNode(), ExtendNode(0, ("cd" * 60,)), segments.gen(1, **options))
    assert len(done[2].prompt_logprobs) == 120
    assert [(sample.ids, len(sample.top_logprobs)) for sample in done[2].samples] == [((), 1)] * 3
    for prompt, most, tokens in (("cd" * 60, 1, 121), ("cd" * 60 + "c", 0, 121)):
        program = segments.Bench(depth=depth)
        program.submit(OpenNode(), ExtendNode(0, (prompt,)), segments.gen(1, max_tokens=most))
        program.drain()
        (failed,) = (event for _, event in program.events if isinstance(event, NodeFailed))
        assert failed.error.code == "SGLC440"
        assert f"a request of {tokens} tokens" in failed.error.message
