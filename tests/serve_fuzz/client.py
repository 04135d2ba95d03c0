"""Sends a hostile request, and says what came of it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.serve_fuzz.hostile import Hostile

_LATER = (
    "timed_out",
    "draining",
    "SGLC503",
    "SGLC504",
    "SGLC505",
    "SGLC506",
    "SGLC520",
)  # who says so answers the next one


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request: a status (None: the connection was closed without), and the whole answer."""

    status: int | None
    content: bytes
    began_s: float
    seconds: float
    left: bool = False

    def wrong(self, request: Hostile, most_s: float) -> str | None:
        """What must not be, if it is so."""
        if self.seconds > most_s:
            return f"it took {self.seconds:.1f} s"
        if self.left:
            return None
        if self.status == 503 and _reason(self.content):
            return None
        if self.status not in request.statuses:
            return f"answered {self.status}: {self.content[:300]!r}"
        if self.status == 400 and request.kind != "raw bytes" and not _reason(self.content):
            return f"a 400 without a reason: {self.content[:300]!r}"
        return self._wrong_stream()

    def _wrong_stream(self) -> str | None:
        if b"text/event-stream" not in self.content.partition(b"\r\n\r\n")[0]:
            return None
        if b"data: [DONE]" not in self.content:
            return "a stream without an end"
        for error in self._errors():
            if error["type"] != "invalid_request_error" and error["code"] not in _LATER:
                return f"a stream with the error {error}"
        return None

    def _errors(self) -> Iterator[dict[str, Any]]:
        for line in self.content.splitlines():
            if line.startswith(b'data: {"error"'):
                yield json.loads(line.removeprefix(b"data: "))["error"]


def _reason(content: bytes) -> bool:
    try:
        error = json.loads(content.rpartition(b"\r\n\r\n")[2])["error"]
        return bool(error["message"] and error["code"])
    except (ValueError, KeyError, TypeError):
        return False


def send(address: tuple[str, int], request: Hostile, most_s: float) -> Answer:
    """Send it, and read until the server closes the connection, or the client leaves."""
    began_s, received, left = time.monotonic(), bytearray(), False
    with socket.create_connection(address, timeout=most_s + 5) as connection:
        with suppress(ConnectionError):
            for part in request.parts:
                connection.sendall(part)
            if request.ends:
                with suppress(OSError):  # the server may have closed the connection before
                    connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError, TimeoutError):
            while True:
                if request.leaves is not None and len(received) >= request.leaves:
                    left = True
                    break
                # Slow until the server should have ended it: what is left then waits for nobody but the client.
                slow = request.slow and time.monotonic() - began_s < most_s / 2
                data = connection.recv(256 if slow else 1 << 16)
                if not data:
                    break
                received += data
                if slow:
                    time.sleep(0.001)
    status = int(received[9:12]) if received[:5] == b"HTTP/" and received[9:12].isdigit() else None
    return Answer(status, bytes(received), began_s, time.monotonic() - began_s, left)
