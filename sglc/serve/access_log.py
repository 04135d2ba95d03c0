"""What is known of each request: its id, which its answer carries, and a line when it has been answered."""

from __future__ import annotations

import json
import random
import sys
import time
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglc.serve.metrics import Metrics, Spent
from sglc.serve.request_span import RequestSpan

_HEADER = b"x-request-id"
REQUEST_ID = "sglc.request_id"  # of a request's scope
_LONGEST_ID = 128  # characters
_LONGEST_PATH = 256
_RANDOM = random.Random()  # an id is no secret


SPENT: ContextVar[Spent] = ContextVar("SPENT")  # of the request that a task belongs to


class AccessLog:
    """Gives every request an id, its client's own if that can be one, counts it, and writes of it if `written`.

    Nothing is written of what was asked or answered, nor of who asked but the address.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, *, written: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._written = written

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As of every ASGI application."""
        began, began_s = time.time(), time.perf_counter()
        request_id = _id_of(scope)
        status: int | None = None
        complete = False
        spent = Spent(self._metrics.between)
        SPENT.set(spent)
        scope[REQUEST_ID] = request_id.decode()
        kind = self._metrics.asks(scope)
        span = RequestSpan.begun(scope, kind, self._metrics.model, scope[REQUEST_ID])

        async def named(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (_HEADER, request_id)]}
            await send(message)
            complete = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await self._app(scope, receive, named)
        finally:
            ended_s = time.perf_counter()
            self._metrics.answered(kind, spent, began_s, ended_s, status, complete)
            if span is not None:
                span.end(spent, status, complete)
            if self._written:
                client = scope.get("client")
                _write(
                    time=datetime.fromtimestamp(began, UTC).isoformat(timespec="milliseconds"),
                    id=request_id.decode(),
                    client=client and f"{client[0]}:{client[1]}",
                    method=scope["method"],
                    path=scope["path"][:_LONGEST_PATH],
                    status=status,
                    complete=complete,
                    code=spent.code,
                    seconds=round(ended_s - began_s, 4),
                    first_s=None if spent.first_s is None else round(spent.first_s - began_s, 4),
                    prompt_tokens=spent.prompt,
                    cached_tokens=None if spent.prompt is None else spent.cached,
                    completion_tokens=spent.completion,
                )


def _id_of(scope: Scope) -> bytes:
    given: bytes = dict(scope["headers"]).get(_HEADER, b"")
    if 0 < len(given) <= _LONGEST_ID and all(0x20 < byte < 0x7F for byte in given):
        return given
    return b"%032x" % _RANDOM.getrandbits(128)


def _write(**known: str | float | None) -> None:
    """One line of ASCII, whatever stands in a path."""
    with suppress(OSError):  # whoever reads it may be gone
        print(json.dumps(known), file=sys.stderr, flush=True)
