"""A back end whose answers depend on everything that was asked: prompt, site, seed, form, number of the sample.

So a prompt that is wrong by one character, or a seed that is another, shows in every answer behind it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import blake2b
from random import Random
from typing import Any

from sglc.backends.scripted import Asked, ScriptedBackend
from sglc.frontend.outputs.finite_regex import members
from sglc.ir.core import Site
from sglc.ir.plan.events import Delta, Event, GenDone
from sglc.ir.plan.segment import GenNode, Segment, SelectNode
from sglc.ir.target import Target

WORDS = ("yes", "no", "stop", "a", "Alpha", "beta", "7", "12", "Rome", "done", "x,y", "ok.", "end\nline")
_NUMBERS = ("7", "12", "3", "42", "100", "3.5", "0.25")
_TARGET = ScriptedBackend(lambda _: None).target  # its chat template is compiled once
_PIECE = 3  # characters of a streamed piece


@dataclass(frozen=True, slots=True)
class Call:
    """What the back end was asked, once."""

    site: str
    kind: str
    prompt: str
    seed: int | None
    wanted: Mapping[str, Any]
    texts: tuple[str, ...]
    loc: str


class HashBackend(ScriptedBackend):
    """`calls_made` are all calls in the order in which they were answered."""

    def __init__(self) -> None:
        super().__init__(self._answered)
        self._nodes: dict[str, GenNode | SelectNode] = {}
        self._said: dict[str, list[str]] = {}
        self._prompts: dict[str, str] = {}
        self._lock = threading.Lock()
        self.calls_made: list[Call] = []

    @cached_property
    def target(self) -> Target:
        return _TARGET

    async def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        keys = [self._noted(node) for node in segment.nodes]
        marked = replace(
            segment,
            nodes=tuple(
                replace(node, site=Site(key, (), "asked")) if key else node  # type: ignore[call-arg]
                for node, key in zip(segment.nodes, keys, strict=True)
            ),
        )
        async for event in super().submit(marked, streams=streams):
            key = keys[event.node]
            self._ended(key)
            if isinstance(event, GenDone):
                text = event.samples[0].text
                if streams:
                    for at in range(0, len(text), _PIECE):
                        yield Delta(event.node, text[at : at + _PIECE])
                event = _with_ids(event, self._prompts[key])
            yield event

    def _noted(self, node: object) -> str:
        if not isinstance(node, GenNode | SelectNode):
            return ""
        with self._lock:
            key = f"call {len(self._nodes)}"
            self._nodes[key] = node
            self._said[key] = []
        return key

    def _answered(self, asked: Asked) -> str:
        key = asked.site.function
        node = self._nodes[key]
        self._prompts[key] = asked.prompt
        seed = _seed(node)
        wanted = (
            asked.choices if isinstance(node, SelectNode) else (node.sampling.regex, node.sampling.json_schema)
        )
        told = f"{asked.prompt}\0{node.site}\0{seed}\0{wanted}\0{asked.sample}"
        random = Random(blake2b(told.encode("utf-8", "surrogatepass"), digest_size=8).digest())
        text = _text(random, asked, node)
        self._said[key].append(text)
        return text

    def _ended(self, key: str) -> None:
        node = self._nodes[key]
        if isinstance(node, SelectNode):
            wanted: dict[str, Any] = {"choices": list(node.choices), "method": node.method}
        else:
            wanted = asdict(node.sampling)
        self.calls_made.append(
            Call(
                str(node.site),
                type(node).__name__,
                self._prompts.get(key, ""),
                _seed(node),
                {name: value for name, value in wanted.items() if name != "seed"},
                tuple(self._said[key]),
                f"{node.loc.line}:{node.loc.column}",
            )
        )


def _seed(node: GenNode | SelectNode) -> int | None:
    if isinstance(node, SelectNode):
        return None
    return node.seed if node.sampling.seed is None else node.sampling.seed


def _with_ids(event: GenDone, prompt: str) -> GenDone:
    """The event as a model would have given it: with ids, and log-probabilities that depend on the place."""
    samples = tuple(
        replace(
            sample,
            ids=tuple(map(ord, sample.text)),
            logprobs=tuple(-(1 + (at + len(prompt)) % 7) / 8 for at in range(len(sample.text))),
        )
        for sample in event.samples
    )
    return replace(event, prompt_ids=tuple(map(ord, prompt[-4:])), samples=samples)


def _text(random: Random, asked: Asked, node: GenNode | SelectNode) -> str:
    if isinstance(node, SelectNode):
        return random.choice(asked.choices)
    sampling = node.sampling
    if sampling.json_schema is not None:
        return json.dumps(_data(random, json.loads(sampling.json_schema)))
    if sampling.regex is not None:
        known = members(sampling.regex)
        if known is not None:
            return random.choice(known)
        fitting = [
            text for text in (*_NUMBERS, *WORDS, '"word"') if re.fullmatch(sampling.regex, text, re.ASCII)
        ]
        return random.choice(fitting)
    count = random.choice((1, 1, 2, 3, 4))
    return random.choice(("", " ")) + " ".join(random.choice(WORDS) for _ in range(count))


def _data(random: Random, schema: Mapping[str, Any]) -> Any:
    """A value of a schema."""
    if "enum" in schema:
        return random.choice(schema["enum"])
    if "anyOf" in schema:
        return _data(random, random.choice(schema["anyOf"]))
    match schema.get("type"):
        case "object":
            return {name: _data(random, part) for name, part in schema.get("properties", {}).items()}
        case "array":
            return [_data(random, schema["items"]) for _ in range(random.randrange(3))]
        case "integer":
            return random.randrange(20)
        case "number":
            return random.choice((0.5, 2.0, 7.25))
        case "boolean":
            return random.random() < 0.5
        case "null":
            return None
        case _:
            return random.choice(("Rome", "Ann", "blue sky"))
