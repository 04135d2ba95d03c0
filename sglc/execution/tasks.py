"""Which task of an `async def` body something is done in, alike in every run of the body.

Tasks that wait for different things go on in an order of their own each time. Each one does its own work in
order, and begins its own tasks in order: so it is known by its number among those, behind that of who began it.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


class _Task:
    """A task, and how many it has begun."""

    __slots__ = ("begun", "path")

    def __init__(self, path: str = "") -> None:
        self.path = path
        self.begun = 0

    def begins(self) -> _Task:
        self.begun += 1
        return _Task(f"{self.path}.{self.begun}" if self.path else str(self.begun))


_TASK: ContextVar[_Task | None] = ContextVar("sglc_task", default=None)


def task_path() -> str:
    """The numbers of the task that is going on and of those around it; "" in the body itself."""
    task = _TASK.get()
    return "" if task is None else task.path


def in_task(name: str) -> str:
    """The name of what this task calls: what different tasks call is counted apart."""
    task = task_path()
    return f"{name}:{task}" if task else name


def awaited(answer: Callable[[], Any]) -> Coroutine[Any, Any, Any]:
    """What a coroutine function gives that is not called; it is asked for now, in the task that calls it."""
    value, problem = None, None
    try:
        value = answer()
    except Exception as error:
        problem = error

    async def given() -> Any:
        if problem is not None:
            raise problem
        return value

    return given()


async def numbered(body: Coroutine[Any, Any, Any]) -> Any:
    """What `body` gives; the tasks that it begins are numbered."""
    import asyncio  # compiling needs none of it

    _TASK.set(_Task())
    asyncio.get_running_loop().set_task_factory(partial(_begun, asyncio.Task))
    return await body


def _begun(
    kind: type[asyncio.Task[Any]],
    loop: asyncio.AbstractEventLoop,
    coroutine: Any,
    *,
    context: contextvars.Context | None = None,
    **more: Any,
) -> asyncio.Task[Any]:
    own = contextvars.copy_context() if context is None else context
    around = own.get(_TASK)
    if context is None and around is not None:  # one that is given may be that of several tasks
        own.run(_TASK.set, around.begins())
    return kind(coroutine, loop=loop, context=own, **more)
