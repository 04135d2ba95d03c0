"""Anthropic's breakpoints from the plan: what is marked, by whom it is written, and what that costs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.anthropic.kept_prompts import KeptPrompts
from sglc.backends.registry import connect
from sglc.errors import BackendError
from sglc.ir.plan.events import Usage
from sglc.passes.compile import compile_program
from tests.api_programs import speaking
from tests.api_targets import at
from tests.openai_server import serving
from tests.vendor_shapes import check_body

MANUAL = "Every rule of the manual is to be kept, and this is one of them. " * 80  # 5,120 characters


@sgl.function
def ask(s: Any, question: str) -> None:
    s += sgl.system(MANUAL)
    s += sgl.user("Do you know the manual?") + sgl.assistant("I do.")
    s += sgl.user(f"Then: {question}") + sgl.assistant(sgl.gen("answer", max_tokens=8))
    s += sgl.user("In one word?") + sgl.assistant(sgl.select("word", ["yes", "no"]))


def marks(body: dict[str, Any]) -> list[tuple[int, Any]]:
    """The turns of a body that are marked, the first system turn being 0."""
    turns = [body.get("system", ""), *(turn["content"] for turn in body["messages"])]
    return [
        (number, block["cache_control"])
        for number, content in enumerate(turns)
        if isinstance(content, list)
        for block in content
        if "cache_control" in block
    ]


@pytest.mark.slow
def test_what_many_rows_begin_with_is_written_by_one_and_read_by_the_others() -> None:
    with serving(speaking("fine")) as api, at(api, "anthropic:claude-opus-5-5") as backend:
        rows = [{"question": str(number)} for number in range(6)]
        results = ask.run_batch(rows, backend=backend)
        assert [result["word"] for result in results] == ["no"] * 6
        assert len(api.bodies) == 12
        for path, body in zip(api.paths, api.bodies, strict=True):
            check_body(path, body)
        # The first may stay alone. Behind it, the end of the last turn that is the same in every row is marked.
        assert [marks(body) for body in api.bodies].count([]) == 1
        assert {json.dumps(marks(body)) for body in api.bodies[1:] if marks(body)} == {
            json.dumps([(2, {"type": "ephemeral"})])
        }
        texts = {json.dumps(_unmarked(body)["messages"][0]) for body in api.bodies}
        assert len(texts) == 1


def _unmarked(body: dict[str, Any]) -> dict[str, Any]:
    def plain(content: Any) -> Any:
        return "".join(block["text"] for block in content) if isinstance(content, list) else content

    turns = [{**turn, "content": plain(turn["content"])} for turn in body["messages"]]
    return {**body, "system": plain(body["system"]), "messages": turns}


def test_prompts_say_the_same_marked_or_not_and_a_lone_run_is_not_marked() -> None:
    with serving(speaking("fine")) as api, at(api, "anthropic:claude-opus-5-5") as backend:
        ask.run("Why?", backend=backend).sync()
        first, second = api.bodies
        assert (marks(first), marks(second)) == ([], [(2, {"type": "ephemeral"})])
        assert _unmarked(first)["messages"] == _unmarked(second)["messages"][:3]
        assert first["system"] == _unmarked(second)["system"] == MANUAL


def test_what_is_too_short_is_not_marked() -> None:
    def marked(name: str) -> int:
        with serving(speaking("fine")) as api, at(api, name) as backend:
            ask.run_batch([{"question": "a"}, {"question": "b"}], backend=backend)
            return sum(bool(marks(body)) for body in api.bodies)

    assert marked("anthropic:claude-opus-5-5") == 3  # it keeps 512 tokens and more
    assert marked("anthropic:claude-opus-4-5") == 0  # 4,096


def test_a_remark_says_what_is_kept() -> None:
    compiled = compile_program(ask.trace(), connect("anthropic:claude-opus-5-5").target)
    (said,) = [remark.message for remark in compiled.remarks if remark.source == "cache_hints"]
    assert "tokens stand before the first argument" in said
    (key,) = set(compiled.cache_keys.values())
    assert key.endswith("-3")


# -- who writes ------------------------------------------------------------------------------------


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


async def ask_once(kept: KeptPrompts, log: list[str], name: str, gate: asyncio.Event | None = None) -> None:
    """One request; behind a gate that is shut it does not end, and as `fails` it does badly."""
    async with kept.asked("k") as marked:
        log.append(f"{name} {'marked' if marked else 'plain'}")
        if gate is not None:
            await gate.wait()
        if name == "fails":
            raise ConnectionError


def test_one_writes_while_the_others_wait() -> None:
    async def story() -> list[str]:
        log: list[str] = []
        clock, gate = Clock(), asyncio.Event()
        kept = KeptPrompts(clock)
        await ask_once(kept, log, "first")
        writer = asyncio.create_task(ask_once(kept, log, "second", gate))
        others = [asyncio.create_task(ask_once(kept, log, name)) for name in ("third", "fourth")]
        for _ in range(5):
            await asyncio.sleep(0)
        assert log == ["first plain", "second marked"]
        gate.set()
        await asyncio.gather(writer, *others)
        for name in ("in time", "in time again"):
            clock.now_s += 200
            await ask_once(kept, log, name)
        clock.now_s += 400  # nothing is kept any more
        gate.clear()
        writer = asyncio.create_task(ask_once(kept, log, "fails", gate))
        behind = [asyncio.create_task(ask_once(kept, log, name)) for name in ("writes anew", "reads")]
        for _ in range(5):
            await asyncio.sleep(0)
        assert log[-1] == "fails marked"
        gate.set()
        await asyncio.gather(*behind)
        with pytest.raises(ConnectionError):
            await writer
        return log

    names = ("second", "third", "fourth", "in time", "in time again", "fails", "writes anew", "reads")
    assert asyncio.run(story()) == ["first plain", *(f"{name} marked" for name in names)]


def test_who_waits_for_what_fails_waits_no_longer_than_twice() -> None:
    async def story() -> list[str]:
        log: list[str] = []
        kept, gate = KeptPrompts(Clock()), asyncio.Event()
        await ask_once(kept, log, "first")
        asked = [asyncio.create_task(ask_once(kept, log, "fails", gate)) for _ in range(5)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert log[1:] == ["fails marked"]
        gate.set()
        await asyncio.gather(*asked, return_exceptions=True)
        return log

    assert asyncio.run(story()) == ["first plain", *["fails marked"] * 2, *["fails plain"] * 3]


def test_what_is_answered_with_a_refusal_is_kept() -> None:
    async def refused(kept: KeptPrompts, log: list[bool], gate: asyncio.Event) -> None:
        async with kept.asked("k") as marked:
            log.append(marked)
            await gate.wait()
            error = BackendError("SGLC545", "the model refuses")
            error.usage = Usage(prompt=2000, calls=1)
            raise error

    async def story() -> list[bool]:
        log: list[bool] = []
        kept, gate = KeptPrompts(Clock()), asyncio.Event()
        await ask_once(kept, [], "first")
        asked = [asyncio.create_task(refused(kept, log, gate)) for _ in range(4)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert log == [True]
        gate.set()
        await asyncio.gather(*asked, return_exceptions=True)
        return log

    assert asyncio.run(story()) == [True] * 4
