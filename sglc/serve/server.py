"""The server's life, from the first socket to the last answer."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import socket
import sys
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

from sglc.errors import UsageError
from sglc.runtime.engine.own_process import keep_answering
from sglc.serve.app import make_direct
from sglc.serve.connection import Connection
from sglc.serve.door import Access, guarded
from sglc.serve.service import Service
from sglc.serve.tls import Certificate

if TYPE_CHECKING:
    from sglc.serve.grpc_server import GrpcServer

_SEND_BYTES = 1 << 18  # of a connection that the kernel holds for a client who does not read
_LAST_S = 1  # for what is left to be sent behind the end of all answers
_FOR_ALL = Access()
_COLLECTIONS = (700, 300)  # as of the runtime's process, where more gets old
_BACKLOG = 2048  # connections that wait to be taken


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that does not listen yet, whose address nobody else gets.

    Raises:
        UsageError: SGLC038, there is no such address, or another program has it.
    """
    try:
        ((family, _, _, _, address), *_) = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            # Connections inherit these. Without the second a small answer waits for an acknowledgement.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _bind(bound, address)
        except OSError:
            bound.close()
            raise
    except (OSError, UnicodeError) as error:
        raise not_there(host, port, error) from None
    return bound


def _bind(bound: socket.socket, address: tuple[Any, ...]) -> None:
    """Bind for this socket alone: Linux gives an address to two that reuse it while neither listens."""
    try:
        bound.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        # Perhaps by nothing but the last connections of a server that has ended.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)


def not_there(host: str, port: int, error: Exception) -> UsageError:
    """What it is that nobody can listen at an address."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    taken = isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES)
    return UsageError(
        "SGLC038", f"`{host}` port {port} cannot be listened at: {why.lower()}",
        hint="`--port 0` takes any port that is free" if taken else "",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerTimeouts:
    """How long the server waits, in seconds.

    Fields:
        keep_alive_s: for the whole head of the next request on a connection.
        drain_s: for answers to end when the server is told to.
    """

    keep_alive_s: float = 75.0
    drain_s: float = 30.0


def serve(
    service: Service,
    host: str,
    listening: socket.socket,
    timeouts: ServerTimeouts,
    access: Access = _FOR_ALL,
    certificate: Certificate | None = None,
    beside: GrpcServer | None = None,
) -> None:
    """Answer at `listening` until a signal ends it, and the back end with it.

    Args:
        host: what its address is called.
        certificate: of HTTPS; plain HTTP without.
        beside: answers as long.

    Raises:
        UsageError: SGLC038, another program has come to have the address.
    """
    # A connection that was given up must not stay for what its client never reads.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * service.stall_s))
    config = uvicorn.Config(
        guarded(
            make_direct(service), access, service.limits, service.drain, service.queue, service.metrics
        ),
        http=Connection, ws="none", lifespan="off",
        limit_concurrency=service.limits.connections,
        log_level="warning", access_log=False, proxy_headers=False,
        timeout_graceful_shutdown=_LAST_S, timeout_keep_alive=math.ceil(timeouts.keep_alive_s),
        ssl_certfile=None if certificate is None else certificate.cert,
        ssl_keyfile=None if certificate is None else certificate.key,
    )  # fmt: skip
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # that a client left while it was sent to is no news
    # For connections to have it, which else keep the next server away when this one has ended.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.listen(_BACKLOG)
    except OSError as error:
        raise not_there(host, listening.getsockname()[1], error) from None
    keep_answering(_COLLECTIONS)
    url = _url(config, host, listening)
    _DrainingServer(config, service, timeouts.drain_s, url, beside).run(sockets=[listening])


class _DrainingServer(uvicorn.Server):
    """Ends with the answers that it has begun at the first signal, and without them at the second."""

    def __init__(
        self, config: uvicorn.Config, service: Service, drain_s: float, url: str, beside: GrpcServer | None
    ) -> None:
        super().__init__(config)
        self._service = service
        self._drain_s = drain_s
        self._url = url
        self._beside = beside
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Future[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """As of every server of uvicorn."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)
        if self._beside is not None:
            await self._beside.stop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As of every server of uvicorn; it says so when signals are its own: they may come at once."""
        await super().startup(sockets)
        urls = [self._url] if self._beside is None else [await self._beside.start(), self._url]
        for url in urls:
            print(f"sglc: serving {self._service.name} at {url}", file=sys.stderr, flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end. The second time end at once: the kernel ends the runtime's process with this one."""
        if self._service.drain.begun:
            os._exit(128 + sig)
        self._service.drain.begun = True
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._begin_to_end)

    def _begin_to_end(self) -> None:
        self._end = asyncio.ensure_future(self._finish())

    async def _finish(self) -> None:
        drain = self._service.drain
        if drain.requests:
            what = f"{drain.requests} answers may go on for {self._drain_s:g} s"
            print(f"sglc: ending: {what}; a second signal ends at once", file=sys.stderr, flush=True)
        if self._beside is not None:
            await self._beside.drain()
        await drain.finish(self._drain_s)
        # Who waits for an answer of the runtime, which may be busy for long, gets an error with its end.
        await asyncio.to_thread(self._service.backend.close)
        self.should_exit = True


def _url(config: uvicorn.Config, host: str, listening: socket.socket) -> str:
    protocol, port = "https" if config.is_ssl else "http", listening.getsockname()[1]
    return f"{protocol}://[{host}]:{port}" if ":" in host else f"{protocol}://{host}:{port}"
