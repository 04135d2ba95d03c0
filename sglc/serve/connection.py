"""A connection of the server: the head of its next request is there in time, or it is closed.

It is not closed on what still comes of a request that has been answered, or the client would lose the answer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, cast

import h11
import msgspec
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from sglc.serve.problems import Refusal, as_response

_LONGEST_HEAD = 1 << 16  # bytes, as uvicorn has it
_ABSOLUTE = re.compile(rb"https?://([^/?#]+)([^#]*)", re.IGNORECASE)
_LINGER_S, _LINGER_BYTES = 5, 64 << 20  # for what comes of a request behind its answer, and is dropped
_TLS_LINGER_S = 0.5  # TLS has no half-closed connection: its client sees no end before
# What h11 says of a head; what we say.
_FAULTS = {
    "Missing mandatory Host: header": ": `Host` is missing",
    "Found multiple Host: headers": ": it has two `Host`",
    "conflicting Content-Length headers": ": it has two `Content-Length`",
    "bad Content-Length": ": its `Content-Length` is no length",
    "multiple Transfer-Encoding headers": ": it has two `Transfer-Encoding`",
    "Only Transfer-Encoding: chunked is supported": ": its `Transfer-Encoding` is not `chunked` alone",
}
_CHUNKED = b"\r\ntransfer-encoding: chunked\r\n"
_CROWDED_S = 5  # that a connection too many may take for the request that it gets its refusal for


class _Framing(h11.Connection):
    """Writes each part of an answer in chunks as its chunk: h11 takes as long for one as all of ours does.

    The head of a whole answer goes with what is behind it: a call of the system takes as long as to make it.
    """

    _chunks = False  # whether parts of an answer in chunks may come
    _head = b""  # of one that is not in chunks, whose parts come at once
    fault: h11.RemoteProtocolError | None = None  # what is wrong with what has come

    @property
    def for_head(self) -> bool:
        """Whether the answer is one without a body, whatever its head says."""
        return self._request_method == b"HEAD"

    def receive_data(self, data: bytes) -> None:
        """As of every connection of h11, without empty lines before a request (RFC 9112, 2.2)."""
        if self.their_state is h11.IDLE and not self._receive_buffer:
            data = data.lstrip(b"\r\n")
            if not data:  # which would mean that the client has sent its last
                return
        super().receive_data(data)

    def start_next_cycle(self) -> None:
        """As of every connection of h11, without empty lines before a request (RFC 9112, 2.2)."""
        super().start_next_cycle()
        if self._receive_buffer:
            held = bytes(self._receive_buffer)
            self._receive_buffer.maybe_extract_at_most(len(held) - len(held.lstrip(b"\r\n")))

    def next_event(self) -> Any:
        """As of every connection of h11, which minds the length of a head only while it is not whole."""
        before = len(self._receive_buffer)
        try:
            event = super().next_event()
            if type(event) is not h11.Request:
                return event
            if before - len(self._receive_buffer) > _LONGEST_HEAD:
                raise h11.RemoteProtocolError("a long head", error_status_hint=431)
            return event if event.target.startswith(b"/") else _in_origin_form(event)
        except h11.RemoteProtocolError as error:
            self.fault = error
            if self._request_method is None and self.trailing_data[0].startswith(b"HEAD "):
                self._request_method = b"HEAD"  # its head is not whole
            raise

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


def _in_origin_form(asked: h11.Request) -> h11.Request:
    """RFC 9112, 3.2.2: a target may name a host, which is asked then, whatever `Host` says."""
    found = _ABSOLUTE.fullmatch(asked.target)
    if found is None:
        return asked
    others = [(name, value) for name, value in asked.headers if name != b"host"]
    target = found[2] if found[2].startswith(b"/") else b"/" + found[2]
    return h11.Request(
        method=asked.method, headers=[(b"host", found[1]), *others], target=target,
        http_version=asked.http_version,
    )  # fmt: skip


class _Lingering:
    """A transport that, while a request is not `read` to its end, is closed for what is written alone.

    The kernel resets a connection that is closed with something unread, and the client loses the answer.
    """

    def __init__(
        self, transport: asyncio.Transport, protocol: asyncio.Protocol, read: Callable[[], bool]
    ) -> None:
        self._transport = transport
        self._protocol = protocol
        self._read = read
        self._lingers = False
        self.write = transport.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """As of every transport."""
        return self._lingers or self._transport.is_closing()

    def close(self) -> None:
        """As of every transport; the second time it is closed at once."""
        if self.is_closing() or self._read():
            self._transport.close()
            return
        self._lingers = True
        self._transport.set_protocol(_Dropping(self._transport, self._protocol))


class _Dropping(asyncio.Protocol):
    """In the place of `protocol`: drops what comes, until the client closes or it is too much."""

    def __init__(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        self._transport = transport
        self._protocol = protocol
        self._left = _LINGER_BYTES
        halves = transport.can_write_eof()
        wait_s = _LINGER_S if halves else _TLS_LINGER_S
        self._timer = asyncio.get_running_loop().call_later(wait_s, transport.close)
        if halves:
            transport.write_eof()
        if not transport.is_reading():
            transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """As of every protocol."""
        self._left -= len(data)
        if self._left < 0:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """As of every protocol."""
        self._timer.cancel()
        self._protocol.connection_lost(exc)


class Connection(H11Protocol):
    """Waits for each head as long as the server keeps connections alive.

    uvicorn would wait for ever before the first request, and for the rest of a head that has begun. Requests of
    connections beyond the limit are refused by us: uvicorn says so in plain text, and not when to come again.
    """

    conn: _Framing

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.conn = _Framing(h11.SERVER, _LONGEST_HEAD)
        self._most, self.limit_concurrency = self.limit_concurrency, None
        self._ends = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As of every protocol."""
        super().connection_made(cast(asyncio.Transport, _Lingering(transport, self, self._has_read)))
        if self._most is not None and len(self.connections) > self._most:
            self.app = _crowded
            self.timeout_keep_alive = min(self.timeout_keep_alive, _CROWDED_S)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def data_received(self, data: bytes) -> None:
        """As of every protocol."""
        if self.conn.fault is not None:
            return  # an answer is under way, and nothing comes behind it
        waiting, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:  # no head so far
            self.timeout_keep_alive_task = waiting
        elif waiting is not None:
            waiting.cancel()

    def send_400_response(self, msg: str) -> None:
        """What has come is no request; as uvicorn does, in the form of all errors.

        An answer that has begun, or whose request is whole, goes on, and the connection is closed behind it.
        """
        cycle = self.cycle
        if cycle and not cycle.response_complete and (cycle.response_started or not cycle.more_body):
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._refuse()
        self.transport.close()

    def _refuse(self) -> None:
        refusal = _refusal(self.conn.fault)
        body = msgspec.json.encode(refusal.body())
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        events = (
            h11.Response(status_code=refusal.status, headers=headers, reason=STATUS_PHRASES[refusal.status]),
            h11.Data(data=b"" if self.conn.for_head else body),
            h11.EndOfMessage(),
        )
        for event in events:
            self.transport.write(self.conn.send(event) or b"")

    def shutdown(self) -> None:
        """As uvicorn does; the server does not wait for what still comes of a request that has its answer."""
        self._ends = True
        super().shutdown()

    def _has_read(self) -> bool:
        """Whether there is nothing more to come of a request that is waited for."""
        return self._ends or (self.conn.their_state is not h11.SEND_BODY and self.conn.fault is None)


def _refusal(fault: h11.RemoteProtocolError | None) -> Refusal:
    """What is wrong with what has come."""
    if fault is not None and fault.error_status_hint == 431:
        return Refusal(431, f"the head is longer than {_LONGEST_HEAD} bytes", code="head_too_large")
    return Refusal(400, f"this is no HTTP request{_FAULTS.get(str(fault), '')}", code="bad_request")


async def _crowded(scope: Scope, receive: Receive, send: Send) -> None:
    refusal = Refusal(
        503, "there are more connections than the server takes", code="too_many_connections", closes=True
    )
    await as_response(refusal, scope["path"])(scope, receive, send)
