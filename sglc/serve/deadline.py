"""When a request ends, whatever it does: its body or its answer takes too long, or the server ends."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglc.serve.drain import Drain
from sglc.serve.problems import Refusal, as_last_part, as_response

_LAST_S = 0.5  # that the client may take to read why it ends


class Deadline:
    """Ends what is not answered within `request_s`, or when `drain` is over: it is cancelled, and told so.

    Likewise what has not come whole within `body_s`, which may be much less: it holds a place in the queue.
    """

    def __init__(self, app: ASGIApp, drain: Drain, request_s: float, body_s: float) -> None:
        self._app = app
        self._drain = drain
        self._request_s = request_s
        self._body_s = min(body_s, request_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As of every ASGI application."""
        started: Message | None = None
        ended = False
        ends = asyncio.get_running_loop().time() + self._request_s
        came = not _has_body(scope)

        async def read() -> Message:
            nonlocal came
            message = await receive()
            if not (came or message.get("more_body", False)):
                came = True
                timeout.reschedule(ends)
            return message

        async def written(message: Message) -> None:
            nonlocal started, ended
            if message["type"] == "http.response.start":
                started = message
            else:
                ended = not message.get("more_body", False)
            await send(message)

        try:
            async with asyncio.timeout(self._request_s if came else self._body_s) as timeout:
                with self._drain.answering(scope, timeout):
                    await self._app(scope, read, written)
        except TimeoutError:
            if not timeout.expired():
                raise
            if not ended:
                await _end(self._drain.why(timeout) or self._refusal(came=came), started, scope, receive, send)

    def _refusal(self, *, came: bool) -> Refusal:
        if came:
            message = f"the request has taken more than the {self._request_s:g} s of `--request-timeout`"
            return Refusal(503, message, code="timed_out", closes=True)
        message = f"the body has taken more than the {self._body_s:g} s of `--body-timeout`"
        return Refusal(408, message, code="body_timed_out", closes=True)


async def _end(refusal: Refusal, started: Message | None, scope: Scope, receive: Receive, send: Send) -> None:
    try:
        async with asyncio.timeout(_LAST_S):
            if started is None:
                await as_response(refusal, scope["path"])(scope, receive, send)
            elif last := as_last_part(refusal, _kind(started)):
                await send({"type": "http.response.body", "body": last, "more_body": False})
    except TimeoutError:
        return  # the connection is closed by the server, as behind part of any other answer


def _has_body(scope: Scope) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
        for name, value in scope["headers"]
    )


def _kind(started: Message) -> str:
    """The media type of an answer."""
    fields = {name.lower(): value for name, value in started["headers"]}
    return str(fields.get(b"content-type", b"").partition(b";")[0], "latin-1")
