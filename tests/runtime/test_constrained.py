"""Constrained generations: on the engine beside free ones, in segments, and on the real model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import numpy as np
import pytest

from sglc.backends.local import LocalBackend
from sglc.errors import Loc
from sglc.ir.core import Site
from sglc.ir.plan.events import Event, GenDone, NodeFailed
from sglc.ir.plan.segment import ExtendNode, GenNode, OpenNode, Segment
from sglc.ir.sampling import Sampling
from sglc.runtime.constraints.constraint import Constraints
from tests.depth import few
from tests.runtime import test_engine, test_segments
from tests.runtime.test_engine import EOS, LONG
from tests.runtime.test_segments import gen

# As many ids as the oracle has: 3 ends a turn, 4 to 28 are letters and pairs of them.
PIECES = ["", "a", "b", "", *"cdefgh0123456789", "ab", "abc", "12", "007", "é", "ha", " ", ".", "!"]
BYTES = [piece.encode() for piece in PIECES]
CONSTRAINTS = Constraints(BYTES, len(BYTES))


def text(ids: Sequence[int]) -> str:
    return b"".join(BYTES[token] for token in ids).decode()


class Bench(test_engine.Bench):
    def constrained(
        self,
        pattern: str,
        sampling: Sampling | None = None,
        seeds: Sequence[int] = (1,),
        ids: Sequence[int] = LONG,
    ) -> int:
        handle = self.engine.extend(None, ids[:9])
        constraint = CONSTRAINTS.regex(pattern)
        sampling = sampling or Sampling(max_tokens=30)
        return self.engine.gen(handle, sampling, seeds, eos_ids=EOS, constraint=constraint)

    def one(self, pattern: str, sampling: Sampling | None = None) -> tuple[str, str]:
        """Text and finish."""
        request = self.constrained(pattern, sampling)
        self.run()
        ((ids, _, finish),) = self.samples(request)
        return text(ids), finish


@pytest.mark.parametrize("depth", few([1, 2, 3, 4], 2))
@pytest.mark.parametrize("token_budget", [7, 256])
def test_constrained_and_free_rows_side_by_side(depth: int, token_budget: int) -> None:
    bench = Bench(depth=depth, token_budget=token_budget, max_rows=6)
    patterns = ("[0-9]{4}", "(ab|12)+", "[a-h]*!", "é{2}.*", "(a|bee|h007)( |a)", r"\d+\.\d{2}")
    sampling = Sampling(max_tokens=12, n=2)
    made = []
    for i, pattern in enumerate(patterns):
        made.append((pattern, bench.constrained(pattern, sampling, [i, i + 50], LONG[i:]), LONG[i : i + 9]))
        made.append((None, bench.gen(LONG[i : i + 12], sampling, [i, i + 50]), LONG[i : i + 12]))
    bench.run()
    ended = 0
    for i, (pattern, request, prompt) in enumerate(made):
        constraint = None if pattern is None else CONSTRAINTS.regex(pattern)
        truth = [bench.oracle.continuation(prompt, sampling, s, constraint) for s in (i // 2, i // 2 + 50)]
        assert bench.samples(request) == truth
        for ids, _, finish in truth if pattern else []:
            assert finish == "length" or re.fullmatch(pattern, text(ids)), (pattern, text(ids))
            ended += finish == "stop"
    assert ended >= 5
    assert bench.nothing_left()


@pytest.mark.parametrize("depth", [2, 4])
def test_only_free_rows_look_ahead(depth: int) -> None:
    bench = Bench(depth=depth)
    bench.constrained("[ab]{20}")
    bench.constrained("[0-9]{20}")
    bench.gen(LONG[:12], Sampling(max_tokens=20, ignore_eos=True))
    bench.run()
    ahead, before = [0, 0, 0], [-1, -1, -1]
    for step, drained in zip(bench.oracle.steps, bench.oracle.drained, strict=True):
        for row in step.rows.tolist():
            ahead[row] += before[row] > drained
            before[row] = step.index
        assert set(step.rows[step.masked].tolist()) == set(step.rows.tolist()) & {0, 1}
    assert ahead[:2] == [0, 0]
    assert ahead[2] > 15


def test_a_generation_ends_where_nothing_can_follow() -> None:
    done, finish = Bench().one("[0-9]{4}")
    assert re.fullmatch("[0-9]{4}", done)
    assert finish == "stop"
    done, finish = Bench().one("[0-9]{4}", Sampling(max_tokens=4, ignore_eos=True, min_tokens=4))
    assert (len(done), finish) == (4, "stop")
    # The last token of `max_tokens` completes the text: it is whole.
    assert Bench().one("[ab]", Sampling(max_tokens=1))[1] == "stop"
    assert Bench().one("[a-h]{9,}", Sampling(max_tokens=2))[1] == "length"


def test_an_end_is_sampled_only_where_the_text_may_end() -> None:
    lengths = set()
    for seed in range(60):
        bench = Bench()
        request = bench.constrained("(ab|ba)+", seeds=[seed])
        bench.run()
        ((ids, _, finish),) = bench.samples(request)
        assert finish == "length" or re.fullmatch("(ab|ba)+", text(ids))
        lengths.add(len(ids))
    assert len(lengths) > 3


def test_min_tokens_go_on_where_they_can_and_end_where_they_cannot() -> None:
    for seed in range(20):
        bench = Bench()
        more = bench.constrained("a[a-h]*", Sampling(max_tokens=9, min_tokens=5), [seed])
        less = bench.constrained("a[a-h]", Sampling(max_tokens=9, min_tokens=5), [seed])
        bench.run()
        assert len(bench.samples(more)[0][0]) >= 5
        assert re.fullmatch("a[a-h]", text(bench.samples(less)[0][0]))
        assert bench.samples(less)[0][2] == "stop"


def test_a_stop_id_that_is_text_ends_a_sample_where_it_may_follow() -> None:
    """As a stop string does; before `min_tokens` it is text."""
    stop, seen = PIECES.index("!"), set()
    for seed in range(80):
        bench = Bench()
        sampling = Sampling(max_tokens=8, stop_token_ids=(stop, 10_000), min_tokens=2)
        request = bench.constrained("([a-h]|é!)+", sampling, [seed])
        bench.run()
        ((ids, _, finish),) = bench.samples(request)
        assert finish == "length" or re.fullmatch("([a-h]|é!)+", text(ids) + "!" * text(ids).endswith("é"))
        assert stop not in ids[2:]
        seen.add((finish, stop in ids, text(ids).endswith("é")))
    assert seen >= {("stop", False, True), ("stop", False, False), ("stop", True, False)}


@pytest.mark.parametrize("depth", [1, 3])
def test_cut_and_abort_of_a_constrained_row(depth: int) -> None:
    bench = Bench(depth=depth)
    cut = bench.constrained("[ab]{12}", seeds=[1, 2], sampling=Sampling(max_tokens=30, n=2))
    gone = bench.constrained("[0-9]{12}")
    bench.step(3 * depth)
    bench.engine.cut(cut, 0, 1)
    bench.engine.abort(gone)
    bench.run()
    first, second = bench.samples(cut)
    assert len(first[0]) == 1
    assert re.fullmatch("[ab]{12}", text(second[0]))
    assert bench.nothing_left()


# -- segments


def test_a_segment_s_generation_obeys_its_regex() -> None:
    for seed in range(10):
        bench = test_segments.Bench(depth=3)
        done = bench.run(
            OpenNode(), ExtendNode(0, ("cd",)), gen(1, regex="(ab|g)+h ", n=2, max_tokens=60, seed=seed),
            ExtendNode(2, ("e",)), gen(3, "y"),
        )  # fmt: skip
        for sample in done[2].samples:
            assert re.fullmatch("(ab|g)+h ", sample.text), sample.text
            assert sample.finish == "stop"
        assert done[4].prompt_ids == (*test_segments.ids("cd"), *done[2].samples[0].ids, 5)


def test_a_stop_string_cuts_a_constrained_text() -> None:
    bench = test_segments.Bench(depth=2)
    done = bench.run(OpenNode(), ExtendNode(0, ("cd",)), gen(1, regex="[fgh]{30} ", stop=("g",), max_tokens=60))
    (sample,) = done[2].samples
    assert re.fullmatch("[fh]*", sample.text)
    assert sample.finish == "stop"


def test_a_regex_that_cannot_be_is_an_error_at_the_generation() -> None:
    for regex, code in (("(", "SGLC450"), (r"(a)\1", "SGLC451"), ("xyz", "SGLC454"), ("", "SGLC454")):
        bench = test_segments.Bench()
        done = bench.run(OpenNode(), ExtendNode(0, ("cd",)), gen(1, regex=regex), ExtendNode(0, ("d",)), gen(3))
        assert isinstance(done[2], NodeFailed)
        assert done[2].error.code == code
        assert done[2].error.loc == test_segments.LOC
        assert isinstance(done[4], GenDone)
        assert bench.machine.engine.handles._sequences == {}


# -- the real model


def answer(local: LocalBackend, prompt: str, **sampling: object) -> GenDone:
    node = GenNode(1, Site("f", (), "x"), Sampling(**{"seed": 5, **sampling}), Loc("f.py", 1))  # type: ignore[arg-type]
    segment = Segment((OpenNode(), ExtendNode(0, (prompt,)), node))

    async def events() -> list[Event]:
        return [event async for event in local.submit(segment)]

    (done,) = [event for event in asyncio.run(events()) if isinstance(event, GenDone | NodeFailed)]
    assert isinstance(done, GenDone), done
    return done


IP = r"((25[0-5]|2[0-4]\d|[01]?\d?\d)\.){3}(25[0-5]|2[0-4]\d|[01]?\d?\d)"


@pytest.mark.parametrize(
    ("prompt", "regex"),
    [
        ("The IP address of Google's DNS server is ", IP),
        ("Is Paris in France? Answer: ", "yes|no|maybe"),
        ("A city and its country: ", r'\{"city": "[A-Z][a-z]{1,8}"\}'),
        ("서울은 ", "[가-힣]{2,4}[.!]"),
    ],
)
def test_a_real_model_obeys(local: LocalBackend, prompt: str, regex: str) -> None:
    done = answer(local, prompt, regex=regex, max_tokens=40, n=3, temperature=1.5)
    for sample in done.samples:
        assert re.fullmatch(regex, sample.text), sample.text
        assert sample.finish == "stop"
        assert np.isfinite(sample.logprobs).all()


def test_an_integer_of_a_real_model_ends_at_a_stop_string(local: LocalBackend) -> None:
    prompt = "Q: How many legs does a dog have?\nA: 4\nQ: How many legs does a spider have?\nA: "
    done = answer(local, prompt, regex=r"[-+]?[0-9]+[ \n]*", stop=(" ", "\n"), max_tokens=12, temperature=0.0)
    (sample,) = done.samples
    assert re.fullmatch(r"[-+]?[0-9]+", sample.text)
    assert sample.finish == "stop"


def test_four_digits_end_by_themselves(local: LocalBackend) -> None:
    done = answer(local, "The French Revolution began in ", regex="[0-9]{4}", temperature=0.0, ignore_eos=True)
    (sample,) = done.samples
    assert re.fullmatch("[0-9]{4}", sample.text)
    assert sample.finish == "stop"
    assert done.usage.completion == len(sample.ids)
