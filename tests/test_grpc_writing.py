"""How messages of a stream over gRPC go out: begun at once, one at a time, with few calls for each."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import grpc
import pytest
from smg_grpc_proto import sglang_scheduler_pb2 as pb
from smg_grpc_proto.generated import common_pb2

from sglc.ir.plan.events import Delta, Event, EventBatches, GenDone, Sample, Usage
from sglc.ir.plan.segment import Segment
from sglc.serve import scheduler_service
from sglc.serve.door import Access
from sglc.serve.sending import StallTimer
from sglc.serve.service import Service
from sglc.serve.writing import Writing
from tests.oracle_backend import Characters

OURS = str(Path(scheduler_service.__file__).parents[1]) + "/"
MOST_CALLS = 12  # of functions of ours, for a token that has a message of its own


class Wire:
    """Takes messages as a context of `grpc.aio` does: one at a time, each until it is said to be through."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.through: asyncio.Future[None] | None = None

    async def write(self, message: bytes) -> None:
        assert self.through is None, "two messages are on their way"
        self.taken.append(message)
        self.through = asyncio.get_running_loop().create_future()
        try:
            await self.through
        finally:
            self.through = None

    def go(self, error: Exception | None = None) -> None:
        assert self.through is not None
        if error is None:
            self.through.set_result(None)
        else:
            self.through.set_exception(error)


def goes_at_once(step: Coroutine[Any, Any, None]) -> bool:
    """Whether it ends without waiting for anything."""
    try:
        step.send(None)
    except StopIteration:
        return True
    step.close()
    return False


def on_a_wire(check: Callable[[Wire, Writing], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        wire = Wire()
        with StallTimer(60) as timer, Writing(wire.write, timer) as writing:
            await check(wire, writing)

    asyncio.run(run())


def test_a_message_is_begun_at_once_and_nobody_waits_for_one_that_is_through() -> None:
    async def check(wire: Wire, writing: Writing) -> None:
        for number in range(5):
            assert goes_at_once(writing.write(b"%d" % number))
            assert wire.taken[-1] == b"%d" % number
            wire.go()
        assert goes_at_once(writing.end())
        assert wire.through is None

    on_a_wire(check)


def test_the_next_one_waits_for_one_that_is_not_through() -> None:
    async def check(wire: Wire, writing: Writing) -> None:
        await writing.write(b"1")
        next_one = asyncio.create_task(writing.write(b"2"))
        for _ in range(3):
            await asyncio.sleep(0)
        assert (wire.taken, next_one.done()) == ([b"1"], False)
        wire.go()
        await next_one
        end = asyncio.create_task(writing.end())
        await asyncio.sleep(0)
        assert (wire.taken, end.done()) == ([b"1", b"2"], False)
        wire.go()
        await end

    on_a_wire(check)


@pytest.mark.parametrize("late", [False, True])
def test_that_one_failed_is_said_where_the_next_is_written(late: bool) -> None:
    async def check(wire: Wire, writing: Writing) -> None:
        await writing.write(b"1")
        if late:
            asyncio.get_running_loop().call_soon(wire.go, OSError("gone"))
        else:
            wire.go(OSError("gone"))
        with pytest.raises(OSError, match="gone"):
            await writing.write(b"2")
        assert wire.taken == [b"1"]

    on_a_wire(check)


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_not_through_at_the_end_is_given_up(fails: bool) -> None:
    """And a failure that nobody was told of is not said to be one that nobody looked at: that is a warning."""
    wire = Wire()

    async def check() -> None:
        with StallTimer(60) as timer, Writing(wire.write, timer) as writing:
            await writing.write(b"1")
            through = wire.through
            if fails:
                wire.go(OSError("gone"))
        assert through is not None
        assert (through.cancelled(), wire.through) == (not fails, None)

    asyncio.run(check())


# -- streams ---------------------------------------------------------------------------------------


class Steps:
    """A back end whose answer has so many tokens, each of which comes when it is waited for."""

    target = SimpleNamespace(tokenizer=Characters())

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.closed = False

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        return EventBatches(self._events(segment))

    async def _events(self, segment: Segment) -> AsyncGenerator[Sequence[Event], None]:
        node = len(segment.nodes) - 1
        ids = tuple(Characters().encode("a" * self.tokens))
        try:
            for id_ in ids:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                yield [Delta(node, "a", ((-1.0, id_, None),), cached=2)]
            sample = Sample("a" * self.tokens, ids, "length", (-1.0,) * self.tokens)
            yield [GenDone(node, (5, 6), (sample,), Usage(prompt=2, cached=2, completion=self.tokens))]
        finally:
            self.closed = True

    def server_info(self) -> dict[str, Any]:
        return {}


class Call:
    """What `grpc.aio` hands to a handler. A message is through in the loop's next turn, if `reads`."""

    def __init__(self, *, reads: bool = True) -> None:
        self.reads = reads
        self.wire = Wire()
        self.status: tuple[grpc.StatusCode, str] | None = None

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5"

    async def write(self, message: bytes) -> None:
        if self.reads:
            asyncio.get_running_loop().call_soon(self.wire.go)
        await self.wire.write(message)

    def set_trailing_metadata(self, trailing: Any) -> None:
        pass

    async def abort(self, code: grpc.StatusCode, said: str, trailing: Any = ()) -> None:
        self.status = code, said
        raise grpc.aio.AbortError


async def generated(backend: Steps, call: Call, stall_s: float = 60.0) -> list[Any]:
    """The messages of a stream."""
    service = Service(backend, Characters(), "steps", 4_000, stall_s=stall_s)  # type: ignore[arg-type]
    handler = scheduler_service.SchedulerService(service, Access()).handler
    method = SimpleNamespace(method=scheduler_service.path_of("Generate"), invocation_metadata=())
    request = pb.GenerateRequest(
        tokenized=pb.TokenizedInput(input_ids=[5, 6]),
        sampling_params=pb.SamplingParams(max_new_tokens=backend.tokens, ignore_eos=True),
        stream=True,
    )
    with suppress(grpc.aio.AbortError):
        await handler.service(method).unary_stream(request.SerializeToString(), call)
    return [pb.GenerateResponse.FromString(message) for message in call.wire.taken]


def test_each_message_of_a_stream_says_what_is_new() -> None:
    *chunks, last = asyncio.run(generated(Steps(5), Call()))
    (id_,) = Characters().encode("a")
    assert [list(message.chunk.token_ids) for message in chunks] == [[id_]] * 5
    assert [message.chunk.completion_tokens for message in chunks] == [1, 2, 3, 4, 5]
    assert {(m.chunk.prompt_tokens, m.chunk.cached_tokens) for m in chunks} == {(2, 2)}
    assert (list(last.complete.output_ids), last.complete.finish_reason) == ([id_] * 5, "length")


def test_a_message_takes_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of ours that are called, or gone on with, between two tokens of a stream."""
    monkeypatch.setattr(scheduler_service, "_MESSAGE_S", 0.0)

    def calls(tokens: int) -> int:
        count = 0

        def look(frame: FrameType, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call" and frame.f_code.co_filename.startswith(OURS)

        before = sys.getprofile()
        sys.setprofile(look)
        try:
            messages = asyncio.run(generated(Steps(tokens), Call()))
        finally:
            sys.setprofile(before)
        assert len(messages) == tokens + 1
        return count

    a_token = (calls(110) - calls(10)) / 100
    assert a_token <= MOST_CALLS


def test_a_client_that_does_not_read_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has one message on its way, and one that waits."""
    monkeypatch.setattr(scheduler_service, "_MESSAGE_S", 0.0)
    backend, call = Steps(100), Call(reads=False)
    asyncio.run(generated(backend, call, stall_s=0.05))
    assert call.status == (grpc.StatusCode.DEADLINE_EXCEEDED, "the client does not read")
    assert (len(call.wire.taken), backend.closed) == (1, True)


def test_who_asks_together_for_the_tokenizer_shares_its_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def archive(service: Service) -> bytes:
        made.append(service)
        return b"zip" * 100_000

    monkeypatch.setattr(scheduler_service, "_archive", archive)

    async def asked() -> list[bytes]:
        service = Service(Steps(1), Characters(), "steps", 4_000, folder=Path("/x"))  # type: ignore[arg-type]
        handler = scheduler_service.SchedulerService(service, Access()).handler
        method = SimpleNamespace(method=scheduler_service.path_of("GetTokenizer"), invocation_metadata=())
        calls = [Call() for _ in range(20)]
        await asyncio.gather(*(handler.service(method).unary_stream(b"", call) for call in calls))
        return [
            b"".join(common_pb2.GetTokenizerChunk.FromString(each).data for each in call.wire.taken)
            for call in calls
        ]

    assert set(asyncio.run(asked())) == {b"zip" * 100_000}
    assert len(made) == 1
