"""How runs begin: what `run` and `run_batch` of functions and of plans do alike with what they are given."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglc.execution.batch.runner import run_batch, window_of
from sglc.execution.budget import Budget, budget_of
from sglc.execution.context import RUN_CONTEXT
from sglc.execution.deadline import Clock, clock_of_batch, clock_of_run
from sglc.execution.lifecycle import Run, RunSetup
from sglc.execution.observer import CallObserver
from sglc.execution.result import Result
from sglc.ir.core import Site
from sglc.ir.plan.backend import Backend


@dataclass(frozen=True, slots=True)
class Limits:
    """What the runs of one call may take: the budget of each, their time, how many of them at once."""

    budget: Budget | None = None
    clock: Clock | None = None
    window: int | None = None  # None: as many as fit the back end


def limits_of_run(max_calls: Any, max_tokens: Any, timeout: Any) -> Limits:
    """What the keywords of `run` allow.

    Raises:
        UsageError: SGLC026, SGLC041, one of them does not fit.
    """
    return Limits(budget_of(max_calls, max_tokens), clock_of_run(timeout))


def limits_of_batch(
    num_threads: Any, max_calls: Any, max_tokens: Any, timeout: Any, row_timeout: Any
) -> Limits:
    """What the keywords of `run_batch` allow.

    Raises:
        UsageError: SGLC023, SGLC026, SGLC041, one of them does not fit.
    """
    window = window_of(num_threads)
    return Limits(budget_of(max_calls, max_tokens), clock_of_batch(timeout, row_timeout), window)


def inherited(
    name: str, backend: Backend | str | None, seed: int | None
) -> tuple[Backend | str | None, int | None]:
    """Back end and seed of a run of `name`; what is not given is that of the run which calls it."""
    outer = RUN_CONTEXT.get()
    if outer is None:
        return backend, seed
    return outer.backend if backend is None else backend, outer.seed_of(name) if seed is None else seed


@dataclass(frozen=True, slots=True)
class CallSetup:
    """What all runs have in common that one call of `run` or `run_batch` starts."""

    name: str
    backend: Backend
    seed: int
    limits: Limits
    observer: CallObserver | None = None

    def run_setup(
        self, number: int, arguments: Mapping[str, Any], context: contextvars.Context,
        on_text: Callable[[Site, str | None], None] | None = None, *, live: bool = False,
    ) -> RunSetup:  # fmt: skip
        """For one of them."""
        return RunSetup(
            backend=self.backend,
            result=Result(self.name, self.seed, number, live=live),
            context=context,
            on_text=on_text,
            budget=self.limits.budget,
            clock=self.limits.clock,
            observer=None if self.observer is None else self.observer.row(number, arguments),
        )


def set_up(name: str, backend: Backend, observer: CallObserver | None, seed: int, limits: Limits) -> CallSetup:
    """What runs of `name` on `backend` have in common, observed or not."""
    used = backend if observer is None else observer.backend(backend)
    return CallSetup(name, used, seed, limits, observer)


def maker(
    setup: CallSetup, rows: Sequence[Mapping[str, Any]], make: Callable[[int, RunSetup], Run]
) -> Callable[[int], Run]:
    """What makes the run of each row, when its turn has come; all see the variables of here and now."""
    context = contextvars.copy_context()
    return lambda number: make(number, setup.run_setup(number, rows[number], context.copy()))


def run_rows(
    setup: CallSetup, make: Callable[[int], Run], count: int,
    order: Callable[[], Sequence[int]] | None, *, threads: bool = True,
) -> Iterator[Result]:  # fmt: skip
    """`run_batch` of one program's rows, observed to its end."""
    limits = setup.limits
    results = run_batch(
        make, count, setup.backend, limits.window, limits.clock, setup.name, order=order, threads=threads
    )
    return results if setup.observer is None else _observed(results, setup.observer)


def _observed(results: Iterator[Result], observer: CallObserver) -> Iterator[Result]:
    try:
        yield from results
    finally:
        observer.close()
