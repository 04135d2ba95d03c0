"""The one event loop of the process, in a thread of its own, that follows every run's back end."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from functools import partial
from typing import Any

_LOCK = threading.Lock()
_INBOX: deque[Callable[[], None]] = deque()  # what the loop has not seen yet
_loop: asyncio.AbstractEventLoop | None = None
_thread: int | None = None  # the loop's, by its ident
_told = False  # whether the loop is going to look into the inbox


def executor_loop() -> asyncio.AbstractEventLoop:
    """The loop; begun with the first call."""
    global _loop, _thread
    with _LOCK:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            thread = threading.Thread(target=_loop.run_forever, name="sglc-executor", daemon=True)
            thread.start()
            _thread = thread.ident
        return _loop


class Job:
    """A coroutine function on the loop. It is always entered, so its `finally` always runs."""

    _task: asyncio.Task[None] | None = None
    _cancelled = False

    def begin(
        self, loop: asyncio.AbstractEventLoop, make: Callable[[], Coroutine[Any, Any, None]], context: Context
    ) -> None:
        """Enter the coroutine; called in the loop's thread."""
        self._task = loop.create_task(make(), context=context)
        if self._cancelled:
            loop.call_soon(self._task.cancel)  # behind the task's first step

    def cancel(self) -> None:
        """Stop it where it waits; from any thread, at any time."""
        self._cancelled = True
        if self._task is not None:
            executor_loop().call_soon_threadsafe(self._task.cancel)


def in_loop() -> bool:
    """Whether this is the loop's thread."""
    return threading.get_ident() == _thread


def start(make: Callable[[], Coroutine[Any, Any, None]], context: Context | None = None) -> Job:
    """Run a coroutine function on the loop. It sees the variables of `context` (None: of here) as now."""
    loop = _loop or executor_loop()
    job, own = Job(), copy_context() if context is None else context.copy()
    if in_loop():
        job.begin(loop, make, own)
    else:
        _send(partial(job.begin, loop, make, own))
    return job


def on_loop(call: Callable[[], None]) -> None:
    """Call this on the loop: now, if this is its thread."""
    if in_loop():
        call()
    else:
        _send(call)


def soon(call: Callable[[], None]) -> None:
    """Call this on the loop, behind what is called there now."""
    if in_loop():
        assert _loop is not None
        _loop.call_soon(call)
    else:
        _send(call)


def _send(call: Callable[[], None]) -> None:
    """What is sent together wakes the loop once, or once for each of those who send at the same time."""
    global _told
    loop = _loop or executor_loop()
    _INBOX.append(call)
    if not _told:
        _told = True
        loop.call_soon_threadsafe(_take_all, loop)


def _take_all(loop: asyncio.AbstractEventLoop) -> None:
    global _told
    _told = False  # before the look: who comes behind it tells again
    for _ in range(len(_INBOX)):
        try:
            _INBOX.popleft()()
        except Exception as error:  # none of the others may be lost
            loop.call_exception_handler({"message": "a call on the executor's loop failed", "exception": error})


def _forget() -> None:
    """The thread of the loop is not in a process that was forked: that begins a loop of its own."""
    global _LOCK, _loop, _thread, _told
    _LOCK, _loop, _thread, _told = threading.Lock(), None, None, False
    _INBOX.clear()


os.register_at_fork(after_in_child=_forget)
