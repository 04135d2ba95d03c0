"""The server's endpoints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sglc.errors import SglcError
from sglc.ir.sampling import Sampling
from sglc.serve import chat, completions, generate, programs, sampling
from sglc.serve.access_log import REQUEST_ID
from sglc.serve.answers import Answer
from sglc.serve.bodies import ChatBody, CompletionBody, GenerateBody, ProgramBody, Sampled
from sglc.serve.direct import Direct, Endpoints
from sglc.serve.hints import allowed_hints, hinted_priority
from sglc.serve.keys import share_of
from sglc.serve.limits import allowed_priority, check_counts, check_lists, check_sizes
from sglc.serve.logprobs import Spelling
from sglc.serve.ollama import add_ollama, of_any_type
from sglc.serve.problems import DESCRIBED, Refusal, as_json, as_response, bad, in_pieces, of_any
from sglc.serve.prompts import ServedPrompt, at_once_or_apart, calling_of, of_chat
from sglc.serve.reading import JsonRoute
from sglc.serve.sending import EventStream, Gone, Nothing, described, first_of, while_connected
from sglc.serve.service import Service, check_model, prompts_of, tags_of
from sglc.serve.state import add_state
from sglc.serve.token_ids import add_token_ids
from sglc.serve.tools import Calling
from sglc.serve.work import Work, done, pieces

_PLACES = 4_096  # log-probabilities that are written down where nothing else is done meanwhile
_BY_A_GATEWAY = (
    "is not there: ask `/v1/chat/completions`, or put a gateway before this server that "
    "translates it, as `smg` does before `--grpc-port`"
)
# What clients of OpenAI and Anthropic ask for besides.
_NOT_THERE = {
    "/v1/responses": _BY_A_GATEWAY,
    "/v1/messages": _BY_A_GATEWAY,
    "/v1/embeddings": "is not there: this model makes texts",
}


def make_app(service: Service) -> FastAPI:
    """The endpoints, as the framework has and describes them."""
    return _made(service)[0]


def make_direct(service: Service) -> ASGIApp:
    """The endpoints, for whom `guarded` lets in."""
    app, endpoints = _made(service)
    return Direct(app, endpoints, service.limits, service.max_len)


def _made(service: Service) -> tuple[FastAPI, Endpoints]:
    app = FastAPI(
        title="sglc",
        max_body_size=service.limits.body,
        responses={"default": DESCRIBED},
        redirect_slashes=False,  # to a place that is made of the client's `Host`
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        telemetry={"exclude": lambda scope: True},  # it tells of paths and bodies; we have spans of our own
    )
    app.router.route_class = JsonRoute
    for kind in (Refusal, SglcError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _refused)
    endpoints = {**_add_openai(app, service), **_add_generate(app, service)}
    endpoints |= {**add_token_ids(app, service), **_add_programs(app, service)}

    async def prompted(request: Request, body: ChatBody | CompletionBody) -> ServedPrompt:
        if isinstance(body, ChatBody):
            return (await _of_conversation(service, request, body))[0].prompts[0]
        (prompt,) = await prompts_of(service, body.prompt, "prompt", body.n)
        _let_in(service, request, body.n)
        return prompt

    add_ollama(app, service, prompted)
    app.add_middleware(of_any_type)
    app.add_middleware(_heads_as_gets)
    add_state(app, service)
    service.metrics.model = service.name
    paths = {route.path_format for route in app.routes if isinstance(route, Route)}
    patterns = {path for path in paths if "{" in path}
    service.metrics.paths = frozenset(paths - patterns)
    service.metrics.patterns = {path.partition("{")[0]: path for path in patterns}
    return app, endpoints


async def _refused(request: Request, error: Exception) -> Response:
    field = getattr(request.scope.get("route"), "body_field", None)
    refusal = of_any(error, None if field is None else field.field_info.annotation)
    response = as_response(refusal, request.url.path)
    allowed = error.headers.get("Allow") if isinstance(error, HTTPException) and error.headers else None
    if allowed is not None:
        response.headers["allow"] = "GET, HEAD" if "GET" in allowed else allowed
    return response


def _heads_as_gets(app: ASGIApp) -> ASGIApp:
    """`app`, which answers `HEAD` as `GET`: the connection, which knows better, sends no body."""

    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope, receive, send)

    return asked


# -- generation ------------------------------------------------------------------------------------


def _add_openai(app: FastAPI, service: Service) -> Endpoints:
    spelling = Spelling(service.tokenizer)

    model = {
        "id": service.name,
        "object": "model",
        "created": 0,
        "owned_by": "sglc",
        "max_model_len": service.max_len,
    }

    @app.get("/v1/models")
    async def models() -> Response:
        return as_json({"object": "list", "data": [model]})

    @app.get("/v1/models/{name:path}")
    async def retrieve(name: str) -> Response:
        check_model(service, name)
        return as_json(model)

    @app.post("/v1/responses", include_in_schema=False)
    @app.post("/v1/messages", include_in_schema=False)
    @app.post("/v1/embeddings", include_in_schema=False)
    async def absent(request: Request) -> Response:
        path = request.url.path
        raise Refusal(404, f"`{path}` {_NOT_THERE[path]}", code="not_found")

    @app.post("/v1/completions", responses=described(EventStream))
    async def complete(body: CompletionBody, request: Request) -> Response:
        check_model(service, body.model)
        _check_logprobs(service, body.logprobs is not None)
        prompts = await prompts_of(service, body.prompt, "prompt", body.n)
        asked = sampling.of_completion(body, service.limits)
        work = _work(service, request, "completions", prompts, asked, body)
        _let_in(service, request, work.choices)
        answer = Answer("text_completion", "cmpl", service.name, spelling)
        if body.stream:
            return await _stream(
                service, request, completions.chunks(answer, body, work, pieces(service.backend, work))
            )
        return await _whole(
            request, _ends(service, work, lambda ends: completions.whole(answer, body, work, ends))
        )

    @app.post("/v1/chat/completions", responses=described(EventStream))
    async def converse(body: ChatBody, request: Request) -> Response:
        check_model(service, body.model)
        _check_logprobs(service, body.logprobs)
        work, calling = await _of_conversation(service, request, body)
        apart = body.separate_reasoning and not body.continue_final_message  # which goes on with an answer
        tags = tags_of(service, work.sampling) if apart else None
        if body.stream:
            answer = Answer("chat.completion.chunk", "chatcmpl", service.name, spelling, tags)
            return await _stream(
                service, request, chat.chunks(answer, body, work, pieces(service.backend, work), calling)
            )
        answer = Answer("chat.completion", "chatcmpl", service.name, spelling, tags)
        return await _whole(request, _ends(service, work, lambda ends: chat.whole(answer, body, ends, calling)))

    return {"/v1/completions": (CompletionBody, complete), "/v1/chat/completions": (ChatBody, converse)}


def _add_generate(app: FastAPI, service: Service) -> Endpoints:
    spelling = Spelling(service.tokenizer)

    @app.post("/generate", responses=described(EventStream))
    async def answer(body: GenerateBody, request: Request) -> Response:
        began = time.perf_counter()
        _check_logprobs(service, body.return_logprob)
        field, given = body.prompts
        prompts = await prompts_of(service, given, field, body.sampling_params.n)
        work = _work(service, request, "generate", prompts, sampling.of_generate(body, service.limits), body)
        _let_in(service, request, work.choices, body.request_id)
        made = Answer("", "", service.name, spelling)
        if body.stream:
            parts = generate.chunks(made, body, work, pieces(service.backend, work), began)
            return await _stream(service, request, parts)
        return await _whole(
            request, _ends(service, work, lambda ends: generate.whole(made, body, work, ends, began))
        )

    return {"/generate": (GenerateBody, answer)}


def _add_programs(app: FastAPI, service: Service) -> Endpoints:
    @app.post("/v1/programs", responses=described(EventStream))
    async def run(body: ProgramBody, request: Request) -> Response:
        check_model(service, body.model)
        priority = allowed_priority(service.limits, request.scope, body.priority)
        # To look at a plan takes as long as some steps of the model.
        program = await asyncio.to_thread(programs.program_of, service, body, priority, share_of(request.scope))
        _let_in(service, request, program.width)
        return await _stream(service, request, programs.events(program))

    return {"/v1/programs": (ProgramBody, run)}


async def _of_conversation(service: Service, request: Request, body: ChatBody) -> tuple[Work, Calling | None]:
    """What a chat asks for, which is let in, and how its answer may call tools."""
    # Not all came by `Direct`.
    check_lists(service.limits, {"messages": body.messages, "tools": body.tools}, service.max_len)
    texts = body.texts
    check_counts(service.limits, ("",), "messages", body.n)
    check_sizes(["".join(texts)], "messages", service.max_len, service.limits.characters)
    _let_in(service, request, body.n)
    return await at_once_or_apart(texts, _of_chat, service, request, body)


def _of_chat(service: Service, request: Request, body: ChatBody) -> tuple[Work, Calling | None]:
    prompt = of_chat(service.tokenizer, body)
    calling = calling_of(service.tokenizer, body, held=service.backend.target.holds_forms)
    most = min(service.limits.chat_tokens, service.max_len - len(prompt.ids))
    how = calling.how if calling is not None else None
    asked = sampling.of_chat(body, most, service.limits, how)
    return _work(service, request, "chat", (prompt,), asked, body), calling


def _work(
    service: Service,
    request: Request,
    kind: str,
    prompts: Sequence[ServedPrompt],
    asked: Sampling,
    body: Sampled | GenerateBody,
) -> Work:
    limits, scope = service.limits, request.scope
    allowed = allowed_priority(limits, scope, body.priority or hinted_priority(body.nvext))
    hints, room = allowed_hints(limits, scope, body.kv_hints)
    names = partial(sampling.names_of, body) if isinstance(body, Sampled) else dict
    return Work(kind, prompts, asked, allowed, share_of(scope), body.cache_salt, hints, room, names)


def _let_in(service: Service, request: Request, texts: int, rid: str | None = None) -> None:
    """So many texts are going to be made, which can be aborted by the request's ids."""
    service.queue.let_in(request.scope, texts, service.limits.queue)
    names = (rid, request.scope.get(REQUEST_ID))
    service.drain.name(request.scope, *(name for name in names if name is not None))


async def _ends(service: Service, work: Work, shape: Callable[[Any], Any]) -> Any:
    ends = await done(service.backend, work)
    places = sum(len(end.prompt_logprobs) + sum(len(sample.ids) for sample in end.samples) for end in ends)
    if places * (1 + work.sampling.top_logprobs) <= _PLACES:
        return shape(ends)
    return await asyncio.to_thread(lambda: in_pieces(shape(ends)))


async def _whole(request: Request, content: Coroutine[Any, Any, Any]) -> Response:
    try:
        return as_json(await while_connected(request.receive, content))
    except Gone:
        return Nothing()


async def _stream(service: Service, request: Request, parts: AsyncGenerator[list[Any], None]) -> Response:
    """What fails before the first part is an ordinary error: the status is not sent before."""
    try:
        first = await while_connected(request.receive, first_of(parts))
    except Gone:
        return Nothing()
    return EventStream(first, parts, service.stall_s)


def _check_logprobs(service: Service, wanted: bool) -> None:
    if wanted and not service.backend.target.scores_tokens:
        raise bad("logprobs", "cannot be had: this back end has no log-probabilities", "unsupported_value")
