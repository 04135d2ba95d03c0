"""Segments on APIs: what is asked for side by side, how prompts go on, what a failure takes with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sglc.backends.remote.prompts import Message, Prompt, ids, messages, text
from sglc.backends.remote.segment_runner import ApiAnswer, ApiRequest, Walker
from sglc.errors import BackendError, LegalizeError, Loc, RunError
from sglc.ir.core import Site
from sglc.ir.plan.events import Event, GenDone, NodeFailed, Sample, Usage
from sglc.ir.plan.segment import (
    ExtendNode,
    ForkNode,
    GenNode,
    ImagePart,
    KeepNode,
    Made,
    NodeResult,
    OpenNode,
    ReleaseNode,
    RoleMark,
    Segment,
    SelectNode,
)
from sglc.ir.sampling import Sampling
from sglc.ir.target import ControlText

LOC = Loc("f.py", 3)


def gen(stream: int, name: str) -> GenNode:
    return GenNode(stream, Site("f", (), name), Sampling(), LOC, 1)


class Model:
    """Answers with the site's name, when the test says so; `fails` are names that have no answer."""

    def __init__(self, fails: tuple[str, ...] = ()) -> None:
        self.fails = fails
        self.asked: list[str] = []
        self.prompts: dict[str, str] = {}
        self.cancelled: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.walker = Walker(self.answer)

    async def answer(self, request: ApiRequest, emit: Callable[[Event], None]) -> ApiAnswer:
        name = request.node.site.name
        self.asked.append(name)
        self.prompts[name] = text(request.prompt)
        try:
            if name in self.gates:
                await self.gates[name].wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        if name in self.fails:
            raise BackendError("SGLC543", "no")
        event = GenDone(request.index, (), (Sample(f"<{name}>", (), "stop"),), Usage(calls=1))
        return ApiAnswer(event, Made(f"<{name}>"))

    async def events(self, *nodes: Any) -> list[Event]:
        return [event async for event in self.walker.submit(Segment(nodes))]


async def independent(model: Model) -> None:
    model.gates = {"a": asyncio.Event(), "b": asyncio.Event()}
    nodes = (OpenNode(), ExtendNode(0, ("p",)), ForkNode(1, 2), gen(2, "a"), gen(2, "b"), gen(3, "c"),
             ExtendNode(1, ("[", NodeResult(4), NodeResult(5), "]")), gen(6, "d"))  # fmt: skip
    running = asyncio.ensure_future(model.events(*nodes))
    while len(model.asked) < 2:
        await asyncio.sleep(0)
    assert model.asked == ["a", "b"]  # side by side; the others wait for them
    model.gates["a"].set()
    while len(model.asked) < 3:
        await asyncio.sleep(0)
    assert model.asked == ["a", "b", "c"]
    model.gates["b"].set()
    events = await running
    assert [event.node for event in events if isinstance(event, GenDone)] == [3, 5, 4, 7]
    assert model.prompts == {"a": "p", "b": "p", "c": "p<a>", "d": "p[<b><c>]"}


def test_what_does_not_wait_runs_side_by_side() -> None:
    asyncio.run(independent(Model()))


def test_a_failure_takes_what_reads_it_and_nothing_else() -> None:
    async def scenario() -> None:
        model = Model(fails=("a",))
        events = await model.events(
            OpenNode(), gen(0, "a"), gen(0, "b"), ExtendNode(1, ("x",)), gen(3, "c"), KeepNode(3, 7),
        )  # fmt: skip
        failed = {event.node: event.error for event in events if isinstance(event, NodeFailed)}
        assert set(failed) == {1, 3, 4, 5}
        assert all(error.loc == LOC for error in failed.values())
        assert [event.node for event in events if isinstance(event, GenDone)] == [2]
        assert model.walker.kept.empty
        (event,) = [e for e in await model.events(OpenNode(7)) if isinstance(e, NodeFailed)]
        assert event.error.code == "SGLC403"

    asyncio.run(scenario())


def test_streams_are_kept_and_may_be_opened_before_they_are_there() -> None:
    async def scenario() -> None:
        model = Model()
        model.gates["a"] = asyncio.Event()
        first = asyncio.ensure_future(model.events(OpenNode(), gen(0, "a"), KeepNode(1, 7)))
        await asyncio.sleep(0)
        opening = (OpenNode(7), ExtendNode(0, (" b: ",)), gen(1, "b"), ReleaseNode(7))
        second = asyncio.ensure_future(model.events(*opening))
        while not model.asked:
            await asyncio.sleep(0)
        assert model.asked == ["a"]
        model.gates["a"].set()
        await asyncio.gather(first, second)
        assert model.prompts["b"] == "<a> b: "
        assert model.walker.kept.empty

    asyncio.run(scenario())


def test_closing_cancels_and_breaks_promises() -> None:
    async def scenario() -> None:
        model = Model()
        model.gates["a"] = asyncio.Event()
        events = model.walker.submit(Segment((OpenNode(), gen(0, "a"), KeepNode(1, 7))))
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(model.events(OpenNode(7), gen(0, "b")))
        while not model.asked:
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait({first})
        failed = [event.error.code for event in await waiting if isinstance(event, NodeFailed)]
        assert failed == ["SGLC405", "SGLC405"]
        assert model.cancelled == ["a"]
        assert model.asked == ["a"]
        assert model.walker.kept.empty

    asyncio.run(scenario())


def test_an_empty_choice_is_refused() -> None:
    async def scenario() -> None:
        node = SelectNode(0, Site("f", (), "x"), ("a", ""), "token_length_normalized", LOC)
        (event,) = await Model().events(OpenNode(), node)
        assert isinstance(event, NodeFailed)
        assert event.error.code == "SGLC404"

    asyncio.run(scenario())


# -- prompts ---------------------------------------------------------------------------------------


def prompt(*items: Any) -> Prompt:
    """One item a link, so that the order of links is seen too."""
    made = Prompt()
    for item in items:
        made = Prompt(made, (item,))
    return made


USER = (RoleMark("user", True), "  Hi ", RoleMark("user", False))
OPEN = RoleMark("assistant", True)


def test_turns_are_messages_and_nothing_is_stripped() -> None:
    picture = ImagePart("data:image/png;base64,")
    assert messages(prompt(*USER, OPEN), LOC) == (Message("user", ("  Hi ",)),)
    done = (OPEN, Made("a"), "b", RoleMark("assistant", False))
    assert messages(prompt(*USER, *done, *USER, OPEN, "c"), LOC) == (
        Message("user", ("  Hi ",)), Message("assistant", ("ab",)), Message("user", ("  Hi ",)),
        Message("assistant", ("c",), True),
    )  # fmt: skip
    mixed = (RoleMark("user", True), "a", "b", picture, "c", RoleMark("user", False))
    assert messages(prompt(*mixed, OPEN), LOC) == (Message("user", ("ab", picture, "c")),)
    assert messages(prompt("a", "b"), LOC) == (Message("user", ("ab",)),)


@pytest.mark.parametrize(
    ("items", "code"),
    [
        ((), "SGLC402"),
        (("a", *USER, OPEN), "SGLC315"),
        ((*USER, "a", OPEN), "SGLC315"),
        (USER, "SGLC316"),
        ((*USER, "a"), "SGLC316"),
        ((RoleMark("user", True),), "SGLC316"),
        (("a", Made("b")), "SGLC316"),
    ],
)
def test_what_no_message_can_say(items: tuple[Any, ...], code: str) -> None:
    with pytest.raises((LegalizeError, RunError), match=code):
        messages(prompt(*items), LOC)


class Letters:
    """Pairs of letters are one token."""

    def encode(self, text: str) -> list[int]:
        return [sum(map(ord, text[i : i + 2])) for i in range(0, len(text), 2)]

    def token_bytes(self) -> tuple[bytes, ...]:
        return ()


class SpacedLetters(Letters):
    """Puts a space before what begins a sequence, and what stands behind a control token."""

    def encode(self, text: str) -> list[int]:
        return super().encode(" " + text) if text else []

    def encode_within(self, text: str) -> list[int]:
        return super().encode(text)

    def token_bytes(self) -> tuple[bytes, ...]:
        return b"<s>", b"", *[b"a"] * 500


def test_literals_behind_text_get_no_space() -> None:
    tokenizer: Any = SpacedLetters()
    begin, within = tokenizer.encode, tokenizer.encode_within
    made = Made("xy", (5, 6), "")
    assert ids(prompt("a", ControlText("<s>", (1,)), "b", made, "z", made), tokenizer) == (
        *begin("a"), 1, *begin("b"), 5, 6, *within("z"), 5, 6,
    )  # fmt: skip


def test_literals_between_generations_are_encoded_as_one_string() -> None:
    tokenizer: Any = Letters()
    encode = tokenizer.encode
    made = Made("xy", (5, 6), "y")
    assert ids(prompt("a", "b", "c"), tokenizer) == tuple(encode("abc"))
    assert ids(prompt("a", ControlText("<s>", (1, 2)), "b", made, "z"), tokenizer) == (
        *encode("a"), 1, 2, *encode("b"), 5, 6, *encode("yz"),
    )  # fmt: skip
    assert ids(prompt("a", Made("b"), "c"), tokenizer) == tuple(encode("abc"))  # a choice is text
