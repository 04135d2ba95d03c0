"""How runs begin: what `run` and `run_batch` of functions and of plans do alike with what they are given."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from sglc.execution.batch.runner import IN_ORDER, Delivery, Make, run_batch, window_of
from sglc.execution.budget import budget_of
from sglc.execution.context import RUN_CONTEXT, CallPlace
from sglc.execution.deadline import clock_of_batch, clock_of_run
from sglc.execution.lifecycle import NO_LIMITS, CallSetup, Limits, Run, RunSetup
from sglc.execution.observer import CallObserver
from sglc.execution.result import Result
from sglc.ir.plan.backend import Backend

_Row = TypeVar("_Row")


def limits_of_run(max_calls: Any, max_tokens: Any, timeout: Any) -> Limits:
    """What the keywords of `run` allow.

    Raises:
        UsageError: SGLC026, SGLC041, one of them does not fit.
    """
    if max_calls is max_tokens is timeout is None:
        return NO_LIMITS
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


def called_at(
    name: str, backend: Backend | str | None, seed: int | None
) -> tuple[Backend | str | None, int | None, CallPlace | None]:
    """`inherited` of a program's run or batch, and its place where it is called in the body of another one.

    A call that has a seed of its own draws what it draws anywhere.
    """
    outer = RUN_CONTEXT.get()
    place = outer.place_of(name) if outer is not None and seed is None else None
    if outer is None or place is None:
        return *inherited(name, backend, seed), None
    return outer.backend if backend is None else backend, place.seed, place


def maker(call: CallSetup, make: Callable[[_Row, RunSetup, bool], Run | None]) -> Make[_Row]:
    """What makes each run of a batch, when its turn has come; all see the variables of here and now.

    Where the batch is called in the body of a run, each row stands at a place of its own there.
    """
    context, place = contextvars.copy_context(), call.place

    def made(number: int, row: _Row, at_once: bool) -> Run | None:
        at = call if place is None else replace(call, place=replace(place, site=f"{place.site}@{number}"))
        return make(row, RunSetup(at, number, context), at_once)

    return made


def run_rows(
    call: CallSetup, make: Make[_Row], rows: Iterable[_Row],
    order: Callable[[Sequence[_Row]], Iterable[int]] | None, delivery: Delivery = IN_ORDER,
) -> Iterator[Result]:  # fmt: skip
    """`run_batch` of one program's rows, observed to its end."""
    limits = call.limits
    results = run_batch(
        make, rows, call.backend, limits.window, limits.clock, call.name, order=order, delivery=delivery
    )
    return results if call.observer is None else _observed(results, call.observer)


def _observed(results: Iterator[Result], observer: CallObserver) -> Iterator[Result]:
    try:
        yield from results
    except GeneratorExit:
        observer.left()
        raise
    finally:
        observer.close()
