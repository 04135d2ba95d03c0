"""The answers of `POST /generate`, which are SGLang's."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from sglc.ir.plan.events import GenDone, Sample, TokenLogprob
from sglc.serve.answers import Answer
from sglc.serve.bodies import GenerateBody
from sglc.serve.logprobs import Tops, of_generate
from sglc.serve.work import Piece, Work, made_by_each, tokens_of, tops_of


def whole(answer: Answer, body: GenerateBody, work: Work, ends: Sequence[GenDone], began: float) -> Any:
    """The answer: an object, or a list of them where several prompts or samples were asked for.

    `began`: when the request came, of `time.perf_counter`.
    """
    made: list[dict[str, Any]] = []
    for end in ends:
        for sample, spent in zip(end.samples, made_by_each(end), strict=True):
            choice = _Choice(answer, body, work, len(made), began)
            choice.prompt = (end.prompt_logprobs, end.prompt_top_logprobs)
            choice.cached = end.usage.cached
            choice.take(sample.text, tokens_of(sample), tops_of(sample))
            made.append(choice.shown(sample, spent))
    return made if body.several else made[0]


async def chunks(
    answer: Answer, body: GenerateBody, work: Work, pieces: AsyncGenerator[list[Piece], None], began: float
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """The answer as it comes: every chunk has all the text so far, and log-probabilities likewise."""
    choices = [_Choice(answer, body, work, number, began) for number in range(work.choices)]

    def chunk(piece: Piece) -> dict[str, Any]:
        choice = choices[piece.choice]
        if piece.begins:
            choice.prompt = (piece.prompt_logprobs, piece.prompt_tops)
        choice.cached = max(choice.cached, piece.cached)  # between the first and the last it is not said
        choice.take(piece.text, piece.tokens, piece.tops)
        spent = piece.usage.completion if piece.ended is not None else len(choice.tokens)
        made = choice.shown(piece.last, spent)
        return {**made, "index": piece.choice} if body.several else made

    async with aclosing(pieces):
        async for batch in pieces:
            yield [chunk(piece) for piece in batch]


class _Choice:
    """One text so far."""

    def __init__(self, answer: Answer, body: GenerateBody, work: Work, number: int, began: float) -> None:
        self.answer, self.body, self.work, self.number, self.began = answer, body, work, number, began
        self.text = ""
        self.tokens: list[TokenLogprob] = []
        self.tops: list[Sequence[TokenLogprob] | None] = []
        self.prompt: tuple[tuple[TokenLogprob, ...], Tops] = ((), ())
        self.cached = 0  # ids of the prompt that were not computed, as a back end counts them

    def take(self, text: str, tokens: Sequence[TokenLogprob], tops: Tops) -> None:
        """More of it."""
        self.text += text
        self.tokens += tokens
        self.tops += tops

    def shown(self, sample: Sample | None, spent: int) -> dict[str, Any]:
        """All so far; with `sample`, that is whole. `spent`: tokens that it took."""
        size = len(self.work.prompt_of(self.number).ids)
        reason = None if sample is None else sample.finish_reason
        if reason is not None and "length" in reason:
            reason["length"] = spent
        about: dict[str, Any] = {
            "id": self.body.request_id or self.answer.id,
            "finish_reason": reason,
            "prompt_tokens": size,
            "completion_tokens": spent,
            "cached_tokens": min(self.cached, size),
            "e2e_latency": time.perf_counter() - self.began,
        }
        if self.body.return_logprob:
            about["input_token_logprobs"] = self._shown(self.prompt[0])
            about["output_token_logprobs"] = self._shown(self.tokens)
            if self.body.top_logprobs_num:
                about["input_top_logprobs"] = [
                    None if top is None else self._shown(top) for top in self.prompt[1]
                ]
                about["output_top_logprobs"] = [None if top is None else self._shown(top) for top in self.tops]
        return {"text": self.text, "meta_info": about}

    def _shown(self, tokens: Sequence[TokenLogprob]) -> list[tuple[float | None, int, str | None]]:
        return of_generate(self.answer.spelling, tokens, text=self.body.return_text_in_logprobs)
