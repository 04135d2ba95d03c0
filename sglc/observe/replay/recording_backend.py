"""A back end whose answers are noted for one row, and which is not asked for what is known of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from sglc.errors import SglcError
from sglc.execution.answers.known_answers import submit_unknown
from sglc.execution.answers.prompts import Followed, Inputs, Streams
from sglc.ir.plan.backend import Backend, BackendWrapper, hand_over
from sglc.ir.plan.dataflow import failed_before
from sglc.ir.plan.events import Event, GenDone, NodeFailed, SelectDone
from sglc.ir.plan.segment import GenNode, Segment, SelectNode


class RowNotes(Protocol):
    """Who notes what a row is answered."""

    def known(self, index: int, node: GenNode | SelectNode, inputs: Inputs) -> GenDone | SelectDone | None:
        """What a generation was answered before, if it was; raises why it failed."""

    def note(self, node: GenNode | SelectNode, inputs: Inputs, target: str) -> None:
        """A generation has ended that was given this."""

    def failed(self, node: GenNode | SelectNode, error: SglcError) -> None:
        """It has failed by itself."""


class RecordingBackend(BackendWrapper):
    """A back end whose answers are noted for one row.

    Args:
        followed: the streams of the recording.
        row: None: only the streams are followed.
        target_name: of the recording, for that of `inner`.
        goes_on: something of the row may be known.
    """

    def __init__(
        self, inner: Backend, followed: Streams, row: RowNotes | None = None, target_name: str = "",
        *, goes_on: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(inner)
        self.target_name = target_name
        self._streams = followed
        self._row = row
        self._goes_on = goes_on

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        """As that of the back end."""
        followed = self._streams.follow(segment)
        if self._row is not None and self._goes_on:
            known = self._row.known
            events = submit_unknown(self.inner, self._streams, followed, known, streams=streams)
            return self._noting(followed, events)
        return self._noting(followed, hand_over(self.inner, segment, streams))

    async def _noting(self, followed: Followed, events: AsyncIterator[Event]) -> AsyncIterator[Event]:
        try:
            async for event in events:
                self._note(followed, event)
                yield event
        finally:
            if (close := getattr(events, "aclose", None)) is not None:
                await close()

    def _note(self, followed: Followed, event: Event) -> None:
        match event:
            case GenDone(node=index):
                followed.texts[index] = event.samples[0].text
            case SelectDone(node=index):
                followed.texts[index] = event.text
            case NodeFailed(index, error):
                followed.failed[index] = error
                if failed_before(followed.segment.nodes[index], followed.failed) is not None:
                    return  # it was never asked for
            case _:
                return
        node = followed.segment.nodes[index]
        if self._row is None or not isinstance(node, GenNode | SelectNode):
            return
        try:
            self._row.note(node, followed.inputs(index), self.target_name)
        except KeyError:  # what it reads failed in an earlier segment
            if not isinstance(event, NodeFailed):
                raise
            return
        if isinstance(event, NodeFailed):
            self._row.failed(node, event.error)


def inner_of(backend: Backend) -> Backend:
    """What is noted."""
    return backend.inner if isinstance(backend, RecordingBackend) else backend
