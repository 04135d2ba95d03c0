"""Answers that were written beforehand: the same back end protocol without a model, for tests and documents.

Invariants: an answer depends on the generation's site, its prompt and the sample's number, never on the
order in which generations come. What no rule answers is an error. A token is a word with the white
space before it, and a picture stands in a prompt as `<image>`.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from sglc.errors import BackendError, RunError, SglcError, UsageError, shown
from sglc.ir.core import Site
from sglc.ir.made_often import made_often
from sglc.ir.plan.dataflow import choice_texts, failed_before, filled
from sglc.ir.plan.events import Delta, Event, EventBatches, GenDone, NodeFailed, Sample, SelectDone, Usage
from sglc.ir.plan.segment import (
    ASKED,
    ExtendNode,
    ForkNode,
    GenNode,
    ImagePart,
    KeepNode,
    Made,
    OpenNode,
    Part,
    ReleaseNode,
    Segment,
    SelectNode,
    reads,
)
from sglc.ir.target import ControlText, Objects, Target
from sglc.runtime.tokenizer.chat_template import ChatTemplate

_HANDLES = (KeepNode, OpenNode, ReleaseNode)
_WORD = re.compile(r"\s*\S+|\s+\Z")
_CONTROL = ("<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@made_often
@dataclass(frozen=True, slots=True)
class Asked:
    """One sample that is wanted. `choices` is empty for a generation."""

    site: Site
    prompt: str
    sample: int = 0
    choices: tuple[str, ...] = ()


Answer = Callable[[Asked], str | None]  # None: there is no answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An answer, and when it is given: every condition that is there must hold.

    `name`, `function` (with or without arms and iterations), `branch` and `occurrence` are those of the site,
    `prompt` a regular expression that is searched in the prompt, `sample` the number of the sample.
    """

    text: str
    name: str | None = None
    function: str | None = None
    branch: tuple[int, ...] | None = None
    occurrence: int | None = None
    sample: int | None = None
    prompt: str | None = None

    def holds(self, asked: Asked) -> bool:
        """Whether this rule answers."""
        site = asked.site
        return (
            self.name in (None, site.name)
            and (self.function is None or self.function in (site.function, site.written))
            and self.branch in (None, site.fork)
            and self.occurrence in (None, site.occurrence)
            and self.sample in (None, asked.sample)
            and (not asked.choices or self.text in asked.choices)
            and (self.prompt is None or re.search(self.prompt, asked.prompt) is not None)
        )


def by_rules(rules: Sequence[Rule]) -> Answer:
    """The answer of the first rule that holds."""
    return lambda asked: next((rule.text for rule in rules if rule.holds(asked)), None)


def read_script(path: str) -> ScriptedBackend:
    """What answers by the rules of a JSON file.

    The file is a list of objects with the fields of `Rule`, or an object of `rules` and `word_s`. A field
    that is `null` is not there.

    Raises:
        UsageError: SGLC002 no such file; SGLC008 it is no JSON; SGLC036 it is no script.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        data = json.loads(text)
    except OSError as error:
        raise UsageError("SGLC002", f"`{path}` cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError("SGLC008", f"`{path}` is no JSON: {error}") from None
    try:
        rules, word_s = _script({"rules": data} if isinstance(data, list) else data)
    except ValueError as error:
        raise UsageError(
            "SGLC036", f"`{path}` is no script: {error}",
            hint='write rules such as `[{"name": "answer", "text": "Paris"}]`',
        ) from None  # fmt: skip
    identity = sha256(text.encode()).hexdigest()[:12]
    return ScriptedBackend(by_rules(rules), word_s=word_s, identity=identity)


def _script(data: Any) -> tuple[list[Rule], float]:
    """The rules of a script, and the seconds of a word; raises ValueError: it is none."""
    if not isinstance(data, dict) or not isinstance(data.get("rules"), list):
        raise ValueError("it has no list of rules")
    unknown = next((name for name in data if name not in ("rules", "word_s")), None)
    if unknown is not None:
        raise ValueError(f"beside `rules` and `word_s` it has `{shown(unknown)}`")
    word_s = data.get("word_s", 0.0)
    if type(word_s) not in (int, float) or not 0 <= word_s < math.inf:
        raise ValueError(f"`word_s` is `{shown(repr(word_s))}`, and not a number of seconds")
    return [_rule(item, f"rule {number}") for number, item in enumerate(data["rules"])], float(word_s)


def _rule(item: Any, which: str) -> Rule:
    if not isinstance(item, dict):
        raise ValueError(f"{which} is no object")
    given = {name: value for name, value in item.items() if value is not None}
    if "text" not in given:
        raise ValueError(f"{which} has no `text`")
    for name, value in given.items():
        if name not in _FIELDS:
            raise ValueError(f"{which} has a field `{shown(name)}`; there are: {', '.join(_FIELDS)}")
        what, fits = _FIELDS[name]
        if not fits(value):
            raise ValueError(f"`{name}` of {which} is `{shown(repr(value))}`, and not {what}")
    branch = given.pop("branch", None)
    return Rule(**given, branch=None if branch is None else tuple(branch))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_pattern(value: Any) -> bool:
    try:
        return isinstance(value, str) and re.compile(value) is not None
    except (re.error, OverflowError, RecursionError):
        return False


_FIELDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "text": ("a text", _is_text),
    "name": ("a text", _is_text),
    "function": ("a text", _is_text),
    "branch": ("a list of numbers", lambda value: isinstance(value, list) and all(map(_is_count, value))),
    "occurrence": ("a number from 0", _is_count),
    "sample": ("a number from 0", _is_count),
    "prompt": ("a regular expression", _is_pattern),
}


class Words:
    """The tokenizer of scripted answers: ids are given to words as they come; the template is ChatML."""

    hash = "words"
    bos_id = None
    eos_ids = (1,)
    has_template = True
    template = _TEMPLATE
    named: Mapping[str, str] = {}
    control: Mapping[int, str] = dict(enumerate(_CONTROL))

    def __init__(self) -> None:
        self._ids = {text: i for i, text in enumerate(_CONTROL)}
        self._texts = list(_CONTROL)

    def encode(self, text: str) -> list[int]:
        return [self._id(word) for word in _WORD.findall(text)]

    encode_within = encode

    def cut(self, text: str) -> int:
        return 0

    def _id(self, word: str) -> int:
        # Words that look like control tokens are words.
        key = f" {word}"
        if key not in self._ids:
            self._ids[key] = len(self._texts)
            self._texts.append(word)
        return self._ids[key]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._texts[i] for i in ids if i >= len(_CONTROL))

    def token_bytes(self) -> list[bytes]:
        return [b"", b"", *(text.encode() for text in self._texts[len(_CONTROL) :])]

    def split_control(self, markup: str) -> tuple[str | ControlText, ...]:
        parts = re.split(r"(<\|im_start\|>|<\|im_end\|>)", markup)
        return tuple(ControlText(p, (_CONTROL.index(p),)) if p in _CONTROL else p for p in parts if p)

    def render(self, messages: Objects, *, generate: bool, tools: Objects | None = None) -> str:
        return _chat_template().render(messages, generate=generate, tools=tools)


@cache
def _chat_template() -> ChatTemplate:
    return ChatTemplate(_TEMPLATE, {})


class ScriptedBackend:
    """Gives the answers of `answer`, word by word if a word takes time.

    Args:
        answer: the text of a sample, stop strings and what is behind them included; called in the
            executor's thread.
        word_s: seconds that a word of an answer takes.
        concurrency: as in `Target`.
        identity: tells its answers from those of others.
    """

    answers_by_site = True
    folder = None  # there are no files of a model
    cache_tokens = sys.maxsize  # no prompt is computed

    def __init__(
        self, answer: Answer, *, word_s: float = 0.0, concurrency: int = 16, identity: str = ""
    ) -> None:
        self.identity = identity
        self._answer = answer
        self.word_s = word_s
        self._concurrency = concurrency
        self._kept: dict[int, str] = {}
        self._coming: dict[int, asyncio.Event] = {}  # streams that a segment which runs is to keep
        self.calls = 0  # generations and choices asked for
        self.submits = 0

    @cached_property
    def target(self) -> Target:
        """It continues any text and runs anything."""
        return Target(
            "scripted",
            Words(),
            continues_text=True,
            images=True,
            concurrency=self._concurrency,
            holds_forms=False,
        )

    def start(self) -> None:
        """Nothing has to be loaded."""

    def close(self) -> None:
        """Nothing has to be given back."""

    @property
    def kept(self) -> int:
        """Streams that are kept now."""
        return len(self._kept)

    def flush_cache(self) -> None:
        """Nothing is cached."""

    def server_info(self) -> dict[str, Any]:
        """What was asked for so far."""
        return {"backend": "scripted", "calls": self.calls, "submits": self.submits, "kept": self.kept}

    def recent_info(self) -> dict[str, Any]:
        """The same: nobody has to be asked."""
        return self.server_info()

    def submit(self, segment: Segment, *, streams: bool = True) -> AsyncIterator[Event]:
        """Answer a segment, wave by wave: what does not wait for each other is answered together.

        Without `streams` there are no deltas.
        """
        handles = any(isinstance(node, _HANDLES) and node.handle is not None for node in segment.nodes)
        return EventBatches((self._in_turn if handles else self._events_of)(segment, streams))

    async def _in_turn(self, segment: Segment, streams: bool) -> AsyncGenerator[Sequence[Event], None]:
        """Begin when the segments before have kept what this one goes on behind, or gives back."""
        keeps = [node.handle for node in segment.nodes if isinstance(node, KeepNode)]
        wanted = [node.handle for node in segment.nodes if isinstance(node, OpenNode | ReleaseNode)]
        before = [self._coming[handle] for handle in wanted if handle in self._coming]
        self._coming.update((handle, asyncio.Event()) for handle in keeps if isinstance(handle, int))
        try:
            for coming in before:
                await coming.wait()
            async with aclosing(self._events_of(segment, streams)) as events:
                async for batch in events:
                    yield batch
        finally:
            for handle in keeps:
                self._come(handle)

    def _come(self, handle: int | str) -> None:
        """A stream is kept, or never will be."""
        if isinstance(handle, int) and (coming := self._coming.pop(handle, None)) is not None:
            coming.set()

    async def _events_of(self, segment: Segment, streams: bool) -> AsyncGenerator[Sequence[Event], None]:
        self.submits += 1
        nodes = segment.nodes
        prompts: list[str] = [""] * len(nodes)  # the stream behind each node
        texts: dict[int, str] = {}
        failed: dict[int, SglcError] = {}
        waiting: Sequence[int] = range(len(nodes))
        while waiting:
            asked: dict[int, tuple[Event, str]] = {}  # what this wave waits for
            later: list[int] = []
            for index in waiting:
                node = nodes[index]
                if failed or later or asked:
                    cause = failed_before(node, failed)
                    if cause is not None:
                        failed[index] = cause
                        yield [NodeFailed(index, cause)]
                        continue
                    if any(source in asked or source in later for source in reads(node)):
                        later.append(index)
                        continue
                try:
                    if not isinstance(node, ASKED):
                        self._follow(index, node, prompts, texts)
                        continue
                    event, text = self._ask(index, node, prompts[node.stream], texts)
                except SglcError as error:
                    failed[index] = error
                    yield [NodeFailed(index, error)]
                    continue
                prompts[index], texts[index] = prompts[node.stream] + text, text
                if self.word_s:
                    asked[index] = event, text
                else:
                    yield [event]
            if asked:
                async for events in self._spoken(asked):
                    told = events if streams else [event for event in events if not isinstance(event, Delta)]
                    if told:
                        yield told
            waiting = later

    async def _spoken(self, asked: Mapping[int, tuple[Event, str]]) -> AsyncIterator[list[Event]]:
        """The texts of a wave word by word, all at the same pace; words whose time is past come together."""
        words = {index: _WORD.findall(text) for index, (_, text) in asked.items()}
        loop = asyncio.get_running_loop()
        begin_s, said, last = loop.time(), 0, max(map(len, words.values()), default=0)
        while said < last:
            await asyncio.sleep(begin_s + (said + 1) * self.word_s - loop.time())
            due = min(max(int((loop.time() - begin_s) / self.word_s), said + 1), last)
            yield [
                Delta(index, spoken[number])
                for number in range(said, due)
                for index, spoken in words.items()
                # A choice comes as a whole.
                if number < len(spoken) and isinstance(asked[index][0], GenDone)
            ]
            said = due
        yield [event for event, _ in asked.values()]

    def _follow(self, index: int, node: object, prompts: list[str], texts: Mapping[int, str]) -> None:
        match node:
            case ExtendNode(stream, parts):
                prompts[index] = prompts[stream]
                for part in parts:
                    prompts[index] += part if isinstance(part, str) else _shown(part, texts)
            case OpenNode(None):
                prompts[index] = ""
            case OpenNode(int() as handle):
                if handle not in self._kept:  # what would have kept it failed
                    raise RunError("SGLC403", "a stream is continued that is not kept any more")
                prompts[index] = self._kept[handle]
            case ForkNode(stream):
                prompts[index] = prompts[stream]
            case KeepNode(stream, int() as handle):
                self._kept[handle] = prompts[stream]
                self._come(handle)
            case ReleaseNode(handle):
                self._kept.pop(handle, None)  # what would have kept it may have failed
            case _:
                raise AssertionError(node)

    def _ask(
        self, index: int, node: GenNode | SelectNode, prompt: str, texts: Mapping[int, str]
    ) -> tuple[Event, str]:
        """The event that ends a generation, and its text."""
        self.calls += 1
        count = len(prompt.split())
        if isinstance(node, SelectNode):
            choices = choice_texts(node, texts)
            chosen = self._say(Asked(node.site, prompt, 0, choices), node)
            usage = Usage(prompt=count, computed=count, calls=1)
            done = SelectDone(index, (), choices.index(chosen), chosen, (), (), (), usage, decided="match")
            return done, chosen
        cut: list[tuple[str, str]] = []
        for number in range(node.sampling.n):
            cut.append(_cut(self._say(Asked(node.site, prompt, number), node), node))
        return _done(index, tuple(cut), count), cut[0][0]

    def _say(self, asked: Asked, node: GenNode | SelectNode) -> str:
        text = self._answer(asked)
        if text is None or (asked.choices and text not in asked.choices):
            what = f"none of its choices {asked.choices!r}" if asked.choices else "nothing"
            raise BackendError(
                "SGLC521", f"the script has {what} for `{asked.site}`", node.loc,
                note=f"the prompt ends in {asked.prompt[-60:]!r}",
            )  # fmt: skip
        return text


def _shown(part: Part, texts: Mapping[int, str]) -> str:
    """A part of a prompt, as the script sees it."""
    match filled(part, texts):
        case (str() as text) | ControlText(text) | Made(text):
            return text
        case ImagePart():
            return "<image>"
        case _:
            raise AssertionError(part)


@lru_cache(maxsize=4096)
def _done(index: int, samples: tuple[tuple[str, str], ...], prompt: int) -> GenDone:
    """The end of a generation: its texts and why they ended, behind `prompt` tokens."""
    said = sum([len(text.split()) for text, _ in samples])
    usage = Usage(prompt=prompt, computed=prompt, completion=said, calls=1)
    return GenDone(index, (), tuple([Sample(text, (), finish) for text, finish in samples]), usage)


def _cut(text: str, node: GenNode) -> tuple[str, str]:
    """A scripted answer as the model would have ended it, and why it ends.

    Raises:
        BackendError: SGLC522, the answer is not what the generation's `regex` allows.
    """
    sampling = node.sampling
    end = len(text)
    for stop in sampling.stop:
        if (place := text.find(stop)) >= 0:
            end = min(end, place)
    if sampling.stop_regex:  # with patterns that stop wins which is complete first
        from sglc.backends.remote.answers import Cut

        cut = Cut(sampling)
        end = len(cut.push(text) + cut.finish())
    stopped, text = end < len(text), text[:end]
    finish = "stop"
    if len(text) >= 2 * sampling.max_tokens and len(text.split()) > sampling.max_tokens:
        text, finish = "".join(_WORD.findall(text)[: sampling.max_tokens]), "length"
    elif sampling.regex is not None and not stopped and not re.fullmatch(sampling.regex, text, re.ASCII):
        raise BackendError(
            "SGLC522", f"the scripted answer {text!r} does not match `{sampling.regex}`", node.loc
        )
    return text, finish
