"""Prompts on their way, and what those begin with that came before: its ids, and where the cache has them.

Rows of a batch begin with the same long arguments, and such a beginning is encoded and looked up once. It is
known by its content, whoever asks. A row's own work is what comes behind it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from sglc.ir.made_often import made_often
from sglc.ir.plan.dataflow import encode_behind
from sglc.ir.plan.segment import Made, Part
from sglc.ir.target import ControlText, Tokenizer
from sglc.runtime.cache.sequence_handles import Prefix
from sglc.runtime.engine.engine import Engine
from sglc.runtime.ids import Handle

_LONG = 1024  # characters of a part, behind which a prompt is worth remembering
_CHARACTERS = 4 << 20  # remembered in all
_SEEN = 4096  # beginnings that came once


@made_often
@dataclass(frozen=True, slots=True)
class TokenStream:
    """A prompt state in the runtime: `ids` followed by the encoding of `tail`.

    `base`, where there is one, is a handle on the first `held` of the ids, or a known prefix: what goes on from
    there need not look for them again. A handle lives as long as something in its segment still has to go on.
    """

    ids: tuple[int, ...] = ()
    tail: str = ""
    base: Handle | Prefix | None = None
    held: int = 0
    namespace: str = ""  # in which the KV of its ids is

    def held_by(self, handle: Handle) -> TokenStream:
        """The same stream with a handle on all of its ids."""
        return TokenStream(self.ids, self.tail, handle, len(self.ids), self.namespace)

    def followed_by(
        self, parts: Iterable[Part], encode: Callable[[Sequence[int], str], Sequence[int]]
    ) -> TokenStream:
        """The stream with parts behind it, all of whose texts are known; `encode` a text behind ids."""
        ids, tail = self.ids, self.tail
        for part in parts:
            match part:
                case str() as text:
                    tail += text
                case ControlText(ids=control):
                    ids, tail = (*ids, *encode(ids, tail), *control), ""
                case Made(text, None):
                    tail += text
                case Made(_, tuple(made), rest):
                    ids, tail = (*ids, *encode(ids, tail), *made), rest
                case other:
                    raise AssertionError(other)  # no part for a model of tokens
        return TokenStream(ids, tail, self.base, self.held, self.namespace)


class PromptPrefixes:
    """What prompts begin with, from the second time on. The newest are kept."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._engine = engine
        self._cut: Callable[[str], int] = tokenizer.cut
        self._encode = partial(encode_behind, tokenizer)
        # By namespace and parts, the last used last.
        self._known: OrderedDict[tuple[Part, ...], TokenStream] = OrderedDict()
        self._characters = 0
        self._seen: OrderedDict[int, None] = OrderedDict()  # hashes: who is taken for another is known too soon

    def longest(self, parts: tuple[Part, ...], namespace: str = "") -> tuple[TokenStream, int]:
        """The longest beginning of a prompt that is known there, and how many of its parts that is."""
        stream, done = TokenStream(namespace=namespace), 0
        keys: list[tuple[Part, ...]] = []
        for end in _ends(parts):
            key = (namespace, *parts[:end])
            known = self._known.get(key)
            if known is None:
                if not self._came_before(key):
                    break
                known = self._remember(key, stream.followed_by(parts[done:end], self._encode))
            keys.append(key)
            stream, done = known, end
        for key in reversed(keys):  # a longer one is found through those before it, which stay longer
            self._known.move_to_end(key)
        while self._characters > _CHARACTERS:
            oldest, _ = self._known.popitem(last=False)
            self._characters -= _size(oldest)
        return stream, done

    def clear(self) -> None:
        """Forget all of them."""
        self._known.clear()
        self._seen.clear()
        self._characters = 0

    def _came_before(self, key: tuple[Part, ...]) -> bool:
        number = hash(key)
        if number in self._seen:
            del self._seen[number]
            return True
        self._seen[number] = None
        if len(self._seen) > _SEEN:
            self._seen.popitem(last=False)
        return False

    def _remember(self, key: tuple[Part, ...], stream: TokenStream) -> TokenStream:
        cut = self._cut(stream.tail)
        ids = (*stream.ids, *self._encode(stream.ids, stream.tail[:cut]))
        if len(ids) > stream.held:
            prefix = self._engine.prefix(stream.base, ids[stream.held :], stream.namespace)
            stream = TokenStream(ids, stream.tail[cut:], prefix, len(ids), stream.namespace)
        self._known[key] = stream
        self._characters += _size(key)
        return stream


def _ends(parts: Sequence[Part]) -> Iterator[int]:
    """Behind which parts a beginning ends that may be remembered."""
    for number, part in enumerate(parts, 1):
        if isinstance(part, str):
            if len(part) >= _LONG:
                yield number
        elif not isinstance(part, ControlText):
            return


def _size(key: tuple[Part, ...]) -> int:
    return sum(len(part) for part in key if isinstance(part, str))
