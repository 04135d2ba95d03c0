"""A back end that is asked once for what marked generations of one run or batch ask alike.

The first one to ask makes the call, in a task of its own: whoever asked may end, and the call goes on as long
as others wait for it. Who asks for the same meanwhile waits, and hands over what does not depend on the answer;
who asks later has it at once. Each generation has its own events, and its own place in whatever observes
it: that stands before this one.

Of a segment of which nobody has asked anything all is handed over as it is. Otherwise what needs no answer of
another's is, and what goes on behind one when it is there: with its ids, so that the prompt is what it would
have been.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from sglc.errors import SglcError
from sglc.execution.answers.known_answers import is_whole, part_of, told
from sglc.execution.answers.prompts import Followed, Streams
from sglc.execution.answers.shared_calls import Answer, SharedCall, SharedCalls
from sglc.ir.plan.backend import Backend, BackendWrapper, hand_over
from sglc.ir.plan.dataflow import failed_before
from sglc.ir.plan.events import Delta, Event, NodeFailed, Usage
from sglc.ir.plan.rest import Rest
from sglc.ir.plan.segment import ASKED, GenNode, KeepNode, OpenNode, ReleaseNode, Segment, SelectNode, reads

_UNIFIED = Usage(unified=1)
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
            if isinstance(node, ASKED):
                asked.append(index)
                marked = marked or node.unify
            elif isinstance(node, _HANDLING) and isinstance(node.handle, int):
                handles.append(node.handle)
        if marked or (handles and self.batch.has_to_do_with(handles)):
            return UnifiedSegment(self.batch, segment, asked, handles, streams).events()
        if handles:
            self.batch.streams.follow(segment)
        return hand_over(self.inner, segment, streams)


class BatchCalls:
    """What the segments of one run or batch have in common.

    Attributes:
        unsent: handles of kept streams that no back end was handed, because all that is in them was there.
        lost: handles of those that will not be kept, and why.
        held: by handle, the last segment that has to do with it and is not handed over as a whole.
        left: what goes on for others than who began it.
    """

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.streams = Streams()
        self.calls = SharedCalls()
        self.unsent = self.streams.unsent
        self.lost: dict[int, SglcError] = {}
        self.held: dict[int, UnifiedSegment] = {}
        self.left: set[asyncio.Task[None]] = set()  # the loop does not hold them

    def has_to_do_with(self, handles: Sequence[int]) -> bool:
        """Whether one of these streams is not as its back end would have it."""
        return any(h in self.held or h in self.unsent or h in self.lost for h in handles)


class UnifiedSegment:
    """One segment of one row, which is handed over as a whole or in parts.

    Args:
        asked: its generations and choices.
        handles: all that it opens, keeps and releases.
    """

    __slots__ = (
        "_alone", "_asked", "_batch", "_before", "_blocked", "_events", "_followed", "_handles", "_left",
        "_making", "_news", "_nodes", "_over", "_sent", "_streams", "_tasks", "_waiting",
    )  # fmt: skip

    def __init__(
        self, batch: BatchCalls, segment: Segment, asked: Sequence[int], handles: Sequence[int],
        streams: bool,
    ) -> None:  # fmt: skip
        self._batch = batch
        self._nodes = segment.nodes
        self._followed: Followed = batch.streams.follow(segment)
        self._streams = streams
        self._events: list[Event | BaseException] = []
        self._news: asyncio.Future[None] | None = None  # somebody waits for events
        self._sent: set[int] = set()  # generations and kept streams that were handed over
        self._making: dict[int, SharedCall] = {}  # those of them that others may wait for
        self._waiting: dict[int, SharedCall] = {}  # generations that others make
        self._alone: frozenset[int] = frozenset()  # generations whose shared call has failed
        self._blocked = True  # whether something may be left to be handed over
        self._tasks: list[asyncio.Task[None]] = []
        self._left = False  # nobody wants events any more
        self._asked = asked
        self._handles = handles
        self._before: Sequence[UnifiedSegment] = ()
        self._over: asyncio.Event | None = None  # everything was handed over, or will never be
        if handles:
            self._over = asyncio.Event()
            self._before = [held for h in handles if (held := batch.held.get(h)) is not None]
            batch.held.update(dict.fromkeys(handles, self))

    async def events(self) -> AsyncIterator[Event]:
        """What happens, until everything has ended; closing it early aborts what nobody else waits for."""
        try:
            for held in self._before:
                assert held._over is not None
                await held._over.wait()
            if not self._leads():
                self._go_on()
            while True:
                events, self._events = self._events, []
                for event in events:
                    if isinstance(event, BaseException):
                        raise event
                    yield event
                if self._events:  # meanwhile
                    continue
                if not self._tasks and not self._waiting:
                    return
                self._news = asyncio.get_running_loop().create_future()
                await self._news
        finally:
            self._leave()

    # -- what is handed over -----------------------------------------------------------------------

    def _leads(self) -> bool:
        """Whether nobody has asked for any of it; then it is handed over as a whole."""
        batch = self._batch
        if batch.unsent or batch.lost:
            return False
        keys = dict[tuple[Any, ...], int]()
        for index in self._asked:
            key = self._key(index)
            if key is not None:
                if key in keys or batch.calls.knows(key):
                    return False
                keys[key] = index
        for key, index in keys.items():
            self._making[index] = batch.calls.begin(key, self._stop_unwanted)
        self._sent.update(self._asked)
        self._sent.update(
            [i for i, node in enumerate(self._nodes) if isinstance(node, KeepNode)] if self._handles else ()
        )
        self._blocked = False
        self._send(Rest(self._followed.segment, {}))
        return True

    def _go_on(self) -> None:
        """Hand over what waits for no answer of another's."""
        followed = self._followed
        ready = [False] * len(self._nodes)  # what can be gone on from in what is handed over now
        part: list[int] = []
        self._blocked = False
        for index, node in enumerate(self._nodes):
            if isinstance(node, ReleaseNode) or self._has_failed(index):
                continue
            behind = all(ready[source] for source in reads(node))
            match node:
                case GenNode() | SelectNode() if index in followed.texts:
                    ready[index] = True
                case GenNode() | SelectNode() | KeepNode() if index in self._sent:
                    pass
                case GenNode() | SelectNode() if behind and index not in self._waiting:
                    ready[index] = self._asks(index)
                    self._blocked = self._blocked or not ready[index]
                    if ready[index] and index not in followed.texts:
                        part.append(index)
                case KeepNode() if behind:
                    part.append(index)
                case GenNode() | SelectNode() | KeepNode():
                    self._blocked = True
                case _:
                    ready[index] = behind
        self._hand_over(part)

    def _has_failed(self, index: int) -> bool:
        """Whether a node will not be executed."""
        node, failed = self._nodes[index], self._followed.failed
        if index in failed:
            return True
        error = failed_before(node, failed)
        if error is None and isinstance(node, OpenNode) and isinstance(node.handle, int):
            error = self._batch.lost.get(node.handle)
        if error is None:
            return False
        failed[index] = error
        if index not in self._sent:
            self._put(NodeFailed(index, error))
            if isinstance(node, KeepNode) and isinstance(node.handle, int):
                self._batch.lost[node.handle] = error
        return True

    def _asks(self, index: int) -> bool:
        """Whether what goes on behind a generation can be handed over: it is there, or is asked for now."""
        calls = self._batch.calls
        key = self._key(index)
        if key is None:
            return True
        if (done := calls.answer(key)) is not None:
            self._answered(index, done)
            return True
        if (call := calls.going(key)) is None:
            self._making[index] = calls.begin(key, self._stop_unwanted)
            return True
        call.followers.append((self, index))
        self._waiting[index] = call
        return False

    def _key(self, index: int) -> tuple[Any, ...] | None:
        """What a generation asks for; None: nobody shares it, or that is not known yet."""
        node = self._nodes[index]
        assert isinstance(node, GenNode | SelectNode)
        if not node.unify or index in self._alone:
            return None
        asked = self._followed.asked(index)
        if asked is None:
            return None
        by_site = getattr(self._batch.inner, "answers_by_site", False)
        return (*asked, str(node.site)) if by_site else asked

    def _hand_over(self, part: Sequence[int]) -> None:
        """Hand over these generations and kept streams, and what they go on from; streams are released last."""
        followed, batch, nodes = self._followed, self._batch, self._nodes
        whole = not (self._blocked or self._sent or followed.texts or followed.failed)
        self._sent.update(part)
        begun = {
            i for i, node in enumerate(nodes) if isinstance(node, OpenNode) and node.handle in batch.unsent
        }
        needed = set[int]()
        for index, node in enumerate(nodes):
            if isinstance(node, ReleaseNode) and not self._blocked:
                known = node.handle in batch.unsent or batch.lost.pop(node.handle, None) is not None
                batch.unsent.discard(node.handle)
                if known:
                    whole = False
                else:
                    needed.add(index)
        if whole and not begun:
            self._send(Rest(followed.segment, {}))
            return
        keeps = {i: node.handle for i in part if isinstance(node := nodes[i], KeepNode)}
        if len(keeps) < len(part) or not all(map(followed.is_known, keeps)):
            needed.update(part)
        else:
            batch.unsent.update(handle for handle in keeps.values() if isinstance(handle, int))
        self._send(part_of(followed, needed, begun))

    def _send(self, rest: Rest) -> None:
        """Hand it over in a task, which is this segment's only as long as somebody wants its events."""
        if not rest.segment.nodes:
            if not self._blocked:
                self._let_go()
            return
        self._tasks.append(asyncio.get_running_loop().create_task(self._follow(rest, last=not self._blocked)))

    async def _follow(self, rest: Rest, last: bool) -> None:
        were = {place: index for index, place in rest.places.items()}
        events = hand_over(self._batch.inner, rest.segment, self._streams)
        if last and self._handles:
            asyncio.get_running_loop().call_soon(self._let_go)  # behind the back end's first step
        problem: Exception | None = None
        try:
            async for event in events:
                if not were:
                    self._came(event)
                elif event.node in were:  # else it is a part of a stream that begins anew
                    self._came(replace(event, node=were[event.node]))
        except Exception as error:
            problem = error
        finally:
            if (close := getattr(events, "aclose", None)) is not None:
                await close()
            self._ended(rest, problem)

    # -- what comes --------------------------------------------------------------------------------

    def _came(self, event: Event) -> None:
        """The back end says something of a node."""
        index = event.node
        self._put(event)
        if isinstance(event, Delta):  # those who wait have all at once: what began may fail
            return
        call = self._making.pop(index, None)
        if isinstance(event, NodeFailed):
            self._followed.failed[index] = event.error
            done = None
        else:
            self._followed.answered(index, event, self._batch.inner.target)
            done = event if is_whole(event) else None
            if len(self._asked) > 1:
                self._share_more()
        if call is not None:
            self._batch.calls.end(call, done)
        self._after()

    def _share_more(self) -> None:
        """Others may wait for generations of which it shows only now what they ask for."""
        calls, followed = self._batch.calls, self._followed
        for index in self._asked:
            if index in self._sent and index not in self._making and index not in followed.texts:
                key = self._key(index)
                if key is not None and not calls.knows(key):
                    self._making[index] = calls.begin(key, self._stop_unwanted)

    def _ended(self, rest: Rest, problem: Exception | None) -> None:
        """A part has ended, perhaps without all of its answers."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.remove(task)
        self._batch.left.discard(task)
        for index in [index for index in self._making if not rest.places or index in rest.places]:
            self._batch.calls.end(self._making.pop(index), None)
        if problem is not None:
            self._put(problem)
        else:
            self._after()
        self._wake()

    def _after(self) -> None:
        """Something has ended that others, or other parts, may have waited for."""
        if self._left:
            self._stop_unwanted()
        elif self._blocked:
            self._go_on()

    def answered(self, index: int, done: Answer | None) -> None:
        """It is there; None: it will never be, and is asked for once more."""
        del self._waiting[index]
        if done is None:
            self._alone |= {index}
        else:
            self._answered(index, done)
        self._go_on()
        self._wake()

    def _answered(self, index: int, done: Answer) -> None:
        self._followed.answered(index, done, self._batch.inner.target)
        mine = replace(done, node=index, usage=_UNIFIED)
        for event in told(mine, self._streams):
            self._put(event)

    def _put(self, event: Event | BaseException) -> None:
        if not self._left:
            self._events.append(event)
            self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # -- the end -----------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Nobody wants events any more. What others wait for goes on."""
        self._left = True
        self._events.clear()
        waiting, self._waiting = self._waiting, {}
        for index, call in waiting.items():
            call.leave(self, index)
        self._let_go()
        self._stop_unwanted()

    def _stop_unwanted(self) -> None:
        """Abort what runs for nobody."""
        if not self._left:
            return
        if any(call.followers for call in self._making.values()):
            self._batch.left.update(self._tasks)
            return
        for call in self._making.values():
            self._batch.calls.end(call, None)
        self._making.clear()
        for task in self._tasks:
            task.cancel()

    def _let_go(self) -> None:
        """What opens, keeps or releases the same streams goes on."""
        if self._over is not None:
            self._over.set()
        for handle in self._handles:
            if self._batch.held.get(handle) is self:
                del self._batch.held[handle]
