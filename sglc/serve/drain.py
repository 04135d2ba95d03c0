"""The end of a server: no request begins any more, those that run may end, and what is left then is cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sglc.serve.problems import Refusal


class Drain:
    """Who runs, and whether the server is about to end. Of one event loop."""

    def __init__(self) -> None:
        self.begun = False  # nothing new begins
        self.over = False  # and nothing goes on
        self.requests = 0  # that are being answered
        self._work: set[asyncio.Future[Any]] = set()
        self._done = asyncio.Event()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """A request is being answered meanwhile."""
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1
            if self.begun and not self.requests:
                self._done.set()

    @contextmanager
    def working(self, task: asyncio.Future[Any]) -> Iterator[None]:
        """`task` is what a request waits for; `cut` cancels it.

        Raises:
            Refusal: it is too late for that.
        """
        if self.over:
            raise ended()
        self._work.add(task)
        try:
            yield
        finally:
            self._work.discard(task)

    async def finish(self, timeout_s: float) -> None:
        """Let nothing new begin, and wait until nothing runs; cut off what runs behind `timeout_s` seconds."""
        self.begun = True
        if not self.requests:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._done.wait()
        except TimeoutError:
            self.over = True
            for task in self._work:
                task.cancel()


def ended() -> Refusal:
    """503: what a request is told that the server does not go on with."""
    return Refusal(503, "the server is about to end", code="draining")
