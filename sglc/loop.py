"""The one event loop of the process, in a thread of its own, that follows every run's back end."""

from __future__ import annotations

import asyncio
import threading
from functools import cache

_LOCK = threading.Lock()  # `cache` alone may begin two


def executor_loop() -> asyncio.AbstractEventLoop:
    """The loop; begun with the first call."""
    with _LOCK:
        return _begun()


@cache
def _begun() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="sglc-executor", daemon=True).start()
    return loop
