"""The answers of `POST /v1/completions`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from sglc.ir.plan.events import GenDone, TokenLogprob
from sglc.serve.answers import Answer, joined, usage, with_usage
from sglc.serve.bodies import CompletionBody
from sglc.serve.logprobs import Offsets, Tops, of_completion
from sglc.serve.work import Piece, Work, end_of, tokens_of, tops_of

_Share = tuple[Sequence[TokenLogprob], Tops]


def whole(answer: Answer, body: CompletionBody, work: Work, ends: Sequence[GenDone]) -> dict[str, Any]:
    """The answer as one object."""
    choices: list[dict[str, Any]] = []
    for number, end in enumerate(ends):
        before = work.prompts[number].text if body.echo else ""
        for sample in end.samples:
            prompt = end.prompt_logprobs, end.prompt_top_logprobs
            text = tokens_of(sample), tops_of(sample)
            logprobs = _logprobs(answer, body, Offsets(before), prompt, text, end_of(sample))
            choices.append(_choice(len(choices), before + sample.text, logprobs, sample.finish))
    return {**answer.head, "choices": choices, "usage": usage()}


async def chunks(
    answer: Answer, body: CompletionBody, work: Work, pieces: AsyncGenerator[list[Piece], None]
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """The answer as it comes. The prompt, where it is wanted, comes with the first text of a choice."""
    counts = body.stream_options is not None and body.stream_options.include_usage
    offsets = [Offsets(work.prompt_of(choice).text) for choice in range(work.choices)]

    def chunk(piece: Piece) -> dict[str, Any]:
        text, prompt, logprobs = piece.text, None, None
        if piece.begins and body.echo:
            text = work.prompt_of(piece.choice).text + text
            prompt = piece.prompt_logprobs, piece.prompt_tops
        if body.logprobs is not None:  # most want none
            shares = (piece.tokens, piece.tops), end_of(piece.last)
            logprobs = _logprobs(answer, body, offsets[piece.choice], prompt, *shares)
        choice = _choice(piece.choice, text, logprobs, piece.ended)
        return with_usage({**answer.head, "choices": [choice]}, counts)

    async with aclosing(pieces):
        async for batch in pieces:
            yield [chunk(piece) for piece in batch]
    if counts:
        yield [{**answer.head, "choices": [], "usage": usage()}]


def _choice(index: int, text: str, logprobs: Any, finish: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def _logprobs(
    answer: Answer, body: CompletionBody, offsets: Offsets, prompt: _Share | None, *text: _Share
) -> dict[str, list[Any]] | None:
    """Those of the prompt, and those of the text that follows, share by share."""
    if body.logprobs is None:
        return None
    told = partial(of_completion, answer.spelling, offsets)
    of_prompt = [] if prompt is None else [told(*prompt, prompt=True)]
    return joined([*of_prompt, *(told(*share, prompt=False) for share in text)])
