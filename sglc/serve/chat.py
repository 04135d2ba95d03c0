"""The answers of `POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from sglc.frontend.language.reasoning import Splitter, split
from sglc.ir.grammar.call_parser import CallParser
from sglc.ir.plan.events import GenDone, Sample, TokenLogprob
from sglc.serve.answers import Answer, usage, with_usage
from sglc.serve.bodies import ChatBody
from sglc.serve.logprobs import Tops, of_chat
from sglc.serve.tools import Calling, call_of, delta_of
from sglc.serve.work import Piece, Work, tokens_of, tops_of


def whole(answer: Answer, body: ChatBody, ends: Sequence[GenDone], calling: Calling | None) -> dict[str, Any]:
    """The answer as one object. `calling`: how it may call tools."""
    (end,) = ends
    choices = []
    for index, sample in enumerate(end.samples):
        message, finish = _message(answer, sample, calling)
        choices.append(
            {
                "index": index,
                "message": message,
                "logprobs": _logprobs(answer, body, tokens_of(sample), tops_of(sample)),
                "finish_reason": finish,
            }
        )
    return {**answer.head, "choices": choices, "usage": usage()}


def _message(answer: Answer, sample: Sample, calling: Calling | None) -> tuple[dict[str, Any], str]:
    """The message, and why it ends. Calls are those of the answer: what reasoning says of them is none."""
    shares = _shares(answer, sample.text)
    message: dict[str, Any] = {"role": "assistant", **shares, "refusal": None}
    if calling is None:
        return message, sample.finish
    parser = calling.parser()
    content = parser.feed(shares["content"])[0] + parser.end()[0]
    message["content"] = content
    if parser.calls:
        message |= {"content": content or None, "tool_calls": [call_of(call) for call in parser.calls]}
    return message, _finish(sample.finish, parser)


def _finish(finish: str, parser: CallParser) -> str:
    return "tool_calls" if finish == "stop" and parser.whole else finish


async def chunks(
    answer: Answer,
    body: ChatBody,
    work: Work,
    pieces: AsyncGenerator[list[Piece], None],
    calling: Calling | None,
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """The answer as it comes: each choice begins with its role, and ends with a chunk without text."""
    counts = body.stream_options is not None and body.stream_options.include_usage
    splitters = [] if answer.tags is None else [Splitter(answer.tags) for _ in range(work.choices)]
    parsers = [calling.parser() for _ in range(work.choices)] if calling is not None else []

    def chunk(
        choice: int, delta: dict[str, Any], logprobs: Any = None, finish: str | None = None
    ) -> dict[str, Any]:
        made = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return with_usage({**answer.head, "choices": [made]}, counts)

    def told(piece: Piece) -> Iterator[dict[str, Any]]:
        if piece.begins:
            yield chunk(piece.choice, {"role": "assistant", "content": None if parsers else ""})
        logprobs = _logprobs(answer, body, piece.tokens, piece.tops)
        reasoning, text = told_apart(splitters, piece)
        finish = piece.ended
        if parsers:
            deltas, finish = _calls(parsers[piece.choice], text, finish)
        else:
            deltas = [{"content": text}] if text else []
        if reasoning:
            deltas.insert(0, {"reasoning_content": reasoning})
        if logprobs and piece.tokens and not deltas:
            deltas = [{"content": ""} if not parsers else {}]
        for delta in deltas:
            yield chunk(piece.choice, delta, logprobs)
            logprobs = None  # with the first one
        if finish is not None:
            yield chunk(piece.choice, {}, finish=finish)

    async with aclosing(pieces):
        async for batch in pieces:
            if shown := [made for piece in batch for made in told(piece)]:
                yield shown
    if counts:
        yield [{**answer.head, "choices": [], "usage": usage()}]


def _shares(answer: Answer, text: str) -> dict[str, str]:
    """What of a text is content, and what the reasoning before it."""
    if answer.tags is None:
        return {"content": text}
    reasoning, content = split(answer.tags, (text,))
    return {"content": content, "reasoning_content": reasoning}


def told_apart(splitters: Sequence[Splitter], piece: Piece) -> tuple[str, str]:
    """What a piece adds to the reasoning and the answer of its choice; without splitters all is answer."""
    if not splitters:
        return "", piece.text
    splitter = splitters[piece.choice]
    reasoning, answer = splitter.feed(piece.text)
    if piece.ended is not None:
        rest = splitter.end()
        reasoning, answer = reasoning + rest[0], answer + rest[1]
    return reasoning, answer


def _calls(parser: CallParser, text: str, finish: str | None) -> tuple[list[dict[str, Any]], str | None]:
    """What more text adds to an answer that may call tools, and why that ends, if it does."""
    text, calls = parser.feed(text)
    if finish is not None:
        rest, more = parser.end()
        text, calls, finish = text + rest, calls + more, _finish(finish, parser)
    content: list[dict[str, Any]] = [{"content": text}] if text else []
    return content + [{"tool_calls": [delta_of(call)]} for call in calls], finish


def _logprobs(
    answer: Answer, body: ChatBody, tokens: Sequence[TokenLogprob], tops: Tops
) -> dict[str, Any] | None:
    return of_chat(answer.spelling, tokens, tops) if body.logprobs else None
