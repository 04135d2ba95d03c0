"""A small server of OpenAI's, Anthropic's, Google's and SGLang's protocols for tests, over real HTTP.

Answers and faults are the test's to say.

It counts requests and how many are in flight at once. What a real model answers is `sglc serve`'s to say.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from tests.vendor_shapes import (
    anthropic_chunks,
    anthropic_whole,
    error_body,
    gemini_chunks,
    gemini_whole,
    vendor_of,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """Instead of an answer: a status, or (status 0) a connection that breaks after `said`."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    said: str = ""
    code: str = ""
    body: str | bytes | None = None  # instead of an error in the vendor's shape


@dataclass(slots=True)
class Api:
    """`answer` gets the request's body and gives a text, several texts, or a `Fault`."""

    answer: Callable[[dict[str, Any]], Any]
    delay_s: float = 0.0
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    model_info: dict[str, Any] = field(default_factory=lambda: {"model_path": "some/model"})
    in_flight: int = 0
    most_in_flight: int = 0
    gone: int = 0  # clients that went away before their answer


class UntilAsked:
    """`asyncio` for `retry`, and its loop: an attempt's time is over as soon as the server has its request."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._skipped_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    def get_running_loop(self) -> UntilAsked:
        return self

    def time(self) -> float:
        return asyncio.get_running_loop().time() + self._skipped_s

    def call_at(self, due_s: float, call: Callable[..., object], *given: object) -> _Timer:
        """`call`, at a time that comes with the next request."""
        return _Timer(self, due_s, partial(call, *given))

    def asked(self) -> int:
        return len(self._api.bodies)

    def skip_to(self, due_s: float) -> None:
        self._skipped_s = max(self._skipped_s, due_s - asyncio.get_running_loop().time())


class _Timer:
    """A timer of the loop that `UntilAsked` is."""

    def __init__(self, clock: UntilAsked, due_s: float, call: Callable[[], object]) -> None:
        self._clock, self._due_s, self._call = clock, due_s, call
        self._before = clock.asked()
        self._again = asyncio.get_running_loop().call_soon(self._look)

    def when(self) -> float:
        return self._due_s

    def cancel(self) -> None:
        self._again.cancel()

    def _look(self) -> None:
        if self._clock.asked() == self._before:
            self._again = asyncio.get_running_loop().call_later(0.002, self._look)
            return
        self._clock.skip_to(self._due_s)
        self._call()


@contextmanager
def serving(answer: Callable[[dict[str, Any]], Any], *, delay_s: float = 0.0) -> Iterator[Api]:
    """A server on a port of its own, in a thread, until the block ends."""
    api = Api(answer, delay_s)
    config = uvicorn.Config(
        _app(api), host="127.0.0.1", port=0, log_level="critical", ws="none", lifespan="off"
    )
    server = _Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert server.begun.wait(60)
    port = server.servers[0].sockets[0].getsockname()[1]
    api.url = f"http://127.0.0.1:{port}/v1"
    yield api
    server.end()
    thread.join(10)


class _Server(uvicorn.Server):
    """Ends when it is told to, and not up to a tenth of a second later."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun = threading.Event()

    async def main_loop(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        await self.on_tick(0)  # the date of its answers
        self.begun.set()
        await self._over.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await asyncio.sleep(0)  # they close in the next round

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)


def _app(api: Api) -> FastAPI:
    app = FastAPI()

    @app.get("/get_model_info")
    async def model_info() -> Response:
        return JSONResponse(api.model_info)

    @app.post("/{path:path}")
    async def respond(path: str, request: Request) -> Response:
        body = await request.json()
        api.bodies.append(body)
        api.headers.append(dict(request.headers))
        api.paths.append(request.url.path)
        api.in_flight += 1
        api.most_in_flight = max(api.most_in_flight, api.in_flight)
        try:
            for _ in range(round(api.delay_s / 0.005)):
                await asyncio.sleep(0.005)
                if await request.is_disconnected():
                    api.gone += 1
                    break
            found = api.answer(body)
        finally:
            api.in_flight -= 1
        chat, vendor = "chat" in path, vendor_of(path)
        if isinstance(found, Fault) and found.status:
            text = error_body(vendor, found.status, found.code) if found.body is None else found.body
            return Response(text, found.status, headers=found.headers, media_type="application/json")
        if path == "generate" and not isinstance(found, Fault):
            return JSONResponse(found) if isinstance(found, list) else _generated(found, body)
        if vendor != "openai":
            return _of_vendor(vendor, found, body, streams="stream" in body or "stream" in path)
        if isinstance(found, dict):
            return JSONResponse(found)
        if body.get("stream"):
            return StreamingResponse(_chunks(found, body, chat), media_type="text/event-stream")
        if isinstance(found, Fault):
            return StreamingResponse(_broken(found.said), media_type="application/json")
        return JSONResponse(_whole(found, body, chat))

    return app


def _of_vendor(vendor: str, found: Any, body: dict[str, Any], *, streams: bool) -> Response:
    if isinstance(found, dict):
        return JSONResponse(found)
    said = found.said if isinstance(found, Fault) else found if isinstance(found, str) else found[0]
    breaks = isinstance(found, Fault)
    if streams:
        chunks = (anthropic_chunks if vendor == "anthropic" else gemini_chunks)(said, body, breaks=breaks)
        return StreamingResponse(_one_by_one(chunks, breaks), media_type="text/event-stream")
    if breaks:
        return StreamingResponse(_broken(said), media_type="application/json")
    texts = [found] if isinstance(found, str) else found
    return JSONResponse(anthropic_whole(said, body) if vendor == "anthropic" else gemini_whole(texts, body))


async def _one_by_one(chunks: Iterator[str], breaks: bool) -> AsyncIterator[str]:
    for chunk in chunks:
        yield chunk
        await asyncio.sleep(0.002)
    if breaks:
        raise ConnectionAbortedError


def _generated(said: str, body: dict[str, Any]) -> Response:
    """SGLang's answer; a stream has all the text so far in each chunk."""
    words = re.findall(r"\s*\S+", said)
    parts = [
        {
            "text": "".join(words[:count]),
            "meta_info": {
                "prompt_tokens": len(body["text"].split()),
                "completion_tokens": count,
                "cached_tokens": 1,
                "finish_reason": {"type": "stop"} if count == len(words) else None,
            },
        }
        for count in range(1, len(words) + 1)
    ]
    if not body.get("stream"):
        return JSONResponse(parts[-1])
    lines = [*(f"data: {json.dumps(part)}\n\n" for part in parts), "data: [DONE]\n\n"]
    return StreamingResponse(iter(lines), media_type="text/event-stream")


async def _broken(said: str) -> AsyncIterator[str]:
    yield '{"choices": [{"index": 0, "message": {"role": "assistant", "content": "' + said
    await asyncio.sleep(0.01)
    raise ConnectionAbortedError


def _usage(body: dict[str, Any], texts: list[str]) -> dict[str, Any]:
    prompt = json.dumps(body.get("messages") or body.get("prompt")).split()
    return {
        "prompt_tokens": len(prompt),
        "completion_tokens": sum(len(text.split()) for text in texts),
        "total_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


def _whole(found: Any, body: dict[str, Any], chat: bool) -> dict[str, Any]:
    if isinstance(found, dict):
        return found
    texts = [found] if isinstance(found, str) else found
    choices = [
        {
            "index": number,
            "finish_reason": "stop",
            "logprobs": None,
            **({"message": {"role": "assistant", "content": text}} if chat else {"text": text}),
        }
        for number, text in enumerate(texts)
    ]
    return {
        "id": "x", "object": "chat.completion", "created": 0, "model": body["model"], "choices": choices,
        "usage": _usage(body, texts),
    }  # fmt: skip


async def _chunks(found: Any, body: dict[str, Any], chat: bool) -> AsyncIterator[str]:
    def chunk(choices: list[dict[str, Any]], **more: Any) -> str:
        data = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
        return f"data: {json.dumps({**data, 'choices': choices, **more})}\n\n"

    said = found.said if isinstance(found, Fault) else found
    for text in re.findall(r"\s*\S+|\s+\Z", said):
        piece = {"delta": {"content": text}} if chat else {"text": text}
        yield chunk([{"index": 0, **piece, "finish_reason": None}])
        await asyncio.sleep(0.002)
    if isinstance(found, Fault):
        raise ConnectionAbortedError
    end = {"delta": {}} if chat else {"text": ""}  # type: ignore[dict-item]
    yield chunk([{"index": 0, **end, "finish_reason": "stop"}])
    yield chunk([], usage=_usage(body, [said]))
    yield "data: [DONE]\n\n"
