"""The end of a server: no request begins any more, those that run may end, and what is left then is cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

from starlette.types import Scope

from sglc.serve.problems import Refusal

_TIMEOUT = "sglc.timeout"  # of a request's scope


class Drain:
    """Who runs, and whether the server is about to end. Of one event loop."""

    def __init__(self) -> None:
        self.begun = False  # nothing new begins
        self.over = False  # and nothing goes on
        self._running: dict[asyncio.Timeout, set[str]] = {}  # with the names that requests can be aborted by
        self._aborted: WeakSet[asyncio.Timeout] = WeakSet()
        self._done = asyncio.Event()

    @property
    def requests(self) -> int:
        """That are being answered."""
        return len(self._running)

    @contextmanager
    def answering(self, scope: Scope, timeout: asyncio.Timeout) -> Iterator[None]:
        """A request is being answered meanwhile, and ends when this expires."""
        scope[_TIMEOUT] = timeout
        self._running[timeout] = set()
        try:
            yield
        finally:
            del self._running[timeout]
            if self.begun and not self._running:
                self._done.set()

    def name(self, scope: Scope, *names: str) -> None:
        """A request that is being answered makes text, and can be aborted by these names."""
        if _TIMEOUT in scope:
            self._running[scope[_TIMEOUT]].update(names)

    def stay(self, scope: Scope) -> None:
        """A request is no answer that comes to an end, and has no time for it."""
        if _TIMEOUT in scope:
            scope[_TIMEOUT].reschedule(None)

    def abort(self, name: str | None) -> int:
        """End the requests of a name, or all that make text; gives how many these are."""
        found = [
            timeout for timeout, names in self._running.items() if (names if name is None else name in names)
        ]
        for timeout in found:
            if not timeout.expired():
                self._aborted.add(timeout)
                timeout.reschedule(asyncio.get_running_loop().time())
        return len(found)

    def why(self, timeout: asyncio.Timeout) -> Refusal | None:
        """What a request whose `timeout` has expired is told; None if its time is over."""
        if timeout in self._aborted:
            return Refusal(409, "the request was aborted by `/abort_request`", code="aborted", closes=True)
        return ended() if self.over else None

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
