"""Models behind Anthropic's messages protocol, through the official SDK."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from sglc.backends.anthropic.anthropic_wire import bodies, finish_of, reply_of, usage_of
from sglc.backends.anthropic.kept_prompts import KeptPrompts
from sglc.backends.models.vendor_rules import NOT_IN_MESSAGES, ApiModel, messages_model
from sglc.backends.remote.answers import (
    Answer,
    Piece,
    Reading,
    RequestBody,
    or_why_not,
    piece_or_why_not,
    text_of,
)
from sglc.backends.remote.api_backend import ApiBackend, ApiOptions, Client, missing
from sglc.backends.remote.connection import see_keys, see_options, timeouts, unreachable
from sglc.backends.remote.google_login import LOG_IN, login_trouble, not_let_in
from sglc.backends.remote.sdk_errors import sdk_trouble, told_trouble
from sglc.backends.remote.sdk_streams import reading
from sglc.backends.remote.segment_runner import ApiAnswer, ApiRequest
from sglc.ir.plan.events import Event

_OFFICIAL = "https://api.anthropic.com"
_ON_VERTEX = f"set `CLOUD_ML_REGION` and `ANTHROPIC_VERTEX_PROJECT_ID`, and {LOG_IN}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnthropicOptions(ApiOptions):
    """As of `ApiOptions`; the SDK's client is `AsyncAnthropic`, with `vertex` `AsyncAnthropicVertex`."""

    vertex: bool = False


class AnthropicBackend(ApiBackend):
    """Runs segments on one model of Anthropic's."""

    options: AnthropicOptions
    cannot: ClassVar[Mapping[str, Any]] = {**NOT_IN_MESSAGES, "cache_turns": True}

    def __init__(self, options: AnthropicOptions) -> None:
        super().__init__(options)
        self.kind = "vertex" if options.vertex else "anthropic"
        self._kept = KeptPrompts()

    def usual_model(self) -> ApiModel:
        """By the table."""
        return messages_model(f"{self.kind}:{self.options.model}")

    @cached_property
    def identity(self) -> str:
        """Where the model is."""
        variable = "ANTHROPIC_VERTEX_BASE_URL" if self.options.vertex else "ANTHROPIC_BASE_URL"
        usual = "Vertex AI" if self.options.vertex else _OFFICIAL
        return str(self.options.client.get("base_url") or os.environ.get(variable) or usual)

    def ask(self, request: ApiRequest, emit: Callable[[Event], None]) -> Awaitable[ApiAnswer]:
        """As of `ApiBackend`; where many prompts begin alike, one of them has that kept."""
        return self._ask_kept(request, emit) if request.node.cache_key else super().ask(request, emit)

    async def _ask_kept(self, request: ApiRequest, emit: Callable[[Event], None]) -> ApiAnswer:
        async with self._kept.asked(request.node.cache_key) as marked:
            if not marked:
                request = replace(request, node=replace(request.node, cache_key=""))
            return await super().ask(request, emit)

    def bodies(self, request: ApiRequest) -> tuple[RequestBody, ...]:
        """As of `ApiBackend`."""
        return bodies(request, self.model, self.options.model)

    async def whole(self, client: Any, body: RequestBody) -> Answer:
        """As of `ApiBackend`."""
        made = await client.messages.create(**body.fields)
        if error := getattr(made, "error", None):
            raise told_trouble(error)
        with Reading():
            return Answer((or_why_not(reply_of, made),), usage_of(made.usage))

    async def pieces(self, client: Any, body: RequestBody) -> AsyncIterator[Piece]:
        """As of `ApiBackend`."""
        begun = None
        events = await client.messages.create(**body.fields, stream=True)
        async with reading(events, "content"):
            async for event in events:
                piece = None
                with Reading():
                    match event.type:
                        case "message_start":
                            begun = event.message.usage
                        case "content_block_start" if event.content_block.type == "text":
                            piece = Piece(text_of(event.content_block.text))
                        case "content_block_delta" if event.delta.type == "text_delta":
                            piece = Piece(text_of(event.delta.text))
                        case "message_delta":
                            piece = piece_or_why_not(lambda delta: Piece(finish=finish_of(delta)), event.delta)
                            piece = replace(piece, usage=usage_of(begun, event.usage))
                if piece is not None:
                    yield piece

    def trouble(self, error: Exception) -> Exception:
        """As of `ApiBackend`."""
        import anthropic

        if isinstance(error, RuntimeError) and "project_id" in str(error):  # which a log-in may have had
            return unreachable(self.target.name, error, _ON_VERTEX)
        found = sdk_trouble(anthropic, error)
        if not self.options.vertex:
            return found
        return login_trouble(self.target.name, error) if found is error else not_let_in(found)

    def connect(self) -> Client:
        """As of `ApiBackend`."""
        name = f"{self.kind}:{self.options.model}"
        extra = "vertex" if self.options.vertex else "anthropic"
        try:
            import anthropic
        except ImportError as error:
            raise missing(name, "anthropic", extra, error) from None
        make: Any = anthropic.AsyncAnthropicVertex if self.options.vertex else anthropic.AsyncAnthropic
        hint = _ON_VERTEX if self.options.vertex else "set `ANTHROPIC_API_KEY`"
        timeout = timeouts(anthropic, self.options.patience)
        given = {"timeout": timeout, **self.options.client, "max_retries": 0}
        see_options(name, make, given)
        try:
            client = make(**given)
        except (ValueError, ImportError, anthropic.AnthropicError) as error:  # the former of proxies
            raise unreachable(name, error, hint) from None
        if self.options.vertex:
            return client, client.close
        if client.api_key is None and client.auth_token is None and client.credentials is None:
            raise unreachable(name, ValueError("there is no key"), hint)
        see_keys(name, client.api_key, client.auth_token)
        return client, client.close
