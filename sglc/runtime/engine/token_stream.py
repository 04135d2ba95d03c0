"""A prompt on its way: what is encoded of it, and the text behind that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sglc.ir.plan.segment import Made, Part
from sglc.ir.target import ControlText
from sglc.runtime.cache.sequence_handles import Prefix
from sglc.runtime.ids import Handle


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

    def held_by(self, handle: Handle) -> TokenStream:
        """The same stream with a handle on all of its ids."""
        return TokenStream(self.ids, self.tail, handle, len(self.ids))

    def followed_by(self, parts: Iterable[Part], encode: Callable[[str], Sequence[int]]) -> TokenStream:
        """The stream with parts behind it, all of whose texts are known."""
        ids, tail = self.ids, self.tail
        for part in parts:
            match part:
                case str() as text:
                    tail += text
                case ControlText(ids=control):
                    ids, tail = (*ids, *encode(tail), *control), ""
                case Made(text, None):
                    tail += text
                case Made(_, tuple(made), rest):
                    ids, tail = (*ids, *encode(tail), *made), rest
                case other:
                    raise AssertionError(other)  # no part for a model of tokens
        return TokenStream(ids, tail, self.base, self.held)
