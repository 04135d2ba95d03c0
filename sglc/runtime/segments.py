"""Runs segments on the engine: text in, text out, with no round trip between a segment's nodes.

A stream is (ids, tail): ids are fixed, the tail is literal text that is not encoded yet. Text is
encoded only when a generation needs it, so every maximal literal run between two generations is
encoded as one string, whatever appends and forks it was written in. Generated ids stay verbatim.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from sglc.errors import Loc, RunError, SglcError
from sglc.ir.plan import (
    ControlText,
    Delta,
    Event,
    ExtendNode,
    ForkNode,
    GenDone,
    GenNode,
    KeepNode,
    Node,
    NodeFailed,
    OpenNode,
    Part,
    ReleaseNode,
    Result,
    Sample,
    Segment,
    SelectDone,
    SelectNode,
    Slot,
    Usage,
    reads,
)
from sglc.ir.target import Tokenizer
from sglc.runtime.detokenize import StopStream
from sglc.runtime.engine import (
    Engine,
    Handle,
    RequestDone,
    RequestFailed,
    RequestId,
    SampleDone,
    Scored,
    Token,
)


@dataclass(frozen=True, slots=True)
class Stream:
    """A prompt state in the runtime: `ids` followed by the encoding of `tail`."""

    ids: tuple[int, ...] = ()
    tail: str = ""


@dataclass(slots=True, eq=False)
class _Run:
    """A segment in progress. `missing[i]` counts what node i still waits for."""

    segment: Segment
    emit: Callable[[Event], None]
    done: Callable[[], None]
    readers: list[list[int]]
    missing: list[int]
    unread: list[int]
    finished: set[int] = field(default_factory=set)
    streams: dict[int, Stream] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    pins: dict[int, Handle] = field(default_factory=dict)
    requests: set[RequestId] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Request:
    """A generation or a choice that the engine works on, for node `node` of `run`."""

    run: _Run
    node: int
    prompt: tuple[int, ...]
    handle: Handle
    texts: list[str]  # of the samples so far, or of the choices
    watched: list[StopStream] = field(default_factory=list)
    samples: dict[int, SampleDone] = field(default_factory=dict)
    choices: tuple[tuple[int, ...], ...] = ()
    scored: Scored | None = None


class Machine:
    """Segments over one engine. Single-threaded, like the engine."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self.engine = engine
        self.submits = 0
        self._tokenizer = tokenizer
        self._bytes = tokenizer.token_bytes()
        self._encode = lru_cache(maxsize=4096)(lambda text: tuple(tokenizer.encode(text)))
        self._runs: dict[_Run, None] = {}  # in progress, in order of arrival
        self._requests: dict[RequestId, _Request] = {}
        self._kept: dict[int, tuple[Stream, Handle]] = {}
        # Handles that a running segment will keep, and the `OpenNode`s that wait for it.
        self._promised: dict[int, list[tuple[_Run, int]]] = {}
        self._unwanted: set[int] = set()  # promised handles that were released already

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do until the next `submit`."""
        return self.engine.idle

    def submit(self, segment: Segment, emit: Callable[[Event], None], done: Callable[[], None]) -> object:
        """Start a segment; `emit` receives its events and `done` is called once after the last.

        Returns a token for `abort`. Both callbacks may be called before this returns.
        """
        self.submits += 1
        readers: list[list[int]] = [[] for _ in segment.nodes]
        missing: list[int] = []
        for index, node in enumerate(segment.nodes):
            inputs = reads(node)
            missing.append(len(inputs))
            for source in inputs:
                readers[source].append(index)
            if isinstance(node, KeepNode):
                self._promised[_bound(node.handle)] = []
        unread = [len(r) for r in readers]
        run = _Run(segment, emit, done, readers, missing, unread)
        self._runs[run] = None
        self._advance(run, [i for i, count in enumerate(missing) if count == 0])
        return run

    def abort(self, run: object) -> None:
        """Stop what is left of a segment: no further events. Streams that it kept stay kept."""
        assert isinstance(run, _Run)
        for request in sorted(run.requests):
            self.engine.abort(request)
            self.engine.release(self._requests.pop(request).handle)
        run.requests.clear()
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
        for event in self.engine.step():
            request = self._requests.get(event.request)
            if request is None:
                continue  # aborted in this very step
            match event:
                case Token():
                    self._token(request, event)
                case SampleDone():
                    request.samples[event.sample] = event
                case Scored():
                    request.scored = event
                case RequestDone():
                    self._finish(event.request, request, event)
                case RequestFailed():
                    self._close(event.request, request)
                    loc = _loc(request.run.segment.nodes[request.node])
                    self._fail(request.run, request.node, located(event.error, loc))

    # -- the dataflow ----------------------------------------------------------------------------

    def _advance(self, run: _Run, ready: Sequence[int]) -> None:
        queue = deque(ready)
        while queue:
            index = queue.popleft()
            node = run.segment.nodes[index]
            try:
                produced = self._execute(run, index, node)
            except SglcError as error:
                self._fail(run, index, located(error, _loc(node)))
                continue
            if produced:
                queue.extend(self._produced(run, index))
        self._end_if_done(run)

    def _end_if_done(self, run: _Run) -> None:
        if len(run.finished) == len(run.segment.nodes) and run in self._runs:
            del self._runs[run]
            run.done()

    def _produced(self, run: _Run, index: int) -> list[int]:
        """Account for a finished node; gives the readers that became ready."""
        run.finished.add(index)
        for source in reads(run.segment.nodes[index]):
            run.unread[source] -= 1
            if run.unread[source] == 0 and source in run.pins:
                self.engine.release(run.pins.pop(source))
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
                run.streams[index] = Stream()
            case OpenNode(handle) if handle in self._promised:
                self._promised[_bound(handle)].append((run, index))
                return False
            case OpenNode(handle):
                if handle not in self._kept:
                    raise RunError("SGLC403", "a stream is continued that is not kept any more")
                run.streams[index] = self._kept[_bound(handle)][0]
            case ExtendNode():
                run.streams[index] = self._extended(run, run.streams[node.stream], node.parts)
            case ForkNode():
                run.streams[index] = run.streams[node.stream]
            case KeepNode(source, handle):
                self._keep(run.streams[source], _bound(handle))
            case ReleaseNode(handle) if handle in self._promised:
                self._unwanted.add(handle)
            case ReleaseNode(handle):
                if handle in self._kept:  # else what would have kept it failed
                    self.engine.release(self._kept.pop(handle)[1])
            case GenNode():
                self._gen(run, index, node)
                return False
            case SelectNode():
                self._select(run, index, node)
                return False
        return True

    def _keep(self, stream: Stream, handle: int) -> None:
        self._kept[handle] = (stream, self.engine.extend(None, stream.ids))
        for run, index in self._promised.pop(handle):
            run.streams[index] = stream
            self._advance(run, self._produced(run, index))
        if handle in self._unwanted:
            self._unwanted.discard(handle)
            self.engine.release(self._kept.pop(handle)[1])

    def _break_promise(self, node: Node, error: SglcError) -> None:
        if isinstance(node, KeepNode):
            self._unwanted.discard(_bound(node.handle))
            for run, index in self._promised.pop(_bound(node.handle), []):
                self._fail(run, index, error)

    def _extended(self, run: _Run, stream: Stream, parts: Sequence[Part]) -> Stream:
        ids, tail = stream.ids, stream.tail
        for part in parts:
            match part:
                case ControlText():
                    ids, tail = (*ids, *self._encode(tail), *part.ids), ""
                case str():
                    tail += part
                case Result(node):
                    tail += run.texts[node]
                case Slot(name):
                    raise AssertionError(f"slot {name} is not bound")
        return Stream(ids, tail)

    # -- generations -----------------------------------------------------------------------------

    def _gen(self, run: _Run, index: int, node: GenNode) -> None:
        stream = run.streams[node.stream]
        prompt = (*stream.ids, *self._encode(stream.tail))
        _check_prompt(prompt, node)
        seed = node.sampling.seed
        assert seed is not None, "a segment's generations carry seeds"
        seeds = [sample_seed(seed, sample) for sample in range(node.sampling.n)]
        handle = self.engine.extend(None, prompt)
        try:
            request = self.engine.gen(handle, node.sampling, seeds, eos_ids=self._tokenizer.eos_ids)
        except SglcError:
            self.engine.release(handle)
            raise
        watched = [StopStream(self._bytes, node.sampling.stop) for _ in seeds]
        texts = [""] * len(seeds)
        self._requests[request] = _Request(run, index, prompt, handle, texts, watched)
        run.requests.add(request)

    def _token(self, request: _Request, event: Token) -> None:
        node = request.run.segment.nodes[request.node]
        assert isinstance(node, GenNode)
        watched = request.watched[event.sample]
        if watched.match is not None:
            return
        self._give(request, event.sample, watched.push(event.id))
        if watched.match is not None:
            self.engine.cut(event.request, event.sample, watched.match.kept_tokens)

    def _give(self, request: _Request, sample: int, text: str) -> None:
        request.texts[sample] += text
        if text and sample == 0:
            request.run.emit(Delta(request.node, text))

    def _select(self, run: _Run, index: int, node: SelectNode) -> None:
        stream = run.streams[node.stream]
        texts = [self._extended(run, Stream(), (choice,)).tail for choice in node.choices]
        for text in texts:
            if not text:
                raise RunError("SGLC404", "a choice of `select` is empty", hint="every choice needs a text")
        whole = [(*stream.ids, *self._encode(stream.tail + text)) for text in texts]
        # Where a choice merges with the text before it, the prefix is cut back to the last common id.
        prompt = (*stream.ids, *self._encode(stream.tail))
        base = prompt[: min(_common(prompt, ids) for ids in whole)]
        _check_prompt(base, node)
        choices = tuple(ids[len(base) :] for ids in whole)
        handle = self.engine.extend(None, base)
        try:
            request = self.engine.score(handle, choices)
        except SglcError:
            self.engine.release(handle)
            raise
        self._requests[request] = _Request(run, index, base, handle, texts, choices=choices)
        run.requests.add(request)

    def _finish(self, id_: RequestId, request: _Request, done: RequestDone) -> None:
        self._close(id_, request)
        run, index = request.run, request.node
        node = run.segment.nodes[index]
        usage = Usage(
            prompt=done.prompt_tokens,
            cached=done.cached_tokens,
            computed=done.computed_tokens,
            scored=done.scored_tokens,
            completion=done.completion_tokens,
            calls=1,
        )
        match node:
            case GenNode():
                samples = tuple(self._sample(request, sample) for sample in range(node.sampling.n))
                match = request.watched[0].match
                run.texts[index] = samples[0].text
                run.streams[index] = Stream((*request.prompt, *samples[0].ids), match.tail if match else "")
                run.emit(GenDone(index, request.prompt, samples, usage))
            case SelectNode():
                assert request.scored is not None
                logprobs = request.scored.logprobs
                scores = tuple(float(np.mean(values)) for values in logprobs)
                choice = int(np.argmax(scores))
                before = run.streams[node.stream]
                run.texts[index] = request.texts[choice]
                run.streams[index] = Stream(before.ids, before.tail + request.texts[choice])
                run.emit(
                    SelectDone(
                        index,
                        request.prompt,
                        choice,
                        request.texts[choice],
                        scores,
                        request.choices,
                        logprobs,
                        usage,
                    )
                )
            case _:
                raise AssertionError(node)
        if run.readers[index]:
            # What follows begins with this stream: its pages stay until the last reader has them.
            run.pins[index] = self.engine.extend(None, run.streams[index].ids)
        self._advance(run, self._produced(run, index))

    def _sample(self, request: _Request, sample: int) -> Sample:
        watched, ended = request.watched[sample], request.samples[sample]
        self._give(request, sample, watched.finish())
        kept = len(ended.ids) if watched.match is None else watched.match.kept_tokens
        finish = ended.finish if watched.match is None else "stop"
        return Sample(request.texts[sample], ended.ids[:kept], finish, ended.logprobs[:kept])

    def _close(self, id_: RequestId, request: _Request) -> None:
        del self._requests[id_]
        request.run.requests.discard(id_)
        self.engine.release(request.handle)


def _bound(handle: int | str | None) -> int:
    assert isinstance(handle, int), f"handle {handle!r} is not bound"
    return handle


def sample_seed(seed: int, sample: int) -> int:
    """The seed of one of n samples (splitmix64 of Steele et al. 2014 over seed and index)."""
    z = (seed + (sample + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def located(error: SglcError, loc: Loc | None) -> SglcError:
    """`error` with a place, if it has none."""
    if error.loc is not None or loc is None:
        return error
    return type(error)(error.code, error.message, loc, note=error.note, hint=error.hint)


def _loc(node: Node) -> Loc | None:
    return node.loc if isinstance(node, GenNode | SelectNode) else None


def _check_prompt(prompt: Sequence[int], node: GenNode | SelectNode) -> None:
    if not prompt:
        raise RunError(
            "SGLC402", f"`{node.site.name}` has no text before it", node.loc,
            note="this model has no token that begins an empty text",
            hint="append some text first",
        )  # fmt: skip


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    limit = min(len(a), len(b))
    for i in range(limit):
        if a[i] != b[i]:
            return i
    return limit
