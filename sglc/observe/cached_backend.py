"""A back end whose deterministic answers are looked up in a `ResponseCache` before they are asked for.

An answer is deterministic if it is greedy, or drawn under a seed that somebody chose. What it depends on is its
key: the model and how it is run, the prompt (of ids that a model made, these), and everything of the
generation that is no default.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import cached_property
from hashlib import sha256

from sglc.execution.answers.known_answers import is_whole, submit_unknown
from sglc.execution.answers.prompts import Followed, Inputs, Streams
from sglc.ir.plan.backend import Backend, BackendWrapper
from sglc.ir.plan.events import Event, GenDone, SelectDone, Usage
from sglc.ir.plan.segment import GenNode, Segment, SelectNode
from sglc.observe.replay.recording_backend import RecordingBackend
from sglc.observe.replay.tape import answer_json, answer_of
from sglc.observe.response_cache import ResponseCache

_HIT = Usage(cache_hits=1)


class CallCache:
    """The cache of one call of `run` or `run_batch`, and of the programs that it calls.

    Args:
        seeded: somebody chose the seed, so samples are deterministic, too.
    """

    def __init__(self, answers: ResponseCache, *, seeded: bool) -> None:
        self.answers = answers
        self.seeded = seeded
        self.streams = Streams()

    def backend(self, backend: Backend) -> Backend:
        """`backend`, or what a recording of it notes, with this cache in front of it."""
        inner = backend
        while isinstance(inner, CachedBackend | RecordingBackend):
            if isinstance(inner, CachedBackend) and inner.cache is self:
                return backend
            inner = inner.inner
        return CachedBackend(backend, self)


class CachedBackend(BackendWrapper):
    """A back end that is asked only for what is not in the cache."""

    def __init__(self, inner: Backend, cache: CallCache) -> None:
        super().__init__(inner)
        self.cache = cache

    @cached_property
    def model(self) -> str:
        """The model whose answers these are, and how it is run."""
        target = self.inner.target
        name = re.sub(r"//[^/@]*@", "//", target.name)  # no password of a server
        tokenizer = None if target.tokenizer is None else target.tokenizer.hash
        parts = (name, getattr(self.inner, "identity", ""), target.protocol, tokenizer)
        return " ".join(str(part) for part in parts if part)

    def start(self) -> None:
        """Where there are answers of the model, it is loaded when the first one is missing."""
        if not self.cache.answers.knows(self.model):
            self.inner.start()

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        """As that of the back end."""
        followed, keys = self.cache.streams.follow(segment), dict[int, bytes]()

        def known(index: int, node: GenNode | SelectNode, inputs: Inputs) -> GenDone | SelectDone | None:
            if not self._is_deterministic(node):
                return None
            key = keys[index] = self._key(node, inputs)
            found = self.cache.answers.get(key)
            return None if found is None else replace(answer_of(found, index), usage=_HIT)

        events = submit_unknown(self.inner, self.cache.streams, followed, known, streams=streams)
        return self._storing(followed, keys, events)

    async def _storing(
        self, followed: Followed, keys: dict[int, bytes], events: AsyncIterator[Event]
    ) -> AsyncIterator[Event]:
        try:
            async for event in events:
                if isinstance(event, GenDone | SelectDone) and event.usage is not _HIT:
                    node = followed.segment.nodes[event.node]
                    assert isinstance(node, GenNode | SelectNode)
                    known = followed.may_be_asked(event.node)  # else it goes on behind what somebody else made
                    if known and self._is_deterministic(node) and is_whole(event):
                        key = keys.get(event.node) or self._key(node, followed.inputs(event.node))
                        self.cache.answers.put(key, self.model, answer_json(event))
                yield event
        finally:
            if (close := getattr(events, "aclose", None)) is not None:
                await close()

    def _is_deterministic(self, node: GenNode | SelectNode) -> bool:
        sampling = node.sampling if isinstance(node, GenNode) else None
        if self.target.is_deterministic(sampling):
            return True
        sampled = sampling is not None and sampling.temperature > 0
        return sampled and self.cache.seeded and self.target.takes.seed

    def _key(self, node: GenNode | SelectNode, inputs: Inputs) -> bytes:
        seed = None
        if isinstance(node, GenNode) and node.sampling.temperature > 0 and node.sampling.seed is None:
            seed = node.seed
        site = str(node.site) if getattr(self.inner, "answers_by_site", False) else ""
        told = json.dumps([self.model, inputs.hash, inputs.made, seed, site])
        return sha256(told.encode()).digest()
