"""Runs segments on the engine: text in, text out, with no round trip between a segment's nodes.

A stream is (ids, tail): ids are fixed, the tail is literal text that is not encoded yet. Text is
encoded only when a generation needs it, so every maximal literal run between two generations is
encoded as one string, whatever appends and forks it was written in. Generated ids stay verbatim.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from sglc.errors import RunError, SglcError, located
from sglc.ir.plan.events import Event, NodeFailed
from sglc.ir.plan.segment import (
    ExtendNode,
    ForkNode,
    GenNode,
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
from sglc.ir.target import ControlText, Tokenizer
from sglc.runtime.cache.kept_streams import Kept
from sglc.runtime.engine.engine import Engine, Handle, RequestId, Turn
from sglc.runtime.engine.generation import Call, GenCall, Model, Outcome, SelectCall, Stream
from sglc.runtime.scheduler.critical_path import remaining_tokens
from sglc.runtime.scheduler.gap_stats import Absences


@dataclass(slots=True, eq=False)
class _Run:
    """A segment in progress. `missing[i]` counts what node i still waits for.

    `origin[i]` is the node whose pin the stream of node i goes on from: the last one before it, or itself,
    that made ids. `unread` counts, of such a node, those that read it or what literals made of it.
    """

    segment: Segment
    emit: Callable[[Event], None]
    done: Callable[[], None]
    streams: bool
    readers: list[list[int]]
    missing: list[int]
    origin: list[int]
    unread: list[int]
    finished: set[int] = field(default_factory=set)
    made: dict[int, Stream] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    pins: dict[int, Handle] = field(default_factory=dict)
    calls: dict[int, Call] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    place: int | None = None  # of its program in the engine's queue
    left: list[int] | None = None  # tokens still to come behind each node


@dataclass(frozen=True, slots=True)
class _KeptStream:
    """A kept stream and the engine's handle on it.

    `place` is that of its program in the engine's queue, `left` where in the program it was kept.
    """

    stream: Stream
    handle: Handle
    place: int
    left: tuple[str, str]
    step: int


class Machine:
    """Segments over one engine. Single-threaded, like the engine."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self.engine = engine
        self.submits = 0
        self.steps = 0
        self._rested_s = 0.0  # without work, before `_resting_since`
        self._resting_since: float | None = perf_counter()  # None: there is work
        self._model = Model(engine, tokenizer)
        self._absences = Absences()
        self._runs: dict[_Run, None] = {}  # in progress, in order of arrival
        self._calls: dict[RequestId, tuple[_Run, int, Call]] = {}
        # Who waits is an `OpenNode` of a run.
        self._kept: Kept[_KeptStream, tuple[_Run, int]] = Kept(lambda kept: engine.release(kept.handle))

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do until the next `submit`."""
        return self.engine.idle

    @property
    def rested_s(self) -> float:
        """Seconds that it has spent without any work since it was made."""
        since = self._resting_since
        return self._rested_s + (0.0 if since is None else perf_counter() - since)

    def submit(
        self,
        segment: Segment,
        emit: Callable[[Event], None],
        done: Callable[[], None],
        *,
        streams: bool = True,
    ) -> object:
        """Start a segment; `emit` receives its events and `done` is called once after the last.

        Without `streams` there are no deltas: text comes when it is complete, and costs the engine less.
        Returns a token for `abort`. Both callbacks may be called before this returns.
        """
        self.submits += 1
        for node in segment.nodes:
            if isinstance(node, KeepNode):
                self._kept.promise(node.handle)
        missing = [len(reads(node)) for node in segment.nodes]
        readers = readers_of(segment.nodes)
        origin: list[int] = []
        for index, node in enumerate(segment.nodes):
            origin.append(origin[node.stream] if isinstance(node, ExtendNode | ForkNode) else index)
        unread = [0] * len(origin)
        for index, found in enumerate(readers):
            unread[origin[index]] += len(found)
        run = _Run(segment, emit, done, streams, readers, missing, origin, unread)
        self._runs[run] = None
        self._advance(run, [i for i, count in enumerate(missing) if count == 0])
        return run

    def forget_texts(self) -> None:
        """Forget what texts were encoded to."""
        self._model.encode.cache_clear()

    def abort(self, run: object) -> None:
        """Stop what is left of a segment: no further events. Streams that it kept stay kept."""
        assert isinstance(run, _Run)
        for index in list(run.calls):
            self._drop(run, index)
        for handle in run.pins.values():
            self.engine.release(handle)
        run.pins.clear()
        gone = RunError("SGLC405", "the run that this stream came from was stopped")
        self._runs.pop(run, None)
        for index, node in enumerate(run.segment.nodes):
            if index not in run.finished:
                self._break_promise(node, gone)

    def fail_all(self, error: SglcError) -> None:
        """The engine is beyond use: every node that is not finished fails with `error`."""
        for run in self._runs:
            for index in range(len(run.segment.nodes)):
                if index not in run.finished:
                    run.emit(NodeFailed(index, error))
            run.done()
        self._runs.clear()

    def step(self) -> None:
        """One step of the engine, and everything that its events set in motion."""
        self.steps += 1
        if self._resting_since is not None:
            self._rested_s = self.rested_s
            self._resting_since = None
        for event in self.engine.step():
            if event.request not in self._calls:
                continue  # aborted in this very step
            run, index, call = self._calls[event.request]
            try:
                outcome = call.take(event)
            except SglcError as error:
                self._drop(run, index)
                self._fail(run, index, located(error, call.node.loc))
                continue
            if outcome is not None:
                self._finish(run, index, call, outcome)
        if self.engine.idle:
            self._resting_since = perf_counter()

    def _drop(self, run: _Run, index: int) -> None:
        """A call is over."""
        call = run.calls.pop(index)
        for request in call.requests:
            del self._calls[request]
        call.close()

    # -- the dataflow ----------------------------------------------------------------------------

    def _advance(self, run: _Run, ready: Sequence[int]) -> None:
        # What goes on with a stream is on its way before the stream is released.
        queue = deque(sorted(ready, key=lambda index: isinstance(run.segment.nodes[index], ReleaseNode)))
        while queue:
            index = queue.popleft()
            node = run.segment.nodes[index]
            try:
                produced = self._execute(run, index, node)
            except SglcError as error:
                self._fail(run, index, located(error, place_of(node)))
                continue
            if produced:
                queue.extendleft(reversed(self._produced(run, index)))
        self._end_if_done(run)

    def _end_if_done(self, run: _Run) -> None:
        if len(run.finished) == len(run.segment.nodes) and run in self._runs:
            del self._runs[run]
            run.done()

    def _produced(self, run: _Run, index: int) -> list[int]:
        """Account for a finished node; gives the readers that became ready."""
        run.finished.add(index)
        for source in reads(run.segment.nodes[index]):
            origin = run.origin[source]
            run.unread[origin] -= 1
            if run.unread[origin] == 0 and origin in run.pins:
                self.engine.release(run.pins.pop(origin))
        ready = []
        for reader in run.readers[index]:
            run.missing[reader] -= 1
            if run.missing[reader] == 0:
                ready.append(reader)
        return ready

    def _fail(self, run: _Run, index: int, error: SglcError) -> None:
        """Node `index`, and every node that reads it, will not complete."""
        queue = deque([index])
        while queue:
            node = queue.popleft()
            if node in run.failed:
                continue
            run.failed.add(node)
            run.emit(NodeFailed(node, error))
            self._break_promise(run.segment.nodes[node], error)
            self._produced(run, node)
            for reader in run.readers[node]:
                run.missing[reader] += 1  # it will never be ready
                queue.append(reader)
        self._end_if_done(run)

    def _execute(self, run: _Run, index: int, node: Node) -> bool:
        """Do what a node says; False if the engine will finish it later."""
        match node:
            case OpenNode(None):
                run.made[index] = Stream()
            case OpenNode(handle):
                kept = self._kept.open(handle, (run, index))
                if kept is None:
                    return False
                self._go_on_with(run, index, kept)
            case ExtendNode():
                run.made[index] = self._extended(run, run.made[node.stream], node.parts)
            case ForkNode():
                run.made[index] = run.made[node.stream]
            case KeepNode(source, handle):
                kept = self._keep(run, source)
                self._kept.keep(handle, kept, lambda waiter: self._go_on(*waiter, kept))
            case ReleaseNode(handle):
                self._kept.release(handle)
            case GenNode() | SelectNode():
                call = self._call(run, index, node)
                run.calls[index] = call
                for request in call.requests:
                    self._calls[request] = (run, index, call)
                return False
        return True

    def _call(self, run: _Run, index: int, node: GenNode | SelectNode) -> Call:
        stream = run.made[node.stream]
        if isinstance(node, GenNode):
            return GenCall(
                self._model, index, node, stream, run.emit, streams=run.streams, turn=self._turn(run, index)
            )
        texts = tuple(self._extended(run, Stream(), (choice,)).tail for choice in node.choices)
        return SelectCall(self._model, index, node, stream, texts, turn=self._turn(run, index))

    def _begin_at(self, run: _Run, index: int, kept: _KeptStream) -> None:
        """A kept stream, whose own handle may be released while the segment runs."""
        stream = kept.stream
        if not run.readers[index]:
            run.made[index] = Stream(stream.ids, stream.tail)
            return
        (pin,) = self.engine.fork(kept.handle, 1)
        run.pins[index] = pin
        run.made[index] = stream.held_by(pin)

    def _place(self, run: _Run) -> int:
        """The place of a run's program in the queue, which it takes with its first call."""
        if run.place is None:
            run.place = self.engine.next_place
        return run.place

    def _turn(self, run: _Run, index: int) -> Turn:
        if run.left is None:
            run.left = remaining_tokens(run.segment.nodes, run.readers)
        return Turn(self._place(run), run.left[index])

    def _keep(self, run: _Run, source: int) -> _KeptStream:
        """A kept stream. Its program comes back to it when it has done as much as it did before."""
        stream, left = run.made[source], _left_at(run.segment.nodes, source)
        held = self._model.extend(stream, ())
        kept = _KeptStream(stream, held, self._place(run), left, self.engine.steps)
        self.engine.hold(held, self._absences.expected(left), kept.place)
        return kept

    def _go_on_with(self, run: _Run, index: int, kept: _KeptStream) -> None:
        """The stream of an `OpenNode` is there: the run goes on with the program that kept it."""
        self._begin_at(run, index, kept)
        run.place = kept.place if run.place is None else min(run.place, kept.place)
        self._absences.ended(kept.left, self.engine.steps - kept.step)

    def _go_on(self, run: _Run, index: int, kept: _KeptStream) -> None:
        self._go_on_with(run, index, kept)
        self._advance(run, self._produced(run, index))

    def _break_promise(self, node: Node, error: SglcError) -> None:
        if isinstance(node, KeepNode):
            for run, index in self._kept.give_up(node.handle):
                self._fail(run, index, error)

    def _extended(self, run: _Run, stream: Stream, parts: Sequence[Part]) -> Stream:
        ids, tail = stream.ids, stream.tail
        for part in parts:
            match part:
                case ControlText():
                    ids, tail = (*ids, *self._model.encode(tail), *part.ids), ""
                case str():
                    tail += part
                case Result(node):
                    tail += run.texts[node]
                case Slot(name):
                    raise AssertionError(f"slot {name} is not bound")
                case _:
                    raise AssertionError(part)  # no part for a model of tokens
        return Stream(ids, tail, stream.base, stream.held)

    def _finish(self, run: _Run, index: int, call: Call, outcome: Outcome) -> None:
        stream = outcome.stream
        if run.readers[index]:
            # What follows begins with this stream: its pages stay until the last reader has them.
            pin = run.pins[index] = call.hold(stream)
            self.engine.await_turn(pin, self._place(run))
            stream = stream.held_by(pin)
        self._drop(run, index)  # behind that, or what it lets go of would be nobody's for a moment
        run.texts[index] = outcome.text
        run.made[index] = stream
        run.emit(outcome.event)
        self._advance(run, self._produced(run, index))


def _left_at(nodes: Sequence[Node], index: int) -> tuple[str, str]:
    """Where in its program a stream stands: function and name of the last generation in it."""
    while True:
        match nodes[index]:
            case GenNode(site=site) | SelectNode(site=site):
                return site.function, site.name
            case ExtendNode(stream=stream) | ForkNode(stream=stream):
                index = stream
            case _:
                return "", ""
