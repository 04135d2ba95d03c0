"""What each generation of a segment is given: its whole prompt, its sampling, its choices.

A prompt is put together from a segment's nodes and from the streams that earlier segments kept, as soon as
somebody asks for it; by then everything in front of it was made.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from hashlib import sha256
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from sglc.errors import SglcError
from sglc.ir.plan.dataflow import FilledPart, choice_texts, filled_parts, left_in_prompt
from sglc.ir.plan.events import GenDone, SelectDone
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
    RoleMark,
    Segment,
    SelectNode,
    joined,
    reads,
)
from sglc.ir.sampling import Sampling
from sglc.ir.target import ControlText, Target

if TYPE_CHECKING:
    from sglc.backends.remote.prompts import Prompt

_DEFAULTS = asdict(Sampling())
_NUMBERS = count()


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that an answer may depend on beside the model and the seed.

    `hash` is that of `pieces`: unlike `prompt` they tell markup from text that only looks like it. `made` are
    the texts in the prompt that models left there as ids: where each begins, its ids and its tail.
    """

    prompt: str
    hash: str
    options: Mapping[str, Any]  # plain data: what of the sampling is no default, or choices and method
    made: tuple[tuple[int, tuple[int, ...], str], ...] = ()


@dataclass(slots=True)
class Followed:
    """A segment, and what is known of its streams.

    `texts` and `failed` are filled by whoever follows it; `answered` also keeps the ids of a text.
    """

    segment: Segment
    opened: dict[int, tuple[Followed, int]]  # where the streams come from that it opens
    texts: dict[int, str] = field(default_factory=dict)
    failed: dict[int, SglcError] = field(default_factory=dict)
    number: int = field(default_factory=_NUMBERS.__next__)  # unlike that of any other
    _answers: dict[int, tuple[GenDone | SelectDone, Target]] = field(default_factory=dict)
    _made: dict[int, Made] = field(default_factory=dict)
    _prompts: dict[int, Prompt] = field(default_factory=dict)

    def answered(self, index: int, done: GenDone | SelectDone, target: Target) -> None:
        """Generation `index` of a segment for `target` has its answer."""
        self._answers[index] = done, target
        self.texts[index] = done.samples[0].text if isinstance(done, GenDone) else done.text

    def left(self, index: int) -> Made:
        """What generation `index`, whose text is there, leaves in its prompt."""
        if index not in self._made:
            answer = self._answers.get(index)
            self._made[index] = Made(self.texts[index]) if answer is None else left_in_prompt(*answer)
        return self._made[index]

    def is_known(self, index: int) -> bool:
        """Whether everything is known that the stream behind node `index` is made of."""
        at: tuple[Followed, int] | None = (self, index)
        while at is not None:
            followed, here = at
            if here in followed._prompts:
                return True
            match followed.segment.nodes[here]:
                case OpenNode(handle) if handle is not None and here not in followed.opened:
                    return False
                case GenNode() | SelectNode() if here not in followed.texts:
                    return False
                case ExtendNode() as node if any(source not in followed.texts for source in reads(node)[1:]):
                    return False
            at = followed._before(here)
        return True

    def may_be_asked(self, index: int) -> bool:
        """Whether everything is known that generation `index` is given."""
        stream, *texts = reads(self.segment.nodes[index])
        return self.is_known(stream) and all(source in self.texts for source in texts)

    def inputs(self, index: int) -> Inputs:
        """What generation `index` is given; everything that it reads is there."""
        node = self.segment.nodes[index]
        assert isinstance(node, GenNode | SelectNode)
        pieces, made = _pieces(self.prompt(node.stream))
        if isinstance(node, GenNode):
            options = _not_default(node.sampling)
        else:
            options = {"choices": list(choice_texts(node, self.texts)), "method": node.method}
        digest = sha256(json.dumps([pieces, options], sort_keys=True).encode()).hexdigest()
        return Inputs("".join(text for _, text in pieces), digest[:32], options, made)

    def asked(self, index: int) -> tuple[Hashable, ...] | None:
        """What generation `index` is given, to be compared: equal ones have one prompt and ask for the same.

        None: it is not known yet.
        """
        node = self.segment.nodes[index]
        assert isinstance(node, GenNode | SelectNode)
        prompt = self._parts(node.stream)
        if prompt is None:
            return None
        if isinstance(node, GenNode):
            return (*prompt, _number(node.sampling))
        there = all(source in self.texts for source in reads(node)[1:])
        return (*prompt, choice_texts(node, self.texts), node.method) if there else None

    def _parts(self, stream: int) -> tuple[Hashable, ...] | None:
        """What a stream is made of; None: it is not known yet. Kept short: every generation pays for it.

        A stream of an earlier segment of which nobody knows that stands for itself: it is equal to no other.
        """
        found: list[Sequence[Hashable]] = []
        followed = self
        while True:
            node = followed.segment.nodes[stream]
            adds: Sequence[Hashable] | None = ()
            if isinstance(node, ExtendNode):
                adds = followed._filled(node.parts)
            elif isinstance(node, ASKED):
                adds = (followed.left(stream),) if stream in followed.texts else None
            elif isinstance(node, OpenNode):
                if node.handle is None:
                    break
                if stream not in followed.opened:
                    return None
                followed, stream = followed.opened[stream]
                continue
            if adds is None:
                if followed is self:
                    return None
                found.append(((followed.number, stream),))
                break
            found.append(adds)
            assert not isinstance(node, ReleaseNode)
            stream = node.stream
        found.reverse()
        return joined(chain.from_iterable(found))

    def _filled(self, parts: tuple[Part, ...]) -> Sequence[FilledPart] | None:
        for part in parts:
            if type(part) is not str:
                break
        else:
            return parts  # type: ignore[return-value]
        try:
            return filled_parts(parts, self.texts)
        except KeyError:  # of a generation that goes on
            return None

    def prompt(self, index: int) -> Prompt:
        """The stream behind node `index`."""
        from sglc.backends.remote.prompts import Prompt  # takes 3 ms, and equal generations are told without it

        path: list[tuple[Followed, int]] = []
        at: tuple[Followed, int] | None = (self, index)
        while at is not None and at[1] not in at[0]._prompts:
            path.append(at)
            at = at[0]._before(at[1])
        prompt = Prompt() if at is None else at[0]._prompts[at[1]]
        for followed, here in reversed(path):
            items = followed._adds(here)
            prompt = Prompt(prompt, items) if items else prompt
            followed._prompts[here] = prompt
        return prompt

    def _before(self, index: int) -> tuple[Followed, int] | None:
        node = self.segment.nodes[index]
        if isinstance(node, OpenNode):
            return self.opened.get(index)
        assert not isinstance(node, ReleaseNode)
        return self, node.stream

    def _adds(self, index: int) -> tuple[FilledPart, ...]:
        match self.segment.nodes[index]:
            case ExtendNode(parts=parts):
                return filled_parts(parts, self.texts)
            case GenNode() | SelectNode():
                return (self.left(index),)
            case OpenNode() | ForkNode() | KeepNode() | ReleaseNode():
                return ()


class Streams:
    """Where the kept streams of a run's back ends come from, by handle. Used in the executor's thread.

    `unsent` are those of segments that no back end was handed, because all of their answers were known.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Followed, int]] = {}
        self.unsent: set[int] = set()

    def follow(self, segment: Segment) -> Followed:
        """`segment` with what it opens; called in the order in which segments are submitted."""
        followed = Followed(segment, {})
        for index, node in enumerate(segment.nodes):
            if isinstance(node, OpenNode):
                if isinstance(node.handle, int) and node.handle in self._kept:
                    followed.opened[index] = self._kept[node.handle]
            elif isinstance(node, KeepNode):
                assert isinstance(node.handle, int)
                self._kept[node.handle] = (followed, node.stream)
            elif isinstance(node, ReleaseNode):
                self._kept.pop(node.handle, None)
        return followed


def _pieces(prompt: Prompt) -> tuple[list[tuple[str, str]], tuple[tuple[int, tuple[int, ...], str], ...]]:
    """(kind, text) of a prompt's parts, neighbouring texts as one; and `Inputs.made`.

    White space at the edge of a control token counts as text: which of both it belongs to is the
    tokenizer's affair, and changes no prompt.
    """
    pieces: list[tuple[str, str]] = []
    made: list[tuple[int, tuple[int, ...], str]] = []
    length = 0
    texts: list[str] = []  # neighbouring ones, not among the pieces yet

    def other(kind: str, text: str) -> None:
        nonlocal length
        if texts and (before := "".join(texts)):
            pieces.append(("text", before))
            length += len(before)
        texts.clear()
        if text:
            pieces.append((kind, text))
            length += len(text)

    for item in prompt:
        match item:
            case str():
                texts.append(item)
            case Made(text, ids, tail):
                if ids is not None:
                    made.append((length + sum(map(len, texts)), ids, tail))
                texts.append(text)
            case ControlText(text):
                core = text.strip()
                begin = text.find(core)
                texts.append(text[:begin])
                other("control", core)
                texts.append(text[begin + len(core) :])
            case RoleMark():
                other("role", item.text)
            case ImagePart(str() as data):
                other("image", image_mark(data))
            case ImagePart():
                raise AssertionError("a picture whose text is not there")
    other("text", "")
    return pieces, tuple(made)


def image_mark(data: str) -> str:
    """What stands for a picture where people read a prompt: equal for equal pictures."""
    return f"<image {sha256(data.encode()).hexdigest()[:16]}>"


@lru_cache(maxsize=1024)
def _number(sampling: Sampling) -> int:
    """A number that equal samplings have in common while they are used: it is found again in less time."""
    return next(_NUMBERS)


@lru_cache(maxsize=1024)
def _not_default(sampling: Sampling) -> Mapping[str, Any]:
    """The fields that are no defaults, as JSON has them; `max_tokens` and `temperature` always."""
    shown = {
        key: value
        for key, value in asdict(sampling).items()
        if value != _DEFAULTS[key] or key in ("max_tokens", "temperature")
    }
    return dict(json.loads(json.dumps(shown)))
