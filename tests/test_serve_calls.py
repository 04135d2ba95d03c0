"""How much Python a streamed token takes on its way from the runtime to the socket: calls are counted."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from types import FrameType, SimpleNamespace
from typing import Any, cast

import h11
import pytest
import uvicorn
from uvicorn.server import ServerState

from sglc.ir.plan.events import Delta, Event, EventBatches, GenDone, Sample, Usage
from sglc.ir.plan.segment import Segment
from sglc.serve.app import make_direct
from sglc.serve.connection import Connection, _Framing
from sglc.serve.door import Access, guarded
from sglc.serve.service import Service
from tests.oracle_backend import Characters

MOST_CALLS = 62  # of Python functions, ours and of libraries, for a token that has an event of its own


class Steps:
    """A back end whose answer has so many tokens, each of which wakes its reader."""

    target = SimpleNamespace(tokenizer=Characters(), scores_tokens=True, holds_forms=True)
    folder = None

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        return EventBatches(self._events(segment))

    async def _events(self, segment: Segment) -> AsyncGenerator[Sequence[Event], None]:
        node, loop = len(segment.nodes) - 1, asyncio.get_running_loop()
        ids = tuple(Characters().encode("a" * self.tokens))
        for id_ in ids:
            comes = loop.create_future()
            loop.call_soon(comes.set_result, None)
            await comes
            yield [Delta(node, "a", ((-1.0, id_, None),), cached=2)]
        sample = Sample("a" * self.tokens, ids, "length", (-1.0,) * self.tokens)
        yield [GenDone(node, (5, 6), (sample,), Usage(prompt=2, cached=2, completion=self.tokens))]


class Wire(asyncio.Transport):
    """A connection whose client takes everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.answered: asyncio.Future[None]

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...

    def write(self, data: Any) -> None:
        if data:
            self.writes.append(bytes(data))
        if data == b"0\r\n\r\n" or data.endswith(b"}"):
            self.answered.set_result(None)


async def answered(tokens: int, *requests: bytes) -> list[bytes]:
    """What is written, write by write, for requests on one connection."""
    service = Service(cast(Any, Steps(tokens)), Characters(), "steps", 4_000)
    app = guarded(make_direct(service), Access(), service.limits, service.drain, service.queue, service.metrics)
    config = uvicorn.Config(
        app, http=Connection, ws="none", lifespan="off", log_level="warning", access_log=False
    )
    config.load()
    connection = Connection(config=config, server_state=ServerState(), app_state={})
    wire = Wire()
    connection.connection_made(wire)
    for request in requests:
        wire.answered = asyncio.get_running_loop().create_future()
        connection.data_received(request)
        await wire.answered
    connection.connection_lost(None)
    return wire.writes


def asked(tokens: int) -> bytes:
    body = json.dumps({"prompt": "ab", "max_tokens": tokens, "stream": True, "temperature": 0}).encode()
    return (
        b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )


def test_a_token_takes_few_calls_of_python_from_the_runtime_to_the_socket() -> None:
    def calls(tokens: int) -> int:
        count = 0

        def look(frame: FrameType, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        before = sys.getprofile()
        sys.setprofile(look)
        try:
            writes = asyncio.run(answered(tokens, asked(tokens)))
        finally:
            sys.setprofile(before)
        assert sum(one.count(b"data: {") for one in writes) == tokens + 1
        return count

    calls(10)  # what is made once
    a_token = (calls(310) - calls(110)) / 200
    assert a_token <= MOST_CALLS


def test_parts_of_answers_are_framed_as_h11_reads_them() -> None:
    """Answers in chunks and others in turns on one connection."""
    whole = asked(3).replace(b'"stream": true,', b'"stream":false,')
    written = b"".join(asyncio.run(answered(3, asked(3), whole, asked(3))))
    client = h11.Connection(h11.CLIENT)
    bodies = []
    client.receive_data(written)
    for _ in range(3):
        client.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
        client.send(h11.EndOfMessage())
        body = b""
        while not isinstance(event := client.next_event(), h11.EndOfMessage):
            assert isinstance(event, h11.Response | h11.Data)
            if isinstance(event, h11.Data):
                body += event.data
        bodies.append(body)
        client.start_next_cycle()
    assert [body.count(b"data: ") for body in bodies] == [5, 0, 5]
    assert json.loads(bodies[1])["choices"][0]["text"] == "aaa"


def test_a_whole_answer_is_written_at_once() -> None:
    whole = asked(3).replace(b'"stream": true,', b'"stream":false,')
    assert len([data for data in asyncio.run(answered(3, whole, whole)) if data]) == 2


def test_an_empty_part_is_not_the_end_and_nothing_follows_the_end() -> None:
    framing = _Framing(h11.SERVER)
    framing.receive_data(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    assert isinstance(framing.next_event(), h11.Request)
    with pytest.raises(h11.LocalProtocolError):
        framing.send(h11.Data(data=b"before its head"))
    framing = _Framing(h11.SERVER)
    framing.receive_data(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    framing.next_event()
    assert framing.send(h11.Response(status_code=200, headers=[])).startswith(b"HTTP/1.1 200 ")
    assert framing.send(h11.Data(data=b"")) == b""
    assert framing.send(h11.Data(data=b"0123456789abcdef")) == b"10\r\n0123456789abcdef\r\n"
    assert framing.send(h11.EndOfMessage()) == b"0\r\n\r\n"
    with pytest.raises(h11.LocalProtocolError):
        framing.send(h11.Data(data=b"behind its end"))
