"""A connection of the server: the head of its next request is there in time, or it is closed."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import msgspec
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from sglc.serve.problems import Refusal, as_response

_LONGEST_HEAD = 1 << 16  # bytes, as uvicorn has it
_CHUNKED = b"\r\ntransfer-encoding: chunked\r\n"
_CROWDED_S = 5  # that a connection too many may take for the request that it gets its refusal for


class _Framing(h11.Connection):
    """Writes each part of an answer in chunks as its chunk: h11 takes as long for one as all of ours does.

    The head of a whole answer goes with what is behind it: a call of the system takes as long as to make it.
    """

    _chunks = False  # whether parts of an answer in chunks may come
    _head = b""  # of one that is not in chunks, whose parts come at once

    def send(self, event: Any) -> Any:
        """As of every connection of h11."""
        if self._chunks and type(event) is h11.Data:
            written = b"%x\r\n%b\r\n" % (len(event.data), event.data) if event.data else b""
        else:
            written = super().send(event)
            self._chunks = type(event) is h11.Response and _CHUNKED in written.lower()
            if type(event) is h11.Response and not self._chunks:
                self._head = written
                return b""
        head, self._head = self._head, b""
        return head + (written or b"") if head else written


class Connection(H11Protocol):
    """Waits for each head as long as the server keeps connections alive.

    uvicorn would wait for ever before the first request, and for the rest of a head that has begun. Requests of
    connections beyond the limit are refused by us: uvicorn says so in plain text, and not when to come again.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.conn = _Framing(h11.SERVER, _LONGEST_HEAD)
        self._most, self.limit_concurrency = self.limit_concurrency, None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As of every protocol."""
        super().connection_made(transport)
        if self._most is not None and len(self.connections) > self._most:
            self.app = _crowded
            self.timeout_keep_alive = min(self.timeout_keep_alive, _CROWDED_S)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """As of every protocol."""
        waiting, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:  # no head so far
            self.timeout_keep_alive_task = waiting
        elif waiting is not None:
            waiting.cancel()

    def send_400_response(self, msg: str) -> None:
        """What has come is no request; as uvicorn does, in the form of all errors."""
        refusal = Refusal(400, "this is no HTTP request", code="bad_request")
        body = msgspec.json.encode(refusal.body())
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        events = (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _wait(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )


async def _crowded(scope: Scope, receive: Receive, send: Send) -> None:
    refusal = Refusal(
        503, "there are more connections than the server takes", code="too_many_connections", closes=True
    )
    await as_response(refusal, scope["path"])(scope, receive, send)
