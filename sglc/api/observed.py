"""A call of `run` or `run_batch` with who observes it. Where nobody does, nothing of `observe` is loaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sglc.execution.context import RUN_CONTEXT, CallPlace
from sglc.execution.options import check_seed, random_seed

if TYPE_CHECKING:
    from sglc.execution.answers.duplicates import Duplicates
    from sglc.execution.lifecycle import CallSetup, Limits
    from sglc.execution.observer import CallObserver
    from sglc.ir.plan.backend import Backend


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
    check_seed(seed)
    from sglc.execution.answers.duplicates import Duplicates
    from sglc.execution.lifecycle import CallSetup

    context = RUN_CONTEXT.get()
    outer = None if context is None else context.observer
    observer: CallObserver | None = None
    drawn = seed is None
    if watches or outer is not None or "opentelemetry.trace" in sys.modules:
        from sglc.observe.observer import open_observer

        observer, seed = open_observer(name, random_seed, seed, rows, outer, watches)
    seed = random_seed() if seed is None else seed
    if observer is None or observer.is_journal:
        duplicates = duplicates or Duplicates(backend)
        return CallSetup(name, backend, seed, limits, observer, duplicates, place, outputs, drawn)
    from sglc.execution.answers.unified_backend import UnifiedBackend

    if context is None or backend is not context.backend:  # else it is unified already
        backend = UnifiedBackend(backend)
    return CallSetup(name, observer.backend(backend), seed, limits, observer, None, place, outputs, drawn)
