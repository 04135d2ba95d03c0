"""An OpenTelemetry span for each request, below that of its client if it sent a `traceparent`.

Only where the process has configured a tracer provider, as `opentelemetry-instrument sglc serve` does; nothing
is imported for that here. There is nothing of prompts, answers, queries, headers or unknown paths in a span.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import Any

from starlette.types import Scope

from sglc.serve.metrics import OTHER, Spent

_MODULE = "opentelemetry.trace"
_INSTRUMENTATION = "opentelemetry.instrumentation.utils"
OPERATIONS = {  # of what makes texts, by path
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/programs": "invoke_workflow",
    "/generate": "text_completion",
    "/api/chat": "chat",
    "/api/generate": "text_completion",
    "/sglang.grpc.scheduler.SglangScheduler/Generate": "text_completion",
}


class RequestSpan:
    """The span of a request, under the names of the conventions for HTTP and generative AI.

    It is the current one until it ends. Nobody else makes one of the request then: FastAPI's instrumentation
    would tell of its query.
    """

    def __init__(self, api: Any, span: Any) -> None:
        self._api = api
        self._span = span
        self._current = ExitStack()
        self._current.enter_context(api.use_span(span))
        if (others := sys.modules.get(_INSTRUMENTATION)) is not None:
            self._current.enter_context(others.suppress_http_instrumentation())

    @staticmethod
    def begun(scope: Scope, kind: tuple[str, str], model: str) -> RequestSpan | None:
        """The span of a request that begins now; None if nobody records spans. `kind`: as of `Metrics.asks`."""
        api = sys.modules.get(_MODULE)
        if api is None:
            return None
        path, method = kind
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        propagate: Any = sys.modules.get("opentelemetry.propagate")
        attributes = {"http.request.method": "_OTHER" if method == OTHER else method}
        if "scheme" in scope:
            attributes["url.scheme"] = scope["scheme"]
        if path != OTHER:
            attributes["http.route"] = path
        if path == scope["path"]:  # else it is the client's
            attributes["url.path"] = path
        name = "HTTP" if method == OTHER else method
        span = api.get_tracer("sglc").start_span(
            name if path == OTHER else f"{name} {path}",
            context=None if propagate is None else propagate.extract(carrier),
            kind=api.SpanKind.SERVER,
            attributes=attributes,
        )
        if not span.get_span_context().is_valid:
            return None
        if operation := OPERATIONS.get(path):
            span.set_attributes(
                {
                    "gen_ai.operation.name": operation,
                    "gen_ai.provider.name": "sglc",
                    "gen_ai.request.model": model,
                }
            )
        return RequestSpan(api, span)

    def end(self, request_id: str, spent: Spent, status: int | None, complete: bool) -> None:
        """The request is over. `status` None: it has none; `complete`: its answer was read to the end."""
        span = self._span
        span.set_attribute("sglc.request.id", request_id)
        if status is not None:
            span.set_attribute("http.response.status_code", status)
        error = spent.code or (None if complete else "aborted")
        if spent.prompt is not None:
            span.set_attribute("gen_ai.usage.input_tokens", spent.prompt)
            if spent.completion or error is None:  # else that is known of no text
                span.set_attribute("gen_ai.usage.cache_read.input_tokens", spent.cached)
                span.set_attribute("gen_ai.usage.output_tokens", spent.completion or 0)
        if spent.first_s is not None:
            ago_ns = int((time.perf_counter() - spent.first_s) * 1e9)
            span.add_event("gen_ai.first_token", timestamp=time.time_ns() - ago_ns)
        if error is not None:
            span.set_attribute("error.type", error)
        if status is not None and status >= 500:
            span.set_status(self._api.Status(self._api.StatusCode.ERROR))
        self._current.close()
        span.end()
