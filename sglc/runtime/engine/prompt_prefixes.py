"""Prompts on their way, and where the cache has what many of them begin with.

A prompt's first parts are ids. What has another part of ids behind it others begin with, too: it is looked up
once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sglc.ir.made_often import made_often
from sglc.ir.plan.events import PackedIds
from sglc.ir.plan.segment import EncodedText, Made, Part
from sglc.ir.target import ControlText
from sglc.runtime.cache.sequence_handles import Prefix
from sglc.runtime.engine.engine import Engine
from sglc.runtime.ids import Handle

_BYTES = 16 << 20  # of ids that are remembered


@made_often
@dataclass(frozen=True, slots=True)
class TokenStream:
    """A prompt state in the runtime: the ids of `base`, `ids` behind them, and the encoding of `tail`.

    `base`, where there is one, is a handle or a known prefix: what goes on from there need not look for its ids
    again, nor copy them. A handle lives as long as something in its segment still has to go on.
    """

    ids: Sequence[int] = ()
    tail: str = ""
    base: Handle | Prefix | None = None
    namespace: str = ""  # in which the KV of its ids is

    def held_by(self, handle: Handle) -> TokenStream:
        """The same stream with a handle on all of its ids."""
        return TokenStream((), self.tail, handle, self.namespace)

    def followed_by(
        self,
        parts: Iterable[Part],
        known: Sequence[int],
        encode: Callable[[Sequence[int], str], Sequence[int]],
    ) -> TokenStream:
        """The stream, of which these ids are `known`, with parts behind it, all of whose texts are.

        Args:
            encode: a text behind ids.
        """
        ids, tail = self.ids, self.tail
        for part in parts:
            match part:
                case EncodedText(ids=more) | ControlText(ids=more):
                    ids, tail = (*ids, *(encode(ids or known, tail) if tail else ()), *more), ""
                case str() as text:
                    tail += text
                case Made(text, None):
                    tail += text
                case Made(_, tuple(made), rest):
                    ids, tail = (*ids, *encode(ids or known, tail), *made), rest
                case other:
                    raise AssertionError(other)  # no part for a model of tokens
        return TokenStream(ids, tail, self.base, self.namespace)


class PromptPrefixes:
    """What prompts begin with. The newest are kept."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # By namespace and ids, part by part, the last used last.
        self._known: OrderedDict[tuple[str | bytes, ...], Prefix] = OrderedDict()
        self._bytes = 0

    def longest(self, parts: tuple[Part, ...], namespace: str = "") -> tuple[Prefix | None, int]:
        """What others begin with, too, of a prompt there, and how many of its parts that is."""
        longest: Prefix | None = None
        keys: list[tuple[str | bytes, ...]] = []
        key: tuple[str | bytes, ...] = (namespace,)
        for part, behind in pairwise(parts):
            if type(part) is not EncodedText or type(behind) is not EncodedText:
                break
            key = (*key, PackedIds.of(part.ids).packed)
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = self._engine.prefix(longest, part.ids, namespace)
                self._bytes += _size(key)
            keys.append(key)
            longest = known
        for key in reversed(keys):  # a longer one is found through those before it, which stay longer
            self._known.move_to_end(key)
        while self._bytes > _BYTES:
            oldest, _ = self._known.popitem(last=False)
            self._bytes -= _size(oldest)
        return longest, len(keys)

    def clear(self) -> None:
        """Forget all of them."""
        self._known.clear()
        self._bytes = 0


def _size(key: tuple[str | bytes, ...]) -> int:
    return sum(map(len, key))
