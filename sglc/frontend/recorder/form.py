"""Structured forms (`cond`, `switch`, `loop`, `map`): what stands in one has sites of its own.

They are the same whether a body is compiled or runs as Python: both count forms, arms and iterations alike, so
a run draws the same samples. Where iterations are recorded once for all, the plan says them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import get_ident
from typing import Protocol

from sglc.ir.core import Site, in_form, repeated


class Sites(Protocol):
    """What records a body, as far as it counts sites. `symbolic`: it is compiled."""

    function: str
    symbolic: bool

    def reserve(self, path: tuple[int, ...], name: str) -> Site:
        """The next site of that name."""

    def count_anew(self, function: str) -> None:
        """Sites of this function, and of forms in it, begin at 0."""


class Body:
    """A body that goes on, or that of a form in it: who records it, and the function that its sites have.

    `task` tells asynchronous ones apart, which come to their forms in any order. So do other threads than its
    own, and nothing tells those apart: their forms are nothing.
    """

    __slots__ = ("form", "function", "iterations", "recorder", "task", "thread")

    def __init__(
        self, recorder: Sites, task: Callable[[], str] = str, form: str = "",
        iterations: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        self.recorder = recorder
        self.task = task
        self.form = form or recorder.function
        self.iterations = iterations
        self.function = repeated(self.form, iterations)
        self.thread = get_ident()


# Of a thread or task. A declared function is in none.
BODY: ContextVar[Body | None] = ContextVar("sglc_body", default=None)


class Form:
    """The form that the body has come to; in no body it is nothing."""

    def __init__(self) -> None:
        body = BODY.get()
        self._around = body if body is not None and body.thread == get_ident() else None
        if self._around is not None:
            task = self._around.task()
            number = self._around.recorder.reserve((), f"~{task}").occurrence
            self._number = f"{task}.{number}" if task else str(number)

    @contextmanager
    def inside(self, *, arm: int | None = None, iteration: int | None = None) -> Iterator[None]:
        """Record an arm, or an iteration; all iterations alike (None) while compiling."""
        around = self._around
        if around is None:
            yield
            return
        iterations = around.iterations if iteration is None else (*around.iterations, iteration)
        body = Body(around.recorder, around.task, in_form(around.form, self._number, arm), iterations)
        if body.recorder.symbolic:
            body.recorder.count_anew(body.function)
        token = BODY.set(body)
        try:
            yield
        finally:
            BODY.reset(token)
