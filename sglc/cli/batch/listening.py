"""Where servers of this machine can listen, whether one still does, and how long it is waited for."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from sglc.errors import RunError

_KNOCK_S = 5.0  # for a machine that does not answer
GONE_S = 20.0  # as long as there may be no server
_AGAIN_S = 0.2


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def listens(host: str, port: int) -> bool:
    """Whether something takes connections there."""
    try:
        socket.create_connection((host, port), _KNOCK_S).close()
    except OSError:
        return False
    return True


def address_of(spec: str | None) -> tuple[str, int] | None:
    """Where the server is that a back end's name says, if it says one."""
    parts = urlsplit(spec or "")
    if parts.scheme not in ("http", "https", "grpc", "grpcs") or not parts.hostname:
        return None
    return parts.hostname, parts.port or (443 if parts.scheme.endswith("s") else 80)


def await_server(spec: str | None, stopped: Callable[[], bool]) -> None:
    """Wait until somebody listens where the server of `spec` was, or the batch is `stopped`.

    Raises:
        RunError: SGLC435, nobody does for 20 seconds.
    """
    address, since_s = address_of(spec), time.monotonic()
    while address is not None and not stopped() and not listens(*address):
        if time.monotonic() - since_s > GONE_S:
            note = f"nobody has listened there for {GONE_S:.0f} s; rows that failed meanwhile are left"
            raise RunError("SGLC435", f"the server at `{spec}` has gone", note=note)
        time.sleep(_AGAIN_S)
