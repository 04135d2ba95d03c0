"""Who gets in: every request passes here before an endpoint sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256

from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from sglc.serve.access_log import AccessLog
from sglc.serve.deadline import Deadline
from sglc.serve.drain import Drain, ended
from sglc.serve.keys import ADMIN, SHARE, Keys
from sglc.serve.limits import Limits, Queue
from sglc.serve.metrics import Metrics
from sglc.serve.plain_errors import in_one_form
from sglc.serve.problems import Refusal, as_response
from sglc.serve.request_span import OPERATIONS


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask.

    Fields:
        keys: that open the server; without any it is open to all.
        admin_keys: that open what `keys` do not, if there are any.
        origins: of the pages whose scripts a browser lets ask; `*` is any.
        hosts: by whose names the server is asked, `*.example.com` with all below; any, if there are none.
        logged: whether a line is written of each request.
    """

    keys: Keys = field(default_factory=Keys)
    admin_keys: Keys = field(default_factory=Keys)
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    logged: bool = False


def guarded(
    app: ASGIApp, access: Access, limits: Limits, drain: Drain, queue: Queue, metrics: Metrics
) -> ASGIApp:
    """`app` for whom `access` lets in, while there is room, and for as long as they may stay."""
    app = Deadline(_Door(app, access, drain, queue, limits.queue), drain, limits.request_s, limits.body_s)
    if access.hosts:
        app = TrustedHostMiddleware(app, access.hosts, www_redirect=False)
    if access.origins:
        # A browser asks without a key whether it may ask with one, and reads no error without these headers.
        app = CORSMiddleware(
            app,
            allow_origins=access.origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=("x-request-id", "retry-after", "x-should-retry"),
        )
    return AccessLog(in_one_form(_well_framed(app)), metrics, written=access.logged)


def _well_framed(app: ASGIApp) -> ASGIApp:
    """`app` for requests that end where everybody on their way thinks that they do, and are not encoded.

    Of two lengths, who stands between may take the other one, and see another request behind this one.
    """

    async def framed(scope: Scope, receive: Receive, send: Send) -> None:
        fields = dict(scope["headers"])
        encoding = fields.get(b"content-encoding", b"identity")
        if b"content-length" in fields and b"transfer-encoding" in fields:
            message = "`Content-Length` and `Transfer-Encoding` exclude each other"
            refusal = Refusal(400, message, code="bad_request", closes=True)
        elif encoding.lower() != b"identity":
            message = "the body has a `Content-Encoding`, and is taken only without"
            refusal = Refusal(415, message, code="content_encoded")
        else:
            await app(scope, receive, send)
            return
        await as_response(refusal, scope["path"])(scope, receive, send)

    return framed


# Where the server is changed, or shown as it is. `/health`, which is open to all, tells no more than it must.
_OVER_GRPC = "/sglang.grpc.scheduler.SglangScheduler/"
_ADMIN_PATHS = {
    *("/abort_request", "/flush_cache", "/server_info", "/get_server_info", "/metrics"),
    *(f"{_OVER_GRPC}{name}" for name in ("Abort", "FlushCache", "GetServerInfo", "SubscribeKvEvents")),
}
_OPEN_PATHS = {"/health", f"{_OVER_GRPC}HealthCheck"}


class _Door:
    """Lets in who has a key, if there are any, while there is room and the server does not end."""

    def __init__(self, app: ASGIApp, access: Access, drain: Drain, queue: Queue, most: int) -> None:
        self._app = app
        self._keys, self._admin_keys = access.keys, access.admin_keys
        self._drain = drain
        self._queue, self._most = queue, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As of every ASGI application."""
        if refusal := self._refusal(scope):
            await as_response(refusal, scope["path"])(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._queue.let_out(scope)

    def _refusal(self, scope: Scope) -> Refusal | None:
        if refusal := self._without_key(scope):
            return refusal
        if self._drain.begun:
            return ended()
        try:
            makes_texts = scope["method"] == "POST" and scope["path"] in OPERATIONS
            self._queue.let_in(scope, 1 if makes_texts else 0, self._most)
        except Refusal as refusal:
            return refusal
        return None

    def _without_key(self, scope: Scope) -> Refusal | None:
        """Admin keys open everything, the others all but the paths of admins, if there are admin keys."""
        path = scope["path"]
        for_admins = bool(self._admin_keys) and path in _ADMIN_PATHS
        needed = bool(self._keys) or for_admins
        if path in _OPEN_PATHS or not (needed or self._admin_keys):
            return None
        scheme, _, given = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            given = b""  # no key is
        if needed:  # equal keys share the runtime's time with each other
            scope[SHARE] = sha256(given).hexdigest()[:16]
        known, admin = self._keys.have(given), self._admin_keys.have(given)
        if admin:
            scope[ADMIN] = True
        if admin or not needed or (known and not for_admins):
            return None
        if known:
            return Refusal(403, f"`{path}` takes an admin key", code="no_admin_key")
        if given:
            message = "the key in `Authorization: Bearer KEY` is not this server's"
        else:
            message = "no key is given: send `Authorization: Bearer KEY`"
        return Refusal(401, message, code="invalid_api_key")
