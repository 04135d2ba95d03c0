"""Events on their way from a runtime's thread to those who wait for them in event loops."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from itertools import islice

from sglc.ir.plan.events import Event

_READERS = 16  # that go on in one turn of the event loop


class Inbox:
    """The events of one segment that nobody has taken yet. Of one event loop, for one reader."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: list[Event] = []
        self._ended = False
        self._reader: asyncio.Future[None] | None = None  # while it waits

    def put(self, event: Event | None) -> bool:
        """One more; None is put last. Whether somebody waits for it, who is to be woken."""
        if event is None:
            self._ended = True
        else:
            self._events.append(event)
        return self._reader is not None and not self._reader.done()

    def wake(self) -> None:
        """The reader, if it waits, goes on in the loop's next turn."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def coming(self) -> asyncio.Future[None] | None:
        """What to await before `take`; None: nothing, something has come, or all has."""
        if self._events or self._ended:
            return None
        self._reader = self._loop.create_future()
        return self._reader

    def take(self) -> list[Event]:
        """What has come; none behind the last."""
        self._reader = None
        events, self._events = self._events, []
        return events


class Mail:
    """Events on their way from a runtime's thread into an event loop: those that come together wake it once.

    Only so many readers go on in one turn of the loop. What else is to happen there, such as a new request,
    takes several turns, and would wait for all readers in each of them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._items: deque[tuple[Inbox, Event | None]] = deque()
        self._told = False  # whether the loop is going to look
        self._waiting: dict[Inbox, None] = {}  # those whose readers are to be woken, in order

    def put(self, inbox: Inbox, event: Event | None) -> None:
        """Have `event` put into `inbox`; from any thread."""
        self._items.append((inbox, event))
        if self._told:
            return
        self._told = True
        with suppress(RuntimeError):  # the loop was closed: nobody listens
            self.loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        self._told = False  # before the look: who comes behind it tells again
        while self._items:
            inbox, event = self._items.popleft()
            if inbox.put(event):
                self._waiting[inbox] = None
        for inbox in list(islice(self._waiting, _READERS)):
            del self._waiting[inbox]
            inbox.wake()
        if self._waiting and not self._told:
            self._told = True
            self.loop.call_soon(self._hand_out)
