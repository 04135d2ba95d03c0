"""What `sglc serve` does with a request whose time is over, seen from the application's side."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglc.serve.deadline import Deadline
from sglc.serve.drain import Drain
from tests.waiting import HANG_S

EVENTS: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
}


async def asked(
    app: ASGIApp,
    drain: Drain,
    *,
    request_s: float = HANG_S,
    body_s: float = HANG_S,
    parts: Iterable[tuple[bytes, bool]] = ((b"{}", False),),
    stalls: Callable[[Message], Awaitable[None]] | None = None,
) -> list[Message]:
    """What is sent to a client who sends these parts of a body."""
    messages = iter([{"type": "http.request", "body": body, "more_body": more} for body, more in parts])
    sent: list[Message] = []

    async def receive() -> Message:
        return next(messages, None) or await asyncio.Future()

    async def send(message: Message) -> None:
        sent.append(message)
        if stalls is not None:
            await stalls(message)

    scope = {"type": "http", "path": "/generate", "headers": [(b"content-length", b"2")]}
    await Deadline(app, drain, request_s, body_s)(scope, receive, send)
    return sent


async def reads_and_waits(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(0.1)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def never_ends(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send(EVENTS)
    await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
    await asyncio.Future()


def code(message: Message) -> str:
    """Of the error in an answer, or in its last events."""
    error, *done = message["body"].removeprefix(b"data: ").split(b"\n\n")
    assert done in ([], [b"data: [DONE]", b""])
    assert message.get("more_body", False) is False
    return str(json.loads(error)["error"]["code"])


@pytest.mark.slow
def test_a_body_that_has_come_in_time_may_be_answered_later() -> None:
    for parts, status in (
        ([(b"{}", False)], 200),
        ([(b"{", True), (b"}", False)], 200),
        ([(b"{", True)], 408),
    ):
        sent = asyncio.run(asked(reads_and_waits, Drain(), body_s=0.02, parts=parts))
        assert sent[0]["status"] == status


def test_a_stream_ends_with_an_event() -> None:
    _, first, last = asyncio.run(asked(never_ends, Drain(), request_s=0.02))
    assert first["body"] == b"data: 1\n\n"
    assert code(last) == "timed_out"


def test_a_stream_of_lines_ends_with_a_line() -> None:
    async def never_ends(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({**EVENTS, "headers": [(b"content-type", b"application/x-ndjson")]})
        await asyncio.Future()

    _, last = asyncio.run(asked(never_ends, Drain(), request_s=0.02))
    assert last["body"].count(b"\n") == 1
    assert "`--request-timeout`" in json.loads(last["body"])["error"]
    assert last["more_body"] is False


def test_the_end_of_the_server_cuts_what_runs() -> None:
    async def ended(app: ASGIApp) -> list[Message]:
        drain = Drain()
        running = asyncio.create_task(asked(app, drain, parts=[(b"{", True)]))
        while not drain.requests:
            await asyncio.sleep(0)
        await drain.finish(0.02)
        sent = await running
        assert drain.requests == 0
        return sent

    head, last = asyncio.run(ended(reads_and_waits))
    assert (head["status"], code(last)) == (503, "draining")
    assert code(asyncio.run(ended(never_ends))[-1]) == "draining"


@pytest.mark.slow
def test_a_client_who_reads_nothing_is_left() -> None:
    async def stalls(message: Message) -> None:
        if b"[DONE]" in message.get("body", b""):
            await asyncio.Future()

    sent = asyncio.run(asked(never_ends, Drain(), request_s=0.02, stalls=stalls))
    assert code(sent[-1]) == "timed_out"
