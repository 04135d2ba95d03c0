"""Messages on their way to a client over gRPC, which may stop reading."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from types import coroutine
from typing import Any

from sglc.serve.sending import StallTimer

_Begun = Coroutine[Future[Any], None, None]


class Writing:
    """The messages of one call: each is begun at once, and waited for only before the next one.

    Mostly it has gone by then, and nobody has to be woken to hear that. There is never more than one on its
    way, which is all that gRPC takes; what is not through when this is left is given up.

    Args:
        put: sends a message, as `write` of a context of `grpc.aio`: what it waits for are futures.
        timer: is asked to have an eye on it when one is waited for.
    """

    def __init__(self, put: Callable[[bytes], _Begun], timer: StallTimer) -> None:
        self._put, self._patience = put, timer
        self._begun: _Begun | None = None  # a message that is on its way
        self._waits: Future[Any]  # for this

    def __enter__(self) -> Writing:
        return self

    def __exit__(self, *error: object) -> None:
        if self._begun is None:
            return
        if self._waits.done():
            with suppress(Exception):  # that it failed, nobody waits to hear
                self._go_on()
        else:
            self._waits.cancel()
            self._begun.close()

    async def write(self, message: bytes) -> None:
        """Begin a message. Waits before that until the one before is through."""
        if self._begun is not None:
            if self._waits.done():
                self._go_on()
            if self._begun is not None:
                await self.end()
        self._begun = self._put(message)
        self._go_on()

    async def end(self) -> None:
        """Wait until what was written is through."""
        while self._begun is not None:
            if not self._waits.done():
                self._patience.begin()
                await _done(self._waits)
                self._patience.end()
            self._go_on()

    def _go_on(self) -> None:
        """From what was waited for to what is waited for next, or to the end."""
        begun, self._begun = self._begun, None
        assert begun is not None
        try:
            self._waits = begun.send(None)
        except StopIteration:
            return
        self._begun = begun


@coroutine
def _done(waits: Future[Any]) -> Generator[Future[Any], None, None]:
    """Waits for what another coroutine waits for: its own `await` has begun, and no other one may."""
    yield waits
