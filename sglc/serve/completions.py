"""The answers of `POST /v1/completions`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from sglc.ir.plan.events import GenDone, TokenLogprob
from sglc.serve.answers import Answer, joined, usage, with_usage
from sglc.serve.bodies import CompletionBody
from sglc.serve.logprobs import Offsets, Tops, of_completion
from sglc.serve.work import Piece, Work, end_of, tokens_of, tops_of


def whole(answer: Answer, body: CompletionBody, work: Work, ends: Sequence[GenDone]) -> dict[str, Any]:
    """The answer as one object."""
    choices: list[dict[str, Any]] = []
    for number, end in enumerate(ends):
        before = work.prompts[number].text if body.echo else ""
        for sample in end.samples:
            offsets = Offsets(before)
            parts = [
                _logprobs(answer, body, offsets, end.prompt_logprobs, end.prompt_top_logprobs, prompt=True),
                _logprobs(answer, body, offsets, tokens_of(sample), tops_of(sample), prompt=False),
                _logprobs(answer, body, offsets, *end_of(sample), prompt=False),
            ]
            choice = _choice(len(choices), before + sample.text, sample.finish)
            choices.append({**choice, "logprobs": joined(part for part in parts if part) or None})
    return {**answer.head, "choices": choices, "usage": usage()}


async def chunks(
    answer: Answer, body: CompletionBody, work: Work, pieces: AsyncGenerator[list[Piece], None]
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """The answer as it comes. The prompt, where it is wanted, comes with the first text of a choice."""
    counts = body.stream_options is not None and body.stream_options.include_usage
    offsets = [Offsets(work.prompt_of(choice).text) for choice in range(work.choices)]

    def chunk(piece: Piece) -> dict[str, Any]:
        text = piece.text
        if piece.begins and body.echo:
            text = work.prompt_of(piece.choice).text + text
        choice = _choice(piece.choice, text, piece.ended)
        if body.logprobs is not None:
            choice["logprobs"] = _of_piece(answer, body, offsets[piece.choice], piece)
        return with_usage({**answer.head, "choices": [choice]}, counts)

    async with aclosing(pieces):
        async for batch in pieces:
            yield [chunk(piece) for piece in batch]
    if counts:
        yield [{**answer.head, "choices": [], "usage": usage()}]


def _of_piece(
    answer: Answer, body: CompletionBody, offset: Offsets, piece: Piece
) -> dict[str, list[Any]] | None:
    parts = []
    if piece.begins and body.echo:
        parts.append(_logprobs(answer, body, offset, piece.prompt_logprobs, piece.prompt_tops, prompt=True))
    parts.append(_logprobs(answer, body, offset, piece.tokens, piece.tops, prompt=False))
    parts.append(_logprobs(answer, body, offset, *end_of(piece.last), prompt=False))
    return joined(part for part in parts if part) or None


def _choice(index: int, text: str, finish: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}


def _logprobs(
    answer: Answer,
    body: CompletionBody,
    offsets: Offsets,
    tokens: Sequence[TokenLogprob],
    tops: Tops,
    *,
    prompt: bool,
) -> dict[str, Any] | None:
    if body.logprobs is None:
        return None
    return of_completion(answer.spelling, offsets, tokens, tops, prompt=prompt)
