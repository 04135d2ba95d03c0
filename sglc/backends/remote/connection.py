"""What a back end that goes over HTTP holds of the event loop that it runs in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sglc.backends.retry import Places

_CLOSING_S = 5.0


@dataclass(frozen=True, slots=True)
class Connection:
    """A client, which belongs to one event loop, and its places for requests. `end` closes the client."""

    loop: asyncio.AbstractEventLoop
    client: Any
    places: Places
    end: Callable[[], Coroutine[Any, Any, None]]

    def is_here(self) -> bool:
        """Whether it belongs to the loop that runs now."""
        return self.loop is asyncio.get_running_loop()

    def close(self) -> None:
        """Close the client; from outside of its loop."""
        if self.loop.is_running():
            closing = asyncio.run_coroutine_threadsafe(self.end(), self.loop)
            with suppress(Exception):
                closing.result(_CLOSING_S)
