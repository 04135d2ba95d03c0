"""The time that a request may take: from its head to the last byte of its answer, its body included."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglc.serve.problems import Refusal, as_last_events, as_response

_LAST_S = 1.0  # that the client may take to read why it ends


class Deadline:
    """Ends what is not answered within `seconds`: its work is cancelled, and the client told so."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As of every ASGI application."""
        started: Message | None = None
        ended = False

        async def watched(message: Message) -> None:
            nonlocal started, ended
            if message["type"] == "http.response.start":
                started = message
            else:
                ended = not message.get("more_body", False)
            await send(message)

        try:
            async with asyncio.timeout(self._seconds) as timeout:
                await self._app(scope, receive, watched)
        except TimeoutError:
            if not timeout.expired():
                raise
            if not ended:
                await self._end(started, scope, receive, send)

    async def _end(self, started: Message | None, scope: Scope, receive: Receive, send: Send) -> None:
        message = f"the request has taken more than the {self._seconds:g} s of `--request-timeout`"
        refusal = Refusal(503, message, code="timed_out", closes=True)
        try:
            async with asyncio.timeout(_LAST_S):
                if started is None:
                    await as_response(refusal)(scope, receive, send)
                elif _of_events(started):
                    last = as_last_events(refusal)
                    await send({"type": "http.response.body", "body": last, "more_body": False})
        except TimeoutError:
            return  # the connection is closed by the server, as behind part of any other answer


def _of_events(started: Message) -> bool:
    return (b"content-type", b"text/event-stream") in [
        (name.lower(), value.partition(b";")[0]) for name, value in started["headers"]
    ]
