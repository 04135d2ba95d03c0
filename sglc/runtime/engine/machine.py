"""Runs segments on the engine: text in, text out, with no round trip between a segment's nodes.

A stream is (ids, tail): ids are fixed, the tail is literal text that is not encoded yet. Text is
encoded only when a generation needs it, so every maximal literal run between two generations is
encoded as one string, whatever appends and forks it was written in. Generated ids stay verbatim.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from time import perf_counter

from sglc.errors import SglcError, located
from sglc.ir.plan.dataflow import KeptStreams, SegmentRun, choice_texts, filled_parts
from sglc.ir.plan.events import Event, NodeFailed
from sglc.ir.plan.segment import (
    EncodedText,
    ExtendNode,
    ForkNode,
    GenNode,
    Node,
    Part,
    Segment,
    SelectNode,
)
from sglc.ir.sampling import Sampling
from sglc.ir.target import Tokenizer
from sglc.runtime.constraints.constraint import form_of
from sglc.runtime.constraints.protocol import Constraint
from sglc.runtime.engine.engine import Engine, Handle, QueuePosition, RequestId
from sglc.runtime.engine.generation import Call, EngineModel, GenCall, Outcome, SelectCall, text_of
from sglc.runtime.engine.hinted_streams import HintedStreams
from sglc.runtime.engine.prompt_prefixes import TokenStream
from sglc.runtime.histogram import Histogram
from sglc.runtime.scheduler.critical_path import remaining_tokens
from sglc.runtime.scheduler.gap_stats import ToolLatencyStats

_EMPTY = TokenStream()
_PART = 0.25  # of a step, that it is put off for the generations of one segment
_STEPS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_READING_MAY_TAKE_S = 10.0  # of a processor, for what a generation is held to, compiled before or not


@dataclass(frozen=True, slots=True)
class _KeptStream:
    """A kept stream and the engine's handle on it.

    `place` is that of its program in the engine's queue, `left` where in the program it was kept.
    """

    stream: TokenStream
    handle: Handle
    place: int
    left: tuple[str, str]
    step: int


class Machine:
    """Segments over one engine. Single-threaded, like the engine."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self.engine = engine
        self.model = EngineModel(engine, tokenizer)
        self.tool_latency = ToolLatencyStats()
        self.hinted = HintedStreams(engine, self.tool_latency)
        self.submits = 0
        self.steps = 0
        self.step_times = Histogram(_STEPS_S)  # seconds, with what each step's events set in motion
        self._begins_until_s = inf
        # Generations that begin with a later step; of segments of one priority in turns.
        self._put_off: dict[EngineSegmentRun, deque[int]] = {}
        self._rested_s = 0.0  # without work, before `_resting_since`
        self._resting_since: float | None = perf_counter()  # None: there is work
        self._prepared: set[bool] = set()  # for constraints: all but what grammars need, and that too
        self._runs: dict[EngineSegmentRun, None] = {}  # in progress, in order of arrival
        self._calls: dict[RequestId, tuple[EngineSegmentRun, int, Call]] = {}
        self._kept: KeptStreams[_KeptStream, tuple[SegmentRun[_KeptStream], int]] = KeptStreams(
            lambda kept: engine.release(kept.handle)
        )

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do until the next `submit`."""
        return self.engine.idle and not self._put_off

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
        compiling: Sequence[int] = (),
        in_part: bool = False,
    ) -> object:
        """Start a segment; `emit` receives its events and `done` is called once after the last.

        If that may be done `in_part`, generations begin for no longer than a part of a step, and the others
        with the next steps: a segment may have many, and who reads other texts waits for a step.

        Nodes that are `compiling` wait for `compiled`. Without `streams` there are no deltas: text comes when
        it is complete, and costs the engine less. Returns a token for `abort`. Both callbacks may be called
        before this returns.
        """
        self.submits += 1
        if compiling:  # while that is done, what it will take to read it
            waits = (segment.nodes[index] for index in compiling)
            ebnf = any(isinstance(node, GenNode) and node.sampling.ebnf is not None for node in waits)
            if ebnf not in self._prepared:
                self._prepared.add(ebnf)
                load = partial(self.model.constraints.prepare, ebnf=ebnf)
                threading.Thread(target=load, daemon=True).start()
        run = EngineSegmentRun(self, segment, self._kept, emit, done, streams, compiling)
        self._runs[run] = None
        if in_part:
            self._begins_until_s = self._part_ends_s
        run.begin()
        self._begins_until_s = inf
        return run

    def compiled(self, run: object, index: int, error: SglcError | None) -> None:
        """What a node of a segment is held to is compiled, or `error` is wrong with it."""
        assert isinstance(run, EngineSegmentRun)
        run.compiled(index, error)

    def load_constraints(self) -> None:
        """Load what constraints need, before anybody waits for a step."""
        self._prepared = {False, True}
        self.model.constraints.prepare(ebnf=True)

    def forget_texts(self) -> None:
        """Forget what texts were encoded to."""
        self.model.encode.cache_clear()
        self.model.encode_within.cache_clear()
        self.model.prefixes.clear()

    def abort(self, run: object) -> None:
        """Stop what is left of a segment: no further events. Streams that it kept stay kept."""
        assert isinstance(run, EngineSegmentRun)
        self._runs.pop(run, None)
        self._put_off.pop(run, None)
        run.abort()

    def fail_all(self, error: SglcError) -> None:
        """The engine is beyond use: every node that is not finished fails with `error`."""
        for run in self._runs:
            for index in range(len(run.nodes)):
                if index not in run.finished:
                    run.emit(NodeFailed(index, error))
            run.over = True
            run.done()
        self._runs.clear()
        self._put_off.clear()

    def step(self, meanwhile: Callable[[], bool] | None = None) -> None:
        """One step of the engine, and all that its events set in motion. `meanwhile` is as of the engine."""
        self.steps += 1
        if self._put_off:
            with self.engine.undisturbed():
                self._begin_some()
        began_s = perf_counter()
        if self._resting_since is not None:
            self._rested_s = self.rested_s
            self._resting_since = None
        for event in self.engine.step(meanwhile):
            waiting = self._calls.get(event.request)
            if waiting is None:
                continue  # aborted in this very step
            run, index, call = waiting
            try:
                outcome = call.take(event)
            except SglcError as error:
                run.drop(index)
                run.fail(index, located(error, call.node.loc))
                continue
            if outcome is not None:
                run.finish(index, outcome)
        ended_s = perf_counter()
        self.step_times.observe(ended_s - began_s)
        if not self._calls and self.idle:
            self._resting_since = ended_s

    @property
    def _part_ends_s(self) -> float:
        return perf_counter() + _PART * self.engine.step_s

    def _begin_some(self) -> None:
        """Begin generations that were put off, one at least."""
        until_s = self._part_ends_s
        while self._put_off:
            run = max(self._put_off, key=lambda run: run.segment.priority)
            left = self._put_off.pop(run)
            run.go_on(left.popleft())
            if left:
                self._put_off[run] = left
            if perf_counter() > until_s:
                break

    # -- what its segments ask for -------------------------------------------------------------------

    def puts_off(self, run: EngineSegmentRun, index: int) -> bool:
        """Whether a generation begins with a later step, since there is no time left."""
        late = perf_counter() > self._begins_until_s
        if late:
            run.place  # noqa: B018  # which it has before those that come later
            self._put_off.setdefault(run, deque()).append(index)
        return late

    def call_begun(self, run: EngineSegmentRun, index: int, call: Call) -> None:
        """A call of a segment waits for the engine."""
        for request in call.requests:
            self._calls[request] = run, index, call

    def call_over(self, call: Call) -> None:
        """Nobody waits for a call any more."""
        for request in call.requests:
            del self._calls[request]

    def segment_over(self, run: EngineSegmentRun) -> None:
        """A segment is done."""
        del self._runs[run]
        run.done()

    def turn_of(self, run: EngineSegmentRun, index: int) -> QueuePosition:
        """When a call has its turn."""
        segment, tag = run.segment, 0
        if segment.share:
            node = run.nodes[index]
            texts = node.sampling.n if isinstance(node, GenNode) else 1
            tag = self.engine.queue.fair.tag(segment.share, texts)
        behind = segment.hints.behind if segment.hints is not None else 0
        return QueuePosition(run.place, run.remaining(index) + behind, segment.priority, tag)


class EngineSegmentRun(SegmentRun[_KeptStream]):
    """A segment in progress.

    `origin[i]` is the node whose pin the stream of node i goes on from: the last one before it, or itself,
    that made ids. `unread` counts, of such a node, those that still read it or what literals made of it; it is
    kept from the first pin on.
    """

    depth_first = True

    def __init__(
        self,
        machine: Machine,
        segment: Segment,
        kept: KeptStreams[_KeptStream, tuple[SegmentRun[_KeptStream], int]],
        emit: Callable[[Event], None],
        done: Callable[[], None],
        streams: bool,
        compiling: Sequence[int],
    ) -> None:
        super().__init__(segment, kept, emit)
        self.machine = machine
        self.segment = segment
        self.done = done
        self.streams = streams
        self.made: dict[int, TokenStream] = {}
        self.pins: dict[int, Handle] = {}
        self.calls: dict[int, Call] = {}
        self.origin: list[int] = []
        self.unread: list[int] = []
        self._place: int | None = None
        self._remaining: list[int] | None = None
        if segment.hints is not None:
            self._place = machine.hinted.begun(segment.share, segment.hints)
        self._compiling = dict.fromkeys(compiling, False)  # whether the node's turn has come
        self._refused: dict[int, SglcError] = {}
        self._constraints: dict[int, Constraint | None] = {}  # of nodes that begin and are held to something

    @property
    def place(self) -> int:
        """The place of its program in the engine's queue, which it takes with its first call."""
        if self._place is None:
            self._place = self.machine.engine.next_place
        return self._place

    def remaining(self, index: int) -> int:
        """Tokens still to come from a node on."""
        node = self.nodes[index]
        if not self.readers[index]:  # nothing comes behind it
            return node.sampling.max_tokens if isinstance(node, GenNode) else 0
        if self._remaining is None:
            self._remaining = remaining_tokens(self.nodes, self.readers)
        return self._remaining[index]

    def abort(self) -> None:
        """No more is wanted."""
        for index in list(self.calls):
            self.drop(index)
        for handle in self.pins.values():
            self.machine.engine.release(handle)
        self.pins.clear()
        self.stop()

    def ended(self) -> None:
        self.machine.segment_over(self)

    def node_over(self, index: int) -> None:
        for source in self.sources[index]:
            origin = self.origin[source]
            self.unread[origin] -= 1
            if self.unread[origin] == 0 and origin in self.pins:
                self.machine.engine.release(self.pins.pop(origin))

    def begin_with(self, index: int, stream: _KeptStream | None) -> None:
        if stream is None:
            namespace = self.segment.namespace
            self.made[index] = TokenStream(namespace=namespace) if namespace else _EMPTY
            return
        machine, known = self.machine, stream.stream
        if self._read_on(index):  # its own handle may be released while the segment runs
            (pin,) = machine.engine.fork(stream.handle, 1)
            self._pin(index, pin)
            self.made[index] = known.held_by(pin)
        # The run goes on with the program that kept it.
        self._place = stream.place if self._place is None else min(self._place, stream.place)
        machine.tool_latency.ended(stream.left, machine.engine.steps - stream.step)

    def _read_on(self, index: int) -> bool:
        """Whether what reads a node has not failed already."""
        return not self.finished.issuperset(self.readers[index])

    def _pin(self, index: int, pin: Handle) -> None:
        """The stream behind node `index` is held until the last of those that read it is over."""
        if not self.unread:
            self.tells_ends = True
            for at, node in enumerate(self.nodes):
                self.origin.append(self.origin[node.stream] if isinstance(node, ExtendNode | ForkNode) else at)
            self.unread = [0] * len(self.nodes)
            for at, found in enumerate(self.readers):
                self.unread[self.origin[at]] += sum([reader not in self.finished for reader in found])
        self.pins[index] = pin

    def stream_to_keep(self, index: int) -> _KeptStream:
        """The stream. Its program comes back to it when it has done as much as it did before."""
        engine, stream, left = self.machine.engine, self.made[index], _left_at(self.nodes, index)
        held = self.machine.model.extend(stream)
        kept = _KeptStream(stream, held, self.place, left, engine.steps)
        engine.hold(held, self.machine.tool_latency.expected(left), kept.place)
        return kept

    def execute(self, index: int, node: ExtendNode | ForkNode | GenNode | SelectNode) -> bool:
        match node:
            case ExtendNode(stream, parts):
                self.made[index] = self._extended(self.made[stream], parts)
            case ForkNode(stream):
                self.made[index] = self.made[stream]
            case GenNode() if self.machine.puts_off(self, index):
                return False
            case GenNode(sampling=sampling) if sampling.constrained and not self._may_begin(index, sampling):
                return False
            case GenNode() | SelectNode():
                call = self.calls[index] = self._call(index, node)
                self.machine.call_begun(self, index, call)
                return False
        return True

    def _may_begin(self, index: int, sampling: Sampling) -> bool:
        """Whether a node that is held to something may begin; else it will, when that is there.

        Raises:
            SglcError: what is wrong with what it is held to.
        """
        if index in self._compiling:
            self._compiling[index] = True
            return False
        if index in self._refused:
            raise self._refused[index]
        return self._at_hand(index, sampling)

    def go_on(self, index: int) -> None:
        """Execute a node that was put off."""
        self._execute_all([index])

    def compiled(self, index: int, error: SglcError | None) -> None:
        """What a node is held to is compiled, or `error` is wrong with it."""
        if error is not None:
            self._refused[index] = error
        if self._compiling.pop(index, False):
            self._execute_all([index])

    def _at_hand(self, index: int, sampling: Sampling) -> bool:
        """Whether what a node is held to is there; else it is read, and nobody waits for that but the node."""
        constraints = self.machine.model.constraints
        if index in self._constraints:
            return True
        if constraints.at_hand(sampling):
            self._constraints[index] = constraints.of(sampling)
            return True
        assert self.place  # it has its turn as if it began now
        self.machine.engine.threads.begin(
            form_of(sampling),
            lambda: self._read(sampling),
            lambda given: self._has_come(index, given),
            may_take_s=_READING_MAY_TAKE_S,
            awaited=True,
        )
        return False

    def _read(self, sampling: Sampling) -> Constraint | None:
        """What holds a generation, with what an executor follows by itself, which takes time to make."""
        constraint = self.machine.model.constraints.of(sampling)
        if constraint is not None and self.machine.engine.executor.keeps and not constraint.slow:
            constraint.automaton  # noqa: B018
        return constraint

    def _has_come(self, index: int, given: Constraint | SglcError | None) -> None:
        if isinstance(given, SglcError):
            self._refused[index] = given
        else:
            self._constraints[index] = given
        self._execute_all([index])

    def _call(self, index: int, node: GenNode | SelectNode) -> Call:
        model, stream, turn = self.machine.model, self.made[node.stream], self.machine.turn_of(self, index)
        if isinstance(node, GenNode):
            constraint = self._constraints.pop(index, None)
            return GenCall(
                model, index, node, stream, self.emit, streams=self.streams, turn=turn, constraint=constraint
            )
        return SelectCall(model, index, node, stream, choice_texts(node, self.texts), turn=turn)

    def _extended(self, stream: TokenStream, parts: tuple[Part, ...]) -> TokenStream:
        model = self.machine.model
        if stream.base is None and not (stream.ids or stream.tail):
            prefix = None
            if len(parts) > 1:
                prefix, done = model.prefixes.longest(parts, stream.namespace)
                parts = parts[done:]
            if len(parts) == 1 and isinstance(parts[0], EncodedText):  # most prompts
                return TokenStream(parts[0].ids, "", prefix, stream.namespace)
            stream = TokenStream((), "", prefix, stream.namespace)
        return stream.followed_by(filled_parts(parts, self.texts), model.known(stream), model.encode_behind)

    def finish(self, index: int, outcome: Outcome) -> None:
        """A call has ended well."""
        call, hints = self.calls[index], self.segment.hints
        if self._read_on(index):
            # What follows begins with this stream: its pages stay until the last reader has them.
            stream = call.behind(outcome)
            self._pin(index, pin := self.machine.model.extend(stream))
            self.machine.engine.await_turn(pin, self.place)
            self.made[index] = stream.held_by(pin)
        if hints is not None:
            own = self.machine.model.extend(call.behind(outcome))
            self.machine.hinted.made(self.segment.share, hints, own, self.place, self.segment.room)
        self.drop(index)  # behind that, or what it lets go of would be nobody's for a moment
        self.texts[index] = text_of(outcome)
        self.emit(outcome)
        self.advance(index)

    def drop(self, index: int) -> None:
        """A call is over."""
        call = self.calls.pop(index)
        self.machine.call_over(call)
        call.close()


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
