"""What a batch on an API takes of this process: what is done once for all rows, and which tasks there are."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import sglc as sgl
from sglc.backends.openai import OpenAIBackend
from sglc.backends.retry import Places, TimeLimitError
from sglc.execution.event_loop import executor_loop
from tests.openai_server import serving

SGLC = str(Path(sgl.__file__).parent)
ROWS = 12
GENS = 3


@sgl.function
def chain(s: Any, question: str) -> None:
    s += sgl.user(f"Question: {question}") + sgl.assistant(sgl.gen("answer", max_tokens=16))
    s += sgl.user("Why?") + sgl.assistant(sgl.gen("reason", max_tokens=16))
    s += sgl.user("A grade?") + sgl.assistant(sgl.gen("grade", max_tokens=16, stop="."))


@sgl.tool
def looked_up(question: str) -> str:
    return question.upper()


@sgl.function
def chain_with_a_tool(s: Any, question: str) -> None:
    s += sgl.user(looked_up(question)) + sgl.assistant(sgl.gen("grade", max_tokens=16))


@contextmanager
def watched() -> Iterator[Counter[str]]:
    """Functions that begin in the executor's loop, and the coroutines of sglc that became tasks there."""
    seen: Counter[str] = Counter()
    loop = executor_loop()

    def entered(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen[frame.f_code.co_qualname] += 1
            seen["all"] += 1
            seen["sglc"] += frame.f_code.co_filename.startswith(SGLC)

    def task(loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> Any:
        seen[f"task {coro.__qualname__}"] += 1
        return asyncio.Task(coro, loop=loop, **kwargs)

    async def watch(on: bool) -> None:
        sys.setprofile(entered if on else None)
        loop.set_task_factory(task if on else None)

    asyncio.run_coroutine_threadsafe(watch(True), loop).result()
    try:
        yield seen
    finally:
        asyncio.run_coroutine_threadsafe(watch(False), loop).result()


@pytest.mark.slow
def test_rows_share_what_a_plan_says_and_have_a_task_for_each_chain() -> None:
    with serving(lambda body: "fine") as api:
        backend = sgl.OpenAI("m", base_url=api.url, api_key="k", concurrency=4)
        rows = [{"question": str(number)} for number in range(ROWS)]
        chain.run_batch(rows[:2], backend=backend)  # the plan is there
        api.bodies.clear()
        with watched() as seen:
            results = chain.run_batch(rows, backend=backend)
        backend.close()
    assert len(api.bodies) == GENS * ROWS
    assert seen["RemoteSegmentRun.answered"] == GENS * ROWS
    # Found once: what a sampling says, which nodes wait for which. Nobody asked for the conversations.
    assert (seen["_sampling"], seen["waits_of"], seen["reads"], seen["conversation"]) == (0, 0, 0, 0)
    # Turns that were said before are not looked at again, and one timer is enough for all attempts.
    assert seen["_Turns.behind"] == GENS * ROWS
    assert seen["Places._ring"] <= 1
    # Of what is asked the SDK makes no types, and of what it is answered no objects.
    assert seen["_async_transform_recursive"] == seen["construct_type"] == 0
    assert seen["sglc"] < 186 * GENS * ROWS  # 178, and 5 more where an answer comes in two pieces
    assert seen["all"] < 2_600 * GENS * ROWS  # as of 3.54 of the SDK 2,290; its `create` alone takes 3,200 more
    # A segment has a task that follows it, and one that asks for what goes on in a line.
    assert seen["task Session._follow"] == seen["task RemoteSegmentRun.follow"] == ROWS
    assert [turn["content"] for turn in results[3].messages()][::2] == ["Question: 3", "Why?", "A grade?"]


def test_attempts_end_at_their_limits_and_those_that_are_cancelled_do_not_count_as_late() -> None:
    async def attempts() -> list[object]:
        places, ended = Places(4), list[object]()

        async def one(seconds: float, needs_s: float) -> None:
            try:
                await places.within(seconds, asyncio.sleep(needs_s))
                ended.append("in time")
            except BaseException as error:
                ended.append(type(error))
                raise

        async with asyncio.timeout(30):
            waiting = [
                asyncio.create_task(one(*times)) for times in ((20, 20), (0.02, 20), (0.01, 20), (20, 0))
            ]
            done = await asyncio.gather(*waiting[1:], return_exceptions=True)
            assert [type(one) for one in done] == [TimeLimitError, TimeLimitError, type(None)]
            waiting[0].cancel()
            await asyncio.gather(waiting[0], return_exceptions=True)
        return ended

    assert asyncio.run(attempts()) == ["in time", TimeLimitError, TimeLimitError, asyncio.CancelledError]


def test_a_run_makes_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    connect = OpenAIBackend.connect
    monkeypatch.setattr(OpenAIBackend, "connect", lambda self: made.append(self) or connect(self))
    with serving(lambda body: "fine") as api:
        backend = sgl.OpenAI("m", base_url=api.url, api_key="k")
        for _ in range(2):
            assert chain.run(question="?", backend=backend)["grade"] == "fine"
            assert len(made) == 1
        backend.close()
        backend.start()
        backend.close()
        assert chain.run(question="?", backend=backend)["grade"] == "fine"
        assert len(made) == 3  # what nobody has used is gone with `close`
        backend.close()


@pytest.mark.parametrize("program", [chain, chain_with_a_tool], ids=lambda program: program.__name__)
def test_what_a_row_has_used_is_gone_without_collecting_garbage(program: sgl.Function) -> None:
    with serving(lambda body: "fine") as api:
        backend = sgl.OpenAI("m", base_url=api.url, api_key="k")
        rows = [{"question": str(number)} for number in range(ROWS)]
        assert all(result["grade"] == "fine" for result in program.run_batch(rows, backend=backend))  # traced
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            assert all(result["grade"] == "fine" for result in program.run_batch(rows, backend=backend))
            backend.close()
            gc.collect()
            left = Counter(type(one).__qualname__ for one in gc.garbage if "sglc" in type(one).__module__)
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        assert not left
