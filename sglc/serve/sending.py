"""Answers on their way to a client that may go away, or stop reading.

Invariants: work for a client that is gone is cancelled, which aborts its segment; nothing waits for a reader
longer than the stall limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from sglc.serve.drain import Drain, ended
from sglc.serve.problems import Refusal, of_any

_T = TypeVar("_T")
_DONE = b"data: [DONE]\n\n"


class Gone(Exception):
    """The client has closed the connection: there is nobody to answer."""


async def while_connected(receive: Receive, drain: Drain, work: Coroutine[Any, Any, _T]) -> _T:
    """What `work` gives. It is cancelled, and has ended, when the client goes away first.

    Raises:
        Gone: the client is gone.
        Refusal: the server ends.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(receive))
    try:
        with drain.working(task):
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        if task.cancelled() and drain.over:
            raise ended()
        return task.result()
    finally:
        await _cancelled(task)
        await _cancelled(gone)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()  # seen


class Nothing(Response):
    """No answer at all, for a client that is gone."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        return


class EventStream(Response):
    """Server-sent events: `first`, what `rest` gives, and `[DONE]`. A failure on the way is an event, too.

    Args:
        stall_s: how long the client may leave what was sent unread, in seconds.
    """

    media_type = "text/event-stream"

    def __init__(self, first: Any, rest: AsyncGenerator[Any, None], drain: Drain, stall_s: float) -> None:
        super().__init__(headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._drain = drain
        self._stall_s = stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._drain, self._send(send))
        except (Gone, Refusal, TimeoutError):
            return  # the connection is closed by the server

    async def _send(self, send: Send) -> None:
        async with aclosing(self._rest):
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await self._put(send, start)
            await self._event(send, self._first)
            try:
                async for content in self._rest:
                    await self._event(send, content)
            except TimeoutError:
                raise
            except asyncio.CancelledError:
                if not self._drain.over:
                    raise
                await self._event(send, ended().body())
            except Exception as error:
                await self._event(send, of_any(error).body())
            await self._put(send, {"type": "http.response.body", "body": _DONE, "more_body": False})

    async def _event(self, send: Send, content: Any) -> None:
        data = b"data: " + msgspec.json.encode(content) + b"\n\n"
        await self._put(send, {"type": "http.response.body", "body": data, "more_body": True})

    async def _put(self, send: Send, message: Message) -> None:
        async with asyncio.timeout(self._stall_s):
            await send(message)
