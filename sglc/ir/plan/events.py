"""What a back end answers to a segment."""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from sglc.errors import SglcError
from sglc.ir.made_often import made_often


@made_often
@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one call or of many.

    `calls`: of a local model generations and choices; of an API requests that were answered or failed,
    those that were tried again among them.

    `prompt` = `cached` + `computed`: ids of the prompts, those whose KV was there already, and
    those passed through extend. `scored`: extra ids passed through extend to rank choices.
    `completion`: ids produced by decode.

    `saved_calls`: generations that the request of an earlier one answered too; `saved_prompt`: what their
    own requests would have sent, at least. `cache_hits`: generations and choices whose answer was in a cache of
    answers: of these nothing else is counted. `unified`: those that have the answer of an equal one, which is
    counted there.
    """

    prompt: int = 0
    cached: int = 0
    computed: int = 0
    scored: int = 0
    completion: int = 0
    calls: int = 0
    saved_calls: int = 0
    saved_prompt: int = 0
    cache_hits: int = 0
    unified: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.computed + other.computed,
            self.scored + other.scored,
            self.completion + other.completion,
            self.calls + other.calls,
            self.saved_calls + other.saved_calls,
            self.saved_prompt + other.saved_prompt,
            self.cache_hits + other.cache_hits,
            self.unified + other.unified,
        )


# A token as SGLang reports it: its log-probability (None for the first of a prompt), its id, and its
# text where that was asked for.
TokenLogprob = tuple[float | None, int, str | None]


@made_often
@dataclass(frozen=True, slots=True)
class Sample:
    """One generated text: `ids` are the kept token ids; `finish` is `stop`, `length`, or `abort`.

    `matched` is what ended it, if that is known: the stop string or pattern that it is cut at, or a token id.
    What is held to a form, and ended by none of these, is whole. `made` counts the tokens that it took, with
    the one that ended it and those that a stop cut off, where a back end tells of each sample.
    """

    text: str
    ids: tuple[int, ...]
    finish: str
    logprobs: tuple[float, ...] = ()  # of `ids`, natural log, before temperature
    texts: tuple[str, ...] = ()  # of `ids`, one by one, if asked for
    top_logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()  # at the places of `ids`, best first, if asked for
    end: TokenLogprob | None = None  # the token that ended the text and is not among `ids`, if one did
    end_top: tuple[TokenLogprob, ...] = ()  # at its place
    matched: str | int | None = None
    made: int | None = None

    @property
    def finish_reason(self) -> dict[str, str | int]:
        """As SGLang says it."""
        if self.finish == "length":
            return {"type": self.finish, "length": len(self.ids)}
        return {"type": self.finish, **({} if self.matched is None else {"matched": self.matched})}


@dataclass(frozen=True, slots=True)
class Delta:
    """More text of sample 0 of a generation (streaming). The deltas of a node add up to its text.

    `tokens` surely belong to the sample, whose other ones come with later deltas or at its end;
    `top_logprobs` are those at their places. The first delta has what was asked for of the prompt, and how
    many of its ids were `cached`, where that is known.
    """

    node: int
    text: str
    tokens: tuple[TokenLogprob, ...] = ()
    top_logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    prompt_top_logprobs: tuple[tuple[TokenLogprob, ...] | None, ...] = ()
    cached: int = 0


class PackedIds(Sequence[int]):
    """Token ids as int32, equal to the same ids in a tuple.

    None is made a number before somebody asks: prompts are long, and seldom looked at.
    """

    __slots__ = ("packed",)

    def __init__(self, packed: bytes) -> None:
        self.packed = packed

    @classmethod
    def of(cls, ids: Sequence[int]) -> PackedIds:
        """These ids. Raises OverflowError: one has more than 32 bits."""
        return ids if isinstance(ids, PackedIds) else cls(array("i", ids).tobytes())

    def __len__(self) -> int:
        return len(self.packed) // 4

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[int, ...]: ...
    def __getitem__(self, at: int | slice) -> int | tuple[int, ...]:
        ids = memoryview(self.packed).cast("i")
        return tuple(ids[at]) if isinstance(at, slice) else ids[at]

    def __iter__(self) -> Iterator[int]:
        return iter(memoryview(self.packed).cast("i"))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedIds):
            return self.packed == other.packed
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


@made_often
@dataclass(frozen=True, slots=True)
class GenDone:
    """A generation ended. `samples` has `sampling.n` entries; the stream continues with the first.

    `prompt_logprobs` are those of the last ids of the prompt, as many as were asked for.
    """

    node: int
    prompt_ids: Sequence[int]
    samples: tuple[Sample, ...]
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    prompt_top_logprobs: tuple[tuple[TokenLogprob, ...] | None, ...] = ()  # None at a prompt's first id


@dataclass(frozen=True, slots=True)
class SelectDone:
    """A choice was made. `logprobs[i]` are the log-probabilities of `choice_ids[i]` after `prompt_ids`.

    `unconditional[i]` are those of the same ids without the prompt (None for the first), if the method
    needs them; `greedy_matrix` is what `greedy_token_selection` compares, column by column. `decided` says
    how: by the texts' log-probabilities as a `continuation`, by a provider's `decision`, by a text
    `constrained` to the choices, or by a `match` of one with a text. Only the first has log-probabilities.
    """

    node: int
    prompt_ids: Sequence[int]
    choice: int
    text: str
    scores: tuple[float, ...]
    choice_ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]
    usage: Usage
    unconditional: tuple[tuple[float | None, ...], ...] = ()
    greedy_matrix: tuple[tuple[float, ...], ...] = ()
    decided: str = "continuation"


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """A node, and with it every node that reads it, will not complete."""

    node: int
    error: SglcError


Event = Delta | GenDone | SelectDone | NodeFailed


class EventBatches(AsyncIterator[Event]):
    """Events one by one, of a back end that has them in `batches`."""

    def __init__(self, batches: AsyncGenerator[Sequence[Event], None]) -> None:
        self.batches = batches
        self._come: list[Event] = []  # the next one last

    async def __anext__(self) -> Event:
        while not self._come:
            self._come.extend(reversed(await anext(self.batches)))
        return self._come.pop()

    async def aclose(self) -> None:
        """Abort what is left."""
        await self.batches.aclose()


def batches_of(events: AsyncIterator[Event]) -> AsyncGenerator[Sequence[Event], None]:
    """What `submit` gave, in lists of what is there together as far as the back end has such."""
    return events.batches if isinstance(events, EventBatches) else _one_by_one(events)


async def _one_by_one(events: AsyncIterator[Event]) -> AsyncGenerator[Sequence[Event], None]:
    try:
        async for event in events:
            yield [event]
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()
