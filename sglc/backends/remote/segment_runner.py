"""Segments on APIs: follows a segment's nodes, and asks for what is generated as soon as it can be.

What does not wait for each other is asked for side by side, each in a task that goes on with what its answer
makes ready; the prompts stand here, because an API keeps none. Single-threaded: everything happens in the
event loop that `submit` runs in, and streams are kept for segments of the same loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace

from sglc.backends.remote.prompt_hints import PromptHints
from sglc.backends.remote.prompts import Prompt
from sglc.backends.retry import unexpected
from sglc.errors import BackendError, RunError, SglcError, located
from sglc.ir.made_often import made_often
from sglc.ir.plan.dataflow import KeptStreams, SegmentRun, choice_texts, filled_parts
from sglc.ir.plan.events import Event, GenDone, SelectDone, Usage
from sglc.ir.plan.hints import Hints
from sglc.ir.plan.segment import (
    ExtendNode,
    ForkNode,
    GenNode,
    KeepNode,
    Made,
    NodeResult,
    Segment,
    SelectNode,
    origin,
)


@dataclass(frozen=True, slots=True)
class Behind:
    """A generation or choice that follows another one in its turn, and the text between them."""

    index: int
    node: GenNode | SelectNode
    before: str
    choices: tuple[str, ...] = ()


@made_often
@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One generation or choice that is asked for. `choices` are the texts of a choice.

    The answer of a generation with `node.ahead`, or of one that is `fused`, may have those that are `behind` it
    too, in their order. `apart`: its samples are those of several generations, so one that fails is not the end
    of the others.
    """

    index: int
    node: GenNode | SelectNode
    prompt: Prompt
    choices: tuple[str, ...] = ()
    streams: bool = True  # deltas are wanted
    behind: tuple[Behind, ...] = ()
    hints: Hints | None = None
    apart: bool = False


@made_often
@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """What a request brought: the event that says so, and what the stream goes on with.

    `others` is the same of the first of those that were `behind`. `alone`: guessing did not pay, so whatever
    goes on from here is asked for one by one. `lost`: which samples failed of those that are `apart`, and why.
    """

    event: GenDone | SelectDone
    made: Made
    others: tuple[tuple[GenDone | SelectDone, Made], ...] = ()
    alone: bool = False
    lost: tuple[tuple[int, BackendError], ...] = ()


_Ended = tuple[GenDone | SelectDone, Made] | BackendError

# Asks for one; emits deltas on the way. Raises SglcError.
Ask = Callable[[ApiRequest, Callable[[Event], None]], Awaitable[ApiAnswer]]


class Walker:
    """Segments of one back end, and the streams that it keeps.

    Args:
        ask: makes one request; it is cancelled when nobody wants the answer any more.
        several: whether one request may have several samples of a generation.
        hinted: whether requests say what is known ahead of their programs.
    """

    def __init__(
        self, ask: Ask, several: Callable[[], bool] = lambda: False, hinted: Callable[[], bool] = lambda: False
    ) -> None:
        self.ask = ask
        self.several = several
        self.hinted = hinted
        self.hints = PromptHints()
        self.kept: KeptStreams[Prompt, tuple[SegmentRun[Prompt], int]] = KeptStreams(lambda prompt: None)

    async def submit(self, segment: Segment, *, streams: bool = True) -> AsyncGenerator[Event, None]:
        """Run `segment`; closing the iterator cancels what is left of it."""
        run = RemoteSegmentRun(self, segment, streams)
        run.begin()
        try:
            while True:
                while run.told.events:
                    yield run.told.events.popleft()
                if run.over:
                    return
                await run.told.more()
        finally:
            await run.cancel()


class _Told:
    """The events of a segment that nobody has seen yet, and whoever waits for more.

    It does not know its run: where one holds the other, both are there until garbage is collected.
    """

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self._waiting: asyncio.Future[None] | None = None

    def tell(self, event: Event) -> None:
        """Have it followed."""
        self.events.append(event)
        self.wake()

    def wake(self) -> None:
        """Whoever follows the events has something to see."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def more(self) -> None:
        """Until there is something to see."""
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting


class RemoteSegmentRun(SegmentRun[Prompt]):
    """A segment in progress, and the requests that it waits for."""

    def __init__(self, walker: Walker, segment: Segment, streams: bool) -> None:
        self.told = _Told()
        super().__init__(segment, walker.kept, self.told.tell)
        self.walker = walker
        self.streams = streams
        self.prompts: dict[int, Prompt] = {}
        self.tasks: dict[int, asyncio.Task[None] | None] = {}  # by node that is asked for; None: it begins
        self.next: ApiRequest | None = None  # what a task that has its answer goes on with
        self.answering = False  # whether a task looks for that
        self.guessed: dict[int, _Ended] = {}  # answered before they were asked for
        self.twins: dict[int, Sequence[int]] = {}  # whose samples the request of a generation has, too
        self.promised: dict[int, bool] = {}  # these, and whether it is their turn
        self.alone: set[int] = set()  # generations that were asked for in vain together with others
        self.program = walker.hints.program() if walker.hinted() else None
        self.hints: dict[int, Hints] = {}  # of what was asked for

    async def cancel(self) -> None:
        """No more is wanted: cancel what runs."""
        if self.over:
            return
        self.stop()
        tasks = tuple([task for task in self.tasks.values() if task is not None])
        self.tasks.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    def ended(self) -> None:
        self.told.wake()

    def begin_with(self, index: int, stream: Prompt | None) -> None:
        self.prompts[index] = stream or Prompt()

    def stream_to_keep(self, index: int) -> Prompt:
        return self.prompts[index]

    def execute(self, index: int, node: ExtendNode | ForkNode | GenNode | SelectNode) -> bool:
        match node:
            case ExtendNode(stream, parts):
                self.prompts[index] = Prompt(self.prompts[stream], filled_parts(parts, self.texts))
            case ForkNode(stream):
                self.prompts[index] = self.prompts[stream]
            case GenNode() | SelectNode() if index in self.guessed:
                ended = self.guessed.pop(index)
                if isinstance(ended, BackendError):
                    raise ended
                self.made(index, node, *ended)
            case GenNode() if index in self.promised:
                self.promised[index] = True
                return False
            case GenNode() | SelectNode():
                self.ask(index, node)
                return False
        return True

    # -- requests ------------------------------------------------------------------------------------

    def ask(self, index: int, node: GenNode | SelectNode) -> None:
        """Ask for one generation, and for those behind it that the same request may answer."""
        choices = self.choices(node)
        behind: tuple[Behind, ...] = ()
        if _together(node):
            if self.alone and self.behind_alone(index):
                node = replace(node, fused=False)
                node = replace(node, ahead=0) if isinstance(node, GenNode) else node
            else:
                behind = tuple(self.behind(index))
        elif isinstance(node, GenNode) and (twins := self.twins_of(index, node)):
            self.twins[index] = twins
            self.promised.update(dict.fromkeys(twins, False))
            node = replace(node, sampling=replace(node.sampling, n=1 + len(twins)))
        hints, prompt = None, self.prompts[node.stream]
        if self.program is not None:
            hints = self.hints[index] = self.walker.hints.of(node, prompt, self.program)
        apart = index in self.twins
        request = ApiRequest(index, node, prompt, choices, self.streams, behind, hints, apart)
        if self.answering and self.next is None:
            self.next, self.tasks[index] = request, None
        else:
            self.tasks[index] = asyncio.create_task(self.follow(request))

    async def follow(self, request: ApiRequest) -> None:
        """Make a request, and behind its answer the first of those that it makes ready."""
        asking: ApiRequest | None = request
        while asking is not None:
            index = asking.index
            self.tasks[index] = asyncio.current_task()
            problem = None
            try:
                answer = await self.walker.ask(asking, self.emit)
            except Exception as error:
                problem = error
            if self.tasks.pop(index, None) is None:
                return  # stopped
            self.answering = True
            if problem is None:
                self.answered(index, answer)
            else:
                self.failed(index, problem)
            asking, self.next, self.answering = self.next, None, False

    def failed(self, index: int, problem: Exception) -> None:
        node = self.nodes[index]
        assert isinstance(node, GenNode | SelectNode)
        if not isinstance(problem, SglcError):
            problem = unexpected(problem)
        self.fail(index, located(problem, node.loc))
        for twin in self.twins.get(index, ()):
            if self.promised.pop(twin):
                self.fail(twin, located(_unpaid(problem), node.loc))

    def answered(self, index: int, answer: ApiAnswer) -> None:
        if answer.alone:
            self.alone.add(index)
        twins = self.twins.get(index, ())
        if twins:
            self.guessed.update(_one_each((index, *twins), answer))
        else:
            self.guessed[index] = answer.event, answer.made
            self.guessed.update((event.node, (event, made)) for event, made in answer.others)
        self._execute_all((index,))
        for twin in twins:
            if self.promised.pop(twin):
                self._execute_all((twin,))

    def made(self, index: int, node: GenNode | SelectNode, event: GenDone | SelectDone, made: Made) -> None:
        self.prompts[index] = Prompt(self.prompts[node.stream], (made,))
        if index in self.hints:
            self.walker.hints.answered(self.hints.pop(index), self.prompts[index])
        self.texts[index] = made.text
        self.emit(event)

    def choices(self, node: GenNode | SelectNode) -> tuple[str, ...]:
        """The texts of a choice; none of a generation.

        Raises:
            RunError: SGLC404, one of them is empty.
        """
        if isinstance(node, GenNode):
            return ()
        choices = choice_texts(node, self.texts)
        if not all(choices):
            raise RunError("SGLC404", "a choice of `select` is empty", hint="every choice needs a text")
        return choices

    def twins_of(self, index: int, node: GenNode) -> Sequence[int]:
        """The generations that ask for another sample of the same, of a run whose seed nobody has asked for."""
        if not node.drawn or self.streams or node.sampling.n != 1 or not self.walker.several():
            return ()
        if node.sampling.seed is not None or node.sampling.temperature == 0:
            return ()
        return [
            other
            for other, twin in enumerate(self.nodes)
            if isinstance(twin, GenNode)
            and other != index
            and twin.sampling == node.sampling
            and not (twin.fused or twin.ahead or other in self.finished or other in self.tasks)
            and not (other in self.guessed or other in self.promised)
            and origin(self.nodes, twin.stream) == origin(self.nodes, node.stream)
        ]

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
        while isinstance(node, GenNode | SelectNode) and _together(node):
            fused, before = node.fused, ""
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
                texts = [
                    self.texts.get(part.node) if isinstance(part, NodeResult) else part for part in node.parts
                ]
                if not all(isinstance(part, str) for part in texts):
                    return
                before += "".join(part for part in texts if isinstance(part, str))
            if not isinstance(node, GenNode | SelectNode) or node.fused != fused:
                return
            if fused or isinstance(node, GenNode):
                yield Behind(index, node, before, self.choices(node))


def _one_each(indices: Sequence[int], answer: ApiAnswer) -> Iterator[tuple[int, _Ended]]:
    """An answer whose samples are those of several generations: the first has the request's counts."""
    assert isinstance(answer.event, GenDone)
    spent, lost = answer.event.usage, dict(answer.lost)
    for number, (index, sample) in enumerate(zip(indices, answer.event.samples, strict=True)):
        usage = Usage(saved_calls=1, saved_prompt=spent.prompt) if number else spent
        if number not in lost:
            yield index, (GenDone(index, (), (sample,), usage), Made(sample.text))
            continue
        error = lost[number]
        error.usage = None if number else spent
        yield index, error


def _unpaid(problem: SglcError) -> SglcError:
    """The same error of another generation, which took nothing of its own."""
    made = copy(problem)
    if isinstance(made, BackendError):
        made.usage = None
    return made


def _together(node: GenNode | SelectNode) -> bool:
    """Whether its request may ask for others too."""
    return node.fused or (isinstance(node, GenNode) and node.ahead > 0)
