"""A segment in progress on a back end: which of its nodes are ready, and what a failure takes with it.

A node is executed as soon as all that it reads has finished. Streams are kept from segment to segment by
their handles. A handle is promised from the moment at which the segment that will keep it begins: what opens
it before that waits, and what releases it before that is done as soon as it is kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from sglc.errors import RunError, SglcError, located
from sglc.ir.plan.events import Event, GenDone, NodeFailed, SelectDone
from sglc.ir.plan.segment import (
    EncodedText,
    ExtendNode,
    ForkNode,
    GenNode,
    ImagePart,
    KeepNode,
    Made,
    Node,
    NodeResult,
    OpenNode,
    Part,
    ReleaseNode,
    RoleMark,
    Segment,
    SelectNode,
    Slot,
    place_of,
    reads,
    waits_of,
)
from sglc.ir.target import ControlText, Target, Tokenizer

S = TypeVar("S")  # a kept stream, as its back end has it
W = TypeVar("W")  # who waits for one

FilledPart = str | ControlText | ImagePart | RoleMark | Made | EncodedText
_NAMING = (NodeResult, ImagePart, Slot)


def filled_parts(parts: Sequence[Part], texts: Mapping[int, str]) -> tuple[FilledPart, ...]:
    """Parts of a bound segment with the texts of the nodes that they name."""
    return tuple([filled(part, texts) if type(part) in _NAMING else part for part in parts])  # type: ignore[misc]


def filled(part: Part, texts: Mapping[int, str]) -> FilledPart:
    """A part of a bound segment with the texts of the nodes that it names."""
    match part:
        case str() | ControlText():
            return part
        case NodeResult(node):
            return texts[node]
        case ImagePart(NodeResult(node)):
            return ImagePart(texts[node])
        case Slot(name) | ImagePart(Slot(name)):
            raise AssertionError(f"slot {name} is not bound")
        case _:
            return part


def choice_texts(node: SelectNode, texts: Mapping[int, str]) -> tuple[str, ...]:
    """The choices of a node with the texts of the nodes that they name."""
    return tuple(
        [texts[choice.node] if isinstance(choice, NodeResult) else str(choice) for choice in node.choices]
    )


def left_in_prompt(done: GenDone | SelectDone, target: Target) -> Made:
    """What a generation or choice of `target` leaves in its prompt.

    Where prompts are ids, those of a generation stay as they were made; a choice is text.
    """
    if isinstance(done, SelectDone):
        return Made(done.text)
    first = done.samples[0]
    if target.protocol != "tokens" or target.tokenizer is None:
        return Made(first.text)
    return with_ids(first.text, first.ids, target.tokenizer)


def with_ids(text: str, ids: tuple[int, ...], tokenizer: Tokenizer) -> Made:
    """The text of a generation that kept `ids`.

    Where a stop string ended it inside of a token, the text goes on behind the last whole one.
    """
    table = tokenizer.token_bytes()
    spelled = b"".join([table[id_] for id_ in ids if id_ < len(table)]).decode("utf-8", "replace")
    return Made(text, ids, text[len(spelled) :] if text.startswith(spelled) else "")


def failed_before(node: Node, failed: Mapping[int, SglcError]) -> SglcError | None:
    """Why a node will not be executed: the error of the first that failed among those that it reads."""
    return next((failed[source] for source in reads(node) if source in failed), None)


class KeptStreams(Generic[S, W]):
    """The kept streams of one back end.

    Args:
        drop: gives back what a stream holds.
    """

    def __init__(self, drop: Callable[[S], object]) -> None:
        self._drop = drop
        self._streams: dict[int, S] = {}
        self._promised: dict[int, list[W]] = {}
        self._unwanted: set[int] = set()  # promised handles that were released already

    @property
    def empty(self) -> bool:
        """Whether nothing is kept, or promised."""
        return not (self._streams or self._promised or self._unwanted)

    def promise(self, handle: int | str) -> None:
        """`handle` will be kept, or `give_up` be called."""
        self._promised[_bound(handle)] = []

    def open(self, handle: int | str | None, waiter: W) -> S | None:
        """The stream; None if it is only promised: `keep` or `give_up` then name `waiter`.

        Raises:
            RunError: SGLC403, it is not kept any more.
        """
        number = _bound(handle)
        if number in self._promised:
            self._promised[number].append(waiter)
            return None
        if number not in self._streams:
            raise RunError("SGLC403", "a stream is continued that is not kept any more")
        return self._streams[number]

    def keep(self, handle: int | str, stream: S, go_on: Callable[[W], None]) -> None:
        """Keep `stream`, as was promised; `go_on` is called for all that wait for it."""
        number = _bound(handle)
        self._streams[number] = stream
        for waiter in self._promised.pop(number):
            go_on(waiter)
        if number in self._unwanted:
            self._unwanted.discard(number)
            self.release(number)

    def release(self, handle: int) -> None:
        """Forget a stream. Nothing, if what would have kept it failed."""
        if handle in self._promised:
            self._unwanted.add(handle)
        elif handle in self._streams:
            self._drop(self._streams.pop(handle))

    def give_up(self, handle: int | str) -> list[W]:
        """What was promised will not be kept; gives those that wait for it."""
        number = _bound(handle)
        self._unwanted.discard(number)
        return self._promised.pop(number, [])


class SegmentRun(ABC, Generic[S]):
    """One segment in progress. What its nodes do to streams is the back end's. Single-threaded."""

    depth_first = False  # what becomes ready comes before what was ready already

    def __init__(
        self, segment: Segment, kept: KeptStreams[S, tuple[SegmentRun[S], int]], emit: Callable[[Event], None]
    ) -> None:
        self.nodes = segment.nodes
        waits = segment.waits or waits_of([reads(node) for node in self.nodes])
        self.sources, self.readers, self._first = waits.sources, waits.readers, waits.first
        self._missing = list(map(len, waits.sources))
        self.texts: dict[int, str] = {}  # by node
        self.emit = emit
        self.finished: set[int] = set()  # done or failed
        self.over = False  # everything is finished, or nothing is wanted any more
        self.tells_ends = False  # whether `node_over` is told
        self._kept = kept
        self._failed: set[int] = set()

    # -- what a back end does -----------------------------------------------------------------------

    @abstractmethod
    def begin_with(self, index: int, stream: S | None) -> None:
        """Node `index` goes on with a kept stream, or with the empty one."""

    @abstractmethod
    def stream_to_keep(self, index: int) -> S:
        """The stream behind node `index`, to be kept."""

    @abstractmethod
    def execute(self, index: int, node: ExtendNode | ForkNode | GenNode | SelectNode) -> bool:
        """Do what a node says; False if `advance` will be called when it has finished."""

    @abstractmethod
    def ended(self) -> None:
        """Everything is finished; called once."""

    def node_over(self, index: int) -> None:
        """Node `index` is done or failed: told only to who `tells_ends`."""

    # -- the dataflow --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Execute what waits for nothing."""
        for node in self.nodes:
            if type(node) is KeepNode:
                self._kept.promise(node.handle)
        first = self._first
        if len(first) > 1:  # what goes on with a stream is on its way before the stream is released
            first = sorted(first, key=lambda index: isinstance(self.nodes[index], ReleaseNode))
        self._execute_all(first)

    def advance(self, index: int) -> None:
        """Node `index` has done what it says: execute what waited for it."""
        if ready := self._done(index):
            self._execute_all(ready)
        else:
            self._end_if_done()

    def fail(self, index: int, error: SglcError) -> None:
        """Node `index`, and every node that reads it, will not complete."""
        queue = deque(() if self.over else (index,))
        while queue:
            node = queue.popleft()
            if node in self._failed:
                continue
            self._failed.add(node)
            self.emit(NodeFailed(node, error))
            self._break_promise(node, error)
            self.finished.add(node)
            if self.tells_ends:
                self.node_over(node)
            queue.extend(self.readers[node])
        self._end_if_done()

    def stop(self) -> None:
        """No more is wanted; nobody waits any longer for a stream that will not come."""
        self.over = True
        gone = RunError("SGLC405", "the run that this stream came from was stopped")
        for index in range(len(self.nodes)):
            if index not in self.finished:
                self._break_promise(index, gone)

    def _execute_all(self, ready: Sequence[int]) -> None:
        queue = deque(() if self.over else ready)
        while queue:
            index = queue.popleft()
            try:
                done = self._execute(index, self.nodes[index])
            except SglcError as error:
                self.fail(index, located(error, place_of(self.nodes[index])))
                continue
            if done and (found := self._done(index)):
                if self.depth_first:
                    queue.extendleft(reversed(found))
                else:
                    queue.extend(found)
        self._end_if_done()

    def _execute(self, index: int, node: Node) -> bool:
        match node:
            case ExtendNode() | GenNode():  # most are
                return self.execute(index, node)
            case OpenNode(None):
                self.begin_with(index, None)
            case OpenNode(handle):
                opened = self._kept.open(handle, (self, index))
                if opened is None:
                    return False
                self.begin_with(index, opened)
            case KeepNode(source, handle):
                kept = self.stream_to_keep(source)
                self._kept.keep(handle, kept, lambda waiter: waiter[0]._go_on(waiter[1], kept))
            case ReleaseNode(handle):
                self._kept.release(handle)
            case SelectNode() | ForkNode():
                return self.execute(index, node)
        return True

    def _go_on(self, index: int, stream: S) -> None:
        """The stream is there that an `OpenNode` waited for."""
        if not self.over:
            self.begin_with(index, stream)
            self.advance(index)

    def _done(self, index: int) -> list[int]:
        """Account for a node that is done; gives the readers that became ready."""
        self.finished.add(index)
        if self.tells_ends:
            self.node_over(index)
        ready, missing = [], self._missing
        for reader in self.readers[index]:
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
        return ready

    def _break_promise(self, index: int, error: SglcError) -> None:
        node = self.nodes[index]
        if isinstance(node, KeepNode):
            for run, waiting in self._kept.give_up(node.handle):
                run.fail(waiting, error)

    def _end_if_done(self) -> None:
        if not self.over and len(self.finished) == len(self.nodes):
            self.over = True
            self.ended()


def _bound(handle: int | str | None) -> int:
    assert isinstance(handle, int), f"handle {handle!r} is not bound"
    return handle


def goes_on(ids: Sequence[int], token_bytes: Sequence[bytes]) -> bool:
    """Whether text behind `ids` goes on behind text: they are some, and end in no control token."""
    return len(ids) > 0 and (last := ids[-1]) < len(token_bytes) and token_bytes[last] != b""


def encode_behind(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> list[int]:
    """Ids of ordinary text behind `ids`."""
    if not text:
        return []
    within = len(ids) > 0 and goes_on(ids, tokenizer.token_bytes())  # a large table, made when it is needed
    return tokenizer.encode_within(text) if within else tokenizer.encode(text)
