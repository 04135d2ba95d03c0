"""What a back end sees of context variables: those of the run's caller, whoever else runs beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any, Literal

import pytest

import sglc as sgl
from sglc.backends.scripted import ScriptedBackend
from sglc.ir.plan.events import Event
from sglc.ir.plan.segment import ExtendNode, GenNode, Segment

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")
MODES: list[Literal["plan", "python"]] = ["plan", "python"]


class Watched(ScriptedBackend):
    """Notes whose calls it gets, and who seems to make them; what it sets itself nobody else sees."""

    def __init__(self) -> None:
        super().__init__(lambda asked: "fine")
        self.seen: list[tuple[str, str]] = []

    async def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        for node in segment.nodes:
            if isinstance(node, ExtendNode) and "of " in str(node.parts):
                owner = "".join(map(str, node.parts)).partition("of ")[2].partition(";")[0]
                await asyncio.sleep(0)
                self.seen.append((owner, TENANT.get()))
        if any(isinstance(node, GenNode) for node in segment.nodes):
            TENANT.set("the back end")
        async for event in super().submit(segment, streams=streams):
            yield event


@sgl.tool
def look(text: str) -> str:
    return text


@sgl.function
def ask(s: Any, owner: str) -> None:
    s += f"of {owner};" + sgl.gen("first", max_tokens=4)
    if s["first"] == "fine":
        s += look("a") + f"again of {owner};" + sgl.gen("second", max_tokens=4)
    for fork in s.fork(2):
        fork += f"fork of {owner};" + sgl.gen("third", max_tokens=4)


@pytest.mark.parametrize("mode", MODES)
def test_concurrent_coroutines(mode: Literal["plan", "python"]) -> None:
    backend = Watched()

    async def one(owner: str) -> None:
        TENANT.set(owner)
        result = await ask.arun(owner=owner, backend=backend, mode=mode)
        assert result.error() is None

    async def all_() -> None:
        await asyncio.gather(*(asyncio.create_task(one(f"t{number}")) for number in range(20)))

    asyncio.run(all_())
    assert len(backend.seen) == 20 * 4
    assert {owner for owner, _ in backend.seen} == {f"t{number}" for number in range(20)}
    assert [pair for pair in backend.seen if pair[0] != pair[1]] == []


@pytest.mark.parametrize("mode", MODES)
def test_threads_with_batches(mode: Literal["plan", "python"]) -> None:
    """Rows begin in a thread of the batch, and in the loop, where a row of another batch may have ended."""
    backend = Watched()

    def batch(owner: str) -> None:
        TENANT.set(owner)
        results = ask.run_batch([{"owner": owner}] * 12, backend=backend, mode=mode, num_threads=3)
        assert [result.error() for result in results] == [None] * 12

    threads = [threading.Thread(target=batch, args=(f"t{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(backend.seen) >= 6 * 4  # equal ones of a batch are made once
    assert [pair for pair in backend.seen if pair[0] != pair[1]] == []


def test_a_body_that_sets_a_variable_is_its_own_caller() -> None:
    @sgl.function
    def sets(s: Any) -> None:
        TENANT.set("the body")
        s += "of the body;" + sgl.gen("answer", max_tokens=4)

    backend = Watched()
    TENANT.set("outside")
    assert sets.run(backend=backend, mode="python").error() is None
    assert backend.seen == [("the body", "the body")]
