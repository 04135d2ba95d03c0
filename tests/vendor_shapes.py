"""The words of the vendors' protocols: what a body must be by their own types, and answers in their shapes.

Bodies are held against the types that the SDKs are generated from: no key is missing or unknown, no type other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter


def vendor_of(path: str) -> str:
    """Whose protocol a path belongs to."""
    if path.endswith(("v1/messages", ":rawPredict", ":streamRawPredict")):
        return "anthropic"
    return "gemini" if "enerateContent" in path else "openai"


# -- bodies --------------------------------------------------------------------------------------------


def check_body(path: str, body: dict[str, Any]) -> None:
    """Hold a body against the vendor's own types.

    Raises:
        ValidationError: a key is missing, unknown or of another type.
    """
    match vendor_of(path):
        case "anthropic":
            from anthropic.types import message_create_params as sent

            message: Any = sent.MessageCreateParamsNonStreaming
            if "stream" in body:
                message = sent.MessageCreateParamsStreaming
            # Up to 4.6 the service takes these, for which the SDK has no arguments any more.
            older = {"temperature", "top_p", "top_k"} if _samples(body["model"]) else set()
            _hold(message, {key: value for key, value in body.items() if key not in older})
        case "gemini":
            from google.genai import types

            own = {"contents", "systemInstruction", "generationConfig", "safetySettings", "tools", "toolConfig"}
            assert {*body} <= own, {*body}
            _hold(list[types.Content], body["contents"], strict=False)
            for key, kind in (
                ("systemInstruction", types.Content),
                ("generationConfig", types.GenerationConfig),
                ("toolConfig", types.ToolConfig),
                ("tools", list[types.Tool]),
            ):
                if key in body:
                    _hold(kind, body[key], strict=False)
        case _ if path.startswith("/mistral/"):
            models: Any = pytest.importorskip("mistralai.client.models")
            streams = "stream" in body
            kind = models.ChatCompletionStreamRequest if streams else models.ChatCompletionRequest
            read = kind.model_validate(body)
            assert read.model_dump(mode="json", by_alias=True, exclude_unset=True).keys() == body.keys()
        case _ if path.startswith("/openrouter/"):
            own = {"provider", "top_k", "min_p", "repetition_penalty"}
            assert body["provider"] == {"require_parameters": True}
            check_body("/v1/chat/completions", {key: body[key] for key in body if key not in own})
        case _ if "messages" in body:
            from openai.types.chat import completion_create_params as asked

            _hold(asked.CompletionCreateParamsStreaming if "stream" in body
                  else asked.CompletionCreateParamsNonStreaming, body)  # fmt: skip
        case _:
            from openai.types import completion_create_params as completed

            _hold(completed.CompletionCreateParamsStreaming if "stream" in body
                  else completed.CompletionCreateParamsNonStreaming, body)  # fmt: skip


def _samples(model: str) -> bool:
    """Whether a Claude model takes sampling parameters, by the version in its name."""
    version = re.search(r"-(\d)-(\d)\b", model)
    return version is not None and (int(version[1]), int(version[2])) <= (4, 6)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _hold(kind: Any, data: Any, *, strict: bool = True) -> None:
    # Google's models are strict about keys by themselves, and read enums from texts.
    _walked(_adapter(kind).validate_python(data, strict=strict or None, extra="forbid"))


def _walked(value: Any) -> None:
    """Look at all of it: iterables are validated as they are read."""
    if isinstance(value, dict):
        for item in value.values():
            _walked(item)
    elif hasattr(value, "__iter__") and not isinstance(value, str | bytes) and not isinstance(value, BaseModel):
        for item in value:
            _walked(item)


# -- answers -------------------------------------------------------------------------------------------


def error_body(vendor: str, status: int, code: str) -> str:
    """An error as the vendor writes it."""
    if vendor == "anthropic":
        return json.dumps({"type": "error", "error": {"type": code or "api_error", "message": "scripted"}})
    if vendor == "gemini":
        return json.dumps({"error": {"code": status, "message": "scripted", "status": code or "UNKNOWN"}})
    return json.dumps({"error": {"message": "scripted", "type": "scripted", "code": code or None}})


def anthropic_whole(said: str, body: dict[str, Any], stop: str = "end_turn") -> dict[str, Any]:
    """A message with thoughts before its text, and tokens read from the cache and written into it."""
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": body.get("model", "m"),
        "stop_reason": stop, "stop_sequence": None,
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
            {"type": "text", "text": said},
        ],
        "usage": {
            "input_tokens": _words(body) - 3, "cache_read_input_tokens": 1, "cache_creation_input_tokens": 2,
            "output_tokens": len(said.split()),
        },
    }  # fmt: skip


def anthropic_chunks(said: str, body: dict[str, Any], *, breaks: bool, stop: str = "end_turn") -> Iterator[str]:
    """The events of a streamed message; one that `breaks` has no end."""

    def event(kind: str, **data: Any) -> str:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n"

    whole = anthropic_whole(said, body)
    begun = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    yield event("message_start", message=begun)
    yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    yield event("ping")
    for word in _pieces(said):
        yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
    if breaks:
        return
    yield event("content_block_stop", index=0)
    usage = {"output_tokens": whole["usage"]["output_tokens"]}
    yield event("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage=usage)
    yield event("message_stop")


def gemini_whole(said: Sequence[str], body: dict[str, Any], finish: str = "STOP") -> dict[str, Any]:
    """Candidates, a thought before the text of each."""
    return {
        "candidates": [
            {
                "index": index, "finishReason": finish,
                "content": {"role": "model", "parts": [{"text": "Hm.", "thought": True}, {"text": text}]},
            }
            for index, text in enumerate(said)
        ],
        "usageMetadata": {
            "promptTokenCount": _words(body), "cachedContentTokenCount": 1, "thoughtsTokenCount": 2,
            "candidatesTokenCount": sum(len(text.split()) for text in said), "totalTokenCount": 0,
        },
    }  # fmt: skip


def gemini_chunks(said: str, body: dict[str, Any], *, breaks: bool, finish: str = "STOP") -> Iterator[str]:
    """Whole answers, one a piece; one that `breaks` has no reason why it ended."""
    whole = gemini_whole([""], body)
    for word in _pieces(said):
        part = {"candidates": [{"index": 0, "content": {"role": "model", "parts": [{"text": word}]}}]}
        yield f"data: {json.dumps(part)}\n\n"
    if not breaks:
        end = {"candidates": [{"index": 0, "finishReason": finish}], "usageMetadata": {
            **whole["usageMetadata"], "candidatesTokenCount": len(said.split()),
        }}  # fmt: skip
        yield f"data: {json.dumps(end)}\n\n"


def _pieces(said: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+\Z", said)


def _words(body: dict[str, Any]) -> int:
    return len(json.dumps(body.get("messages") or body.get("contents")).split()) + 3
