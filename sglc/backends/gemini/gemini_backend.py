"""Models behind Google's generate_content, through the official SDK."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from sglc.backends.gemini.gemini_wire import bodies, pieces_of, replies_of, usage_of
from sglc.backends.models.vendor_rules import NOT_IN_GENERATE, ApiModel, gemini_model
from sglc.backends.remote.answers import Answer, Piece, Reading, RequestBody
from sglc.backends.remote.api_backend import ApiBackend, ApiOptions, Client, missing
from sglc.backends.remote.connection import see_keys, see_options, unreachable
from sglc.backends.remote.google_login import LOG_IN, login_trouble, not_let_in
from sglc.backends.remote.sdk_errors import message_of, network_trouble, said
from sglc.backends.remote.segment_runner import ApiRequest
from sglc.backends.retry import Trouble, status_trouble

_CONNECT_S = 5.0  # as the other vendors' SDKs have it


@dataclass(frozen=True, slots=True, kw_only=True)
class GeminiOptions(ApiOptions):
    """As of `ApiOptions`; the SDK's client is `google.genai.Client`, on Vertex AI with `vertex`.

    `safety_settings` are sent as they are; `base_url` is where the service is, if it is elsewhere.
    """

    vertex: bool = False
    safety_settings: Sequence[Mapping[str, Any]] | None = None
    base_url: str | None = None


class GeminiBackend(ApiBackend):
    """Runs segments on one model of Google's."""

    options: GeminiOptions
    cannot: ClassVar[Mapping[str, Any]] = NOT_IN_GENERATE

    def __init__(self, options: GeminiOptions) -> None:
        super().__init__(options)
        self.kind = "vertex" if options.vertex else "gemini"

    def usual_model(self) -> ApiModel:
        """By the table."""
        return gemini_model(f"{self.kind}:{self.options.model}")

    @cached_property
    def identity(self) -> str:
        """Where the model is."""
        variable = "GOOGLE_VERTEX_BASE_URL" if self.options.vertex else "GOOGLE_GEMINI_BASE_URL"
        return str(self.options.base_url or os.environ.get(variable) or self.kind)

    def bodies(self, request: ApiRequest) -> tuple[RequestBody, ...]:
        """As of `ApiBackend`."""
        made = bodies(request, self.model, self.options.model)
        if self.options.safety_settings is None:
            return made
        settings = {"safety_settings": list(self.options.safety_settings)}
        return tuple(
            replace(body, fields={**body.fields, "config": {**body.fields["config"], **settings}})
            for body in made
        )

    async def whole(self, client: Any, body: RequestBody) -> Answer:
        """As of `ApiBackend`."""
        made = await client.aio.models.generate_content(**body.fields)
        with Reading():
            replies = replies_of(made, body.count)
        if not replies:
            raise Trouble("the answer is malformed: it has no candidates")
        return Answer(tuple(replies), usage_of(made.usage_metadata))

    async def pieces(self, client: Any, body: RequestBody) -> AsyncIterator[Piece]:
        """As of `ApiBackend`."""
        async with aclosing(await client.aio.models.generate_content_stream(**body.fields)) as answers:
            async for made in answers:
                with Reading():
                    pieces = pieces_of(made)
                for piece in pieces:
                    yield piece
                if made.usage_metadata is not None:
                    yield Piece(usage=usage_of(made.usage_metadata))

    def trouble(self, error: Exception) -> Exception:
        """As of `ApiBackend`."""
        from google.genai import errors

        match error:
            case errors.APIError():
                headers = getattr(error.response, "headers", None) or {}
                waits = {"retry-after": wait} if (wait := _asked_wait(error.details)) else {}
                details = error.details if isinstance(error.details, Mapping) else {}
                message = message_of({**details, "message": error.message or details.get("message")})
                found = status_trouble(int(error.code or 500), message, {**waits, **headers})
                return not_let_in(found) if self.options.vertex else found
            case errors.UnknownApiResponseError():
                return Trouble(f"the answer is malformed: {said(error)}")
            case ValueError() if type(error).__module__.startswith("pydantic"):
                return Trouble(f"the answer is malformed: {said(error).splitlines()[0]}")
            case _:
                trouble = network_trouble(error)
                return login_trouble(self.target.name, error) if trouble is error else trouble

    async def _connects_soon(self, request: Any) -> None:
        """The SDK has one time for an attempt, as if there were none to connect."""
        request.extensions["timeout"]["connect"] = min(self.options.patience.attempt_s, _CONNECT_S)

    def connect(self) -> Client:
        """As of `ApiBackend`."""
        name = f"{self.kind}:{self.options.model}"
        try:
            from google.auth.exceptions import GoogleAuthError
            from google.genai import Client as GoogleClient
        except ImportError as error:
            raise missing(name, "google-genai", self.kind, error) from None
        # A redirect may lead to somebody else, and the key would go there, too.
        http: dict[str, Any] = {
            "timeout": round(self.options.patience.attempt_s * 1000),
            "async_client_args": {"follow_redirects": False, "event_hooks": {"request": [self._connects_soon]}},
        }
        if self.options.base_url is not None:
            http["base_url"] = self.options.base_url
        given: dict[str, Any] = {"http_options": http, **self.options.client}
        hint = "set `GEMINI_API_KEY`"
        if self.options.vertex:
            hint = f"set `GOOGLE_CLOUD_PROJECT` and `GOOGLE_CLOUD_LOCATION`, and {LOG_IN}"
            given["vertexai"] = True
        see_options(name, GoogleClient, given)
        try:
            client = GoogleClient(**given)
        except (ValueError, ImportError, GoogleAuthError) as error:
            raise unreachable(name, error, hint) from None
        see_keys(name, client._api_client.api_key)
        own = _through_httpx(client._api_client)

        async def end() -> None:
            await client.aio.aclose()
            if own is not None:
                await own.aclose()

        return client, end


def _through_httpx(inner: Any) -> Any:
    """The client of httpx that the SDK has made, which is to be closed; None, if the user gave one.

    Where it finds aiohttp it would ask through that, and follow redirects. It does not if it has a client of
    somebody's: here its own, with its certificates.
    """
    options = inner._http_options
    if options.aiohttp_client is not None or options.httpx_async_client is not None:
        return None
    options.httpx_async_client = inner._async_httpx_client
    return inner._async_httpx_client


def _asked_wait(details: Any) -> str:
    """The seconds that an error asks to wait, as Google says them (`RetryInfo`)."""
    error = details.get("error", details) if isinstance(details, Mapping) else {}
    infos = error.get("details") or [] if isinstance(error, Mapping) else []
    delays = [info.get("retryDelay") for info in infos if isinstance(info, Mapping)]
    return next((str(delay).removesuffix("s") for delay in delays if delay), "")
