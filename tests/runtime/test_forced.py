"""Ids that have to follow take no steps of their own: on the oracle, in segments, and on the real model."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np
import pytest

from sglc.backends.local import LocalBackend
from sglc.ir.plan.events import Delta, GenDone
from sglc.ir.plan.segment import ExtendNode, OpenNode
from sglc.ir.sampling import Sampling
from sglc.runtime.engine import jump_forward as forced_module
from sglc.runtime.scheduler.requests import EngineRequest, Token
from sglc.runtime.scheduler.samples import listed
from sglc.runtime.step import StepCost
from tests.depth import at_depth, some_of
from tests.runtime import test_constrained, test_segments
from tests.runtime.test_constrained import CONSTRAINTS, PIECES, answer, text
from tests.runtime.test_engine import EOS, LONG
from tests.runtime.test_segments import gen
from tests.soak_constrained import CHARACTER, CITY, record

RUN = "éhé!éé"  # one spelling: none of its letters is part of a longer piece


class Bench(test_constrained.Bench):
    def steps(self, pattern: str, sampling: Sampling | None = None, seeds: Sequence[int] = (1,)) -> int:
        """How many steps a generation takes; it is what the oracle says it is."""
        sampling = sampling or Sampling(max_tokens=30)
        before = len(self.oracle.steps)
        request = self.constrained(pattern, sampling, seeds)
        self.run()
        constraint = CONSTRAINTS.regex(pattern)
        truth = [self.oracle.continuation(LONG[:9], sampling, seed, constraint) for seed in seeds]
        assert self.samples(request) == truth
        kept = sum(len(ids) for ids, _, _ in truth)
        assert kept <= self.usage(request)[2] <= kept + len(seeds)  # ids that end a sample count too
        return len(self.oracle.steps) - before


@pytest.mark.parametrize("depth", [1, 3])
def test_a_run_takes_one_step_with_what_is_sampled_behind_it(depth: int) -> None:
    # The prompt and its run; the choice is sampled behind it; its run, and the last choice.
    assert Bench(depth=depth).steps(f"{RUN}[ab]{RUN}[12]") == 2
    # Nothing is sampled behind a run that ends the text: one step says how likely it was.
    assert Bench(depth=depth).steps(f"{RUN}[ab]{RUN}") == 2
    assert Bench(depth=depth).steps(RUN) == 1
    assert Bench(depth=depth).steps("[ab]!") == 2
    assert Bench(depth=depth).steps("[ab]") == 1


@pytest.mark.parametrize("watch", [True, False])
def test_all_samples_have_their_runs(watch: bool) -> None:
    bench = Bench(depth=2)
    sampling = Sampling(max_tokens=30, n=3)
    assert bench.steps(f"[ab]{RUN}[12]", sampling, (1, 2, 3)) <= 4
    assert bench.engine.forced == 3 * len(RUN)


def test_tokens_of_a_run_are_reported_in_their_places() -> None:
    bench = Bench()
    request = bench.constrained(f"[ab]{RUN}[12]", Sampling(max_tokens=30, top_logprobs=3))
    bench.run()
    told = [event for event in bench.of(request) if isinstance(event, Token)]
    ((ids, logprobs, _),) = bench.samples(request)
    assert tuple(event.id for event in told) == ids
    assert tuple(event.logprob for event in told) == logprobs
    whole = (*LONG[:9], *ids)
    places = range(9, len(whole))
    assert [listed(event.likeliest) for event in told] == [
        bench.oracle.likeliest(whole[:at], 3) for at in places
    ]


@pytest.mark.parametrize("most", range(1, 9))
def test_a_run_ends_at_max_tokens(most: int) -> None:
    bench = Bench()
    request = bench.constrained(f"[ab]{RUN}[12]", Sampling(max_tokens=most))
    bench.run()
    ((ids, _, finish),) = bench.samples(request)
    assert (len(ids), finish) == (most, "stop" if most == 8 else "length")
    assert text(ids)[1:] == RUN[: most - 1] + text(ids)[7:]


def test_a_run_ends_before_an_id_that_ends_the_sample() -> None:
    stop = PIECES.index("!")
    bench = Bench()
    assert bench.steps(f"[ab]{RUN}[12]", Sampling(max_tokens=30, stop_token_ids=(stop,))) == 2
    assert bench.engine.forced == RUN.index("!")


def test_where_the_text_may_end_nothing_is_forced() -> None:
    bench = Bench()
    bench.steps("é(é)?")
    assert bench.engine.forced == 1
    # Unless nothing can end it there, by its own or by `min_tokens`.
    bench = Bench()
    bench.steps("é(é)?", Sampling(max_tokens=30, ignore_eos=True))
    assert bench.engine.forced == 2
    bench = Bench()
    bench.steps("é(é)?", Sampling(max_tokens=30, min_tokens=2))
    assert bench.engine.forced == 2


def test_a_run_longer_than_the_budget_takes_several_steps() -> None:
    assert Bench(token_budget=4, max_rows=2).steps(f"[ab]{RUN * 2}[12]") == 3 + 4


@pytest.mark.parametrize("watch", [True, False])
def test_a_run_comes_in_steps_that_others_can_wait_for(watch: bool) -> None:
    """With costs, while a row decodes that somebody looks at, also where a run follows a prompt."""
    cost = StepCost(products_s=((1, 1e-3), (10, 1e-3), (20, 2e-3), (100, 1e-2)), key_s=0.0, pair_s=0.0)
    bench = Bench(depth=1, cost=cost)
    bench.gen(LONG[:3], Sampling(max_tokens=60, ignore_eos=True), watch=watch)
    bench.step(3)
    pattern = f"{RUN * 8}[ab]"
    request = bench.engine.gen(
        bench.engine.extend(None, LONG[:9]), Sampling(max_tokens=60), (1,), eos_ids=EOS,
        constraint=CONSTRAINTS.regex(pattern), watch=watch,
    )  # fmt: skip
    bench.run()
    truth = bench.oracle.continuation(LONG[:9], Sampling(max_tokens=60), 1, CONSTRAINTS.regex(pattern))
    assert bench.samples(request) == [truth]
    most = max(step.decoding + len(step.ids) for step in bench.oracle.steps)
    assert (most <= 33) is watch, "what the cost affords for 20 tokens, and a short prompt"


def test_without_pages_for_a_run_its_ids_are_sampled() -> None:
    bench = Bench(pages=7, page_size=4, max_rows=2)
    other = bench.gen(LONG[20:28], Sampling(max_tokens=4, ignore_eos=True))
    request = bench.constrained(f"[ab]{RUN}[12]", Sampling(max_tokens=12))
    bench.run()
    assert len(bench.samples(request)[0][0]) == 8
    assert len(bench.samples(other)[0][0]) == 4
    assert bench.nothing_left()


def test_a_stream_shows_the_text_of_a_run() -> None:
    bench = test_segments.Bench(depth=2)
    done = bench.run(
        OpenNode(), ExtendNode(0, ("cd",)), gen(1, regex="(a|b)hfhfh(a|b) ", max_tokens=60, canonical=False)
    )
    deltas = [event for _, event in bench.events if isinstance(event, Delta)]
    (sample,) = done[2].samples
    assert "".join(delta.text for delta in deltas) == sample.text
    assert [i for delta in deltas for _, i, _ in delta.tokens] == list(sample.ids)
    assert [p for delta in deltas for p, _, _ in delta.tokens] == list(sample.logprobs)
    assert bench.machine.engine.forced >= 5


def test_a_stop_string_inside_a_run_cuts_it() -> None:
    bench = test_segments.Bench(depth=2)
    done = bench.run(
        OpenNode(), ExtendNode(0, ("cd",)), gen(1, regex="(a|b)hfhgh(a|b) ", stop=("hg",), max_tokens=60)
    )
    (sample,) = done[2].samples
    assert sample.text[1:] == "hf"
    assert sample.finish == "stop"


# -- the real model


def unforced(request: EngineRequest, state: int, made: int) -> None:
    """As if no id were ever certain."""


def steps_of(local: LocalBackend, prompt: str, **sampling: object) -> tuple[GenDone, int]:
    answer(local, "Hi", max_tokens=1)  # the machine is there, and has come to rest
    assert local.machine is not None
    before = local.machine.engine._next_step
    done = answer(local, prompt, **sampling)
    return done, local.machine.engine._next_step - before


SCHEMA = record(city={"type": "string", "maxLength": 8}, capital={"type": "boolean"})
HARRY = (
    "Harry Potter is a character in Harry Potter. "
    "Please fill in the following information about this character.\n"
)


# Each pair of settings is among the first four.
SETTINGS = [
    ("schema", 0.0, True), ("regex", 1.5, True), ("schema", 1.5, False), ("regex", 0.0, False),
    ("schema", 0.0, False), ("regex", 1.5, False), ("schema", 1.5, True), ("regex", 0.0, True),
]  # fmt: skip


@pytest.mark.parametrize(("form", "temperature", "canonical"), SETTINGS[: at_depth(2, 2, 8)])
def test_ids_and_logprobs_are_those_of_one_step_each(
    local: LocalBackend, monkeypatch: pytest.MonkeyPatch, form: str, temperature: float, canonical: bool
) -> None:
    wanted = {"regex": CITY} if form == "regex" else {"json_schema": json.dumps(SCHEMA)}
    asked = {"max_tokens": 80, "n": 2, "top_logprobs": 2}
    sampling = {**wanted, **asked, "temperature": temperature, "canonical": canonical}
    done, steps = steps_of(local, "Paris as JSON: ", **sampling)
    monkeypatch.setattr(forced_module, "forced_run", unforced)
    alone, more = steps_of(local, "Paris as JSON: ", **sampling)
    assert steps < more
    for forced, single in zip(done.samples, alone.samples, strict=True):
        assert (forced.ids, forced.text, forced.finish) == (single.ids, single.text, single.finish)
        assert np.abs(np.subtract(forced.logprobs, single.logprobs)).max() < 1e-4
        best = [[logprob for logprob, _, _ in place] for place in forced.top_logprobs]
        others = [[logprob for logprob, _, _ in place] for place in single.top_logprobs]
        assert np.abs(np.subtract(best, others)).max() < 1e-4


@pytest.mark.model
@pytest.mark.parametrize(
    ("pattern", "prompt", "fewer", "fewer_alike"),
    some_of([(CITY, "Paris as JSON: ", 2.1, 2.1), (CHARACTER, HARRY, 4.0, 3.5)], 1, 1),
    ids=lambda each: str(each)[:20],
)
def test_fewer_steps(
    local: LocalBackend,
    monkeypatch: pytest.MonkeyPatch,
    pattern: str,
    prompt: str,
    fewer: float,
    fewer_alike: float,
) -> None:
    """Against any spelling with a step for each token, and against the same tokens with a step each."""
    done, steps = steps_of(local, prompt, regex=pattern, max_tokens=250, temperature=0.0)
    monkeypatch.setattr(forced_module, "forced_run", unforced)
    alike, each = steps_of(local, prompt, regex=pattern, max_tokens=250, temperature=0.0)
    any_, most = steps_of(local, prompt, regex=pattern, max_tokens=250, temperature=0.0, canonical=False)
    assert each == len(alike.samples[0].ids) == len(done.samples[0].ids)
    assert most == len(any_.samples[0].ids)
    assert re.fullmatch(pattern, done.samples[0].text, re.ASCII)
    assert re.fullmatch(pattern, any_.samples[0].text, re.ASCII)
    assert each >= fewer_alike * steps
    assert most >= fewer * steps
