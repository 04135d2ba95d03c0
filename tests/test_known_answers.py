"""Segments of which some answers are known: the same results and prompts, and only the rest is asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.local import LocalBackend
from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.execution.answers.known_answers import submit_unknown
from sglc.execution.answers.prompts import Inputs, Streams
from sglc.execution.result import Result
from sglc.ir.core import Site
from sglc.ir.plan.backend import Backend
from sglc.ir.plan.events import Event, GenDone, SelectDone
from sglc.ir.plan.segment import GenNode, KeepNode, ReleaseNode, Segment, SelectNode
from sglc.runtime.tokenizer.tokenizer import LocalTokenizer
from tests.depth import at_depth
from tests.oracle_backend import OracleBackend
from tests.prompt_ids import PromptIds
from tests.random_programs import ARGS
from tests.test_plan_run import Recorded
from tests.test_record import ran, random_plan

pytestmark = pytest.mark.slow

Answers = dict[Site, GenDone | SelectDone]


class Handed:
    """What is handed over: `asked` of it, and the streams that are `kept` by then."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.target = inner, inner.target
        self.asked: set[Site] = set()
        self.kept: set[int | str] = set()

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        assert segment.nodes
        for node in segment.nodes:
            if isinstance(node, GenNode | SelectNode):
                self.asked.add(node.site)
            elif isinstance(node, KeepNode):
                self.kept.add(node.handle)
            elif isinstance(node, ReleaseNode):
                self.kept.remove(node.handle)
        events: AsyncIterator[Event] = self.inner.submit(segment, streams=streams)
        return events


class Knowing:
    """A back end that knows some answers; `answers` are those that it gave, `prompts` what it was asked by."""

    def __init__(self, inner: Any, known: Mapping[Site, GenDone | SelectDone]) -> None:
        self.handed, self.target = Handed(inner), inner.target
        self.answers: Answers = {}
        self.prompts: dict[Site, Inputs] = {}
        self._known = known
        self._streams = Streams()

    def start(self) -> None:
        self.handed.inner.start()

    def close(self) -> None:
        """The inner one is the test's."""

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        followed = self._streams.follow(segment)
        handed: Any = self.handed
        events = submit_unknown(handed, self._streams, followed, self._look, streams=streams)
        return self._noted(segment, events)

    def _look(self, index: int, node: GenNode | SelectNode, inputs: Inputs) -> GenDone | SelectDone | None:
        self.prompts[node.site] = inputs
        done = self._known.get(node.site)
        return None if done is None else replace(done, node=index)

    async def _noted(self, segment: Segment, events: AsyncIterator[Event]) -> AsyncIterator[Event]:
        async for event in events:
            node = segment.nodes[event.node]
            if isinstance(event, GenDone | SelectDone) and isinstance(node, GenNode | SelectNode):
                self.answers[node.site] = event
            yield event


def some(sites: Iterable[Site], random: Random) -> set[Site]:
    """None, all, all but one, or any of them."""
    every = sorted(sites, key=str)
    match random.randrange(6):
        case 0:
            return set()
        case 1:
            return set(every)
        case 2:
            return set(every) - {random.choice(every)} if every else set()
        case _:
            return {site for site in every if random.random() < 0.6}


def same(made: Result, again: Result) -> None:
    assert type(again.error()) is type(made.error())
    if made.error() is None:
        assert again.text() == made.text()
        assert again.messages() == made.messages()
        assert again.ret_value == made.ret_value
    assert again.partial_text == made.partial_text
    assert again.variables == made.variables
    assert {call.site: call.prompt_ids for call in again.calls} == {
        call.site: call.prompt_ids for call in made.calls
    }


def check(
    run: Callable[[Backend], Result], inner: Callable[[], Any], random: Random, subsets: int
) -> tuple[int, int]:
    """Runs with any of the answers known; how many of them were given, and how many asked for."""
    given = asked = 0
    first: Any = Knowing(inner(), {})
    made = run(first)
    for _ in range(subsets):
        known = some(first.answers, random)
        again: Any = Knowing(inner(), {site: first.answers[site] for site in known})
        same(made, run(again))
        # What was asked for is what was not known, and what reads an answer that had to be waited for.
        late = {site for site in known if site not in again.prompts}
        assert again.handed.asked == (set(first.answers) - known) | late
        assert {site: found for site, found in first.prompts.items() if site in again.prompts} == {
            site: found for site, found in again.prompts.items() if site in first.prompts
        }
        assert again.answers.keys() == first.answers.keys()
        assert not again.handed.kept, "streams are kept"
        assert not again._streams.unsent
        if known == set(first.answers):
            assert not again.handed.asked
        given += len(first.answers) - len(again.handed.asked)
        asked += len(again.handed.asked)
    return given, asked


# -- programs ----------------------------------------------------------------------------------------


@sgl.function
def looking(s: Any, q: str) -> str:
    """Python looks at what was made, so the streams are kept from one launch to the next."""
    s += "Q: " + q + " A" + sgl.gen("a", max_tokens=3) + "1"
    forks = s.fork(3)
    for number, fork in enumerate(forks):
        fork += f" tip {number} is" + sgl.gen("tip", max_tokens=2, n=1 + number)
    said = str(forks[1]["tip"]) + s["a"]
    s += "23" + said + " inter" + sgl.select("best", ["nation", s["a"] + "!", "national"])
    if s["best"] == "nation":
        s += "al" + sgl.gen("nation", max_tokens=1)
    s += "al in" + sgl.gen("b", max_tokens=0) + "ter" + sgl.gen("c", max_tokens=4, stop=list("aeiou")) + "ing"
    s += sgl.gen("d", max_tokens=2, temperature=0) + s["c"].upper() + "er" + sgl.gen("e", max_tokens=1)
    return said


@sgl.function
def turns(s: Any, q: str) -> None:
    s += sgl.system("Be brief.") + sgl.user(q) + sgl.assistant(sgl.gen("a", max_tokens=3))
    for word in ("Why?", "How?"):
        s += sgl.user(word) + sgl.assistant("So " + sgl.gen(word, max_tokens=3, stop=".") + ", " + q)
    s += sgl.user("Yes?") + sgl.assistant(sgl.select("yes", ["yes", "no"]))


PROGRAMS = (looking, turns)


@pytest.mark.parametrize(("program", "mode"), [(looking, "auto"), (turns, "plan"), (turns, "python")])
def test_programs_on_ids(program: Any, mode: str, default_tokenizer: LocalTokenizer) -> None:
    def run(backend: Backend) -> Result:
        result: Result = program.run("where?", backend=backend, seed=7, mode=mode).sync()
        return result

    given, asked = check(run, lambda: PromptIds(default_tokenizer), Random(3), at_depth(8, 12, 200))
    assert given > 10
    assert asked > 3


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs_on_a_model(program: Any, local: LocalBackend) -> None:
    """Its tokens merge with what stands beside them, and generations of it end inside of them."""

    def run(backend: Backend) -> Result:
        result: Result = program.run("where?", backend=backend, seed=7).sync()
        return result

    given, asked = check(run, lambda: local, Random(4), at_depth(4, 6, 60))
    assert given > 3
    assert asked > 3


def test_random_plans() -> None:
    backend = OracleBackend()
    given = asked = 0
    for seed in range(at_depth(5, 8, 400)):
        plan = random_plan(seed, backend)

        def run(used: Backend, plan: Any = plan, seed: int = seed) -> Result:
            return ran(plan, {**ARGS, "b": "beta"}, Recorded(), backend=used, seed=seed)

        more, rest = check(run, lambda: backend, Random(seed), at_depth(2, 3, 6))
        given, asked = given + more, asked + rest
    backend.close()
    assert given > at_depth(6, 12, 600)
    assert asked > at_depth(6, 12, 600)


def test_an_answer_is_given_in_pieces_and_as_a_whole() -> None:
    @sgl.function
    def one(s: Any) -> None:
        s += "Q" + sgl.gen("a")

    def say(asked: Asked) -> str:
        return "some words"

    first = Knowing(ScriptedBackend(say), {})
    used: Any = first
    made = one.run(backend=used, seed=1).sync()
    again: Any = Knowing(ScriptedBackend(say), first.answers)
    assert list(one.stream(backend=again, seed=1)) == [(made.calls[0].site, "some words")]
    assert again.handed.asked == set()
