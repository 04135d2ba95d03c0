"""Endpoints that show the server, or change it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import PlainTextResponse, Response

from sglc.errors import SglcError
from sglc.ir.plan.hints import HINTS_VERSION
from sglc.ir.plan.plan_json import PLAN_VERSION
from sglc.serve.bodies import AbortBody
from sglc.serve.exposition import Exposition
from sglc.serve.problems import Refusal, as_json
from sglc.serve.service import Service

_METRICS: dict[int | str, dict[str, Any]] = {200: {"content": {"application/openmetrics-text": {}}}}
HEALTH_S = 5.0  # how long the runtime may take to say how it is


def add_state(app: FastAPI, service: Service) -> None:
    """Have `app` answer them."""
    backend, tokenizer = service.backend, service.tokenizer
    info = Shared(lambda: asyncio.to_thread(backend.server_info))
    flush = Shared(lambda: asyncio.to_thread(backend.flush_cache))
    exposition = Exposition(service.metrics)

    @app.get("/health")
    @app.get("/health_generate", include_in_schema=False)
    async def health() -> Response:
        try:
            async with asyncio.timeout(HEALTH_S):
                await info.ask()
        except TimeoutError:
            message = "the runtime does not answer: it is loading the model, or very busy"
            raise Refusal(503, message, code="not_ready") from None
        return as_json({"status": "ok"})

    @app.get("/get_model_info")
    @app.get("/model_info", include_in_schema=False)
    async def model_info() -> Response:
        return as_json(
            {
                "model_path": service.name,
                "served_model_name": service.name,
                "is_generation": True,
                "has_image_understanding": False,
                "tokenizer_hash": tokenizer.hash,
                "chat_template": tokenizer.template,
                "special_tokens": tokenizer.named,
                "control_tokens": {text: id_ for id_, text in tokenizer.control.items()},
                "bos_id": tokenizer.bos_id,
                "eos_ids": tokenizer.eos_ids,
                "vocab_size": len(tokenizer.token_bytes()),
                "max_model_len": service.max_len,
                "concurrency": min(backend.target.concurrency, service.limits.queue),
                "scores_tokens": backend.target.scores_tokens,
                "plan_version": PLAN_VERSION,
                "hints_version": HINTS_VERSION if service.limits.hint_tokens else 0,
            }
        )

    @app.get("/get_server_info")
    @app.get("/server_info", include_in_schema=False)
    async def server_info() -> Response:
        told = {
            "served_model_name": service.name,
            "limits": asdict(service.limits),
            "active_requests": service.metrics.active,
        }
        return as_json({**told, **await info.ask()})

    @app.get("/metrics", response_class=PlainTextResponse, responses=_METRICS)
    async def metrics(request: Request) -> Response:
        known = backend.recent_info()
        if known is None:
            with suppress(TimeoutError, SglcError):
                async with asyncio.timeout(HEALTH_S):
                    known = await info.ask()
        text, kind = exposition.text(known, request.headers.get("accept", ""))
        return Response(text, headers={"content-type": kind})

    @app.get("/v1/loads")
    async def loads() -> Response:
        load = load_of(await info.ask(), service.limits.queue)
        return as_json({"timestamp": time.time(), "dp_rank_count": 1, "loads": [{"dp_rank": 0, **load}]})

    @app.get("/get_load")
    async def get_load() -> Response:
        load = load_of(await info.ask(), service.limits.queue)
        told = {
            "num_reqs": load["num_running_reqs"] + load["num_waiting_reqs"],
            "num_waiting_reqs": load["num_waiting_reqs"],
            "num_tokens": load["num_used_tokens"],
        }
        return as_json([{"dp_rank": 0, **told}])

    @app.post("/abort_request")
    async def abort_request(body: AbortBody) -> Response:
        if not (body.rid or body.abort_all):
            raise Refusal(400, "`rid` is missing", param="rid", code="missing_field")
        return as_json({"aborted": service.drain.abort(None if body.abort_all else body.rid)})

    @app.post("/flush_cache")
    async def flush_cache() -> Response:
        await flush.ask()
        return as_json({"flushed": True})


def load_of(info: Mapping[str, Any], queue: int) -> dict[str, Any]:
    """How busy the runtime is, under SGLang's names; a back end without rows and pages is not.

    Who asks for more at once than `queue`, that of `Limits`, is refused, however many rows there are.
    """
    size, pages, used = info.get("page_size", 0), info.get("pages", 0), info.get("used_pages", 0)
    return {
        "num_running_reqs": info.get("running_rows", 0),
        "num_waiting_reqs": info.get("waiting_rows", 0),
        "num_used_tokens": used * size,
        "max_total_num_tokens": pages * size,
        "token_usage": used / pages if pages else 0.0,
        "max_running_requests": min(info.get("max_rows", 0), queue),
    }


class Shared:
    """A question to the runtime that takes a thread: who asks while one is under way gets its answer."""

    def __init__(self, question: Callable[[], Awaitable[Any]]) -> None:
        self._question = question
        self._asked: asyncio.Future[Any] | None = None

    async def ask(self) -> Any:
        """The answer."""
        if self._asked is None or self._asked.done():
            self._asked = asyncio.ensure_future(self._question())
        return await asyncio.shield(self._asked)
