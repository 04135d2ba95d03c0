"""What is known of each request: its id, which its answer carries, and a line when it has been answered."""

from __future__ import annotations

import json
import random
import time
from contextvars import ContextVar
from datetime import UTC, datetime

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglc.serve.log_lines import LogLines
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
        self._lines = LogLines() if written else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As of every ASGI application."""
        began, began_s = time.time(), time.perf_counter()
        status: int | None = None
        complete = False
        spent = Spent(self._metrics.between)
        SPENT.set(spent)
        scope[REQUEST_ID] = _in_header(scope) or f"{_RANDOM.getrandbits(128):032x}"
        kind = self._metrics.asks(scope)
        span = RequestSpan.begun(scope, kind, self._metrics.model)

        async def named(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                named_by = (_HEADER, scope[REQUEST_ID].encode())
                message = {**message, "headers": [*message["headers"], named_by]}
            await send(message)
            complete = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await self._app(scope, receive, named)
        except Exception as error:
            error.add_note(f"in the request {scope[REQUEST_ID]}")  # stands in the server's log
            raise
        finally:
            ended_s = time.perf_counter()
            self._metrics.answered(kind, spent, began_s, ended_s, status, complete)
            if span is not None:
                span.end(scope[REQUEST_ID], spent, status, complete)
            if self._lines is not None:
                client = scope.get("client")
                known = {
                    "time": datetime.fromtimestamp(began, UTC).isoformat(timespec="milliseconds"),
                    "id": scope[REQUEST_ID],
                    "client": client and f"{client[0]}:{client[1]}",
                    "method": scope["method"],
                    "path": scope["path"][:_LONGEST_PATH],
                    "status": status,
                    "complete": complete,
                    "code": spent.code,
                    "seconds": round(ended_s - began_s, 4),
                    "first_s": None if spent.first_s is None else round(spent.first_s - began_s, 4),
                    "prompt_tokens": spent.prompt,
                    "cached_tokens": None if spent.prompt is None else spent.cached,
                    "completion_tokens": spent.completion,
                }
                self._lines.put(json.dumps(known))  # ASCII, whatever stands in a path


def name_request(scope: Scope, given: str) -> None:
    """A request says inside of it what its client calls it: that is its id, unless a header has said so."""
    if _in_header(scope) is None and _can_be_id(given):
        scope[REQUEST_ID] = given


def _in_header(scope: Scope) -> str | None:
    given = dict(scope["headers"]).get(_HEADER, b"").decode("latin-1")
    return given if _can_be_id(given) else None


def _can_be_id(given: str) -> bool:
    return 0 < len(given) <= _LONGEST_ID and all("\x20" < character < "\x7f" for character in given)
