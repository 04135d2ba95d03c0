"""Calls of declared Python functions: in threads of their own, so that nothing waits for them but who reads."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sglc.errors import Loc, RecordingError, RunError, SglcError, located
from sglc.ir.values import placed


async def call_function(
    name: str, function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any], loc: Loc,
    context: contextvars.Context,
) -> Any:  # fmt: skip
    """What a declared function returns. It sees a copy of `context`; a coroutine function is run to its end.

    If the wait is cancelled, the call goes on in its thread and what it returns is lost.

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
        value, problem = None, None
        try:
            value = context.copy().run(_called, function, args, named)
        except BaseException as error:
            problem = error
        loop.call_soon_threadsafe(settle, value, problem)

    threading.Thread(target=work, name=f"sglc-{name}", daemon=True).start()
    return await done


def _called(function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    made = function(*args, **named)
    return asyncio.run(made) if inspect.iscoroutine(made) else made


def _failed(name: str, error: BaseException, loc: Loc) -> SglcError:
    if isinstance(error, RecordingError):
        return located(error, placed(loc))
    shown = str(error) or "no message"
    failed = RunError("SGLC409", f"`{name}` raised `{type(error).__name__}`: {shown}", placed(loc))
    failed.__cause__ = error
    return failed
