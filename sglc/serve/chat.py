"""The answers of `POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from sglc.ir.plan.events import GenDone, TokenLogprob
from sglc.serve.answers import Answer, Counts, counted, with_usage
from sglc.serve.bodies import ChatBody
from sglc.serve.logprobs import Tops, of_chat
from sglc.serve.work import Piece, Work, tokens_of, tops_of


def whole(answer: Answer, body: ChatBody, work: Work, ends: Sequence[GenDone]) -> dict[str, Any]:
    """The answer as one object."""
    (end,) = ends
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": sample.text, "refusal": None},
            "logprobs": _logprobs(answer, body, tokens_of(sample), tops_of(sample)),
            "finish_reason": sample.finish,
        }
        for index, sample in enumerate(end.samples)
    ]
    return {**answer.head, "choices": choices, "usage": counted(work, ends).shown()}


async def chunks(
    answer: Answer, body: ChatBody, work: Work, pieces: AsyncGenerator[list[Piece], None]
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """The answer as it comes: each choice begins with its role, and ends with a chunk without text."""
    usage = body.stream_options is not None and body.stream_options.include_usage
    counts = Counts()

    def chunk(
        choice: int, delta: dict[str, str], logprobs: Any = None, finish: str | None = None
    ) -> dict[str, Any]:
        made = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return with_usage({**answer.head, "choices": [made]}, usage)

    def told(piece: Piece) -> Iterator[dict[str, Any]]:
        counts.add(work, piece)
        if piece.begins:
            yield chunk(piece.choice, {"role": "assistant", "content": ""})
        logprobs = _logprobs(answer, body, piece.tokens, piece.tops)
        if piece.text or (logprobs and piece.tokens):
            yield chunk(piece.choice, {"content": piece.text}, logprobs)
        if piece.ended is not None:
            yield chunk(piece.choice, {}, finish=piece.ended)

    async with aclosing(pieces):
        async for batch in pieces:
            if shown := [made for piece in batch for made in told(piece)]:
                yield shown
    if usage:
        yield [{**answer.head, "choices": [], "usage": counts.shown()}]


def _logprobs(
    answer: Answer, body: ChatBody, tokens: Sequence[TokenLogprob], tops: Tops
) -> dict[str, Any] | None:
    return of_chat(answer.spelling, tokens, tops) if body.logprobs else None
