"""Segments on the engine with the oracle: dataflow, literal runs, stop strings, kept streams, failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from sglc.errors import Loc, RunError
from sglc.ir.core import Site
from sglc.ir.plan.events import Delta, Event, GenDone, NodeFailed, SelectDone
from sglc.ir.plan.segment import (
    ExtendNode,
    ForkNode,
    GenNode,
    KeepNode,
    Node,
    NodeResult,
    OpenNode,
    ReleaseNode,
    Segment,
    SelectNode,
)
from sglc.ir.sampling import Sampling
from sglc.ir.target import ControlText, Objects
from sglc.runtime.engine.engine import Engine, EngineConfig
from sglc.runtime.engine.generation import sample_seed
from sglc.runtime.engine.machine import Machine
from tests.reference.oracle import Oracle

LOC = Loc("program.py", 3, 5, 9)
MERGED = "ab"  # one token of its own: merges over the border of two appends


class Letters:
    """A tokenizer whose ids are letters, with one merge."""

    alphabet = ("<", "a", "b", "c", "d", "e", "f", "g", "h", " ", MERGED)
    hash = "letters"
    bos_id = None
    eos_ids = (0,)
    control: Mapping[int, str] = {0: "<"}
    has_template = False

    def encode(self, text: str) -> list[int]:
        ids = []
        while text:
            piece = MERGED if text.startswith(MERGED) else text[0]
            ids.append(self.alphabet.index(piece))
            text = text[len(piece) :]
        return ids

    def encode_within(self, text: str) -> list[int]:
        return self.encode(text)

    def cut(self, text: str) -> int:
        return len(text.removesuffix(MERGED[0]))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.alphabet[i] for i in ids if i)

    def token_bytes(self) -> list[bytes]:
        return [b"", *(piece.encode() for piece in self.alphabet[1:])]

    def split_control(self, markup: str) -> tuple[str | ControlText, ...]:
        raise NotImplementedError

    def render(self, messages: Objects, *, generate: bool, tools: Objects | None = None) -> str:
        raise NotImplementedError


class SpacedLetters(Letters):
    """Puts a space before what begins a sequence, and what stands behind a control token."""

    def encode(self, text: str) -> list[int]:
        return super().encode(" " + text) if text else []

    def encode_within(self, text: str) -> list[int]:
        return super().encode(text)


@dataclass
class Bench:
    depth: int = 1
    pages: int = 64
    tokenizer: Letters = field(default_factory=Letters)
    events: list[tuple[str, Event]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.oracle = Oracle(pages=self.pages, page_size=4, depth=self.depth, vocab_size=11, eos_ids=(0,))
        self.machine = Machine(Engine(self.oracle, EngineConfig(max_rows=8, max_len=120)), self.tokenizer)

    def submit(self, *nodes: Node, name: str = "s", streams: bool = True, in_part: bool = False) -> object:
        return self.machine.submit(
            Segment(nodes),
            lambda event: self.events.append((name, event)),
            lambda: self.ended.append(name),
            streams=streams,
            in_part=in_part,
        )

    def run(self, *nodes: Node, name: str = "s", streams: bool = True) -> dict[int, Any]:
        self.submit(*nodes, name=name, streams=streams)
        self.drain()
        assert name in self.ended
        return self.done(name)

    def drain(self) -> None:
        for _ in range(2_000):
            if self.machine.idle:
                return
            self.machine.step()
        raise AssertionError("the machine does not come to an end")

    def done(self, name: str = "s") -> dict[int, Any]:
        return {event.node: event for of, event in self.events if of == name and not isinstance(event, Delta)}


def gen(stream: int, name: str = "x", **sampling: Any) -> GenNode:
    given: dict[str, Any] = {"max_tokens": 5, "seed": 1, "ignore_eos": True, **sampling}
    return GenNode(stream, Site("f", (), name), Sampling(**given), LOC)


def select(stream: int, *choices: Any) -> SelectNode:
    return SelectNode(stream, Site("f", (), "choice"), choices, "token_length_normalized", LOC)


def ids(text: str) -> tuple[int, ...]:
    return tuple(Letters().encode(text))


@pytest.mark.parametrize("depth", [1, 4])
def test_literal_gen_literal_gen_is_one_submit(depth: int) -> None:
    bench = Bench(depth)
    done = bench.run(OpenNode(), ExtendNode(0, ("cd",)), gen(1), ExtendNode(2, (" e",)), gen(3, "y", seed=2))
    first, second = done[2], done[4]
    assert bench.machine.submits == 1
    assert first.prompt_ids == ids("cd")
    assert second.prompt_ids == (*ids("cd"), *first.samples[0].ids, *ids(" e"))
    # The second prompt is the first one's stream: its ids were computed already, but the last one.
    assert second.usage.computed == 3
    assert (
        first.samples[0].ids
        == bench.oracle.continuation(ids("cd"), Sampling(max_tokens=5, ignore_eos=True), sample_seed(1, 0))[0]
    )


def test_a_literal_run_is_encoded_as_one_string() -> None:
    bench = Bench()
    done = bench.run(
        OpenNode(), ExtendNode(0, ("ca",)), ForkNode(1, 2), ExtendNode(2, ("b",)), gen(3),
        ExtendNode(2, ("d",)), gen(5),
    )  # fmt: skip
    assert done[4].prompt_ids == ids("c" + MERGED)
    assert done[6].prompt_ids == ids("cad")


def test_control_tokens_split_a_literal_run() -> None:
    done = Bench().run(OpenNode(), ExtendNode(0, ("a", ControlText("<", (0,)), "b")), gen(1))
    assert done[2].prompt_ids == (1, 0, 2)


def test_text_that_goes_on_gets_no_space() -> None:
    done = Bench(tokenizer=SpacedLetters()).run(
        OpenNode(), ExtendNode(0, ("c", ControlText("<", (0,)), "d")), gen(1), ExtendNode(2, ("e",)), gen(3),
        select(4, "a", "b"), ForkNode(1, 1), select(6, "a", "b"), OpenNode(), ExtendNode(8, ("c",)),
        select(9, "a", "b"),
    )  # fmt: skip
    first = done[2].samples[0].ids
    assert first[-1] != 0
    assert done[2].prompt_ids == (*ids(" c"), 0, *ids(" d"))
    assert done[4].prompt_ids == (*done[2].prompt_ids, *first, *ids("e"))
    assert [done[at].choice_ids for at in (5, 7, 10)] == [(ids("a"), ids("b"))] * 3
    assert done[7].prompt_ids == done[2].prompt_ids
    assert done[10].prompt_ids == ids(" c")


def test_a_result_is_text_and_not_ids() -> None:
    bench = Bench()
    done = bench.run(
        OpenNode(), ExtendNode(0, ("c",)), gen(1), OpenNode(), ExtendNode(3, ("d", NodeResult(2))), gen(4)
    )
    text = done[2].samples[0].text
    assert done[5].prompt_ids == ids("d" + text)


def test_a_stop_string_leaves_its_rest_as_a_literal() -> None:
    bench = Bench(depth=3)
    free = bench.run(OpenNode(), ExtendNode(0, ("cd",)), gen(1, max_tokens=20), name="free")[2].samples[0]
    stop = free.text[6:8]
    at = free.text.index(stop)
    done = bench.run(
        OpenNode(), ExtendNode(0, ("cd",)), gen(1, max_tokens=20, stop=(stop,)), ExtendNode(2, (" e",)), gen(3)
    )
    sample = done[2].samples[0]
    assert sample.text == free.text[:at]
    assert sample.finish == "stop"
    assert Letters().decode(done[4].prompt_ids) == "cd" + free.text[:at] + " e"
    deltas = [
        event.text for of, event in bench.events if of == "s" and isinstance(event, Delta) and event.node == 2
    ]
    assert "".join(deltas) == sample.text


def test_a_stop_string_ends_a_text_before_its_min_tokens() -> None:
    """As in SGLang; an id does not."""
    free = Bench().run(OpenNode(), ExtendNode(0, ("cd",)), gen(1, max_tokens=20))[2].samples[0]
    given: dict[str, Any] = {"max_tokens": 20, "min_tokens": 15}
    stopped = (
        Bench().run(OpenNode(), ExtendNode(0, ("cd",)), gen(1, stop=(free.text[6:8],), **given))[2].samples[0]
    )
    assert (stopped.text, stopped.finish) == (free.text[: free.text.index(free.text[6:8])], "stop")
    whole = (
        Bench()
        .run(OpenNode(), ExtendNode(0, ("cd",)), gen(1, stop_token_ids=(free.ids[3],), **given))[2]
        .samples[0]
    )
    assert len(whole.ids) >= 15


def test_samples_have_their_own_seeds_and_the_first_goes_on() -> None:
    done = Bench().run(OpenNode(), ExtendNode(0, ("cd",)), gen(1, n=4), ExtendNode(2, ("e",)), gen(3))
    samples = done[2].samples
    assert len({sample.ids for sample in samples}) == 4
    assert done[4].prompt_ids == (*ids("cd"), *samples[0].ids, *ids("e"))


def test_a_choice_that_merges_with_the_prompt_is_scored_from_the_common_ids() -> None:
    done = Bench().run(OpenNode(), ExtendNode(0, ("ca",)), select(1, "b", "cd"), gen(2))
    choice = done[2]
    assert isinstance(choice, SelectDone)
    assert choice.prompt_ids == ids("c")
    assert choice.choice_ids == (ids(MERGED), ids("acd"))
    means = [sum(values) / len(values) for values in choice.logprobs]
    assert list(choice.scores) == pytest.approx(means)
    assert choice.choice == max(range(2), key=lambda i: means[i])
    assert done[3].prompt_ids == ids("ca" + choice.text)


def test_a_kept_stream_is_continued_by_another_segment() -> None:
    bench = Bench()
    first = bench.run(
        OpenNode(), ExtendNode(0, ("cdefgh",)), gen(1), ExtendNode(2, ("a",)), KeepNode(3, 7), name="one"
    )
    second = bench.run(OpenNode(7), ExtendNode(0, ("b",)), gen(1), ReleaseNode(7), name="two")
    prompt = (*ids("cdefgh"), *first[2].samples[0].ids)
    assert second[2].prompt_ids == (*prompt, *ids(MERGED))
    assert second[2].usage.cached == len(prompt) - 1  # the last generated id has no KV yet
    assert isinstance(bench.run(OpenNode(7), gen(0), name="three")[1], NodeFailed)


def test_a_stream_may_be_continued_before_it_is_there() -> None:
    bench = Bench()
    bench.submit(OpenNode(), ExtendNode(0, ("cd",)), gen(1), KeepNode(2, 7), name="one")
    bench.submit(OpenNode(7), ExtendNode(0, ("e",)), gen(1), ReleaseNode(7), name="two")
    bench.drain()
    assert bench.ended == ["one", "two"]
    assert bench.done("two")[2].prompt_ids == (*ids("cd"), *bench.done("one")[2].samples[0].ids, *ids("e"))
    assert bench.machine._kept.empty


def test_a_failure_takes_its_readers_along_and_nothing_else() -> None:
    bench = Bench()
    done = bench.run(
        OpenNode(), ExtendNode(0, ("c" * 200,)), gen(1), ExtendNode(2, ("d",)), gen(3), KeepNode(4, 9),
        ExtendNode(0, ("cd",)), gen(6),
    )  # fmt: skip
    assert [i for i, event in done.items() if isinstance(event, NodeFailed)] == [2, 3, 4, 5]
    assert done[2].error.loc == LOC
    assert isinstance(done[7], GenDone)
    assert isinstance(bench.run(OpenNode(9), gen(0), name="later")[1], NodeFailed)


def test_nothing_before_a_generation_is_an_error_with_its_place() -> None:
    done = Bench().run(OpenNode(), gen(0), select(0, "a"))
    assert [type(done[i].error) for i in (1, 2)] == [RunError, RunError]
    assert done[1].error.loc == LOC


@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_abort_ends_a_segment_and_those_that_wait_for_its_streams(depth: int, steps: int) -> None:
    bench = Bench(depth)
    run = bench.submit(OpenNode(), ExtendNode(0, ("cd",)), gen(1, max_tokens=30), KeepNode(2, 7), name="one")
    bench.submit(OpenNode(7), gen(0), name="two")
    bench.submit(OpenNode(), ExtendNode(0, ("ef",)), gen(1), name="three")
    for _ in range(steps):
        bench.machine.step()
    before = len([event for of, event in bench.events if of == "one"])
    bench.machine.abort(run)
    bench.drain()
    assert len([event for of, event in bench.events if of == "one"]) == before
    assert sorted(bench.ended) == ["three", "two"]
    assert all(isinstance(event, NodeFailed) for event in bench.done("two").values())
    assert isinstance(bench.done("three")[2], GenDone)


def test_what_was_stopped_does_not_go_on_when_the_stream_comes_that_it_waited_for() -> None:
    bench = Bench()
    bench.submit(OpenNode(), ExtendNode(0, ("cd",)), gen(1), KeepNode(2, 7), name="one")
    waiting = bench.submit(OpenNode(7), gen(0), name="two")
    bench.machine.abort(waiting)
    bench.drain()
    assert bench.ended == ["one"]
    assert bench.done("two") == {}
    bench.run(ReleaseNode(7), name="three")
    assert bench.machine.engine.handles._sequences == {}


def test_when_the_engine_is_beyond_use_everybody_hears_of_it() -> None:
    bench = Bench()
    bench.submit(OpenNode(), ExtendNode(0, ("cd",)), gen(1), ExtendNode(2, ("e",)), gen(3))
    bench.machine.step()
    bench.machine.fail_all(RunError("SGLC499", "gone"))
    assert bench.ended == ["s"]
    assert {i for i, event in bench.done().items() if isinstance(event, NodeFailed)} == {2, 3, 4}


def test_pins_and_handles_are_all_given_back() -> None:
    bench = Bench()
    bench.run(
        OpenNode(), ExtendNode(0, ("cd",)), gen(1, n=3), ExtendNode(2, ("e",)), select(3, "a", "b"), gen(4)
    )
    assert bench.machine._calls == {}
    assert bench.machine._runs == {}
    assert bench.machine.engine.handles._sequences == {}


def test_what_follows_starts_from_the_handle_of_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    engine = bench.machine.engine
    extended: list[tuple[bool, int]] = []  # whether from a handle, and by how many ids
    extend = engine.extend

    def seen(base: int | None, ids: Sequence[int], namespace: str = "") -> int:
        extended.append((base is not None, len(ids)))
        return extend(base, ids, namespace)

    monkeypatch.setattr(engine, "extend", seen)
    done = bench.run(
        OpenNode(), ExtendNode(0, ("cdef",)),  # a thought, and two that go on from it by different literals
        gen(1), ForkNode(2, 2), ExtendNode(3, (" e",)), gen(4, "y"),
        ExtendNode(3, ("gh", ControlText("|", (0,)), "f")), gen(6, "z"), select(2, "hh", "ha"), KeepNode(7, 5),
    )  # fmt: skip
    first = (*done[2].prompt_ids, *done[2].samples[0].ids)
    letters = Letters()
    assert done[5].prompt_ids == (*first, *letters.encode(" e"))
    assert done[7].prompt_ids == (*first, *letters.encode("gh"), 0, *letters.encode("f"))
    assert done[8].prompt_ids == first
    # The prompt; what was generated, twice; what follows it, three times; what is kept has a handle by then.
    assert sorted(extended) == [(False, 4), (True, 0), (True, 0), (True, 2), (True, 4), (True, 5), (True, 5)]
    extended.clear()
    later = bench.run(OpenNode(5), ExtendNode(0, ("e",)), gen(1), ReleaseNode(5), name="later")[2]
    assert later.prompt_ids == (*done[7].prompt_ids, *done[7].samples[0].ids, *letters.encode("e"))
    assert extended == [(True, 1)]
    assert engine.handles._sequences == {}


@pytest.mark.parametrize("steps", [0, 1, 3, 6, 9, None])
def test_handles_are_given_back_whatever_happens(steps: int | None) -> None:
    """To the end, and stopped on the way; one branch fails."""
    bench = Bench(depth=2)
    bench.run(OpenNode(), ExtendNode(0, ("cd",)), gen(1), KeepNode(2, 7), name="first")
    run = bench.submit(
        OpenNode(7), ForkNode(0, 2), ExtendNode(1, ("e",)), gen(2), ExtendNode(3, ("f",)), gen(4, "y"),
        ExtendNode(1, ("g", NodeResult(5))), select(6, "a", "b"), gen(1, "long", max_tokens=200),
        ExtendNode(8, ("a",)), gen(9, "never"), OpenNode(7), name="second",
    )  # fmt: skip
    if steps is not None:
        for _ in range(steps):
            bench.machine.step()
        bench.machine.abort(run)
    bench.drain()
    if steps is None:
        failed = [node for node, event in bench.done("second").items() if isinstance(event, NodeFailed)]
        assert failed == [8, 9, 10]
    bench.run(ReleaseNode(7), name="third")
    assert bench.machine.engine.handles._sequences == {}


def test_a_method_that_also_scores_the_choices_alone() -> None:
    bench = Bench(depth=2)
    node = SelectNode(
        1, Site("f", (), "choice"), ("efg", "h", "ab"), "unconditional_likelihood_normalized", LOC
    )
    choice = bench.run(OpenNode(), ExtendNode(0, ("cd",)), node)[2]
    assert isinstance(choice, SelectDone)
    alone = bench.run(OpenNode(), ExtendNode(0, ("e",)), select(1, "fg"), name="alone")[2].logprobs[0]
    expected = sum(choice.logprobs[0]) / 3 - sum(alone) / 3
    assert choice.scores[0] == pytest.approx(expected)
    assert choice.scores[1:] == pytest.approx([values[0] for values in choice.logprobs[1:]])
    assert choice.choice == max(range(3), key=lambda i: choice.scores[i])
    assert choice.unconditional == ((None, *alone), (None,), (None,))  # "ab" is one id
    assert bench.machine.engine.handles._sequences == {}


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"n": 3, "seed": 4},
        {"max_tokens": 0, "top_logprobs": 2},
        {"stop": ("a", "bd"), "max_tokens": 30},
        {"stop_regex": ("[ab]c",), "max_tokens": 30},
        {"regex": "[a-d]{3}", "max_tokens": 9},
        {"ignore_eos": False, "max_tokens": 40, "logprobs_from": 1, "top_logprobs": 1, "logprob_text": True},
        {"frequency_penalty": 0.5},
    ],
    ids=str,
)
def test_a_segment_that_is_not_streamed_ends_with_the_same_events(sampling: dict[str, Any]) -> None:
    program = (
        OpenNode(),
        ExtendNode(0, ("cdef",)),
        gen(1, **sampling),
        ExtendNode(2, (" e",)),
        gen(3, "y", seed=2),
    )
    bench = Bench(depth=4)
    streamed = bench.run(*program, name="streamed")
    bench = Bench(depth=4)
    assert bench.run(*program, name="whole", streams=False) == streamed
    assert not any(isinstance(event, Delta) for _, event in bench.events)


def test_only_what_is_streamed_or_may_stop_is_looked_at_token_by_token() -> None:
    for streams, stop, watched in ((True, (), 1), (False, (), 0), (False, ("hhh",), 1)):
        bench = Bench()
        bench.submit(OpenNode(), ExtendNode(0, ("cdef",)), gen(1, stop=stop), streams=streams)
        bench.machine.step()
        assert bench.machine.engine.rows.watched == watched


def _many(count: int) -> list[Node]:
    """Generations side by side behind one beginning, and one more behind the first of them."""
    nodes: list[Node] = [OpenNode(), ExtendNode(0, ("ab cd",))]
    for number in range(count):
        nodes += [ForkNode(1, count), gen(2 + 2 * number, seed=number)]
    return [*nodes, ExtendNode(3, (NodeResult(3), "e")), gen(len(nodes))]


def test_generations_that_are_put_off_begin_with_the_next_steps() -> None:
    """As many as begin in the time of a step, one at least; what they make is the same."""
    at_once = Bench().run(*_many(7))
    bench = Bench()
    bench.submit(*_many(7), in_part=True)
    assert not bench.machine.idle
    for begun in range(1, 6):
        bench.machine.engine.step_s = 0.0
        bench.machine.step()
        assert sum(map(len, bench.machine._put_off.values())) == 7 - begun
    bench.drain()
    assert bench.ended == ["s"]
    assert bench.done("s") == at_once
    assert bench.machine.idle


def test_what_is_stopped_while_it_is_put_off_never_begins() -> None:
    bench = Bench()
    run = bench.submit(*_many(3), name="stopped", in_part=True)
    bench.submit(*_many(2), name="goes on", in_part=True)
    bench.machine.abort(run)
    bench.drain()
    assert bench.ended == ["goes on"]
    assert {name for name, _ in bench.events} == {"goes on"}
    bench.machine.engine.step_s = 0.0
    bench.submit(*_many(3), name="failed", in_part=True)
    bench.machine.fail_all(RunError("SGLC504", "it broke"))
    assert bench.ended == ["goes on", "failed"]
    assert bench.machine.idle


def test_what_is_put_off_begins_by_priority_and_in_turns() -> None:
    bench = Bench(pages=400)
    for name, priority in (("a", 0), ("b", 0), ("c", 1)):
        segment = Segment(tuple(_many(3)), priority=priority)
        bench.machine.submit(segment, lambda event: None, partial(bench.ended.append, name), in_part=True)
    runs = list(bench.machine._put_off)
    assert [run.place for run in runs] == sorted(run.place for run in runs)
    begun: list[int] = []
    while bench.machine._put_off:
        before = {run: len(left) for run, left in bench.machine._put_off.items()}
        bench.machine.engine.step_s = 0.0
        bench.machine._begin_some()
        begun += [
            at for at, run in enumerate(runs) if len(bench.machine._put_off.get(run, ())) < before.get(run, 0)
        ]
    assert begun == [2, 2, 2, 0, 1, 0, 1, 0, 1]
    bench.drain()
    assert sorted(bench.ended) == ["a", "b", "c"]


def test_what_is_read_by_failed_nodes_alone_is_not_kept() -> None:
    bench = Bench()
    too_long = [ExtendNode(1, ("c" * 200,)), gen(3)]
    bench.run(
        OpenNode(), ExtendNode(0, ("cd",)), gen(1, max_tokens=3), *too_long,
        ExtendNode(2, (NodeResult(4),)), gen(5),
    )  # fmt: skip
    assert {number for number, event in bench.done().items() if type(event) is NodeFailed} == {4, 5, 6}
    assert not bench.machine.engine.handles._sequences
