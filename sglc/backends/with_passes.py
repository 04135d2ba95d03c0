"""A back end whose programs get other passes than its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from sglc.ir.plan.backend import Backend, BackendWrapper, hand_over
from sglc.ir.plan.events import Event
from sglc.ir.plan.segment import Segment
from sglc.ir.target import Target
from sglc.passes.pipelines import extended


class WithPasses(BackendWrapper):
    """`inner`, still its owner's, with `passes` as `pipelines.extended` takes them."""

    def __init__(self, inner: Backend, passes: Sequence[str]) -> None:
        super().__init__(inner)
        self._target = replace(inner.target, passes=extended(passes, inner.target))

    @property
    def target(self) -> Target:
        return self._target

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        """As of `Backend`."""
        return hand_over(self.inner, segment, streams)

    def close(self) -> None:
        """Nothing: it is another's."""
