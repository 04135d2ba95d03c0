"""A request's work on the back end: its segments, and the events that come of it.

Closing an iterator of this file, as a request does that is cancelled, aborts what is left of its segments.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from sglc.errors import Loc, SglcError
from sglc.ir.core import Site
from sglc.ir.plan.backend import Backend
from sglc.ir.plan.events import Delta, Event, GenDone, NodeFailed, Sample, TokenLogprob, Usage, batches_of
from sglc.ir.plan.hints import Hints
from sglc.ir.plan.segment import ExtendNode, GenNode, Node, OpenNode, Segment
from sglc.ir.sampling import Sampling
from sglc.serve.access_log import SPENT
from sglc.serve.logprobs import Tops
from sglc.serve.metrics import Spent
from sglc.serve.problems import Refusal, refusal_of
from sglc.serve.prompts import ServedPrompt
from sglc.serve.sampling import seed_of

_NO_USAGE = Usage()
_AT_ONCE = 8_192  # ids of several prompts: while a runtime takes in more, the texts of others wait


class ServedBackend(Backend, Protocol):
    """A back end that HTTP stands in front of; its target has a tokenizer."""

    @property
    def folder(self) -> Path | None:
        """With the model's files; None without any."""

    def flush_cache(self) -> None:
        """Forget every cached prefix that no run uses now. Waits until it is done."""

    def server_info(self) -> dict[str, Any]:
        """Model, device, sizes and counters, as plain data. Waits until the model is loaded."""

    def recent_info(self) -> dict[str, Any] | None:
        """What `server_info` said less than a second ago, at once; None: it is to be asked."""


@dataclass(frozen=True, slots=True)
class Work:
    """Prompts, each to be continued `sampling.n` times. Choices are numbered prompt by prompt.

    `endpoint` names the sites: `chat`, `completions` or `generate`. `priority`, `share`, `namespace`, `hints`
    and `room` are the segment's. `names` gives what the request calls fields of `sampling` that it has by other
    names.
    """

    endpoint: str
    prompts: Sequence[ServedPrompt]
    sampling: Sampling
    priority: int = 0
    share: str = ""
    namespace: str = ""
    hints: Hints | None = None
    room: int = 0
    names: Callable[[], Mapping[str, str]] = dict

    @property
    def choices(self) -> int:
        """Texts that come of it."""
        return len(self.prompts) * self.sampling.n

    def prompt_of(self, choice: int) -> ServedPrompt:
        """What a choice continues."""
        return self.prompts[choice // self.sampling.n]

    def refusal_of(self, error: SglcError) -> Refusal:
        """What a failed node means for the request, by the request's own names."""
        refusal = refusal_of(error)
        refusal.param = self.names().get(refusal.param or "", refusal.param)
        return refusal


async def done(backend: ServedBackend, work: Work) -> list[GenDone]:
    """The ends of all generations, one a prompt.

    Raises:
        Refusal: one failed; the others are aborted.
    """
    segments = _segments(work, [(work.sampling, ())])
    nodes = _nodes(segments)
    ended = {}
    spent = _counted(work)
    async with aclosing(_events(backend, segments, streams=False)) as batches:
        async for batch in batches:
            for event in batch:
                if isinstance(event, NodeFailed):
                    raise work.refusal_of(event.error)
                if isinstance(event, GenDone):
                    _account(work, nodes[event.node], event.usage, spent)
                    ended[event.node] = event
    return [ended[node] for node in sorted(ended)]


class Piece(NamedTuple):
    """More of a choice. The pieces of a choice add up to it; its last one says why it `ended`.

    `begins` is set in the first, which has what was asked for of the prompt, and `last` in the last: it is the
    whole sample.
    """

    choice: int
    text: str
    tokens: tuple[TokenLogprob, ...]
    tops: Tops
    begins: bool
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    prompt_tops: Tops = ()
    ended: str | None = None
    last: Sample | None = None
    usage: Usage = _NO_USAGE
    cached: int = 0  # ids of the prompt, as far as they are known


@dataclass(slots=True)
class _Progress:
    """How much of a choice has been told, and when (of `perf_counter`) its last tokens were."""

    characters: int = 0
    tokens: int = 0
    begun: bool = False
    last_s: float = 0.0


class Choices:
    """The choices of `work`, each sample a generation of its own, with the seed that it has among n.

    Args:
        shown: whether a client gets them as they come, so that it matters when that is.
    """

    def __init__(self, work: Work, *, shown: bool = True) -> None:
        self._work, self._shown = work, shown
        sampling = work.sampling
        assert sampling.seed is not None
        seeds = [seed_of(sampling.seed, sample) for sample in range(sampling.n)]
        each = [(replace(sampling, n=1, seed=seed), (at,) * (sampling.n > 1)) for at, seed in enumerate(seeds)]
        self._segments = _segments(work, each)
        self._nodes = _nodes(self._segments)
        asked = [at for at, node in enumerate(self._nodes) if isinstance(node, GenNode)]
        self._choice_of = {node: choice for choice, node in enumerate(asked)}
        self._told = [_Progress() for _ in self._choice_of]
        self._spent = _counted(work)
        self.left = len(self._told)  # that have not ended
        self.last_s = perf_counter()  # when something has come

    def begin(self, backend: ServedBackend) -> AsyncGenerator[Sequence[Event], None]:
        """Their events, which are for `pieces`."""
        return _events(backend, self._segments, streams=True)

    def pieces(self, batch: Sequence[Event]) -> tuple[list[Piece], Refusal | None]:
        """What has come together, and why nothing more is wanted of what comes: one has failed."""
        spent = self._spent
        self.last_s = now_s = perf_counter()
        made: list[Piece] = []
        for event in batch:
            if isinstance(event, NodeFailed):
                return made, self._work.refusal_of(event.error)
            assert isinstance(event, Delta | GenDone)  # nothing is chosen
            if isinstance(event, GenDone):
                _account(self._work, self._nodes[event.node], event.usage, spent)
                self.left -= 1
            choice = self._choice_of[event.node]
            told = self._told[choice]
            piece = _piece(choice, event, told)
            if spent.first_s is None and self._shown and (piece.text or piece.tokens):
                spent.first_s = now_s
            if (
                count := len(piece.tokens)
            ) and self._shown:  # those that come together have the time since the last ones
                if told.last_s:
                    spent.between.observe((now_s - told.last_s) / count, count)
                told.last_s = now_s
            made.append(piece)
        return made, None


async def pieces(
    backend: ServedBackend, work: Work, *, shown: bool = True
) -> AsyncGenerator[list[Piece], None]:
    """All choices as they come, what is there already together; `shown` as of `Choices`.

    Raises:
        Refusal: one failed; the others are aborted.
    """
    choices = Choices(work, shown=shown)
    async with aclosing(choices.begin(backend)) as batches:
        async for batch in batches:
            made, refusal = choices.pieces(batch)
            if made:
                yield made
            if refusal is not None:
                raise refusal


def _piece(choice: int, event: Delta | GenDone, told: _Progress) -> Piece:
    """What `event` says that was not told yet."""
    begins, told.begun = not told.begun, True
    if isinstance(event, Delta):
        told.characters += len(event.text)
        told.tokens += len(event.tokens)
        return Piece(
            choice, event.text, event.tokens, event.top_logprobs, begins, event.prompt_logprobs,
            event.prompt_top_logprobs, cached=event.cached,
        )  # fmt: skip
    sample = event.samples[0]
    prompt = (event.prompt_logprobs, event.prompt_top_logprobs) if begins else ((), ())
    return Piece(
        choice,
        sample.text[told.characters :],
        tokens_of(sample, told.tokens),
        tops_of(sample)[told.tokens :],
        begins,
        *prompt,
        ended=sample.finish,
        last=sample,
        usage=event.usage,
        cached=event.usage.cached,
    )


def tokens_of(sample: Sample, first: int = 0) -> tuple[TokenLogprob, ...]:
    """The kept tokens of a sample, from `first` on; their texts are the server's to add."""
    kept = zip(sample.logprobs[first:], sample.ids[first:], strict=True)
    return tuple([(logprob, id_, None) for logprob, id_ in kept])


def tops_of(sample: Sample) -> Tops:
    """The likeliest tokens at the places of `tokens_of`, if asked for."""
    return sample.top_logprobs[: len(sample.ids)]  # without a token there is still a place


def end_of(sample: Sample | None) -> tuple[tuple[TokenLogprob, ...], Tops]:
    """The token that ended a sample and is not kept, if one did, with the likeliest ones at its place."""
    if sample is None or sample.end is None:
        return (), ()
    return (sample.end,), (sample.end_top,)


def _segments(work: Work, each: Sequence[tuple[Sampling, tuple[int, ...]]]) -> list[Segment]:
    """Each prompt is continued once for `each`. Prompts of many ids are shared out among several segments."""
    parts: list[list[Node]] = []
    left = 0
    for number, prompt in enumerate(work.prompts):
        left -= len(prompt.ids)
        if left < 0 or not parts:
            parts.append([])
            left = _AT_ONCE - len(prompt.ids)
        nodes = parts[-1]
        nodes += (OpenNode(), ExtendNode(len(nodes), (prompt.part,)))
        stream = len(nodes) - 1
        nodes += [_gen(work, stream, number, sampling, branch) for sampling, branch in each]
    return [_segment(work, nodes) for nodes in parts]


def _nodes(segments: Sequence[Segment]) -> list[Node]:
    """All nodes, as `_events` numbers them."""
    return [node for segment in segments for node in segment.nodes]


def _events(
    backend: ServedBackend, segments: Sequence[Segment], *, streams: bool
) -> AsyncGenerator[Sequence[Event], None]:
    """What comes of the segments, side by side. Nodes are numbered through all of them."""
    if len(segments) == 1:
        return batches_of(backend.submit(segments[0], streams=streams))
    return _side_by_side(backend, segments, streams)


async def _side_by_side(
    backend: ServedBackend, segments: Sequence[Segment], streams: bool
) -> AsyncGenerator[Sequence[Event], None]:
    come: asyncio.Queue[Sequence[Event] | asyncio.Task[None]] = asyncio.Queue()  # a task when it is over

    async def read(segment: Segment, first: int) -> None:
        async with aclosing(batches_of(backend.submit(segment, streams=streams))) as batches:
            async for batch in batches:
                come.put_nowait([replace(event, node=first + event.node) for event in batch])

    tasks: list[asyncio.Task[None]] = []
    first = 0
    try:
        for segment in segments:
            tasks.append(asyncio.create_task(read(segment, first)))
            tasks[-1].add_done_callback(come.put_nowait)
            first += len(segment.nodes)
            await asyncio.sleep(0)  # others have their turn
        left = len(tasks)
        while left:
            each = await come.get()
            if isinstance(each, asyncio.Task):
                each.result()
                left -= 1
            else:
                yield each
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _gen(work: Work, stream: int, number: int, sampling: Sampling, branch: tuple[int, ...]) -> GenNode:
    site = Site("serve", branch, work.endpoint, number)
    return GenNode(stream, site, sampling, Loc(f"<{work.endpoint}>", 1))


def _counted(work: Work) -> Spent:
    """What the request of this task has spent, now that it makes text."""
    spent = SPENT.get()
    spent.prompt, spent.completion = sum(len(prompt.ids) for prompt in work.prompts), 0
    return spent


def _segment(work: Work, nodes: Sequence[Node]) -> Segment:
    return Segment(
        tuple(nodes),
        priority=work.priority,
        share=work.share,
        namespace=work.namespace,
        hints=work.hints if work.choices == 1 else None,  # which are of one text
        room=work.room,
    )


def _account(work: Work, node: Node, usage: Usage, spent: Spent) -> None:
    """What a generation took. A prompt counts once, with the first text that continues it."""
    assert isinstance(node, GenNode)
    assert spent.completion is not None
    spent.completion += usage.completion
    if not any(node.site.fork):
        size = len(work.prompts[node.site.occurrence].ids)
        spent.read += size
        spent.cached += min(usage.cached, size)  # what was read twice counts once


def made_by_each(end: GenDone) -> list[int]:
    """Tokens that each sample took; they add up to those of the generation.

    Where a back end tells of all together, all are the last one's.
    """
    made = [sample.made or 0 for sample in end.samples]
    made[-1] += end.usage.completion - sum(made)
    return made
