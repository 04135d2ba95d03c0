"""What every back end is: it takes segments and answers with events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sglc.ir.plan.events import Event
from sglc.ir.plan.plan import Plan
from sglc.ir.plan.segment import Segment
from sglc.ir.target import Target


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """A run of a whole plan: its arguments, and what its seeds are made of."""

    plan: Plan
    arguments: Mapping[str, Any]
    seed: int
    row: int


class Backend(Protocol):
    """Runs segments. One call of `submit` is one hand-over; nothing is asked of the caller meanwhile.

    One may have an `identity`, a text: what its answers depend on beside its target and what it is asked, such
    as the files of its model. With `answers_by_site` each site that is asked the same has its own answer. One
    that can run whole plans has a `program(ProgramRun)`, which gives a back end for that run, or None where it
    cannot.
    """

    @property
    def target(self) -> Target:
        """Capabilities; reading them may load a tokenizer, never a model."""

    def start(self) -> None:
        """Begin what the first `submit` would have to wait for, in the background. Idempotent."""

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        """Start `segment`; yields its events and ends when every node is done or failed.

        Without `streams` nobody wants deltas. Closing the iterator aborts what is left.
        """

    def close(self) -> None:
        """Give back threads, processes and memory. Idempotent."""


class BackendWrapper:
    """A back end in front of `inner`, which does what it does not do itself."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)  # whatever else this back end can do

    @property
    def target(self) -> Target:
        return self.inner.target

    def start(self) -> None:
        self.inner.start()

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        return hand_over(self.inner, segment, streams)

    def close(self) -> None:
        self.inner.close()


def knows_target(backend: Backend) -> bool:
    """Whether its target is at hand, so that nobody waits who reads it."""
    while isinstance(backend, BackendWrapper):
        backend = backend.inner
    return "target" in getattr(backend, "__dict__", ())


def hand_over(backend: Backend, segment: Segment, streams: bool) -> AsyncIterator[Event]:
    """As `backend.submit`; where pieces cost nothing nobody says that they are not wanted."""
    if backend.target.whole_answers:
        return backend.submit(segment, streams=streams)
    return backend.submit(segment)
