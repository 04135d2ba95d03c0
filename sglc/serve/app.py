"""The server's endpoints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from sglc.errors import SglcError
from sglc.serve import chat, completions, generate, sampling
from sglc.serve.answers import Answer
from sglc.serve.bodies import ChatBody, CompletionBody, GenerateBody
from sglc.serve.direct import Direct, Endpoints
from sglc.serve.drain import Drain
from sglc.serve.exposition import Exposition
from sglc.serve.limits import Limits, Queue, check_counts, check_sizes
from sglc.serve.logprobs import Spelling
from sglc.serve.metrics import Metrics
from sglc.serve.problems import DESCRIBED, Refusal, as_json, as_response, bad, of_any
from sglc.serve.prompts import ServedPrompt, ServedTokenizer, of_chat, of_given
from sglc.serve.sending import EventStream, Gone, Nothing, while_connected
from sglc.serve.work import ServedBackend, Work, done, pieces

_AT_ONCE = 4_000  # characters, or ids, that are tokenized where nothing else is done meanwhile
_HEALTH_S = 5.0  # how long the runtime may take to say how it is

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Service:
    """What is served, and how.

    Args:
        name: of the model, as requests name it.
        max_len: tokens of a prompt and its answer together.
        stall_s: as in `EventStream`.
    """

    backend: ServedBackend
    tokenizer: ServedTokenizer
    name: str
    max_len: int
    stall_s: float = 60.0
    limits: Limits = field(default_factory=Limits)
    drain: Drain = field(default_factory=Drain)
    queue: Queue = field(default_factory=Queue)
    metrics: Metrics = field(default_factory=Metrics)


def make_app(service: Service) -> FastAPI:
    """The endpoints, as the framework has and describes them."""
    return _made(service)[0]


def make_direct(service: Service) -> ASGIApp:
    """The endpoints, for whom `guarded` lets in."""
    app, endpoints = _made(service)
    return Direct(app, endpoints, service.limits.body, service.max_len)


def _made(service: Service) -> tuple[FastAPI, Endpoints]:
    app = FastAPI(
        title="sglc",
        max_body_size=service.limits.body,
        responses={"default": DESCRIBED},
        telemetry={"exclude": lambda scope: True},  # it tells of paths and bodies; we have spans of our own
    )
    for kind in (Refusal, SglcError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _refused)
    endpoints = {**_add_openai(app, service), **_add_generate(app, service)}
    _add_state(app, service)
    service.metrics.model = service.name
    service.metrics.paths = frozenset(route.path for route in app.routes if isinstance(route, Route))
    return app, endpoints


async def _refused(request: Request, error: Exception) -> Response:
    return as_response(of_any(error))


# -- generation ------------------------------------------------------------------------------------


def _add_openai(app: FastAPI, service: Service) -> Endpoints:
    spelling = Spelling(service.tokenizer)

    @app.get("/v1/models")
    async def models() -> Response:
        model = {
            "id": service.name,
            "object": "model",
            "created": 0,
            "owned_by": "sglc",
            "max_model_len": service.max_len,
        }
        return as_json({"object": "list", "data": [model]})

    @app.post("/v1/completions")
    async def complete(body: CompletionBody, request: Request) -> Response:
        _check_model(service, body.model)
        _check_logprobs(service, body.logprobs is not None)
        prompts = await _given(service, body.prompt, "prompt", body.n)
        work = Work("completions", prompts, sampling.of_completion(body))
        service.queue.let_in(request.scope, work.choices, service.limits.queue)
        answer = Answer("text_completion", "cmpl", service.name, spelling)
        if body.stream:
            return await _stream(
                service, request, completions.chunks(answer, body, work, pieces(service.backend, work))
            )
        return await _whole(
            service, request, _ends(service, work, lambda ends: completions.whole(answer, body, work, ends))
        )

    @app.post("/v1/chat/completions")
    async def converse(body: ChatBody, request: Request) -> Response:
        _check_model(service, body.model)
        _check_logprobs(service, body.logprobs)
        texts = [turn.content for turn in body.messages]
        check_counts(service.limits, ("",), "messages", body.n)
        check_sizes(["".join(texts)], "messages", service.max_len, service.limits.characters)
        service.queue.let_in(request.scope, body.n, service.limits.queue)
        prompt = await _at_once_or_apart(texts, of_chat, service.tokenizer, body)
        work = Work(
            "chat",
            (prompt,),
            sampling.of_chat(body, min(service.limits.chat_tokens, service.max_len - len(prompt.ids))),
        )
        if body.stream:
            answer = Answer("chat.completion.chunk", "chatcmpl", service.name, spelling)
            return await _stream(
                service, request, chat.chunks(answer, body, work, pieces(service.backend, work))
            )
        answer = Answer("chat.completion", "chatcmpl", service.name, spelling)
        return await _whole(
            service, request, _ends(service, work, lambda ends: chat.whole(answer, body, work, ends))
        )

    return {"/v1/completions": (CompletionBody, complete), "/v1/chat/completions": (ChatBody, converse)}


def _add_generate(app: FastAPI, service: Service) -> Endpoints:
    spelling = Spelling(service.tokenizer)

    @app.post("/generate")
    async def answer(body: GenerateBody, request: Request) -> Response:
        began = time.perf_counter()
        _check_logprobs(service, body.return_logprob)
        field, given = body.prompts
        prompts = await _given(service, given, field, body.sampling_params.n)
        work = Work("generate", prompts, sampling.of_generate(body))
        service.queue.let_in(request.scope, work.choices, service.limits.queue)
        made = Answer("", "", service.name, spelling)
        if body.stream:
            parts = generate.chunks(made, body, work, pieces(service.backend, work), began)
            return await _stream(service, request, parts)
        return await _whole(
            service, request, _ends(service, work, lambda ends: generate.whole(made, body, work, ends, began))
        )

    return {"/generate": (GenerateBody, answer)}


async def _given(service: Service, given: Sequence[Any], field: str, samples: int) -> list[ServedPrompt]:
    check_counts(service.limits, given, field, samples)
    check_sizes(given, field, service.max_len, service.limits.characters)
    return await _at_once_or_apart(given, of_given, service.tokenizer, given, field, service.max_len)


async def _at_once_or_apart(given: Sequence[Any], made: Callable[..., _T], *arguments: Any) -> _T:
    """What is `made` of texts or lists of ids: in a thread, unless to hand it over would take longer."""
    if len(given) + sum(map(len, given)) <= _AT_ONCE:
        return made(*arguments)
    return await asyncio.to_thread(made, *arguments)


async def _ends(service: Service, work: Work, shape: Callable[[Any], Any]) -> Any:
    return shape(await done(service.backend, work))


async def _whole(service: Service, request: Request, content: Coroutine[Any, Any, Any]) -> Response:
    try:
        return as_json(await while_connected(request.receive, content))
    except Gone:
        return Nothing()


async def _stream(service: Service, request: Request, parts: AsyncGenerator[list[Any], None]) -> Response:
    """What fails before the first part is an ordinary error: the status is not sent before."""
    try:
        first = await while_connected(request.receive, _first(parts))
    except Gone:
        return Nothing()
    return EventStream(first, parts, service.stall_s)


async def _first(parts: AsyncGenerator[list[Any], None]) -> list[Any]:
    return await anext(parts)


def _check_model(service: Service, model: str | None) -> None:
    if model not in (None, service.name):
        message = f"there is no model `{model}` here; this server has `{service.name}`"
        raise Refusal(404, message, param="model", code="model_not_found")


def _check_logprobs(service: Service, wanted: bool) -> None:
    if wanted and not service.backend.target.scores_tokens:
        raise bad("logprobs", "cannot be had: this back end has no log-probabilities", "unsupported_value")


# -- state -----------------------------------------------------------------------------------------


def _add_state(app: FastAPI, service: Service) -> None:
    backend, tokenizer = service.backend, service.tokenizer
    info = _Shared(lambda: asyncio.to_thread(backend.server_info))
    flush = _Shared(lambda: asyncio.to_thread(backend.flush_cache))
    exposition = Exposition(service.metrics)

    @app.get("/health")
    @app.get("/health_generate", include_in_schema=False)
    async def health() -> Response:
        try:
            async with asyncio.timeout(_HEALTH_S):
                await info.ask()
        except TimeoutError:
            message = "the runtime does not answer: it is loading the model, or very busy"
            return as_response(Refusal(503, message, code="not_ready"))
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
                "concurrency": backend.target.concurrency,
                "scores_tokens": backend.target.scores_tokens,
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

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        try:
            async with asyncio.timeout(_HEALTH_S):
                known = await info.ask()
        except (TimeoutError, SglcError):
            known = None
        text, kind = exposition.text(known, request.headers.get("accept", ""))
        return Response(text, headers={"content-type": kind})

    @app.post("/flush_cache")
    async def flush_cache() -> Response:
        await flush.ask()
        return as_json({"flushed": True})


class _Shared:
    """A question to the runtime that takes a thread: who asks while one is under way gets its answer."""

    def __init__(self, question: Callable[[], Awaitable[Any]]) -> None:
        self._question = question
        self._asked: asyncio.Future[Any] | None = None

    async def ask(self) -> Any:
        """The answer."""
        if self._asked is None or self._asked.done():
            self._asked = asyncio.ensure_future(self._question())
        return await asyncio.shield(self._asked)
