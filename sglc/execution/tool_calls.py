"""The user's Python in threads of its own, so that nothing waits for it but who reads: declared functions."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any

from sglc.errors import Loc, RunError, SglcError, ends_run, located
from sglc.frontend.tracing.tools import EQUAL_CALL
from sglc.frontend.values.symbolic import IN_FUNCTION
from sglc.ir.remark import place

Tools = Mapping[str, Callable[..., Any]]  # by their names in a plan
NO_TOOLS: Tools = MappingProxyType({})


async def call_function(
    name: str, function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any], loc: Loc,
    context: contextvars.Context, number: int = 0,
) -> Any:  # fmt: skip
    """What a declared function returns. It runs in `context`; a coroutine function is run to its end.

    If the wait is cancelled before its thread has begun, it is not called; else the call goes on and what it
    returns is lost. `number` tells it apart from equal calls that need no order.

    Raises:
        RunError: SGLC409, it raised; the cause is kept.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if done.done():  # nobody waits any more
            return
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(_failed(name, error, loc))

    def work() -> None:
        if done.done():  # nobody waits any more
            return
        value, problem = None, None
        try:
            value = _called(context, function, args, named, number)
        except BaseException as error:
            problem = error
        loop.call_soon_threadsafe(settle, value, problem)

    in_thread(work)
    return await done


# Threads that wait for Python to run, by what they wait on. One that never comes back is just not here.
# They wait without an end: a thread that wakes up while Python ends would end the process by a signal.
_IDLE: list[SimpleQueue[Callable[[], None]]] = []
_MOST_IDLE = 16
os.register_at_fork(after_in_child=_IDLE.clear)  # they are not in the child


def in_thread(work: Callable[[], None]) -> None:
    """Have `work` called in a thread that does nothing else: to begin one anew takes long."""
    try:
        jobs = _IDLE.pop()
    except IndexError:
        jobs = SimpleQueue()
        threading.Thread(target=_serve, args=(jobs,), name="sglc-python", daemon=True).start()
    jobs.put(work)


def _serve(jobs: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        jobs.get()()
        if len(_IDLE) >= _MOST_IDLE:
            return
        _IDLE.append(jobs)


def _called(
    context: contextvars.Context, function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any],
    number: int,
) -> Any:  # fmt: skip
    context.run(EQUAL_CALL.set, number)
    inside = context.run(IN_FUNCTION.set, True)
    try:
        made = context.run(function, *args, **named)
        if not inspect.iscoroutine(made):
            return made
        with asyncio.Runner() as runner:
            return runner.run(made, context=context)  # no copy of it: what it sets is seen behind it
    finally:
        context.run(IN_FUNCTION.reset, inside)


def _failed(name: str, error: BaseException, loc: Loc) -> SglcError:
    if ends_run(error) or isinstance(error, SglcError):  # what reads a typed value, or a picture, has said all
        return located(error, place(loc))
    shown = str(error) or "no message"
    failed = RunError("SGLC409", f"`{name}` raised `{type(error).__name__}`: {shown}", place(loc))
    failed.__cause__ = error
    return failed
