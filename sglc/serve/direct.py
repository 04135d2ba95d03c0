"""Requests for texts on their way past the framework.

Its layers of routing, dependencies and error handling take longer than all that such a request needs besides.
They are still the only ones that say what is wrong with what is no JSON object: that goes through them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglc.errors import SglcError
from sglc.serve.bodies import RequestBody
from sglc.serve.body_checker import BodyChecker
from sglc.serve.limits import Limits
from sglc.serve.problems import Refusal, as_response, of_any
from sglc.serve.reading import OtherJson, checked, decoded, validated

_AT_ONCE = 1 << 18  # bytes of a body that is read where nothing else is done meanwhile, and nowhere before
# By their path: the class of the body, and what answers it.
Endpoints = Mapping[str, tuple[type[RequestBody], Callable[[Any, Request], Awaitable[Response]]]]


class Direct:
    """Answers posts to `endpoints` of as many bytes as `limits` say at most; everything else is for `app`.

    `max_len`: tokens that the model has room for.
    """

    def __init__(self, app: ASGIApp, endpoints: Endpoints, limits: Limits, max_len: int) -> None:
        self._app = app
        self._endpoints = endpoints
        self._limits = limits
        self._max_len = max_len
        self._checker = BodyChecker(limits, max_len)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As of every ASGI application."""
        found = self._endpoints.get(scope["path"]) if scope["type"] == "http" else None
        if found is None or scope["method"] != "POST" or not self._reads(scope):
            await self._app(scope, receive, send)
            return
        kind, endpoint = found
        came: list[Message] = []
        content = await _read(receive, came)
        try:
            body = await self._body(kind, content)
        except Refusal as refusal:
            await as_response(refusal, scope["path"])(scope, receive, send)
            return
        except OtherJson:
            await self._app(scope, _again(came, receive), send)
            return
        try:
            response = await endpoint(body, Request(scope, receive))
        except (Refusal, SglcError) as error:
            response = as_response(of_any(error), scope["path"])
        except Exception as error:
            await as_response(of_any(error), scope["path"])(scope, receive, send)
            raise  # into the server's log
        await response(scope, receive, send)

    async def _body(self, kind: type[RequestBody], content: bytes) -> RequestBody:
        """What was sent.

        Raises:
            Refusal: it is no such request.
            OtherJson: the framework is to say what it is.
        """
        large = len(content) > _AT_ONCE
        given = await self._checker.given(kind, content) if large else None
        if given is None:
            given = decoded(content)
        checked(kind, given, self._limits, self._max_len)
        # Of a model's whole length of messages each is read by Python, which others get between.
        return await asyncio.to_thread(validated, kind, given) if large else validated(kind, given)

    def _reads(self, scope: Scope) -> bool:
        """Whether the body is JSON of a length that is known, and not too great."""
        fields = dict(scope["headers"])
        length = fields.get(b"content-length", b"")
        return (
            fields.get(b"content-type", b"").startswith(b"application/json")
            and length.isdigit()
            and int(length) <= self._limits.body
        )


async def _read(receive: Receive, came: list[Message]) -> bytes:
    """The body, and the messages that it came with; what there is of it, if the client goes away."""
    more = True
    while more:
        message = await receive()
        came.append(message)
        more = message.get("more_body", False)
    return came[0].get("body", b"") if len(came) == 1 else b"".join(one.get("body", b"") for one in came)


def _again(came: list[Message], receive: Receive) -> Receive:
    """`receive`, which gives `came` once more before what comes next."""
    messages = iter(came)

    async def replay() -> Message:
        for message in messages:
            return message
        return await receive()

    return replay
