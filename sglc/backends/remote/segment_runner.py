"""Segments on APIs: follows a segment's nodes, and asks for what is generated as soon as it can be.

Every generation is a task of its own, so what does not wait for each other is asked for side by side; the
prompts stand here, because an API keeps none. Single-threaded: everything happens in the event loop
that `submit` runs in, and streams are kept for segments of the same loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sglc.backends.remote.prompts import Item, Made, Prompt
from sglc.errors import BackendError, RunError, SglcError, located
from sglc.ir.plan.events import Event, GenDone, NodeFailed, SelectDone
from sglc.ir.plan.segment import (
    ExtendNode,
    ForkNode,
    GenNode,
    ImagePart,
    KeepNode,
    Node,
    OpenNode,
    Part,
    ReleaseNode,
    Result,
    Segment,
    SelectNode,
    Slot,
    place_of,
    readers_of,
    reads,
)
from sglc.runtime.cache.kept_streams import Kept


@dataclass(frozen=True, slots=True)
class Behind:
    """A generation that follows another one in its turn, and the text between them."""

    index: int
    node: GenNode
    before: str


@dataclass(frozen=True, slots=True)
class Request:
    """One generation or choice that is asked for. `choices` are the texts of a choice.

    The answer of a generation with `node.ahead` may have those that are `behind` it too, in their order.
    """

    index: int
    node: GenNode | SelectNode
    prompt: Prompt
    choices: tuple[str, ...] = ()
    streams: bool = True  # deltas are wanted
    behind: tuple[Behind, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request brought: the event that says so, and what the stream goes on with.

    `others` is the same of the first of those that were `behind`. `alone`: guessing did not pay, so whatever
    goes on from here is asked for one by one.
    """

    event: GenDone | SelectDone
    made: Made
    others: tuple[tuple[GenDone, Made], ...] = ()
    alone: bool = False


# Asks for one; emits deltas on the way. Raises SglcError.
Ask = Callable[[Request, Callable[[Event], None]], "asyncio.Future[Answer]"]


class Walker:
    """Segments of one back end, and the streams that it keeps.

    Args:
        ask: starts one request; the future is cancelled when nobody wants the answer any more.
    """

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.kept: Kept[Prompt, tuple[_Walk, int]] = Kept(lambda prompt: None)

    async def submit(self, segment: Segment, *, streams: bool = True) -> AsyncGenerator[Event, None]:
        """Run `segment`; closing the iterator cancels what is left of it."""
        walk = _Walk(self, segment, streams)
        walk.begin()
        try:
            while (event := await walk.events.get()) is not None:
                yield event
        finally:
            await walk.stop()


class _Walk:
    """A segment in progress. `missing[i]` counts what node i still waits for."""

    def __init__(self, walker: Walker, segment: Segment, streams: bool) -> None:
        self.walker = walker
        self.nodes = segment.nodes
        self.streams = streams
        self.events: asyncio.Queue[Event | None] = asyncio.Queue()
        self.prompts: dict[int, Prompt] = {}
        self.texts: dict[int, str] = {}
        self.tasks: dict[int, asyncio.Future[Answer]] = {}
        self.finished: set[int] = set()
        self.failed: set[int] = set()
        self.guessed: dict[int, tuple[GenDone, Made]] = {}  # answered before they were asked for
        self.alone: set[int] = set()  # generations that were asked for in vain together with others
        self.stopped = False
        self.missing = [len(reads(node)) for node in self.nodes]
        self.readers = readers_of(self.nodes)

    def begin(self) -> None:
        for node in self.nodes:
            if isinstance(node, KeepNode):
                self.walker.kept.promise(node.handle)
        self.advance([index for index, count in enumerate(self.missing) if not count])

    async def stop(self) -> None:
        """No more is wanted: cancel what runs, and let nobody wait for a stream that will not come."""
        self.stopped = True
        tasks = tuple(self.tasks.values())
        self.tasks.clear()
        for task in tasks:
            task.cancel()
        gone = RunError("SGLC405", "the run that this stream came from was stopped")
        for index, node in enumerate(self.nodes):
            if index not in self.finished:
                self.break_promise(node, gone)
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    # -- the dataflow --------------------------------------------------------------------------------

    def advance(self, ready: Sequence[int]) -> None:
        queue = deque(() if self.stopped else ready)
        while queue:
            index = queue.popleft()
            node = self.nodes[index]
            try:
                done = self.execute(index, node)
            except SglcError as error:
                self.fail(index, located(error, place_of(node)))
                continue
            if done:
                queue.extend(self.produced(index))
        if len(self.finished) == len(self.nodes):
            self.events.put_nowait(None)

    def produced(self, index: int) -> list[int]:
        """Account for a finished node; gives the readers that became ready."""
        self.finished.add(index)
        ready = []
        for reader in self.readers[index]:
            self.missing[reader] -= 1
            if not self.missing[reader] and reader not in self.failed:
                ready.append(reader)
        return ready

    def fail(self, index: int, error: SglcError) -> None:
        """Node `index`, and every node that reads it, will not complete."""
        queue = deque([index])
        while queue:
            node = queue.popleft()
            if node in self.failed:
                continue
            self.failed.add(node)
            self.finished.add(node)
            self.events.put_nowait(NodeFailed(node, error))
            self.break_promise(self.nodes[node], error)
            queue.extend(self.readers[node])
        if len(self.finished) == len(self.nodes):
            self.events.put_nowait(None)

    def execute(self, index: int, node: Node) -> bool:
        """Do what a node says; False if it will be finished later."""
        kept = self.walker.kept
        match node:
            case OpenNode(None):
                self.prompts[index] = Prompt()
            case OpenNode(handle):
                opened = kept.open(handle, (self, index))
                if opened is None:
                    return False
                self.prompts[index] = opened
            case ExtendNode():
                items = tuple(self.item(part) for part in node.parts)
                self.prompts[index] = Prompt(self.prompts[node.stream], items)
            case ForkNode():
                self.prompts[index] = self.prompts[node.stream]
            case KeepNode(source, handle):
                prompt = self.prompts[source]
                kept.keep(handle, prompt, lambda waiter: waiter[0].go_on(waiter[1], prompt))
            case ReleaseNode(handle):
                kept.release(handle)
            case GenNode() if index in self.guessed:
                self.made(index, node, *self.guessed.pop(index))
            case GenNode() | SelectNode():
                self.ask(index, node)
                return False
        return True

    def item(self, part: Part) -> Item:
        match part:
            case Result(node):
                return self.texts[node]
            case ImagePart(Result(node)):
                return ImagePart(self.texts[node])
            case Slot(name):
                raise AssertionError(f"slot {name} is not bound")
            case _:
                return part

    def go_on(self, index: int, prompt: Prompt) -> None:
        self.prompts[index] = prompt
        self.advance(self.produced(index))

    def break_promise(self, node: Node, error: SglcError) -> None:
        if isinstance(node, KeepNode):
            for walk, index in self.walker.kept.give_up(node.handle):
                walk.fail(index, error)

    # -- requests ------------------------------------------------------------------------------------

    def ask(self, index: int, node: GenNode | SelectNode) -> None:
        """Ask for one generation, and for those behind it that the same request may answer."""
        choices: tuple[str, ...] = ()
        if isinstance(node, SelectNode):
            choices = tuple(self.texts[c.node] if isinstance(c, Result) else str(c) for c in node.choices)
            if not all(choices):
                raise RunError("SGLC404", "a choice of `select` is empty", hint="every choice needs a text")
        behind: tuple[Behind, ...] = ()
        if isinstance(node, GenNode) and node.ahead:
            if self.alone and self.behind_alone(index):
                node = replace(node, ahead=0)
            else:
                behind = tuple(self.behind(index))
        request = Request(index, node, self.prompts[node.stream], choices, self.streams, behind)
        task = self.walker.ask(request, self.events.put_nowait)
        self.tasks[index] = task
        task.add_done_callback(lambda done: self.answered(index, done))

    def answered(self, index: int, task: asyncio.Future[Answer]) -> None:
        if self.tasks.pop(index, None) is None or task.cancelled():
            return  # stopped
        node = self.nodes[index]
        assert isinstance(node, GenNode | SelectNode)
        problem = task.exception()
        if problem is not None:
            if not isinstance(problem, SglcError):
                name = type(problem).__name__
                problem = BackendError("SGLC502", f"the back end failed: `{name}`: {problem}")
            self.fail(index, located(problem, node.loc))
            return
        answer = task.result()
        if answer.alone:
            self.alone.add(index)
        self.guessed.update((event.node, (event, made)) for event, made in answer.others)
        self.made(index, node, answer.event, answer.made)
        self.advance(self.produced(index))

    def made(self, index: int, node: GenNode | SelectNode, event: GenDone | SelectDone, made: Made) -> None:
        self.prompts[index] = Prompt(self.prompts[node.stream], (made,))
        self.texts[index] = made.text
        self.events.put_nowait(event)

    def behind_alone(self, index: int) -> bool:
        """Whether guessing did not pay somewhere before node `index`."""
        node = self.nodes[index]
        while isinstance(node, GenNode | SelectNode | ExtendNode | ForkNode):
            if node.stream in self.alone:
                return True
            node = self.nodes[node.stream]
        return False

    def behind(self, index: int) -> Iterator[Behind]:
        """The generations behind node `index` that its request may go on to, as far as the texts are known."""
        node = self.nodes[index]
        while isinstance(node, GenNode) and node.ahead:
            before = ""
            while True:
                going_on = [
                    reader
                    for reader in dict.fromkeys(self.readers[index])
                    if not isinstance(own := self.nodes[reader], KeepNode)
                    and getattr(own, "stream", None) == index
                ]
                if len(going_on) != 1:
                    return
                (index,) = going_on
                node = self.nodes[index]
                if not isinstance(node, ExtendNode):
                    break
                texts = [self.texts.get(part.node) if isinstance(part, Result) else part for part in node.parts]
                if not all(isinstance(part, str) for part in texts):
                    return
                before += "".join(part for part in texts if isinstance(part, str))
            if isinstance(node, GenNode):
                yield Behind(index, node, before)
