"""Ollama's protocol, as far as texts go: `/api/generate`, `/api/chat`, `/api/tags`, `/api/show`.

What is asked becomes a request of OpenAI's protocol, and is answered as that is, in Ollama's words: lines of
JSON unless `stream` is false. Shapes and defaults are those of Ollama's published description of its API.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI, Request
from pydantic import ValidationError
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sglc.errors import SglcError
from sglc.frontend.language.reasoning import Splitter
from sglc.serve import sampling
from sglc.serve.bodies import ChatBody, CompletionBody, OllamaBody, OllamaChat, OllamaGenerate, OllamaShow
from sglc.serve.chat import told_apart
from sglc.serve.keys import share_of
from sglc.serve.problems import OLLAMAS, Refusal, as_json, as_response, bad, error_described, of_any, of_body
from sglc.serve.prompts import ServedPrompt, reasons
from sglc.serve.sending import Gone, JsonLines, Nothing, described, first_of, while_connected
from sglc.serve.service import Service, check_model, tags_of
from sglc.serve.work import Work, pieces

# What makes a prompt of a conversation or of a raw text, once the request is let in.
Prompted = Callable[[Request, ChatBody | CompletionBody], Awaitable[ServedPrompt]]
_VERSION = "0.12.0"  # of the API as it is described, for clients that ask
# As `DESCRIBED`, of errors that are texts.
_REFUSED: dict[int | str, dict[str, Any]] = {"default": error_described({"type": "string"})}
_NOT_KEPT = (0, "0", "0s", "0m", "0h")  # values of `keep_alive`
_NO_EMBEDDINGS = "`/api/embed` is not supported: this model makes texts"


def add_ollama(app: FastAPI, service: Service, prompted: Prompted) -> None:
    """Have `app` answer them."""

    async def answer(
        request: Request, given: OllamaBody, asked: ChatBody | CompletionBody, key: str
    ) -> Response:
        began_s = time.perf_counter()
        if given.think and not reasons(service.tokenizer):
            raise bad("think", "is not what this model's template knows of", "unsupported_value")
        prompt = await prompted(request, asked)
        most = max(1, min(service.limits.chat_tokens, service.max_len - len(prompt.ids)))
        if isinstance(asked, ChatBody):
            wanted = sampling.of_chat(asked, most, service.limits)
        else:
            wanted = sampling.of_completion(asked, service.limits)
            if given.options.num_predict < 0:
                wanted = replace(wanted, max_tokens=most)
        work = Work("ollama", (prompt,), wanted, share=share_of(request.scope))
        tags = tags_of(service, wanted) if isinstance(asked, ChatBody) else None
        splitters = [] if tags is None else [Splitter(tags)]
        parts = _lines(service, work, key, began_s, splitters, streams=given.stream)
        if given.stream:
            first = await while_connected(request.receive, first_of(parts))
            return JsonLines(first, parts, service.stall_s)
        lines = await while_connected(request.receive, _all(parts))
        return as_json(_whole(lines, key))

    async def answered(request: Request, given: OllamaBody, key: str, empty: bool) -> Response:
        """The answer, or what is wrong with the request. One that is `empty` is to load the model."""
        try:
            check_model(service, given.model.removesuffix(":latest"))
            if empty:
                reason = "unload" if given.keep_alive in _NOT_KEPT else "load"
                return as_json(_line(service, key, "", done=True, done_reason=reason))
            return await answer(request, given, given.as_openai(), key)
        except Gone:
            return Nothing()
        except ValidationError as error:  # what is wrong stands in no field of the other protocol
            refusal = of_body(error)
        except (Refusal, SglcError) as error:
            refusal = of_any(error)
        return as_response(refusal, request.url.path)

    @app.post("/api/generate", responses=_REFUSED | described(JsonLines))
    async def generate(body: OllamaGenerate, request: Request) -> Response:
        return await answered(request, body, "response", not body.prompt)

    @app.post("/api/chat", responses=_REFUSED | described(JsonLines))
    async def converse(body: OllamaChat, request: Request) -> Response:
        return await answered(request, body, "message", not body.messages)

    details = {"format": "", "family": "", "families": [], "parameter_size": "", "quantization_level": ""}

    @app.get("/api/tags", responses=_REFUSED)
    async def tags() -> Response:
        model = {"name": service.name, "model": service.name, "modified_at": _now(), "size": 0}
        return as_json({"models": [{**model, "digest": service.tokenizer.hash, "details": details}]})

    @app.post("/api/show", responses=_REFUSED)
    async def show(body: OllamaShow) -> Response:
        check_model(service, (body.model or body.name).removesuffix(":latest"))
        template = service.tokenizer.template or ""
        info = {"general.basename": service.name, "general.context_length": service.max_len}
        told = {"modelfile": "", "parameters": "", "template": template, "details": details}
        able = ["completion", *["thinking"] * reasons(service.tokenizer)]
        return as_json({**told, "model_info": info, "capabilities": able})

    @app.get("/api/version", responses=_REFUSED)
    async def version() -> Response:
        return as_json({"version": _VERSION})

    @app.post("/api/embed", include_in_schema=False)
    @app.post("/api/embeddings", include_in_schema=False)
    async def embed() -> Response:
        raise Refusal(404, _NO_EMBEDDINGS, code="not_found")


def of_any_type(app: ASGIApp) -> ASGIApp:
    """`app`, to which all that Ollama's endpoints get is JSON: curl, as Ollama shows it, calls it a form.

    But for what has an `Origin`: a browser sends a form for any page, without asking the server first.
    """

    async def reading(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(OLLAMAS):
            headers = MutableHeaders(scope=scope)
            if "origin" not in headers:
                headers["content-type"] = "application/json"
        await app(scope, receive, send)

    return reading


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _line(service: Service, key: str, text: str, reasoning: str = "", **more: Any) -> dict[str, Any]:
    said = _said(key, text, reasoning)
    return {"model": service.name, "created_at": _now(), **said, "done": False, **more}


def _said(key: str, text: str, reasoning: str) -> dict[str, Any]:
    thinking = {"thinking": reasoning} if reasoning else {}
    if key == "message":
        return {key: {"role": "assistant", "content": text, **thinking}}
    return {key: text, **thinking}


async def _lines(
    service: Service, work: Work, key: str, began_s: float, splitters: Sequence[Splitter], *, streams: bool
) -> AsyncGenerator[list[Any], None]:
    """The text as it comes, and a last line with counts and times (in nanoseconds)."""
    first_s: float | None = None

    async with aclosing(pieces(service.backend, work, shown=streams)) as batches:
        async for batch in batches:
            first_s = first_s or time.perf_counter()
            shares = [told_apart(splitters, piece) for piece in batch]
            shown = [_line(service, key, text, reasoning) for reasoning, text in shares if reasoning or text]
            for piece in batch:
                if piece.ended is not None:
                    now_s = time.perf_counter()
                    counts: dict[str, Any] = {
                        "done": True,
                        "done_reason": piece.ended,
                        "total_duration": int(1e9 * (now_s - began_s)),
                        "load_duration": 0,
                        "prompt_eval_count": len(work.prompts[0].ids),
                        "prompt_eval_duration": int(1e9 * (first_s - began_s)),
                        "eval_count": piece.usage.completion,
                        "eval_duration": int(1e9 * (now_s - first_s)),
                    }
                    shown.append(_line(service, key, "", **counts))
            if shown:
                yield shown


async def _all(parts: AsyncGenerator[list[Any], None]) -> list[Any]:
    return [line async for batch in parts for line in batch]


def _whole(lines: list[Any], key: str) -> dict[str, Any]:
    """The last line with all the text."""
    parts = [line[key] if key == "message" else line for line in lines]
    name = "content" if key == "message" else key
    reasoning = "".join(part.get("thinking", "") for part in parts)
    return {**lines[-1], **_said(key, "".join(part[name] for part in parts), reasoning)}
