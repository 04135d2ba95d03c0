"""A back end whose programs get other passes than its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from sglc.ir.plan.backend import Backend
from sglc.ir.plan.events import Event
from sglc.ir.plan.segment import Segment
from sglc.ir.target import Target
from sglc.passes.pipelines import extended


class WithPasses:
    """`backend`, still its owner's, with `passes` as `pipelines.extended` takes them."""

    def __init__(self, backend: Backend, passes: Sequence[str]) -> None:
        self._backend = backend
        self.target: Target = replace(backend.target, passes=extended(passes, backend.target))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)  # whatever else this back end is

    def start(self) -> None:
        """As of `Backend`."""
        self._backend.start()

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        """As of `Backend`."""
        if self.target.whole_answers:
            return self._backend.submit(segment, streams=streams)
        return self._backend.submit(segment)

    def close(self) -> None:
        """Nothing: it is another's."""
