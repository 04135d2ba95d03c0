"""Answers with halves of surrogate pairs, through official SDKs: they are joined, or U+FFFD, on every way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

import sglc as sgl
from sglc.errors import BackendError
from tests.api_programs import question
from tests.api_targets import at
from tests.openai_server import Fault, serving
from tests.test_fuse_gens import openai
from tests.vendor_shapes import anthropic_whole, gemini_whole

# As they come in JSON: a pair that is one character, halves that are alone, a pair of two pieces.
PIECES = ("a\ud83d", "\ude00b\ud800", "c\udc00\ud800", "\U0001f600\ud83d")
READ = "a\U0001f600b\ufffdc\ufffd\ufffd\U0001f600\ufffd"
VENDORS = ("openai:gpt-4o", "anthropic:claude-opus-4-8", "gemini:gemini-2.5-flash")


def said(name: str, text: str, **message: Any) -> Fault:
    """An answer that says `text`, with escapes for what has no UTF-8."""
    if name.startswith("anthropic"):
        whole = anthropic_whole(text, {})
        whole["content"] += message.get("content", [])
    elif name.startswith("gemini"):
        whole = gemini_whole([text], {})
        whole["candidates"][0]["content"]["parts"] += message.get("parts", [])
    else:
        message = {"role": "assistant", "content": text, **message}
        whole = {"id": "x", "object": "chat.completion", "created": 0, "model": "m",
                 "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}  # fmt: skip
    return Fault(200, body=json.dumps(whole))


def streamed(name: str, pieces: Sequence[str]) -> Fault:
    if name.startswith("anthropic"):
        begun = anthropic_whole("", {}) | {"content": []}
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": begun},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ]
        return Fault(200, body="".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events))
    if name.startswith("gemini"):
        parts = [gemini_whole([piece], {}) for piece in pieces]
        for part in parts[:-1]:
            del part["candidates"][0]["finishReason"]
        return Fault(200, body="".join(f"data: {json.dumps(part)}\n\n" for part in parts))
    ends = [*[None] * (len(pieces) - 1), "stop"]
    chunks = [
        {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m",
         "choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": end}]}
        for piece, end in zip(pieces, ends, strict=True)
    ]  # fmt: skip
    return Fault(200, body="".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n")


@pytest.mark.parametrize("name", VENDORS)
def test_a_whole_answer_and_a_stream_have_the_same_characters(name: str) -> None:
    def answer(body: dict[str, Any]) -> Any:
        streams = body.get("stream") or "stream" in api.paths[-1].casefold()
        return streamed(name, PIECES) if streams else said(name, "".join(PIECES))

    with serving(answer) as api, at(api, name) as backend:
        assert question.run(backend=backend)["answer"] == READ
        live = question.run(backend=backend, stream=True)
        pieces = list(live.text_iter("answer"))
        assert "".join(pieces) == live["answer"] == READ
        assert all(piece.encode() for piece in pieces)
        assert len(api.bodies) == 2


@sgl.function
def cut(s: Any) -> None:
    s += sgl.user("?") + sgl.assistant(sgl.gen("one", stop="\U0001f600"))
    s += sgl.user("?") + sgl.assistant(sgl.gen("two", n=2, stop="#", return_logprob=True, max_tokens=8))
    s += sgl.user("?") + sgl.assistant(sgl.gen("next"))


def test_stops_are_found_and_the_next_turn_can_be_sent() -> None:
    with serving(lambda body: said("openai", "x\ud800\ud83d\ude00y")) as api, openai(api.url, "m") as backend:
        result = cut.run(backend=backend)
        assert result.error() is None
        assert result["one"] == "x\ufffd"
        assert api.bodies[1]["messages"][1]["content"] == "x\ufffd"


@sgl.function
def fused(s: Any) -> None:
    s += sgl.user("?")
    s += sgl.assistant("Code: " + sgl.gen("code", regex="[^0]{3}") + "0" + sgl.gen("free"))


def test_fields_of_an_object_have_the_same_characters() -> None:
    written = r'{"code": "\ud83d\ude00\ud800a", "text": "0", "free": "\ud83d\ude00\udc00?\ud800"}'
    with serving(lambda body: said("openai", written)) as api, openai(api.url, "m") as backend:
        result = fused.run(backend=backend)
        assert (result["code"], result["free"]) == ("\U0001f600\ufffda", "\U0001f600\ufffd?\ufffd")


@sgl.function
def listed(s: Any) -> None:
    s += sgl.user("?") + sgl.assistant(sgl.gen("names", dtype=list[str]))


@sgl.function
def picked(s: Any) -> None:
    s += sgl.user("?") + sgl.assistant(sgl.select("mood", choices=["?", "\ufffd!"]))


def test_values_and_choices_have_the_same_characters() -> None:
    answer = [r'{"value": ["\ud800", "\ud83d\ude00"]}']
    with serving(lambda body: said("openai", answer[0])) as api, openai(api.url, "m") as backend:
        assert listed.run(backend=backend)["names"] == ["\ufffd", "\U0001f600"]
        answer[0] = r'{"value": "\ud800"}'
        error = picked.run(backend=backend).error()
        assert isinstance(error, BackendError)
        assert (error.code, "ud800" in error.note) == ("SGLC546", True)
        answer[0] = r'{"value": "\ud800!"}'
        assert picked.run(backend=backend)["mood"] == "\ufffd!"


@sgl.function
def called(s: Any) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    tool = {"name": "send", "parameters": schema}
    s += sgl.user("?") + sgl.assistant(sgl.gen("answer", tools=[tool], tool_choice="required"))


@pytest.mark.parametrize("name", VENDORS)
def test_arguments_of_calls_have_the_same_characters(name: str) -> None:
    written = r'{"text": "\ud83d\ude00\ud800"}'
    call = {"id": "1", "type": "function", "function": {"name": "send", "arguments": written}}
    block = {"type": "tool_use", "id": "1", "name": "send", "input": json.loads(written)}
    part = {"functionCall": {"name": "send", "args": json.loads(written)}}
    message = {"openai": {"content": None, "tool_calls": [call]}, "anthropic": {"content": [block]},
               "gemini": {"parts": [part]}}[name.partition(":")[0]]  # fmt: skip
    with serving(lambda body: said(name, "", **message)) as api, at(api, name) as backend:
        result = called.run(backend=backend)
        (made,) = result["answer"].calls
        assert made.arguments == {"text": "\U0001f600\ufffd"}
        assert result.text().encode()
