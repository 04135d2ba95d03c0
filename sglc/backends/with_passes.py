"""A back end whose programs get other passes than its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sglc.ir.plan.backend import Backend, BackendWrapper
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

    def close(self) -> None:
        """Nothing: it is another's."""
