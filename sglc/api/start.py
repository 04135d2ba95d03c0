"""How runs begin: what `run` and `run_batch` of functions and of plans do alike with what they are given.

Where nobody observes a call, nothing of `observe` is loaded.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from weakref import finalize

from sglc.errors import Loc, UsageError, ends_run
from sglc.execution.answers.duplicates import Duplicates
from sglc.execution.batch.runner import Delivery, Make, run_batch, window_of
from sglc.execution.bind import random_seed
from sglc.execution.budget import budget_of
from sglc.execution.context import RUN_CONTEXT, CallPlace
from sglc.execution.deadline import Alarm, clock_of_batch, clock_of_run
from sglc.execution.lifecycle import NO_LIMITS, CallSetup, Limits, Run, RunSetup
from sglc.execution.observer import CallObserver
from sglc.execution.result import Result, RunOutcome
from sglc.execution.tool_calls import in_thread
from sglc.frontend.locate import here
from sglc.ir.plan.backend import Backend
from sglc.ir.sampling import SEEDS, is_seed

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


def called_at(
    name: str, backend: Backend | str | None, seed: int | None
) -> tuple[Backend | str | None, int | None, CallPlace | None]:
    """Back end and seed of a program's run or batch, and its place where the body of another one calls it.

    What is not given is that of the run around. A call that has a seed of its own draws what it draws anywhere.
    """
    outer = RUN_CONTEXT.get()
    if outer is None:
        return backend, seed, None
    outer.launch()
    place = outer.place_of(name) if seed is None else None
    if seed is None:
        seed = outer.seed_of(name) if place is None else place.seed
    return outer.backend if backend is None else backend, seed, place


def set_up(
    name: str, backend: Backend, seed: int | None, rows: int | None, limits: Limits,
    watches: Mapping[str, Any], place: CallPlace | None = None, outputs: tuple[str, ...] | None = None,
    duplicates: Duplicates | None = None,
) -> CallSetup:  # fmt: skip
    """What all runs of `name` have that one call starts.

    Args:
        rows: of a batch.
        watches: how it is observed.
        place, outputs: as of `CallSetup`.
        duplicates: of several calls on `backend`.

    Raises:
        UsageError: SGLC023, it is no seed; what of `watches` does not fit.
    """
    if seed is not None and not is_seed(seed):
        raise UsageError("SGLC023", f"`seed` is {SEEDS}, not `{seed!r}`", here())
    context = RUN_CONTEXT.get()
    outer = None if context is None else context.observer
    observer: CallObserver | None = None
    drawn = seed is None
    if watches or outer is not None or "opentelemetry.trace" in sys.modules:
        from sglc.observe.observer import open_observer

        observer, seed = open_observer(name, random_seed, seed, rows, outer, watches)
    seed = random_seed() if seed is None else seed
    if observer is None or observer.is_journal:
        if rows is not None and duplicates is None:
            duplicates = Duplicates(backend)
        return CallSetup(name, backend, seed, limits, observer, duplicates, False, place, outputs, drawn)
    from sglc.execution.answers.unified_backend import UnifiedBackend

    if context is None or backend is not context.backend:  # else it is unified already
        backend = UnifiedBackend(backend)
    return CallSetup(name, observer.backend(backend), seed, limits, observer, None, True, place, outputs, drawn)


async def begun_beside(
    begin: Callable[[Callable[[], bool]], Result], name: str, limits: Limits, loc: Loc
) -> Result:
    """The run that `begin` begins in a thread, so that this event loop waits for no back end and no compiler.

    Its time goes on meanwhile. If that is over, or nobody waits any more, what `begin` is given says so: what
    begins then is stopped.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    done: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if done.done():
            if result is not None:
                result.stop()
        elif result is not None:
            done.set_result(result)
        elif error is not None:
            done.set_exception(error)

    def work() -> None:
        result, problem = None, None
        try:
            result = context.run(begin, done.done)
        except BaseException as error:
            problem = error
        try:
            loop.call_soon_threadsafe(settle, result, problem)
        except RuntimeError:  # the loop was closed meanwhile
            if result is not None:
                result.stop()

    if limits.clock is not None:
        limits.clock.begin()
    deadline = None if limits.clock is None else limits.clock.deadline()
    in_thread(work)
    if deadline is None:
        return await done

    def late() -> None:
        if done.done():
            return
        result = Result(name, random_seed())
        error = deadline.late(loc, "for the back end")
        result.finish(RunOutcome(None, error, {}, {}, "", list, deadline.given_s))
        done.set_result(result)

    def ring() -> None:
        if not done.done():
            loop.call_soon_threadsafe(late)

    alarm = Alarm(deadline.at_s, ring)
    try:
        return await done
    finally:
        alarm.off()


def maker(call: CallSetup, make: Callable[[_Row, RunSetup, bool], Run | None]) -> Make[_Row]:
    """What makes each run of a batch, when its turn has come; all see the variables of here and now.

    Where the batch is called in the body of a run, each row stands at a place of its own there. When that run
    was stopped, no row begins any more: the batch raises why.
    """
    context, place, outer = contextvars.copy_context(), call.place, RUN_CONTEXT.get()

    def made(number: int, row: _Row, at_once: bool) -> Run | None:
        over = None if outer is None else outer.why_over()
        if over is not None and not ends_run(over):
            raise over
        own = None if place is None else replace(place, site=f"{place.site}@{number}", batch=True)
        at = call if own is None else replace(call, place=own)
        return make(row, RunSetup(at, number, context, in_batch=True), at_once)

    return made


def run_rows(
    call: CallSetup, make: Make[_Row], rows: Iterable[_Row], order: Callable[[Sequence[_Row]], Iterable[int]],
    delivery: Delivery,
) -> Iterator[Result]:  # fmt: skip
    """`run_batch` of one program's rows, observed to its end."""
    limits = call.limits
    results = run_batch(
        make, rows, call.backend, limits.window, limits.clock, call.name, order=order, delivery=delivery
    )
    if call.observer is None:
        return results
    observed = _observed(results, call.observer)
    finalize(observed, call.observer.close)  # a generator that nobody reads ends nothing itself
    return observed


def _observed(results: Iterator[Result], observer: CallObserver) -> Iterator[Result]:
    try:
        yield from results
    except GeneratorExit:
        observer.left()
        raise
    except BaseException as error:
        observer.close(error)
        raise
    finally:
        observer.close()
