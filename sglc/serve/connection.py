"""A connection of the server: the head of its next request is there in time, or it is closed."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """Waits for each head as long as the server keeps connections alive.

    uvicorn would wait for ever before the first request, and for the rest of a head that has begun.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As of every protocol."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """As of every protocol."""
        waiting, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:  # no head so far
            self.timeout_keep_alive_task = waiting
        elif waiting is not None:
            waiting.cancel()

    def _wait(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )
