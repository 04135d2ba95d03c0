"""Answers on their way to a client that may go away, or stop reading.

Invariants: work for a client that is gone is cancelled, which aborts its segment; nothing waits for a reader
longer than the stall limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, closing, suppress
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from sglc.serve.problems import as_last_part, of_any

_T = TypeVar("_T")
_DONE = b"data: [DONE]\n\n"
_ENCODER = msgspec.json.Encoder()


class Gone(Exception):
    """The client has closed the connection: there is nobody to answer."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """What `work` gives. It is cancelled, and has ended, when the client goes away first.

    Raises:
        Gone: the client is gone.
    """
    task = asyncio.current_task()
    assert task is not None
    gone = False

    async def look() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    with closing(work):
        watcher = asyncio.create_task(look())
        try:
            return await work
        except asyncio.CancelledError:
            if gone:
                task.uncancel()
                raise Gone from None
            raise
        finally:
            watcher.cancel()


class Nothing(Response):
    """No answer at all, for a client that is gone."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        return


class EventStream(Response):
    """Server-sent events: those of `first` and of all that `rest` gives, and `[DONE]`.

    What is given together is sent together. A failure on the way is an event, too.

    Args:
        stall_s: how long the client may leave what was sent unread, in seconds.
    """

    media_type = "text/event-stream"
    _frame, _end = b"data: %b\n\n", _DONE

    def __init__(self, first: list[Any], rest: AsyncGenerator[list[Any], None], stall_s: float) -> None:
        super().__init__(headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._stall_s = stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # What is suppressed ends the answer early, and then the server closes the connection.
        with suppress(Gone, TimeoutError), StallTimer(self._stall_s) as timer:
            await while_connected(receive, self._send(send, timer))

    async def _send(self, send: Send, timer: StallTimer) -> None:
        async def put(message: Message) -> None:
            timer.begin()
            await send(message)
            timer.end()

        async with aclosing(self._rest):
            await put({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await put(self._message(self._first))
            try:
                async for contents in self._rest:
                    await put(self._message(contents))
                last = self._end
            except Exception as error:
                last = as_last_part(of_any(error), self.media_type)
            await put({"type": "http.response.body", "body": last, "more_body": False})

    def _message(self, contents: list[Any]) -> Message:
        data = b"".join([self._frame % _ENCODER.encode(content) for content in contents])
        return {"type": "http.response.body", "body": data, "more_body": True}


class JsonLines(EventStream):
    """The same as lines of JSON, without a last one: Ollama's."""

    media_type = "application/x-ndjson"
    _frame, _end = b"%b\n", b""


async def first_of(parts: AsyncGenerator[list[Any], None]) -> list[Any]:
    """The first of `parts`, as work that `while_connected` takes."""
    return await anext(parts)


def described(stream: type[EventStream]) -> dict[int | str, dict[str, Any]]:
    """What `/openapi.json` says of an endpoint that may answer with such events."""
    return {200: {"content": {stream.media_type: {}}}}


class StallTimer:
    """Cancels the task that enters it when what it began has not ended after `seconds`.

    Raises:
        TimeoutError: it was cancelled for that.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began: float | None = None
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self.ended = False

    def __enter__(self) -> StallTimer:
        self._timer = self._loop.call_later(self._seconds, self._look)
        return self

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()
        if self.ended:
            assert self._task is not None
            self._task.uncancel()
            raise TimeoutError from None

    def begin(self) -> None:
        """Something begins that may take so long."""
        self._began = self._loop.time()

    def end(self) -> None:
        """It has ended."""
        self._began = None

    def _look(self) -> None:
        """One timer for all that begins: it is set again, for when the next one can be due."""
        due = (self._loop.time() if self._began is None else self._began) + self._seconds
        if due > self._loop.time():
            self._timer = self._loop.call_at(due, self._look)
            return
        self.ended = True
        assert self._task is not None
        self._task.cancel()
