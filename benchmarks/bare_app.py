"""What the framework does alone: a FastAPI application that reads JSON and answers JSON, or events.

python -m benchmarks.bare_app WORDS   # of an answer, each an event
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from sglc.serve.server import bound_socket


def make_app(words: int) -> FastAPI:
    """One endpoint, whose answers are as long as those of `sglc serve`."""
    app = FastAPI()
    head = {"id": "cmpl-" + "0" * 32, "object": "text_completion", "created": 0, "model": "bare"}

    def chunk(text: str, finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
        return {**head, "choices": [choice]}

    async def events() -> AsyncIterator[bytes]:
        for number in range(words + 1):
            made = chunk(" word", None) if number < words else chunk("", "stop")
            yield b"data: " + json.dumps(made).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    @app.post("/v1/completions")
    async def complete(request: Request) -> Response:
        body = await request.json()
        if body.get("stream"):
            return StreamingResponse(events(), media_type="text/event-stream")
        usage = {"prompt_tokens": 4, "completion_tokens": words, "total_tokens": words + 4}
        return JSONResponse({**chunk(" word" * words, "stop"), "usage": usage})

    return app


def main(words: int) -> None:
    """Serve until a signal."""
    with bound_socket("127.0.0.1", 0) as listening:
        listening.listen(2048)
        print(f"bare: serving at http://127.0.0.1:{listening.getsockname()[1]}", file=sys.stderr, flush=True)
        config = uvicorn.Config(make_app(words), log_level="warning", access_log=False, lifespan="off")
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(int(sys.argv[1]))
