"""Equal deterministic generations are made once: counts, results as without it, and what may end early.

The golden specs are in tests/golden/unify.md.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest

import sglc as sgl
from sglc.api.plan import LoadedPlan
from sglc.backends.local import LocalBackend
from sglc.backends.remote.prompts import ids
from sglc.backends.remote.segment_runner import ApiAnswer, ApiRequest, Walker
from sglc.backends.scripted import ScriptedBackend
from sglc.cli import main
from sglc.errors import BackendError, Loc, RunError
from sglc.execution.answers import duplicates, shared_calls
from sglc.execution.answers.prompts import Followed, Streams
from sglc.execution.answers.shared_calls import SharedCalls
from sglc.execution.answers.unified_backend import BatchCalls, UnifiedBackend, UnifiedSegment
from sglc.execution.event_loop import executor_loop
from sglc.execution.result import Result
from sglc.explain.estimate.analyze import analyzed
from sglc.ir.core import Site
from sglc.ir.plan.asked import asked_in_plan, known_questions, numbered
from sglc.ir.plan.dataflow import choice_texts
from sglc.ir.plan.events import Delta, Event, GenDone, NodeFailed, Sample, SelectDone, Usage
from sglc.ir.plan.plan import steps_of
from sglc.ir.plan.segment import (
    ExtendNode,
    GenNode,
    KeepNode,
    Made,
    NodeResult,
    OpenNode,
    ReleaseNode,
    Segment,
    SelectNode,
    joined,
)
from sglc.ir.sampling import Sampling
from sglc.ir.target import Target
from sglc.ir.text.printer import from_text, to_text
from sglc.passes.compile import compile_program
from sglc.passes.pipelines import LOCAL
from tests.depth import at_depth
from tests.openai_server import serving
from tests.oracle_backend import Characters, OracleBackend
from tests.random_programs import ARGS, random_program
from tests.test_known_answers import same
from tests.test_plan_run import Recorded
from tests.test_record import begun, plain
from tests.test_response_cache import chat, echoing, shown
from tests.waiting import HandClock, until

WITHOUT = tuple(name for name in LOCAL if name != "unify")


class Model:
    """What it answers depends on what an answer of a model may: prompt's ids, sampling, a sample's seed.

    Calls that it `holds` wait until `go_on`; those that it `fails` have no answer.
    """

    def __init__(self, passes: tuple[str, ...] | None = None) -> None:
        self.target = Target(
            "ids", Characters(), scores_tokens=True, continues_text=True, concurrency=64, passes=passes
        )
        self.asked: list[ApiRequest] = []
        self.known: list[Any] = []  # prompts that were there when they were handed over, and what else is asked
        self._streams = Streams()
        self.ended = 0
        self.holds: Callable[[ApiRequest], bool] = lambda request: False
        self.fails: Callable[[ApiRequest], bool] = lambda request: False
        self._gate: asyncio.Event | None = None
        self.walker = Walker(self._ask)

    def start(self) -> None:
        """Nothing has to be loaded."""

    def close(self) -> None:
        """Nothing has to be given back."""

    async def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        followed = self._streams.follow(segment)
        for index, node in enumerate(segment.nodes):
            if isinstance(node, GenNode | SelectNode) and followed.may_be_asked(index):
                prompt = followed.prompt(node.stream)
                generated = tuple([part for part in prompt if isinstance(part, Made)])  # not read as text
                self.known.append((ids(prompt, Characters()), generated, _what(node, followed)))
        async for event in self.walker.submit(segment, streams=streams):
            if isinstance(event, GenDone | SelectDone):
                followed.answered(event.node, event, self.target)
            yield event

    @property
    def calls(self) -> int:
        return len(self.asked)

    def go_on(self) -> None:
        """Answer what is held, and hold nothing any more."""
        self.holds = lambda request: False
        until(lambda: self._gate is not None)
        assert self._gate is not None
        executor_loop().call_soon_threadsafe(self._gate.set)

    async def _ask(self, request: ApiRequest, emit: Callable[[Event], None]) -> ApiAnswer:
        self.asked.append(request)
        if self.holds(request):
            self._gate = self._gate or asyncio.Event()
            await self._gate.wait()
        if self.fails(request):
            emit(Delta(request.index, "half of "))
            raise BackendError("SGLC503", "the model has no answer", request.node.loc)
        self.ended += 1
        node, index, tokenizer = request.node, request.index, self.target.tokenizer
        assert tokenizer is not None
        prompt = ids(request.prompt, tokenizer)
        if isinstance(node, GenNode):
            sampling = node.sampling
            drawn = (
                (sampling.seed if sampling.seed is not None else node.seed) if sampling.temperature else None
            )
            texts = [_text(prompt, replace(sampling, seed=None), drawn, number) for number in range(sampling.n)]
            samples = tuple([Sample(text, tuple(tokenizer.encode(text)), "stop") for text in texts])
            if request.streams:
                emit(Delta(index, texts[0][:2]))
                emit(Delta(index, texts[0][2:]))
            used = Usage(prompt=len(prompt), computed=len(prompt), completion=4 * sampling.n, calls=1)
            return ApiAnswer(GenDone(index, prompt, samples, used), Made(texts[0], samples[0].ids))
        said = request.choices[int(_text(prompt, request.choices, node.method), 16) % len(request.choices)]
        used = Usage(prompt=len(prompt), computed=len(prompt), calls=1)
        done = SelectDone(index, prompt, request.choices.index(said), said, (), (), (), used)
        return ApiAnswer(done, Made(said))


def _what(node: GenNode | SelectNode, followed: Followed) -> Any:
    if isinstance(node, SelectNode):
        return choice_texts(node, followed.texts), node.method
    own = None if node.sampling.temperature == 0 or node.sampling.seed is not None else node.seed
    return node.sampling, own


def _text(*seen: Any) -> str:
    return blake2b(repr(seen).encode(), digest_size=2).hexdigest()


def unified(results: Sequence[Result]) -> tuple[int, int]:
    """Calls that were made, and generations that had the answer of another."""
    return sum(row.usage.calls for row in results), sum(row.usage.unified for row in results)


def spin() -> None:
    """Let everything happen in the executor's loop that waits for nothing else."""
    for _ in range(20):
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), executor_loop()).result()


# -- programs ----------------------------------------------------------------------------------------


@sgl.function
def asks(s: Any, q: str) -> None:
    s += "Q: " + q + " A:" + sgl.gen("a", temperature=0, max_tokens=5)


@sgl.function
def goes_on(s: Any, q: str, tail: str) -> None:
    """The same beginning, and behind the first answer other text, a sample, and what depends on that."""
    s += "Q: " + q + " A:" + sgl.gen("a", temperature=0, max_tokens=5)
    s += tail + sgl.gen("b", max_tokens=3)
    s += " so " + sgl.gen("c", temperature=0, max_tokens=3)
    s += " or " + sgl.select("d", ["yes", s["b"]])


@sgl.function
def twins(s: Any, q: str) -> Any:
    s += q
    forks = s.fork(2)
    forks[0] += sgl.gen("a", temperature=0, max_tokens=5)
    forks[1] += sgl.gen("b", temperature=0, max_tokens=5)
    for number, name in enumerate("cd"):
        forks[number] += "x" + sgl.gen(name, temperature=0, max_tokens=5)
    return forks[0]["a"], forks[1]["b"], forks[0]["c"], forks[1]["d"]


@sgl.function
def looks(s: Any, q: str, tail: str) -> str:
    """Python reads the answers, so streams are kept from one launch to the next."""
    s += "Q: " + q + " A:" + sgl.gen("a", temperature=0, max_tokens=5)
    forks = s.fork(2)
    forks[0] += tail + sgl.gen("b", temperature=0, max_tokens=3)
    forks[1] += "why" + sgl.gen("c", seed=4, max_tokens=3)
    said = f"{len(s['a'])}{forks[0]['b'][:1]}{str(id(s))[:0]}"
    s += said + sgl.gen("d", temperature=0, max_tokens=3)
    return said


ROWS = [{"q": f"number {number % 16}"} for number in range(64)]
TAILS = [{"q": f"n{number % 4}", "tail": f"t{number % 8}"} for number in range(24)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "python"])
@pytest.mark.parametrize("make", [lambda: ScriptedBackend(echoing), OracleBackend, Model])
def test_rows_that_ask_for_the_same_are_asked_for_once(make: Any, mode: Any) -> None:
    backend = make()
    results = asks.run_batch(ROWS, backend=backend, mode=mode)
    assert unified(results) == (16, 48)
    for number, result in enumerate(results):
        alone = (
            asks.run(**ROWS[number], backend=backend, mode=mode).sync() if number < 16 else results[number % 16]
        )
        assert shown(result) == shown(alone)
        assert result.usage.calls + result.usage.unified == len(result.calls) == 1
    used = next(row.usage for row in results if row.usage.unified)
    assert {name for name in Usage.__dataclass_fields__ if getattr(used, name)} == {"unified"}
    backend.close()


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "program.py").write_text(
        "import sglc\n\n\n@sglc.function\ndef ask(s, q):\n    s += q + sglc.gen('a', temperature=0)\n"
    )
    (tmp_path / "script.json").write_text(json.dumps([{"name": "a", "text": "yes"}]))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    out = tmp_path / "out.jsonl"
    command = ["run", str(tmp_path / "program.py"), "--backend", f"scripted:{tmp_path / 'script.json'}"]
    assert main([*command, "--batch", str(tmp_path / "rows.jsonl"), "-o", str(out)]) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["vars"] for line in lines] == [{"a": "yes"}] * 64
    assert sum(line["usage"]["calls"] for line in lines) == 16
    assert "16 calls, 48 unified" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "python"])
@pytest.mark.parametrize("make", [OracleBackend, Model])
def test_a_program_that_asks_twice_is_answered_once(make: Any, mode: Any) -> None:
    backend = make()
    result = twins.run("hi", backend=backend, mode=mode).sync()
    assert (result.usage.calls, result.usage.unified) == (2, 2)
    a, b, c, d = result.ret_value
    assert (a, c) == (b, d)
    assert {call.site.name: call.samples[0].text for call in result.calls} == {"a": a, "b": b, "c": c, "d": d}
    assert dict(result.variables) == {}
    pieces = "".join(text for site, text in twins.stream("hi", backend=backend, mode=mode) if site.name == "d")
    assert pieces == d
    backend.close()


def test_scripts_that_answer_by_site_are_asked_for_each() -> None:
    assert twins.run("hi", backend=ScriptedBackend(echoing)).sync().usage.calls == 4


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "python"])
@pytest.mark.parametrize(("program", "rows"), [(goes_on, TAILS), (looks, TAILS), (twins, ROWS[:8] * 2)])
def test_everything_is_as_without_it(program: Any, rows: Any, mode: Any) -> None:
    """Followers go on behind the ids of an answer that is another row's, with text and samples of their own."""
    with_it, without = Model(), Model(WITHOUT)
    made = program.run_batch(rows, backend=with_it, mode=mode, seed=5)
    plainly = program.run_batch(rows, backend=without, mode=mode, seed=5)
    assert [shown(row) for row in made] == [shown(row) for row in plainly]
    assert all(row.error() is None for row in made)
    calls, saved = unified(made)
    assert calls == with_it.calls < without.calls == calls + saved
    assert with_it.walker.kept.empty
    if program is goes_on:  # of `a` 4, of the others one a row, as each goes on behind its own sample
        assert calls == 4 + 3 * len(rows)


def test_on_an_api() -> None:
    with serving(lambda body: f"{len(body['messages'])} messages") as api:
        backend = sgl.OpenAI("gpt-4o", base_url=api.url, api_key="sk")
        results = chat.run_batch([{"q": f"n{number % 4}"} for number in range(16)], backend=backend)
        assert unified(results) == (8, 24)
        assert len(api.bodies) == 8
        assert [(row["a"], row["b"]) for row in results] == [("2 messages", "4 messages")] * 16
        backend.close()


@pytest.mark.slow
def test_on_a_model_of_tokens(local: LocalBackend) -> None:
    """Its tokens merge with what stands beside them, so answers go into prompts as the ids that they were."""
    rows = TAILS[:8]
    plans = [compile_program(goes_on.trace(), local.target, passes).plan for passes in (LOCAL, WITHOUT)]
    made, plainly = (LoadedPlan(plan).run_batch(rows, backend=local, seed=3) for plan in plans)
    for one, other in zip(made, plainly, strict=True):
        same(other, one)
    assert unified(made) == (4 + 3 * 8, 4)
    assert unified(plainly) == (4 * 8, 0)


def test_a_plan_without_the_pass_makes_every_call() -> None:
    backend = Model()
    for passes, expected in ((LOCAL, (16, 48)), (WITHOUT, (64, 0))):
        plan = compile_program(asks.trace(), backend.target, passes).plan
        assert unified(LoadedPlan(plan).run_batch(ROWS, backend=backend)) == expected
    assert unified(asks.run_batch(ROWS, backend=backend, passes="-unify")) == (64, 0)


def test_samples_are_drawn_for_each_row() -> None:
    @sgl.function
    def sampled(s: Any, q: str) -> None:
        s += q + sgl.gen("own") + sgl.gen("given", seed=3, n=2)

    @sgl.function
    def seeds(s: Any, q: str) -> None:
        for branch, number in zip(s.fork(4), (1, 2, 1, 2), strict=True):
            branch += q + sgl.gen("x", seed=number)

    backend = Model()
    results = sampled.run_batch([{"q": "x"}] * 8, backend=backend, seed=1)
    assert len({row["own"] for row in results}) == 8
    assert unified(results) == (16, 0)  # the second goes on behind the first
    result = seeds.run("x", backend=backend).sync()
    assert unified([result]) == (2, 2)
    first, second, *others = [call.samples for call in sorted(result.calls, key=lambda call: call.site.fork)]
    assert first != second
    assert [first, second] == others


def test_two_programs_of_one_batch() -> None:
    @sgl.function
    def other(s: Any, q: str) -> None:
        s += "Q: " + q + " A:" + sgl.gen("b", temperature=0, max_tokens=5)

    backend = Model()
    results = sgl.run_together([(asks, ROWS[:1] * 3), (other, ROWS[:1] * 2)], backend=backend)
    assert backend.calls == 1
    assert len({row.calls[0].samples for rows in results for row in rows}) == 1


@sgl.function
def asks_twice(s: Any, q: str) -> None:
    s += q
    forks = s.fork(2)
    forks[0] += sgl.gen("a", temperature=0, max_tokens=5)
    forks[1] += sgl.gen("b", temperature=0, max_tokens=5)


def test_what_one_call_answers_is_within_what_was_expected() -> None:
    backend = OracleBackend()
    explanation = asks_twice.explain(backend, q="tea")
    analysis = analyzed(explanation.forecast, [asks_twice.run("tea", backend=backend).sync()])
    assert (analysis.usage.calls, analysis.usage.unified) == (1, 1)
    assert analysis.within
    backend.close()


def test_twins_behind_a_sample() -> None:
    """Python looks at the sample, so it is in a stream that was kept, whose text nobody follows."""

    @sgl.function
    def behind(s: Any, q: str) -> Any:
        s += q + sgl.gen("own")
        said = s["own"] + str(id(s))[:0]
        forks = s.fork(3)
        for branch in forks:
            branch += said + sgl.gen("x", temperature=0) + sgl.gen("y", temperature=0)
        return [branch["y"] for branch in forks]

    backend = Model()
    results = behind.run_batch([{"q": "x"}] * 3, backend=backend, seed=1)
    assert unified(results) == (9, 12)
    assert [len(set(row.ret_value)) for row in results] == [1, 1, 1]
    assert len({row.ret_value[0] for row in results}) == 3


# -- what ends early -------------------------------------------------------------------------------------


@sgl.function
def outer(s: Any, q: str, rows: int) -> Any:
    """Its rows are runs of their own, whose calls belong to it."""
    runs = [asks.run(q) for _ in range(rows)]
    STARTED.extend(runs)
    return [run.error() for run in runs]


STARTED: list[Result] = []


def started(model: Model, rows: int) -> tuple[Result, list[Result]]:
    """A run, and those that it has begun: the first makes the call, which is held, and the others wait."""
    STARTED.clear()
    model.holds = lambda request: True
    whole = outer.run("tea?", rows, backend=model, mode="python")
    until(lambda: len(STARTED) == rows and all(run.outputs.generations for run in STARTED))
    spin()
    assert model.calls == 1
    return whole, list(STARTED)


def test_the_call_of_a_row_that_is_stopped_goes_on_for_the_others() -> None:
    model = Model()
    whole, runs = started(model, 4)
    runs[0].stop()
    runs[2].stop()
    assert isinstance(runs[0].error(), RunError)
    model.go_on()
    assert [type(error) for error in whole.ret_value] == [RunError, type(None), RunError, type(None)]
    assert runs[1]["a"] == runs[3]["a"]
    assert (model.calls, model.ended) == (1, 1)


def test_a_call_that_nobody_waits_for_any_more_is_given_up() -> None:
    model = Model()
    whole, runs = started(model, 3)
    for run in runs:
        run.stop()
    whole.sync()
    spin()
    assert (model.calls, model.ended) == (1, 0)
    model.go_on()
    spin()
    assert model.ended == 0


def test_a_row_s_deadline_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, model = HandClock(monkeypatch), Model()
    model.holds = lambda request: True

    def rows() -> Iterator[dict[str, str]]:
        """The first one has begun before it is known that there are others like it."""
        yield ROWS[0]
        yield ROWS[0]
        until(lambda: model.calls == 2)
        clock.advance(0.6, lambda: True)
        until(lambda: clock.monotonic() > 1_000.5)
        yield ROWS[0]

    results = iter(asks.stream_batch(rows(), backend=model, row_timeout=1.0, ordered=False))
    clock.advance(0.6, lambda: clock.begun == 3 and clock.monotonic() > 1_000.5)
    late = [next(results), next(results)]
    errors = {result.row: result.error() for result in late}
    assert [isinstance(error, RunError) and error.code for _, error in sorted(errors.items())] == [
        "SGLC411"
    ] * 2
    assert sorted(errors) == [0, 1]
    model.go_on()
    (other,) = results
    assert other.error() is None
    assert (model.calls, model.ended) == (2, 1)


def test_a_budget_is_each_row_s_own() -> None:
    """Calls count for each row. An answer that a budget cut short is nobody else's."""
    model = Model()
    results = goes_on.run_batch(TAILS[:1] * 4, backend=model, max_calls=2)
    assert [row.usage.calls + row.usage.unified for row in results] == [2] * 4
    assert {getattr(row.error(), "code", "") for row in results} == {"SGLC408"}
    results = asks.run_batch(ROWS[:1] * 4, backend=Model(), max_tokens=2)
    assert unified(results) == (4, 0)
    assert {getattr(row.error(), "code", "") for row in results} == {"SGLC408"}
    results = asks.run_batch(ROWS[:1] * 4, backend=Model(), max_tokens=50)
    assert unified(results) == (1, 3)


def test_a_call_that_fails_is_made_by_each() -> None:
    model = Model()
    model.fails = lambda request: len(model.asked) < 2
    model.holds = lambda request: len(model.asked) < 2
    whole, runs = started(model, 4)
    model.go_on()
    errors = whole.ret_value
    assert [type(error) for error in errors] == [BackendError] + [type(None)] * 3
    assert model.calls == 4
    assert unified(runs[1:]) == (3, 0)


def test_rows_that_come_later_ask_again_for_what_failed() -> None:
    model = Model()
    model.fails = lambda request: len(model.asked) < 2
    results = asks.run_batch(ROWS[:1] * 3, backend=model, num_threads=1)
    assert [row.error() is None for row in results] == [False, True, True]
    assert unified(results[1:]) == (1, 1)


@sgl.function
def any_of_them(s: Any, rows: list[dict[str, str]], mode: str) -> Any:
    STARTED.extend([(looks if row["tail"] else asks).run(**_own(row), mode=mode) for row in rows])
    return [run.error() for run in tuple(STARTED)]


def _own(row: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in row.items() if text}


def check_stopped(seed: int, used: list[BatchCalls]) -> int:
    """Runs of which some fail and some are stopped at any moment; how many ended well."""
    draw, model = Random(seed), Model()
    holding, failing = draw.random(), draw.choice([0, 0, 0.1, 0.4])
    model.holds = lambda request: draw.random() < holding
    model.fails = lambda request: draw.random() < failing
    rows = [{"q": f"n{draw.randrange(3)}", "tail": draw.choice(["", "x", "y"])} for _ in range(10)]
    STARTED.clear()
    used.clear()
    whole = any_of_them.run(rows, draw.choice(["auto", "python"]), backend=model, mode="python")
    until(lambda: len(STARTED) == len(rows))
    for _ in range(draw.randrange(4)):
        spin()
    victims = draw.sample(range(len(rows)), draw.randrange(6))
    for victim in victims:
        STARTED[victim].stop()
        if draw.random() < 0.5:
            spin()
    model.holds = lambda request: False

    def over() -> bool:
        if model._gate is not None:
            executor_loop().call_soon_threadsafe(model._gate.set)
        return whole.ended

    until(over)
    errors = whole.ret_value
    assert all(error is None or failing or number in victims for number, error in enumerate(errors))
    good = [number for number, error in enumerate(errors) if error is None]
    answers = {(rows[number]["q"], STARTED[number]["a"]) for number in good}
    assert len(answers) == len({question for question, _ in answers})
    spin()
    assert model.walker.kept.empty
    for calls in used:
        waiting = (calls.held, calls.unsent, calls.lost, calls.left, calls.calls._going, calls.streams._kept)
        assert not any(waiting), "something is left"
    return errors.count(None)


@pytest.mark.slow
def test_rows_that_fail_and_are_stopped_at_any_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[BatchCalls] = []
    right = BatchCalls.__init__

    def noted(self: BatchCalls, inner: Any) -> None:
        right(self, inner)
        used.append(self)

    monkeypatch.setattr(BatchCalls, "__init__", noted)
    count = at_depth(5, 20, 300)
    assert sum(check_stopped(seed, used) for seed in range(count)) > 3 * count


# -- with what observes a batch -------------------------------------------------------------------------


@pytest.mark.slow
def test_recordings_caches_and_replays(tmp_path: Path) -> None:
    model, rows = Model(), [{"q": f"n{number % 3}", "tail": f"t{number}"} for number in range(9)]
    plainly = goes_on.run_batch(rows, backend=Model(WITHOUT), seed=2)
    tape, cache = str(tmp_path / "tape"), str(tmp_path / "cache")
    made = goes_on.run_batch(rows, backend=model, seed=2, record=tape, cache=cache)
    assert [shown(row) for row in made] == [shown(row) for row in plainly]
    hits = sum(row.usage.cache_hits for row in made)  # of a row that was quick
    assert (unified(made)[0], unified(made)[1] + hits) == (3 + 3 * 9, 6)
    again = goes_on.run_batch(rows, backend=Model(), replay=tape)
    assert [shown(row) for row in again] == [shown(row) for row in plainly]
    assert unified(again) == unified(made)
    asked = model.calls
    cached = goes_on.run_batch(rows, backend=model, seed=2, cache=cache)
    assert model.calls == asked
    assert [shown(row) for row in cached] == [shown(row) for row in plainly]
    assert sum(row.usage.cache_hits for row in cached) == 4 * 9
    kept = model.calls
    resumed = goes_on.run_batch([*rows, rows[0]], backend=model, record=tape, resume=True)
    assert [shown(row) for row in resumed[:9]] == [shown(row) for row in plainly]
    assert model.calls == kept + 4  # of the new row, which is asked for anew


# -- random programs -------------------------------------------------------------------------------------


def check_random(seed: int) -> tuple[int, int]:
    """A batch of a random program is as without the pass, and asks for nothing twice; calls on and off."""
    made = random_program(seed, regions=True, images=False, ascii_only=True, python=False, resumed=False)
    program = from_text(plain(to_text(begun(made))), "random.sglir")
    rows = [{**ARGS, "a": f"row {number % 2}", "b": "beta"} for number in range(4)]
    runs = []
    for passes in (None, WITHOUT):
        model = Model(passes)
        loaded = LoadedPlan(compile_program(program, model.target).plan)
        loaded.tools = Recorded()
        results = loaded.run_batch(rows, backend=model, seed=seed)
        assert model.walker.kept.empty, "streams are kept"
        runs.append((model, results))
    (model, unified_results), (plainly, results) = runs
    for one, other in zip(unified_results, results, strict=True):
        same(other, one)
    calls, saved = unified(unified_results)
    if all(row.error() is None for row in results):
        assert calls == model.calls
        assert calls + saved == plainly.calls
        assert len(model.known) == len(set(model.known)), "it is asked for twice"
    return model.calls, plainly.calls


PROGRAMS = at_depth(6, 20, 1_000)


@pytest.mark.slow
def test_batches_of_random_programs() -> None:
    made = asked = 0
    for seed in range(PROGRAMS):
        calls, without = check_random(seed)
        made, asked = made + calls, asked + without
    assert made < 0.8 * asked


# -- broken in small ways ------------------------------------------------------------------------------------


def finds(check: Callable[[], object]) -> bool:
    """Whether a check finds something."""
    try:
        check()
    except (AssertionError, BackendError, KeyError):
        return True
    return False


def mark_everything(patch: pytest.MonkeyPatch) -> None:
    """Samples have a seed for each row and site, and are shared."""
    patch.setattr(Target, "is_deterministic", lambda self, sampling: True)


def forget_samplings(patch: pytest.MonkeyPatch) -> None:
    """Only the prompt counts."""
    right = Followed.asked
    patch.setattr(Followed, "asked", lambda self, index: (right(self, index) or (None,))[:-1] or None)


def forget_seeds(patch: pytest.MonkeyPatch) -> None:
    """Explicit seeds do not count."""
    right = UnifiedSegment._key

    def key(self: Any, index: int) -> Any:
        node = self._nodes[index]
        found = right(self, index)
        if found is None or not isinstance(node, GenNode):
            return found
        return (*found[:-1], replace(node.sampling, seed=None))

    patch.setattr(UnifiedSegment, "_key", key)


def forget_prompts(patch: pytest.MonkeyPatch) -> None:
    """Of the prompt only the last part counts."""
    right = Followed._parts
    patch.setattr(Followed, "_parts", lambda self, stream: (right(self, stream) or [""])[-1:])


def drop_ids(patch: pytest.MonkeyPatch) -> None:
    """What goes on behind another's answer begins with half of its text."""
    right = Followed.left

    def left(self: Any, index: int) -> Made:
        made = right(self, index)
        return Made(made.text[: len(made.text) // 2])

    patch.setattr(Followed, "left", left)


@pytest.mark.slow
@pytest.mark.parametrize(
    "break_it",
    [mark_everything, forget_samplings, forget_seeds, forget_prompts, drop_ids],
    ids=lambda break_it: break_it.__name__,
)
def test_what_is_broken_is_found(break_it: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def seeded() -> None:
        test_samples_are_drawn_for_each_row()
        test_everything_is_as_without_it(goes_on, TAILS, "auto")

    seeded()
    break_it(monkeypatch)
    assert finds(seeded) or any(finds(lambda seed=seed: check_random(seed)) for seed in range(40))  # type: ignore[misc]


def test_a_failure_that_is_shared_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def answered(self: Any, index: int, done: Any) -> None:
        if done is None:
            del self._waiting[index]
            self._followed.failed[index] = RunError("SGLC405", "it failed for another")
            self._put(NodeFailed(index, self._followed.failed[index]))
            return
        right(self, index, done)

    right = UnifiedSegment.answered
    monkeypatch.setattr(UnifiedSegment, "answered", answered)
    assert finds(test_a_call_that_fails_is_made_by_each)


# -- the parts ---------------------------------------------------------------------------------------------


def test_answers_are_remembered_up_to_a_limit() -> None:
    calls = SharedCalls(limit=4_000)
    for number in range(20):
        key = ("x" * 500, number)
        calls.end(calls.begin(key, lambda: None), GenDone(0, (1,) * 3, (Sample("y", (1,), "stop"),), Usage()))
        assert calls.answer(("x" * 500, 0)) is not None, "it was used"
        assert calls.bytes <= 4_000
    assert calls.answer(("x" * 500, 1)) is None
    assert shared_calls._BYTES == 64 << 20


def segment(text: str, *, opens: int | None = None, keeps: int | None = None, more: Any = ()) -> Segment:
    node = GenNode(1, Site("f", (), "x"), Sampling(temperature=0.0), Loc("f", 1), unify=True)
    kept = () if keeps is None else (KeepNode(2, keeps),)
    return Segment((OpenNode(opens), ExtendNode(0, (text,)), node, *kept, *more))


def test_streams_that_others_have_made_are_opened_and_released_in_order() -> None:
    """A follower's stream is there only with the answer; until then what opens or releases it waits."""
    model = Model()

    async def play() -> list[list[Event]]:
        backend: Any = UnifiedBackend(model)
        model._gate = asyncio.Event()
        model.holds = lambda request: True

        async def events(of: Segment) -> list[Event]:
            return [event async for event in backend.submit(of)]

        tasks = [
            asyncio.ensure_future(events(one))
            for one in (
                segment("a", keeps=1), segment("a", keeps=2), segment("b", opens=2), segment("b", opens=1),
                segment("c", opens=2, more=(ReleaseNode(2),)), Segment((ReleaseNode(1),)),
            )
        ]  # fmt: skip
        for _ in range(10):
            await asyncio.sleep(0)
        assert model.calls == 1
        model._gate.set()
        found = await asyncio.gather(*tasks)
        assert not backend.batch.held
        assert not backend.batch.unsent
        return found

    found = asyncio.run(play())
    done = [event for events in found for event in events if isinstance(event, GenDone)]
    assert len(done) == 5
    assert not [event for events in found for event in events if isinstance(event, NodeFailed)]
    assert done[0].samples == done[1].samples
    assert done[2].prompt_ids == done[3].prompt_ids
    assert model.walker.kept.empty


def test_pieces_of_a_call_that_fails_are_not_those_of_others() -> None:
    model = Model()
    model.fails = lambda request: len(model.asked) < 2

    async def play() -> list[list[Event]]:
        backend = UnifiedBackend(model)

        async def events() -> list[Event]:
            return [event async for event in backend.submit(segment("a"))]

        return list(await asyncio.gather(events(), events()))

    first, second = asyncio.run(play())
    assert [type(event) for event in first] == [Delta, NodeFailed]
    *pieces, done = second
    assert isinstance(done, GenDone)
    assert "".join(piece.text for piece in pieces if isinstance(piece, Delta)) == done.samples[0].text


def test_explain_counts_what_a_batch_makes_once() -> None:
    """Greedy generations and choices, in a program and over rows; not samples, nor what stands behind them."""

    @sgl.function
    def graded(s: Any, essay: str, a: str) -> None:
        s += f"Essay: {essay}\n"
        marks = s.fork(3)
        marks[0] += "Mark:" + sgl.gen("mark", max_tokens=2, temperature=0)
        marks[1] += "Mark:" + sgl.gen("again", max_tokens=2, temperature=0)
        marks[2] += sgl.gen("sample", max_tokens=2, temperature=1) + sgl.gen(
            "behind", max_tokens=2, temperature=0
        )
        s += sgl.select("kind", choices=[a, "no"])

    backend = OracleBackend()
    rows = [(essay, a) for essay in ("one", "two", "one") for a in ("yes", "maybe")]
    told = [remark.message for remark in graded.explain(backend, rows=rows).compiled.remarks]
    alone = graded.explain(backend, rows=rows[:1]).compiled.remarks
    unified = sum(result.usage.unified for result in graded.run_batch(rows, backend=backend, seed=1))
    backend.close()
    assert unified == (12 - 2) + (
        6 - 4
    )  # two marks, one of each essay; a choice of each row, of which two are new
    assert f"unified {unified} of 18 generations out of 6 rows" in told
    assert "unified 1 of 3 generations out of 1 rows" in [remark.message for remark in alone]


def test_explain_counts_nothing_whose_prompt_a_step_makes() -> None:
    """The second prompt is what was made of an answer, which no row knows."""

    @sgl.function
    def outer(s: Any, q: str) -> None:
        s += q + sgl.gen("x", temperature=0)
        s += asks.run(q=s["x"].strip())["a"] + sgl.gen("y", temperature=0)

    backend = OracleBackend()
    told = [one.message for one in outer.explain(backend, rows=[("one",), ("one",)]).compiled.remarks]
    backend.close()
    assert "unified 1 of 2 generations out of 2 rows" in told


# -- what a plan asks for ------------------------------------------------------------------------------------


def turns(count: int) -> Any:
    @sgl.function
    def talk(s: Any) -> None:
        for number in range(count):
            s += sgl.user(f"Turn {number}")
            s += sgl.assistant(sgl.gen("a", temperature=0, max_tokens=4))

    return talk


def reading_forks(count: int) -> Any:
    @sgl.function
    def forks(s: Any) -> None:
        for _ in range(count):
            one, two = s.fork(2)
            one += "A" + sgl.gen("x", temperature=0)
            two += one["x"] + sgl.gen("x", temperature=0)
            s += one["x"] + two["x"] + sgl.select("y", [one["x"], "no"])

    return forks


def blocks(count: int) -> Any:
    @sgl.function
    def asked(s: Any, q: str) -> str:
        for _ in range(count):
            s += q + sgl.gen("z", temperature=0)
        return str(s["z"])

    @sgl.function
    def looping(s: Any) -> None:
        def body() -> bool:
            nonlocal s
            for _ in range(count):
                s += "k" + sgl.gen("x", temperature=0)
            return bool(s["x"] == "no")

        sgl.loop(body, max_iters=3)
        s += asked.run(q=s["x"])["z"] + sgl.gen("y", temperature=0)
        if s["y"] == "yes":
            for _ in range(count):
                s += "m" + sgl.gen("w", temperature=0)

    return looping


@pytest.mark.parametrize("make", [turns, reading_forks, blocks])
def test_what_a_plan_asks_for_is_found_in_time_that_grows_with_it(make: Any) -> None:
    """Counted are calls, of which hashes and comparisons are some: no prompt has those before it in full."""

    def calls(count: int) -> int:
        backend = OracleBackend()
        plan = make(count).compile(backend).plan
        backend.close()
        seen = 0

        def look(frame: FrameType, event: str, argument: object) -> None:
            nonlocal seen
            seen += event == "call"

        before = sys.getprofile()
        sys.setprofile(look)
        try:
            asked_in_plan(plan)
            known_questions(plan, {})
        finally:
            sys.setprofile(before)
        return seen

    few, some, more = calls(2), calls(7), calls(12)
    assert more - some < 1.2 * (some - few)


def spelled_out(segment: Segment, index: int) -> Any:
    """What is asked for, with all of its prompt."""
    node = segment.nodes[index]
    assert isinstance(node, GenNode | SelectNode)
    parts: list[Any] = []
    at = node.stream
    while not isinstance(before := segment.nodes[at], OpenNode):
        assert not isinstance(before, ReleaseNode)
        if isinstance(before, ExtendNode):
            own = [spelled_out(segment, p.node) if isinstance(p, NodeResult) else p for p in before.parts]
            parts = own + parts
        elif isinstance(before, GenNode | SelectNode):
            parts = [spelled_out(segment, at), *parts]
        at = before.stream
    asked = (node.sampling, node.limit) if isinstance(node, GenNode) else (node.choices, node.method)
    return asked, before.handle, tuple(joined(parts))


def test_what_a_plan_asks_for_is_equal_where_its_prompts_are() -> None:
    equal = different = 0
    for seed in range(at_depth(20, 60, 1_000)):
        plan = compile_program(
            random_program(seed, regions=bool(seed % 2), images=False, ascii_only=True), Model().target
        ).plan
        found: list[tuple[int, Any, bool]] = []
        numbers: dict[Hashable, int] = {}
        for segment in steps_of(plan):
            if not isinstance(segment, Segment):
                continue
            found += [
                (signature, spelled_out(segment, index), node.unify)
                for index, (node, signature) in enumerate(
                    zip(segment.nodes, numbered(segment, numbers), strict=True)
                )
                if isinstance(node, GenNode | SelectNode)
            ]
        for one, (signature, spelled, _) in enumerate(found):
            for other, also, _ in found[:one]:
                assert (signature == other) == (spelled == also), seed
                equal, different = equal + (spelled == also), different + (spelled != also)
        marked = [spelled for _, spelled, unify in found if unify]
        assert len(set(marked)) == len(marked) or asked_in_plan(plan).repeats, seed
    assert equal > 0
    assert different > 0


@pytest.mark.parametrize(
    "rows",
    [
        [{"a": "x", "b": 1}, {"a": "y", "b": 2}, {"a": "x", "b": 1}],
        [{"a": "x", "b": [1]}, {"a": "x", "b": [1]}],
        [{"a": "x", "b": 1}, {"a": "x"}],
        [],
    ],
    ids=["data", "a list", "one without it", "no rows"],
)
@pytest.mark.parametrize("names", [(), ("a",), ("b",), ("a", "b")])
def test_rows_looked_at_together_have_the_keys_that_each_has(
    rows: list[dict[str, Any]], names: tuple[str, ...]
) -> None:
    assert duplicates._keys(names, rows) == [duplicates._key(names, row) for row in rows]
