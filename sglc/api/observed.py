"""Who observes the runs that a call starts. Where nobody does, nothing of `observe` is loaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sglc.execution.context import RUN_CONTEXT
from sglc.execution.options import random_seed

if TYPE_CHECKING:
    from sglc.execution.observer import CallObserver


def observer_of(
    name: str, seed: int | None, rows: int | None, watches: Mapping[str, Any]
) -> tuple[CallObserver | None, int]:
    """Who observes runs of `name`, if anybody does, and their seed. `rows`: of a batch."""
    context = RUN_CONTEXT.get()
    outer = None if context is None else context.observer
    if not watches and outer is None and "opentelemetry.trace" not in sys.modules:
        return None, random_seed() if seed is None else seed
    from sglc.observe.observer import open_observer

    return open_observer(name, random_seed, seed, rows, outer, watches)
