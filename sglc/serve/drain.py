"""The end of a server: no request begins any more, those that run may end, and what is left then is cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from sglc.serve.problems import Refusal


class Drain:
    """Who runs, and whether the server is about to end. Of one event loop."""

    def __init__(self) -> None:
        self.begun = False  # nothing new begins
        self.over = False  # and nothing goes on
        self._running: set[asyncio.Timeout] = set()
        self._done = asyncio.Event()

    @property
    def requests(self) -> int:
        """That are being answered."""
        return len(self._running)

    @contextmanager
    def answering(self, timeout: asyncio.Timeout) -> Iterator[None]:
        """A request is being answered meanwhile, and ends when this expires."""
        self._running.add(timeout)
        try:
            yield
        finally:
            self._running.discard(timeout)
            if self.begun and not self._running:
                self._done.set()

    async def finish(self, timeout_s: float) -> None:
        """Let nothing new begin, and wait until nothing runs; cut off what runs behind `timeout_s` seconds."""
        self.begun = True
        if not self._running:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._done.wait()
        except TimeoutError:
            self.over = True
            for running in self._running:
                if not running.expired():
                    running.reschedule(asyncio.get_running_loop().time())


def ended() -> Refusal:
    """503: what a request is told that the server does not go on with."""
    return Refusal(503, "the server is about to end", code="draining", closes=True)
