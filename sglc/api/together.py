"""Several programs over their rows, at the same time: one window, and one order over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglc.api.function import Function
from sglc.api.start import called_at, limits_of_batch, set_up
from sglc.errors import UsageError
from sglc.execution.answers.duplicates import Duplicates
from sglc.execution.batch.prefixes import NOTHING_KNOWN, Beginnings, batch_order
from sglc.execution.batch.runner import run_batch
from sglc.execution.bind import Rows, fitted_rows, random_seed
from sglc.execution.context import resolve
from sglc.execution.lifecycle import Run
from sglc.execution.options import watches_of
from sglc.execution.result import Result
from sglc.frontend.locate import here
from sglc.ir.plan.backend import Backend


def run_together(
    programs: Sequence[tuple[Function, Rows]],
    *,
    backend: Backend | str | None = None,
    seed: int | None = None,
    num_threads: int | str = "auto",
    max_calls: int | None = None,
    max_tokens: int | None = None,
    timeout: float | None = None,
    row_timeout: float | None = None,
    hoist_prefix: bool = True,
    cache: str | None = None,
) -> list[list[Result]]:
    """Run each program over its rows, all at once: what their prompts begin with alike is computed once.

    Gives the results of each program in the order of its rows: those that its own `run_batch` would give with
    the same seed. Waits until all rows have ended.

    Args:
        programs: functions, each with its rows as `run_batch` takes them. Options as of `run_batch`.

    Raises:
        UsageError: SGLC032, something else than programs with rows; SGLC017, SGLC023, SGLC011, SGLC041, as of
            `run_batch`. Nothing has run then.
    """
    if not isinstance(programs, Sequence) or not all(map(_fits, programs)):
        raise UsageError(
            "SGLC032", "`run_together` takes pairs of a program and its rows", here(),
            hint="write `sglc.run_together([(first, rows), (second, other_rows)])`",
        )  # fmt: skip
    if not programs:
        return []
    starts = [called_at(function.__name__, backend, seed) for function, _ in programs]
    chosen = resolve(starts[0][0], here())
    duplicates = Duplicates(chosen)
    limits = limits_of_batch(num_threads, max_calls, max_tokens, timeout, row_timeout)
    run_seed = random_seed() if seed is None else seed
    fitting = [list(fitted_rows(function.definition, function.bound, rows, {})) for function, rows in programs]
    watches = watches_of(cache=cache)
    calls, makers = [], []
    for (function, _), own, (_, its_seed, place) in zip(programs, fitting, starts, strict=True):
        its_seed = run_seed if its_seed is None else its_seed
        name = function.__name__
        call = set_up(name, chosen, its_seed, len(own), limits, watches, place, duplicates=duplicates)
        calls.append(call)
        makers.append(function._maker(call))
    used = calls[-1].backend  # what answers in the place of `chosen`: a cache, or in a row that is recorded
    places = [(batch, number) for batch, own in enumerate(fitting) for number in range(len(own))]

    def make(_: int, place: tuple[int, int], at_once: bool) -> Run | None:
        batch, number = place
        return makers[batch](number, fitting[batch][number], at_once)

    def order(ahead: Sequence[tuple[int, int]]) -> Sequence[int]:
        duplicates.look([fitting[batch][n][0] for batch, n in ahead])
        begun = []
        for batch, (function, _) in enumerate(programs):
            own = [fitting[batch][n] for batch_of_row, n in ahead if batch_of_row == batch]
            begun.append(
                function._ahead.beginnings(own)
                if hoist_prefix
                else Beginnings([NOTHING_KNOWN] * len(own), None)
            )
        return batch_order(begun, used)

    results: list[list[Result]] = [[] for _ in programs]
    running = run_batch(make, places, used, limits.window, limits.clock, "together", order=order)
    problem: BaseException | None = None
    try:
        for (batch, _), result in zip(places, running, strict=True):
            results[batch].append(result)
    except BaseException as error:
        problem = error
        raise
    finally:
        for call in calls:
            if call.observer is not None:
                call.observer.close(problem)
    return results


def _fits(pair: Any) -> bool:
    return isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], Function)
