"""Who gets in: every request passes here before an endpoint sees it."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Receive, Scope, Send

from sglc.serve.deadline import Deadline
from sglc.serve.drain import ended
from sglc.serve.problems import Refusal, as_response

if TYPE_CHECKING:
    from sglc.serve.app import Service


def guarded(app: ASGIApp, service: Service) -> ASGIApp:
    """`app` for whom the service lets in, and for no longer than it lets them stay."""
    return Deadline(_Door(app, service), service.limits.request_s)


class _Door:
    """Lets in who has the key, if there is one, while there is room and the server does not end.

    `/health` needs no key.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._drain = service.drain
        self._queue = service.queue
        self._most = service.limits.queue
        self._wanted = None if service.api_key is None else f"Bearer {service.api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As of every ASGI application."""
        if refusal := self._refusal(scope):
            await as_response(refusal)(scope, receive, send)
            return
        with self._drain.answering():
            try:
                await self._app(scope, receive, send)
            finally:
                self._queue.let_out(scope)

    def _refusal(self, scope: Scope) -> Refusal | None:
        names = {name for name, _ in scope["headers"]}
        if {b"content-length", b"transfer-encoding"} <= names:
            # Who stands between may take the other one, and see another request behind this one.
            message = "`Content-Length` and `Transfer-Encoding` exclude each other"
            return Refusal(400, message, code="bad_request", closes=True)
        if self._wanted is not None and scope["path"] != "/health":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._wanted):
                message = "the key in `Authorization: Bearer KEY` is not this server's"
                return Refusal(401, message, code="invalid_api_key")
        if self._drain.begun:
            return ended()
        try:
            self._queue.let_in(scope, 1 if scope["method"] == "POST" else 0, self._most)
        except Refusal as refusal:
            return refusal
        return None
