"""The server's life, from the first socket to the last answer."""

from __future__ import annotations

import signal
import socket
import sys

import uvicorn

from sglc.errors import UsageError
from sglc.serve.app import Service, make_app

_SEND_BYTES = 1 << 18  # of a connection that the kernel holds for a client who does not read
_END_S = 5  # how long answers may go on when the server is told to end
_BACKLOG = 2048  # connections that wait to be taken


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that does not listen yet.

    Raises:
        UsageError: SGLC038, there is no such address, or another program has it.
    """
    try:
        ((family, _, _, _, address), *_) = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)  # connections inherit it
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(
            "SGLC038", f"`{host}` port {port} cannot be listened at: {why.lower()}",
            hint="`--port 0` takes any port that is free",
        ) from None  # fmt: skip
    return bound


def serve(service: Service, host: str, listening: socket.socket, stall_timeout_s: float) -> None:
    """Answer at `listening` until a signal ends it; `host` is what its address is called.

    A client may leave what was sent to it unread for `stall_timeout_s` seconds.
    """
    # A connection that was given up must not stay for what its client never reads.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * stall_timeout_s))
    config = uvicorn.Config(
        make_app(service), log_level="warning", access_log=False, lifespan="off",
        timeout_graceful_shutdown=_END_S,
    )  # fmt: skip
    server = uvicorn.Server(config)
    listening.listen(_BACKLOG)
    print(f"sglc: serving {service.name} at {_url(host, listening)}", file=sys.stderr, flush=True)
    # The server ends its answers when it is told to end, and then raises the signal again, for these.
    before = {number: signal.signal(number, _ended) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run(sockets=[listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ended(*_: object) -> None:
    """There is nothing left to do for a signal."""


def _url(host: str, listening: socket.socket) -> str:
    port = listening.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
