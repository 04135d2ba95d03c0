"""A back end that is asked once for what marked generations of one run or batch ask alike.

The first one to ask makes the call, in a task of its own: whoever asked may end, and the call goes on as long
as others wait for it. Who asks for the same meanwhile waits, and hands over what does not depend on the answer;
who asks later has it at once. Each generation has its own events, and its own place in whatever observes
it: that stands before this one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cached_property

from sglc.execution.answers.unified_segment import BatchCalls, UnifiedSegment
from sglc.ir.plan.backend import Backend, BackendWrapper, hand_over
from sglc.ir.plan.events import Event
from sglc.ir.plan.segment import GenNode, KeepNode, OpenNode, ReleaseNode, Segment, SelectNode

_ASKED = (GenNode, SelectNode)  # quicker than unions
_HANDLING = (OpenNode, KeepNode, ReleaseNode)


class UnifiedBackend(BackendWrapper):
    """One is for one call of `run` or `run_batch`, and what it calls. Used in the executor's thread.

    Args:
        alone: it is for a single run, which another place may run whole.
    """

    def __init__(self, inner: Backend, *, alone: bool = False) -> None:
        super().__init__(inner)
        self.program = getattr(inner, "program", None) if alone else None

    @cached_property
    def batch(self) -> BatchCalls:
        """What the rows have asked for; most have nothing to share."""
        return BatchCalls(self.inner)

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        """As that of the back end."""
        asked, marked, handles = list[int](), False, list[int]()
        for index, node in enumerate(segment.nodes):
            if isinstance(node, _ASKED):
                asked.append(index)
                marked = marked or node.unify
            elif isinstance(node, _HANDLING) and isinstance(node.handle, int):
                handles.append(node.handle)
        if marked or (handles and self.batch.has_to_do_with(handles)):
            return UnifiedSegment(self.batch, segment, asked, handles, streams).events()
        if handles:
            self.batch.streams.follow(segment)
        return hand_over(self.inner, segment, streams)
